"""What two spellings of a sentence share: the forms under which texts are compared."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from hub import untrusted as markdown

_WORD = re.compile(r"[^\W_]+")


def normal_form(text: str) -> str:
    """The letters and digits of ``text`` alone: NFKC, case folded, without spaces and punctuation.

    Plain, Moses and Penn Treebank forms of a sentence meet in it: ``Don't!``, ``do n't !`` and ``don 't``; so do
    ``cannot`` and ``can not``. Two sentences that differ in word boundaries only (``now here``, ``nowhere``) meet too.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded if folded.isalnum() else "".join(_WORD.findall(folded))


def words(text: str) -> list[str]:
    """The runs of letters and digits of ``text``, NFKC and case folded: ``Don't go.`` has ``don``, ``t`` and ``go``."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


NAME_LIMIT = 72


def code(name: str) -> str:
    """A name as a code span that no name can leave, on one line and of bounded length."""
    shown = markdown.visible_line(name)
    return markdown.code(shown if len(shown) <= NAME_LIMIT else shown[: NAME_LIMIT - 1] + "…")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of finished cells, the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

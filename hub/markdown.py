"""Untrusted text as Markdown that shows the text and does nothing else.

Sample rows were written by a language model or by a stranger, and a card is rendered on a web page. Templates are safe
by default: ``finalize`` escapes whatever they print, unless it is of class ``Markdown``.

Characters with a meaning become numeric entities rather than backslash escapes: an entity can never be structure
(CommonMark 2.5), and a backslash before a table's pipe is read differently by different parsers.
"""

import re
import unicodedata
from html import unescape
from typing import Any

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co"})  # control, format (bidi, tags, zero width), surrogate, private use
JOINERS = frozenset("\u200c\u200d")  # format characters that emoji and some scripts need
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BREAK = "&#8203;"  # zero-width space, written as an entity so that it can be seen in the file
ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "&<>\\`*_[]|~$^=!#"})
ADDRESS_DOT = re.compile(r"(?i)(?<=www)\.|(?<=\w)\.(?=[^\W\d_])")  # not that of 3.14
SAMPLE_LIMIT = 200


class Markdown(str):
    """Text that is Markdown already: printed as it stands."""

    __slots__ = ()


def visible(text: str) -> str:
    """``text`` with every character that hides or reorders others shown as U+FFFD (line breaks and tabs stay)."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    keep = char in "\n\t" or char in JOINERS or unicodedata.category(char) not in HIDDEN
    return char if keep else REPLACEMENT


def visible_line(text: str) -> str:
    """``text`` on one line, without hidden characters."""
    return visible(" ".join(text.split()))


def inline(text: str) -> Markdown:
    """Text for a paragraph, a list item or a table cell, also at the start of a line."""
    escaped = visible_line(text).translate(ENTITIES)
    escaped = re.sub(r"^[+-]", lambda mark: f"&#{ord(mark[0])};", escaped)  # bullet, rule or heading underline
    return Markdown(re.sub(r"^(\d+)([.)])", lambda mark: f"{mark[1]}&#{ord(mark[2])};", escaped))  # numbered list


def prose(text: str) -> Markdown:
    """Paragraphs of text, escaped line by line; only ``code`` between backticks on one line is markup."""
    lines = (
        re.sub("&#96;(.+?)&#96;", lambda span: code(unescape(span[1])), inline(line)) for line in text.splitlines()
    )
    return Markdown("\n".join(lines).strip())


def sample(text: str, limit: int = SAMPLE_LIMIT) -> Markdown:
    """A sample row's text: shortened, escaped, and with nothing left that a renderer would turn into a link.

    Renderers find bare addresses after entities are resolved, so escaping alone does not stop them: the characters that
    make an address get an invisible break. A bare ``name.tld`` counts as an address for some.
    """
    text = visible_line(text)
    if len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    escaped = inline(text).replace("@", f"@{BREAK}").replace("//", f"/{BREAK}/")
    return Markdown(ADDRESS_DOT.sub(f"{BREAK}.", escaped))


def code(text: str) -> Markdown:
    """An inline code span, safe in a table cell."""
    text = visible_line(text)
    if text and not set(text) & set("`|\\"):
        return Markdown(f"`{text}`")
    return Markdown(f"<code>{inline(text)}</code>")


def fenced(text: str, language: str = "text") -> Markdown:
    """A fenced block of ``text`` as it is; the fence is longer than any run of backticks inside."""
    text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def finalize(value: Any) -> str:
    """What a template or a table prints for ``value``: Markdown as it is, numbers formatted, all other text escaped."""
    if isinstance(value, Markdown):
        return value
    if isinstance(value, bool) or value is None:
        raise TypeError(f"a card cannot print {value!r}: decide in the template what it means")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return inline(str(value))


def table(header: list[Any], rows: list[list[Any]]) -> Markdown:
    """A Markdown table; columns of numbers are aligned to the right."""
    lines = [_row(header), _row([Markdown(_rule([row[i] for row in rows])) for i in range(len(header))])]
    return Markdown("\n".join(lines + [_row(row) for row in rows]))


def _row(cells: list[Any]) -> str:
    return "| " + " | ".join(finalize(cell) for cell in cells) + " |"


def _rule(column: list[Any]) -> str:
    return "---:" if column and all(isinstance(cell, int | float) for cell in column) else "---"

"""Look at a corpus, a file or one split of a Hub dataset: its column of texts, their lengths, language and faults."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from generation.inputs.sources import file_rows, has_control_characters, what_was_read
from generation.run import is_question
from hub.cli import say
from hub.contract import licences
from hub.contract.recipe import LANGUAGE, QUOTE
from hub.errors import InputError, did_you_mean
from hub.text_files import MARK, READERS, as_text, is_blank, open_rows, require_kind
from hub.untrusted import one_line
from hub.word_overlap import words

LOOKED_AT = 20_000  # rows that a profile reads
LONGEST = 1_000  # characters of a usable text
NAMES = ("text", "sentence", "sentence1", "content", "body", "title", "question", "review", "description")
MOST_WORDS_IN_NAME = 4  # of a column; a first row with more words in a cell is not a header
KINDS = ("statements", "questions", "titles", "tickets")  # of texts; tickets have no sign of their own
ASKED, SHORT = 0.5, 0.8  # of a corpus's texts, from which they are questions; titles
MOST_WORDS_IN_TITLE, ENDS = 12, tuple(".!?…:;。！？")


@dataclass(frozen=True)
class Profile:
    """Statistics of the first rows of a corpus.

    Counts are in rows; an unusable row is counted once, by its first fault. ``words``: 5th, 50th and 95th percentile of
    the usable texts' lengths. ``language``: code of the commonest language (ISO 639-1); ``in_language``: its share.
    ``kind``: one of ``KINDS``; ``sign``: what speaks for it. ``texts``: the usable ones.
    """

    column: str | None
    rows: int
    whole: bool
    usable: int
    empty: int
    broken: int
    overlong: int
    repeated: int
    quoted: int
    words: tuple[int, int, int]
    language: str
    in_language: float
    kind: str
    sign: str
    texts: tuple[str, ...] = ()

    def read(self, place: object, rejected: Mapping[str, int]) -> list[str]:
        """``what_was_read`` of the corpus; ``rejected``: usable texts that a run would pass over, by reason."""
        faults = {"empty": self.empty, "broken": self.broken, "overlong": self.overlong, "repeated": self.repeated}
        given, columns = self.usable - sum(rejected.values()), (self.column,) if self.column else ()
        return what_was_read(place, columns, given, {**faults, **rejected}, self.texts)


@dataclass(frozen=True)
class Corpus:
    """A corpus, its title, the keys of the recipe's ``source`` that locate it, and its own licence where known."""

    title: str
    source: Mapping[str, object]
    profile: Profile
    license: str | None = None


def profile(path: Path, column: str | None = None, language: str | None = None, kind: str | None = None) -> Profile:
    """Return the statistics of a file that ``hub.text_files`` reads.

    Raises InputError for a missing file, another kind of file, one that is not UTF-8, a column that is missing or
    cannot be guessed, a file without a usable text, a malformed ``language`` and an unknown ``kind``.
    """
    if path.is_dir():
        raise InputError(path, "is a folder", allowed=f"a file of texts: {', '.join(READERS)}")
    if not path.is_file():
        raise InputError(path, "no such file", hint=f"looked in {Path.cwd()}; give a file of texts, one a row")
    column = None if require_kind(path, path) == ".txt" else find_column(path, column)
    reader = file_rows(path, (column,) if column else (), str(path))
    return described(str(path), column, (cells[0] for cells in reader), language, kind)


def described(
    place: str, column: str | None, cells: Iterator[str], language: str | None = None, kind: str | None = None
) -> Profile:
    """Return the statistics of the texts in ``cells``. Raises InputError without a usable text or for a bad choice."""
    if kind is not None and kind not in KINDS:
        raise InputError("--kind", f"no kind {kind!r}", allowed=", ".join(KINDS), hint=did_you_mean(kind, KINDS))
    if language is not None and not re.fullmatch(LANGUAGE, language):
        allowed = "ISO 639 in lower case, e.g. en, de, yue"
        raise InputError("--language", f"{language!r} is not a language code", allowed=allowed)
    reader = iter(cells)
    texts = [cell.strip().removeprefix(MARK).strip() for cell in islice(reader, LOOKED_AT)]
    whole = next(reader, None) is None
    counts = dict.fromkeys(("empty", "broken", "overlong", "repeated"), 0)
    usable = list[str]()
    seen = set[str]()
    for text in texts:
        reason = _problem(text) or ("repeated" if text in seen else None)
        seen.add(text)
        if reason:
            counts[reason] += 1
        else:
            usable.append(text)
    if not usable:
        found = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
        problem = f"has no usable text in its first {len(texts):,} rows ({found})"
        raise InputError(place, problem, allowed="at least one")
    lengths = sorted(len(words(text)) for text in usable)
    code, share = _language(usable, language)
    kind, sign = _kind(usable, kind)
    return Profile(
        column=column,
        rows=len(texts),
        whole=whole,
        usable=len(usable),
        **counts,
        quoted=sum(QUOTE in text for text in usable),
        words=tuple(lengths[int(part * (len(lengths) - 1))] for part in (0.05, 0.5, 0.95)),  # type: ignore[arg-type]
        language=code,
        in_language=share,
        kind=kind,
        sign=sign,
        texts=tuple(usable),
    )


def _problem(text: str) -> str | None:
    if is_blank(text):
        return "empty"
    if len(text) > LONGEST or len(text.splitlines()) > 1:
        return "overlong"
    return "broken" if has_control_characters(text) else None


def _language(texts: Sequence[str], given: str | None) -> tuple[str, float]:
    """Code of the language of most texts, or the given one, and the share of texts that are recognised as it."""
    import py3langid

    sample = texts[:: max(1, len(texts) // 300)]
    found = [str(py3langid.classify(text)[0]) for text in sample]
    code = given or max(sorted(set(found)), key=found.count)
    return code, found.count(code) / len(found)


def _kind(texts: Sequence[str], given: str | None) -> tuple[str, str]:
    """The kind of most texts, or the given one, and the share of texts with its sign, in words."""
    asked = sum(map(is_question, texts)) / len(texts)
    short = sum(len(words(text)) <= MOST_WORDS_IN_TITLE and not text.endswith(ENDS) for text in texts) / len(texts)
    kind = given or ("questions" if asked >= ASKED else "titles" if short >= SHORT else KINDS[0])
    if kind == "titles":
        return kind, f"{short:.0%} have at most {MOST_WORDS_IN_TITLE} words and no full stop"
    return kind, f"{asked:.0%} end in a question mark"


def find_column(path: Path, asked: str | None) -> str:
    """Name of the column of texts in a file; ``column_of`` chooses it from the first row."""
    names, rows = open_rows(path, path)
    if asked is None and any(len(name.split()) > MOST_WORDS_IN_NAME for name in names):
        hint = "write the columns' names into a first row; if it is a header, name the column of texts: --column NAME"
        raise InputError(path, f"has no header: its first row is {one_line(', '.join(names), 100)}", hint=hint)
    first = next(rows, None)
    if first is None:
        raise InputError(path, "has no row", allowed="at least one text", hint=f"columns: {', '.join(names)}")
    return column_of(str(path), first[1], asked)


def column_of(place: str, first: Mapping[str, object], asked: str | None) -> str:
    """Name of the column of texts in the row ``first``: ``asked``, else a usual name, else the only column of texts.

    Raises InputError for a missing column and where several columns, or none, could be it.
    """
    if asked is not None:
        if asked not in first:
            hint = did_you_mean(asked, first)
            raise InputError(f"{place}: column {asked!r}", "not in the data", allowed=", ".join(first), hint=hint)
        return asked
    usual = [name for name in first if name.lower() in NAMES]
    usual.sort(key=lambda name: NAMES.index(name.lower()))
    of_texts = [name for name, value in first.items() if isinstance(value, str) and len(words(value)) > 2]
    candidates = usual[:1] or of_texts
    if len(candidates) != 1:
        problem = "which column holds the texts is not clear" if candidates else "no column seems to hold texts"
        raise InputError(place, problem, allowed=", ".join(first), hint="name it: --column NAME")
    return candidates[0]


def hub_corpus(
    place: str,
    config: str | None = None,
    split: str | None = None,
    column: str | None = None,
    language: str | None = None,
    kind: str | None = None,
) -> Corpus:
    """Look at ``ORG/NAME[@REVISION]``, pinned at its commit: its card's licence and the first rows of one split.

    Raises InputError for a repository, revision, config, split or column that does not exist and for a split without a
    usable text; RunError when the Hub cannot be read.
    """
    from hub.client.connection import reading
    from hub.client.fetch import hub_dataset, require_known
    from hub.contract.shards import reading_rows

    repo_id, _, asked = place.partition("@")
    found = hub_dataset(repo_id, asked or None, place)
    configs = found.ask("get_dataset_config_names")
    chosen = config or found.ask("get_dataset_default_config_name")
    if chosen is None:
        raise InputError(place, "has several configs", allowed=", ".join(configs), hint="name one: --config")
    splits = found.ask("get_dataset_split_names", require_known(chosen, configs, place, "config"))
    part = require_known(split or (splits[0] if len(splits) == 1 else "train"), splits, f"{place} ({chosen})", "split")
    with reading(repo_id, found.commit), reading_rows(place, hint=None):
        rows: Any = iter(found.ask("load_dataset", chosen, split=part, streaming=True))
        first = list(islice(rows, 1))
        if not first:
            raise InputError(f"{place} ({chosen}, {part})", "has no row", allowed="at least one text")
        name = column_of(place, first[0], column)
        cells = (as_text(row[name], place, name) for row in chain(first, rows))
        statistics = described(place, name, cells, language, kind)
    if asked != found.commit:
        say(f"{repo_id}: {asked or 'its main branch'} is {found.commit} now; the recipe pins that")
    source = {"kind": "hub", "repo_id": repo_id, "revision": found.commit, "config": chosen, "splits": [part]}
    return Corpus(repo_id, source, statistics, _known_licence(repo_id, found.license))


def _known_licence(repo_id: str, license_id: str | None) -> str | None:
    """The licence that a card names, where the project's table has it; else None, with a message."""
    if license_id in licences.table():
        return license_id
    named = f"the unknown licence {one_line(license_id)!r}" if license_id else "no licence"
    say(f"{repo_id}: its card names {named}, so its texts count as unlicensed; if you know better: --license")
    return None

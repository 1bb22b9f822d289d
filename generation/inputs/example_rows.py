"""The labelled pairs that few-shot examples are drawn from: gold data, a file written by hand, an own run."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from generation.inputs.file_rows import file_rows
from generation.inputs.sources import source_rows, text_problem
from hub.contract.recipe import QUOTE, Examples, FewShot, Source
from hub.contract.run_dir import require_complete
from hub.contract.schema import base_config
from hub.errors import InputError, did_you_mean

LabelledPair = tuple[str, str, str]  # premise, hypothesis, value of the label column or name of the text's column
NO_PAIR: LabelledPair = ("", "", "")  # holds the place of a row that is no example: rows are known by their number
FIRST = "text1"  # the column of first texts in a file of kind hand, as in the config raw
SHARED = {"kind", "path", "repo_id", "revision", "config", "splits", "description", "license"}  # keys of a Source
PAIR = (FIRST, "text2", "target")  # the columns of the config raw that make an example


def labelled_pairs(
    few_shot: FewShot, labels: Sequence[str], quotes: bool = False, unwritten: Set[str] = frozenset()
) -> Iterator[LabelledPair]:
    """The pairs of the examples' origin, one after the other; of a row with a text for every label, one for each.

    ``labels``: the recipe's. ``quotes``: whether a text may hold a quotation mark, in a file of kind ``hand``;
    ``unwritten``: labels whose texts may repeat their first text there.
    Raises InputError when the origin is not there, cannot be read or is not as the recipe says.
    """
    examples = few_shot.examples
    if examples.kind in ("file", "hand") and not Path(examples.path or "").is_file():
        raise InputError(f"few_shot.examples.path {examples.path}", "no such file", hint="check it in the recipe")
    if examples.kind == "hand":
        return written_pairs(Path(examples.path or ""), labels, quotes, unwritten)
    if examples.rank_by is None:
        return (pair for pair, _ in _pairs(examples))
    values = [examples.names.get(label, label) for label in labels]
    return best(_pairs(examples), values, examples.rank_by, examples.top or 0)


def written_pairs(path: Path, labels: Sequence[str], quotes: bool, unwritten: Set[str]) -> Iterator[LabelledPair]:
    """The pairs of a .tsv file of kind ``hand``: ``text1`` and, in a column of its name, each label's text.

    Nothing is passed over: whoever wrote the file wants it shown as a whole. Raises InputError for a column that is no
    label, a text that cannot stand in a prompt, and one that repeats its first text; but that is what the examples of a
    label that is never written may teach: its prompt is there to be kept away from.
    """
    place = f"few_shot.examples {path}"
    if path.suffix != ".tsv":
        raise InputError(place, f"unknown kind of file {path.suffix!r}", allowed=".tsv")
    wanted, allowed = (FIRST, *labels), ", ".join((FIRST, *labels))
    with path.open("rb") as stream:
        columns = stream.readline().decode(errors="replace").rstrip("\r\n").split("\t")
    for name in columns:
        if name not in wanted:
            hint = did_you_mean(name, wanted)
            raise InputError(f"{place}: column {name!r}", "is no label", allowed=allowed, hint=hint)
    for name in wanted:
        if name not in columns:
            raise InputError(place, f"has no column {name!r}: every label needs its texts", allowed=allowed)
    for number, cells in enumerate(file_rows(path, wanted, place)):
        texts = [cell.strip() for cell in cells]
        for name, text in zip(wanted, texts, strict=True):
            compared = None if name == FIRST or name in unwritten else texts[0]
            if problem := _problem(text, quotes, compared):
                raise InputError(f"{place}: row {number}, column {name!r}", f"{problem}: {text!r}")
        yield from ((texts[0], text, label) for label, text in zip(labels, texts[1:], strict=True))


def _problem(text: str, quotes: bool, first: str | None) -> str | None:
    """What is wrong with a text that was written as an example, or None."""
    if not quotes and QUOTE in text:
        return "has a quotation mark inside, which would end it"
    if found := text_problem(text, None, len):
        return f"cannot stand in a prompt ({found})"
    return "repeats its first text, which teaches to copy" if text == first else None


def best(
    pairs: Iterable[tuple[LabelledPair, str]], values: Sequence[str], column: str, top: int
) -> Iterator[LabelledPair]:
    """Of each label the ``top`` pairs with the largest numbers, in their order, with ``NO_PAIR`` for those before them.

    ``values``: what the labels are called in the pairs; others, pairs without a number and those that repeat their
    first text are passed over. Raises InputError for what is no number, and for a label with fewer pairs than ``top``.
    """
    held: dict[str, list[tuple[float, int, LabelledPair]]] = {value: [] for value in values}
    for place, (pair, cell) in enumerate(pairs):
        if pair[2] not in held or not cell or pair[0].strip() == pair[1].strip():
            continue
        of_label = held[pair[2]]
        entry = (_number(cell, column), -place, pair)
        if len(of_label) < top:
            heapq.heappush(of_label, entry)
        else:
            heapq.heappushpop(of_label, entry)
    for label, found in held.items():
        if len(found) < top:
            problem = f"{len(found)} rows of label {label!r} have a {column}, and {top} are wanted"
            raise InputError("few_shot.examples.top", problem, hint="lower top, or write more rows in the first round")
    chosen = {-place: pair for found in held.values() for _, place, pair in found}
    return (chosen.get(place, NO_PAIR) for place in range(max(chosen, default=-1) + 1))


def _number(cell: str, column: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InputError(f"few_shot.examples: column {column!r}", f"{cell!r} is no number")
    return number


def _pairs(examples: Examples) -> Iterator[tuple[LabelledPair, str]]:
    """Every pair with the cell of the ranking column (empty without one)."""
    ranked = (examples.rank_by,) if examples.rank_by else ()
    if examples.kind == "own":
        yield from _own_pairs(Path(examples.path or ""), ranked)
        return
    shared = examples.model_dump(include=SHARED)
    columns = tuple(examples.texts.values()) or (examples.hypothesis, examples.label)
    source = Source(**shared, columns=(examples.premise, *columns, *ranked))
    for _, rows in source_rows(source):
        for premise, *cells in rows:
            if examples.texts:
                yield from (((premise, text, column), "") for text, column in zip(cells, columns, strict=True))
            else:
                yield (premise, cells[0], _label(cells[1], examples)), cells[2] if ranked else ""


def _label(cell: str, examples: Examples) -> str:
    """The value of a label column; of a score, the label in whose band it is, or what is none."""
    if not examples.scores:
        return cell
    score = _number(cell, examples.label)
    return next((label for label, (low, high) in examples.scores.items() if low <= score <= high), "")


def _own_pairs(directory: Path, ranked: tuple[str, ...]) -> Iterator[tuple[LabelledPair, str]]:
    """The pairs of a finished run's raw rows; ``NO_PAIR`` for copies of a first text and pairs that stood before."""
    seen = set[LabelledPair]()
    for file in own_files(directory):
        for first, text, label, *cells in file_rows(directory / file, (*PAIR, *ranked), f"{directory}/{file}"):
            pair = (first, text, label)
            yield (pair if first != text and pair not in seen else NO_PAIR), cells[0] if cells else ""
            seen.add(pair)


def own_files(directory: Path) -> list[str]:
    """The raw shards of a finished run, of all its shot counts. Raises InputError for a run that is not finished."""
    files = require_complete(directory).files
    return [file.path for file in files if file.config and base_config(file.config) == "raw"]

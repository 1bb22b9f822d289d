"""Few-shot examples (Auto-NLI section 3.2): pairs drawn by seed from a labelled dataset, a file or an own run.

The dataset is read once, as a stream, and a fixed number of premises is held: those with the smallest hash of
(seed, shot count, premise). Such a sample of premises does not depend on the order of the rows. It keeps a premise's
rows together wherever they stand: in SNLI they are neighbours, in MultiNLI they are not.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from generation.inputs.row_seeds import row_seed
from generation.inputs.sources import file_rows, source_rows, text_problem
from hub.contract.published_paths import published
from hub.contract.recipe import QUOTE, DatasetRecipe, Examples, FewShot, Source
from hub.contract.run_dir import require_complete
from hub.contract.schema import base_config
from hub.errors import InputError, did_you_mean

POOL = 64  # premises held for every one needed, so that enough of them have an example of every label
VALUES_SHOWN = 10  # label values that an error lists
LabelledPair = tuple[str, str, str]  # premise, hypothesis, value of the label column or name of the text's column
RankedPair = tuple[LabelledPair, str]  # with the cell of the ranking column, empty without one
NO_PAIR: LabelledPair = ("", "", "")  # keeps the row numbers where a row is no example
FIRST = "text1"  # the column of source sentences in a file of kind hand, as in the config raw
SHARED = {"kind", "path", "repo_id", "revision", "config", "splits", "description", "license"}  # keys of a Source
PAIR = (FIRST, "text2", "target")  # the columns of the config raw that make an example


@dataclass(frozen=True)
class Example:
    """A pair to show. ``row`` is its row number in the dataset, from 0 (splits are read one after the other)."""

    row: int
    premise: str
    hypothesis: str


ExampleSet = Mapping[str, Sequence[Example]]  # label → its examples, in prompt order


@dataclass(frozen=True)
class Labels:
    """The recipe's labels by name, and which texts an example may have.

    ``quotes``: whether a text may hold a quotation mark. ``unwritten``: labels whose texts may repeat their source
    sentence in a file of kind ``hand``.
    """

    names: Sequence[str]
    quotes: bool = False
    unwritten: Set[str] = frozenset()


@dataclass(frozen=True)
class ExampleOrigin:
    """A kind of origin for examples, declared once in ``ORIGINS``.

    ``pairs`` yields its rows. ``files`` lists the local files it reads. ``more`` tells the user how to get more
    examples. ``every_label``: each row has a text for every label.
    """

    pairs: Callable[[Examples, Labels], Iterator[RankedPair]]
    files: Callable[[Examples], list[Path]]
    more: str = "name a larger dataset"
    every_label: bool = False


def labelled_pairs(few_shot: FewShot, labels: Labels) -> Iterator[LabelledPair]:
    """The pairs of the examples' origin in order. A row with a text for every label gives one pair for each.

    Raises InputError when the origin is missing, cannot be read, or differs from what the recipe says.
    """
    examples = few_shot.examples
    found = ORIGINS[examples.kind].pairs(examples, labels)
    if examples.rank_by is None:
        return (pair for pair, _ in found)
    values = [examples.names.get(label, label) for label in labels.names]
    return best(found, values, examples.rank_by, examples.top or 0)


def best(pairs: Iterable[RankedPair], values: Sequence[str], column: str, top: int) -> Iterator[LabelledPair]:
    """Of each label the ``top`` pairs with the largest numbers, in their order, with ``NO_PAIR`` for those before them.

    ``values``: the labels' values in the pairs. Pairs with other values, without a number, or with two equal texts are
    skipped. Raises InputError for a cell that is no number, and for a label with fewer pairs than ``top``.
    """
    held: dict[str, list[tuple[float, int, LabelledPair]]] = {value: [] for value in values}
    for number, (pair, cell) in enumerate(pairs):
        if pair[2] not in held or not cell or pair[0].strip() == pair[1].strip():
            continue
        of_label = held[pair[2]]
        entry = (_number(cell, column), -number, pair)
        if len(of_label) < top:
            heapq.heappush(of_label, entry)
        else:
            heapq.heappushpop(of_label, entry)
    for label, found in held.items():
        if len(found) < top:
            problem = f"{len(found)} rows of label {label!r} have a {column}, and {top} are wanted"
            raise InputError("few_shot.examples.top", problem, hint="lower top, or write more rows in the first round")
    chosen = {-number: pair for found in held.values() for _, number, pair in found}
    return (chosen.get(number, NO_PAIR) for number in range(max(chosen, default=-1) + 1))


def _number(cell: str, column: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InputError(f"few_shot.examples: column {column!r}", f"{cell!r} is no number")
    return number


def _dataset_pairs(examples: Examples, _: Labels) -> Iterator[RankedPair]:
    """The pairs of a file or Hub dataset, by its label column, its score column, or a text column for every label."""
    _require_files(examples)
    ranked = (examples.rank_by,) if examples.rank_by else ()
    columns = tuple(examples.texts.values()) or (examples.hypothesis, examples.label)
    source = Source(**examples.model_dump(include=SHARED), columns=(examples.premise, *columns, *ranked))
    for _split, rows in source_rows(source):
        for premise, *cells in rows:
            if examples.texts:
                yield from (((premise, text, column), "") for text, column in zip(cells, columns, strict=True))
            else:
                yield (premise, cells[0], _label(cells[1], examples)), cells[2] if ranked else ""


def _label(cell: str, examples: Examples) -> str:
    """The value of a label column; for a score column, the label whose band holds the score, or an empty text."""
    if not examples.scores:
        return cell
    score = _number(cell, examples.label)
    return next((label for label, (low, high) in examples.scores.items() if low <= score <= high), "")


def _run_pairs(examples: Examples, _: Labels) -> Iterator[RankedPair]:
    """The pairs of a finished run's raw rows; ``NO_PAIR`` for repeated pairs and copies of a source sentence."""
    ranked = (examples.rank_by,) if examples.rank_by else ()
    seen = set[LabelledPair]()
    for path in _run_files(examples):
        for first, text, label, *cells in file_rows(path, (*PAIR, *ranked), str(path)):
            pair = (first, text, label)
            yield (pair if first != text and pair not in seen else NO_PAIR), cells[0] if cells else ""
            seen.add(pair)


def _run_files(examples: Examples) -> list[Path]:
    """The raw shards of a finished run, for all shot counts. Raises InputError for a run that is not finished."""
    directory = Path(examples.path or "")
    files = require_complete(directory).files
    return [directory / file.path for file in files if file.config and base_config(file.config) == "raw"]


def _hand_pairs(examples: Examples, labels: Labels) -> Iterator[RankedPair]:
    """The pairs of a .tsv file of kind ``hand``: ``text1`` and, in a column of its name, each label's text.

    No row is skipped. Raises InputError for a column that is no label, a text that no prompt can hold, and a text
    that repeats its source sentence. A label that is never written may repeat it: its prompt is a counter-prompt.
    """
    _require_files(examples)
    path = Path(examples.path or "")
    place, wanted = f"few_shot.examples {path}", (FIRST, *labels.names)
    allowed = ", ".join(wanted)
    if path.suffix != ".tsv":
        raise InputError(place, f"unknown kind of file {path.suffix!r}", allowed=".tsv")
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
            compared = None if name == FIRST or name in labels.unwritten else texts[0]
            if problem := _problem(text, labels.quotes, compared):
                raise InputError(f"{place}: row {number}, column {name!r}", f"{problem}: {text!r}")
        yield from (((texts[0], text, label), "") for label, text in zip(labels.names, texts[1:], strict=True))


def _problem(text: str, quotes: bool, first: str | None) -> str | None:
    """Why a text of a file of kind ``hand`` cannot be an example, or None."""
    if not quotes and QUOTE in text:
        return "has a quotation mark inside, which would end it"
    if found := text_problem(text, None, len):
        return f"no prompt can hold it ({found})"
    return "repeats its source sentence, which teaches to copy" if text == first else None


def _path(examples: Examples) -> list[Path]:
    return [Path(examples.path or "")]


def _require_files(examples: Examples) -> None:
    if any(not path.is_file() for path in local_files(examples)):
        raise InputError(f"few_shot.examples.path {examples.path}", "no such file", hint="check it in the recipe")


def local_files(examples: Examples) -> list[Path]:
    """The local files that examples are drawn from. Raises InputError for an own run that is not finished."""
    return ORIGINS[examples.kind].files(examples)


ORIGINS = {
    "file": ExampleOrigin(_dataset_pairs, _path),
    "hub": ExampleOrigin(_dataset_pairs, lambda _: []),
    "hand": ExampleOrigin(_hand_pairs, _path, more="write more rows", every_label=True),
    "own": ExampleOrigin(
        _run_pairs, _run_files, more="raise few_shot.examples.top, or write more rows in the first round"
    ),
}


class PremiseSample:
    """The ``size`` premises with the smallest hashes among those added, each with its first example of every label."""

    def __init__(self, size: int, *identity: object):
        self.size, self.identity = size, identity
        self._examples: dict[str, dict[str, Example]] = {}
        self._largest_first: list[tuple[int, str]] = []  # a heap of (-hash, premise)

    def add(self, label: str, example: Example) -> None:
        """Hold the example if its premise is among the smallest so far."""
        if example.premise not in self._examples and not self._admit(example.premise):
            return
        self._examples[example.premise].setdefault(label, example)

    def _admit(self, premise: str) -> bool:
        entry = (-row_seed(*self.identity, premise), premise)
        if len(self._largest_first) < self.size:
            heapq.heappush(self._largest_first, entry)
        else:
            removed = heapq.heappushpop(self._largest_first, entry)
            if removed == entry:
                return False
            del self._examples[removed[1]]
        self._examples[premise] = {}
        return True

    def by_label(self, labels: Sequence[str]) -> dict[str, list[Example]]:
        """For each label the examples in drawing order: premises that have every label come first, for all alike."""
        drawn = [self._examples[premise] for _, premise in sorted(self._largest_first, reverse=True)]
        drawn.sort(key=lambda found: len(found) < len(labels))  # stable
        return {label: [found[label] for found in drawn if label in found] for label in labels}


def draw(
    pairs: Iterable[LabelledPair], few_shot: FewShot, labels: Sequence[str], seed: int, quotes: bool = False
) -> dict[int, list[ExampleSet]]:
    """The example sets of every shot count above 0.

    What is drawn for a shot count does not depend on the other counts, and the first sets not on how many follow. The
    labels of a set have the same premises in the same order, as in the authors' sets, as long as there are premises
    with an example of every label. No example stands in two sets of one shot count; with ``few_shot.rotate`` each set
    is a draw of its own from the same examples, in its own order, so that a dozen of them make many sets.

    Args:
        pairs: the rows of the dataset. Rows of other labels are passed over, and so are texts that cannot be first
            texts either: empty ones and those with a line break.
        labels: the recipe's labels; ``few_shot.examples.names`` has the value of each in the dataset (absent: itself).
        quotes: whether a text may hold a quotation mark. Where one ends a text, an example would teach a wrong end.

    Raises:
        InputError: a label's value does not occur, or there are too few examples.
    """
    counts = [shots for shots in few_shot.shots if shots]
    samples = {shots: PremiseSample(POOL * shots * few_shot.sets, seed, "examples", shots) for shots in counts}
    names = {few_shot.examples.names.get(label, label): label for label in labels}
    in_columns = ORIGINS[few_shot.examples.kind].every_label or bool(few_shot.examples.texts)
    values, of_row = dict[str, None](), len(labels) if in_columns else 1
    for number, (premise, hypothesis, value) in enumerate(pairs):
        if len(values) <= VALUES_SHOWN or value in names:
            values[value] = None
        example = Example(number // of_row, premise.strip(), hypothesis.strip())
        if value in names and _fits(example.premise, quotes) and _fits(example.hypothesis, quotes):
            for sample in samples.values():
                sample.add(names[value], example)
    _check_values(names, values, few_shot)
    sets = _rotating_sets if few_shot.rotate else _sets
    return {shots: sets(samples[shots].by_label(labels), shots, few_shot, seed) for shots in counts}


def _fits(text: str, quotes: bool) -> bool:
    return (quotes or QUOTE not in text) and text_problem(text, None, len) is None


def _check_values(names: Mapping[str, str], values: Mapping[str, None], few_shot: FewShot) -> None:
    for value, label in names.items() if few_shot.examples.labels else ():
        if value not in values:
            found = ", ".join(repr(other) for other in list(values)[:VALUES_SHOWN]) or "no rows"
            raise InputError(
                f"few_shot.examples.labels.{label}",
                f"{value!r} does not occur in the column {few_shot.examples.label!r} of {place(few_shot)}",
                allowed=found,
            )


def _sets(pool: Mapping[str, Sequence[Example]], shots: int, few_shot: FewShot, _: int) -> list[ExampleSet]:
    wanted = shots * few_shot.sets
    _require(pool, wanted, few_shot, f"{few_shot.sets} sets of {shots} need {wanted}")
    return [
        {label: examples[start : start + shots] for label, examples in pool.items()}
        for start in range(0, wanted, shots)
    ]


def _rotating_sets(pool: Mapping[str, Sequence[Example]], shots: int, few_shot: FewShot, seed: int) -> list[ExampleSet]:
    """Sets that may share examples: in each, the premises with the smallest hashes of (seed, shot count, set)."""
    _require(pool, shots, few_shot, f"a set needs {shots}")
    shared = set.intersection(*({example.premise for example in examples} for examples in pool.values()))
    if len(shared) >= shots:  # the labels of a set show the same premises
        pool = {label: [one for one in examples if one.premise in shared] for label, examples in pool.items()}

    def drawn(number: int, examples: Sequence[Example]) -> list[Example]:
        return sorted(examples, key=lambda one: row_seed(seed, "example set", shots, number, one.premise))[:shots]

    return [{label: drawn(number, examples) for label, examples in pool.items()} for number in range(few_shot.sets)]


def _require(pool: Mapping[str, Sequence[Example]], least: int, few_shot: FewShot, need: str) -> None:
    for label, examples in pool.items():
        if len(examples) < least:
            raise InputError(
                f"few_shot.examples {place(few_shot)}",
                f"has {len(examples)} usable examples of {label!r}, but {need}",
                hint=f"lower few_shot.sets or few_shot.shots, or {ORIGINS[few_shot.examples.kind].more}",
            )


def place(few_shot: FewShot) -> str:
    """The dataset of the examples, for messages."""
    return few_shot.examples.repo_id or few_shot.examples.path or ""


def example_sets(recipe: DatasetRecipe) -> dict[int, list[ExampleSet]]:
    """The example sets of a recipe, drawn from its dataset; empty without few-shot examples. Raises InputError."""
    if recipe.few_shot is None or not any(recipe.few_shot.shots):
        return {}
    unwritten = {label.name for label in recipe.labels if not label.written}
    labels = Labels([label.name for label in recipe.labels], recipe.decoding.text_end == "line", unwritten)
    pairs = tqdm(labelled_pairs(recipe.few_shot, labels), unit="row", desc=f"{recipe.name} examples", delay=1)
    return draw(pairs, recipe.few_shot, labels.names, recipe.seed, labels.quotes)


def described(recipe: DatasetRecipe, sets: Mapping[int, Sequence[ExampleSet]]) -> dict[str, Any]:
    """What the manifest says of the examples: their dataset, and the rows of every set."""
    if recipe.few_shot is None:
        return {}
    examples = recipe.few_shot.examples
    rows = {
        f"{shots}shot": [
            {label: [example.row for example in found] for label, found in one.items()} for one in of_count
        ]
        for shots, of_count in sets.items()
    }
    named = published(examples).model_dump(include={"repo_id", "revision", "config", "splits", "path"})
    return {**{key: value for key, value in named.items() if value is not None}, "rows": rows}

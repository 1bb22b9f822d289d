"""Few-shot examples (Auto-NLI section 3.2): pairs drawn by seed from a labelled dataset, a file or an own run.

The dataset is read once, as a stream, and a fixed number of premises is held: those with the smallest hash of
(seed, shot count, premise). Such a sample depends on no order of the rows, and keeps a premise's rows together.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from generation.inputs.row_seeds import row_seed
from generation.inputs.sources import file_rows, source_rows, text_problem
from hub.contract.recipe import QUOTE, DatasetRecipe, Examples, FewShot, Source
from hub.contract.run_dir import require_complete
from hub.contract.schema import base_config
from hub.errors import InputError

POOL = 64  # premises held for every one needed, so that enough of them have an example of every label
FIRST = "text1"  # the column of source sentences in a file of kind hand, as in the config raw
SHARED = {"kind", "path", "repo_id", "revision", "config", "splits", "description", "license"}  # keys of a Source
PAIR = (FIRST, "text2", "target")  # the columns of the config raw that make an example


class LabelledPair(NamedTuple):
    """A pair of an origin. ``row``: its row number there, from 0 (splits and files are read one after the other)."""

    row: int
    premise: str
    hypothesis: str
    value: str  # of the label column, or the name of the text's column
    rank: str = ""  # the cell of the ranking column


@dataclass(frozen=True)
class Example:
    """A pair to show. ``row`` is its row number in the dataset."""

    row: int
    premise: str
    hypothesis: str


ExampleSet = Mapping[str, Sequence[Example]]  # label → its examples, in prompt order


@dataclass(frozen=True)
class ExampleOrigin:
    """A kind of origin for examples, declared once in ``ORIGINS``.

    ``pairs`` yields its pairs. ``files`` lists the local files it reads. ``more`` tells the user how to get more.
    """

    pairs: Callable[[Examples, DatasetRecipe], Iterator[LabelledPair]]
    files: Callable[[Examples], list[Path]]
    more: str = "name a larger dataset"


def best(pairs: Iterable[LabelledPair], values: Sequence[str], column: str, top: int) -> list[LabelledPair]:
    """Of each label the ``top`` pairs with the largest numbers, by row.

    ``values``: the labels' values in the pairs. Pairs with other values, without a number, or with two equal texts are
    skipped. Raises InputError for a cell that is not a number, and for a label with fewer pairs than ``top``.
    """
    held: dict[str, list[tuple[float, int, LabelledPair]]] = {value: [] for value in values}
    for pair in pairs:
        if pair.value in held and pair.rank and pair.premise.strip() != pair.hypothesis.strip():
            heapq.heappush(held[pair.value], (_number(pair.rank, column), -pair.row, pair))
            if len(held[pair.value]) > top:
                heapq.heappop(held[pair.value])
    for label, found in held.items():
        if len(found) < top:
            problem = f"{len(found)} rows of label {label!r} have a {column}, and {top} are wanted"
            raise InputError("few_shot.examples.top", problem, hint="lower top, or write more rows in the first round")
    return sorted(pair for found in held.values() for *_, pair in found)


def _number(cell: str, column: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InputError(f"few_shot.examples: column {column!r}", f"{cell!r} is not a number")
    return number


def _dataset_pairs(examples: Examples, _: DatasetRecipe) -> Iterator[LabelledPair]:
    """The pairs of a file or Hub dataset, by its label column, its score column, or a text column for every label."""
    ranked = (examples.rank_by,) if examples.rank_by else ()
    columns = tuple(examples.texts.values()) or (examples.hypothesis, examples.label, *ranked)
    source = Source(**examples.model_dump(include=SHARED), columns=(examples.premise, *columns))
    every = (cells for _, rows in source_rows(source) for cells in rows)
    for row, (premise, *cells) in enumerate(every):
        if examples.texts:
            for text, column in zip(cells, columns, strict=True):
                yield LabelledPair(row, premise, text, column)
        else:
            yield LabelledPair(row, premise, cells[0], _label(cells[1], examples), *cells[2:])


def _label(cell: str, examples: Examples) -> str:
    """The value of a label column; for a score column, the label whose band holds the score, or an empty text."""
    if not examples.scores:
        return cell
    score = _number(cell, examples.label)
    return next((label for label, (low, high) in examples.scores.items() if low <= score <= high), "")


def _run_pairs(examples: Examples, _: DatasetRecipe) -> Iterator[LabelledPair]:
    """The pairs of a finished run's raw rows, each once, without copies of a source sentence."""
    columns, seen = (*PAIR, *((examples.rank_by,) if examples.rank_by else ())), set[tuple[str, ...]]()
    every = (cells for path in _run_files(examples) for cells in file_rows(path, columns, str(path)))
    for row, cells in enumerate(every):
        if cells[0] != cells[1] and cells[:3] not in seen:
            seen.add(cells[:3])
            yield LabelledPair(row, *cells)


def _run_files(examples: Examples) -> list[Path]:
    """The raw shards of a finished run, for all shot counts. Raises InputError for a run that is not finished."""
    directory = Path(examples.path or "")
    files = require_complete(directory).files
    return [directory / file.path for file in files if file.config and base_config(file.config) == "raw"]


def _hand_pairs(examples: Examples, recipe: DatasetRecipe) -> Iterator[LabelledPair]:
    """The pairs of a file of kind ``hand``: ``text1`` and, in a column of its name, each label's text.

    Raises InputError for a label without a column, a text that no prompt can hold, and one that repeats its source
    sentence. A label that is never written may repeat it: its prompt is a counter-prompt.
    """
    path = Path(examples.path or "")
    place, labels = f"few_shot.examples {path}", [label.name for label in recipe.labels]
    may_repeat = {FIRST, *(label.name for label in recipe.labels if not label.written)}
    for row, cells in enumerate(file_rows(path, (FIRST, *labels), place)):
        texts = dict(zip((FIRST, *labels), (cell.strip() for cell in cells), strict=True))
        for name, text in texts.items():
            copied = text == texts[FIRST] and name not in may_repeat
            problem = "repeats its source sentence, which teaches to copy" if copied else _problem(text, recipe)
            if problem:
                raise InputError(f"{place}: row {row}, column {name!r}", f"{problem}: {text!r}")
        yield from (LabelledPair(row, texts[FIRST], texts[label], label) for label in labels)


def _problem(text: str, recipe: DatasetRecipe) -> str | None:
    """Why a text cannot be an example, or None: a quotation mark that ends texts would teach a wrong end."""
    if QUOTE in text and recipe.decoding.text_end != "line":
        return "has a quotation mark inside, which would end it"
    found = text_problem(text, None, len)
    return f"no prompt can hold it ({found})" if found else None


def local_files(examples: Examples) -> list[Path]:
    """The local files that examples are drawn from. Raises InputError for an own run that is not finished."""
    return ORIGINS[examples.kind].files(examples)


_MORE = "raise few_shot.examples.top, or write more rows in the first round"
ORIGINS = {
    "file": ExampleOrigin(_dataset_pairs, lambda examples: [Path(examples.path or "")]),
    "hub": ExampleOrigin(_dataset_pairs, lambda _: []),
    "hand": ExampleOrigin(_hand_pairs, lambda examples: [Path(examples.path or "")], more="write more rows"),
    "own": ExampleOrigin(_run_pairs, _run_files, more=_MORE),
}


class PremiseSample:
    """The ``size`` premises with the smallest hashes among those added, each with its first example of every label."""

    def __init__(self, size: int, *identity: object):
        self.size, self.identity = size, identity
        self._held: dict[str, dict[str, Example]] = {}

    def add(self, label: str, example: Example) -> None:
        """Hold the example if its premise is among the smallest so far."""
        self._held.setdefault(example.premise, {}).setdefault(label, example)
        if len(self._held) > 2 * self.size:
            self._forget()

    def _forget(self) -> None:
        smallest = heapq.nsmallest(self.size, self._held, key=lambda premise: row_seed(*self.identity, premise))
        self._held = {premise: self._held[premise] for premise in smallest}

    def by_label(self, labels: Sequence[str]) -> dict[str, list[Example]]:
        """For each label the examples in drawing order: premises that have every label come first, for all alike."""
        self._forget()
        drawn = sorted(self._held.values(), key=lambda found: len(found) < len(labels))
        return {label: [found[label] for found in drawn if label in found] for label in labels}


def example_sets(recipe: DatasetRecipe) -> dict[int, list[ExampleSet]]:
    """The example sets of a recipe, drawn from its dataset; empty without few-shot examples.

    Raises InputError when the dataset is missing, cannot be read, or differs from what the recipe says.
    """
    if recipe.few_shot is None or not any(recipe.few_shot.shots):
        return {}
    examples = recipe.few_shot.examples
    if any(not path.is_file() for path in local_files(examples)):
        raise InputError(f"few_shot.examples.path {examples.path}", "no such file", hint="check it in the recipe")
    pairs: Iterable[LabelledPair] = ORIGINS[examples.kind].pairs(examples, recipe)
    if examples.rank_by is not None:
        values = [examples.names.get(label.name, label.name) for label in recipe.labels]
        pairs = best(pairs, values, examples.rank_by, examples.top or 0)
    return draw(tqdm(pairs, unit="row", desc=f"{recipe.name} examples", delay=1), recipe, recipe.few_shot)


def draw(pairs: Iterable[LabelledPair], recipe: DatasetRecipe, few_shot: FewShot) -> dict[int, list[ExampleSet]]:
    """The example sets of every shot count above 0.

    What is drawn for a shot count does not depend on the other counts, and the first sets not on how many follow. The
    labels of a set have the same premises in the same order, as in the authors' sets, as long as there are premises
    with an example of every label. No example stands in two sets of one shot count, but with ``few_shot.rotate`` each
    set is a draw of its own, in its own order. Pairs of other labels and texts that no prompt can hold are skipped.

    Raises InputError when there are too few examples.
    """
    labels = [label.name for label in recipe.labels]
    samples = {
        shots: PremiseSample(POOL * shots * few_shot.sets, recipe.seed, "examples", shots)
        for shots in few_shot.shots
        if shots
    }
    names = {few_shot.examples.names.get(label, label): label for label in labels}
    for pair in pairs:
        example = Example(pair.row, pair.premise.strip(), pair.hypothesis.strip())
        if pair.value in names and not (_problem(example.premise, recipe) or _problem(example.hypothesis, recipe)):
            for sample in samples.values():
                sample.add(names[pair.value], example)
    return {shots: _sets(sample.by_label(labels), shots, few_shot, recipe.seed) for shots, sample in samples.items()}


def _sets(pool: Mapping[str, Sequence[Example]], shots: int, few_shot: FewShot, seed: int) -> list[ExampleSet]:
    """The sets of a shot count. Rotating ones may share examples: each takes the smallest hashes of (seed, set)."""
    wanted, need = shots * few_shot.sets, f"{few_shot.sets} sets of {shots} need {shots * few_shot.sets}"
    if few_shot.rotate:
        wanted, need = shots, f"a set needs {shots}"
    for label, examples in pool.items():
        if len(examples) < wanted:
            place = few_shot.examples.repo_id or few_shot.examples.path
            problem = f"has {len(examples)} usable examples of {label!r}, but {need}"
            hint = f"lower few_shot.sets or few_shot.shots, or {ORIGINS[few_shot.examples.kind].more}"
            if value := few_shot.examples.labels.get(label) if not examples else None:
                hint = f"is {value!r} what stands for it in the column {few_shot.examples.label!r}?"
            raise InputError(f"few_shot.examples {place}", problem, hint=hint)
    if not few_shot.rotate:
        starts = range(0, wanted, shots)
        return [{label: examples[start : start + shots] for label, examples in pool.items()} for start in starts]
    shared = set.intersection(*({example.premise for example in examples} for examples in pool.values()))
    if len(shared) >= shots:  # the labels of a set show the same premises
        pool = {label: [one for one in examples if one.premise in shared] for label, examples in pool.items()}

    def drawn(number: int, examples: Sequence[Example]) -> list[Example]:
        return sorted(examples, key=lambda one: row_seed(seed, "example set", shots, number, one.premise))[:shots]

    return [{label: drawn(number, examples) for label, examples in pool.items()} for number in range(few_shot.sets)]

"""Few-shot examples (Auto-NLI section 3.2): pairs drawn by seed from a dataset, a file or a run.

The dataset is read once, as a stream. Memory holds the premises with the smallest hashes of (seed,
shot count, premise), at most twice the number that is wanted. So the choice of premises does not
depend on the order of the rows, and the rows of a premise stay together.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sts_dino.generation.inputs.row_seeds import make_seed
from sts_dino.generation.inputs.sources import SOURCES, find_text_problem, read_file_rows
from sts_dino.hub.contract.recipe import QUOTE, DatasetRecipe, Examples, FewShot, Source
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.contract.schema import get_base_config
from sts_dino.hub.contract.shards import RERUN_HINT
from sts_dino.hub.errors import InputError
from sts_dino.hub.messages import ProgressBar

# premises that are sampled for each one that the sets need: many lack an example of some label
PREMISES_PER_EXAMPLE = 64
SOURCE_COLUMN = "text1"  # of source sentences, in a file of kind hand and in the config raw
# keys that the sections Examples and Source share
SOURCE_KEYS = {
    "kind",
    "path",
    "repo_id",
    "revision",
    "config",
    "splits",
    "description",
    "license",
    "encoding",
}
RAW_PAIR_COLUMNS = (SOURCE_COLUMN, "text2", "target")  # of the config raw


class Example(NamedTuple):
    """A pair of texts of the examples' dataset, for a prompt.

    ``row``: the pair's row number, from 0, over all splits and files in reading order. ``value``:
    the cell of the label column, the name of the text's column, or with ``examples.scores`` the
    label. ``rank``: the cell of the ranking column.
    """

    row: int
    premise: str
    hypothesis: str
    value: str = ""
    rank: str = ""


ExampleSet = Mapping[str, Sequence[Example]]  # label → its examples, in prompt order


@dataclass(frozen=True)
class ExampleOrigin:
    """A kind of ``few_shot.examples``, declared in ``ORIGINS``.

    ``read_pairs``: reads the pairs. ``list_files``: lists the local files that are read.
    ``remedy``: the last part of the hint when there are too few pairs.
    """

    read_pairs: Callable[[Examples, DatasetRecipe], Iterator[Example]]
    list_files: Callable[[Examples], list[Path]]
    remedy: str = "name a larger dataset"


def choose_best_pairs(
    pairs: Iterable[Example], values: Sequence[str], column: str, top: int
) -> list[Example]:
    """Return each label's ``top`` pairs with the largest ranks, ordered by row.

    Pairs with other values, with an empty rank, or with two equal texts are skipped. Raises
    InputError for a rank that is not a number, and for a label with fewer pairs than ``top``.

    Args:
        pairs: the pairs of an origin, each with its ``rank``.
        values: the value of each label in the pairs (``Example.value``).
        column: the name of the ranking column, for errors.
        top: number of pairs to choose for each label.
    """
    # keep the pairs with the largest ranks of each label; among equal ranks the earlier row wins
    heaps: dict[str, list[tuple[float, int, Example]]] = {value: [] for value in values}
    for pair in pairs:
        is_copy = pair.premise.strip() == pair.hypothesis.strip()
        if pair.value not in heaps or not pair.rank or is_copy:
            continue
        heap = heaps[pair.value]
        heapq.heappush(heap, (_parse_number(pair.rank, column), -pair.row, pair))
        if len(heap) > top:
            heapq.heappop(heap)

    best: list[Example] = []
    for value, heap in heaps.items():
        if len(heap) < top:
            raise InputError(
                "few_shot.examples.top",
                f"{len(heap)} rows of label {value!r} with two different texts "
                f"have a {column}, and {top} are wanted",
                hint="lower top, or take a dataset with more rows of this label",
            )
        best += [pair for _, _, pair in heap]
    return sorted(best)  # by row, a pair's first field


def _parse_number(cell: str, column: str) -> float:
    """Parse a cell of ``column``. Raises InputError for anything but a number."""
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InputError(f"few_shot.examples: column {column!r}", f"{cell!r} is not a number")
    return number


def _list_rank_columns(examples: Examples) -> tuple[str, ...]:
    return (examples.rank_by,) if examples.rank_by else ()


def _read_dataset_pairs(examples: Examples, _: DatasetRecipe) -> Iterator[Example]:
    """Yield the pairs of a file or Hub dataset, in reading order.

    Its rows have a label column, a score column, or a text column for every label. With text
    columns a row gives a pair for each, whose ``value`` is the column's name.

    Raises InputError for a file, dataset or column that is missing, damaged data, and a score that
    is not a number; RunError when the Hub does not answer.
    """
    columns = (examples.hypothesis, examples.label, *_list_rank_columns(examples))
    if examples.texts:
        columns = tuple(examples.texts.values())
    source = Source(
        **examples.model_dump(include=SOURCE_KEYS), columns=(examples.premise, *columns)
    )
    every_row = (cells for _, rows in SOURCES[source.kind](source) for cells in rows)
    for row, (premise, *cells) in enumerate(every_row):
        if examples.texts:
            for text, column in zip(cells, columns, strict=True):
                yield Example(row, premise, text, column)
        else:
            hypothesis, value, *rank = cells
            yield Example(row, premise, hypothesis, _find_value(value, examples), *rank)


def _find_value(cell: str, examples: Examples) -> str:
    """Return ``Example.value`` for a cell of the label column.

    It is the cell itself. With ``examples.scores`` it is the label whose band, limits included,
    holds the cell's number; "" for a number outside all bands. Raises InputError for a cell that is
    not a number, if there are bands.
    """
    if not examples.scores:
        return cell
    score = _parse_number(cell, examples.label)
    for label, (low, high) in examples.scores.items():
        if low <= score <= high:
            return label
    return ""


def _read_run_pairs(examples: Examples, _: DatasetRecipe) -> Iterator[Example]:
    """Yield the distinct pairs of a finished run's raw rows, but no text that equals its text1.

    ``value`` is the label that was asked for. Raises InputError for an unfinished run and for
    damaged files.
    """
    columns = (*RAW_PAIR_COLUMNS, *_list_rank_columns(examples))
    paths = _list_run_files(examples)
    every_row = (cells for path in paths for cells in read_file_rows(path, columns, str(path)))
    seen_pairs: set[tuple[str, ...]] = set()
    for row, cells in enumerate(every_row):
        pair = cells[: len(RAW_PAIR_COLUMNS)]
        if cells[0] != cells[1] and pair not in seen_pairs:
            seen_pairs.add(pair)
            yield Example(row, *cells)


def _list_run_files(examples: Examples) -> list[Path]:
    """List the files of a run's raw rows, of all shot counts.

    Raises InputError for an unfinished run.
    """
    directory = Path(examples.path or "")
    files = require_complete(directory).files
    return [
        directory / file.path
        for file in files
        if file.config and get_base_config(file.config) == "raw"
    ]


def _read_hand_pairs(examples: Examples, recipe: DatasetRecipe) -> Iterator[Example]:
    """Yield the pairs of a file of kind ``hand``.

    The file has the column ``text1`` and a column for each label, with the label's name.

    Raises InputError for a label without a column, for a text that no prompt can hold, and for a
    text that repeats its source sentence. The text of a label that is never generated may repeat
    it, because that label's prompt is only a counter-prompt.
    """
    path = Path(examples.path or "")
    location = f"few_shot.examples {path}"
    labels = [label.name for label in recipe.labels]
    may_repeat = {SOURCE_COLUMN, *(label.name for label in recipe.labels if not label.written)}
    for row, (text1, *label_texts) in enumerate(
        read_file_rows(path, (SOURCE_COLUMN, *labels), location, examples.encoding)
    ):
        texts = {SOURCE_COLUMN: text1.strip()}
        for label, text in zip(labels, label_texts, strict=True):
            texts[label] = text.strip()
        for name, text in texts.items():
            problem = _find_problem(text, recipe)
            if text == texts[SOURCE_COLUMN] and name not in may_repeat:
                problem = "repeats its source sentence, which teaches to copy"
            if problem:
                raise InputError(f"{location}: row {row}, column {name!r}", f"{problem}: {text!r}")
        for label in labels:
            yield Example(row, texts[SOURCE_COLUMN], texts[label], label)


def _find_problem(text: str, recipe: DatasetRecipe) -> str | None:
    """Return the reason why a stripped text cannot be an example, as a phrase, or None.

    With quoted texts, a quotation mark inside an example would teach the model to end its texts
    too early.
    """
    if QUOTE in text and recipe.decoding.text_end != "line":
        return "has a quotation mark inside, which would end it"
    problem = find_text_problem(text, None, len)
    return f"no prompt can hold it ({problem})" if problem else None


def list_example_files(examples: Examples) -> list[Path]:
    """Return the local files from which examples are drawn; empty for a dataset on a Hub.

    Raises InputError when the origin is an unfinished run (kind ``own``).
    """
    return ORIGINS[examples.kind].list_files(examples)


_MORE_RUN_PAIRS = "raise few_shot.examples.top, or write more rows in the first round"
ORIGINS = {
    "file": ExampleOrigin(_read_dataset_pairs, lambda examples: [Path(examples.path or "")]),
    "hub": ExampleOrigin(_read_dataset_pairs, lambda _: []),
    "hand": ExampleOrigin(
        _read_hand_pairs, lambda examples: [Path(examples.path or "")], remedy="write more rows"
    ),
    "own": ExampleOrigin(_read_run_pairs, _list_run_files, remedy=_MORE_RUN_PAIRS),
}


class PremiseSample:
    """A sample of premises: the ``size`` premises with the smallest hashes, with their examples.

    Each premise keeps its first example of every label. ``identity``: the values that are hashed
    with the premise.
    """

    def __init__(self, size: int, *identity: object):
        self.size = size
        self.identity = identity
        self._examples: dict[str, dict[str, Example]] = {}  # premise → label → example

    def add(self, label: str, example: Example) -> None:
        """Add an example, unless its premise has one of this label.

        The premises with the largest hashes are dropped when there are more than 2 · ``size``.
        """
        self._examples.setdefault(example.premise, {}).setdefault(label, example)
        if len(self._examples) > 2 * self.size:
            self._drop_largest()

    def _drop_largest(self) -> None:
        """Keep the ``size`` premises with the smallest hashes, in the order of their hashes."""
        smallest = heapq.nsmallest(
            self.size, self._examples, key=lambda premise: make_seed(*self.identity, premise)
        )
        self._examples = {premise: self._examples[premise] for premise in smallest}

    def group_by_label(self, labels: Sequence[str]) -> dict[str, list[Example]]:
        """Return label → its examples in drawing order.

        Premises with an example of every label come first, then the others; both by their hash, so
        that every label has them in the same order.
        """
        self._drop_largest()
        by_label: dict[str, list[Example]] = {label: [] for label in labels}
        complete_first = sorted(
            self._examples.values(), key=lambda examples: len(examples) < len(labels)
        )
        for examples in complete_first:
            for label, example in examples.items():
                by_label[label].append(example)
        return by_label


def load_example_sets(recipe: DatasetRecipe) -> dict[int, list[ExampleSet]]:
    """Return shot count → example sets of a recipe, for every shot count above 0.

    Empty for a recipe without ``few_shot``, or with no such shot count.

    Raises InputError when the examples' dataset is missing, cannot be read, lacks a column of the
    recipe, or has too few examples; RunError when the Hub does not answer.
    """
    if recipe.few_shot is None or not any(recipe.few_shot.shots):
        return {}
    examples = recipe.few_shot.examples
    is_run = examples.kind == "own"
    hint = RERUN_HINT if is_run else "check few_shot.examples.path in the recipe"
    for path in list_example_files(examples):
        if not path.is_file():
            raise InputError(f"few_shot.examples {path}", "no such file", hint=hint)
    pairs: Iterable[Example] = ORIGINS[examples.kind].read_pairs(examples, recipe)
    if examples.rank_by is not None:
        values = [examples.names.get(label.name, label.name) for label in recipe.labels]
        pairs = choose_best_pairs(pairs, values, examples.rank_by, examples.top or 0)
    pairs = ProgressBar(pairs, unit="row", desc=f"{recipe.name} examples", delay=1)
    return draw_example_sets(pairs, recipe, recipe.few_shot)


def draw_example_sets(
    pairs: Iterable[Example], recipe: DatasetRecipe, few_shot: FewShot
) -> dict[int, list[ExampleSet]]:
    """Return shot count → example sets, for every shot count above 0.

    Each shot count has a draw of its own. If enough premises have an example of every label, the
    labels of a set have the same premises in the same order, as in the authors' sets.

    Two sets of one shot count share no example. If enough premises have an example of every label,
    more sets leave the first ones as they are. With ``few_shot.rotate`` each set is an independent
    draw instead.

    Pairs whose label the recipe lacks, and pairs with a text that no prompt can hold, are skipped.

    Raises InputError when there are too few examples.

    Args:
        pairs: the pairs of the examples' dataset.
        recipe: the dataset's recipe.
        few_shot: the recipe's section of few-shot examples.
    """
    samples = {}
    for shots in few_shot.shots:
        if shots:
            size = PREMISES_PER_EXAMPLE * shots * few_shot.sets
            samples[shots] = PremiseSample(size, recipe.seed, "examples", shots)

    # sample the premises of usable pairs, for each shot count separately
    labels = [label.name for label in recipe.labels]
    label_of_value = {few_shot.examples.names.get(label, label): label for label in labels}
    for pair in pairs:
        if pair.value not in label_of_value:
            continue
        example = pair._replace(premise=pair.premise.strip(), hypothesis=pair.hypothesis.strip())
        texts = (example.premise, example.hypothesis)
        if any(_find_problem(text, recipe) for text in texts):
            continue
        for sample in samples.values():
            sample.add(label_of_value[pair.value], example)

    # draw the sets from them
    sets = {}
    for shots, sample in samples.items():
        pool = sample.group_by_label(labels)
        _require_enough_examples(pool, shots, few_shot)
        if few_shot.rotate:
            sets[shots] = _draw_rotating_sets(pool, shots, few_shot.sets, recipe.seed)
        else:
            sets[shots] = _cut_sets(pool, shots, few_shot.sets)
    return sets


def _require_enough_examples(
    pool: Mapping[str, Sequence[Example]], shots: int, few_shot: FewShot
) -> None:
    """Raise InputError for a label with fewer examples in ``pool`` than the sets need.

    Rotating sets may share examples, so that one set's examples are enough for them.

    Args:
        pool: label → its examples.
        shots: number of examples of each label in a set.
        few_shot: the recipe's section of few-shot examples.
    """
    if few_shot.rotate:
        least = shots
        requirement = f"a set needs {shots}"
    else:
        least = shots * few_shot.sets
        requirement = f"{few_shot.sets} sets of {shots} need {least}"
    section = few_shot.examples
    for label, examples in pool.items():
        if len(examples) < least:
            hint = f"lower few_shot.sets or few_shot.shots, or {ORIGINS[section.kind].remedy}"
            if not examples and section.labels.get(label):
                value = section.labels[label]
                hint = f"is {value!r} what stands for it in the column {section.label!r}?"
            raise InputError(
                f"few_shot.examples {section.repo_id or section.path}",
                f"has {len(examples)} usable examples of {label!r}, but {requirement}",
                hint=hint,
            )


def _cut_sets(
    pool: Mapping[str, Sequence[Example]], shots: int, set_count: int
) -> list[ExampleSet]:
    """Return ``set_count`` sets that share no example: consecutive parts of the pool.

    ``pool``: label → at least ``shots`` · ``set_count`` examples. A set has the next ``shots``
    examples of each label.
    """
    sets: list[ExampleSet] = []
    for start in range(0, shots * set_count, shots):
        sets.append({label: examples[start : start + shots] for label, examples in pool.items()})
    return sets


def _draw_rotating_sets(
    pool: Mapping[str, Sequence[Example]], shots: int, set_count: int, seed: int
) -> list[ExampleSet]:
    """Return ``set_count`` sets, each an independent draw of ``shots`` examples of each label.

    A set has each label's examples with the smallest hashes of their premises. The index of the set
    is part of the hash, so each set is another draw. ``pool``: label → at least ``shots`` examples.
    """
    # the labels of a set have the same premises if enough premises have an example of every label
    label_premises = [{example.premise for example in examples} for examples in pool.values()]
    premises = set.intersection(*label_premises)
    if len(premises) < shots:
        premises = set.union(*label_premises)

    usable = {
        label: [example for example in examples if example.premise in premises]
        for label, examples in pool.items()
    }

    sets: list[ExampleSet] = []
    for number in range(set_count):
        identity = (seed, "example set", shots, number)
        example_set = {
            label: _draw_examples(examples, shots, identity) for label, examples in usable.items()
        }
        sets.append(example_set)
    return sets


def _draw_examples(
    examples: Sequence[Example], count: int, identity: tuple[object, ...]
) -> list[Example]:
    """Return the ``count`` examples with the smallest hashes of (``identity``, premise)."""
    return heapq.nsmallest(
        count, examples, key=lambda example: make_seed(*identity, example.premise)
    )

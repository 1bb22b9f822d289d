"""Few-shot examples (Auto-NLI section 3.2): pairs drawn by seed from a labelled dataset, a file or an own run.

The dataset is read once, as a stream, and a fixed number of premises is held: those with the smallest hash of
(seed, shot count, premise). Such a sample of premises does not depend on the order of the rows, and it keeps a
premise's rows together wherever they stand: in SNLI they are neighbours, in MultiNLI they are not.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from generation.inputs.example_rows import LabelledPair, labelled_pairs
from generation.inputs.row_seeds import row_seed
from generation.inputs.sources import text_problem
from hub.contract.published_paths import published
from hub.contract.recipe import QUOTE, DatasetRecipe, FewShot
from hub.errors import InputError

POOL = 64  # premises held for every one needed, so that enough of them have an example of every label
VALUES_SHOWN = 10  # label values that an error lists


@dataclass(frozen=True)
class Example:
    """A pair to show. ``row`` is its row number in the dataset, from 0 (splits are read one after the other)."""

    row: int
    premise: str
    hypothesis: str


ExampleSet = Mapping[str, Sequence[Example]]  # label → its examples, in prompt order


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
    in_columns = few_shot.examples.kind == "hand" or bool(few_shot.examples.texts)
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


MORE_DATA = "name a larger dataset"
MORE = {"own": "raise few_shot.examples.top, or write more rows in the first round", "hand": "write more rows"}


def _require(pool: Mapping[str, Sequence[Example]], least: int, few_shot: FewShot, need: str) -> None:
    for label, examples in pool.items():
        if len(examples) < least:
            raise InputError(
                f"few_shot.examples {place(few_shot)}",
                f"has {len(examples)} usable examples of {label!r}, but {need}",
                hint=f"lower few_shot.sets or few_shot.shots, or {MORE.get(few_shot.examples.kind, MORE_DATA)}",
            )


def place(few_shot: FewShot) -> str:
    """The dataset of the examples, for messages."""
    return few_shot.examples.repo_id or few_shot.examples.path or ""


def example_sets(recipe: DatasetRecipe) -> dict[int, list[ExampleSet]]:
    """The example sets of a recipe, drawn from its dataset; empty without few-shot examples. Raises InputError."""
    if recipe.few_shot is None or not any(recipe.few_shot.shots):
        return {}
    labels = [label.name for label in recipe.labels]
    quotes = recipe.decoding.text_end == "line"
    unwritten = {label.name for label in recipe.labels if not label.written}
    rows = labelled_pairs(recipe.few_shot, labels, quotes, unwritten)
    pairs = tqdm(rows, unit="row", desc=f"{recipe.name} examples", delay=1)
    return draw(pairs, recipe.few_shot, labels, recipe.seed, quotes)


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

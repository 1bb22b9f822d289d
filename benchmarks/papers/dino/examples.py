"""First texts with the texts written for each label, best and worst: python -m benchmarks.papers.dino.examples RUN_DIR

After DINO's figure 1 and table 4. A judge that no filter asks (all-MiniLM-L6-v2) says how near each text is to its
first text, which is good when its labels' cosines lie in the labels' order and far apart, bad when they do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.papers.result import Measured
from benchmarks.papers.training_data import finished_rows
from hub import cli
from hub.contract.measured import write_json
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE
from hub.errors import InputError
from hub.markdown import Markdown, sample, table
from hub.training_value import Estimate
from hub.word_overlap import word_overlap

COLUMNS = ("sentence1", "sentence2", "source_id", "target")
NEAR_COPY = 0.8  # of the words in common: nothing is learned from such a pair, so it is no good example
SAMPLES, SEED = 1000, 42

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Example:
    """A first text with a text and its cosine for each label, labels from the highest score down."""

    source: str  # the first text's id
    first: str
    texts: Mapping[str, str]
    cosines: Mapping[str, float]

    @property
    def gap(self) -> float:
        """The smallest difference between the cosines of neighbouring labels: below zero where the order is wrong."""
        values = list(self.cosines.values())
        return min(high - low for high, low in pairwise(values))

    @property
    def has_near_copy(self) -> bool:
        """Whether one of the texts is hardly another one than the first text."""
        return any(word_overlap(self.first, text) >= NEAR_COPY for text in self.texts.values())


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset of scored pairs")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
    shown: Annotated[int, typer.Option("--shown", min=1, help="So many good ones, and as many bad ones")] = 3,
) -> None:
    """Judge the texts of every first text, and show the best and the worst.

    Examples:

      python -m benchmarks.papers.dino.examples artifacts/datasets/sts-dino-gemma --out /tmp/examples.json
    """
    pairs = written(directory)
    found = examples(pairs, judged(pairs))
    if not found:
        raise InputError(directory, "has no first text with a text for every label")
    write_json(out, measured(found, shown))
    cli.say(f"written: {out}, {len(found):,} first texts with a text for every label")


def written(directory: Path) -> list[tuple[str, str, str, str]]:
    """First text, second text, its id and label of every written pair; sampled negatives are left out.

    Raises InputError for a run without such columns.
    """
    labels = {label.name for label in load_recipe(directory / RECIPE, DatasetRecipe).labels}
    return [row for row in finished_rows(directory, COLUMNS, "scored pairs are shown") if row[-1] in labels]


def judged(pairs: Sequence[tuple[str, str, str, str]]) -> list[float]:
    """The cosine of every pair's texts under all-MiniLM-L6-v2."""
    from eval.encoders.embeddings import cosine
    from eval.encoders.load import load_encoder, minilm

    firsts, seconds = [first for first, *_ in pairs], [second for _, second, *_ in pairs]
    return list(cosine(load_encoder(str(minilm())))(firsts, seconds))


def examples(pairs: Sequence[tuple[str, str, str, str]], cosines: Sequence[float]) -> list[Example]:
    """The first texts with a text for every label, the first one of each; labels in the order of their numbers."""
    labels = sorted({label for *_, label in pairs}, key=float, reverse=True)
    texts, values, firsts = dict[str, dict[str, str]](), dict[str, dict[str, float]](), dict[str, str]()
    for (first, second, source, label), value in zip(pairs, cosines, strict=True):
        if label not in texts.setdefault(source, {}):
            texts[source][label], firsts[source] = second, first
            values.setdefault(source, {})[label] = value
    whole = [source for source in texts if len(texts[source]) == len(labels)]

    def ordered(found: Mapping[str, dict[str, object]], source: str) -> dict[str, object]:
        return {label: found[source][label] for label in labels}

    return [Example(one, firsts[one], ordered(texts, one), ordered(values, one)) for one in whole]  # type: ignore[arg-type]


def measured(found: Sequence[Example], shown: int) -> Measured:
    """The median cosine of each label with its interval over first texts, and the best and worst as pages."""
    random, matrix = np.random.default_rng(SEED), np.array([list(one.cosines.values()) for one in found])
    drawn = random.integers(len(matrix), size=(SAMPLES, len(matrix)))
    low, high = np.percentile(100 * np.median(matrix[drawn], axis=1), [2.5, 97.5], axis=0)
    medians = 100 * np.median(matrix, axis=0)
    rows = {}
    for place, label in enumerate(found[0].cosines):
        told = Estimate(score=float(medians[place]), low=float(low[place]), high=float(high[place]))
        rows[f"asked for {label}"] = {"median cosine x 100": told}
    order = sorted(found, key=lambda one: one.gap, reverse=True)
    fair = [one for one in order if not one.has_near_copy]
    share = sum(one.gap > 0 for one in found) / len(found)
    return Measured(
        rows=rows,
        notes=(f"The cosines of {share:.0%} of {len(found):,} first texts lie in the order of their labels.",),
        pages=(page("Good ones", fair[:shown]), page("Bad ones", order[: -shown - 1 : -1])),
    )


def page(title: str, found: Sequence[Example]) -> str:
    """A table of first texts and their texts, which a model wrote: escaped."""
    rows = [
        [sample(one.first) if place == 0 else Markdown(""), label, sample(text), round(one.cosines[label], 2)]
        for one in found
        for place, (label, text) in enumerate(one.texts.items())
    ]
    return f"{title}:\n\n{table(['first text', 'asked for', 'written', 'cosine'], rows)}"


if __name__ == "__main__":
    cli.run(app)

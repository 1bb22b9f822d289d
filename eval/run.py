"""Score an encoder: ``python -m eval.run RECIPE [--model --base --out --limit --set KEY.KEY=VALUE --dry-run]``.

Runs the recipe's evaluation tasks on the trained model and, under the same protocol and on the same bootstrap
resamples, on its untrained base; writes ``results.json`` into the model's run directory and a table to stdout. Any
folder or Hub id can stand for either model.
"""

import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import transformers
import typer

from eval.encoders import Encoder, load_encoder
from eval.registry import Task, find_task
from eval.significance import bootstrap_spearman, interval
from eval.sts import Pairs, Vector, cosine_scores, pearson, read_pairs, spearman
from eval.table import table
from hub.cli import DryRunOption, LimitOption, RecipeArgument, SetOption, new_app, run, say
from hub.errors import InputError
from hub.recipe import EvaluationTask, ModelRecipe
from hub.recipe_file import load_recipe
from hub.results import Gain, Results, TaskScore, write_results
from hub.run_dir import ARTIFACTS

app = new_app("Score a sentence encoder and its untrained base.")
LIBRARIES = ("torch", "transformers", "sentence-transformers", "numpy")
ModelOption = Annotated[str | None, typer.Option("--model", help="Folder or Hub id [default: artifacts/models/NAME]")]
BaseOption = Annotated[
    str | None, typer.Option("--base", help="The untrained student [default: NAME.base beside a folder --model]")
]


@dataclass(frozen=True)
class Measured:
    """One task's result: the score after and, when there is a base, before and the gain."""

    after: TaskScore
    before: TaskScore | None
    gain: Gain | None


def read_tasks(recipe: ModelRecipe, place: str, limit: int | None) -> list[tuple[Task, EvaluationTask, Pairs]]:
    """Every task of the recipe with its data. Raises InputError when there are none or the data are not the pinned."""
    if not recipe.evaluation:
        raise InputError(f"{place}:evaluation", "names no task", hint="add e.g. task: stsb/cosine")
    read = []
    for entry in recipe.evaluation:
        task = find_task(entry.task)
        if entry.path is None:
            raise InputError(f"{place}:evaluation", f"{entry.task} has no path")
        read.append((task, entry, read_pairs(Path(entry.path), task, entry.split).head(limit)))
    return read


def measure(
    task: Task, split: str, pairs: Pairs, cosines: list[Vector], recipe: ModelRecipe, limit: int | None
) -> Measured:
    """Scores of one task. ``cosines`` holds (pairs,) similarities of the model and, if there is one, of its base."""
    samples = 100 * bootstrap_spearman(pairs.gold, np.stack(cosines), recipe.bootstrap_samples, recipe.seed)
    protocol = task.protocol if limit is None else f"{task.protocol}; ONLY the first {len(pairs)} pairs"
    scores = []
    for cosine, resampled in zip(cosines, samples, strict=True):
        around = interval(resampled)
        scores.append(
            TaskScore(
                task=task.name,
                protocol=protocol,
                split=split,
                main_metric=task.main_metric,
                main_score=100 * spearman(cosine, pairs.gold),
                low=around.low,
                high=around.high,
                n=len(pairs),
                data_sha256=pairs.sha256,
                other={"pearson": 100 * pearson(cosine, pairs.gold)},
            )
        )
    if len(scores) == 1:
        return Measured(scores[0], None, None)
    after, before = scores
    around = interval(samples[0] - samples[1])
    difference = after.main_score - before.main_score
    gain = Gain(task=task.name, split=split, difference=difference, low=around.low, high=around.high)
    return Measured(after, before, gain)


def evaluate(
    recipe: ModelRecipe,
    tasks: list[tuple[Task, EvaluationTask, Pairs]],
    model: Encoder,
    base: Encoder | None,
    limit: int | None,
) -> Results:
    """Results of all tasks. Raises RunError when a correlation is undefined."""
    measured = []
    for task, entry, pairs in tasks:
        cosines = [cosine_scores(model.encode(f"{task.name} {entry.split}"), pairs)]
        if base is not None:
            cosines.append(cosine_scores(base.encode(f"{task.name} {entry.split}, before"), pairs))
        measured.append(measure(task, entry.split, pairs, cosines, recipe, limit))
    return Results(
        model=model.name,
        revision=model.revision,
        fingerprint=model.fingerprint,
        bootstrap_samples=recipe.bootstrap_samples,
        seed=recipe.seed,
        versions={"python": sys.version.split()[0], **{library: version(library) for library in LIBRARIES}},
        scores=tuple(item.after for item in measured),
        base_scores=tuple(item.before for item in measured if item.before is not None),
        gains=tuple(item.gain for item in measured if item.gain is not None),
    )


def default_base(model: str) -> str | None:
    """The untrained student that training left beside a model folder, if it is there."""
    path = Path(model)
    beside = path.with_name(f"{path.name}.base") if path.name else path
    return str(beside) if beside.is_dir() and beside != path else None


def results_path(out: Path | None, model: str, limit: int | None) -> Path | None:
    """Where results go: ``--out``, else results.json inside a model folder; None for part of the data, or a Hub id."""
    if out is not None:
        return out
    return Path(model) / "results.json" if Path(model).is_dir() and limit is None else None


@app.command()
def main(
    recipe: RecipeArgument,
    model: ModelOption = None,
    base: BaseOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Results file [default: MODEL/results.json]")] = None,
    limit: LimitOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    dry_run: DryRunOption = False,
) -> None:
    """Score the encoder of RECIPE on the recipe's tasks, beside the untrained one when training left it.

    Scores are correlations x 100 with 95 % bootstrap intervals. --model takes a folder or ORG/NAME[@REVISION] of a Hub.

    Examples:

      python -m eval.run recipes/demo/demo-sts-dino.yaml

      python -m eval.run recipes/demo/demo-sts-dino.yaml --model ORG/NAME@v1.0.0 --out /tmp/r.json
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loaded = load_recipe(recipe, ModelRecipe, settings)
    tasks = read_tasks(loaded, str(recipe), limit)
    model = model or str(ARTIFACTS / "models" / loaded.name)
    base = base or default_base(model)
    path = results_path(out, model, limit)
    if dry_run:
        for task, entry, pairs in tasks:
            print(f"{task.name} {entry.split}: {len(pairs)} pairs of {entry.path}")
        print(f"model {model}; base {base or 'none'}; results to {path or 'stdout only'}")
        return
    if loaded.threads is not None:
        torch.set_num_threads(loaded.threads)
    results = evaluate(loaded, tasks, load_encoder(model), load_encoder(base) if base else None, limit)
    if path is not None:
        write_results(path, results)
        say(f"written: {path}")
    print(table(results))


if __name__ == "__main__":
    run(app)

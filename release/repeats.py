"""Several trainings of one recipe, by seeds or by sets of few-shot examples, and the spread of their scores.

Each training and its evaluation are child processes with a run directory under ``NAME.repeats``. Means and spread go to
``NAME.repeats.json`` and, where the recipe's own run is finished, to ``repeats.json`` in its run directory. The same
command resumes. Runs count that ``torchrun`` made with ``--set seed=43 --out artifacts/models/NAME.repeats/seed-43``.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eval.runs.job import EvaluationOptions
from hub import cli
from hub.contract import run_dir
from hub.contract.measured import REPEATS, Repeats, Run, run_of, write_json
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import deciding, load_recipe
from hub.contract.results import read_results
from hub.errors import InputError
from release.options import RecipeOverrides, set_words, words_of
from release.stages import named, run_stage

app = cli.new_app(__doc__)

Over = Literal["seed", "example_set"]
OPTIONS = {"seed": "--seeds", "example_set": "--example-sets"}


@dataclass(frozen=True)
class RepeatOptions:
    """What differs between the trainings, and where they are."""

    seeds: Annotated[str | None, typer.Option(metavar="42,43,44", help="Seeds; 42-44 is the same")] = None
    example_sets: Annotated[str | None, typer.Option(metavar="0-9", help="Sets of few-shot examples")] = None
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run directories [default: artifacts/models/NAME.repeats]")
    ] = None


@dataclass(frozen=True)
class Series:
    """Repeated trainings of a recipe, one for each of ``values``, which is written to the recipe's ``keys``."""

    path: Path
    recipe: ModelRecipe
    over: Over
    values: tuple[int, ...]
    keys: tuple[str, ...]
    out: Path
    overrides: RecipeOverrides
    evaluation: EvaluationOptions

    def directory(self, value: int) -> Path:
        """The run directory of one value, e.g. ``seed-42``."""
        return self.out / f"{self.over.replace('_', '-')}-{value}"

    def words(self, value: int) -> list[str]:
        """The settings of one value, as the words of both stages."""
        return set_words([*self.overrides.settings, *(f"{key}={value}" for key in self.keys)])


@app.command()
@cli.option_groups
def main(
    recipe: cli.RecipeArgument,
    overrides: RecipeOverrides,
    evaluation: EvaluationOptions,
    options: RepeatOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Train and score the encoder of RECIPE several times; print mean ± sample standard deviation of every task.

    Examples:

      sts-dino repeat recipes/demo/demo-sts-dino.yaml --seeds 42,43,44

      sts-dino repeat recipes/models/prompteol-auto-nli-20shot.yaml --example-sets 0-9

      sts-dino repeat recipes/models/sroberta-sts-dino-x2.yaml --seeds 0-4 --tasks papers --senteval-data DIR
    """
    series = planned(recipe, options, overrides, evaluation)
    with run_dir.locked(series.out):
        runs = comparable([run_once(series, value) for value in series.values])
        repeats = Repeats(model=series.recipe.name, over=series.over, runs=tuple(runs))
        path = series.out.with_name(f"{series.out.name}.json")
        write_json(path, repeats)
    cli.say(f"written: {path}")
    write_for_card(series, repeats)
    cli.answer(table(repeats), repeats, as_json)


def planned(path: Path, options: RepeatOptions, overrides: RecipeOverrides, evaluation: EvaluationOptions) -> Series:
    """The series that the command line describes. Raises InputError before any training."""
    if (options.seeds is None) == (options.example_sets is None):
        raise InputError("--seeds, --example-sets", "give one of them", allowed="e.g. --seeds 42,43,44")
    over: Over = "seed" if options.seeds is not None else "example_set"
    values = parsed_range(getattr(options, f"{over}s"), OPTIONS[over])
    recipe = load_recipe(path, ModelRecipe, overrides.keys("limit"))
    if recipe.is_baseline:
        raise InputError(f"{path}:datasets", "the recipe trains nothing, so every run would be the same")
    if not recipe.evaluation:
        raise InputError(f"{path}:evaluation", "names no task", hint="add e.g. task: stsb/cosine")
    keys = varied(recipe, over, path)
    for setting in overrides.settings:
        if setting.partition("=")[0] in keys:
            raise InputError(f"--set {setting}", f"is what {OPTIONS[over]} sets", hint="leave one of the two out")
    out = (options.out or run_dir.ARTIFACTS / "models" / f"{recipe.name}.repeats").resolve()
    return Series(path, recipe, over, values, keys, out, overrides, evaluation)


def parsed_range(text: str, option: str) -> tuple[int, ...]:
    """Parse ``42,43,44``, ``0-9`` or a mix. Raises InputError for anything else and for a number given twice."""
    values: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part, re.ASCII)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise InputError(f"{option} {text!r}", f"{part!r} is not a number or range", allowed="e.g. 42,43,44 or 0-9")
        values += range(int(found[1]), int(found[2] or found[1]) + 1)
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InputError(f"{option} {text!r}", f"{twice} stands twice", hint="a run counts once")
    return tuple(values)


def varied(recipe: ModelRecipe, over: Over, path: Path) -> tuple[str, ...]:
    """The recipe's keys that differ between the runs. Raises InputError when its data have no example sets."""
    if over == "seed":
        return ("seed",)
    keys = [f"datasets.{i}.example_set" for i, item in enumerate(recipe.datasets) if item.example_set is not None]
    if not keys:
        hint = "write example_set: 0 to the few-shot dataset of the recipe, or use --seeds"
        raise InputError(f"{path}:datasets", "none of them is restricted to an example_set", hint=hint)
    return tuple(keys)


def run_once(series: Series, value: int) -> Run:
    """Train and score one run, unless that is done; its scores. Raises InputError or RunError that names the run."""
    directory, settings = series.directory(value), series.words(value)
    limit = ["--limit", str(series.overrides.limit)] if series.overrides.limit is not None else []
    hint = "finished runs are kept: run the same command again to resume, or leave this run out and report that"

    def stage(command: str, *words: str) -> None:
        with named(f"{series.over.replace('_', ' ')} {value}: {command}", directory, hint):
            run_stage(command, str(series.path), *words, *settings)

    stage("train", "--out", str(directory), *limit)
    manifest = run_dir.require_complete(directory)
    if series.evaluation.tasks or not is_scored(directory, manifest, series.recipe):
        stage("score", "--model", str(directory), *words_of(series.evaluation))
    return run_of(value, manifest, read_results(directory / "results.json"))


def is_scored(directory: Path, manifest: run_dir.Manifest, recipe: ModelRecipe) -> bool:
    """Whether results.json holds every task of the recipe, scored on these weights and on all data.

    A task that cuts its own folds has the split ``all``, whatever the recipe names. A recipe with a group of tasks is
    not scored: the evaluation resolves groups and keeps valid scores.
    """
    path = directory / "results.json"
    if not path.is_file():
        return False
    results = read_results(path)
    found = {(score.task, score.split) for score in results.scores}
    wanted = [{(entry.task, entry.split), (entry.task, "all")} for entry in recipe.evaluation]
    is_whole = results.fingerprint == manifest.fingerprint and results.limit is None
    return is_whole and all(found & either for either in wanted)


def comparable(runs: list[Run]) -> list[Run]:
    """The runs with the scores that all of them have, in the order of the first; a warning names the others."""
    scored = [{(score.task, score.split): score for score in run.scores} for run in runs]
    shared = [key for key in scored[0] if all(key in one for one in scored)]
    left_out = sorted({" ".join(key) for one in scored for key in one if key not in shared})
    if left_out:
        cli.say(f"warning: no spread for scores that not every run has: {', '.join(left_out)}")
    each = [tuple(one[key] for key in shared) for one in scored]
    return [run.model_copy(update={"scores": scores}) for run, scores in zip(runs, each, strict=True)]


def write_for_card(series: Series, repeats: Repeats) -> None:
    """Write repeats.json into the recipe's own run directory, if that is a finished run of the same recipe."""
    directory = series.out.with_name(series.recipe.name)
    manifest = run_dir.read_manifest(directory)
    if manifest is None or not manifest.complete:
        return
    own = load_recipe(directory / run_dir.RECIPE, ModelRecipe)
    if without(own, series.keys) != without(series.recipe, series.keys):
        cli.say(f"warning: {directory} is a run of another recipe or of other settings: no {REPEATS} for its card")
        return
    with run_dir.locked(directory):
        write_json(directory / REPEATS, repeats)
    cli.say(f"written: {directory / REPEATS}")


def without(recipe: ModelRecipe, keys: tuple[str, ...]) -> dict[str, Any]:
    """The recipe keys that affect the weights, as plain values, without those that differ between the runs."""
    tree = deciding(recipe)
    for key in keys:
        *parents, last = key.split(".")
        node: Any = tree
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        node.pop(last)
    return tree


def table(repeats: Repeats) -> str:
    """A line per task: runs, mean ± sample standard deviation, worst and best run; x 100."""
    rows = [("task", "split", "runs", "mean ± sd", "min - max")]
    for item in repeats.summaries:
        spread = f" ± {item.sd:.2f}" if item.sd is not None else ""
        scores = f"{item.mean:.2f}{spread}", f"{item.low:.2f} - {item.high:.2f}"
        rows.append((item.task, item.split, str(item.runs), *scores))
    return cli.aligned(rows)

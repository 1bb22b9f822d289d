"""Repeated trainings of one recipe, by seed or by set of few-shot examples, and their spread.

Each training and its evaluation are child processes with a run directory under ``NAME.repeats``.
Means and spread go to ``NAME.repeats.json`` and, where the recipe's own run is finished, to
``repeats.json`` in its run directory. The same command resumes. A run that ``torchrun`` made with
``--set seed=43 --out artifacts/models/NAME.repeats/seed-43`` counts, too.
"""

import logging
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from sts_dino.eval.runs.job import EvaluationOptions
from sts_dino.hub import cli
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.measured import REPEATS, Repeats, Run, make_run, write_json
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import get_deciding_values, load_recipe
from sts_dino.hub.contract.results import read_results
from sts_dino.hub.errors import InputError
from sts_dino.hub.scores import align_columns
from sts_dino.release.options import RecipeOverrides, format_options, format_settings
from sts_dino.release.stages import name_failure, run_stage

logger = logging.getLogger(__name__)

app = cli.make_app(__doc__)

Over = Literal["seed", "example_set"]
MOST_RUNS = 1000
OPTION_NAMES = {"seed": "--seeds", "example_set": "--example-sets"}


@dataclass(frozen=True)
class RepeatOptions:
    """What differs between the trainings, and where they are."""

    seeds: Annotated[
        str | None, typer.Option(metavar="42,43,44", help="Seeds; 42-44 is the same")
    ] = None
    example_sets: Annotated[
        str | None, typer.Option(metavar="0-9", help="Sets of few-shot examples")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run directories [default: artifacts/models/NAME.repeats]"),
    ] = None


@dataclass(frozen=True)
class Series:
    """Repeated trainings of a recipe, one for each of ``values``.

    ``over`` is what the values are: training seeds, or indices of example sets. ``keys`` are the
    dotted recipe keys that are set to the value. ``path`` is the recipe's file, ``out`` the folder
    of the run directories.
    """

    path: Path
    recipe: ModelRecipe
    over: Over
    values: tuple[int, ...]
    keys: tuple[str, ...]
    out: Path
    overrides: RecipeOverrides
    evaluation: EvaluationOptions

    def locate_run(self, value: int) -> Path:
        """Return the run directory of one value, e.g. ``seed-42``."""
        return self.out / f"{self.over.replace('_', '-')}-{value}"

    def format_words(self, value: int) -> list[str]:
        """Format the settings of one value as words of a command line: --set KEY=VALUE.

        The words have the user's settings and those of the varied keys, but not ``--limit``.
        """
        varied = [f"{key}={value}" for key in self.keys]
        return format_settings([*self.overrides.settings, *varied])


@app.command()
@cli.unpack_option_groups
def main(
    recipe: cli.RecipeArgument,
    overrides: RecipeOverrides,
    evaluation: EvaluationOptions,
    options: RepeatOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Train and score the encoder of RECIPE several times.

    Print mean ± sample standard deviation of every task.

    Examples:

      sts-dino repeat recipes/demo/demo-sts-dino.yaml --seeds 42,43,44

      sts-dino repeat recipes/models/prompteol-auto-nli-20shot.yaml --example-sets 0-9

      sts-dino repeat recipes/my-encoder.yaml --seeds 0-4 --tasks papers --senteval-data DIR
    """
    series = plan_series(recipe, options, overrides, evaluation)
    with run_dir.lock_run(series.out):
        runs = keep_shared_scores([run_once(series, value) for value in series.values])
        repeats = Repeats(model=series.recipe.name, over=series.over, runs=tuple(runs))
        path = series.out.with_name(f"{series.out.name}.json")
        write_json(path, repeats)
    logger.info(f"written: {path}")
    write_for_card(series, repeats)
    cli.print_answer(format_repeats(repeats), repeats, as_json)


def plan_series(
    path: Path, options: RepeatOptions, overrides: RecipeOverrides, evaluation: EvaluationOptions
) -> Series:
    """Return the series that the command line describes.

    Raises InputError, before any training, for options that contradict one another or the recipe,
    for values that ``parse_range`` refuses, and for a recipe that is malformed or has no datasets
    or evaluation tasks.
    """
    # Read the values
    if (options.seeds is None) == (options.example_sets is None):
        allowed = "e.g. --seeds 42,43,44"
        raise InputError("--seeds, --example-sets", "give one of them", allowed=allowed)
    over: Over = "seed" if options.seeds is not None else "example_set"
    text = getattr(options, f"{over}s")  # options.seeds or options.example_sets
    values = parse_range(text, OPTION_NAMES[over])

    # Refuse a recipe that cannot be repeated
    recipe = load_recipe(path, ModelRecipe, overrides.list_settings("limit"))
    if recipe.is_baseline:
        problem = "the recipe trains nothing, so every run would be the same"
        raise InputError(f"{path}:datasets", problem)
    if not recipe.evaluation:
        raise InputError(f"{path}:evaluation", "names no task", hint="add e.g. task: stsb/cosine")

    # Refuse a setting of a key that the values set
    keys = find_varied_keys(recipe, over, path)
    for setting in overrides.settings:
        if setting.partition("=")[0] in keys:
            problem = f"is set by {OPTION_NAMES[over]}"
            raise InputError(f"--set {setting}", problem, hint="leave one of the two out")
    out = (options.out or run_dir.ARTIFACTS / "models" / f"{recipe.name}.repeats").resolve()
    return Series(path, recipe, over, values, keys, out, overrides, evaluation)


def parse_range(text: str, option: str) -> tuple[int, ...]:
    """Parse numbers and ranges separated by commas: ``42,43,44``, ``0-9`` or ``0-4,7``.

    A number has at most nine digits. A range ascends and includes both ends. ``option`` is the name
    of the option, for errors. Returns the numbers in the order of the text. Raises InputError for
    another text, a descending range, a repeated number and more than ``MOST_RUNS`` numbers.
    """
    place = f"{option} {text!r}"
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            problem = f"{part!r} is not a number or ascending range (at most nine digits each)"
            raise InputError(place, problem, allowed="e.g. 42,43,44 or 0-9")
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(values) + len(numbers) > MOST_RUNS:
            raise InputError(
                place, f"names more than {MOST_RUNS:,} runs", allowed="e.g. 42,43,44 or 0-9"
            )
        values += numbers
    for value, count in Counter(values).items():
        if count > 1:
            raise InputError(place, f"{value} stands twice", hint="a run counts once")
    return tuple(values)


def find_varied_keys(recipe: ModelRecipe, over: Over, path: Path) -> tuple[str, ...]:
    """Return the dotted recipe keys that differ between the runs.

    Args:
        recipe: the recipe of all runs.
        over: "seed": the key ``seed``; "example_set": the key of every dataset that has one.
        path: the recipe's file, for errors.

    Raises InputError for "example_set" when no dataset of the recipe has an example set.
    """
    if over == "seed":
        return ("seed",)
    keys = [
        f"datasets.{number}.example_set"
        for number, data in enumerate(recipe.datasets)
        if data.example_set is not None
    ]
    if not keys:
        problem = "none of them is restricted to an example_set"
        hint = "write example_set: 0 to the few-shot dataset of the recipe, or use --seeds"
        raise InputError(f"{path}:datasets", problem, hint=hint)
    return tuple(keys)


def run_once(series: Series, value: int) -> Run:
    """Train and score the run of one value, unless it is finished already; return its scores.

    With ``--tasks`` a scored run is scored again: ``sts-dino score`` keeps what still holds. Raises
    InputError or RunError, which names the value, when a stage fails, and RunError, which names the
    stage's command, when a stage is killed.
    """
    directory = series.locate_run(value)
    settings = series.format_words(value)
    hint = (
        "finished runs are kept: run the same command again to resume, "
        "or leave this run out and report that"
    )

    def run_named(command: str, *words: str) -> None:
        """Run a stage with the settings of this value; its failure names the value."""
        stage = f"{series.over.replace('_', ' ')} {value}: {command}"
        with name_failure(stage, directory, hint):
            run_stage(command, str(series.path), *words, *settings)

    # ``sts-dino train`` resumes, and skips a finished run; --limit is an option of it alone
    limit: list[str] = []
    if series.overrides.limit is not None:
        limit = ["--limit", str(series.overrides.limit)]
    run_named("train", "--out", str(directory), *limit)
    manifest = run_dir.require_complete(directory)
    if series.evaluation.tasks or not is_scored(directory, manifest, series.recipe):
        run_named("score", "--model", str(directory), *format_options(series.evaluation))
    return make_run(value, manifest, read_results(directory / "results.json"))


def is_scored(directory: Path, manifest: run_dir.Manifest, recipe: ModelRecipe) -> bool:
    """Return whether a run's results.json has the run's scores on all tasks of the recipe.

    Scores of other weights than those of ``manifest``, and scores on a limited part of the data, do
    not count. A task that cuts its own folds has the split ``all``, whatever the recipe names. For
    a recipe with a group of tasks the answer is False: ``sts-dino score`` resolves groups. Raises
    InputError for a malformed results.json.
    """
    path = directory / "results.json"
    if not path.is_file():
        return False
    results = read_results(path)
    if results.fingerprint != manifest.fingerprint or results.limit is not None:
        return False
    scored = {(score.task, score.split) for score in results.scores}
    for entry in recipe.evaluation:
        if (entry.task, entry.split) not in scored and (entry.task, "all") not in scored:
            return False
    return True


def keep_shared_scores(runs: list[Run]) -> list[Run]:
    """Return the runs, in their order, with only the scores that every run has.

    The scores of each run stand in the order of the first run. A warning names the scores that are
    left out. ``runs`` has at least one run.
    """
    # Find the scores that all runs have
    scores_of_run = [{(score.task, score.split): score for score in run.scores} for run in runs]
    shared = [key for key in scores_of_run[0] if all(key in scores for scores in scores_of_run)]
    incomplete = set[str]()  # scores that some runs lack
    for scores in scores_of_run:
        incomplete.update(" ".join(key) for key in scores if key not in shared)
    if incomplete:
        names = ", ".join(sorted(incomplete))
        logger.warning(f"no spread for scores that not every run has: {names}")

    # Restrict every run to the shared scores
    comparable_runs = []
    for run, scores in zip(runs, scores_of_run, strict=True):
        kept_scores = tuple(scores[key] for key in shared)
        comparable_runs.append(run.model_copy(update={"scores": kept_scores}))
    return comparable_runs


def write_for_card(series: Series, repeats: Repeats) -> None:
    """Write repeats.json into the recipe's own run directory, which lies beside the series' folder.

    Nothing is written when that directory has no finished run; nor, with a warning, when its run is
    of another recipe. Raises InputError for a damaged manifest, RunError when another process works
    on the run.
    """
    directory = series.out.with_name(series.recipe.name)
    manifest = run_dir.read_manifest(directory)
    if manifest is None or not manifest.complete:
        return
    # Compare its recipe with that of the first run of the series, both with the value of that run
    value = series.values[0]
    varied = [f"{key}={value}" for key in series.keys]
    repeated = load_recipe(series.locate_run(value) / run_dir.RECIPE, ModelRecipe)
    try:
        recipe = load_recipe(directory / run_dir.RECIPE, ModelRecipe, varied)
    except InputError:  # it lacks a key that the series varies
        recipe = None
    if recipe is None or get_deciding_values(recipe) != get_deciding_values(repeated):
        problem = "is a run of another recipe or of other settings"
        logger.warning(f"{directory} {problem}: no {REPEATS} for its card")
        return
    with run_dir.lock_run(directory):
        write_json(directory / REPEATS, repeats)
    logger.info(f"written: {directory / REPEATS}")


def format_repeats(repeats: Repeats) -> str:
    """Format a table with one row per task.

    The columns are the task, the split, the number of runs, mean ± sample standard deviation, and
    the lowest and highest score. Scores are x 100, as in ``repeats``. A single run has no standard
    deviation.
    """
    rows = [("task", "split", "runs", "mean ± sd", "min - max")]
    for item in repeats.summaries:
        mean = f"{item.mean:.2f}"
        if item.sd is not None:
            mean += f" ± {item.sd:.2f}"
        extremes = f"{item.low:.2f} - {item.high:.2f}"
        rows.append((item.task, item.split, str(item.runs), mean, extremes))
    return align_columns(rows)

"""Recipes to published artefacts: sts-dino release RECIPE --org ORG --yes

A dataset is generated and published while it grows; a model is trained and scored; each gets its
card, one atomic commit and its version's tag. A folder stands for its recipes, datasets before
models; baselines in a folder are scored and not published, because others own their weights. The
same command resumes after any interruption. A dataset that was published while it grew resumes on
an empty disk, too.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import httpx2
import typer
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars

from sts_dino.eval.runs.job import EvaluationOptions
from sts_dino.hub import cli
from sts_dino.hub.client.connection import convert_hub_errors
from sts_dino.hub.client.fetch import fetch_run
from sts_dino.hub.client.plan import Plan
from sts_dino.hub.client.publish import BASELINE_PROBLEM, Options, publish_run
from sts_dino.hub.client.repository import Repository
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.measured import require_value
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.render import render, require_card, write
from sts_dino.release.grow import IncrementalPublisher
from sts_dino.release.options import (
    ClusterWorkers,
    RecipeOverrides,
    ReleaseOptions,
    format_options,
    format_settings,
    install_patience,
    is_model,
    list_recipes,
)
from sts_dino.release.preflight import (
    Target,
    check_base,
    check_dtype,
    check_pins,
    check_run,
    find_published_base,
    find_target,
    require_namespace,
)
from sts_dino.release.publish import (
    build_loading_script,
    record_published_datasets,
    warn_of_unlicensed_parts,
)
from sts_dino.release.simcse import train_baseline
from sts_dino.release.stages import StageProcess, run_stage

logger = logging.getLogger(__name__)

Recipe = TypeVar("Recipe", DatasetRecipe, ModelRecipe)

app = cli.make_app(__doc__)


@app.command()
@cli.unpack_option_groups
def main(
    recipes: Annotated[
        list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files, or folders of them")
    ],
    options: ReleaseOptions,
    overrides: RecipeOverrides,
    evaluation: EvaluationOptions,
    workers: ClusterWorkers,
    as_json: cli.JsonOption = False,
) -> None:
    """Generate or train what recipes describe, and publish it to the Hub that HF_ENDPOINT names.

    Without --yes the plan of the publication is printed.

    Examples:

      sts-dino release recipes/demo --org my-org

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --yes

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --again --yes

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --append --yes

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --yes --workers 8

      sts-dino release recipes/models --org my-org --tasks papers --senteval-data DIR --yes
    """
    # Refuse bad input. A baseline is refused where its file is named, not where a folder holds it
    paths = list_recipes(recipes)
    refuse_baselines(path for path in paths if path in recipes)
    check_options(paths, options, overrides, evaluation)
    workers.require_datasets(sum(not is_model(path) for path in paths))

    # Make and publish the artefacts one after the other
    request = Request(options, overrides, evaluation, workers)
    plans = []
    for path in paths:
        kind = ModelArtefact if is_model(path) else DatasetArtefact
        plan = kind(path, request).release()
        if plan is None:  # a baseline, or no Hub was reached
            continue
        plans.append(plan)
        if not as_json:
            print(plan.format_text(options.yes))
    if as_json:
        cli.print_answer("", [plan.describe() for plan in plans], as_json)


def check_options(
    paths: list[Path],
    options: ReleaseOptions,
    overrides: RecipeOverrides,
    evaluation: EvaluationOptions,
) -> None:
    """Raise InputError for options that contradict one another or the recipes."""
    # Options that fit only some recipes or stages
    if len(paths) > 1 and overrides != RecipeOverrides():
        problem = f"apply to one recipe, but {len(paths)} are given"
        raise InputError("--limit and --set", problem, hint="give one recipe")
    if options.again and evaluation != EvaluationOptions():
        hint = "leave out --again, or leave out --tasks and the evaluation data"
        raise InputError("--again", "scores nothing", hint=hint)
    if options.min_value is not None and any(is_model(path) for path in paths):
        problem = "applies to datasets, but a model's recipe is given"
        raise InputError("--min-value", problem, hint="give recipes of datasets only")

    # --append needs one dataset, and excludes other ways to publish
    if not options.append:
        return
    if len(paths) > 1 or is_model(paths[0]):
        raise InputError("--append", "applies to one dataset", hint="give its recipe alone")
    for option in ("again", "fresh"):
        if getattr(options, option):
            problem = "contradict each other"
            raise InputError(f"--append --{option}", problem, hint=f"leave out --{option}")


def refuse_baselines(paths: Iterable[Path]) -> None:
    """Raise InputError for a malformed recipe, and for a baseline, whose weights others own."""
    for path in paths:
        if is_model(path) and load_recipe(path, ModelRecipe).is_baseline:
            hint = f"sts-dino train {path} and sts-dino score {path} make and score it"
            raise InputError(path, BASELINE_PROBLEM, hint=hint)


@dataclass
class Request:
    """The options of a release; ``owner`` is the Hub's user or organisation to publish to.

    Creating a request asks the Hub for the owner, except for a plan (no ``--yes``) with ``--org``.
    The question raises InputError when the token does not belong to ``--org``; RunError when there
    is no token, when the Hub does not answer or, with ``--yes``, when the token may only read.
    """

    options: ReleaseOptions
    overrides: RecipeOverrides
    evaluation: EvaluationOptions
    workers: ClusterWorkers

    def __post_init__(self) -> None:
        """Set ``publication`` and ``owner``.

        Progress bars of huggingface_hub are disabled for the whole process: the stages have their
        own.
        """
        self.publication = Options(
            self.options.public, self.options.force, patience=install_patience(self.options.longest)
        )
        disable_progress_bars()
        with convert_hub_errors("ask who the token belongs to"):
            patience = self.publication.patience
            self.owner = require_namespace(HfApi(), self.options.org, self.options.yes, patience)


class Artefact(ABC, Generic[Recipe]):
    """The dataset or model of a recipe, with its run directory and its Hub repository.

    ``path`` is the recipe's file. ``request`` has the options, and the owner of the repository.
    """

    kind: str

    def __init__(self, path: Path, recipe: Recipe, request: Request):
        self.recipe: Recipe = recipe
        self.path = path
        self.request = request
        self.options = request.options
        self.directory = self.options.artifacts / f"{self.kind}s" / recipe.name
        self.repo_id = f"{request.owner}/{recipe.name}"
        self.repository = Repository(HfApi(), self.repo_id, self.kind)
        self.patience = request.publication.patience

    @abstractmethod
    def make(self) -> None:
        """Run the unfinished stages.

        With ``--yes``, RunError is raised before any stage when the Hub would refuse the result.
        Raises typer.Exit with the code of a failed stage, RunError when a stage is killed.
        """

    def check(self) -> None:
        """Raise InputError for a recipe or a run directory that could not be published."""
        require_card(self.recipe, self.repo_id)
        if not self.options.append:  # ``sts-dino write`` checks the run to which it appends rows
            check_run(self.directory, self.recipe)

    def release(self) -> Plan | None:
        """Run the stages, unless ``--again`` is given, and publish the result.

        Without ``--yes`` the publication is only planned.

        Returns the plan; without ``--yes``, None when no Hub can be reached. Raises the errors of
        ``check``, ``make`` and ``publish``.
        """
        self.check()
        if not self.options.again:
            self.make()
        return self.publish()

    def publish(self) -> Plan | None:
        """Write the card and publish the finished run; without ``--yes``, only plan that.

        With ``--again`` the run gets the current recipe first. Returns the plan; without ``--yes``,
        None when no Hub can be reached, with a warning. Raises InputError for an unfinished run,
        and RunError when the Hub refuses, or with ``--yes`` cannot be reached.
        """
        if self.options.again:
            self.update_recipe()
        self.write_card()
        script = build_loading_script(self.directory)
        publication = replace(self.request.publication, script=script)
        with convert_hub_errors(f"publish {self.repo_id}"):
            try:
                return publish_run(
                    HfApi(), self.directory, self.request.owner, self.options.yes, publication
                )
            except (httpx2.ConnectError, OfflineModeIsEnabled):
                if self.options.yes:
                    raise
                problem = "is finished, but its publication is not planned: no Hub can be reached"
                logger.warning(f"{self.directory} {problem}")
                return None

    def update_recipe(self) -> None:
        """Write the recipe into the finished run, for changed keys that decide no row or weight.

        Raises InputError for an unfinished run, RunError when another process works on the run.
        """
        with run_dir.lock_run(self.directory):
            manifest = run_dir.require_complete(self.directory)
            text = format_recipe(self.recipe)
            run_dir.rewrite_recipe(self.directory, manifest, self.recipe.version, text)

    def write_card(self) -> None:
        """Write the card of the finished run into its directory."""
        warn_of_unlicensed_parts(self.directory)
        write(self.directory, render(self.directory, self.repo_id))

    def find_target(self) -> Target:
        """Return the branch to publish to, and the published part of the run.

        Raises RunError when the Hub's repository would refuse the release, or the Hub does not
        answer.
        """

        def look_at_hub() -> Target:
            """Check the repository's visibility, and return the target."""
            self.repository.require_visibility(self.options.public)
            return find_target(self.repository, self.recipe, self.options.force)

        with convert_hub_errors(f"publish {self.repo_id}"):
            return self.patience.call_until_done("look at the Hub", look_at_hub)


class ModelArtefact(Artefact[ModelRecipe]):
    """An encoder: trained, then scored. A baseline is only scored, and not published."""

    kind = "model"

    def __init__(self, path: Path, request: Request):
        settings = request.overrides.list_settings("limit")
        super().__init__(path, load_recipe(path, ModelRecipe, settings), request)

    def check(self) -> None:
        """Raise InputError as ``Artefact.check``, and for Hub data whose revision can move."""
        check_pins(self.path, self.recipe)
        super().check()

    def make(self) -> None:
        """Train the encoder and, if the recipe asks for it, the SimCSE baseline; score both."""
        # Refuse what the Hub would refuse before hours of training
        if self.options.yes and not self.recipe.is_baseline:
            self.find_target()
        overrides = self.request.overrides
        run_stage("train", str(self.path), "--out", str(self.directory), *overrides.words)
        train_baseline(self.directory, self.recipe)
        words = [*format_options(self.request.evaluation), *format_settings(overrides.settings)]
        run_stage("score", str(self.path), "--model", str(self.directory), *words)

    def publish(self) -> Plan | None:
        """Publish the model, and return the plan as ``Artefact.publish``.

        A baseline is not published: it gets a card, and None is returned. With ``--again``, which
        only publishes, a baseline gets no new card either.
        """
        if not self.recipe.is_baseline:
            return super().publish()
        if not self.options.again:
            self.write_card()
        logger.info(f"{self.recipe.name}: {BASELINE_PROBLEM}")
        return None

    def write_card(self) -> None:
        """Write the card; with ``--yes`` it names the published datasets of the training."""
        if self.options.yes and not self.recipe.is_baseline:
            record_published_datasets(self.directory, self.request.owner, self.patience)
        super().write_card()


class DatasetArtefact(Artefact[DatasetRecipe]):
    """A dataset: generated and, with ``--yes``, published while it grows."""

    kind = "dataset"

    def __init__(self, path: Path, request: Request):
        recipe = load_recipe(path, DatasetRecipe, request.overrides.list_settings("source.limit"))
        check_dtype(path, recipe)
        super().__init__(path, recipe, request)

    def check(self) -> None:
        """Check as ``Artefact.check``; with ``--yes``, also require the gain of ``--min-value``.

        The gain is measured on the finished dataset, so with ``--min-value`` no dataset is
        published while it grows. Raises InputError when the gain is not measured, RunError when it
        is too low.
        """
        super().check()
        if self.options.yes:
            self._require_value()

    def publish(self) -> Plan | None:
        """Publish the dataset as ``Artefact.publish``, after requiring the gain of --min-value."""
        self._require_value()
        return super().publish()

    def _require_value(self) -> None:
        """Raise RunError when the measured gain is below ``--min-value``.

        Raises InputError when no gain was measured on the rows of the recipe's finished run.
        Without ``--min-value`` nothing is required.
        """
        if self.options.min_value is None:
            return
        # With --append the directory may still hold the earlier version, another recipe's run.
        try:
            manifest = run_dir.require_complete(self.directory)
            check_run(self.directory, self.recipe)
        except InputError as error:
            problem = "is not finished, so its gain is not known"
            measure = f"measure its gain (sts-dino value {self.directory})"
            hint = f"generate it without --yes, {measure}, then publish it"
            raise InputError(self.directory, problem, hint=hint) from error
        require_value(self.directory, manifest, self.options.min_value)

    def make(self) -> None:
        """Generate the dataset.

        With ``--yes`` the run resumes from its published part, unless ``--fresh`` is given, and is
        published while it grows. A run with ``--append`` is published later, by ``publish``. Raises
        the errors of ``Artefact.make``.
        """
        words = ["write", str(self.path), "--out", str(self.directory)]
        words += [*self.request.overrides.words, *format_options(self.request.workers)]
        if self.options.append:
            words.append("--append")
        if not self.options.yes:
            run_stage(*words)
            return

        # Append to the published rows; users load the earlier version until the new one is finished
        target = self.find_target()
        if self.options.append:
            self._fetch_base()
            run_stage(*words)
            return

        # Resume from the published part, and publish while the generation runs
        if not self.options.fresh:
            self._fetch_part(target, self.recipe)
        with StageProcess(*words) as generation:
            self._make_publisher(target).follow(generation.is_running)
            generation.wait()

    def _fetch_base(self) -> None:
        """Fetch the published version, to which rows are appended, into an empty run directory.

        Nothing is fetched without a published version, and when the directory holds a run. Raises
        RunError when that run does not continue the published version, or the Hub does not answer.
        """
        with convert_hub_errors(f"append to {self.repo_id}"):
            base = self.patience.call_until_done(
                "look at the Hub", lambda: find_published_base(self.repository)
            )
        local = run_dir.read_manifest(self.directory)
        if base is not None and local is None:
            self._fetch_part(base, None)
        elif base is not None and base.manifest is not None and local is not None:
            check_base(self.repo_id, local, base.manifest)

    def _fetch_part(self, target: Target, recipe: DatasetRecipe | None) -> None:
        """Fetch the published part of a run into an empty run directory.

        A run directory with files is not changed. Raises RunError when a published file is damaged,
        when the Hub does not answer, and when another process works on the run.

        Args:
            target: the branch with the published part; nothing is fetched when it has none.
            recipe: the run's recipe; None: the published one.
        """
        remote = target.remote
        manifest = target.manifest
        if remote is None or manifest is None:
            return
        action = f"fetch {self.repo_id}"
        with convert_hub_errors(action), run_dir.lock_run(self.directory):
            if self.directory.exists() and any(self.directory.iterdir()):
                return
            self.patience.call_until_done(
                action,
                lambda: fetch_run(self.repository, remote, manifest, recipe, self.directory),
            )

    def _make_publisher(self, target: Target) -> IncrementalPublisher:
        """Make the publisher of the growing run to the target's branch."""
        return IncrementalPublisher(
            repository=self.repository,
            directory=self.directory,
            branch=target.branch,
            render=lambda manifest, now: render(
                self.directory, self.repo_id, manifest=manifest, now=now
            ),
            options=self.request.publication,
            per_hour=self.options.commits_per_hour,
        )

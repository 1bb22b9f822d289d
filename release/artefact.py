"""The artefact of a recipe: its stages run as child processes, its card is written, and it is published."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars

from eval.runs.job import EvaluationOptions
from hub import cli
from hub.client.connection import hub_errors
from hub.client.fetch import fetch
from hub.client.plan import Plan
from hub.client.publish import BASELINE, Options, publish
from hub.client.repository import Repository
from hub.contract import run_dir
from hub.contract.measured import require_value
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe, resolved
from hub.errors import InputError
from release.grow import IncrementalPublisher
from release.options import (
    ClusterWorkers,
    RecipeOverrides,
    ReleaseOptions,
    patient,
    set_words,
    words_of,
)
from release.preflight import (
    Target,
    check_base,
    check_dtype,
    check_pins,
    check_run,
    namespace,
    publication_target,
    published_base,
)
from release.publish import loading_script
from release.simcse import train_baseline
from release.stages import StageProcess, run_stage

Recipe = TypeVar("Recipe", DatasetRecipe, ModelRecipe)


@dataclass
class Request:
    """The options of a release, and its ``owner`` on the Hub, as the Hub spells it.

    Raises InputError or RunError when the token may not publish there.
    """

    options: ReleaseOptions
    overrides: RecipeOverrides
    evaluation: EvaluationOptions
    workers: ClusterWorkers

    def __post_init__(self) -> None:
        """Ask the Hub whose the token is."""
        self.publication = Options(self.options.public, self.options.force, patience=patient(self.options.longest))
        disable_progress_bars()  # the stages have their own
        with hub_errors("ask who the token belongs to"):
            self.owner = namespace(HfApi(), self.options.org, self.options.yes, self.publication.patience)


class Artefact(ABC, Generic[Recipe]):
    """The dataset or model that a recipe stands for: its run directory and its repository."""

    kind: str

    def __init__(self, path: Path, recipe: Recipe, request: Request):
        self.recipe: Recipe = recipe
        self.path, self.request, self.options = path, request, request.options
        self.directory = self.options.artifacts / f"{self.kind}s" / recipe.name
        self.repo_id = f"{request.owner}/{recipe.name}"
        self.repository = Repository(HfApi(), self.repo_id, self.kind)
        self.patience = request.publication.patience

    @abstractmethod
    def make(self) -> None:
        """Run the stages that are not done; with ``--yes``, only for a run that may be published."""

    def check(self) -> None:
        """Raise InputError for a recipe or a run directory that could not be published in the end."""
        from model_cards.render import require_card

        require_card(self.recipe, self.repo_id)
        if not self.options.append:  # what rows may be appended to, the stage itself checks
            check_run(self.directory, self.recipe)

    def release(self) -> Plan | None:
        """Run the stages and publish the result; without ``--yes``, and for a baseline, publish nothing."""
        self.check()
        if not self.options.again:
            self.make()
        return self.publish()

    def publish(self) -> Plan | None:
        """The publication or its plan; None for a plan when the Hub cannot be reached."""
        if self.options.again:
            with run_dir.locked(self.directory):  # update it in keys that affect no row or weight
                manifest = run_dir.require_complete(self.directory)
                run_dir.rewrite_recipe(self.directory, manifest, self.recipe.version, resolved(self.recipe))
        self.write_card()
        publication = replace(self.request.publication, script=loading_script(self.directory))
        with hub_errors(f"publish {self.repo_id}"):
            try:
                return publish(HfApi(), self.directory, self.request.owner, self.options.yes, publication)
            except (httpx2.ConnectError, OfflineModeIsEnabled):
                if self.options.yes:
                    raise
                cli.say(f"warning: {self.directory} is made, but no Hub says what its publication would change")
                return None

    def write_card(self) -> None:
        """Write the card of the finished run into its directory."""
        from model_cards.render import render, write

        write(self.directory, render(self.directory, self.repo_id))

    def find_target(self) -> Target:
        """The branch to publish to. Raises RunError when the release would be refused."""
        look, force = partial(self.patience.until_done, "look at the Hub"), self.options.force
        with hub_errors(f"publish {self.repo_id}"):
            look(lambda: self.repository.require_visibility(self.options.public))
            return look(lambda: publication_target(self.repository, self.recipe, force))


class ModelArtefact(Artefact[ModelRecipe]):
    """An encoder: trained, then scored. A baseline is only scored, and not published."""

    kind = "model"

    def __init__(self, path: Path, request: Request):
        super().__init__(path, load_recipe(path, ModelRecipe, request.overrides.keys("limit")), request)

    def check(self) -> None:
        """Refuse data without a fixed revision, too."""
        check_pins(self.path, self.recipe)
        super().check()

    def make(self) -> None:
        """Train the encoder and the SimCSE baseline that the recipe names, and score both."""
        if self.options.yes and not self.recipe.is_baseline:
            self.find_target()
        overrides, evaluation = self.request.overrides, words_of(self.request.evaluation)
        run_stage("train", str(self.path), "--out", str(self.directory), *overrides.words)
        train_baseline(self.directory, self.recipe)
        settings = set_words(overrides.settings)
        run_stage("score", str(self.path), "--model", str(self.directory), *evaluation, *settings)

    def publish(self) -> Plan | None:
        """Publish; of a baseline, only write the card."""
        if not self.recipe.is_baseline:
            return super().publish()
        if not self.options.again:
            self.write_card()
        cli.say(f"{self.recipe.name}: {BASELINE}")
        return None


class DatasetArtefact(Artefact[DatasetRecipe]):
    """A dataset: generated and, with ``--yes``, published while it grows."""

    kind = "dataset"

    def __init__(self, path: Path, request: Request):
        recipe = load_recipe(path, DatasetRecipe, request.overrides.keys("source.limit"))
        check_dtype(path, recipe)
        super().__init__(path, recipe, request)

    def check(self) -> None:
        """With ``--yes``, refuse a dataset without the required gain, too: it would be published while it grows."""
        super().check()
        if self.options.yes:
            self._require_value()

    def publish(self) -> Plan | None:
        """The publication or its plan, for a dataset with the required gain."""
        self._require_value()
        return super().publish()

    def _require_value(self) -> None:
        if self.options.min_value is not None:
            try:
                manifest = run_dir.require_complete(self.directory)
                check_run(self.directory, self.recipe)
            except InputError as error:
                hint = f"make it without --yes, measure it (sts-dino value {self.directory}), then publish it"
                raise InputError(self.directory, "is not made, so its value is not known", hint=hint) from error
            require_value(self.directory, manifest, self.options.min_value)

    def make(self) -> None:
        """Generate the dataset; with ``--yes``, resume from the Hub and publish it while it grows."""
        words = ["write", str(self.path), "--out", str(self.directory)]
        words += [*self.request.overrides.words, *words_of(self.request.workers)]
        words += ["--append"] if self.options.append else []
        if not self.options.yes:
            run_stage(*words)
            return
        target = self.find_target()
        if self.options.append:  # published whole: until then users load the earlier version
            self._find_base()
            run_stage(*words)
            return
        if not self.options.fresh:
            self._resume(target, self.recipe)
        with StageProcess(*words) as generation:
            self._publisher(target).follow(generation.running)
            generation.wait()

    def _find_base(self) -> None:
        """Fetch the published version into an empty run directory. Raises RunError for another run."""
        with hub_errors(f"append to {self.repo_id}"):
            base = self.patience.until_done("look at the Hub", lambda: published_base(self.repository))
        local = run_dir.read_manifest(self.directory)
        if base is not None and local is None:
            self._resume(base, None)
        elif base is not None and base.manifest is not None and local is not None:
            check_base(self.repo_id, local, base.manifest)

    def _resume(self, target: Target, recipe: DatasetRecipe | None) -> None:
        """Fetch the published part of a run into an empty run directory; ``recipe``: as for ``fetch``."""
        if target.remote is None or target.manifest is None:
            return
        what, found = f"fetch {self.repo_id}", (target.remote, target.manifest)
        with hub_errors(what), run_dir.locked(self.directory):
            if not self.directory.exists() or not any(self.directory.iterdir()):
                self.patience.until_done(what, lambda: fetch(self.repository, *found, recipe, self.directory))

    def _publisher(self, target: Target) -> IncrementalPublisher:
        from model_cards.render import render

        return IncrementalPublisher(
            self.repository,
            self.directory,
            target.branch,
            lambda manifest, at: render(self.directory, self.repo_id, manifest=manifest, now=at),
            self.request.publication,
            self.options.commits_per_hour,
        )

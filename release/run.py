"""Recipes to published artefacts: python -m release.run recipes/datasets/sts-dino-x2.yaml --org ORG --yes

A dataset is written (or finished) and published while it grows; a model is trained and scored; each gets its card, one
atomic commit and its version's tag. Folders stand for all recipes in them, datasets before the models trained on them;
baselines in a folder are scored and not published, for their weights are somebody else's. What is done already is not
done again, so the same command goes on after any interruption, on an empty disk too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import httpx2
import typer
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars

from hub import cli, run_dir
from hub.budget import PER_HOUR
from hub.errors import InputError
from hub.fetch import fetch
from hub.patience import LONGEST_SECONDS, Patience, use_patient_client
from hub.plan import Plan
from hub.publish import BASELINE, Options, publish
from hub.recipe import DatasetRecipe, ModelRecipe
from hub.recipe_file import load_recipe, read_yaml, resolved
from hub.remote import hub_errors
from hub.repository import Repository
from model_cards.preflight import require_card
from model_cards.render import render, write
from release.claim import Claim, check_pins, check_run, claim, namespace
from release.growth import Growth
from release.publish import loading_script
from release.scoring import HubOption, Scoring, SentEvalOption, StsOption, TasksOption
from release.stages import Stage, run_stage
from release.workers import Workers

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Job:
    """What the command line asks for, beside the recipe."""

    org: str
    artifacts: Path
    yes: bool
    again: bool  # publish finished runs anew, make nothing
    fresh: bool
    per_hour: int
    options: Options
    limit: int | None
    settings: tuple[str, ...]
    scoring: Scoring = field(default_factory=Scoring)
    workers: Workers = field(default_factory=Workers)

    def changed(self, limit_key: str) -> list[str]:
        """The recipe's keys that the command line sets."""
        return [*self.settings, *([f"{limit_key}={self.limit}"] if self.limit is not None else [])]

    @property
    def overrides(self) -> list[str]:
        """The stage's own options for the same."""
        limit = ["--limit", str(self.limit)] if self.limit is not None else []
        return [*limit, *self.set_options]

    @property
    def set_options(self) -> list[str]:
        """Those of a stage that takes every setting but a limit of its own."""
        return [word for setting in self.settings for word in ("--set", setting)]


@app.command(cls=cli.RayCommand)
def main(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files, or folders of them")],
    org: Annotated[str | None, typer.Option("--org", help="User or organisation [default: the token's user]")] = None,
    yes: Annotated[
        bool, typer.Option("--yes/--dry-run", help="Publish, or make everything and print the plan")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Only publish finished runs: new card, nothing made")] = False,
    artifacts: Annotated[Path, typer.Option(help="Where the run directories are")] = run_dir.ARTIFACTS,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not go on from what the Hub has of an unfinished run")
    ] = False,
    private: Annotated[bool, typer.Option("--private", help="Create repositories as private ones")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what was changed by hand on the Hub")] = False,
    commits_per_hour: Annotated[
        int, typer.Option(min=4, max=128, help="Commits an hour to a growing repository; the Hub allows 128")
    ] = PER_HOUR,
    longest: cli.PatienceOption = LONGEST_SECONDS,
    limit: cli.LimitOption = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    tasks: TasksOption = [],  # noqa: B006
    senteval_data: SentEvalOption = None,
    sts_data: StsOption = None,
    hub_data: HubOption = None,
    ray: cli.RayOption = None,
    workers: cli.WorkersOption = None,
    store: cli.StoreOption = None,
    cpus_per_worker: cli.CpusOption = None,
    gpus_per_worker: cli.GpusOption = None,
) -> None:
    """Make and publish datasets and models from their recipes, to the Hub that HF_ENDPOINT names.

    Examples:

      python -m release.run recipes/demo --org my-org

      python -m release.run recipes/datasets/sts-dino-x2.yaml --org my-org --yes

      python -m release.run recipes/datasets/sts-dino-x2.yaml --org my-org --again --yes

      python -m release.run recipes/datasets/sts-dino-x2.yaml --org my-org --yes --workers 8

      python -m release.run recipes/models --org my-org --tasks papers --senteval-data DIR --yes
    """
    patience = Patience(longest)
    use_patient_client(patience)
    disable_progress_bars()  # the stages have theirs
    paths = expanded(recipes)
    refuse_baselines(path for path in paths if path in recipes)
    if len(paths) > 1 and (limit is not None or settings):
        raise InputError("--limit and --set", f"are of one recipe, but {len(paths)} are given", hint="give one recipe")
    scoring = Scoring(tuple(tasks), senteval_data, sts_data, hub_data)
    if again and scoring != Scoring():
        raise InputError("--again", "scores nothing", hint="leave out either it, or --tasks and the evaluation data")
    hands = Workers(ray, workers, store, cpus_per_worker, gpus_per_worker)
    hands.require_datasets(sum(not is_model(path) for path in paths))
    with hub_errors("ask who the token belongs to"):
        owner = namespace(HfApi(), org, yes, patience)
    options = Options(private, force, patience=patience)
    job = Job(owner, artifacts, yes, again, fresh, commits_per_hour, options, limit, tuple(settings), scoring, hands)
    for path in paths:
        plan = release(path, job)
        if plan is not None:
            print(plan)


def expanded(given: list[Path]) -> list[Path]:
    """The recipe files that ``given`` files and folders stand for, datasets first, each part in the order of names."""
    paths = [path for item in given for path in (sorted(item.rglob("*.yaml")) if item.is_dir() else [item])]
    if not paths:
        raise InputError(", ".join(map(str, given)), "no recipe (*.yaml) is there")
    return sorted(paths, key=is_model)


def is_model(path: Path) -> bool:
    """Whether a recipe is a model's, else a dataset's. Raises InputError when it is neither."""
    kind = read_yaml(path).get("kind")
    if kind not in ("dataset", "model"):
        raise InputError(f"{path}:kind", f"{kind!r} is no kind of recipe", allowed="dataset, model")
    return bool(kind == "model")


def refuse_baselines(paths: Iterable[Path]) -> None:
    """Raise InputError for a recipe that stands for nothing to publish; one that a folder has is made all the same."""
    for path in paths:
        if is_model(path) and load_recipe(path, ModelRecipe).is_baseline:
            hint = f"python -m training.run {path} and python -m eval.run {path} make and score it"
            raise InputError(path, BASELINE, hint=hint)


def release(path: Path, job: Job) -> Plan | None:
    """Make what is missing of a recipe's artefact and publish it; without ``yes`` only plan the publication."""
    if is_model(path):
        recipe = load_recipe(path, ModelRecipe, job.changed("limit"))
        directory = job.artifacts / "models" / recipe.name
        require_card(recipe, f"{job.org}/{recipe.name}")
        check_pins(path, recipe)
        check_run(directory, recipe)
        if recipe.is_baseline:
            make_baseline(path, recipe, directory, job)
            return None
        if not job.again:
            make_model(path, recipe, directory, job)
        return _publish(directory, recipe, job)
    dataset = load_recipe(path, DatasetRecipe, job.changed("source.limit"))
    directory = job.artifacts / "datasets" / dataset.name
    require_card(dataset, f"{job.org}/{dataset.name}")
    check_run(directory, dataset)
    if not job.again:
        make_dataset(path, dataset, directory, job)
    return _publish(directory, dataset, job)


def retell(directory: Path, recipe: DatasetRecipe | ModelRecipe) -> None:
    """Bring a run that is made to its recipe's keys that make nothing: version, licence, what its card says."""
    with run_dir.locked(directory):
        run_dir.retell(directory, run_dir.require_complete(directory), recipe.version, resolved(recipe))


def make_model(path: Path, recipe: ModelRecipe, directory: Path, job: Job) -> None:
    """Train and score; with ``yes``, only what may be published."""
    if job.yes and not recipe.is_baseline:
        look(Repository(HfApi(), f"{job.org}/{recipe.name}", "model"), recipe, job)
    run_stage("training.run", str(path), "--out", str(directory), *job.overrides)
    run_stage("eval.run", str(path), "--model", str(directory), *job.scoring.options, *job.set_options)


def make_baseline(path: Path, recipe: ModelRecipe, directory: Path, job: Job) -> None:
    """Score an encoder as it is, with a card that stays here; nothing is published."""
    if not job.again:
        make_model(path, recipe, directory, job)
        write(directory, render(directory, f"{job.org}/{recipe.name}"))
    cli.say(f"{recipe.name}: {BASELINE}")


def look(repository: Repository, recipe: DatasetRecipe | ModelRecipe, job: Job) -> Claim:
    """Where to publish; raises RunError when the release would be refused."""
    patience = job.options.patience
    with hub_errors(f"publish {repository.repo_id}"):
        if job.options.private:
            patience.until_done("look at the Hub", repository.require_private)
        return patience.until_done("look at the Hub", lambda: claim(repository, recipe, job.options.force))


def make_dataset(path: Path, recipe: DatasetRecipe, directory: Path, job: Job) -> None:
    """Write the dataset; with ``yes``, go on from what the Hub has of it and publish it while it grows."""
    words = ["generation.run", str(path), "--out", str(directory), *job.overrides, *job.workers.options]
    if not job.yes:
        run_stage(*words)
        return
    repository = Repository(HfApi(), f"{job.org}/{recipe.name}", "dataset")
    place = look(repository, recipe, job)
    if not job.fresh:
        with hub_errors(f"fetch {repository.repo_id}"):
            _resume(repository, place, recipe, directory, job)
    with Stage(*words) as stage:
        growth(repository, directory, place, job).follow(stage.running)
        stage.wait()


def growth(repository: Repository, directory: Path, place: Claim, job: Job) -> Growth:
    """The follower of a run directory."""
    return Growth(
        repository,
        directory,
        place.branch,
        lambda manifest, at: render(directory, repository.repo_id, manifest=manifest, now=at),
        job.options,
        job.per_hour,
    )


def _resume(repository: Repository, place: Claim, recipe: DatasetRecipe, directory: Path, job: Job) -> None:
    if place.remote is None or place.manifest is None:
        return
    with run_dir.locked(directory):
        if not directory.exists() or not any(directory.iterdir()):
            found = place.remote, place.manifest
            job.options.patience.until_done(
                f"fetch {repository.repo_id}", lambda: fetch(repository, *found, recipe, directory)
            )


def _publish(directory: Path, recipe: DatasetRecipe | ModelRecipe, job: Job) -> Plan | None:
    """The publication, or its plan; None when only a plan is wanted and there is no Hub to ask."""
    if job.again:
        retell(directory, recipe)
    write(directory, render(directory, f"{job.org}/{recipe.name}"))
    options = Options(job.options.private, job.options.force, loading_script(directory), job.options.patience)
    with hub_errors(f"publish {job.org}/{recipe.name}"):
        try:
            return publish(HfApi(), directory, job.org, job.yes, options)
        except (httpx2.ConnectError, OfflineModeIsEnabled):
            if job.yes:
                raise
            cli.say(f"warning: {directory} is made, but no Hub says what its publication would change")
            return None


if __name__ == "__main__":
    cli.run(app, ends_on_sigterm=True)

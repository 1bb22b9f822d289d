"""Options and arguments that several commands share: dataclasses of options, files of recipes."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from sts_dino.hub import cli
from sts_dino.hub.client.retry import (
    COMMITS_PER_HOUR,
    LONGEST_OUTAGE_SECONDS,
    RetryPolicy,
    install_patient_client,
)
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe_file import read_yaml
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import require_no_secret


def format_options(options: Any) -> list[str]:
    """Format a dataclass of options as words of a command line, e.g. ``["--workers", "2"]``.

    Fields that are None are left out; a field with a list repeats its option. The names of the
    fields must be those of the options, and flags (``--yes``) are not supported.
    """
    words: list[str] = []
    for option in fields(options):
        value = getattr(options, option.name)
        if value is None:
            continue
        values = value if isinstance(value, list) else [value]
        for item in values:
            words += [f"--{option.name.replace('_', '-')}", str(item)]
    return words


@dataclass(frozen=True)
class RecipeOverrides:
    """Recipe keys that the command line overrides."""

    limit: cli.LimitOption = None
    settings: cli.SetOption = field(default_factory=list)

    def list_settings(self, limit_key: str) -> list[str]:
        """List the overrides as KEY=VALUE.

        ``limit_key`` is the recipe key that ``--limit`` sets: "limit" in a model's recipe,
        "source.limit" in a dataset's.
        """
        settings = [*self.settings]
        if self.limit is not None:
            settings.append(f"{limit_key}={self.limit}")
        return settings

    @property
    def words(self) -> list[str]:
        """The overrides as words of a command line: --limit and --set."""
        words = format_settings(self.settings)
        if self.limit is not None:
            words = ["--limit", str(self.limit), *words]
        return words


def format_settings(settings: Iterable[str]) -> list[str]:
    """Format settings, each KEY=VALUE, as words of a command line: --set KEY=VALUE."""
    words: list[str] = []
    for setting in settings:
        words += ["--set", setting]
    return words


@dataclass(frozen=True)
class ClusterWorkers:
    """Options for workers on one machine or on a Ray cluster; without any, one process works."""

    workers: cli.WorkersOption = None
    cpus_per_worker: cli.CpusOption = None
    gpus_per_worker: cli.GpusOption = None
    ray: cli.RayOption = None
    store: cli.StoreOption = None

    def __post_init__(self) -> None:
        """Raise InputError for a store with a secret in its URL, before it is printed."""
        if self.store is not None:
            require_no_secret(self.store)

    def require_datasets(self, dataset_count: int) -> None:
        """Raise InputError for any of these options without a dataset recipe.

        ``dataset_count``: the number of dataset recipes.
        """
        words = format_options(self)
        if words and not dataset_count:
            hint = (
                "leave them out: sts-dino train spreads a training with torchrun or accelerate "
                "(docs/training.md)"
            )
            problem = "only dataset recipes use this, and none is given"
            raise InputError(" ".join(words), problem, hint=hint)


def install_patience(longest: float) -> RetryPolicy:
    """Install the retry policy of ``--patience`` in the official Hub client, and return it.

    ``longest`` is the number of seconds for which a failing request is tried again.
    """
    patience = RetryPolicy(longest)
    install_patient_client(patience)
    return patience


PublicOption = Annotated[
    bool | None,
    typer.Option(
        "--public/--private",
        help="Visibility of a new repository [default: private; existing ones stay]",
    ),
]


@dataclass(frozen=True)
class PublishOptions:
    """Where and how to publish."""

    org: Annotated[
        str | None, typer.Option(help="User or organisation [default: the token's user]")
    ] = None
    yes: Annotated[
        bool, typer.Option("--yes/--dry-run", help="Publish, or only print the plan")
    ] = False
    public: PublicOption = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace changes made by hand on the Hub")
    ] = False
    longest: cli.PatienceOption = LONGEST_OUTAGE_SECONDS

    def __post_init__(self) -> None:
        """Raise InputError for an empty ``--org``, e.g. from a shell variable without a value."""
        if self.org == "":
            hint = "name a user or organisation, or leave --org out for the token's user"
            raise InputError("--org", "is empty", hint=hint)


@dataclass(frozen=True)
class ReleaseOptions(PublishOptions):
    """Options of a release, beside those of a publication."""

    again: Annotated[
        bool, typer.Option("--again", help="Only publish finished runs, with a new card")
    ] = False
    append: Annotated[
        bool,
        typer.Option(
            "--append", help="Add the rows of a longer source to the finished version of a dataset"
        ),
    ] = False
    artifacts: Annotated[Path, typer.Option(help="Folder of the run directories")] = (
        run_dir.ARTIFACTS
    )
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not resume an unfinished run from the Hub")
    ] = False
    min_value: Annotated[
        float | None,
        typer.Option(help="Refuse a dataset whose measured gain (sts-dino value) is lower"),
    ] = None
    commits_per_hour: Annotated[
        int,
        typer.Option(
            min=4, max=128, help="Commits an hour to a growing repository; the Hub allows 128"
        ),
    ] = COMMITS_PER_HOUR


def list_recipes(files_and_folders: list[Path]) -> list[Path]:
    """List the recipe files of files and folders: datasets before models, both in the given order.

    A folder stands for all *.yaml files below it, sorted by path. Hidden files and those in hidden
    folders, such as ``.ipynb_checkpoints``, are left out.

    Raises InputError when there is no recipe, and for a file that is not a recipe.
    """
    paths: list[Path] = []
    for path in files_and_folders:
        if path.is_dir():
            for file in sorted(path.rglob("*.yaml")):
                if not any(part.startswith(".") for part in file.relative_to(path).parts):
                    paths.append(file)
        else:
            paths.append(path)
    if not paths:
        places = ", ".join(str(path) for path in files_and_folders)
        raise InputError(places, "no recipe (*.yaml) is there")
    return sorted(paths, key=is_model)


def is_model(path: Path) -> bool:
    """Return whether a recipe file has the kind model; False for the kind dataset.

    Raises InputError for another kind, and for a missing or malformed file.
    """
    kind = read_yaml(path).get("kind")
    if kind not in ("dataset", "model"):
        problem = f"unknown kind of recipe {kind!r}"
        raise InputError(f"{path}:kind", problem, allowed="dataset, model")
    return bool(kind == "model")

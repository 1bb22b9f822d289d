"""Command-line options that several commands of this package share: dataclasses, one option for each field."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from hub import cli
from hub.client.retry import LONGEST_SECONDS, PER_HOUR, RetryPolicy, use_patient_client
from hub.contract import run_dir
from hub.errors import InputError
from hub.untrusted import require_no_secret


def words_of(options: Any) -> list[str]:
    """A group of options as the words of a command line, e.g. ``--cpus-per-worker 2``; those not given are left out."""
    given = [(f"--{item.name.replace('_', '-')}", getattr(options, item.name)) for item in fields(options)]
    values = [(name, value if isinstance(value, list) else [value]) for name, value in given if value is not None]
    return [word for name, each in values for value in each for word in (name, str(value))]


@dataclass(frozen=True)
class RecipeOverrides:
    """Recipe keys that the command line overrides."""

    limit: cli.LimitOption = None
    settings: cli.SetOption = field(default_factory=list)

    def keys(self, limit_key: str) -> list[str]:
        """As KEY=VALUE; a dataset's limit has another key than a model's."""
        return [*self.settings, *([f"{limit_key}={self.limit}"] if self.limit is not None else [])]

    @property
    def words(self) -> list[str]:
        """As the words of a stage's command line."""
        return [*(["--limit", str(self.limit)] if self.limit is not None else []), *set_words(self.settings)]


def set_words(settings: Iterable[str]) -> list[str]:
    """Settings as the words of a stage's command line."""
    return [word for setting in settings for word in ("--set", setting)]


@dataclass(frozen=True)
class LocalWorkers:
    """Options of ``sts-dino write`` for workers on one machine. Without any, one process does everything."""

    workers: Annotated[int | None, typer.Option(min=1, help="Workers that generate: threads, or one per GPU")] = None
    cpus_per_worker: cli.CpusOption = None
    gpus_per_worker: cli.GpusOption = None

    def require_datasets(self, datasets: int) -> None:
        """Raise InputError when any option is given, and no recipe is a dataset's."""
        given = words_of(self)
        if given and not datasets:
            hint = "leave them out: training.run spreads a training with torchrun or accelerate (docs/training.md)"
            raise InputError(" ".join(given), "are for datasets, but no recipe is one's", hint=hint)


@dataclass(frozen=True)
class ClusterWorkers(LocalWorkers):
    """The same, on a Ray cluster, too."""

    workers: cli.WorkersOption = None
    ray: cli.RayOption = None
    store: cli.StoreOption = None

    def __post_init__(self) -> None:
        """Raise InputError for a store with a secret in its URL, before it is printed."""
        if self.store is not None:
            require_no_secret(self.store)


def patient(longest: float) -> RetryPolicy:
    """The retry policy of ``--patience``, for our requests and those of the official client."""
    patience = RetryPolicy(longest)
    use_patient_client(patience)
    return patience


PublicOption = Annotated[
    bool | None,
    typer.Option("--public/--private", help="Visibility of a new repository [default: private; existing ones stay]"),
]


@dataclass(frozen=True)
class PublishOptions:
    """Where and how to publish."""

    org: Annotated[str | None, typer.Option(help="User or organisation [default: the token's user]")] = None
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Publish, or only print the plan")] = False
    public: PublicOption = None
    force: Annotated[bool, typer.Option("--force", help="Replace changes made by hand on the Hub")] = False
    longest: cli.PatienceOption = LONGEST_SECONDS


@dataclass(frozen=True)
class ReleaseOptions(PublishOptions):
    """Options of a release, beside those of a publication."""

    again: Annotated[bool, typer.Option("--again", help="Only publish finished runs, with a new card")] = False
    append: Annotated[
        bool, typer.Option("--append", help="Add the rows of a longer source to the finished version of a dataset")
    ] = False
    artifacts: Annotated[Path, typer.Option(help="Folder of the run directories")] = run_dir.ARTIFACTS
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume an unfinished run from the Hub")] = False
    min_value: Annotated[
        float | None, typer.Option(help="Refuse a dataset whose measured gain (sts-dino value) is lower")
    ] = None
    commits_per_hour: Annotated[
        int, typer.Option(min=4, max=128, help="Commits an hour to a growing repository; the Hub allows 128")
    ] = PER_HOUR

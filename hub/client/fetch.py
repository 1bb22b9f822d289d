"""Downloads from a Hub: a run to resume, the checked shards of a published run, any dataset that ``datasets`` reads.

A run is known by its manifest, and its files by their SHA-256. Any other dataset is pinned at a commit, its card is
checked before a library parses it, and its scripts are never run.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from hub import cli
from hub.client.connection import is_wrong, reading
from hub.client.offline import PREPARED, commit_of
from hub.client.plan import OF_DATASETS, Remote
from hub.client.repository import Repository, unwrapped
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import fingerprint, resolved
from hub.contract.run_dir import (
    MANIFEST,
    RECIPE,
    REPORT,
    File,
    Manifest,
    changed_files,
    read_manifest,
    require_complete,
)
from hub.contract.shards import AGAIN, unreadable, unreadable_kinds
from hub.durable import rename_folder
from hub.errors import InputError, RunError, did_you_mean
from hub.untrusted import check_dataset_card

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData

_REPAIR = "repair the repository, or start again without it: --fresh"


def is_run_of(manifest: Manifest, recipe: DatasetRecipe | ModelRecipe) -> bool:
    """Whether a manifest is of this recipe's rows or weights; that its inputs are as before, the run itself checks."""
    return manifest.fingerprint == fingerprint(recipe, manifest.inputs)


def fetch(
    repository: Repository, remote: Remote, manifest: Manifest, recipe: DatasetRecipe | None, directory: Path
) -> None:
    """Make ``directory``, empty or absent, the run directory of a published manifest, all at once.

    ``recipe``: the one that the run resumes under; None: the published one. After a kill it resumes from the files that
    arrived whole. Raises RunError for a file that the manifest does not name as it is.
    """
    from huggingface_hub import snapshot_download

    def require(found: bool, path: str, problem: str) -> None:
        if not found:
            raise RunError(f"{repository.repo_id}: {path}", problem, hint=_REPAIR)

    for file in manifest.files:
        require(file.path in remote.files, file.path, "is named by the manifest and not there")
    cli.say(f"{directory}: going on from {repository.repo_id} ({len(manifest.files)} files)")
    staging = directory.with_name(f"{directory.name}.fetching")
    beside = [name for name in (*OF_DATASETS, REPORT, RECIPE) if name in remote.files]  # no stage makes them again
    require(recipe is not None or RECIPE in beside, RECIPE, "is not there")
    wanted = [*(file.path for file in manifest.files), *beside]
    with unwrapped(staging):
        snapshot_download(
            repository.repo_id,
            repo_type=repository.kind,
            revision=remote.sha,
            local_dir=staging,
            allow_patterns=wanted,
            endpoint=repository.api.endpoint,
            token=repository.api.token,
        )
    named = {staging / path for path in wanted}
    if not all(path.is_file() for path in named):
        raise ConnectionError("not every file came")  # the client returns when the Hub does not answer: this passes
    for changed in changed_files(staging, manifest):
        (staging / changed).unlink()  # the client would keep it, should the repository be repaired
        require(False, changed, "is not the file that the repository's manifest names")
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's notes
    for path in {*staging.rglob("*")} - named:  # an earlier start may have fetched another state
        if path.is_file():
            path.unlink()
    version = recipe.version if recipe else manifest.version
    text = resolved(recipe) if recipe else (staging / RECIPE).read_text(encoding="utf-8")
    run_dir.write_manifest(staging, manifest)
    run_dir.rewrite_recipe(staging, manifest, version, text)
    rename_folder(staging, directory)


@dataclass(frozen=True)
class FinishedRun:
    """A complete run of a dataset: its manifest, and ``bring``, which returns the folder that holds given files.

    ``recipe``: where its recipe.yaml lies, or None, or a Hub that has it cannot be asked.
    """

    place: str
    manifest: Manifest
    revision: str  # the fingerprint of a local run, the commit of a published one
    bring: Callable[[Sequence[File]], Path]
    recipe: Callable[[], Path | None]

    @property
    def configs(self) -> list[str]:
        """Its configs that have files, in alphabetical order."""
        return sorted({file.config for file in self.manifest.files if file.config})

    def shards(self, config: str) -> tuple[Path, list[File]]:
        """The shards of a config that have rows, and their folder. Raises InputError naming a damaged one."""
        shards = [file for file in self.manifest.shards(config) if file.rows != 0]  # parquet readers fail on those
        directory = self.bring(shards)
        damaged = changed_files(directory, self.manifest.model_copy(update={"files": tuple(shards)}))
        if damaged:
            raise InputError(self.place, f"{damaged[0]} is missing or not what its manifest says", hint=AGAIN)
        return directory, shards


def local_run(directory: Path, place: str) -> FinishedRun:
    """The run in a directory. Raises InputError when it is missing or unfinished."""
    if not directory.is_dir():
        hint = "make the dataset first (sts-dino write RECIPE), or name one of a Hub"
        raise InputError(place, "no such directory", hint=hint)
    manifest = require_complete(directory)
    return FinishedRun(place, manifest, manifest.fingerprint, lambda files: directory, lambda: directory / RECIPE)


def published_run(repo_id: str, revision: str | None, place: str) -> FinishedRun | None:
    """The run that a repository of a Hub holds, its files downloaded when they are asked for; None when it holds none.

    Raises InputError when there is no such repository or the run is unfinished, RunError when the Hub cannot be read.
    """
    from huggingface_hub import HfApi, hf_hub_download

    def brought(path: str, commit: str | None) -> Path | None:
        """A downloaded file; None when the repository, or without a Hub the cache, does not have it."""
        with reading(repo_id, commit):
            try:
                return Path(hf_hub_download(repo_id, path, repo_type="dataset", revision=commit))
            except LocalEntryNotFoundError:
                if path == RECIPE:
                    return None
                raise
            except EntryNotFoundError:
                return None

    if not constants.HF_HUB_OFFLINE:  # the client gives what it has when the Hub does not answer
        with reading(repo_id, revision):
            HfApi().dataset_info(repo_id, revision=revision)
    found = brought(MANIFEST, revision)
    if found is None:
        return None
    directory = found.parent

    def bring(files: Sequence[File]) -> Path:
        for file in files:
            if brought(file.path, directory.name) is None:
                raise InputError(place, f"{file.path} is named by its manifest and not there")
        return directory

    try:
        manifest = read_manifest(directory)
    except InputError:  # somebody else's file of that name
        return None
    assert manifest is not None
    if not manifest.complete:
        raise InputError(place, "the run is not finished", hint="publish it again when it is")
    return FinishedRun(place, manifest, directory.name, bring, lambda: brought(RECIPE, directory.name))


@dataclass(frozen=True)
class HubDataset:
    """A dataset on a Hub that is not a published run, at a commit."""

    place: str
    repo_id: str
    commit: str
    license: str | None

    def ask(self, function: str, *arguments: str, **options: Any) -> Any:
        """Return what a function of ``datasets`` answers. Raises InputError for unreadable data."""
        import datasets
        from datasets.data_files import EmptyDatasetError
        from datasets.exceptions import DatasetNotFoundError

        with reading(self.repo_id, self.commit):
            if constants.HF_HUB_OFFLINE and function in PREPARED:
                return PREPARED[function](self.repo_id, self.commit, *arguments, **options)
            try:
                return getattr(datasets, function)(self.repo_id, *arguments, revision=self.commit, **options)
            except DatasetNotFoundError as error:  # between two requests
                raise RunError(self.place, "is no longer on the Hub", hint="run the same command again") from error
            except unreadable_kinds(EmptyDatasetError, RuntimeError) as error:  # RuntimeError: only a script makes it
                if isinstance(error.__cause__, httpx2.HTTPError | ConnectionError):
                    raise error.__cause__ from None  # the Hub's failure, and its words hold signed addresses
                raise unreadable(error, self.place, hint=None) from None
            except ValueError as error:
                if is_wrong(error):
                    raise
                raise unreadable(error, self.place, hint=None) from None


def hub_dataset(repo_id: str, revision: str | None, place: str) -> HubDataset:
    """The dataset at the commit that its revision stands for now. Raises what ``reading`` raises, and InputError for
    a card beyond its limits.
    """
    from huggingface_hub import DatasetCard, try_to_load_from_cache

    with reading(repo_id, revision):
        commit = commit_of(repo_id, revision)
        check_dataset_card(repo_id, commit)
        kept = try_to_load_from_cache(repo_id, "README.md", repo_type="dataset", revision=commit)
        card = DatasetCard.load(kept, ignore_metadata_errors=True).data if isinstance(kept, str) else None
    return HubDataset(place, repo_id, commit, _license(card))


def require_known(name: str, known: Iterable[str], place: str, what: str) -> str:
    """``name``, if it is among the configs or splits (``what``) of a dataset. Raises InputError naming those."""
    names = list(known)
    if name not in names:
        raise InputError(place, f"has no {what} {name!r}", allowed=names, hint=did_you_mean(name, names))
    return name


def _license(card: "DatasetCardData | None") -> str | None:
    """The licence that a card names, in either of the Hub's forms; None when it is not text."""
    if card is None:
        return None
    licence = card.get("license_name") if card.get("license") == "other" else card.get("license")
    several = licence if isinstance(licence, list) else [licence]
    return ", ".join(several) if several and all(isinstance(one, str) for one in several) else None

"""Downloads from a Hub: a run to resume, a published run's shards, any other dataset.

A run is identified by its manifest, and a run's files by their SHA-256. Any other dataset is
pinned at a commit; its card is checked before a library parses the card, and its scripts never run.

With HF_HUB_OFFLINE ``datasets`` by itself takes the rows that it prepared last, of any commit.
``load_prepared`` takes the rows of the wanted commit.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from sts_dino.hub.client.connection import WrongAnswer, convert_read_errors, is_wrong_answer
from sts_dino.hub.client.plan import OF_DATASETS, Remote
from sts_dino.hub.client.repository import COMMIT_ID, Repository, unwrap_errors
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe
from sts_dino.hub.contract.run_dir import (
    MANIFEST,
    RECIPE,
    REPORT,
    File,
    Manifest,
    find_changed_files,
    read_manifest,
    require_complete,
)
from sts_dino.hub.contract.shards import RERUN_HINT, list_reader_errors, make_reading_error
from sts_dino.hub.durable import rename_folder, write_text
from sts_dino.hub.errors import InputError, RunError, suggest_choice
from sts_dino.hub.untrusted import check_dataset_card, list_card_licences

logger = logging.getLogger(__name__)


def is_run_of(manifest: Manifest, recipe: DatasetRecipe | ModelRecipe) -> bool:
    """Return whether a manifest's run was made with this recipe, whatever its input files are.

    A fingerprint covers the recipe and the hashes of input files. This function takes the hashes
    from the manifest; the stage that resumes the run compares them with the files.
    """
    return manifest.fingerprint == compute_fingerprint(recipe, manifest.inputs)


def fetch_run(
    repository: Repository,
    remote: Remote,
    manifest: Manifest,
    recipe: DatasetRecipe | None,
    directory: Path,
) -> None:
    """Download a published run as the run directory ``directory``, by one atomic rename.

    The files arrive in ``NAME.fetching`` beside ``directory``. When this process is killed, the
    next call keeps the files that arrived completely.

    Args:
        repository: the repository on the Hub.
        remote: the commit to download.
        manifest: the manifest of the commit.
        recipe: the recipe of the resumed run; None: the published recipe.
        directory: the run directory, empty or absent.

    Raises:
        RunError: a file is missing in the commit, or differs from the manifest's SHA-256, or the
            disk cannot hold the download.
        ConnectionError: the Hub stopped answering.
        HfHubHTTPError: the Hub refused a request.
        OSError: the downloaded folder cannot be written or renamed.
    """
    from huggingface_hub import snapshot_download

    # List the files to download. No stage makes the measurements, which lie beside the manifest.
    beside = [name for name in (*OF_DATASETS, REPORT, RECIPE) if name in remote.files]
    for file in manifest.files:
        if file.path not in remote.files:
            raise _make_damage_error(
                repository, file.path, "is named by the manifest and not there"
            )
    if recipe is None and RECIPE not in beside:
        raise _make_damage_error(repository, RECIPE, "is not there")
    paths = [*(file.path for file in manifest.files), *beside]
    logger.info(f"{directory}: going on from {repository.repo_id} ({len(manifest.files)} files)")

    staging = directory.with_name(f"{directory.name}.fetching")
    with unwrap_errors(staging):
        snapshot_download(
            repository.repo_id,
            repo_type=repository.kind,
            revision=remote.sha,
            local_dir=staging,
            allow_patterns=paths,
            endpoint=repository.api.endpoint,
            token=repository.api.token,
        )

    # Check the files, and remove those that an earlier call fetched from another commit.
    local_paths = {staging / path for path in paths}
    if not all(path.is_file() for path in local_paths):
        # The client library returns normally when the Hub stops answering. The caller tries again.
        raise ConnectionError("not every file came")
    for changed in find_changed_files(staging, manifest):
        # Remove it: the client library keeps an existing file, even after a repair on the Hub.
        (staging / changed).unlink()
        raise _make_damage_error(
            repository, changed, "is not the file that the repository's manifest names"
        )
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's record of its downloads
    for path in {*staging.rglob("*")} - local_paths:
        if path.is_file():
            path.unlink()

    # Add the manifest and the recipe, and give the folder its name.
    if recipe:
        version = recipe.version
        text = format_recipe(recipe)
    else:
        version = manifest.version
        text = (staging / RECIPE).read_text(encoding="utf-8")
    run_dir.write_manifest(staging, manifest)
    run_dir.rewrite_recipe(staging, manifest, version, text)
    rename_folder(staging, directory)


def _make_damage_error(repository: Repository, path: str, problem: str) -> RunError:
    """Make the error for a published run with a missing or changed file, which stops a resume.

    ``path``: the file in the repository. ``problem``: the rest of the sentence after the path.
    """
    return RunError(
        f"{repository.repo_id}: {path}",
        problem,
        hint="repair the repository, or start again without it: --fresh",
    )


@dataclass(frozen=True)
class FinishedRun:
    """A complete run of a dataset, local or published.

    Attributes:
        place: the run's name in messages.
        manifest: the run's manifest.
        revision: the fingerprint of a local run, the commit of a published run.
        fetch_files: downloads the given files of a published run, and returns the run's folder,
            which the files' paths are relative to.
        fetch_recipe: returns the path of recipe.yaml. For a local run, the path is not checked. For
            a published run, None when the repository has no recipe.yaml, and when neither the Hub
            nor the cache has an answer.
        repair_hint: what the user can do when a file differs from the manifest.
    """

    place: str
    manifest: Manifest
    revision: str
    fetch_files: Callable[[Sequence[File]], Path]
    fetch_recipe: Callable[[], Path | None]
    repair_hint: str

    @property
    def configs(self) -> list[str]:
        """The names of the configs that have files, in alphabetical order."""
        return sorted({file.config for file in self.manifest.files if file.config})

    def fetch_shards(self, config: str) -> tuple[Path, list[File]]:
        """Fetch the shards of a config and check them; return the run's folder and the shards.

        The shards are in path order, and their paths are relative to the folder. Shards without
        rows are left out, because parquet readers fail over an empty shard. Raises
        InputError when a shard is missing or differs from the manifest, and the errors of
        ``fetch_files``.
        """
        shards = [file for file in self.manifest.shards(config) if file.rows != 0]
        directory = self.fetch_files(shards)
        manifest = self.manifest.model_copy(update={"files": tuple(shards)})
        damaged = find_changed_files(directory, manifest)
        if damaged:
            raise InputError(
                self.place,
                f"{damaged[0]} is missing or not what its manifest says",
                hint=self.repair_hint,
            )
        return directory, shards


def open_local_run(directory: Path, name: str) -> FinishedRun:
    """Return the run in a directory; errors call it ``name``.

    Raises InputError when the directory is missing or holds no intact manifest, and when the run is
    unfinished.
    """
    if not directory.is_dir():
        raise InputError(
            name,
            "no such directory",
            hint="make the dataset first (sts-dino write RECIPE), or name one of a Hub",
        )
    manifest = require_complete(directory)
    return FinishedRun(
        place=name,
        manifest=manifest,
        revision=manifest.fingerprint,
        fetch_files=lambda files: directory,
        fetch_recipe=lambda: directory / RECIPE,
        repair_hint=RERUN_HINT,
    )


def open_published_run(repo_id: str, revision: str | None, name: str) -> FinishedRun | None:
    """Return the run of a dataset repository; None when the repository holds no intact manifest.

    Only the manifest is downloaded here; the methods of the run download its other files.

    Args:
        repo_id: the repository.
        revision: a branch, a tag or a commit; None: main.
        name: the run's name in messages.

    Raises:
        InputError: the repository or the revision does not exist, or the run is unfinished.
        RunError: the token has no access, or the Hub did not answer.
    """
    from huggingface_hub import HfApi

    # Without an answer of the Hub the client returns cached files, so ask the Hub first.
    if not constants.HF_HUB_OFFLINE:
        with convert_read_errors(repo_id, revision):
            HfApi().dataset_info(repo_id, revision=revision)
    manifest_path = _fetch_file(repo_id, MANIFEST, revision)
    if manifest_path is None:
        return None
    directory = manifest_path.parent
    try:
        manifest = read_manifest(directory)
    except InputError:  # a file of another format that has the same name
        return None
    assert manifest is not None  # None stands for a missing file
    if not manifest.complete:
        raise InputError(name, "the run is not finished", hint="publish it again when it is")
    commit = directory.name

    def fetch_files(files: Sequence[File]) -> Path:
        for file in files:
            if _fetch_file(repo_id, file.path, commit) is None:
                raise InputError(name, f"{file.path} is named by its manifest and not there")
        return directory

    def fetch_recipe() -> Path | None:
        return _fetch_file(repo_id, RECIPE, commit, is_optional=True)

    return FinishedRun(
        place=name,
        manifest=manifest,
        revision=commit,
        fetch_files=fetch_files,
        fetch_recipe=fetch_recipe,
        # The client returns a cached file unchecked, unless --force-download is given
        repair_hint=f"download it again: hf download {repo_id} --repo-type dataset "
        f"--revision {commit} --force-download",
    )


def _fetch_file(
    repo_id: str, path: str, revision: str | None, is_optional: bool = False
) -> Path | None:
    """Return the local path of a downloaded file; None when the repository lacks the file.

    Without an answer of the Hub the cache decides: it also records which files a revision lacks.

    Args:
        repo_id: the dataset's repository.
        path: the file in the repository.
        revision: a branch, a tag or a commit; None: main.
        is_optional: return None, too, when neither the Hub nor the cache answers.

    Raises the errors of ``convert_read_errors``.
    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache

    with convert_read_errors(repo_id, revision):
        try:
            return Path(hf_hub_download(repo_id, path, repo_type="dataset", revision=revision))
        except LocalEntryNotFoundError:
            cached = try_to_load_from_cache(repo_id, path, repo_type="dataset", revision=revision)
            if is_optional or cached is _CACHED_NO_EXIST:
                return None
            raise
        except EntryNotFoundError:
            return None


def resolve_commit(repo_id: str, revision: str | None, kind: str = "dataset") -> str:
    """Return the commit id of a revision, from the Hub, or with HF_HUB_OFFLINE from the cache.

    The commit that the Hub names for a branch or a tag is written to the cache. A commit id of a
    dataset is returned without a request. A commit id of a model is looked up on the Hub, unless
    HF_HUB_OFFLINE is set: without the Hub the client library may load a half-downloaded model.

    Args:
        repo_id: the repository.
        revision: a branch, a tag or a commit; None: main.
        kind: ``dataset`` or ``model``.

    Raises:
        LocalEntryNotFoundError: HF_HUB_OFFLINE is set, and the revision was never looked up.
        HfHubHTTPError: the Hub has no such repository or revision, or refused.
        WrongAnswer: the answer has no commit id.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.file_download import repo_folder_name

    name = revision or "main"
    if COMMIT_ID.fullmatch(name) and (kind == "dataset" or constants.HF_HUB_OFFLINE):
        return name

    # The client library has the same file, but writes it only when it downloads something.
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo_id, repo_type=kind))
    cached_ref = folder / "refs" / name
    if not constants.HF_HUB_OFFLINE:
        commit = str(HfApi().repo_info(repo_id, repo_type=kind, revision=revision).sha)
        if not COMMIT_ID.fullmatch(commit):
            raise WrongAnswer("a revision without a commit")
        if name != commit:
            write_text(cached_ref, commit)
        return commit
    if not cached_ref.is_file():
        raise LocalEntryNotFoundError(f"{repo_id}: {name} was never downloaded")
    return cached_ref.read_text(encoding="utf-8")


def list_prepared_configs(repo_id: str, commit: str) -> dict[str, Path]:
    """Return config → the cached folder of rows that ``datasets`` prepared from a commit.

    Raises LocalEntryNotFoundError when the cache has no folder of this dataset and commit.
    """
    import datasets
    from datasets.naming import camelcase_to_snakecase

    # ``datasets`` caches rows in OWNER___NAME/CONFIG/VERSION/COMMIT.
    owner, _, name = repo_id.rpartition("/")
    folder = camelcase_to_snakecase(name)
    if owner:
        folder = f"{owner}___{folder}"
    paths = Path(datasets.config.HF_DATASETS_CACHE, folder).glob(f"*/*/{commit}")
    folders = {path.parts[-3]: path for path in paths if path.is_dir()}
    if not folders:
        raise LocalEntryNotFoundError(f"{repo_id}: nothing was prepared at {commit}")
    return folders


def load_prepared(
    repo_id: str,
    commit: str,
    config: str | None = None,
    split: str | None = None,
    streaming: bool = False,
) -> Any:
    """Return what ``load_dataset`` returns for a commit, from rows prepared on this machine.

    Args:
        repo_id: the dataset's repository.
        commit: the commit.
        config: the config; None: the only config, or of several configs ``default``.
        split: the split; None: all splits.
        streaming: whether to return an iterable dataset.

    Raises:
        LocalEntryNotFoundError: ``datasets`` never prepared this config of this commit here.
        ValueError: the config has no such split.
    """
    from datasets.packaged_modules.cache.cache import Cache

    folders = list_prepared_configs(repo_id, commit)
    if not config:
        config = "default" if len(folders) > 1 else next(iter(folders))
    if config not in folders:
        raise LocalEntryNotFoundError(f"{repo_id}: {config} was not prepared at {commit}")
    cache = Cache(
        repo_id=repo_id,
        dataset_name=repo_id.rpartition("/")[2],
        config_name=config,
        version=folders[config].parts[-2],
        hash=commit,
    )
    return cache.as_streaming_dataset(split) if streaming else cache.as_dataset(split)


# Function of ``datasets`` → the function that ``HubDataset.call`` calls with HF_HUB_OFFLINE
OFFLINE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load_dataset": load_prepared,
    "get_dataset_config_names": list_prepared_configs,
}


@dataclass(frozen=True)
class HubDataset:
    """A dataset on a Hub that is not a published run, at a commit.

    ``place``: the dataset's name in messages. ``license``: the licence that the card names, or
    several with commas; None without one.
    """

    place: str
    repo_id: str
    commit: str
    license: str | None

    def call(self, function: str, *arguments: str, **options: Any) -> Any:
        """Call a function of ``datasets`` with this repository and commit; return its result.

        With HF_HUB_OFFLINE, the function that ``OFFLINE_FUNCTIONS`` has for this name is called
        instead, if there is one.

        Args:
            function: the name of the function, e.g. ``load_dataset``.
            arguments: its positional arguments after the repository.
            options: its keyword arguments.

        Raises:
            InputError: the data cannot be read, or the repository or the commit does not exist.
            RunError: the Hub did not answer, or refused; the repository was deleted since its
                commit was resolved; HF_HUB_OFFLINE is set, and the data were not downloaded.
        """
        import datasets
        from datasets.data_files import EmptyDatasetError
        from datasets.exceptions import DatasetNotFoundError

        with convert_read_errors(self.repo_id, self.commit):
            if constants.HF_HUB_OFFLINE and function in OFFLINE_FUNCTIONS:
                return OFFLINE_FUNCTIONS[function](self.repo_id, self.commit, *arguments, **options)
            load = getattr(datasets, function)
            try:
                return load(self.repo_id, *arguments, revision=self.commit, **options)
            except DatasetNotFoundError as error:  # it was there when its commit was resolved
                raise RunError(
                    self.place, "is no longer on the Hub", hint="run the same command again"
                ) from error
            # ``datasets`` raises RuntimeError only over a dataset with a loading script.
            except list_reader_errors(EmptyDatasetError, RuntimeError) as error:
                # Raise the failed request, because the outer message holds signed URLs.
                if isinstance(error.__cause__, httpx2.HTTPError | ConnectionError):
                    raise error.__cause__ from None
                raise make_reading_error(error, self.place, hint=None) from None
            except ValueError as error:
                if is_wrong_answer(error):
                    raise
                raise make_reading_error(error, self.place, hint=None) from None


def open_hub_dataset(repo_id: str, revision: str | None, name: str) -> HubDataset:
    """Return a dataset at the commit that ``revision`` names now.

    Args:
        repo_id: the dataset's repository.
        revision: a branch, a tag or a commit; None: main.
        name: the dataset's name in messages.

    Raises:
        InputError: the repository or the revision does not exist, or the card's metadata breaks a
            limit of ``check_dataset_card``.
        RunError: the token has no access, the Hub did not answer, or HF_HUB_OFFLINE is set and the
            revision was never looked up.
    """
    from huggingface_hub import DatasetCard, try_to_load_from_cache

    with convert_read_errors(repo_id, revision):
        commit = resolve_commit(repo_id, revision)
        check_dataset_card(repo_id, commit)
        path = try_to_load_from_cache(repo_id, "README.md", repo_type="dataset", revision=commit)
        licence = None
        if isinstance(path, str):
            card = DatasetCard.load(path, ignore_metadata_errors=True).data
            licence = ", ".join(list_card_licences(card.to_dict())) or None
    return HubDataset(name, repo_id, commit, licence)


def require_known(name: str, choices: Iterable[str], owner: str, kind: str) -> str:
    """Return ``name`` if it is one of the choices, else raise InputError that lists them.

    Args:
        name: the name of a config or a split.
        choices: the names that exist.
        owner: the dataset, for the message.
        kind: ``config`` or ``split``, for the message.
    """
    names = list(choices)
    if name not in names:
        raise InputError(
            owner, f"has no {kind} {name!r}", allowed=names, hint=suggest_choice(name, names)
        )
    return name

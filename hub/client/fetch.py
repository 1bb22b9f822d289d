"""Resumes a run from the Hub: downloads its published files into an empty run directory, checked by SHA-256."""

import shutil
from pathlib import Path

from hub import cli
from hub.client.plan import OF_DATASETS, Remote
from hub.client.repository import Repository, unwrapped
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import fingerprint, resolved
from hub.contract.run_dir import REPORT, Manifest
from hub.contract.shards import sha256_file, write_bytes
from hub.durable import rename_folder
from hub.errors import RunError

_REPAIR = "repair the repository, or start again without it: --fresh"


def is_run_of(manifest: Manifest, recipe: DatasetRecipe | ModelRecipe) -> bool:
    """Whether a manifest is of this recipe's rows or weights; that its inputs are as before, the run itself checks."""
    return manifest.fingerprint == fingerprint(recipe, manifest.inputs)


def fetch(
    repository: Repository, remote: Remote, manifest: Manifest, recipe: DatasetRecipe | None, directory: Path
) -> None:
    """Make ``directory``, empty or absent, the run directory of a published manifest, all at once.

    ``recipe``: the one that the run goes on under; None: the published one.

    Killed, it goes on from the files that came whole. Raises RunError when a file is not the one the manifest names.
    """
    from huggingface_hub import snapshot_download

    missing = [file.path for file in manifest.files if file.path not in remote.files]
    if missing:
        raise RunError(f"{repository.repo_id}: {missing[0]}", "is named by the manifest and not there", hint=_REPAIR)
    cli.say(f"{directory}: going on from {repository.repo_id} ({len(manifest.files)} files)")
    staging = directory.with_name(f"{directory.name}.fetching")
    with unwrapped(staging):
        snapshot_download(
            repository.repo_id,
            repo_type=repository.kind,
            revision=remote.sha,
            local_dir=staging,
            allow_patterns=[file.path for file in manifest.files],
            endpoint=repository.api.endpoint,
            token=repository.api.token,
        )
    for file in manifest.files:
        path = staging / file.path
        if not path.is_file():  # the client gives what is there when the Hub does not answer: this passes
            raise ConnectionError(f"{file.path} did not come")
        if sha256_file(path) != file.sha256:
            path.unlink()  # the client would keep it, should the repository be repaired
            raise RunError(
                f"{repository.repo_id}: {file.path}",
                "is not the file that the repository's manifest names",
                hint=_REPAIR,
            )
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's notes
    named = {staging / file.path for file in manifest.files}
    for path in staging.rglob("*"):  # an earlier start may have fetched another state
        if path.is_file() and path not in named:
            path.unlink()
    for name in (*OF_DATASETS, REPORT):  # no stage makes them again
        content = repository.read(remote, name) if name in remote.files else None
        if content is not None:
            write_bytes(staging / name, content)
    version, text = (recipe.version, resolved(recipe)) if recipe else (manifest.version, _published(repository, remote))
    run_dir.write_manifest(staging, manifest)
    run_dir.rewrite_recipe(staging, manifest, version, text)
    rename_folder(staging, directory)


def _published(repository: Repository, remote: Remote) -> str:
    """recipe.yaml as it is published. Raises RunError when it is not there."""
    content = repository.read(remote, run_dir.RECIPE)
    if content is None:
        raise RunError(f"{repository.repo_id}: {run_dir.RECIPE}", "is not there", hint="repair the repository")
    return content.decode("utf-8", "replace")

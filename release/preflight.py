"""Checks before any work: may this token publish this run there? Everything that a release would refuse is refused now.

A growing version is on ``main``. Where ``main`` holds a finished version, users load that: the new one grows on the
branch ``next``, and the release moves it to ``main`` in one commit that sends no shard again.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi

from hub.client.connection import account
from hub.client.fetch import is_run_of
from hub.client.plan import Remote, Snapshot
from hub.client.publish import NEXT, check_place, edits_since, is_later, remote_manifest
from hub.client.repository import MAIN, Repository
from hub.client.retry import RetryPolicy
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import Manifest
from hub.errors import InputError, RunError

PIN = re.compile(r"v\d+\.\d+\.\d+|[0-9a-f]{40}")  # a tag or a commit: a branch moves


def namespace(api: HfApi, org: str | None, yes: bool, patience: RetryPolicy) -> str:
    """Where to publish, as the Hub spells it. Before anything is made, raises when the token may not write there."""
    if org and not yes:
        return org
    user = patience.until_done("ask who the token belongs to", lambda: account(api))
    if yes and user.role == "read":
        raise RunError(f"{api.endpoint}", "the token may only read", hint="use a token with the role write")
    found = [name for name in user.names if name.lower() == (org or user.name).lower()]
    if not found:
        raise InputError(f"--org {org}", "is not the token's user or organisation", allowed=", ".join(user.names))
    return found[0]


def check_pins(path: Path, recipe: ModelRecipe) -> None:
    """Raise InputError when data are pinned by something that moves, such as a branch."""
    data = {f"datasets.{index}": item for index, item in enumerate(recipe.datasets)}
    chosen_by = {f"validation.{index}": item for index, item in enumerate(recipe.validation)}
    for key, item in {**data, **chosen_by}.items():
        if item.repo_id is not None and not PIN.fullmatch(item.revision or ""):
            problem = f"{item.revision!r} can move: a released model names what it was trained on and chosen by"
            allowed = "a tag such as v1.0.0, or a commit of 40 digits"
            raise InputError(f"{path}:{key}.revision", problem, allowed=allowed)


def check_dtype(path: Path, recipe: DatasetRecipe) -> None:
    """Raise InputError for a dtype that another machine reads otherwise: a release goes on wherever it is asked to."""
    if recipe.model.dtype == "auto" and recipe.model.facts.local:
        allowed, hint = "float32, bfloat16, float16", "name it: --set model.dtype=bfloat16"
        raise InputError(f"{path}:model.dtype", "'auto' names no dataset", allowed=allowed, hint=hint)


def check_run(directory: Path, recipe: DatasetRecipe | ModelRecipe) -> None:
    """Raise InputError when a directory holds a run of another recipe: it must not be published under this one."""
    found = run_dir.read_manifest(directory)
    if found is not None and run_dir.has_work(directory, found) and not is_run_of(found, recipe):
        problem = f"holds a run of another recipe ({found.name} v{found.version}), or one with other --limit or --set"
        hint = "give the same options, choose another --artifacts, or remove the directory to start again"
        raise InputError(directory, problem, hint=hint)


@dataclass(frozen=True)
class Target:
    """The branch to publish a run to, and the published part of its rows (None: nothing yet).

    That part may be another finished version on ``main`` with the same rows: then only the card is new.
    """

    branch: str
    remote: Remote | None = None
    manifest: Manifest | None = None


def publication_target(repository: Repository, recipe: DatasetRecipe | ModelRecipe, force: bool) -> Target:
    """Where to publish a run of ``recipe``.

    Raises RunError when its release would be refused: the version's tag marks another run or another recipe.yaml of
    this one, another unfinished run, a later version or something that is not ours stands in its place (but for
    ``force``).
    """
    main = repository.branch(MAIN)
    found = _target_on(repository, main, recipe, force, MAIN)
    if main is None:
        return Target(MAIN)
    _check_tag(repository, recipe)
    if found is not None:
        return found
    ahead = _target_on(repository, repository.branch(NEXT), recipe, force, NEXT) or Target(NEXT)
    manifest = remote_manifest(repository, main)
    same_rows = ahead.manifest is None and manifest is not None and is_run_of(manifest, recipe)
    return Target(NEXT, main, manifest) if same_rows else ahead


def published_base(repository: Repository) -> Target | None:
    """The finished version that rows can be appended to; None when nothing is published.

    It is what ``main`` holds; where a release was cut off between its commits, what the earlier version's tag marks.
    """
    remote = repository.branch(MAIN)
    manifest = remote_manifest(repository, remote) if remote else None
    if manifest is not None and not manifest.complete:
        tags = repository.tags()
        earlier = [f"v{name.removeprefix(run_dir.APPENDED)}" for name in run_dir.base_inputs(manifest)]
        remote = next((repository.at(tags[tag]) for tag in earlier if tag in tags), None)
        manifest = remote_manifest(repository, remote) if remote else None
    return Target(MAIN, remote, manifest) if manifest else None


def check_base(repo_id: str, local: Manifest, there: Manifest) -> None:
    """Raise RunError when a run is not the published version or one that goes on from it: that one's rows would go."""
    known = {local.fingerprint, *(entry["fingerprint"] for entry in local.provenance.get("history", ()))}
    if there.fingerprint not in known:
        raise RunError(
            f"{repo_id}: {MAIN}",
            f"holds v{there.version}, whose rows the run directory (v{local.version}) has not",
            hint="move the run directory away: the same command then appends to what is published",
        )


def _target_on(
    repository: Repository, remote: Remote | None, recipe: DatasetRecipe | ModelRecipe, force: bool, branch: str
) -> Target | None:
    """This branch as the target; None when it holds a finished version of something else, or another one of this."""
    if remote is None:
        return Target(branch)
    manifest = remote_manifest(repository, remote)
    if not force:
        refuse_edits(repository, remote, manifest, {}, branch)
    if manifest is not None and is_run_of(manifest, recipe):  # is it this version, or may it still become it?
        grows = not manifest.complete and not is_later(manifest.version, recipe.version)
        if grows or manifest.version == recipe.version:
            return Target(branch, remote, manifest)
    if not force:
        check_place(repository, branch, manifest, recipe.version)
    return None if manifest is not None and manifest.complete else Target(branch)


def _check_tag(repository: Repository, recipe: DatasetRecipe | ModelRecipe) -> None:
    tag = f"v{recipe.version}"
    tagged = repository.tags().get(tag)
    if tagged is None:
        return
    there = remote_manifest(repository, repository.at(tagged))
    what = None if there and is_run_of(there, recipe) else "the run of another recipe"
    if there and there.recipe_sha256 != run_dir.text_sha256(resolved(recipe)):
        what = what or "this run under another recipe.yaml, such as another licence or description"
    if what:
        hint = "raise `version` in the recipe"
        raise RunError(f"{repository.repo_id}: tag {tag}", f"exists and marks {what}", hint=hint)


def refuse_edits(
    repository: Repository, remote: Remote, manifest: Manifest | None, snapshot: Snapshot, branch: str
) -> None:
    """Raise RunError when a person changed the branch since it was published: what."""
    edits = edits_since(repository, remote, manifest, snapshot)
    if edits:
        said = "; ".join(f"{path}: {what}" for path, what in edits.items())
        hint = "look at it, then use --force to replace it"
        raise RunError(f"{repository.repo_id}: {branch}", f"was changed by hand ({said})", hint=hint)

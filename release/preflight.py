"""Checks before any work: whether the Hub would accept a run, and on which branch.

Everything that a release would refuse at its end is refused at its start.

A growing version is on ``main``. Where ``main`` holds a finished version, users load that one. Then
the new version grows on the branch ``next``, and the release moves it to ``main`` in one commit
that sends no shard again.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi

from sts_dino.hub.client.connection import fetch_account
from sts_dino.hub.client.fetch import is_run_of
from sts_dino.hub.client.plan import Remote, Snapshot
from sts_dino.hub.client.publish import (
    GROWING_BRANCH,
    find_edits,
    is_later,
    read_remote_manifest,
    require_replaceable,
)
from sts_dino.hub.client.repository import MAIN, Repository
from sts_dino.hub.client.retry import RetryPolicy
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import format_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.errors import InputError, RunError

# A version's tag, or a commit
FIXED_REVISION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+|[0-9a-f]{40}")


def require_namespace(api: HfApi, org: str | None, yes: bool, patience: RetryPolicy) -> str:
    """Return the user or organisation to publish to, as the Hub spells it.

    Args:
        api: the Hub's client.
        org: the user or organisation of the command line; None: the token's user.
        yes: whether to publish; without it an ``org`` is returned unchecked.
        patience: the retry policy.

    Raises InputError when the token does not belong to ``org``. With ``yes``, raises RunError when
    the token may only read. The errors of ``fetch_account`` pass.
    """
    if org and not yes:
        return org
    user = patience.call_until_done("ask who the token belongs to", lambda: fetch_account(api))
    wanted_name = org or user.name
    if yes and user.role == "read":
        hint = "use a token with the role write"
        raise RunError(f"{api.endpoint}", "the token may only read", hint=hint)
    for name in user.names:
        if name.lower() == wanted_name.lower():
            return name
    problem = "is not the token's user or organisation"
    raise InputError(f"--org {org}", problem, allowed=", ".join(user.names))


def check_pins(path: Path, recipe: ModelRecipe) -> None:
    """Raise InputError when training or validation data of the Hub have a revision that can move.

    A commit and a tag ``vMAJOR.MINOR.PATCH`` are fixed; branches and all other tags can move.
    ``path`` is the recipe's file, for the error.
    """
    for section in ("datasets", "validation"):
        for index, item in enumerate(getattr(recipe, section)):
            if item.repo_id is None or FIXED_REVISION.fullmatch(item.revision or ""):
                continue
            problem = (
                f"{item.revision!r} can move: a released model names what it was trained on "
                "and chosen by"
            )
            allowed = "a tag such as v1.0.0 (v and three numbers), or a commit of 40 hex digits"
            raise InputError(f"{path}:{section}.{index}.revision", problem, allowed=allowed)


def check_dtype(path: Path, recipe: DatasetRecipe) -> None:
    """Raise InputError for a local generator's dtype that depends on the machine.

    Another machine may resume the release. ``path`` is the recipe's file, for the error.
    """
    if recipe.model.dtype in ("auto", "int8") and recipe.model.is_local:
        hint = "name it: --set model.dtype=bfloat16"
        problem = f"{recipe.model.dtype!r} depends on the CPU, so it names no dataset"
        allowed = "float32, bfloat16, float16"
        raise InputError(f"{path}:model.dtype", problem, allowed=allowed, hint=hint)


def check_run(directory: Path, recipe: DatasetRecipe | ModelRecipe) -> None:
    """Raise InputError when a directory holds a run of another recipe, or a damaged manifest.

    A run that made nothing yet passes, and so does a directory without a run.
    """
    manifest = run_dir.read_manifest(directory)
    if manifest is None or not run_dir.has_work(directory, manifest):
        return
    if is_run_of(manifest, recipe):
        return
    problem = (
        f"holds a run of another recipe ({manifest.name} v{manifest.version}), "
        "or one with other --limit or --set"
    )
    hint = (
        "give the same options, choose another --artifacts, or remove the directory to start again"
    )
    raise InputError(directory, problem, hint=hint)


@dataclass(frozen=True)
class Target:
    """The branch to publish a run to, and the published part of the run.

    ``remote`` is the commit that has that part, and ``manifest`` the manifest in it; both are None
    when nothing is published. The commit may be of another finished version with the same rows:
    then only the card is new.
    """

    branch: str
    remote: Remote | None = None
    manifest: Manifest | None = None


def find_target(repository: Repository, recipe: DatasetRecipe | ModelRecipe, force: bool) -> Target:
    """Return the branch to publish a run of ``recipe`` to.

    Raises RunError when the release would be refused: when the version's tag marks another run, or
    this run with another recipe.yaml. Without ``force``, also when a person edited the branch, or
    when the branch holds another unfinished run, a later version or files of another program.
    """
    # Publish to ``main`` unless it holds another finished version
    main = repository.get_branch(MAIN)
    if main is None:
        return Target(MAIN)
    target = _find_target_on(repository, main, recipe, force, MAIN)
    _check_tag(repository, recipe)
    if target is not None:
        return target

    # Else grow on the branch ``next``; a finished version on ``main`` may have the same rows
    next_branch = repository.get_branch(GROWING_BRANCH)
    target = _find_target_on(repository, next_branch, recipe, force, GROWING_BRANCH)
    target = target or Target(GROWING_BRANCH)
    manifest = read_remote_manifest(repository, main)
    if target.manifest is None and manifest is not None and is_run_of(manifest, recipe):
        return Target(GROWING_BRANCH, main, manifest)
    return target


def find_published_base(repository: Repository) -> Target | None:
    """Return the finished version that rows can be appended to; None without one.

    It is the run on ``main``. When that run is unfinished, because a release broke off between its
    commits, it is the tagged version to which that run appends rows. The target's branch is
    ``main`` in both cases.
    """
    remote = repository.get_branch(MAIN)
    manifest = read_remote_manifest(repository, remote) if remote else None
    if manifest is not None and not manifest.complete:
        remote = _find_earlier_version(repository, manifest)
        manifest = read_remote_manifest(repository, remote) if remote else None
    return Target(MAIN, remote, manifest) if manifest else None


def _find_earlier_version(repository: Repository, manifest: Manifest) -> Remote | None:
    """Return the tagged commit of the version to which an unfinished run appends rows.

    None without such a version or tag.
    """
    tags = repository.list_tags()
    for name in run_dir.get_base_inputs(manifest):
        tag = f"v{name.removeprefix(run_dir.APPENDED_INPUT)}"
        if tag in tags:
            return repository.get_commit(tags[tag])
    return None


def check_base(repo_id: str, local: Manifest, published: Manifest) -> None:
    """Raise RunError when a local run neither is the published version nor appends rows to it.

    Publishing the local run would remove that version's rows.
    """
    history = local.provenance.get("history", ())
    fingerprints = {local.fingerprint, *(entry["fingerprint"] for entry in history)}
    if published.fingerprint not in fingerprints:
        problem = (
            f"holds v{published.version}, whose rows the run directory (v{local.version}) lacks"
        )
        hint = "move the run directory away: the same command then appends to what is published"
        raise RunError(f"{repo_id}: {MAIN}", problem, hint=hint)


def _find_target_on(
    repository: Repository,
    remote: Remote | None,
    recipe: DatasetRecipe | ModelRecipe,
    force: bool,
    branch: str,
) -> Target | None:
    """Return ``branch`` as the target; None when the branch holds another finished version.

    ``remote`` is the branch's newest commit; None when the branch does not exist yet, which makes
    it a target. Without ``force``, raises RunError for edits of a person, for an unfinished run of
    another recipe, and for a later version.
    """
    if remote is None:
        return Target(branch)
    manifest = read_remote_manifest(repository, remote)
    if not force:
        refuse_edits(repository, remote, manifest, {}, branch)
    is_ours = manifest is not None and is_run_of(manifest, recipe)
    if manifest is not None and is_ours and _can_become(manifest, recipe.version):
        return Target(branch, remote, manifest)
    if not force:
        require_replaceable(repository, branch, manifest, recipe.version)
    return None if manifest is not None and manifest.complete else Target(branch)


def _can_become(manifest: Manifest, version: str) -> bool:
    """Return whether a published run can be released as ``version``.

    A finished run must have this version, an unfinished run this or an earlier one.
    """
    if manifest.complete:
        return manifest.version == version
    return not is_later(manifest.version, version)


def _check_tag(repository: Repository, recipe: DatasetRecipe | ModelRecipe) -> None:
    """Raise RunError when the version's tag marks another run or another recipe.yaml."""
    tag = f"v{recipe.version}"
    commit = repository.list_tags().get(tag)
    if commit is None:
        return
    manifest = read_remote_manifest(repository, repository.get_commit(commit))
    if manifest is None or not is_run_of(manifest, recipe):
        marked = "the run of another recipe"
    elif manifest.recipe_sha256 != run_dir.hash_text(format_recipe(recipe)):
        marked = "this run under another recipe.yaml, such as another licence or description"
    else:
        return
    hint = "raise `version` in the recipe"
    raise RunError(f"{repository.repo_id}: tag {tag}", f"exists and marks {marked}", hint=hint)


def refuse_edits(
    repository: Repository,
    remote: Remote,
    manifest: Manifest | None,
    snapshot: Snapshot,
    branch: str,
) -> None:
    """Raise RunError that names the changes a person made to a branch since its publication.

    Args:
        repository: the repository.
        remote: the branch's newest commit.
        manifest: the manifest in that commit; None without one.
        snapshot: the files of the next commit; an equal file is not an edit.
        branch: the branch's name, for the error.
    """
    edits = find_edits(repository, remote, manifest, snapshot)
    if edits:
        changes = "; ".join(f"{path}: {change}" for path, change in edits.items())
        problem = f"was changed by hand ({changes})"
        hint = "look at it, then use --force to replace it"
        raise RunError(f"{repository.repo_id}: {branch}", problem, hint=hint)

"""Publication of a finished run directory; ``sts-dino publish`` is the command.

One atomic commit copies the run directory to the branch main, and a tag ``vVERSION`` marks the
commit. More than ``MOST_FILES_PER_COMMIT`` files take several commits, of which the last is tagged.
Unchanged files are not sent again, and files that are no longer in the run are deleted. Old
versions of ``datasets`` find a loading script and the same files on the branch ``script``.

Without ``force``, a publication stops before it overwrites another person's file, edit, unfinished
run or later version.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sts_dino.hub.client import plan as publication_plan
from sts_dino.hub.client.connection import fetch_account
from sts_dino.hub.client.plan import (
    CARD,
    HUB_FILES,
    MEASURED,
    PATTERNS_BESIDE_MANIFEST,
    Changes,
    Content,
    Plan,
    Remote,
    Snapshot,
    find_changes,
    hash_facts,
    is_beside,
    plan_commits,
    read_stamp,
)
from sts_dino.hub.client.repository import MAIN, Repository
from sts_dino.hub.client.retry import RetryPolicy
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.measured import DROPPED_ROWS_INPUT
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe, build_config_features
from sts_dino.hub.contract.recipe_file import compute_fingerprint, load_recipe
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from sts_dino.hub.contract.schema import is_same_schema
from sts_dino.hub.contract.shards import read_parquet_schema
from sts_dino.hub.errors import InputError, RunError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

logger = logging.getLogger(__name__)

SCRIPT_BRANCH = "script"  # holds the loading script for old versions of ``datasets``
GROWING_BRANCH = "next"  # holds the shards of a new version until the version is complete
EDIT_SCRIPT_ON_MAIN = "a script on main: datasets 4 and later refuse to load the repository"
Edits = dict[str, str]  # path → a phrase for a person's change of the file
BASELINE_PROBLEM = (
    "is a baseline, which is not published: nothing was trained, "
    "and its weights are somebody else's"
)


@dataclass(frozen=True)
class Options:
    """Options of a publication.

    Attributes:
        public: the visibility. None: a new repository is private, an existing repository keeps its
            visibility. True and False refuse an existing repository of the other visibility.
        force: whether to overwrite a person's changes on the Hub.
        script: name → text of the loading script and of the modules that the script imports.
        patience: the retry policy.
    """

    public: bool | None = None
    force: bool = False
    script: Mapping[str, str] = field(default_factory=dict)
    patience: RetryPolicy = field(default_factory=RetryPolicy)


def publish_run(
    api: "HfApi", directory: Path, org: str | None, yes: bool, options: Options | None = None
) -> Plan:
    """Plan the publication of a run directory and, with ``yes``, publish; return the plan.

    Args:
        api: the client of the Hub.
        directory: the run directory.
        org: the organisation or user to publish under; None: the token's user.
        yes: whether to publish; otherwise only the plan is made.
        options: how to publish; None: the defaults of ``Options``.

    Raises:
        InputError: the run is unfinished, a baseline or without a card, or its recipe, manifest,
            files and card contradict each other.
        RunError: the errors of ``Release.try_publish``.
        Exception: a request failed, or the client has no token. The client library raises this
            error, and ``convert_hub_errors`` converts it.
    """
    options = options or Options()
    manifest = check_run(directory)
    namespace = org or options.patience.call_until_done(
        "ask for the user", lambda: fetch_account(api).name
    )
    repository = Repository(api, f"{namespace}/{manifest.name}", manifest.kind)
    release = Release(repository, directory, manifest, options)
    release.check_card()
    return options.patience.call_until_done(
        f"publish {repository.repo_id}", lambda: release.try_publish(yes)
    )


def check_run(directory: Path) -> Manifest:
    """Return the manifest of a run directory that can be published.

    Raises InputError when the directory holds no run, when the run is unfinished or a baseline,
    when a file or the recipe differs from the manifest, and when a shard has other columns than its
    config.
    """
    manifest = run_dir.require_complete(directory)
    changed = ", ".join(run_dir.find_changed_files(directory, manifest)[:5])
    if changed:
        raise InputError(
            directory,
            f"files differ from the manifest: {changed}",
            hint="run the stage that made them",
        )

    # The recipe must be the one of the manifest's fingerprint.
    path = directory / RECIPE
    recipe: DatasetRecipe | ModelRecipe
    if manifest.kind == "dataset":
        recipe = load_recipe(path, DatasetRecipe)
    else:
        recipe = load_recipe(path, ModelRecipe)
    is_same_recipe = compute_fingerprint(recipe, manifest.inputs) == manifest.fingerprint
    if not is_same_recipe or not run_dir.has_current_recipe(directory, manifest):
        raise InputError(
            path,
            "is not the recipe that the manifest's run was made by",
            hint="change the recipe where it came from and run its stage again: "
            "only what is missing is made",
        )

    if isinstance(recipe, DatasetRecipe):
        _check_columns(directory, manifest, recipe)
    elif recipe.is_baseline:
        raise InputError(
            directory,
            BASELINE_PROBLEM,
            hint="its scores are in results.json, for tables and comparisons",
        )
    return manifest


def _check_columns(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> None:
    """Raise InputError when a shard's columns differ from the columns of the shard's config."""
    for file in manifest.files:
        if file.config is None:
            continue
        expected = build_config_features(file.config, recipe).arrow_schema
        actual = read_parquet_schema(directory / file.path)
        if not is_same_schema(actual, expected):
            columns = ", ".join(actual.names)
            raise InputError(
                directory / file.path,
                f"has the columns {columns}, which are not those of {file.config}",
                allowed=", ".join(expected.names),
                hint="run the stage that made it",
            )


def collect_snapshot(directory: Path, manifest: Manifest) -> dict[str, Content]:
    """Return path in the repository → content, for all files to publish.

    The manifest's files are published, and the files that match ``PATTERNS_BESIDE_MANIFEST``.
    """
    contents = {}
    for pattern in PATTERNS_BESIDE_MANIFEST:
        for path in directory.glob(pattern):
            contents[path.relative_to(directory).as_posix()] = Content(path)
    for file in manifest.files:
        contents[file.path] = Content(directory / file.path, file.sha256)
    return contents


@dataclass
class Release:
    """One publication of a finished run; every call of ``try_publish`` makes a new plan."""

    repository: Repository
    directory: Path
    manifest: Manifest
    options: Options

    def __post_init__(self) -> None:
        self.snapshot = collect_snapshot(self.directory, self.manifest)
        self.tag = f"v{self.manifest.version}"
        # The plan to report: a second attempt may find the changes of the first attempt done.
        self._first_plan: Plan | None = None

    def check_card(self) -> None:
        """Raise InputError for a card that is missing, edited, stale or of another repository.

        A card is stale when the manifest or a file of ``MEASURED`` in the run directory has changed
        since the card was written.
        """
        repo_id = self.repository.repo_id
        card = self.directory / CARD
        hint = f"run: sts-dino card {self.directory} --repo-id {repo_id}"
        if not card.is_file():
            raise InputError(card, "no card", hint=hint)
        # Other line breaks are an edit, too, so no line break is translated.
        stamp = read_stamp(card.read_bytes().decode("utf-8", "replace"))
        if stamp is None:
            raise InputError(
                card, "was edited by hand: prose belongs into the recipe's about:", hint=hint
            )

        # Compare the current facts, and the repository, with those in the stamp.
        measured = [self.directory / name for name in MEASURED]
        contents = [path.read_bytes() if path.is_file() else None for path in measured]
        if stamp.facts != hash_facts((self.directory / MANIFEST).read_bytes(), *contents):
            sources = f"{MANIFEST}, {', '.join(MEASURED[:-1])} and {MEASURED[-1]}"
            raise InputError(
                card, f"was written from other facts than {sources} hold now", hint=hint
            )
        if stamp.repo_id != repo_id:
            raise InputError(card, f"is that of {stamp.repo_id}, not of {repo_id}", hint=hint)

    def try_publish(self, yes: bool) -> Plan:
        """Compare the run with the Hub and, with ``yes``, make the changes.

        Returns:
            The plan of the first call: a repeated call after a lost answer may find no changes.

        Raises:
            RunError: the errors of ``make_plan``; with ``yes`` also: a person changed the
                repository, and ``force`` is not set; the repository exists, and the token cannot
                see it.
            Exception: a request failed, as the client library raises it.
        """
        plan = self.make_plan()
        self._first_plan = self._first_plan or plan
        if not yes:
            return plan
        repo_id = self.repository.repo_id
        if plan.edits and not self.options.force:
            logger.info(str(plan))
            edits = ", ".join(f"{path} ({edit})" for path, edit in plan.edits.items())
            raise RunError(
                repo_id,
                f"was changed by hand since it was published: {edits}",
                hint="look at it (without --yes, nothing is sent), then use --force to replace it",
            )

        # Commit to main, each commit on the one before it.
        remote = plan.remote or self.repository.create(self.options.public)
        sha = remote.sha
        for commit in plan_commits(self.snapshot, remote, self.manifest, repo_id):
            message = f"{self.manifest.name} {self.tag}{commit.progress}"
            parent = Remote(sha, {})  # ``Repository.commit`` reads only the parent's id
            sha = self.repository.commit(parent, MAIN, commit.changes, commit.snapshot, message)
            if commit.progress:
                logger.info(f"{repo_id}: {self.tag}{commit.progress} published")

        # Then the references that depend on main's new head
        if plan.tag:
            self.repository.set_tag(plan.tag, sha)
        if self.options.script:
            self._update_script(sha)
        self._drop_next(sha)
        return self._first_plan

    def make_plan(self) -> Plan:
        """Compare the run with the Hub and return the plan of its publication.

        Raises:
            RunError: the repository has another visibility than ``Options.public``; the tag marks
                other content; or, without ``force``, main holds a later version or an unfinished
                run of another recipe.
            Exception: a request failed, as the client library raises it.
        """
        self.repository.require_visibility(self.options.public)

        # Only the branch main can hold a person's edits or another run.
        remote = self.repository.get_branch()
        changes = find_changes(self.snapshot, remote)
        edits: Edits = {}
        if remote:
            manifest = read_remote_manifest(self.repository, remote)
            if not self.options.force and not self._is_ours(manifest):
                require_replaceable(self.repository, MAIN, manifest, self.manifest.version)
            edits = find_edits(self.repository, remote, manifest, self.snapshot)
        new_paths = (*changes.added, *changes.replaced)
        repo_id = self.repository.repo_id
        commits = plan_commits(self.snapshot, remote or Remote("", {}), self.manifest, repo_id)
        return Plan(
            repo_id=repo_id,
            repo_type=self.manifest.kind,
            remote=remote,
            changes=changes,
            tag=self._find_missing_tag(remote, changes),
            script=self._needs_script(remote, changes),
            edits=edits,
            upload=sum(self.snapshot[path].size for path in new_paths),
            commits=len(commits),
        )

    def _is_ours(self, manifest: Manifest | None) -> bool:
        """Return whether a manifest has this run's fingerprint, and no later version."""
        if manifest is None or manifest.fingerprint != self.manifest.fingerprint:
            return False
        return not is_later(manifest.version, self.manifest.version)

    def _find_missing_tag(self, remote: Remote | None, changes: Changes) -> str | None:
        """Return the version's tag if the Hub lacks the tag, else None.

        ``remote``: main, None for a new repository. ``changes``: the planned changes of main.
        Raises RunError when the tag exists and marks other content than the snapshot.
        """
        tagged_sha = self.repository.list_tags().get(self.tag) if remote else None
        if remote is None or tagged_sha is None:
            return self.tag
        differences = changes
        if tagged_sha != remote.sha:
            differences = find_changes(self.snapshot, self.repository.get_commit(tagged_sha))
        if not differences:
            return None
        paths = (*differences.added, *differences.replaced, *differences.deleted)
        target = f"{self.repository.repo_id}: tag {self.tag}"
        problem = f"exists and marks other content ({', '.join(paths[:5])})"
        hint = "raise `version` in the recipe"
        if DROPPED_ROWS_INPUT in self.manifest.inputs:
            hint = "drop again with a later --drop-version"
        raise RunError(target, problem, hint=hint)

    def _make_script_snapshot(self) -> Snapshot:
        """Return the files of the branch ``script``: the snapshot and the loading script."""
        contents = dict(self.snapshot)
        for name, text in self.options.script.items():
            contents[name] = Content(text.encode())
        return contents

    def _needs_script(self, remote: Remote | None, changes: Changes) -> bool:
        """Return whether the branch ``script`` needs a commit; False without a loading script.

        ``remote``: main, None for a new repository. ``changes``: the planned changes of main.
        """
        if not self.options.script:
            return False
        if remote is None or changes:
            return True
        branch = self.repository.get_branch(SCRIPT_BRANCH)
        return branch is None or bool(find_changes(self._make_script_snapshot(), branch))

    def _update_script(self, sha: str) -> None:
        """Make the branch ``script`` hold the files of the commit ``sha`` and the loading script.

        One commit makes the changes. A missing branch is first created at ``sha``. A branch with
        more than ``MOST_FILES_PER_COMMIT`` changes is first deleted and created again.
        """
        snapshot = self._make_script_snapshot()
        branch = self.repository.get_branch(SCRIPT_BRANCH)
        # A branch at ``sha`` lacks only the script, so its commit is small.
        if branch is not None:
            change_count = len(find_changes(snapshot, branch))
            if change_count > publication_plan.MOST_FILES_PER_COMMIT:
                self.repository.drop_branch(SCRIPT_BRANCH)
                branch = None
        if branch is None:
            branch = self.repository.make_branch(SCRIPT_BRANCH, sha)
        changes = find_changes(snapshot, branch)
        if changes:
            message = f"{self.manifest.name} {self.tag}: loading script"
            self.repository.commit(branch, SCRIPT_BRANCH, changes, snapshot, message)

    def _drop_next(self, sha: str) -> None:
        """Delete the branch ``next`` if the branch holds this run, or only commits of main.

        A branch with the shards of a later version or of another recipe stays. ``sha``: the newest
        commit of main.
        """
        branch = self.repository.get_branch(GROWING_BRANCH)
        if branch is None:
            return
        is_ours = self._is_ours(read_remote_manifest(self.repository, branch))
        if is_ours or branch.sha in [item.commit_id for item in self.repository.list_commits(sha)]:
            self.repository.drop_branch(GROWING_BRANCH)


def read_remote_manifest(repository: Repository, remote: Remote) -> Manifest | None:
    """Return the manifest of a commit; None when the manifest is missing or malformed.

    For None, ``find_edits`` reports every file of the commit but ``HUB_FILES`` as a person's.
    """
    content = repository.read_file(remote, MANIFEST)
    if content is None:
        return None
    try:
        return Manifest.model_validate_json(content)
    except ValueError:
        return None


def require_replaceable(
    repository: Repository, branch: str, manifest: Manifest | None, version: str
) -> None:
    """Raise RunError when a branch holds an unfinished run or a later version.

    The caller has found that the branch's run differs from the run to publish: it has another
    recipe, or a later version.

    Args:
        repository: the repository on the Hub.
        branch: the branch's name.
        manifest: the branch's manifest; None raises nothing.
        version: the version to publish.
    """
    if manifest is None:
        return
    target = f"{repository.repo_id}: branch {branch}"
    if not manifest.complete:
        run = f"{manifest.name} v{manifest.version}"
        raise RunError(
            target,
            f"holds an unfinished run of another recipe ({run})",
            hint="finish that one, or use --force to replace it",
        )
    if is_later(manifest.version, version):
        raise RunError(
            target,
            f"holds v{manifest.version}, which is later than v{version}",
            hint="raise `version` in the recipe, or use --force to go back",
        )


def is_later(version: str, than: str) -> bool:
    """Return whether ``version`` is later than the version ``than``, number by number."""
    return parse_version(version) > parse_version(than)


def parse_version(text: str) -> list[int]:
    """Return the numbers of a version or of its tag, for comparisons: v1.2.0 → [1, 2, 0]."""
    return [int(part) for part in re.findall(r"[0-9]+", text)]


def find_edits(
    repository: Repository, remote: Remote, manifest: Manifest | None, snapshot: Snapshot
) -> Edits:
    """Return path → phrase for the changes that a person made after the last publication.

    A file that a person deleted is not reported.

    Args:
        repository: the repository on the Hub.
        remote: the state of the branch.
        manifest: the branch's manifest; None: the project published none of the branch's files.
        snapshot: the files to publish. A file of the manifest that is equal to the snapshot's is no
            edit, and neither is an equal card.
    """
    ours = {file.path: file.sha256 for file in manifest.files} if manifest else {}
    edits: Edits = {}
    # Compare each file with the manifest; the card's stamp covers the files beside the manifest.
    for path, entry in sorted(remote.files.items()):
        if path in HUB_FILES or (manifest and is_beside(path)):
            continue
        if path not in ours:
            is_script = path.endswith(".py") and "/" not in path
            edits[path] = EDIT_SCRIPT_ON_MAIN if is_script else "not ours"
        elif path in snapshot and snapshot[path].is_same_as(entry):
            continue
        elif _hash_remote_file(repository, remote, entry) != ours[path]:
            edits[path] = "changed by hand"
    return edits | _find_card_edits(repository, remote, snapshot)


def _hash_remote_file(repository: Repository, remote: Remote, entry: "RepoFile") -> str:
    if entry.lfs:
        return entry.lfs.sha256
    return hashlib.sha256(repository.read_file(remote, entry.path) or b"").hexdigest()


def _find_card_edits(repository: Repository, remote: Remote, snapshot: Snapshot) -> Edits:
    """Return a person's edit of the card, or of the facts in the card's stamp.

    {} for an unedited card, for one that is equal to the snapshot's, and without a card on the
    branch.
    """
    if CARD not in remote.files:
        return {}
    if CARD in snapshot and snapshot[CARD].is_same_as(remote.files[CARD]):
        return {}
    stamp = read_stamp((repository.read_file(remote, CARD) or b"").decode("utf-8", "replace"))
    if stamp is None:
        return {CARD: "edited by hand"}
    # The card's text is unedited: compare the branch's files with the card's digest of facts.
    measured = [repository.read_file(remote, path) for path in MEASURED]
    if stamp.facts == hash_facts(repository.read_file(remote, MANIFEST) or b"", *measured):
        return {}
    return {MANIFEST: "this or a results file is not the one that the card was written from"}

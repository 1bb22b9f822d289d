"""Publication of a finished run directory; ``sts-dino publish`` is the command.

The run directory is copied to the Hub in one atomic commit on the parent it was planned on, and tagged with its
version; very many files take several commits (``hub.client.plan.steps``), and the last one is tagged. Files on the Hub
are not sent again; files that left the artefact are deleted. Old versions of ``datasets`` find a loading script on the
branch ``script``, next to the same files.

Nothing of another person is overwritten silently: not a file, an edit, an unfinished run or a later version.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hub import cli
from hub.client import plan as batches
from hub.client.connection import account
from hub.client.plan import (
    BESIDE,
    CARD,
    KEPT,
    MEASURED,
    Changes,
    Content,
    Plan,
    Remote,
    Snapshot,
    compare,
    facts_digest,
    is_beside,
    read_stamp,
)
from hub.client.repository import MAIN, Repository
from hub.client.retry import RetryPolicy
from hub.contract import run_dir
from hub.contract.measured import INPUT
from hub.contract.recipe import DatasetRecipe, ModelRecipe, config_features
from hub.contract.recipe_file import fingerprint, load_recipe
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from hub.contract.schema import same_schema
from hub.contract.shards import parquet_schema
from hub.errors import InputError, RunError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SCRIPT, NEXT = "script", "next"  # branches: for old versions of datasets; of a new version while it grows
VERSION = "raise `version` in the recipe"
SCRIPT_ON_MAIN = "a script on main: datasets 4 and later refuse to load the repository"
Edits = dict[str, str]  # path → what a person did to it
BASELINE = "is a baseline, which is not published: nothing was trained, and its weights are somebody else's"


@dataclass(frozen=True)
class Options:
    """How to publish. ``force`` replaces what a person changed on the Hub.

    ``public``: None makes a new repository private and leaves an existing one as it is; True and False refuse one of
    the other visibility.
    ``script``: the loading script and the modules it imports, name → text.
    """

    public: bool | None = None
    force: bool = False
    script: Mapping[str, str] = field(default_factory=dict)
    patience: RetryPolicy = field(default_factory=RetryPolicy)


def publish(api: "HfApi", directory: Path, org: str | None, yes: bool, options: Options | None = None) -> Plan:
    """Plan the publication of a run directory and, with ``yes``, carry it out.

    Raises:
        InputError: the run is unfinished, has no card, or recipe, manifest, files and card do not agree.
        RunError: the version's tag exists and marks other bytes, or a person changed the repository since.
        HfHubHTTPError: the Hub refused.
    """
    options = options or Options()
    manifest = checked(directory)
    namespace = org or options.patience.until_done("ask for the user", lambda: account(api).name)
    release = Release(Repository(api, f"{namespace}/{manifest.name}", manifest.kind), directory, manifest, options)
    release.check_card()
    return options.patience.until_done(f"publish {release.repository.repo_id}", lambda: release.attempt(yes))


def checked(directory: Path) -> Manifest:
    """The manifest of a run directory that is ready to be published. Raises InputError otherwise."""
    manifest = run_dir.require_complete(directory)
    changed = ", ".join(run_dir.changed_files(directory, manifest)[:5])
    if changed:
        raise InputError(directory, f"files differ from the manifest: {changed}", hint="run the stage that made them")
    path = directory / RECIPE
    recipe = load_recipe(path, DatasetRecipe) if manifest.kind == "dataset" else load_recipe(path, ModelRecipe)
    if fingerprint(recipe, manifest.inputs) != manifest.fingerprint or not run_dir.holds_recipe(directory, manifest):
        hint = "change the recipe where it came from and run its stage again: only what is missing is made"
        raise InputError(path, "is not the recipe that the manifest's run was made by", hint=hint)
    if isinstance(recipe, ModelRecipe) and recipe.is_baseline:
        raise InputError(directory, BASELINE, hint="its scores are in results.json, for tables and comparisons")
    if isinstance(recipe, DatasetRecipe):
        for file in (file for file in manifest.files if file.config is not None):
            wanted = config_features(file.config or "", recipe).arrow_schema
            found = parquet_schema(directory / file.path)
            if not same_schema(found, wanted):
                problem = f"has the columns {', '.join(found.names)}, which are not those of {file.config}"
                allowed, hint = ", ".join(wanted.names), "run the stage that made it"
                raise InputError(directory / file.path, problem, allowed=allowed, hint=hint)
    return manifest


def snapshot_of(directory: Path, manifest: Manifest) -> dict[str, Content]:
    """Everything that a finished run publishes: the manifest's files and the fixed ones beside them."""
    beside = {path.relative_to(directory).as_posix() for pattern in BESIDE for path in directory.glob(pattern)}
    contents = {path: Content(directory / path) for path in beside}
    return contents | {file.path: Content(directory / file.path, file.sha256) for file in manifest.files}


@dataclass
class Release:
    """One publication of a finished run. ``attempt`` plans anew whenever it is called, so it may be called again."""

    repository: Repository
    directory: Path
    manifest: Manifest
    options: Options

    def __post_init__(self) -> None:
        self.snapshot = snapshot_of(self.directory, self.manifest)
        self.tag = f"v{self.manifest.version}"
        self._first: Plan | None = None  # a later attempt may find that the work of the first was done after all

    def check_card(self) -> None:
        """Raise InputError unless the card was written for this repository from what the run directory holds."""
        card = self.directory / CARD
        hint = f"run: sts-dino card {self.directory} --repo-id {self.repository.repo_id}"
        if not card.is_file():
            raise InputError(card, "no card", hint=hint)
        stamp = read_stamp(card.read_text(encoding="utf-8"))
        if stamp is None:
            raise InputError(card, "was edited by hand: prose belongs into the recipe's about:", hint=hint)
        measured = [self.directory / name for name in MEASURED]
        contents = [path.read_bytes() if path.is_file() else None for path in measured]
        if stamp.facts != facts_digest((self.directory / MANIFEST).read_bytes(), *contents):
            held = f"{MANIFEST}, {', '.join(MEASURED[:-1])} and {MEASURED[-1]} hold now"
            raise InputError(card, f"was written from other facts than {held}", hint=hint)
        if stamp.repo_id != self.repository.repo_id:
            raise InputError(card, f"is that of {stamp.repo_id}, not of {self.repository.repo_id}", hint=hint)

    def attempt(self, yes: bool) -> Plan:
        """Compare the run with the Hub; with ``yes``, do what is missing. Returns the plan of the first attempt."""
        plan = self.plan()
        self._first = self._first or plan
        if not yes:
            return plan
        if plan.edits and not self.options.force:
            cli.say(str(plan))
            found = ", ".join(f"{path} ({what})" for path, what in plan.edits.items())
            hint = "look at it (without --yes, nothing is sent), then use --force to replace it"
            raise RunError(self.repository.repo_id, f"was changed by hand since it was published: {found}", hint=hint)
        remote = plan.remote or self.repository.create(self.options.public)
        sha, message = remote.sha, f"{self.manifest.name} {self.tag}"
        for step in self._steps(remote):
            sha = self.repository.commit(Remote(sha, {}), MAIN, step.changes, step.snapshot, message + step.progress)
            if step.progress:
                cli.say(f"{self.repository.repo_id}: {self.tag}{step.progress} published")
        if plan.tag:
            self.repository.set_tag(plan.tag, sha)
        if self.options.script:
            self._renew_script(sha)
        self._drop_next(sha)
        return self._first

    def _steps(self, remote: Remote) -> list[batches.Step]:
        return batches.steps(self.snapshot, remote, self.manifest, self.repository.repo_id)

    def plan(self) -> Plan:
        """What ``attempt`` would do now.

        Raises RunError when the tag exists and marks other bytes, or when main holds an unfinished run of another
        recipe or a later version (but for ``force``).
        """
        self.repository.require_visibility(self.options.public)
        remote = self.repository.branch()
        changes = compare(self.snapshot, remote)
        edits: Edits = {}
        if remote:
            there = remote_manifest(self.repository, remote)
            if not self.options.force and not self._is_ours(there):
                check_place(self.repository, MAIN, there, self.manifest.version)
            edits = edits_since(self.repository, remote, there, self.snapshot)
        return Plan(
            self.repository.repo_id,
            self.manifest.kind,
            remote,
            changes,
            self._missing_tag(remote, changes),
            self._needs_script(remote, changes),
            edits,
            sum(self.snapshot[path].size for path in (*changes.added, *changes.replaced)),
            len(self._steps(remote or Remote("", {}))),
        )

    def _is_ours(self, manifest: Manifest | None) -> bool:
        """Whether a manifest is of these rows or weights, and of no later version of them."""
        same = manifest is not None and manifest.fingerprint == self.manifest.fingerprint
        return same and manifest is not None and not is_later(manifest.version, self.manifest.version)

    def _missing_tag(self, remote: Remote | None, changes: Changes) -> str | None:
        tagged = self.repository.tags().get(self.tag) if remote else None
        if remote is None or tagged is None:
            return self.tag
        at_tag = changes if tagged == remote.sha else compare(self.snapshot, self.repository.at(tagged))
        if at_tag:
            what = ", ".join((*at_tag.added, *at_tag.replaced, *at_tag.deleted)[:5])
            hint = "drop again with a later --drop-version" if INPUT in self.manifest.inputs else VERSION
            place = f"{self.repository.repo_id}: tag {self.tag}"
            raise RunError(place, f"exists and marks other content ({what})", hint=hint)
        return None

    def _with_script(self) -> Snapshot:
        return self.snapshot | {name: Content(text.encode()) for name, text in self.options.script.items()}

    def _needs_script(self, remote: Remote | None, changes: Changes) -> bool:
        if not self.options.script:
            return False
        there = self.repository.branch(SCRIPT) if remote and not changes else None
        return there is None or bool(compare(self._with_script(), there))

    def _renew_script(self, sha: str) -> None:
        """The branch ``script``: cut from main the first time, then always main's files and the script, atomically."""
        there = self.repository.branch(SCRIPT)
        if there is not None and len(compare(self._with_script(), there)) > batches.FILES:
            self.repository.drop_branch(SCRIPT)  # too much for one commit: cut again
            there = None
        if there is None:
            there = self.repository.make_branch(SCRIPT, sha)
        snapshot = self._with_script()
        changes = compare(snapshot, there)
        if changes:
            message = f"{self.manifest.name} {self.tag}: loading script"
            self.repository.commit(there, SCRIPT, changes, snapshot, message)

    def _drop_next(self, sha: str) -> None:
        """Remove the branch ``next``: this run grew there, or nothing did. Another version may still grow there."""
        ahead = self.repository.branch(NEXT)
        if ahead is None:
            return
        ours = self._is_ours(remote_manifest(self.repository, ahead))
        if ours or ahead.sha in [commit.commit_id for commit in self.repository.commits(sha)]:
            self.repository.drop_branch(NEXT)


def remote_manifest(repository: Repository, remote: Remote) -> Manifest | None:
    """The manifest of a branch; None when it has none that can be read."""
    content = repository.read(remote, MANIFEST)
    try:
        return Manifest.model_validate_json(content) if content is not None else None
    except ValueError:
        return None


def check_place(repository: Repository, branch: str, there: Manifest | None, version: str) -> None:
    """Raise RunError when the run of another recipe that stands on a branch is unfinished, or of a later version."""
    place = f"{repository.repo_id}: branch {branch}"
    if there is not None and not there.complete:
        found = f"holds an unfinished run of another recipe ({there.name} v{there.version})"
        raise RunError(place, found, hint="finish that one, or use --force to replace it")
    if there is not None and is_later(there.version, version):
        found = f"holds v{there.version}, which is later than v{version}"
        raise RunError(place, found, hint="raise `version` in the recipe, or use --force to go back")


def is_later(version: str, than: str) -> bool:
    """Whether one version comes after another."""
    one, other = ([int(part) for part in re.findall(r"[0-9]+", text)] for text in (version, than))
    return one > other


def edits_since(repository: Repository, remote: Remote, manifest: Manifest | None, snapshot: Snapshot) -> Edits:
    """Return what a person changed on the branch since it was last published.

    ``manifest`` is the branch's; without one, no file there is ours. A file as in the snapshot is not looked at.
    """
    ours = {file.path: file.sha256 for file in manifest.files} if manifest else {}
    edits: Edits = {}
    for path, entry in sorted(remote.files.items()):
        if path in KEPT or (manifest and is_beside(path)):
            continue
        if path not in ours:
            script = path.endswith(".py") and "/" not in path
            edits[path] = SCRIPT_ON_MAIN if script else "not ours"
        elif not (path in snapshot and snapshot[path].equals(entry)):
            digest = entry.lfs.sha256 if entry.lfs else hashlib.sha256(repository.read(remote, path) or b"").hexdigest()
            edits |= {path: "changed by hand"} if digest != ours[path] else {}
    if CARD not in remote.files or (CARD in snapshot and snapshot[CARD].equals(remote.files[CARD])):
        return edits
    stamp = read_stamp((repository.read(remote, CARD) or b"").decode("utf-8", "replace"))
    if stamp is None:
        return {**edits, CARD: "edited by hand"}
    measured = [repository.read(remote, path) for path in MEASURED]
    if stamp.facts != facts_digest(repository.read(remote, MANIFEST) or b"", *measured):
        edits[MANIFEST] = "this or results.json was changed by hand: the card was written from others"
    return edits

"""Incremental publication of a dataset while it is generated: one atomic commit for each batch of finished shards.

The generator writes shards and then names them in manifest.json. The publisher reads the manifest, a whole state of the
dataset: its files exist and never change. The generation continues whatever the Hub answers, and finished shards are
published once the Hub accepts them again. ``hub.client.publish`` does the release at the end, on the same repository.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from hub import cli
from hub.client import plan as batches
from hub.client.connection import in_words, reason
from hub.client.plan import CARD, Changes, Content, Remote, Snapshot, compare
from hub.client.publish import Options, remote_manifest
from hub.client.repository import MAIN, Repository
from hub.client.retry import CommitBudget
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest, holds_recipe, manifest_text, read_manifest
from hub.contract.schema import base_config
from hub.errors import RunError, StsDinoError
from release.preflight import refuse_edits

POLL_SECONDS = 1.0
REFUSED_SECONDS = 600.0  # until a lasting refusal is tried again: somebody may have fixed its cause
Render = Callable[[Manifest, datetime], dict[str, bytes]]


@dataclass
class IncrementalPublisher:
    """Commits new files of a run directory to a branch of a repository, within a budget of commits per hour."""

    repository: Repository
    directory: Path
    branch: str
    render: Render
    options: Options
    per_hour: int
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self._budget: CommitBudget | None = None  # read from the repository when it is first needed
        self._published: tuple[str, ...] = ()  # paths in the newest commit
        self._own = ""  # our newest commit
        self._looked_at: tuple[int, int] | None = None  # stamp of a manifest without new files
        self._failures = 0  # in a row
        self._logged = set[str]()  # messages since the last success

    def follow(self, running: Callable[[], bool]) -> None:
        """Publish the growing run while ``running``; the pauses grow with consecutive failures."""
        while running():
            left = self.attempt()
            while left > 0 and running():
                step = min(left, POLL_SECONDS * self.options.patience.scale)
                time.sleep(step)
                left -= step

    def attempt(self) -> float:
        """``tick``, and the seconds until the next. A failure or refusal of the Hub is logged once."""
        try:
            self.tick()
        except Exception as error:
            known = in_words(f"publish {self.repository.repo_id}", error)
            if known is None and isinstance(error, OSError) and error.errno is not None:  # of the local disk
                known = RunError(error.filename or self.directory, os.strerror(error.errno))
            if known is None:
                raise
            self._failures += 1
            return self._seconds_until_retry(error, known)
        return POLL_SECONDS * self.options.patience.scale

    def _seconds_until_retry(self, error: Exception, known: StsDinoError) -> float:
        """Log the failure, unless it was logged since the last success; the seconds to wait."""
        patience = self.options.patience
        passes = not isinstance(error, StsDinoError) and patience.passes(error)
        if passes:
            message = f"publish {self.repository.repo_id}: {reason(error)}; the generation continues, published later"
        else:
            message = f"warning: not published while it grows: {known}"
            message += "; the generation continues, and the commit is retried"
        if message not in self._logged:
            self._logged.add(message)
            cli.say(message)
        return patience.pause(error, self._failures) if passes else REFUSED_SECONDS * patience.scale

    def tick(self) -> bool:
        """Commit new files when the budget allows; return whether it did.

        Called every second. A manifest may name very many files, so it is read only when it changed and the budget
        allows a commit.
        """
        if self._budget and self._budget.next_time(self.clock()) > self.clock():
            return False
        stamp = _stamp(self.directory / MANIFEST)
        if stamp == self._looked_at:
            return False
        manifest = read_manifest(self.directory)
        paths = tuple(file.path for file in manifest.files) if manifest else ()
        if manifest is None or not _loads(manifest) or paths == self._published:
            self._looked_at = stamp
            return False
        if not holds_recipe(self.directory, manifest):  # its start is just writing both anew
            return False
        news = self._commit(manifest, paths)
        self._failures = 0
        self._logged.clear()
        self.options.patience.done()
        return news

    def _commit(self, manifest: Manifest, paths: tuple[str, ...]) -> bool:
        remote = self._head()
        at = self.clock()
        if self._budget is None:
            self._budget = CommitBudget(self.per_hour, [c.created_at for c in self.repository.commits(remote.sha)[:-1]])
        if self._budget.next_time(at) > at:
            return False
        shown = first_batch(manifest, remote)
        snapshot = self._snapshot(shown, at)
        if remote.sha != self._own:
            self._check(remote, manifest, snapshot)
        changes = compare(snapshot, remote)
        news = bool(changes) and changes != Changes(replaced=(CARD,))  # of a card alone, only the time is new
        if news:
            progress = "{shards_done} of {shards_total} shards".format(**shown.counts)
            message = f"{manifest.name} v{manifest.version}: {progress}"
            self._own = self.repository.commit(remote, self.branch, changes, snapshot, message)
            self._budget.spend(at)
            cli.say(f"{self.repository.repo_id}: {progress} published")
        self._published = paths if shown is manifest else ()  # the rest with the next commit
        return news

    def _head(self) -> Remote:
        remote = self.repository.branch(self.branch)
        if remote is not None:
            return remote
        if self.branch == MAIN:
            return self.repository.create(self.options.public)
        return self.repository.make_branch(self.branch, self.repository.seen(MAIN).sha)

    def _snapshot(self, manifest: Manifest, at: datetime) -> Snapshot:
        files = {file.path: Content(self.directory / file.path, file.sha256) for file in manifest.files}
        card = {path: Content(content) for path, content in self.render(manifest, at).items()}
        recipe = Content((self.directory / RECIPE).read_bytes())
        return {**files, **card, RECIPE: recipe, MANIFEST: Content(manifest_text(manifest).encode())}

    def _check(self, remote: Remote, manifest: Manifest, snapshot: Snapshot) -> None:
        """Raise RunError when a person or another process put something there that this commit would take away."""
        if self.options.force:
            return
        there = remote_manifest(self.repository, remote)
        refuse_edits(self.repository, remote, there, snapshot, self.branch)
        if there is None or there.fingerprint != manifest.fingerprint:
            return
        if not there.complete or there.version == manifest.version:  # else another version with the same rows
            ahead = {file.path for file in there.files} - {file.path for file in manifest.files}
            if ahead:
                raise RunError(
                    f"{self.repository.repo_id}: {self.branch}",
                    f"holds {len(ahead)} files of this run that are not here: another process publishes it",
                    hint="stop one of the two; an empty run directory goes on from what is published",
                )


def first_batch(manifest: Manifest, remote: Remote) -> Manifest:
    """The manifest of a growing run, cut to the shards that one commit can bring (``hub.client.plan``)."""
    new = [file for file in manifest.files if file.path not in remote.files]
    if len(new) <= batches.FILES:
        return manifest
    new.sort(key=lambda file: (PurePosixPath(file.path).name, file.path))  # raw and rejected rows of a shard together
    left = {file.path for file in new[batches.FILES :]}
    undone = sum(base_config(file.config or "") == "raw" for file in new[batches.FILES :])
    files = tuple(file for file in manifest.files if file.path not in left)
    counts = {**manifest.counts, "shards_done": manifest.counts["shards_done"] - undone}
    return manifest.model_copy(update={"files": files, "counts": counts})


def _stamp(path: Path) -> tuple[int, int] | None:
    """Inode and modification time, which tell a file from the one that replaces it; None when it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _loads(manifest: Manifest) -> bool:
    """Whether an unfinished run can be loaded: not before its first shard, nor between the last counts and the end."""
    return not manifest.complete and "shards_done" in manifest.counts and any(file.rows for file in manifest.files)

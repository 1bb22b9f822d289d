"""Incremental publication of a dataset while it is generated, in atomic commits of finished shards.

The generator writes shards and then names them in manifest.json. The publisher reads the manifest:
all files that it names exist and never change. The generation continues whatever the Hub answers,
and finished shards are published once the Hub accepts them again.
``sts_dino.hub.client.publish`` does the release at the end, on the same repository.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from sts_dino.hub.client import plan as publication_plan
from sts_dino.hub.client.connection import convert_error, describe_failure
from sts_dino.hub.client.plan import CARD, Changes, Content, Remote, Snapshot, find_changes
from sts_dino.hub.client.publish import Options, read_remote_manifest
from sts_dino.hub.client.repository import MAIN, Repository
from sts_dino.hub.client.retry import CommitBudget
from sts_dino.hub.contract.run_dir import (
    MANIFEST,
    RECIPE,
    Manifest,
    format_manifest,
    has_current_recipe,
    read_manifest,
)
from sts_dino.hub.contract.schema import get_base_config
from sts_dino.hub.errors import RunError, StsDinoError
from sts_dino.release.preflight import refuse_edits

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RETRY_AFTER_REFUSAL_SECONDS = 600.0  # somebody may have fixed the cause by then
# Function of a manifest and a time (UTC) that returns the files of the card: path → content
Render = Callable[[Manifest, datetime], dict[str, bytes]]


@dataclass
class IncrementalPublisher:
    """Commits new files of a run directory to a branch, within a budget of commits per hour.

    Args:
        repository: the dataset's repository, which is created where it is missing.
        directory: the run directory that grows.
        branch: the branch to commit to; it is created where it is missing.
        render: returns the card's files for a manifest and a time (UTC).
        options: the options of the publication.
        per_hour: the most commits per hour.
        clock: returns the time (UTC).
    """

    repository: Repository
    directory: Path
    branch: str
    render: Render
    options: Options
    per_hour: int
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    # The fields below are state, not arguments. The budget is read from the repository at first use
    _budget: CommitBudget | None = field(default=None, init=False)
    _published: tuple[str, ...] = field(default=(), init=False)  # paths in the newest commit
    _last_commit: str = field(default="", init=False)  # the newest commit that this process made
    # Stamp of the last manifest that was read and had no new files
    _last_stamp: tuple[int, int] | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)  # since the last success
    _logged: set[str] = field(default_factory=set, init=False)  # messages since the last success

    def follow(self, is_running: Callable[[], bool]) -> None:
        """Publish the growing run until ``is_running()`` is False.

        The pauses between two tries grow with consecutive outages. A pause ends early when the run
        ends. Raises the errors of ``try_publish``.
        """
        poll_seconds = POLL_SECONDS * self.options.patience.scale
        while is_running():
            pause = self.try_publish()
            while pause > 0 and is_running():
                step = min(pause, poll_seconds)
                time.sleep(step)
                pause -= step

    def try_publish(self) -> float:
        """Publish new files, and return the seconds until the next try.

        A failure or refusal of the Hub, an error of this project and an unreadable file are logged,
        equal messages once until the next success. All other errors are raised.
        """
        try:
            self.publish_new_files()
        except Exception as error:
            # Only errors of the Hub and of files have a problem to log
            problem = convert_error(f"publish {self.repository.repo_id}", error)
            if problem is None and isinstance(error, OSError) and error.errno is not None:
                problem = RunError(error.filename or self.directory, os.strerror(error.errno))
            if problem is None:
                raise
            self._failures += 1
            return self._log_failure(error, problem)
        return POLL_SECONDS * self.options.patience.scale

    def _log_failure(self, error: Exception, problem: StsDinoError) -> float:
        """Log the failure, and return the seconds until the next try.

        Equal messages are logged once until the next success. An outage is retried after a pause of
        the retry policy, everything else after ``RETRY_AFTER_REFUSAL_SECONDS``.

        Args:
            error: the error of the Hub or a file.
            problem: the same error for the user.
        """
        patience = self.options.patience
        is_temporary = not isinstance(error, StsDinoError) and patience.should_retry(error)
        if is_temporary:
            level = logging.INFO
            failure = f"publish {self.repository.repo_id}: {describe_failure(error)}"
            message = f"{failure}; the generation continues, published later"
            pause = patience.compute_pause(error, self._failures)
        else:
            level = logging.WARNING
            message = f"not published while it grows: {problem}"
            message += "; the generation continues, and the commit is retried"
            pause = RETRY_AFTER_REFUSAL_SECONDS * patience.scale
        if message not in self._logged:
            self._logged.add(message)
            logger.log(level, message)
        return pause

    def publish_new_files(self) -> bool:
        """Commit new files when the budget allows; return whether a commit was made.

        ``follow`` calls it about every second. A manifest may name very many files, so it is read
        only when it changed and the budget allows a commit. Raises the errors of ``_commit``, and
        InputError for a damaged manifest.
        """
        if self._budget and self._budget.compute_next_time(self.clock()) > self.clock():
            return False

        # Read the manifest unless it is the one that was read last.
        stamp = _read_stamp(self.directory / MANIFEST)
        if stamp == self._last_stamp:
            return False
        manifest = read_manifest(self.directory)
        paths = tuple(file.path for file in manifest.files) if manifest else ()
        if manifest is None or not _is_growing(manifest) or paths == self._published:
            self._last_stamp = stamp
            return False
        # A start of the generation writes manifest and recipe one after the other: wait for both.
        if not has_current_recipe(self.directory, manifest):
            return False

        has_committed = self._commit(manifest, paths)
        self._failures = 0
        self._logged.clear()
        self.options.patience.record_success()
        return has_committed

    def _commit(self, manifest: Manifest, paths: tuple[str, ...]) -> bool:
        """Commit the first batch of new files, and return whether a commit was made.

        No commit is made when the budget forbids one or nothing is new. Raises RunError as
        ``_refuse_losses``, the errors of ``render``, and those of the Hub's client library.

        Args:
            manifest: the manifest of the run.
            paths: the paths of the manifest's files.
        """
        # Count the commits of earlier processes, too. The Hub itself made the oldest commit.
        remote = self._require_branch()
        now = self.clock()
        if self._budget is None:
            commits = self.repository.list_commits(remote.sha)[:-1]
            self._budget = CommitBudget(self.per_hour, [commit.created_at for commit in commits])
        if self._budget.compute_next_time(now) > now:
            return False

        # Plan the commit
        batch = cut_to_batch(manifest, remote)
        snapshot = self._make_snapshot(batch, now)
        if remote.sha != self._last_commit:
            self._refuse_losses(remote, manifest, snapshot)
        changes = find_changes(snapshot, remote)
        # Every card has the time of its commit, so a change of the card alone is not published.
        is_new = bool(changes) and changes != Changes(replaced=(CARD,))

        # Make the commit
        if is_new:
            progress = "{shards_done} of {shards_total} shards".format(**batch.counts)
            message = f"{manifest.name} v{manifest.version}: {progress}"
            self._last_commit = self.repository.commit(
                remote, self.branch, changes, snapshot, message
            )
            self._budget.count_commit(now)
            logger.info(f"{self.repository.repo_id}: {progress} published")
        self._published = paths if batch is manifest else ()  # the next commit has the rest
        return is_new

    def _require_branch(self) -> Remote:
        """Return the newest commit of the branch, which is created where it is missing.

        The branch ``main`` is created with its repository. Another branch begins at the newest
        commit of ``main``; ConnectionError is raised when ``main`` is missing.
        """
        remote = self.repository.get_branch(self.branch)
        if remote is not None:
            return remote
        if self.branch == MAIN:
            return self.repository.create(self.options.public)
        return self.repository.make_branch(self.branch, self.repository.require_branch(MAIN).sha)

    def _make_snapshot(self, manifest: Manifest, now: datetime) -> Snapshot:
        """Return path → content of the branch after the commit of ``manifest`` at ``now`` (UTC).

        The files are the manifest's data files, the card's files, the recipe and the manifest.
        """
        snapshot = {
            file.path: Content(self.directory / file.path, file.sha256) for file in manifest.files
        }
        for path, content in self.render(manifest, now).items():
            snapshot[path] = Content(content)
        snapshot[RECIPE] = Content((self.directory / RECIPE).read_bytes())
        snapshot[MANIFEST] = Content(format_manifest(manifest).encode())
        return snapshot

    def _refuse_losses(self, remote: Remote, manifest: Manifest, snapshot: Snapshot) -> None:
        """Raise RunError when a commit would remove what a person or another process added.

        With ``--force`` nothing is refused.

        Args:
            remote: the newest commit of the branch, the parent of the commit to make.
            manifest: the manifest of the run.
            snapshot: the branch's content after the commit to make.
        """
        if self.options.force:
            return
        published = read_remote_manifest(self.repository, remote)
        refuse_edits(self.repository, remote, published, snapshot, self.branch)

        # Only another process that publishes this run has files that are missing here
        if published is None or published.fingerprint != manifest.fingerprint:
            return
        if published.complete and published.version != manifest.version:
            return  # another version with the same rows
        missing = {file.path for file in published.files} - {file.path for file in manifest.files}
        if missing:
            problem = (
                f"holds {len(missing)} files of this run that are not here: "
                "another process publishes it"
            )
            hint = "stop one of the two; an empty run directory resumes from what is published"
            raise RunError(f"{self.repository.repo_id}: {self.branch}", problem, hint=hint)


def cut_to_batch(manifest: Manifest, remote: Remote) -> Manifest:
    """Cut the manifest of a growing run to the files of ``remote`` and one batch of new files.

    A batch has at most ``MOST_FILES_PER_COMMIT`` files. A manifest whose new files fit into one
    batch is returned unchanged. The count of finished shards is reduced by those that are cut off.
    """
    new = [file for file in manifest.files if file.path not in remote.files]
    if len(new) <= publication_plan.MOST_FILES_PER_COMMIT:
        return manifest
    # Order the files by shard, so that a batch splits at most one shard's raw and rejected rows.
    new.sort(key=lambda file: (PurePosixPath(file.path).name, file.path))
    later = new[publication_plan.MOST_FILES_PER_COMMIT :]
    later_paths = {file.path for file in later}
    undone = sum(get_base_config(file.config or "") == "raw" for file in later)
    files = tuple(file for file in manifest.files if file.path not in later_paths)
    counts = {**manifest.counts, "shards_done": manifest.counts["shards_done"] - undone}
    return manifest.model_copy(update={"files": files, "counts": counts})


def _read_stamp(path: Path) -> tuple[int, int] | None:
    """Return a file's inode and modification time (ns), which change with every replacement.

    None for a missing file.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _is_growing(manifest: Manifest) -> bool:
    """Return whether a run is unfinished, and has the rows and the counts that its card needs."""
    if manifest.complete or "shards_done" not in manifest.counts:
        return False
    return any(file.rows for file in manifest.files)

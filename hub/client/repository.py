"""A repository on a Hub: the reads and writes of a publication. No other module writes to a Hub.

Every method makes one or a few requests through the official client library, and raises the
library's errors. ``sts_dino.hub.client.retry`` decides which errors are temporary;
``sts_dino.hub.client.connection`` converts the permanent ones.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants
from huggingface_hub.errors import (
    BadRequestError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from sts_dino.hub.client.connection import WrongAnswer
from sts_dino.hub.client.plan import Changes, Remote, Snapshot
from sts_dino.hub.errors import DISK_PROBLEMS, RunError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import GitCommitInfo

MAIN = "main"
COMMIT_ID = re.compile(r"[0-9a-f]{40}")


class Repository:
    """One repository on a Hub; ``kind`` is ``dataset`` or ``model``."""

    def __init__(self, api: "HfApi", repo_id: str, kind: str):
        self.api = api
        self.repo_id = repo_id
        self.kind = kind

    def get_branch(self, name: str = MAIN) -> Remote | None:
        """Return the newest commit of a branch with its files.

        Return None when the branch or the repository does not exist. Raises WrongAnswer for an
        answer without a commit id, and as ``get_commit``.
        """
        try:
            sha = self.api.repo_info(self.repo_id, repo_type=self.kind, revision=name).sha
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
        if not COMMIT_ID.fullmatch(str(sha)):
            raise WrongAnswer("a branch without a commit")
        return self.get_commit(str(sha))

    def require_branch(self, name: str) -> Remote:
        """Return the state of a branch that this process created.

        Raises ConnectionError, a temporary error, when the Hub does not list the branch yet.
        """
        remote = self.get_branch(name)
        if remote is None:
            raise ConnectionError(f"the branch {name} was made and cannot be seen yet")
        return remote

    def get_commit(self, sha: str) -> Remote:
        """Return a commit with its files.

        Raises WrongAnswer when the tree has no files, but the repository's info lists some.
        """
        from huggingface_hub.hf_api import RepoFile

        tree = self.api.list_repo_tree(
            self.repo_id, repo_type=self.kind, recursive=True, revision=sha
        )
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        if not files:
            info = self.api.repo_info(self.repo_id, repo_type=self.kind, revision=sha)
            if getattr(info, "siblings", None):
                # A plan on an empty tree would overwrite the files of other people.
                raise WrongAnswer("a list of files without any")
        return Remote(sha, files)

    def list_tags(self) -> dict[str, str]:
        """Return the name of each tag → its commit id."""
        references = self.api.list_repo_refs(self.repo_id, repo_type=self.kind)
        return {tag.name: tag.target_commit for tag in references.tags}

    def read_file(self, remote: Remote, path: str) -> bytes | None:
        """Return the content of a file at the commit ``remote``; None when the file is absent.

        Raises RunError when the local disk cannot hold the download.
        """
        if path not in remote.files:
            return None
        with unwrap_errors():
            local_path = self.api.hf_hub_download(
                self.repo_id, path, repo_type=self.kind, revision=remote.sha
            )
        return Path(local_path).read_bytes()

    def list_commits(self, revision: str) -> "list[GitCommitInfo]":
        """Return the commits of a revision, newest first.

        The Hub itself made the oldest commit, when it created the repository.
        """
        return self.api.list_repo_commits(self.repo_id, repo_type=self.kind, revision=revision)

    def create(self, public: bool | None) -> Remote:
        """Create the repository, private unless ``public``, and return its branch main.

        Raises RunError when the repository exists and this token cannot see it. Raises the Hub's
        error 409 when another process has just created it: the next plan finds the repository.
        Raises ConnectionError when the Hub does not list main yet.
        """
        try:
            self.api.create_repo(self.repo_id, repo_type=self.kind, private=not public)
        except HfHubHTTPError as error:
            # Among the answers with the status 409, only the one for a taken name has a ``url``.
            response = error.response
            is_taken = response.status_code == 409 and b'"url"' in response.content
            if is_taken and not self.api.repo_exists(self.repo_id, repo_type=self.kind):
                raise RunError(
                    self.repo_id,
                    "exists, but this token cannot see it",
                    hint="use a token with access to it, or another name in the recipe",
                ) from None
            raise
        return self.require_branch(MAIN)

    def require_visibility(self, public: bool | None) -> None:
        """Raise RunError when the repository exists with the opposite visibility.

        public: the wanted visibility; None accepts both.
        """
        if public is None:
            return
        try:
            info = self.api.repo_info(self.repo_id, repo_type=self.kind)
        except RepositoryNotFoundError:
            return
        wanted = "public" if public else "private"
        actual = "private" if info.private else "public"
        if actual != wanted:
            raise RunError(
                self.repo_id,
                f"is there already, and {actual}",
                hint=f"make it {wanted} on its settings page, or leave --{wanted} out",
            )

    def commit(
        self, remote: Remote, branch: str, changes: Changes, snapshot: Snapshot, message: str
    ) -> str:
        """Make one atomic commit and return its id.

        When ``remote`` is not the branch's newest commit, the Hub changes nothing and answers 412
        (HfHubHTTPError). Raises RunError for a failure of the local disk.

        Args:
            remote: the parent commit; its files do not matter.
            branch: the branch to commit to.
            changes: the paths to add, replace and delete.
            snapshot: the contents of the paths to add and replace.
            message: the commit's message.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        new_paths = (*changes.added, *changes.replaced)
        additions = [CommitOperationAdd(path, snapshot[path].data) for path in new_paths]
        deletions = [CommitOperationDelete(path) for path in changes.deleted]
        with unwrap_errors(self.repo_id):
            commit = self.api.create_commit(
                self.repo_id,
                [*additions, *deletions],
                repo_type=self.kind,
                revision=branch,
                parent_commit=remote.sha,
                commit_message=message,
            )
        return str(commit.oid)

    def set_tag(self, name: str, sha: str) -> None:
        """Tag the commit ``sha``.

        Raises the Hub's error 409 when the tag exists. Raises WrongAnswer when the Hub does not
        list the tag afterwards: the client library takes every answer with the status 200 for
        success.
        """
        self.api.create_tag(self.repo_id, tag=name, repo_type=self.kind, revision=sha)
        if self.list_tags().get(name) != sha:
            raise WrongAnswer(f"the tag {name} was set and is not there")

    def make_branch(self, name: str, sha: str) -> Remote:
        """Create a branch at the commit ``sha``, and return the branch's state.

        A branch that exists stays at its own commit. Raises the Hub's error 409 when another
        reference's name conflicts, as ``a`` with ``a/b``. Raises ConnectionError when the Hub does
        not list the branch yet.
        """
        try:
            self.api.create_branch(self.repo_id, branch=name, repo_type=self.kind, revision=sha)
        except HfHubHTTPError as error:
            if error.response.status_code != 409 or self.get_branch(name) is None:
                raise
        return self.require_branch(name)

    def drop_branch(self, name: str) -> None:
        """Delete a branch if the branch exists."""
        try:
            self.api.delete_branch(self.repo_id, branch=name, repo_type=self.kind)
        except RevisionNotFoundError:
            return


@contextmanager
def unwrap_errors(target: object = constants.HF_HOME) -> Iterator[None]:
    """Raise the cause of a misleading error of the client library in place of the error.

    The library reports a failed download as "not in the local cache", a failed upload as a
    RuntimeError, and a refused card as a ValueError. The cause is the Hub's answer or the lost
    connection. A failure of the local disk becomes a RunError that names the file, or ``target``
    when the library's error names no file. Other exceptions pass.
    """
    try:
        try:
            yield
        except (LocalEntryNotFoundError, RuntimeError, ValueError) as error:
            # A BadRequestError is a ValueError, too, but it is the Hub's answer itself.
            if isinstance(error.__cause__, Exception) and not isinstance(error, BadRequestError):
                raise error.__cause__ from None
            raise
    except OSError as error:
        # Errors of the Xet client have the number in their message, and no ``errno``.
        match = re.search(r"\(os error (\d+)\)", str(error))
        code = int(match[1]) if match else error.errno
        if code not in DISK_PROBLEMS:  # a connection's error
            raise
        hint = "HF_HOME and --artifacts choose folders; what the Hub has is not sent again"
        raise RunError(error.filename or target, DISK_PROBLEMS[code], hint=hint) from None

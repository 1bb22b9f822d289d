"""A repository on a Hub as the publisher sees it. The only module that writes to a Hub.

Every method is one or a few requests of the official client, and raises the client's own errors: ``hub.client.retry``
decides which of them pass, ``hub.client.connection`` words the others.
"""

import os
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

from hub.client.connection import WrongAnswer
from hub.client.plan import Changes, Remote, Snapshot
from hub.errors import RunError

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import GitCommitInfo

MAIN = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")


class Repository:
    """One repository: its branches as they are, and the few ways the project changes it."""

    def __init__(self, api: "HfApi", repo_id: str, kind: str):
        self.api, self.repo_id, self.kind = api, repo_id, kind

    def branch(self, name: str = MAIN) -> Remote | None:
        """The branch's head and files at one commit; None when the repository or the branch is not there."""
        try:
            sha = self.api.repo_info(self.repo_id, repo_type=self.kind, revision=name).sha
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
        if not COMMIT.fullmatch(str(sha)):
            raise WrongAnswer("a branch without a commit")
        return self.at(str(sha))

    def seen(self, name: str) -> Remote:
        """A branch that was made. Raises ConnectionError as long as the Hub does not show it: that passes."""
        remote = self.branch(name)
        if remote is None:
            raise ConnectionError(f"the branch {name} was made and cannot be seen yet")
        return remote

    def at(self, sha: str) -> Remote:
        """The files of a commit."""
        from huggingface_hub.hf_api import RepoFile

        tree = self.api.list_repo_tree(self.repo_id, repo_type=self.kind, recursive=True, revision=sha)
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        if not files and getattr(self.api.repo_info(self.repo_id, repo_type=self.kind, revision=sha), "siblings", None):
            raise WrongAnswer("a list of files without any")  # what is there would be taken for nobody's
        return Remote(sha, files)

    def tags(self) -> dict[str, str]:
        """Tag → commit."""
        return {ref.name: ref.target_commit for ref in self.api.list_repo_refs(self.repo_id, repo_type=self.kind).tags}

    def read(self, remote: Remote, path: str) -> bytes | None:
        """The bytes of a file of a commit; None when it has no such file."""
        if path not in remote.files:
            return None
        with unwrapped():
            found = self.api.hf_hub_download(self.repo_id, path, repo_type=self.kind, revision=remote.sha)
        return Path(found).read_bytes()

    def commits(self, revision: str) -> "list[GitCommitInfo]":
        """The commits of a revision, newest first. The last one is the Hub's own, made with the repository."""
        return self.api.list_repo_commits(self.repo_id, repo_type=self.kind, revision=revision)

    def create(self, public: bool | None) -> Remote:
        """Make the repository, private unless ``public``. The next plan finds one that another process just made (409).

        Raises RunError when it is there and this token cannot see it: no next plan would find it.
        """
        try:
            self.api.create_repo(self.repo_id, repo_type=self.kind, private=not public)
        except HfHubHTTPError as error:
            if _is_taken(error.response) and not self.api.repo_exists(self.repo_id, repo_type=self.kind):
                hint = "use a token with access to it, or another name in the recipe"
                raise RunError(self.repo_id, "exists, but this token cannot see it", hint=hint) from None
            raise
        return self.seen(MAIN)

    def require_visibility(self, public: bool | None) -> None:
        """Raise RunError when the repository is there and has the other visibility; None: either will do."""
        if public is None:
            return
        try:
            found = self.api.repo_info(self.repo_id, repo_type=self.kind)
        except RepositoryNotFoundError:
            return
        wanted, other = ("public", "private") if public else ("private", "public")
        if bool(found.private) == public:
            hint = f"make it {wanted} on its settings page, or leave --{wanted} out"
            raise RunError(self.repo_id, f"is there already, and {other}", hint=hint)

    def commit(self, remote: Remote, branch: str, changes: Changes, snapshot: Snapshot, message: str) -> str:
        """One atomic commit on ``remote``'s commit, or none at all when the branch has moved since (412). Its id."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        adds = [CommitOperationAdd(path, snapshot[path].data) for path in (*changes.added, *changes.replaced)]
        deletes = [CommitOperationDelete(path) for path in changes.deleted]
        with unwrapped(self.repo_id):
            done = self.api.create_commit(
                self.repo_id,
                [*adds, *deletes],
                repo_type=self.kind,
                revision=branch,
                parent_commit=remote.sha,
                commit_message=message,
            )
        return str(done.oid)

    def set_tag(self, name: str, sha: str) -> None:
        """Tag a commit; an existing tag is refused by the Hub (409) and found by the next plan.

        Raises WrongAnswer when the tag is not there afterwards: any 200 reads as "done".
        """
        self.api.create_tag(self.repo_id, tag=name, repo_type=self.kind, revision=sha)
        if self.tags().get(name) != sha:
            raise WrongAnswer(f"the tag {name} was set and is not there")

    def make_branch(self, name: str, sha: str) -> Remote:
        """Make a branch at a commit unless it is there. Another name in its way is refused by the Hub (409)."""
        try:
            self.api.create_branch(self.repo_id, branch=name, repo_type=self.kind, revision=sha)
        except HfHubHTTPError as error:
            if error.response.status_code != 409 or self.branch(name) is None:
                raise
        return self.seen(name)

    def drop_branch(self, name: str) -> None:
        """Remove a branch if it is there."""
        try:
            self.api.delete_branch(self.repo_id, branch=name, repo_type=self.kind)
        except RevisionNotFoundError:
            return


@contextmanager
def unwrapped(place: object = constants.HF_HOME) -> Iterator[None]:
    """The Hub's answer, or what broke the line, where the client hides it in another error.

    The client reports a failed download as "not in the local cache", which reads as "no such file", a failed upload as
    a RuntimeError, and a refused card as a ValueError. A failing local disk becomes a RunError: the client may not say
    which disk it is.
    """
    try:
        yield
    except (LocalEntryNotFoundError, RuntimeError, ValueError) as error:
        if isinstance(error.__cause__, Exception) and not isinstance(error, BadRequestError):
            raise error.__cause__ from None
        raise
    except OSError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        code = int(found[1]) if found else error.errno
        if code is None or isinstance(error, (ConnectionError, TimeoutError)):
            raise
        hint = "make room, or choose another folder (HF_HOME, --artifacts), and run it again: nothing is lost"
        raise RunError(error.filename or place, os.strerror(code), hint=hint) from None


def _is_taken(answer: "httpx2.Response") -> bool:
    """Whether a repository cannot be made because it is there: of all a 409 may mean, only that names its ``url``."""
    try:
        body = answer.json() if answer.status_code == 409 else None
    except ValueError:
        return False
    return isinstance(body, dict) and "url" in body

"""HTTP errors as the Hugging Face Hub words them, so that the official clients map them to their exceptions.

Clients distinguish errors by the ``X-Error-Code`` header only, so this module builds every error.
5xx answers are retried by the clients: no permanent condition may use one, except 507 (not in their retry list).
"""

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response


class CommandError(Exception):
    """A command that cannot run, in one line for a terminal. ``exit_code``: 2 for bad input, 1 for everything else."""

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code


class HubError(Exception):
    """An HTTP error: status, message, and the X-Error-Code that clients map to an exception class."""

    def __init__(
        self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None, **fields: str
    ):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.headers, self.fields = dict(headers or {}), fields

    def response(self) -> Response:
        """The HTTP answer; header values are one printable latin-1 line, or they could not be sent or read."""
        line = " ".join(self.message.split())[:500].encode("latin-1", "replace").decode("latin-1")
        line = "".join(character if character.isprintable() else "?" for character in line).strip()
        headers = {**self.headers, "X-Error-Message": line}
        if self.code:
            headers["X-Error-Code"] = self.code
        return JSONResponse({"error": self.message, **self.fields}, status_code=self.status, headers=headers)


def not_served(code: str = "") -> HubError:
    """404 for a service of the Hub that this one lacks."""
    served = "This local Hub serves models and datasets, their files and history"
    return HubError(404, f"{served}. It has nothing at this address (docs/hub_server.md)", code)


def repo_not_found(*, anonymous: bool) -> HubError:
    """404 (401 without a token) for a missing repo and for a private one alike, so that the answer leaks nothing."""
    return HubError(401 if anonymous else 404, "Repository not found", "RepoNotFound")


def revision_not_found(revision: str) -> HubError:
    """404 for a branch, tag or commit."""
    return HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(message: str, commit: str = "") -> HubError:
    """404 for a path of a revision; clients cache that under the commit given."""
    return HubError(404, message, "EntryNotFound", {"X-Repo-Commit": commit} if commit else None)

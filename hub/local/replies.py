"""What the Hub refuses, in the Hub's own dialect.

Clients tell errors apart by the ``X-Error-Code`` header alone, never by the body, so every error is built here.
5xx answers are retried by the clients: no permanent condition may use one, except 507 (not in their retry list).
"""

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response


class HubError(Exception):
    """A refusal: status, message, and the code the clients map to an exception class."""

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
    """What the Hub has and this one does not; 404 as the Hub itself says of addresses that it does not know."""
    served = "models and datasets: their files, history, discussions and access"
    return HubError(404, f"This local Hub serves {served}. It has nothing at this address (docs/hub_server.md)", code)


def repo_not_found(*, anonymous: bool) -> HubError:
    """Missing, or private to someone else: the answer is the same, so that it tells nothing."""
    return HubError(401 if anonymous else 404, "Repository not found", "RepoNotFound")


def gated_repo(name: str, *, anonymous: bool) -> HubError:
    """The repo is known to all, its files to those whom its owners let in."""
    wanted = "log in with an account" if anonymous else "you are not in the authorized list: ask for an account"
    message = f"Access to {name} is restricted and {wanted} that its owners let in (HfApi.grant_access)"
    return HubError(401 if anonymous else 403, message, "GatedRepo")


def revision_not_found(revision: str) -> HubError:
    """The repo exists, the branch, tag or commit does not."""
    return HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(message: str, commit: str = "") -> HubError:
    """The revision exists, the path does not; clients remember that under the commit given."""
    return HubError(404, message, "EntryNotFound", {"X-Repo-Commit": commit} if commit else None)

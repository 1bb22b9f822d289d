"""HTTP errors in the Hugging Face Hub's words, which its clients map to their exceptions.

Clients distinguish errors by the ``X-Error-Code`` header only; this module makes all errors that
have one. Clients retry 5xx answers: no permanent condition may use one, except 507, which is not in
their retry list.
"""

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

MAX_ERROR_CHARACTERS = 1000  # of a message, which may repeat a name that a client sent
MAX_HEADER_CHARACTERS = 500


class CommandError(Exception):
    """A failure of a command; the message is one line for a terminal.

    ``exit_code``: 2 for bad input, 1 for other failures.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code


class HubError(Exception):
    """An HTTP error: status, message, and the X-Error-Code that clients map to an exception.

    A message of more than ``MAX_ERROR_CHARACTERS`` is cut. ``headers``: further headers of the
    answer; ``fields``: further keys of its JSON.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str = "",
        headers: Mapping[str, str] | None = None,
        **fields: str,
    ):
        if len(message) > MAX_ERROR_CHARACTERS:
            message = f"{message[:MAX_ERROR_CHARACTERS]}…"
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})
        self.fields = fields

    def to_response(self) -> Response:
        """Return the HTTP answer."""
        headers = {**self.headers, "X-Error-Message": _make_header_value(self.message)}
        if self.code:
            headers["X-Error-Code"] = self.code
        content = {"error": self.message, **self.fields}
        return JSONResponse(content, status_code=self.status, headers=headers)


def _make_header_value(text: str) -> str:
    """Return ``text`` as a printable line in latin-1, the only text that a header can hold.

    Other characters become ``?``. A text of more than ``MAX_HEADER_CHARACTERS`` is cut.
    """
    line = " ".join(text.split())[:MAX_HEADER_CHARACTERS]
    line = line.encode("latin-1", "replace").decode("latin-1")
    return "".join(character if character.isprintable() else "?" for character in line).strip()


def make_not_served_error(code: str = "") -> HubError:
    """Return a 404 for a service of huggingface.co that this Hub lacks."""
    served = "This local Hub serves models and datasets, their files and history"
    return HubError(404, f"{served}. It has nothing at this address (docs/hub_server.md)", code)


def make_missing_repo_error(*, anonymous: bool) -> HubError:
    """Return a 404, or a 401 without a token, for a missing or a private repo.

    The answers are equal, so that nobody learns of a private repo.
    """
    return HubError(401 if anonymous else 404, "Repository not found", "RepoNotFound")


def make_missing_revision_error(revision: str) -> HubError:
    """Return a 404 for a branch, tag or commit."""
    return HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def make_missing_entry_error(message: str, commit: str = "") -> HubError:
    """Return a 404 for a missing path of a revision.

    ``commit``: the revision's commit id, under which clients cache the absence.
    """
    headers = {"X-Repo-Commit": commit} if commit else None
    return HubError(404, message, "EntryNotFound", headers)

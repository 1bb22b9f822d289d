"""Templates to HTML answers: every value is escaped, and a strict policy allows no script at all.

A report (``report.html`` of a repo) is untrusted HTML: its sandbox has no scripts, no origin and no
other address.
"""

import base64
import hashlib
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from starlette.responses import HTMLResponse, Response

from hub_server.pages.readers import escape_hidden_characters

TEMPLATES = Path(__file__).with_name("templates")
_STYLE = (TEMPLATES / "style.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_QUIET = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
REPORT_HEADERS = _QUIET | {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Cache-Control": "no-cache",
}
_ADVICE = {
    "RepoNotFound": "Its name may be misspelt, or it is private: these pages show public repos "
    "only. A private one is read by a client with a token: hf download NAME (--repo-type dataset), "
    "with HF_ENDPOINT and HF_TOKEN_PATH set.",
    "RevisionNotFound": "A revision is a branch, a tag or a commit id; "
    "the repo's page names its tags.",
    "EntryNotFound": "The file or folder may have another name in this revision.",
}
_FAILED = (
    "The server's own fault: its log (stderr) has the details. "
    "Load the page again, or go to the start page."
)


def _escape_text(value: object) -> object:
    """Return plain text with hidden characters made visible; other values as they are."""
    # Markup, a subclass of str, is the HTML of this Hub's own templates and the cleaned card.
    if type(value) is str:
        return escape_hidden_characters(value)
    return value


def format_time(seconds: int) -> str:
    """Return a time (Unix seconds) as text, such as ``2024-01-31 12:00 UTC``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


_PAGES = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_escape_text,
)
_PAGES.globals["style"] = _STYLE
_PAGES.filters |= {"time": format_time, "number": "{:,}".format}


def render_page(template: str, endpoint: str, status: int = 200, **facts: object) -> Response:
    """Return a template as an HTML answer whose policy allows no script.

    ``endpoint``: this server's own address. ``facts``: the values of the template.
    """
    policy = (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self'; frame-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    html = _PAGES.get_template(template).render(endpoint=endpoint, **facts)
    return HTMLResponse(html, status, _QUIET | {"Content-Security-Policy": policy})


def render_error_page(
    endpoint: str, path: str, status: int, message: str, code: str = ""
) -> Response:
    """Return an error as a page: the problem and the next step.

    Args:
        endpoint: this server's own address.
        path: path of the request, percent-encoded.
        status: HTTP status.
        message: the problem, as clients get it.
        code: the X-Error-Code that clients map to an exception.
    """
    reason = "Not found" if code == "RepoNotFound" else HTTPStatus(status).phrase
    default_advice = _FAILED if status == HTTPStatus.INTERNAL_SERVER_ERROR else ""
    repo = ""
    if code in ("RevisionNotFound", "EntryNotFound"):
        # The repo's page: /namespace/name, or /datasets/namespace/name.
        segments = 4 if path.startswith("/datasets/") else 3
        repo = "/".join(path.split("/")[:segments])
    return render_page(
        "error.html",
        endpoint,
        status,
        title=f"{status} {reason}",
        message=message,
        advice=_ADVICE.get(code, default_advice),
        repo=repo,
    )

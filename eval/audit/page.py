"""The annotation page: welcome, one example after another, the end. Plain HTML forms, served on the loopback only.

The browser gets the texts of the questions and never the generator's labels. The page loads nothing from elsewhere.
Requests under other host names than the loopback's are refused, and so are forms of other sites.
"""

import secrets
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from eval.audit.survey import LONGEST_NAME, Survey, clean_name, words_in
from hub.errors import RunError, StsDinoError

HOST = "127.0.0.1"
_TEMPLATES = Environment(
    loader=PackageLoader("eval.audit"), undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
)
MOST_BYTES, MOST_READ = 10_000, 1 << 20  # of a form: accepted, read
UNREAD_SECONDS = 0.4  # an answer sooner than that after its texts came is the second click on the pair before


class Page(ThreadingTCPServer):
    """The page of a survey on a port of the loopback; port 0 takes a free one. Raises RunError for a taken port."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, survey: Survey, port: int):
        self.survey = survey
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise RunError(f"port {port}", f"cannot be used: {error.strerror}", hint="give another: --port") from error
        self.url = f"http://{HOST}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an exception of a handler, except that a browser went away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Page
    timeout = 60  # seconds

    def do_GET(self) -> None:
        if self._is_allowed():
            self._try(self._show, self.path.partition("?")[2])

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        is_number = length.isdecimal() and len(length) < 10
        body = self.rfile.read(min(int(length), MOST_READ)) if is_number else b""  # unread, a refusal would be a reset
        if not self._is_allowed():
            return
        here = f"http://{self.headers['Host']}"
        if self.headers.get("Origin", here) != here:
            self._send(403, "a form of another site")
        elif len(body) > MOST_BYTES:
            self._send(413, "a form that is too long")
        else:
            self._try(self._store, body.decode("utf-8", "replace"))

    def _is_allowed(self) -> bool:
        is_here = self.headers.get("Host", "").partition(":")[0] in (HOST, "localhost")  # else DNS rebinding
        is_page = self.path.partition("?")[0] == "/"
        if not (is_here and is_page):
            self._send(404 if is_here else 400, "no such page")
        return is_here and is_page

    def _try(self, act: Callable[[dict[str, str]], None], query: str) -> None:
        form = {name: values[-1] for name, values in parse_qs(query).items()}
        try:
            act(form)
        except (StsDinoError, KeyError, ValueError) as error:
            status = 500 if isinstance(error, RunError) else 400
            self._render(status, name=form.get("annotator", ""), problem=str(error))

    def _show(self, form: dict[str, str]) -> None:
        if "annotator" not in form:
            self._render(200)
            return
        name, survey = clean_name(form["annotator"]), self.server.survey
        place = int(form.get("place", survey.next_open(name)))
        place, rows = min(max(place, 0), len(survey.sample)), survey.sample.rows
        given, examples = survey.answers().get(name, {}), survey.sample.examples
        shown = {"name": name, "place": place, "answered": len(given)}
        if place < len(rows):
            texts = list(zip(examples.headings, examples.texts[rows[place]], strict=True))
            shown |= {"texts": texts, "chosen": given.get(rows[place])}
        self._render(200, **shown)

    def _store(self, form: dict[str, str]) -> None:
        name, place = clean_name(form["annotator"]), int(form["place"])
        if time.time() - float(form["shown"]) >= UNREAD_SECONDS:
            place = self.server.survey.answer(name, place, form["label"])
        self._send(303, "", Location=f"/?{urlencode({'annotator': name, 'place': place})}")

    def _render(self, status: int, **shown: Any) -> None:
        sample, nonce = self.server.survey.sample, secrets.token_urlsafe()
        examples, scale = sample.examples, sample.examples.scale
        context = {
            **{"name": "", "place": None, "texts": [], "chosen": None, "problem": ""},
            **{"words": words_in(examples.language), "language": examples.language, "total": len(sample)},
            **{"scale": scale, "choices": list(zip(scale.labels, scale.meanings, strict=True))},
            **{"longest": LONGEST_NAME, "shown": time.time(), "nonce": nonce},
            "here": lambda place: f"/?{urlencode({'annotator': shown['name'], 'place': place})}",
        }
        page = _TEMPLATES.get_template("page.html.jinja")
        self._send(status, page.render(context | shown), nonce)

    def _send(self, status: int, body: str, nonce: str = "", **headers: str) -> None:
        content = body.encode("utf-8", "replace")
        own = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; form-action 'self'" if nonce else ""
        self.send_response(status)
        for name, value in {
            "Content-Type": f"text/{'html' if nonce else 'plain'}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": f"default-src 'none'; base-uri 'none'; frame-ancestors 'none'; {own}",
            "Referrer-Policy": "same-origin",  # a form's Origin header stays
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log no request: it holds the name of an annotator."""

"""Label a dataset by people, blind: ``sts-dino annotate RUN [--sample --seed --port --out --report]``.

DINO's human evaluation (Table 3). A page of plain HTML forms on the loopback shows random pairs without their labels;
several people can answer, each under a name. Answers are on disk at once, and a later start resumes.

The page loads nothing from elsewhere. Its address holds a token: other users, programs and sites do not know it.
Requests under another host or port are refused, and so are forms of other sites.
"""

import secrets
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined

from eval.audit import command
from eval.audit.agreement import make_report
from eval.audit.source import find_rows
from eval.audit.survey import (
    FILE,
    LONGEST_NAME,
    AnswerStore,
    Survey,
    clean_name,
    draw,
    page_words,
    read_examples,
    words_in,
)
from hub.cli import JsonOption, new_app, say
from hub.errors import InputError, RunError, StsDinoError

HOST = "127.0.0.1"
SAMPLE = 100  # rows
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
        port = self.server_address[1]
        self.hosts, self.root = (f"{HOST}:{port}", f"localhost:{port}"), f"/{secrets.token_urlsafe()}/"
        self.url = f"http://{self.hosts[0]}{self.root}"

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
        is_here = self.headers.get("Host", "") in self.server.hosts  # else DNS rebinding
        is_page = secrets.compare_digest(self.path.partition("?")[0].encode(), self.server.root.encode())
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
        place, rows = min(max(place, 0), len(survey.rows)), survey.rows
        given, examples = survey.answers().get(name, {}), survey.examples
        shown = {"name": name, "place": place, "answered": len(given)}
        if place < len(rows):
            texts = list(zip(examples.headings, examples.texts[rows[place]], strict=True))
            shown |= {"texts": texts, "chosen": given.get(rows[place])}
        self._render(200, **shown)

    def _store(self, form: dict[str, str]) -> None:
        name, place = clean_name(form["annotator"]), int(form["place"])
        if time.time() - float(form["shown"]) >= UNREAD_SECONDS:
            place = self.server.survey.answer(name, place, form["label"])
        self._send(303, "", Location=f"?{urlencode({'annotator': name, 'place': place})}")

    def _render(self, status: int, **shown: Any) -> None:
        survey, nonce = self.server.survey, secrets.token_urlsafe()
        examples, scale = survey.examples, survey.examples.scale
        context = {
            **{"name": "", "place": None, "texts": [], "chosen": None, "problem": ""},
            **{"words": words_in(examples.language), "language": examples.language, "total": len(survey.rows)},
            **{"scale": scale, "choices": list(zip(scale.labels, scale.meanings, strict=True))},
            **{"longest": LONGEST_NAME, "shown": time.time(), "nonce": nonce},
            "here": lambda place: f"?{urlencode({'annotator': shown['name'], 'place': place})}",
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


app = new_app("Label a dataset by people, blind, and compare their labels with the generator's.")


@app.command()
def main(
    place: command.PlaceArgument,
    sample: Annotated[
        int | None, typer.Option(min=1, help=f"How many random rows are shown [default: {SAMPLE}, or all of fewer]")
    ] = None,
    seed: command.SeedOption = 42,
    config: command.ConfigOption = None,
    split: Annotated[str, typer.Option(help="Split of the config")] = "train",
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of the page's words, e.g. de [default: the dataset's]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free one")] = 7860,
    out: command.OutOption = None,
    report: Annotated[bool, typer.Option("--report", help="No page: compare the answers, print and write")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show random rows of RUN to people, without labels, and compare their labels with the generator's.

    Examples:

      sts-dino annotate artifacts/datasets/sts-dino-x2

      sts-dino annotate artifacts/datasets/sts-dino-x2 --report
    """
    if language is not None and language not in page_words():
        raise InputError("--language", f"{language!r} is not spoken by the page", allowed=", ".join(page_words()))
    examples = read_examples(find_rows(place, config, split), language)
    rows = draw(examples, sample or min(SAMPLE, len(examples)), seed)
    folder = out or command.default_folder("annotations", examples.name, examples.config)
    if report and not (folder / FILE).is_file():
        raise InputError(folder, f"holds no answers (no {FILE})", hint="run without --report first")
    command.made_folder(folder)
    survey = Survey(examples, seed, rows, AnswerStore(folder, examples))
    if report:
        _report(survey, folder, as_json)
        return
    with Page(survey, port) as page:
        source = f"{examples.name} ({examples.config}, {examples.split})"
        say(f"{len(rows)} of {len(examples)} rows of {source}, seed {seed}; answers in {folder}")
        say(f"open {page.url} in a browser; Ctrl-C ends")
        try:
            page.serve_forever()
        except KeyboardInterrupt:  # the usual end
            say("stopped; every answer is on disk. The same command with --report compares them, finished or not")
    if any(len(given) == len(rows) for given in survey.answers().values()):  # nobody is to see labels before
        _report(survey, folder, as_json)


def _report(survey: Survey, folder: Path, as_json: bool) -> None:
    """Write and print agreement.md and agreement.json. Raises InputError when nobody answered."""
    report = make_report(survey)
    if not report.annotators:
        raise InputError(folder, "holds no answer to these rows", hint="run without --report first, or check --seed")
    command.write_report(folder, "agreement", report.markdown(), report.model_dump(mode="json"), as_json)

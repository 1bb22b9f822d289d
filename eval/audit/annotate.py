"""Label a dataset by people, blind: ``sts-dino annotate RUN [--sample --seed --port --report]``.

The command repeats DINO's human evaluation (Table 3). A page of plain HTML forms on the loopback
address shows random pairs without their labels. Several people can answer, each under a name. Every
answer is on disk at once, and a later start resumes.

The page loads nothing from elsewhere. Its address holds a token that other users, programs and
sites do not know. The server refuses requests under another host or port, and forms of other sites.
"""

import logging
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined

from sts_dino.eval.audit import command
from sts_dino.eval.audit.agreement import make_report
from sts_dino.eval.audit.source import find_rows
from sts_dino.eval.audit.survey import (
    ANSWERS_FILE,
    MAX_NAME_CHARACTERS,
    AnswerStore,
    Survey,
    draw_rows,
    get_words,
    load_page_words,
    normalize_name,
    read_examples,
)
from sts_dino.hub.cli import JsonOption, make_app
from sts_dino.hub.errors import InputError, RunError, StsDinoError

logger = logging.getLogger(__name__)

LOOPBACK_HOST = "127.0.0.1"
DEFAULT_SAMPLE_ROWS = 100
_TEMPLATES = Environment(
    loader=PackageLoader("sts_dino.eval.audit"),
    undefined=StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
MAX_FORM_BYTES = 10_000
REQUEST_TIMEOUT_SECONDS = 60.0  # without a byte of a request
# An answer within this time after its page was sent is taken for the second click of a double
# click on the page before
MIN_READING_SECONDS = 0.4


class Page(ThreadingTCPServer):
    """Web server of a survey's page on a port of the loopback address; port 0 takes a free port.

    ``url`` is the page's address. ``hosts`` are the allowed values of the Host header, and ``root``
    is the path of the page with its token. Raises RunError for a port that cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, survey: Survey, port: int):
        self.survey = survey
        try:
            super().__init__((LOOPBACK_HOST, port), _Handler)
        except OSError as error:
            raise RunError(
                f"port {port}", f"cannot be used: {error.strerror}", hint="give another: --port"
            ) from error
        port = self.server_address[1]
        self.hosts = (f"{LOOPBACK_HOST}:{port}", f"localhost:{port}")
        self.root = f"/{secrets.token_urlsafe()}/"
        self.url = f"http://{self.hosts[0]}{self.root}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a handler's exception, unless it is an OSError.

        A broken connection raises OSError.
        """
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request to the page."""

    server: Page
    timeout = REQUEST_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Send the start page, a question, or the page after the last question.

        A request that ``_check_request`` refuses, and a query with a wrong value, get an error.
        """
        if self._check_request():
            self._handle_form(self._show_position, self.path.partition("?")[2])

    def do_POST(self) -> None:
        """Store an answer and redirect to the next question.

        The host, path, origin and length are checked before the form is read; a refused request
        gets an error. A form with fewer bytes than its length gets no response.
        """
        if not self._check_request():
            return
        site = f"http://{self.headers['Host']}"
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Origin", site) != site:
            self._send(403, "a form of another site")
        elif not (length.isascii() and length.isdecimal()):
            self._send(411, "a form without its length")
        # int() raises for a number of thousands of digits, so the digits are counted first
        elif len(length) > len(str(MAX_FORM_BYTES)) or int(length) > MAX_FORM_BYTES:
            self._send(413, "a form that is too long")
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                self._handle_form(self._store_answer, body.decode("utf-8", "replace"))

    def _check_request(self) -> bool:
        """Return whether the request names this host and the page's path; else send a refusal."""
        # A site can point its own name at this address (DNS rebinding); the Host header shows it
        is_host = self.headers.get("Host", "") in self.server.hosts
        path = self.path.partition("?")[0]
        is_page = secrets.compare_digest(path.encode(), self.server.root.encode())
        if not is_host:
            self._send(400, "no such page")
        elif not is_page:
            self._send(404, "no such page")
        return is_host and is_page

    def _handle_form(self, handler: Callable[[dict[str, str]], None], query: str) -> None:
        """Call ``handler`` with the fields of a form; send a page that names the error if it fails.

        The page has the status 400 for wrong values, 500 for a RunError.

        Args:
            handler: the method that answers the request; it gets field → last value.
            query: the form as a query string; fields with an empty value are left out.
        """
        form = {name: values[-1] for name, values in parse_qs(query).items()}
        try:
            handler(form)
        # A changed form lacks a field (KeyError), or its place or time is no number (ValueError)
        except (StsDinoError, KeyError, ValueError) as error:
            status = 500 if isinstance(error, RunError) else 400
            self._render(status, name=form.get("annotator", ""), problem=str(error))

    def _show_position(self, form: dict[str, str]) -> None:
        """Send the question at the form's ``place``, an index from 0.

        The default place is that of the annotator's first question without an answer. A form
        without an annotator gets the start page. A negative place gets the first question, a place
        after the last question gets the page that counts the answers. Raises InputError for a
        name that cannot be stored, ValueError for a place that is not a whole number, and the
        errors of ``AnswerStore``.
        """
        if "annotator" not in form:
            self._render(200)
            return
        survey = self.server.survey
        name = normalize_name(form["annotator"])
        position = int(form.get("place", survey.find_next_open(name)))
        position = min(max(position, 0), len(survey.rows))
        answers = survey.read_answers().get(name, {})
        context = {"name": name, "place": position, "answered": len(answers)}
        if position < len(survey.rows):
            row = survey.rows[position]
            examples = survey.examples
            context["texts"] = list(zip(examples.headings, examples.texts[row], strict=True))
            context["chosen"] = answers.get(row)
        self._render(200, **context)

    def _store_answer(self, form: dict[str, str]) -> None:
        """Store the form's answer, and redirect to the next question.

        An answer that came too soon (``MIN_READING_SECONDS``) is not stored, and the redirect leads
        to the same question. Raises InputError for an answer that the survey does not have,
        KeyError for a form without one of its fields, ValueError for a place or time that is not a
        number, and the errors of ``AnswerStore``.
        """
        name = normalize_name(form["annotator"])
        position = int(form["place"])
        if time.time() - float(form["shown"]) >= MIN_READING_SECONDS:
            position = self.server.survey.store_answer(name, position, form["label"])
        self._send(303, "", Location=_format_query(name, position))

    def _render(self, status: int, **context: Any) -> None:
        """Send the page with an HTTP status.

        ``context``: variable of the template → value, where it differs from the start page.
        """
        survey = self.server.survey
        examples = survey.examples
        scale = examples.scale
        nonce = secrets.token_urlsafe()
        start_page: dict[str, Any] = {
            "name": "",
            "place": None,
            "texts": [],
            "chosen": None,
            "problem": "",
            "words": get_words(examples.language),
            "language": examples.language,
            "total": len(survey.rows),
            "scale": scale,
            "choices": list(zip(scale.labels, scale.meanings, strict=True)),
            "longest": MAX_NAME_CHARACTERS,
            "shown": time.time(),
            "nonce": nonce,
            "link_position": partial(_format_query, context.get("name", "")),
        }
        page = _TEMPLATES.get_template("page.html.jinja")
        self._send(status, page.render(start_page | context), nonce)

    def _send(self, status: int, body: str, nonce: str = "", **headers: str) -> None:
        """Send a response.

        Args:
            status: HTTP status.
            body: the page, or a message of one line.
            nonce: the nonce of the page's style and script; empty: the body is plain text.
            headers: further headers, name → value.
        """
        content = body.encode("utf-8", "replace")
        kind = "plain"
        policy = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
        if nonce:
            kind = "html"
            policy += f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; form-action 'self'"
        all_headers = {
            "Content-Type": f"text/{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            # With "no-referrer", browsers send "null" as the Origin of a form
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            **headers,
        }
        self.send_response(status)
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing, because the address of a request holds the name of an annotator."""


def _format_query(annotator: str, position: int) -> str:
    """Return the query string, with its ``?``, of the address of an annotator's question.

    ``position``: the index of the question, from 0.
    """
    return f"?{urlencode({'annotator': annotator, 'place': position})}"


app = make_app("Label a dataset by people, blind, and compare their labels with the generator's.")


@app.command()
def main(
    run: command.DatasetArgument,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Number of random rows [default: {DEFAULT_SAMPLE_ROWS}, or all of fewer]",
        ),
    ] = None,
    seed: command.SeedOption = 42,
    config: command.ConfigOption = None,
    split: Annotated[str, typer.Option(help="Split of the config")] = "train",
    language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Language of the page [default: the dataset's]"),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free one")
    ] = 7860,
    out: command.OutOption = None,
    report: Annotated[
        bool, typer.Option("--report", help="No page: compare the answers, print and write")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show random rows of RUN to people, without labels, and compare their labels with the
    generator's.

    Examples:

      sts-dino annotate artifacts/datasets/sts-dino-x2

      sts-dino annotate artifacts/datasets/sts-dino-x2 --report
    """
    # Refuse a language that the page does not speak
    languages = load_page_words()
    if language is not None and language not in languages:
        raise InputError(
            "--language", f"{language!r} is not spoken by the page", allowed=", ".join(languages)
        )

    # Draw the rows, and open the stored answers
    examples = read_examples(find_rows(run, config, split), language)
    rows = draw_rows(examples, sample or min(DEFAULT_SAMPLE_ROWS, len(examples)), seed)
    folder = out or command.get_default_folder("annotations", examples.name, examples.config)
    if report and not (folder / ANSWERS_FILE).is_file():
        raise InputError(
            folder, f"holds no answers (no {ANSWERS_FILE})", hint="run without --report first"
        )
    command.make_output_folder(folder)
    survey = Survey(examples, seed, rows, AnswerStore(folder, examples))

    # Serve the page until Ctrl-C; the report follows if an annotator has answered every row
    if not report:
        _serve_page(survey, port, folder)
        answers = survey.read_answers()
        report = any(len(labels) == len(rows) for labels in answers.values())
    if report:
        _write_agreement(survey, folder, as_json)


def _serve_page(survey: Survey, port: int, folder: Path) -> None:
    """Log the page's address, and serve the page of ``survey`` until Ctrl-C.

    Args:
        survey: the questions and the store of the answers.
        port: the port; 0 takes a free one.
        folder: the folder of the answers, for the log.

    Raises RunError for a port that cannot be used.
    """
    examples = survey.examples
    source = f"{examples.name} ({examples.config}, {examples.split})"
    drawn = f"{len(survey.rows)} of {len(examples)} rows of {source}, seed {survey.seed}"
    with Page(survey, port) as page:
        logger.info(f"{drawn}; answers in {folder}")
        logger.info(f"open {page.url} in a browser; Ctrl-C ends")
        try:
            page.serve_forever()
        except KeyboardInterrupt:  # the usual end
            logger.info(
                "stopped; every answer is on disk. The same command with --report compares them, "
                "finished or not"
            )


def _write_agreement(survey: Survey, folder: Path, as_json: bool) -> None:
    """Write agreement.md and agreement.json to a folder, and print one of them.

    Args:
        survey: the drawn rows and their answers.
        folder: the folder of the two files.
        as_json: print agreement.json instead of agreement.md.

    Raises InputError when no annotator has answered any of the survey's rows.
    """
    report = make_report(survey)
    if not report.annotators:
        raise InputError(
            folder,
            "holds no answer to these rows",
            hint="run without --report first, or check --seed",
        )
    facts = report.model_dump(mode="json")
    command.write_report(folder, "agreement", report.to_markdown(), facts, as_json)

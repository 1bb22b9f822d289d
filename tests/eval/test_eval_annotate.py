"""The annotation command and its page, used in a real browser by two people, with the server killed between."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from serving import free_port
from small_runs import small_recipe, small_run
from training_inputs import PROVENANCE, write_dataset
from typer.testing import CliRunner

from eval.annotate import app
from eval.audit.page import application
from eval.audit.source import find_rows
from eval.audit.survey import AnswerStore, Survey, draw, read_examples
from hub import cli
from hub.errors import InputError, RunError

HOSTILE = [
    ("<script>window.owned = 1</script>", "<img src=x onerror='window.owned = 2'><b>bold</b> &amp;"),
    ("# heading\n**strong** [link](https://example.com/x) `code`", "![picture](https://example.com/y.png) $$x^2$$"),
    ("رجل يعزف على الناي، ثم \u202eevil", "a man plays the flute: {{ 7 * 7 }} ${7 * 7} {7 * 7}"),
    ("long " * 800 + "x" * 3000, "short"),
    ("A girl.", "A boy."),
    ("A cat.", "A dog."),
]
SCORES = [0.0, 0.1, 0.5, 0.9, 0.9, 0.5]
_CONTEXT = multiprocessing.get_context("forkserver")  # imports gradio once for all starts
_CONTEXT.set_forkserver_preload(["eval.annotate", "eval.audit.page"])
HIDDEN = {"__type__", "visible", "variant", "interactive"}  # what an update of a component may say


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rows = [
        {"sentence1": first, "sentence2": second, "score": score, **PROVENANCE}
        for (first, second), score in zip(HOSTILE, SCORES, strict=True)
    ]
    return write_dataset(tmp_path_factory.mktemp("runs") / "pairs", {"train": rows})


class _Said:
    """A standard error that another process can read."""

    def __init__(self, end):
        self._end = end

    def write(self, text):
        self._end.send(text)

    def flush(self):
        pass


def _command(options, end):
    sys.stderr = _Said(end)
    os.environ["HTTP_PROXY"] = os.environ["http_proxy"] = "http://127.0.0.1:9"  # not for the loopback
    cli.run(lambda: app(options))


class Page:
    """The command in a process of its own, always on the same port."""

    def __init__(self, run: Path, folder: Path):
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._options = [
            str(run),
            "--sample",
            str(len(HOSTILE)),
            "--out",
            str(folder),
            "--port",
            str(self._port),
        ]

    def start(self):
        self._said, end = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_command, args=(self._options, end))
        self._process.start()
        end.close()
        heard = ""
        while "\nopen http" not in heard:
            assert self._said.poll(60), heard
            heard += self._said.recv()

    def kill(self):
        self._process.kill()
        self._process.join()

    def stop(self):
        """Ctrl-C, with tabs still open: exit code and what is printed."""
        os.kill(self._process.pid, signal.SIGINT)
        said = ""
        with contextlib.suppress(EOFError):  # it has ended
            while self._said.poll(60):
                said += self._said.recv()
        self._process.join(60)
        return self._process.exitcode, said

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def page(run, tmp_path):
    page = Page(run, tmp_path / "answers")
    page.start()
    yield page
    page.kill()


def join(tab, name=None):
    """Enter a name, or the one that the browser has kept."""
    tab.wait("!!document.querySelector('#start') && !!document.querySelector('#name textarea')")
    if name is not None:
        tab.click("#name textarea")
        tab.type(name)
    tab.wait("document.querySelector('#name textarea').value")
    tab.click("#start")


def at(tab, place):
    """Wait until a tab shows the question at a place (from 1), readable for long enough to be answered."""
    tab.wait(f"(document.querySelector('#progress b') || {{}}).innerText === '{place} of {len(HOSTILE)}'")
    tab.run("new Promise(done => setTimeout(done, 500))")


def shown(tab):
    return tuple(tab.run("[...document.querySelectorAll('.shown-text textarea')].map(box => box.value)"))


def sent(tab):
    """Every value that the server has sent to a tab since it was opened."""
    lines = [line for text in tab.received() for line in text.splitlines()]
    messages = [json.loads(line[5:]) for line in lines if line.startswith("data: {")]
    return [value for message in messages for value in (message.get("output") or {}).get("data", [])]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_two_people_label_blind_in_a_real_browser_and_end_with_the_table(page, run, tmp_path):
    sample = draw(read_examples(find_rows(str(run))), len(HOSTILE), seed=42)
    order = [HOSTILE[row] for row in sample.rows]
    with Browser(tmp_path) as browser:
        ann, bob = browser.visitor(), browser.visitor()
        for tab, name in ((ann, "Ann <i>&"), (bob, "Bob")):
            tab.open(page.url)
            join(tab, name)
        for place in (1, 2, 3):  # at the same time, by mouse and by key
            at(ann, place)
            at(bob, place)
            assert shown(ann) == shown(bob) == order[place - 1]
            ann.click("#answer-4")
            bob.key("1")
        at(ann, 4)
        at(bob, 4)
        page.kill()
        page.start()
        ann.open(page.url)
        bob.click("#answer-2")  # in a tab of the server that is gone
        join(ann)
        at(ann, 4)
        for place in (4, 5, 6):
            at(ann, place)
            assert shown(ann) == order[place - 1]
            ann.key("4")
        ann.click("#look-back")
        at(ann, 6)
        assert ann.run("document.querySelector('#answer-4').className").count("primary") == 1
        ann.key("ArrowLeft")
        at(ann, 5)
        ann.key("1")
        at(ann, 6)
        _check_what_was_sent(sent(ann), order)
        rendered = "document.querySelectorAll('.shown-text :is(b, img, script)').length"
        assert ann.run(f"[window.owned, {rendered}]") == [None, 0]
        ann.click("#forward")
        ann.click("#show")
        text = ann.wait("document.querySelector('#report table') && document.body.innerText")
        assert "Ann <i>&" in text and "Cohen's κ" in text and "6 of 6 answered" in text and "3 of 6 answered" in text
        bob.wait("document.body.innerText.includes('not saved')")
        join(bob)
        at(bob, 4)
        assert all(url.startswith((page.url, "data:", "blob:", "about:")) for tab in (ann, bob) for url in tab.urls())
        store = AnswerStore(tmp_path / "answers", sample.examples)
        assert list(store.answers("Ann <i>&").values()) == ["0.9", "0.9", "0.9", "0.9", "0", "0.9"]
        assert store.answers("Bob") == dict.fromkeys(sample.rows[:3], "0")
        _check_doors(page, tmp_path)
        code, said = page.stop()
        assert code == 0 and "every answer is on disk" in said and "Traceback" not in said


def _check_what_was_sent(values, order):
    """Texts, the progress, the annotator's own name and updates of buttons: no label of the dataset."""
    texts = {text for pair in order for text in pair}
    for value in values:
        if isinstance(value, dict):
            assert value.keys() <= HIDDEN or value == {"props": {"__type__": "update"}, "__type__": "update"}, value
        elif value is not None:
            assert value in texts or value in ("", "Ann <i>&") or value.startswith("<p><b>"), value
    assert sum(isinstance(value, str) and value in texts for value in values) > len(order)


def _check_doors(page, folder):
    """Nothing else is served: no files, no API, no other host name; and the page's source holds no text."""
    status, source = page.get("/")
    assert status == 200 and "A girl." not in source and "fonts.googleapis" not in source
    assert page.get("/", Host="example.com")[0] == 400
    assert page.get("/gradio_api/info")[1] == '{"named_endpoints":{},"unnamed_endpoints":{}}'
    for path in (folder / "answers" / "answers.sqlite", "pyproject.toml"):
        assert page.get(f"/gradio_api/file={path}")[0] == 403
    assert page.get("/docs")[0] == 404


@contextlib.contextmanager
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_report_is_printed_and_written_without_a_page(run, tmp_path):
    sample = draw(read_examples(find_rows(str(run))), 6, seed=42)
    store = AnswerStore(tmp_path, sample.examples)
    for row, label in zip(sample.rows, ["0", "0.5", "0.5", "0.9", "0.1", "0"], strict=True):
        store.add("Ann", row, label)
    done = command(run, "--sample", 6, "--out", tmp_path, "--report")
    assert done.exit_code == 0 and (tmp_path / "agreement.md").read_text() in done.output
    written = json.loads((tmp_path / "agreement.json").read_text())
    assert written["dataset"]["sha256"] == sample.examples.sha256 and written["labels"] == ["0", "0.1", "0.5", "0.9"]
    (ann,) = written["annotators"]
    assert ann["name"] == "Ann" and ann["n"] == 6 and sum(map(sum, ann["counts"])) == 6
    assert {"kappa", "kappa_linear", "kappa_quadratic"} <= ann.keys()
    assert written["paper"]["column_percent"][1] == [0, 44, 11, 12] and "table 3" in done.output
    pairs = [(answer["label"], answer["generated"]) for answer in written["answers"]]
    assert ann["same"]["value"] == pytest.approx(100 * sum(a == b for a, b in pairs) / 6)


def test_bad_input_is_one_clear_error(run, tmp_path):
    assert isinstance(command(run, "--out", tmp_path / "none", "--report", "--sample", 3).exception, InputError)
    assert not (tmp_path / "none").exists()
    AnswerStore(tmp_path, read_examples(find_rows(str(run))))
    nobody = command(run, "--out", tmp_path, "--report", "--sample", 3).exception
    assert isinstance(nobody, InputError) and "holds no answer to these rows" in str(nobody)
    many = command(run, "--out", tmp_path).exception
    assert isinstance(many, InputError) and "has 6 rows, 100 are asked for; --sample 6" in str(many)
    with taken_port() as port:
        taken = command(run, "--out", tmp_path, "--sample", 3, "--port", port).exception
        assert isinstance(taken, RunError) and f"port {port}: cannot be used" in str(taken)


def test_the_page_speaks_the_language_that_was_asked_for(tmp_path):
    run = tmp_path / "run"
    small_run(run, small_recipe("sts"))
    sample = draw(read_examples(find_rows(str(run)), "de"), 4, seed=42)
    (mounted,) = (route.app for route in application(Survey(sample, AnswerStore(tmp_path, sample.examples))).routes)
    shown = json.dumps(mounted.get_blocks().get_config_file(), ensure_ascii=False, default=str)
    for words in ("Ergebnisse zeigen", "Satz 1", "Wie ähnlich sind sich", "0.5: ähneln sich ein wenig", "← Zurück"):
        assert words in shown
    assert not [words for words in ("Show the results", "Sentence 1", "Your name", "Forward") if words in shown]
    refused = CliRunner().invoke(app, [str(run), "--language", "fr"]).exception
    assert "'fr' is not spoken by the page; allowed: en, de" in str(refused)

"""The annotation command and its page: blind, escaped, on the loopback only; and the report of its
answers.
"""

import html
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from annotation_examples import INFERENCE, SCORES, examples, survey
from small_runs import small_recipe, small_run
from training_inputs import PROVENANCE, write_dataset
from typer.testing import CliRunner

from sts_dino.eval.audit.annotate import MIN_READING_SECONDS, Page, app
from sts_dino.eval.audit.source import find_rows
from sts_dino.eval.audit.survey import AnswerStore, draw_rows, read_examples
from sts_dino.hub.errors import RunError

HOSTILE = [
    (
        "<script>window.owned = 1</script>",
        "<img src=x onerror='window.owned = 2'><b>bold</b> &amp;",
    ),
    (
        "# heading\n**strong** [link](https://example.com/x) `code`",
        "{{ 7 * 7 }} ${7 * 7} {% raw %} {7 * 7}",
    ),
    ("رجل يعزف على الناي، ثم \u202eevil", '"></div><form action="https://example.com">'),
    ("long " * 800 + "x" * 3000, "short"),
    ("A girl.", "A boy."),
    ("A cat.", "A dog."),
]
EVIL = 'Ann <i>&"'


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rows = [
        {"sentence1": first, "sentence2": second, "score": score, **PROVENANCE}
        for (first, second), score in zip(HOSTILE, [0.0, 0.1, 0.5, 0.9, 0.9, 0.5], strict=True)
    ]
    return write_dataset(tmp_path_factory.mktemp("runs") / "pairs", {"train": rows})


class Served:
    """A page that a thread serves, and what a browser sends it."""

    def __init__(self, asked):
        self.rows, self.store, self.page = asked.rows, asked.store, Page(asked, 0)
        threading.Thread(target=self.page.serve_forever, daemon=True).start()

    def get(self, path="/", data=None, **headers):
        """Status, text and final address; redirects are followed."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(
            self.page.url.removesuffix("/") + path, data and data.encode(), headers
        )
        try:
            with opener.open(request, timeout=30) as answer:
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                return answer.status, answer.read().decode(), answer.url
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.url

    def at(self, name, place=None):
        form = {"annotator": name} | ({} if place is None else {"place": place})
        return self.get("/?" + urllib.parse.urlencode(form))

    def post(self, name, place, label, seconds=60.0, **headers):
        form = {"annotator": name, "place": place, "label": label, "shown": time.time() - seconds}
        return self.get("/", urllib.parse.urlencode(form), **headers)


@pytest.fixture
def serve(tmp_path):
    pages = []

    def start(examples, folder="answers"):
        pages.append(Served(survey(examples, tmp_path / folder, seed=42)))
        return pages[-1]

    yield start
    for one in pages:
        one.page.shutdown()
        one.page.server_close()


@pytest.fixture
def served(run, serve):
    return serve(read_examples(find_rows(str(run))))


def shown(body):
    return tuple(
        map(html.unescape, re.findall(r'<div class="text" dir="auto">(.*?)</div>', body, re.DOTALL))
    )


def test_people_answer_hostile_texts_to_the_end_and_can_go_back(served):
    order = [HOSTILE[row] for row in served.rows]
    assert "You will see 6 examples" in served.get()[1]
    double_click = served.post("ann", 3, "0.5", seconds=MIN_READING_SECONDS / 2)[1]
    assert "4 of 6" in double_click and served.store.read_answers() == {}
    for place in range(6):
        status, body, _ = served.at(EVIL)  # a later start resumes at the first open question
        assert status == 200 and f"{place + 1} of 6" in body and shown(body) == order[place]
        assert not re.search(r"<(b>bold|img|i>|script>window|form action)", body)
        served.post(EVIL, place, "0.9")
    _, body, address = served.post("bob", 1, "0")
    assert "3 of 6" in body and address.endswith("annotator=bob&place=2")
    _, end, _ = served.at(EVIL)
    assert "All 6 are answered" in end and f"place={5}" in end
    assert 'class="answer chosen" name="label" value="0.9"' in served.at(EVIL, 5)[1]
    assert "All 6 are answered" in served.post(EVIL, 5, "0.1")[1]
    assert served.store.read_answers() == {
        EVIL.casefold(): dict.fromkeys(served.rows[:5], "0.9") | {served.rows[5]: "0.1"},
        "bob": {served.rows[1]: "0"},
    }


def test_nothing_that_is_sent_depends_on_the_generators_labels(serve):
    def sent(folder, labels):
        page = serve(examples(labels, INFERENCE), folder)
        bodies = [
            page.get()[1],
            *(page.post("ann", place, INFERENCE.labels[place % 3])[1] for place in range(4)),
        ]
        return [re.sub(r'nonce="[^"]*"|value="[\d.]{9,}"', "", body) for body in bodies]

    labels = ("entailment", "neutral", "contradiction", "neutral")
    assert sent("a", labels) == sent("b", labels[::-1])


def test_only_the_page_is_served_and_only_to_this_machine_and_site(served):
    assert served.page.server_address[0] == "127.0.0.1"
    here, token, _ = served.page.url.rsplit("/", 2)
    for host in ("example.com", "127.0.0.1.example.com", "", "localhost", "localhost:1"):
        assert served.get("/", Host=host)[0] == 400
    assert served.get("/", Host=here.replace("http://127.0.0.1", "localhost"))[0] == 200
    assert len(token) > 40
    for path in ("/", "/?annotator=Ann", f"/{token[:-1]}/", f"/{token}", f"/x/{token}/", "/\xff/"):
        for method in (b"GET", b"POST"):
            with socket.create_connection(served.page.server_address) as raw:
                words = method, path.encode("latin-1"), here.removeprefix("http://").encode()
                raw.sendall(b"%s %s HTTP/1.1\r\nHost: %s\r\n\r\n" % words)
                assert raw.recv(100).split()[1] == b"404"
    for path in ("/answers.sqlite", "/../pyproject.toml", "//example.com/?annotator=a", "/docs"):
        assert served.get(path)[0] == 404
    for origin in ("https://example.com", "null", here.replace("127.0.0.1", "localhost")):
        assert served.post("ann", 0, "0", Origin=origin)[0] == 403
    assert served.get("/", "label=" + "0" * 20_000)[0] == 413
    assert served.store.read_answers() == {}
    assert served.post("ann", 0, "0", Origin=here)[0] == 200 and list(
        served.store.read_answers()
    ) == ["ann"]


@pytest.mark.parametrize(
    "headers", ["Host: example.com", "Host: HERE\r\nOrigin: https://example.com"]
)
def test_the_body_of_a_refused_request_is_not_waited_for(served, headers):
    host = served.page.hosts[0]
    with socket.create_connection(served.page.server_address, timeout=20) as raw:
        lines = f"POST {served.page.root} HTTP/1.1", headers.replace("HERE", host)
        raw.sendall("\r\n".join([*lines, "Content-Length: 900", "", ""]).encode())
        assert raw.recv(100).split()[1] in (b"400", b"403")


def test_forms_that_nobody_was_offered_are_refused_and_show_why(served, monkeypatch):
    for name, place, label in (
        ("ann", 0, "1"),
        ("ann", 6, "0"),
        ("ann", -1, "0"),
        ("ann", "x", "0"),
        (" ", 0, "0"),
    ):
        assert served.post(name, place, label)[0] == 400
    assert served.get("/", "annotator=Ann")[0] == 400 and served.at("x" * 61)[0] == 400
    assert "name: has 61 characters; allowed: 1 to 60" in html.unescape(served.at("x" * 61)[1])

    def full(*_):
        raise RunError("disk", "<b>is full")

    monkeypatch.setattr(served.store.__class__, "add", full)
    status, body, _ = served.post("ann", 0, "0")
    assert status == 500 and "disk: &lt;b&gt;is full" in body and served.store.read_answers() == {}


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_report_is_printed_and_written_when_somebody_has_answered_all(
    run, tmp_path, monkeypatch
):
    asked = read_examples(find_rows(str(run)))
    rows, store, labels = (
        draw_rows(asked, 6, seed=42),
        AnswerStore(tmp_path, asked),
        ["0", "0.5", "0.5", "0.9", "0.1", "0"],
    )

    def stopped(page):
        raise KeyboardInterrupt

    monkeypatch.setattr(Page, "serve_forever", stopped)
    for row, label in zip(rows[:5], labels, strict=False):
        store.add("ann", row, label)
    words = (run, "--sample", 6, "--out", tmp_path, "--port", 0)
    early = command(*words)
    assert (
        early.exit_code == 0
        and "open http://127.0.0.1:" in early.output
        and "every answer is on" in early.output
    )
    assert not (tmp_path / "agreement.md").exists()
    store.add("ann", rows[5], labels[5])
    for done in (
        command(*words),
        command(*words, "--report"),
        command(run, "--out", tmp_path, "--report"),
    ):
        assert done.exit_code == 0 and (tmp_path / "agreement.md").read_text() in done.output
    written = json.loads((tmp_path / "agreement.json").read_text())
    assert written["dataset"]["sha256"] == asked.sha256 and [*written["meanings"]] == [*SCORES]
    assert [*written["annotators"]] == ["ann"] and written["annotators"]["ann"]["n"] == 6
    same = sum(label == asked.labels[row] for row, label in zip(rows, labels, strict=True))
    assert written["annotators"]["ann"]["same"]["value"] == pytest.approx(100 * same / 6, abs=1e-4)


def test_the_page_speaks_the_language_that_was_asked_for(serve, tmp_path):
    small_run(tmp_path / "run", small_recipe("sts"))
    served = serve(read_examples(find_rows(str(tmp_path / "run")), "de"))
    body = served.get()[1] + served.post("ann", 0, "0.5")[1]
    assert '<html lang="de">' in body and "Satz 1" in body and "Sentence 1" not in body


def test_a_request_whose_bytes_do_not_come_is_ended(served, monkeypatch):
    monkeypatch.setattr("sts_dino.eval.audit.annotate._Handler.timeout", 0.5)
    with socket.create_connection(served.page.server_address, timeout=10) as raw:
        raw.sendall(f"POST {served.page.root} HTTP/1.1\r\n".encode())
        assert raw.recv(100) == b""
    assert served.get()[0] == 200

"""Recorded answers of OpenAI's API, vLLM, Ollama and llama.cpp: the probe, a run, errors, turns."""

import json
import re
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from serving import Reply, ordered_server
from tiny_lm import make_tokenizer

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)

from sts_dino.generation.backends.openai_server import Pace, parse_duration
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.pipeline import job
from sts_dino.hub.contract.recipe import DatasetRecipe, DecodingParameters, LanguageModel, Server
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError, RunError, StsDinoError
from sts_dino.new import CorpusChoices, propose
from sts_dino.proposals.chat_server import try_chat

RECORDED = yaml.safe_load(Path(__file__).with_name("recorded_dialects.yaml").read_text())
pytest_plugins = ["corpus_file"]
SENTENCES = [f"The ferry number {number} leaves the harbour at noon." for number in range(3)]
SETTINGS = DecodingParameters(top_k=0)
REQUEST = Request('Say "a". Sentence 2: "', (), 0)

Write = Callable[[dict[str, Any], int], str]


def write_sentence(body: dict[str, Any], index: int) -> str:
    """A JSON sentence of its own for each request and choice."""
    return json.dumps({"sentence": f"Boat {index} sails with {body['seed']} people."})


def replay(dialect: str, write: Write = write_sentence) -> Callable[[dict[str, Any], int], Reply]:
    """The recorded server: it refuses fields, serves or ignores ``n``, and counts tokens."""
    recorded = RECORDED[dialect]

    def reply(body: dict[str, Any], _: int) -> Reply:
        for field, error in recorded.get("refuses", {}).items():
            if field in body:
                return error["status"], {}, json.dumps(error["body"])
        payload = deepcopy(recorded["answer"])
        (choice,) = payload["choices"]
        count = body.get("n", 1) if recorded["serves_n"] else 1
        payload["choices"] = [deepcopy(choice) for _ in range(count)]
        for index, choice in enumerate(payload["choices"]):
            choice["index"] = index
            choice["message"]["content"] = write(body, index)
        if not recorded.get("counts_one_text"):
            payload["usage"]["completion_tokens"] *= count
        return 200, recorded.get("headers", {}), json.dumps(payload)

    return reply


def connect(base_url: str, dialect: str, **server: object) -> Any:
    given = {"base_url": base_url, "model": "m", "dialect": dialect, "max_retries": 0, **server}
    tree = {"backend": "openai", "license": "x", "chat_template": True, "server": given}
    return load_writer(LanguageModel.model_validate(tree))


@pytest.mark.parametrize("dialect", RECORDED)
def test_new_proposes_a_recipe_and_a_run_keeps_every_text(dialect, corpus, caplog):
    recorded = RECORDED[dialect]
    encoder = corpus.with_name("encoder")
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    SentenceTransformer(modules=[words]).save_pretrained(str(encoder))
    pairs = 3 * len(SENTENCES)
    texts = 4 * pairs

    with ordered_server(replay(dialect), documents=recorded["documents"]) as server:
        choices = CorpusChoices(lm=f"m@{server.base_url}", lm_license="mit")
        proposal = propose(corpus, corpus.with_name("texts.yaml"), "pairs", choices)
        recipe = load_recipe(proposal.recipe, DatasetRecipe)
        assert recorded["software"] in proposal.generator.why
        assert recipe.model.server.dialect == recorded["dialect"]
        assert recipe.model.server.concurrency == recorded["concurrency"]
        assert recipe.model.server.structured_output and recipe.model.server.example_turns
        has_refusals = "max_tokens" in recorded.get("refuses", {})
        assert len(server.bodies) == 1 + has_refusals

        # best of four, whichever encoders are on this machine
        server.bodies.clear()
        selection = json.dumps({"candidates": 4, "path": str(encoder)})
        settings = [f"selection={selection}", "model.server.choices=4", "decoding.max_attempts=8"]
        recipe = load_recipe(proposal.recipe, DatasetRecipe, settings)
        manifest = job.generate(recipe, corpus.with_name("run"), "test")

    assert manifest.counts["kept"] == pairs
    assert manifest.counts["rejected"] == {"not_best": texts - pairs}
    usage = json.loads(corpus.with_name("run.usage.json").read_text())
    assert usage["models"] == {recorded["answer"]["model"]: texts}
    answered = [body for body in server.bodies if "max_tokens" not in body or not has_refusals]
    assert len(answered) == (pairs if recorded["serves_n"] else texts)
    assert usage["prompt_tokens"] == 210 * len(answered)
    counts_all = not recorded.get("counts_one_text")
    assert usage["completion_tokens"] == 18 * (texts if counts_all else pairs)
    assert ("gives 1 of the texts" in caplog.text) == (not recorded["serves_n"])
    if has_refusals:
        assert all("max_completion_tokens" in body for body in answered)
        refused = len(server.bodies) - len(answered)
        assert 1 <= refused <= recorded["concurrency"], "those under way before the first answer"


ERRORS = [(dialect, name) for dialect in RECORDED for name in RECORDED[dialect].get("errors", ())]


@pytest.mark.parametrize(("dialect", "name"), ERRORS)
def test_a_recorded_error_is_one_line_with_its_remedy(dialect, name, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    error = RECORDED[dialect]["errors"][name]
    answer = error["status"], error.get("headers", {}), json.dumps(error["body"])
    with (
        ordered_server(lambda *_: answer) as server,
        pytest.raises(StsDinoError, match=error["says"]) as caught,
    ):
        writer = connect(server.base_url, RECORDED[dialect]["dialect"], structured_output=True)
        complete(writer, [REQUEST], SETTINGS)
    assert caught.value.exit_code == error["exit_code"] and "\n" not in str(caught.value)


TURNS = [(dialect, name) for dialect in RECORDED for name in RECORDED[dialect].get("turns", ())]


@pytest.mark.parametrize(("dialect", "name"), TURNS)
def test_a_recorded_turn_is_its_text_or_has_a_problem(dialect, name):
    """The second answer: the first one proves that the server has JSON by a schema."""
    recorded = RECORDED[dialect]
    turn = dict(recorded["turns"][name])
    expected = turn.pop("text"), turn.pop("problem")
    payload = deepcopy(recorded["answer"])
    payload["choices"][0] |= turn
    if "prompt_logprobs" in turn:
        payload["prompt_logprobs"] = payload["choices"][0].pop("prompt_logprobs")
    proof = replay(dialect)

    def reply(body: dict[str, Any], number: int) -> Reply:
        return (200, {}, json.dumps(payload)) if number else proof(body, number)

    with ordered_server(reply) as server:
        writer = connect(
            server.base_url, recorded["dialect"], structured_output=True, concurrency=1
        )
        requests = [REQUEST, Request(REQUEST.prompt, (), 1 << 33)]
        completions = complete(writer, requests, SETTINGS)
    assert completions[0].problem is None
    assert (completions[1].text, completions[1].problem) == expected


def test_a_refusal_as_the_first_answer_does_not_end_the_run():
    payload = deepcopy(RECORDED["openai"]["answer"])
    payload["choices"][0] |= {"message": RECORDED["openai"]["turns"]["refusal"]["message"]}
    with ordered_server(lambda *_: (200, {}, json.dumps(payload))) as server:
        (completion,) = complete(
            connect(server.base_url, "openai", structured_output=True), [REQUEST], SETTINGS
        )
    assert completion.problem == "about_the_task"


REASONING = [
    ("vllm", "reasoning of today"),
    ("vllm", "reasoning of earlier versions"),
    ("ollama", "thinking"),
    ("llamacpp", "reasoning"),
]


@pytest.mark.parametrize(("dialect", "name"), REASONING)
def test_a_model_that_only_reasons_is_refused_by_the_probe(dialect, name):
    recorded = RECORDED[dialect]
    payload = deepcopy(recorded["answer"])
    payload["choices"][0] |= recorded["turns"][name]
    with (
        ordered_server(lambda *_: (200, {}, json.dumps(payload))) as server,
        pytest.raises(InputError, match=r"reasons before it answers.*switch its reasoning off"),
    ):
        try_chat(Server(base_url=server.base_url, model="m", dialect=recorded["dialect"]))
    assert len(server.bodies) == 1


def test_the_probe_of_openai_sends_no_field_that_it_refuses():
    with ordered_server(replay("openai")) as server:
        probe = try_chat(Server(base_url=server.base_url, model="m"))
    assert probe.has_schema and "top_k" not in server.bodies[0]
    with (
        ordered_server(replay("openai")) as server,
        pytest.raises(InputError, match="argument supplied: top_k"),
    ):
        writer = connect(server.base_url, "openai")
        complete(writer, [REQUEST], DecodingParameters(top_k=5))


def test_a_new_limit_that_is_refused_for_another_reason_is_one_line():
    body = {"error": {"message": "'max_tokens' or 'max_completion_tokens' is too large: 4000."}}
    with (
        ordered_server(lambda *_: (400, {}, json.dumps(body))) as server,
        pytest.raises(InputError, match="is too large: 4000"),
    ):
        complete(connect(server.base_url, "vllm"), [REQUEST], SETTINGS)
    assert len(server.bodies) == 2


def test_a_429_of_openai_is_waited_for_and_the_request_sent_again():
    error = RECORDED["openai"]["errors"]["rate limit"]
    headers = {"retry-after": "1", "x-ratelimit-remaining-requests": "0"}
    accept = replay("openai")

    def reply(body: dict[str, Any], number: int) -> Reply:
        if number == 0:
            return 429, headers, json.dumps(error["body"])
        return accept(body, number)

    with ordered_server(reply) as server:
        writer = connect(server.base_url, "openai", structured_output=True, max_retries=2)
        (completion,) = complete(writer, [REQUEST], SETTINGS)
    assert completion.problem is None
    assert server.times[1] - server.times[0] >= 0.9


LIMITS = {
    "x-ratelimit-limit-requests": "3",
    "x-ratelimit-remaining-requests": "1",
    "x-ratelimit-reset-requests": "20s",
    "x-ratelimit-limit-tokens": "40000",
    "x-ratelimit-remaining-tokens": "39000",
    "x-ratelimit-reset-tokens": "1.5s",
}


@pytest.mark.parametrize("limit", ["requests", "tokens"])
def test_nothing_is_sent_before_a_used_up_limit_is_reset(limit):
    """The second answer says that nothing remains; the third request waits, and all others."""
    used_up = {f"x-ratelimit-remaining-{limit}": "0", f"x-ratelimit-reset-{limit}": "700ms"}
    answer = json.dumps(RECORDED["openai"]["answer"])

    def reply(_: dict[str, Any], number: int) -> Reply:
        return 200, LIMITS | used_up if number == 1 else LIMITS, answer

    requests = [Request(REQUEST.prompt, (), number << 33) for number in range(4)]
    with ordered_server(reply) as server:
        complete(connect(server.base_url, "openai", concurrency=1), requests, SETTINGS)
    assert len(server.times) == 4
    assert server.times[2] - server.times[1] >= 0.65


def test_a_run_that_ends_does_not_wait_for_a_limit():
    """One request is refused while the others wait a minute: they are not sent."""
    headers = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m0s"}
    answer = json.dumps(RECORDED["openai"]["answer"])
    is_sent = threading.Event()

    def reply(body: dict[str, Any], number: int) -> Reply:
        if body["seed"] == 0:  # refused when the other answer is here and its successors wait
            is_sent.set()
            time.sleep(1.5)
            return 400, {}, "{}"
        is_sent.wait(60)
        return 200, headers, answer

    requests = [Request(REQUEST.prompt, (), number << 33) for number in range(5)]
    started = time.monotonic()
    with (
        ordered_server(reply) as server,
        pytest.raises(InputError, match="refuses the request, HTTP 400"),
    ):
        complete(connect(server.base_url, "openai", concurrency=2), requests, SETTINGS)
    assert time.monotonic() - started < 45 and len(server.bodies) == 2


def test_the_times_of_limit_headers_are_read_and_bounded():
    times = {"12ms": 0.012, "1s": 1, "6m0s": 360, "1h2m3s": 3723, "8.64s": 8.64, "20": 20, "0": 0}
    assert {text: parse_duration(text) for text in times} == pytest.approx(times)
    for text in ("", "-1", "soon", "1 s", "12msx", "1e9s", "2026-11-29T12:00:00Z"):
        assert parse_duration(text) == 0, text
    for headers in (
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6h0m0s"},
        {"x-ratelimit-remaining-requests": "-1", "x-ratelimit-reset-requests": "60s"},
        {"x-ratelimit-remaining-requests": "0"},
    ):
        pace = Pace(8)
        pace.follow_limits(headers)
        started = time.monotonic()
        pace.wait()
        assert time.monotonic() - started < 1, headers


def test_no_error_of_these_servers_is_a_traceback():
    """Each error, also as an error object of an answer 200, as gateways send it."""
    for dialect, name in ERRORS:
        error = RECORDED[dialect]["errors"][name]
        answer = 200, {}, json.dumps(error["body"])
        with (
            ordered_server(lambda *_, answer=answer: answer) as server,
            pytest.raises((InputError, RunError)) as caught,
        ):
            complete(connect(server.base_url, "openai"), [REQUEST], SETTINGS)
        assert re.fullmatch(r"[^\n]+", str(caught.value)), (dialect, name)

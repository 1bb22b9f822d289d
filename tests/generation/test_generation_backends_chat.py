"""Chat servers: what one is, the probe, examples as turns, the pace of requests, and the budget."""

import json
import re
import time
from pathlib import Path

import pytest
from serving import Reply, chat_answer, ordered_server

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)

from sts_dino.generation.backends.dialects import make_body
from sts_dino.generation.backends.openai_server import OpenAIServer, Pace
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.backends.registry import OPENAI_URL, load_writer, parse_server
from sts_dino.generation.pipeline.reporting import report_usage
from sts_dino.hub.contract.published_paths import format_command
from sts_dino.hub.contract.recipe import (
    DECIDING,
    PUBLISHED,
    DecodingParameters,
    LanguageModel,
    Server,
)
from sts_dino.hub.errors import InputError, RunError
from sts_dino.proposals.chat_server import find_server_facts, try_chat

SETTINGS = DecodingParameters(top_k=0)
TURNS = (('Say "a". Sentence 2: "', "One says a."),)
REQUESTS = [
    Request(f'Say "{number}". Sentence 2: "', (), number << 33, number, example_turns=TURNS)
    for number in range(6)
]
JSON_SENTENCE = '{"sentence": "The ferry leaves twice."}'


def section(base_url: str = "http://localhost:1/v1", **server: object) -> LanguageModel:
    given = {"base_url": base_url, "model": "m", "example_turns": True, "max_retries": 0, **server}
    tree = {"backend": "openai", "license": "x", "chat_template": True, "server": given}
    return LanguageModel.model_validate(tree)


def connect(base_url: str, directory: Path | None = None, **server: object) -> OpenAIServer:
    writer = load_writer(section(base_url, **server), directory)
    assert isinstance(writer, OpenAIServer)
    return writer


# Recorded answers of servers to GET, shortened
LLAMACPP_PROPS = {
    "total_slots": 4,
    "model_path": "/home/me/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "chat_template": "{%- if tools %}",
}


@pytest.mark.parametrize(
    ("owner", "documents", "software", "dialect", "slots"),
    [
        ("llamacpp", {"/props": LLAMACPP_PROPS}, "llama.cpp", "llamacpp", 4),
        ("llamacpp", {"/props": {"total_slots": "many"}}, "llama.cpp", "llamacpp", None),
        ("vllm", {}, "vLLM", "vllm", None),
        ("library", {"/api/version": {"version": "0.13.1"}}, "Ollama 0.13.1", "openai", None),
        ("organization-owner", {}, "a server of OpenAI's API", "openai", None),
        ("x", {"/v1/models": {"data": "none"}}, "a server of OpenAI's API", "openai", None),
        ("x", {"/v1/models": {"data": [{}]}}, "a server of OpenAI's API", "openai", None),
    ],
)
def test_a_servers_own_answers_name_its_software(owner, documents, software, dialect, slots):
    with ordered_server(lambda *_: None, owner, documents) as server:
        facts = find_server_facts(Server(base_url=server.base_url, model="m"))
    assert (facts.software, facts.dialect, facts.slots) == (software, dialect, slots)
    assert facts.models == (() if "/v1/models" in documents else ("m",))
    assert facts.model_file in ("", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")


def refuse_schema(body: dict, _: int) -> Reply:
    if "response_format" in body:
        return 400, {}, '{"error": {"message": "response_format is not supported"}}'
    return chat_answer('"The ferry leaves twice."')


def refuse_chat(body: dict, _: int) -> Reply:
    if "messages" in body:  # a template that needs tools, as llama.cpp says it
        return 500, {}, '{"error": {"message": "got exception: needs a tool"}}'
    return 200, {}, json.dumps({"choices": [{"text": 'It leaves."', "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("reply", "has_chat", "has_schema", "requests", "finding"),
    [
        (lambda *_: chat_answer(JSON_SENTENCE), True, True, 1, "'The ferry leaves twice.'"),
        (lambda *_: chat_answer("Twice."), True, False, 2, "'Twice.'; .*without the JSON"),
        (refuse_schema, True, False, 2, "is not supported"),
        (refuse_chat, False, False, 7, "'It leaves.'; .*needs a tool"),
    ],
)
def test_one_probe_decides_how_a_server_is_asked(reply, has_chat, has_schema, requests, finding):
    with ordered_server(reply) as server:
        probe = try_chat(Server(base_url=server.base_url, model="m", max_retries=0))
        count = len(server.bodies)
    assert (probe.has_chat, probe.has_schema, count) == (has_chat, has_schema, requests)
    assert re.search(finding, probe.finding), probe.finding
    assert "\n" not in probe.finding


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_refuses_in_all_ways_is_one_line(status):
    with (
        ordered_server(lambda *_: (status, {}, "{}")) as server,
        pytest.raises(InputError, match=f"HTTP {status}"),
    ):
        try_chat(Server(base_url=server.base_url, model="m"))


def test_examples_are_turns_in_the_form_of_the_answer():
    def ask(**server: object) -> dict:
        model = section(**server)
        assert model.server is not None
        return make_body(model, model.server, REQUESTS[0], SETTINGS)

    plain = ask()["messages"]
    assert [turn["role"] for turn in plain] == ["user", "assistant", "user"]
    assert plain[0]["content"] == 'Say "a". Sentence 2: ' and plain[1]["content"] == '"One says a."'
    structured = ask(structured_output=True, dialect="llamacpp")
    assert structured["messages"][1]["content"] == '{"sentence": "One says a."}'
    assert structured["ignore_eos"] is False, "the JSON's end is the end of text"
    assert ask(dialect="llamacpp")["messages"][-1] == {"role": "assistant", "content": '"'}
    with pytest.raises(ValueError, match="example_turns are turns of a chat"):
        LanguageModel.model_validate(
            {**section().model_dump(exclude_none=True), "chat_template": False}
        )


def test_a_second_choice_that_nobody_asked_for_is_left():
    answer = json.loads(chat_answer(JSON_SENTENCE)[2])
    answer["choices"].append({"message": {"content": '{"sentence": "No."}'}})
    with ordered_server(lambda *_: (200, {}, json.dumps(answer))) as server:
        writer = connect(server.base_url, structured_output=True)
        (completion,) = complete(writer, REQUESTS[:1], SETTINGS)
    assert completion.text == "The ferry leaves twice." and "n" not in server.bodies[0]


def test_429_halves_the_requests_under_way_and_stops_all_of_them():
    pace = Pace(8)
    pace.record_answer(429, "0.3")
    assert pace.allowed == 4
    started = time.monotonic()
    pace.wait()
    assert 0.2 < time.monotonic() - started < 2
    for _ in range(7):  # the other requests that were in flight
        pace.record_answer(429, "")
    assert pace.allowed == 4
    pace.record_answer(429, "soon")
    assert pace.allowed == 2
    for _ in range(200):
        pace.record_answer(200, "")
    assert pace.allowed == 8
    pace.record_answer(429, "0")  # a later burst counts at once
    assert pace.allowed == 4
    for _ in range(100):
        pace.record_answer(429, "0")
    assert pace.allowed == 1


def test_an_hour_of_rate_limits_ends_the_run_resumably(tmp_path):
    limited = [True]

    def reply(body: dict, number: int) -> Reply:
        if limited and number >= 2:
            return 429, {"Retry-After": "3600"}, "{}"
        return chat_answer('"Yes."')

    with ordered_server(reply) as server:
        with pytest.raises(RunError, match=r"HTTP 429.*after 3600 s run the same command again"):
            writer = connect(server.base_url, tmp_path / "run", concurrency=1)
            complete(writer, REQUESTS, SETTINGS)
        limited.clear()
        asked = len(server.bodies)
        complete(connect(server.base_url, tmp_path / "run"), REQUESTS, SETTINGS)
    assert len(server.bodies) - asked == len(REQUESTS) - 2


def test_a_budget_stops_the_run_and_a_larger_one_resumes_it(tmp_path):
    prices = {"price_per_million": [1000.0, 1000.0], "concurrency": 1}  # 0.015 an answer
    with ordered_server(lambda *_: chat_answer('"Yes."')) as server:
        url = server.base_url
        writer = connect(url, tmp_path / "run", budget=0.16, **prices)
        with pytest.raises(
            RunError, match=r"the budget of 0.16 is used up: 0.0[0-9]+ spent"
        ) as end:
            complete(writer, REQUESTS, SETTINGS)
        assert end.value.exit_code == 1 and "larger --budget" in str(end.value)
        assert 1 <= len(server.bodies) < 6 and writer.usage["cost"] <= 0.16
        complete(connect(url, tmp_path / "run", budget=5, **prices), REQUESTS, SETTINGS)
        assert len(server.bodies) == 6, "nothing is paid twice"
        with pytest.raises(RunError, match="the budget of 0 is used up"):
            complete(connect(url, budget=0, **prices), REQUESTS, SETTINGS)
        assert len(server.bodies) == 6

        server._reply = lambda *_: (200, {}, '{"choices": [{"message": {"content": "Yes."}}]}')
        with pytest.raises(InputError, match="counts no tokens in its answers"):
            complete(connect(url, budget=5, **prices), REQUESTS[:1], SETTINGS)
    with pytest.raises(ValueError, match="a budget needs the prices"):
        section(budget=1)


def test_a_budget_is_neither_published_nor_part_of_a_runs_identity():
    prices = {"price_per_million": [1.0, 1.0]}
    with_budget = section(budget=3, **prices)
    without = section(**prices)
    for context in (PUBLISHED, DECIDING):
        assert with_budget.model_dump(context=context) == without.model_dump(context=context)
    command = format_command("write", Path("a.yaml"), None, ["model.server.budget=3", "seed=1"])
    assert command == "sts-dino write a.yaml --set seed=1"


def test_a_model_that_changes_its_name_is_recorded_and_said(tmp_path, caplog):
    with ordered_server(lambda _, n: chat_answer('"Yes."', model=f"m-{n % 2}")) as server:
        writer = connect(server.base_url, tmp_path / "run", concurrency=1)
        with report_usage(writer, tmp_path / "run"):
            complete(writer, REQUESTS, SETTINGS)
    usage = json.loads((tmp_path / "run.usage.json").read_text())
    assert usage["models"] == {"m-0": 3, "m-1": 3}
    assert "the server changed the model between answers: m-0 (3), m-1 (3)" in caplog.text


def test_openais_own_address_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = parse_server("--lm", "openai/gpt-4o-mini")
    assert server is not None and (server.model, server.base_url) == ("gpt-4o-mini", OPENAI_URL)
    for hub_model in ("openai/gpt-oss-20b@main", "openai/", "openai/a/b", "openai"):
        assert parse_server("--lm", hub_model) is None
    Path("openai/gpt").mkdir(parents=True)
    assert parse_server("--lm", "openai/gpt") is None, "a folder"


def test_the_scheme_of_an_address_in_capitals_is_refused_without_its_password():
    with pytest.raises(InputError, match=r"^--lm: the URL cannot be used; allowed: NAME@http://"):
        parse_server("--lm", "m@HTTPS://user:password@host/v1")
    with pytest.raises(InputError, match=r"^--lm: is a URL without the name of a model"):
        parse_server("--lm", "@http://host/v1")

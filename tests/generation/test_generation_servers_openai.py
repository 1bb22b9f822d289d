"""The OpenAI backend against an HTTP server that misbehaves to order. The real server: ..._serving."""

import json
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from serving import Reply, chat_completion, completion, free_port, ordered_server
from tiny_lm import make_lm

pytest.importorskip("openai", reason='the extra openai is not installed: pip install -e ".[openai]"')

from generation.decoding.protocol import Completion, Request, complete
from generation.pipeline.writers import load_writer
from generation.servers.openai_server import OpenAIServer
from hub.contract.recipe import DatasetRecipe, DecodingParameters, LanguageModel
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError, RunError, StsDinoError

SETTINGS = DecodingParameters(decay_constant=0.0, epsilon=1.0, top_k=0)
REQUESTS = [Request(f'Write about "{number}". Answer: "', (), number << 33, number) for number in range(8)]
KEY = "sk-a-secret-of-the-test"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def connect(base_url: str, directory: Path | None = None, chat: bool = False, **server: object) -> OpenAIServer:
    section = {"base_url": base_url, "model": "lm", "max_retries": 0, "timeout": 20, **server}
    model = {"backend": "openai", "license": "x", "chat_template": chat, "server": section}
    writer = load_writer(LanguageModel.model_validate(model), directory)
    assert isinstance(writer, OpenAIServer)
    return writer


def failure(writer: OpenAIServer, requests: list[Request] = REQUESTS[:1]) -> StsDinoError:
    with pytest.raises(StsDinoError) as caught:
        complete(writer, requests, SETTINGS)
    said = repr(caught.value) + repr(caught.value.__context__) + repr(caught.value.__cause__) + repr(vars(writer))
    assert KEY not in said and "\n" not in str(caught.value)
    return caught.value


def echo(body: dict, _: int) -> Reply:
    return completion(body["prompt"][13:-11] + '" and more')


def test_answers_come_back_with_their_requests_and_the_key_only_in_its_header():
    with ordered_server(echo) as server:
        found = complete(connect(server.base_url), REQUESTS, SETTINGS)
    assert found == [Completion(str(number), None, None, None) for number in range(8)]
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert server.paths == ["/v1/completions"] * 8 and KEY not in json.dumps(server.bodies)
    assert sorted(body["seed"] for body in server.bodies) == list(range(8))


def test_chat_answers():
    with ordered_server(
        lambda body, _: chat_completion(None if "0" in body["messages"][0]["content"] else "Yes.")
    ) as s:
        found = complete(connect(s.base_url, chat=True), REQUESTS[:2], SETTINGS)
    assert [(f.text, f.problem) for f in found] == [("", "empty"), ("Yes.", None)]
    assert s.paths == ["/v1/chat/completions"] * 2


def test_so_many_requests_are_under_way_and_no_more():
    together, lock, now, most = threading.Barrier(3), threading.Lock(), [0], [0]

    def reply(body: dict, number: int) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if number < 3:
            together.wait(timeout=20)  # breaks, and the test fails, unless three are under way
        with lock:
            now[0] -= 1
        return echo(body, number)

    with ordered_server(reply) as server:
        complete(connect(server.base_url, concurrency=3), REQUESTS, SETTINGS)
    assert most[0] == 3 and not together.broken


def test_the_queue_is_drained_as_answers_come_and_may_grow_meanwhile():
    with ordered_server(echo) as server:
        queue = deque(REQUESTS[:6])
        stream = connect(server.base_url, concurrency=1).stream(queue, SETTINGS, None)
        next(stream)
        assert len(queue) == 5 and len(server.bodies) == 1
        queue.extend(REQUESTS[6:])
        assert {request.key for request, _ in stream} == set(range(1, 8)) and len(server.bodies) == 8


def test_busy_and_broken_servers_are_asked_again_and_retry_after_is_kept():
    troubles: list[Reply] = [(429, {"Retry-After": "1.2"}, "{}"), None, (503, {}, "oh")]
    with ordered_server(lambda body, n: troubles[n] if n < len(troubles) else echo(body, n)) as server:
        assert complete(connect(server.base_url, max_retries=4), REQUESTS[:1], SETTINGS)[0].text == "0"
    assert len(server.bodies) == 4
    assert server.times[1] - server.times[0] >= 1.2  # without the header at most 0.5 s


def test_a_server_that_stays_broken_is_a_failed_run():
    with ordered_server(lambda *_: (500, {}, '{"error": "no\nmemory"}')) as server:
        error = failure(connect(server.base_url, max_retries=1))
    assert isinstance(error, RunError) and len(server.bodies) == 2
    assert "HTTP 500" in str(error) and "no memory" in str(error) and "run the same command again" in str(error)


def test_a_server_that_asks_to_wait_for_long_is_not_waited_for():
    with ordered_server(lambda *_: (429, {"Retry-After": "3600"}, "{}")) as server:
        error = failure(connect(server.base_url, max_retries=6))
    assert isinstance(error, RunError) and "after 3600 s run the same command again" in str(error)
    assert len(server.bodies) == 1


def test_a_silent_server_is_given_up():
    released = threading.Event()
    with ordered_server(lambda *_: (released.wait(60), completion("x"))[1]) as server:
        error = failure(connect(server.base_url, timeout=0.3, max_retries=1))
        released.set()
    assert isinstance(error, RunError) and "no answer within 0.3 s" in str(error) and len(server.bodies) == 2


def test_nobody_listens():
    error = failure(connect(f"http://127.0.0.1:{free_port()}/v1"))
    assert isinstance(error, RunError) and "cannot be reached" in str(error) and "refused" in str(error)


def test_a_wrong_key_stops_at_once_and_is_not_repeated():
    with ordered_server(lambda *_: (401, {}, f'{{"error": {{"message": "Incorrect key: {KEY}"}}}}')) as server:
        error = failure(connect(server.base_url, max_retries=6, concurrency=1), REQUESTS)
    assert isinstance(error, InputError) and "HTTP 401" in str(error) and "OPENAI_API_KEY" in str(error)
    assert len(server.bodies) == 1


def test_requests_under_way_when_one_fails_are_kept_and_no_other_is_begun(tmp_path):
    together = threading.Barrier(4)

    def reply(body: dict, number: int) -> Reply:
        together.wait(timeout=20)
        return (403, {}, "{}") if body["seed"] == 0 else echo(body, number)

    with ordered_server(reply) as server:
        writer = connect(server.base_url, tmp_path / "run", concurrency=4)
        failure(writer, REQUESTS)
    assert len(server.bodies) == 4 and writer.usage["answers"] == 3


def test_the_clients_own_log_does_not_show_the_key(monkeypatch, caplog):
    caplog.set_level("DEBUG")
    with ordered_server(lambda *_: (401, {}, "{}")) as server:
        failure(connect(server.base_url))
    assert "/completions" in caplog.text and KEY not in caplog.text


def test_without_a_key_the_error_says_where_it_belongs(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with ordered_server(lambda *_: (401, {}, "{}")) as server:
        assert "without a key; set OPENAI_API_KEY" in str(failure(connect(server.base_url)))


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_field_is_one_error_that_names_the_fields(status):
    words = f'{{"detail": "Unexpected fields: [\'top_k\'], key {KEY}\x1b[31m"}}'
    with ordered_server(lambda *_: (status, {}, words)) as server, pytest.raises(InputError) as caught:
        complete(connect(server.base_url), REQUESTS[:1], SETTINGS.model_copy(update={"top_k": 5}))
    said = str(caught.value)
    assert "Unexpected fields: ['top_k'], key [key] [31m" in said and KEY not in said and "\x1b" not in said
    assert "fields sent: model, max_tokens, seed, prompt, stop, temperature, top_p, top_k" in said
    assert "check model.server (decoding.top_k=0 leaves top_k out)" in said


def test_an_unknown_model_or_address():
    with ordered_server(lambda *_: (404, {}, '{"error": "no model lm"}')) as server:
        error = failure(connect(server.base_url, max_retries=6))
    assert isinstance(error, InputError) and "no model lm" in str(error) and "base_url" in str(error)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, {"Content-Type": "text/html"}, "<h1>Welcome</h1>"), "not JSON: <h1>Welcome</h1>"),
        ((200, {}, "<h1>Welcome</h1>"), "not JSON"),
        ((200, {}, b'{"choices": "\xff"}'), "not JSON"),
        ((200, {}, '{"choices": []}'), "another form than OpenAI's: choices: "),
        ((200, {}, '{"choices": [{"text": 5}]}'), "another form than OpenAI's: choices.0.text: "),
        ((200, {}, '["no"]'), "another form than OpenAI's"),
    ],
)
def test_answers_that_are_none(reply, words, tmp_path):
    with ordered_server(lambda *_: reply) as server:
        writer = connect(server.base_url, tmp_path / "run")
        error = failure(writer)
    assert isinstance(error, RunError) and words in str(error) and writer.usage["answers"] == 0


def test_an_answer_that_holds_the_key_goes_nowhere(tmp_path):
    with ordered_server(lambda *_: completion(f'my key is {KEY}"')) as server:
        error = failure(connect(server.base_url, tmp_path / "run"))
    assert "holds the API key" in str(error)
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_what_was_answered_is_never_asked_again_and_the_cost_adds_up(tmp_path):
    prices = {"price_per_million": [2.0, 10.0]}
    with ordered_server(lambda body, n: echo(body, n) if n < 3 else (403, {}, "{}")) as server:
        url = server.base_url
        failure(connect(url, tmp_path / "run", concurrency=1, **prices), REQUESTS)
        server._reply = echo
        writer = connect(url, tmp_path / "run", concurrency=1, **prices)
        found = complete(writer, REQUESTS, SETTINGS)
    assert [completion.text for completion in found] == [str(number) for number in range(8)]
    asked = [body["prompt"] for body in server.bodies]
    assert asked == [REQUESTS[n].prompt for n in (0, 1, 2, 3, 3, 4, 5, 6, 7)]
    assert writer.usage == {
        "answers": 8, "prompt_tokens": 80, "completion_tokens": 40, "uncounted": 0, "cost": (80 * 2 + 40 * 10) / 1e6
    }  # fmt: skip
    assert connect(url, tmp_path / "other").usage["answers"] == 0


def test_everything_that_decides_an_answer_asks_anew(tmp_path):
    with ordered_server(echo) as server:

        def ask(request: Request = REQUESTS[0], settings: DecodingParameters = SETTINGS, **changes: object) -> int:
            complete(connect(server.base_url, tmp_path / "run", **changes), [request], settings)
            return len(server.bodies)

        assert [ask(), ask()] == [1, 1]
        assert ask(replace(REQUESTS[0], seed=1)) == 2  # the same 31 bits are sent, the row is another
        assert ask(replace(REQUESTS[0], prompt='Other "')) == 3
        assert ask(settings=SETTINGS.model_copy(update={"top_p": 0.8})) == 4
        assert ask(model="other") == 5 and ask(dialect="vllm") == 6
        assert ask(timeout=5, concurrency=2, max_retries=2, price_per_million=[1, 1]) == 6


def test_a_server_that_counts_no_tokens_is_told_apart_from_a_free_one():
    with ordered_server(lambda *_: (200, {}, '{"choices": [{"text": "Yes.\\""}]}')) as server:
        writer = connect(server.base_url)
        assert complete(writer, REQUESTS[:2], SETTINGS)[0].text == "Yes."
    assert writer.usage == {"answers": 2, "prompt_tokens": 0, "completion_tokens": 0, "uncounted": 2, "cost": None}


def test_tokens_are_counted_by_the_models_tokenizer_if_one_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer is named; give model.path or model.repo_id"):
        connect("http://localhost:1/v1").count_tokens("A man")
    server = {"base_url": "http://localhost:1/v1", "model": "lm"}
    model = {"backend": "openai", "license": "x", "server": server}
    local = LanguageModel.model_validate({**model, "path": str(make_lm(tmp_path))})
    writer = load_writer(local)
    assert writer.count_tokens("Two dogs run on the beach.") > 4 and writer.context == 0
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="its tokenizer cannot be loaded"):
        load_writer(local).count_tokens("A man")
    with pytest.raises(InputError, match=r"model.revision: .*; pin that of org/lm"):
        load_writer(LanguageModel.model_validate({**model, "repo_id": "org/lm"})).count_tokens("A man")


NLI, STS = Path("recipes/demo/auto-nli.yaml"), Path("recipes/demo/sts-dino-x2.yaml")


@pytest.mark.parametrize(
    ("recipe", "server", "message"),
    [
        (STS, "{base_url: 'http://localhost:1/v1', model: lm}", "have counter-labels: self-debiasing draws each token"),
        (NLI, "null", "backend openai needs the section server"),
        (NLI, "{base_url: 'localhost:1', model: lm}", "model.server.base_url"),
        (NLI, "{base_url: 'https://me:secret@host/v1', model: lm}", "model.server.base_url"),
        (NLI, "{base_url: 'http://localhost:1/v1', model: lm, key: sk-1}", "model.server.key: unknown key"),
        (NLI, "{base_url: 'http://h/v1', model: lm, dialect: transformers, logprobs: true}", "no log-probabilities"),
        (NLI, "{base_url: 'http://h/v1', model: lm, price_per_million: [-1, 1]}", "price_per_million"),
    ],
)
def test_recipes_that_do_not_fit_the_backend(recipe, server, message):
    with pytest.raises(InputError, match=message):
        load_recipe(recipe, DatasetRecipe, ["model.backend=openai", f"model.server={server}"])

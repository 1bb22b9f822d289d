"""What is sent to a server and how its answers are read: pure functions, no server."""

import json
import re
import textwrap
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from generation.decoding.protocol import Completion, Request
from generation.servers.answers import Answer, completed, read_answer, said
from generation.servers.dialects import endpoint, opens_quotation, request_body
from generation.servers.llamacpp import text_of
from hub.contract.recipe import DecodingParameters, LanguageModel, Server, TextEnd
from hub.errors import InputError

PROMPT = 'Write a sentence that entails "A man plays." in the form of a statement beginning with "Answer:". Answer: "'
SEED = 2**64 - 1


def body(chat: bool = False, top_k: int = 5, text_end: TextEnd = "quotation_mark", **server: object) -> dict:
    section = {"base_url": "http://localhost:1/v1", "model": "lm", **server}
    model = LanguageModel.model_validate(
        {"backend": "openai", "license": "x", "chat_template": chat, "server": section}
    )
    assert model.server is not None
    settings = DecodingParameters(decay_constant=0.0, epsilon=1.0, top_k=top_k, text_end=text_end)
    sent = request_body(model, model.server, Request(PROMPT, (), SEED), settings)
    assert (endpoint(model) == "/chat/completions") == chat == ("messages" in sent)
    assert opens_quotation(model, model.server) == ("stop" in sent)
    return sent


@pytest.mark.parametrize("dialect", ["openai", "vllm", "transformers", "llamacpp"])
def test_where_a_line_ends_a_text_the_line_break_alone_is_a_stop_word(dialect):
    assert body(dialect=dialect, text_end="line")["stop"] == ["\n"]
    assert body(dialect=dialect)["stop"] == (["\n"] if dialect == "openai" else ['"', "\n"])


def test_where_a_line_ends_a_text_a_server_that_stops_has_ended_it():
    for text, ended, found in (
        ('He said "no".', True, ('He said "no', None)),
        ("A man", True, ("A man", None)),
        ("A man", False, ("A man", "not_closed")),
    ):
        assert completed(text, None, "line", ended) == Completion(*found, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' A man plays." And more', ("A man plays.", None)),
        ('A man plays."', ("A man plays.", None)),
        ("A man plays", ("A man plays", "not_closed")),
        ('A man\nplays."', ("A man", "line_break")),
        ('"', ("", "empty")),
        ('  "', ("", "empty")),
        ("", ("", "not_closed")),
    ],
)
def test_a_continued_quotation_has_the_engines_problems(text, expected):
    assert completed(text, -1.5) == Completion(*expected, -1.5, None)


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        ('"A man plays."', "stop", ("A man plays.", None)),
        ('Answer: "A man plays."', "stop", ("A man plays.", None)),
        ('Sure! Here it is:\n\n"A man plays."\nAnything else?', "stop", ("A man plays.", None)),
        ("Here is a sentence:\nA man plays.", "stop", ("A man plays.", None)),
        ("\u201cA man plays.\u201d", "stop", ("A man plays.", None)),
        ("A man plays.", "stop", ("A man plays.", None)),
        ("Answer: A man plays.", "stop", ("A man plays.", None)),
        ("answer: A man plays.\n\nIt follows because", "length", ("A man plays.", None)),
        ('A man plays."', "length", ("A man plays.", None)),
        ('A man plays."\nAnd more', "length", ("A man plays.", None)),
        ("A man plays and", "length", ("A man plays and", "not_closed")),
        ('"A man plays and', "length", ("A man plays and", "not_closed")),
        ('"A man plays and', "stop", ("A man plays and", "not_closed")),
        ('"A man\nplays."', "stop", ("A man", "line_break")),
        ('The man said "hello" to her.', "stop", ('The man said "hello" to her.', "not_closed")),
        ('""', "stop", ("", "empty")),
        ("", "stop", ("", "empty")),
        ("Answer:", "stop", ("", "empty")),
    ],
)
def test_the_text_of_a_chat_models_own_turn(text, finish_reason, expected):
    assert said(PROMPT, Answer(text, finish_reason, None, None, None)) == Completion(*expected, None, None)


def test_a_plain_server_gets_nothing_that_openai_does_not_know_unless_the_recipe_asks_for_top_k():
    known = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}
    assert set(body(top_k=0)) == known and set(body()) == {*known, "top_k"}
    sent = body()
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"], sent["top_p"]) == (PROMPT, 40, 1.0, 0.9)
    assert sent["stop"] == ["\n"] and sent["seed"] == 2**31 - 1  # a closing mark as stop word looks like any other end
    assert body(logprobs=True)["logprobs"] == 1


def test_vllm_is_told_everything_that_a_models_own_configuration_could_change():
    sent = body(dialect="vllm", top_k=0)
    assert (sent["top_k"], sent["min_p"], sent["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert sent["stop"] == ['"', "\n"] and sent["include_stop_str_in_output"] is True


def test_transformers_serve_samples_only_when_its_configuration_says_so():
    sent = body(dialect="transformers", top_k=0)
    config = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 0.9, "repetition_penalty": 1.0}
    assert json.loads(sent["generation_config"]) == config and "top_k" not in sent
    assert sent["stop"] == ['"', "\n"]


def test_llama_cpp_is_told_all_its_samplers_and_to_name_the_stop_word():
    sent = body(dialect="llamacpp", top_k=0)
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["seed"]) == (1.0, 0, 0.9, 2**31 - 1)
    assert sent["samplers"] == ["top_k", "top_p", "temperature"] and sent["verbose"] is True
    assert sent["ignore_eos"] is True and body(dialect="llamacpp", text_end="line")["ignore_eos"] is False
    assert sent["stop"] == ['"', "\n"] and body(dialect="llamacpp", logprobs=True)["stop"] == ["\n"]


def test_what_llama_cpp_wrote_is_read_with_its_stop_word():
    server = Server(base_url="http://localhost:1/v1", model="lm", dialect="llamacpp")
    verbose = {"content": "A man plays.", "stopping_word": '"', "truncated": False}
    assert text_of({"__verbose": verbose}, server) == 'A man plays."'
    with pytest.raises(InputError, match=r"localhost:1/v1: its context was full before the text ended; start it with"):
        text_of({"__verbose": {**verbose, "truncated": True}}, server)
    with pytest.raises(
        InputError, match=r"does not tell in __verbose .*; take llama.cpp's server of July 2026 or newer"
    ):
        text_of({"choices": [{"text": "A man plays."}]}, server)
    for wrong in ({}, {**verbose, "content": "\ud800"}, {**verbose, "stopping_word": None}):
        with pytest.raises(ValidationError):
            text_of({"__verbose": wrong}, server)


def test_chat_sends_the_prompt_as_a_turn_and_begins_the_answer_where_the_server_can():
    turn = {"role": "user", "content": PROMPT.removesuffix('"')}
    assert body(chat=True)["messages"] == [turn] and body(chat=True, logprobs=True)["logprobs"] is True
    for dialect in ("vllm", "llamacpp"):
        begun = body(chat=True, dialect=dialect)
        assert begun["messages"] == [turn, {"role": "assistant", "content": '"'}]
        assert begun["continue_final_message"] is True and begun["add_generation_prompt"] is False


def test_log_probabilities_are_averaged_up_to_the_closing_mark():
    tokens = {"tokens": ["A", " man", '."', " And"], "token_logprobs": [-1.0, -2.0, -3.0, -40.0]}
    payload = {"choices": [{"text": 'A man." And', "logprobs": tokens}]}
    assert read_answer(payload, closes=True).log_prob == -2.0
    content = [{"token": token, "logprob": value} for token, value in zip(*tokens.values(), strict=True)]
    chat = {"choices": [{"message": {"content": "A man"}, "logprobs": {"content": content}}]}
    assert read_answer(chat, closes=True).log_prob == -2.0 and read_answer(chat, closes=False).log_prob == -11.5
    untold = {"choices": [{"text": "A", "logprobs": {"tokens": ["A", "b"], "token_logprobs": [None, -1.0]}}]}
    assert read_answer(untold, closes=True).log_prob is None
    unclosed = {"tokens": ["A", " man"], "token_logprobs": [-1.0, -2.0]}  # the mark and a stop word were one token
    assert read_answer({"choices": [{"text": 'A man"', "logprobs": unclosed}]}, closes=True).log_prob is None


@pytest.mark.parametrize(
    "payload",
    [
        {},
        [],
        None,
        {"error": "x"},
        {"choices": []},
        {"choices": [{"text": 5}]},
        {"choices": [{"text": "\ud800"}]},  # half a character: neither parquet nor the journal could hold it
        {"choices": [{"text": "A"}], "usage": {"prompt_tokens": 10**30}},
    ],
)
def test_an_answer_of_another_form_is_refused(payload):
    with pytest.raises(ValidationError):
        read_answer(payload, closes=True)


def test_the_documentations_recipes_are_valid():
    text = Path("docs/backends.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    sections = [yaml.safe_load(textwrap.dedent(block))["model"] for block in blocks if block.startswith("    model:")]
    assert [LanguageModel.model_validate(section).backend for section in sections] == ["openai"] * 4

"""Servers: requests and answers of every dialect, the cache of paid answers, and an HTTP server
that misbehaves.
"""

import gzip
import json
import random
import re
import socket
import sqlite3
import textwrap
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from commit_history import contents
from killing import killed
from pydantic import ValidationError
from serving import Reply, completion, free_port, ordered_server
from tiny_lm import make_lm

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)


from sts_dino.generation.backends import openai_server
from sts_dino.generation.backends.answer_text import extract_turn_text
from sts_dino.generation.backends.dialects import (
    DIALECTS,
    Answer,
    find_error_status,
    make_body,
    read_answer,
)
from sts_dino.generation.backends.openai_server import (
    AnswerCache,
    BrokenRequestError,
    OpenAIServer,
    RefusedRequestError,
    hash_request,
)
from sts_dino.generation.backends.protocol import Completion, Request, complete, extract_text
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.pipeline import job
from sts_dino.hub.contract.recipe import (
    DatasetRecipe,
    DecodingParameters,
    LanguageModel,
    Server,
    TextEnd,
)
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError, RunError, StsDinoError

PROMPT = (
    'Write a sentence that entails "A man plays." in the form of a statement beginning with '
    '"Answer:". Answer: "'
)
SEED = 2**64 - 1
SETTINGS = DecodingParameters(decay_constant=0.0, epsilon=1.0, top_k=0)
REQUESTS = [
    Request(f'Write about "{number}". Answer: "', (), number << 33, number) for number in range(8)
]
KEY = "sk-a-secret-of-the-test"


QUOTED: dict[str, tuple[str, str | None]] = {
    'A dog runs." and more': ("A dog runs.", None),
    ' A dog. "': ("A dog.", None),
    "A dog runs.": ("A dog runs.", "not_closed"),
    'A dog\nruns."': ("A dog", "line_break"),
    ' "': ("", "empty"),
    "": ("", "not_closed"),
}
LINES: dict[tuple[str, bool], tuple[str, str | None]] = {
    # what the authors' examples show
    ('A dog runs.".\nGenerate one', False): ("A dog runs.", None),
    ("A dog runs and", False): ("A dog runs and", "not_closed"),
    ('He said "no" to her.', True): ('He said "no" to her.', None),
    ('He said "no"', True): ('He said "no"', None),
    ('He said "no".', True): ('He said "no".', None),
    ('He said "no""', False): ('He said "no"', None),
    ('He said "no"', False): ('He said "no"', "not_closed"),
    ("\nA dog.", False): ("", "empty"),
    ('".', True): ("", "empty"),
}


def test_a_quotation_mark_or_a_line_ends_a_text():
    for text, found in QUOTED.items():
        assert (
            extract_text(text, True, "quotation_mark")
            == extract_text(text, False, "quotation_mark")
            == found
        )
    assert {asked: extract_text(*asked, "line") for asked in LINES} == LINES


TURNS = {
    ('Sure! Here it is:\n\n"A man plays."\nAnything else?', "stop"): ("A man plays.", None),
    ("\u201cA man plays.\u201d", "stop"): ("A man plays.", None),
    ("answer: A man plays.\n\nIt follows because", "length"): ("A man plays.", None),
    ('A man plays."\nAnd more', "length"): ("A man plays.", None),
    ('"A man plays and', "stop"): ("A man plays and", "not_closed"),
    ('The man said "hello" to her.', "stop"): ('The man said "hello" to her.', "not_closed"),
    ('""', "stop"): ("", "empty"),
}


def test_the_text_of_a_chat_models_own_turn():
    assert {
        (answer, end): extract_turn_text(PROMPT, answer, end == "stop") for answer, end in TURNS
    } == TURNS


S = "The boat departs at six."
MARKS = "«» »« »» ‹› 「」 『』 《》 '' ‘’ ‚‘ `` ＂＂ „“ „” “” ”” 〝〟 ❝❞"
THE_SENTENCE = [
    *(f"{pair[0]}{S}{pair[1]}" for pair in MARKS.split()),
    f"<think>a sentence?</think>\n\n{S}",
    f'[THINK]"no"[/THINK] "{S}"',
    f"one moment</think>{S}",
    f"```\n{S}\n```",
    f"```text\n{S}\n```",
    f"Here you go:\n```\n{S}\n```",
    f"```{S}```",
    f"Sure! Here is a sentence: {S}",
    f"Sure! Here is a sentence:\n\n{S}",
    f"Sure, here you go.\n\n{S}",
    f"Here's a paraphrase: «{S}»",
    f"Voici une phrase : «{S}»",
    f"1. {S}\n2. No.",
    f"2) {S}",
    f"- {S}",
    f"• {S}",
    f"**Answer:** {S}",
    f'**Answer**: "{S}"',
    f"Sentence 2: {S}",
    f"**Sentence 2:** {S}",
    f"1. *{S}*",
    f"**{S}**",
    f"{S}</s>",
    f"{S}<|im_end|>\n<|im_start|>user",
    f"<s> {S} <｜end▁of▁sentence｜>",
    f'\\"{S}\\"',
    f"\ufeff{S}\ufeff",
    f"<answer>\n{S}\n</answer>",
    f"{S} (Note: it has the same meaning.)",
    f"{S}\n\nNote: none.",
]
CLEAN = [
    "Remember: the boat leaves at 6:30.",
    "Here is the thing: he lied.",
    "«Le Monde» wrote it.",
    "Il dit : «Oui.»",
    "«A» and «B»",
    "It was the dogs’",
    "5 * 3 * 2 is 30.",
    "__init__ is a name.",
    "-5 degrees",
    "2 boats.",
    "1. man",
    "\U0001f44d",
]
NO_SENTENCE = {
    '<think>The answer: "no"': "not_a_sentence",
    f"<|channel|>analysis<|message|>{S}": "not_a_sentence",
    f"{S}<|im_end|><|im_start|>user": "not_a_sentence",
    "...": "not_a_sentence",
    "```": "not_a_sentence",
    "~~~": "not_a_sentence",
    "$ | $": "not_a_sentence",
    "": "empty",
    "\u200b\u2060": "empty",
    f"«{S}": "not_closed",
    f"„{S}": "not_closed",
    "ab " * 40_000: "too_long_answer",
    f'"{S * 5000}"': "too_long_answer",
}


def test_a_chat_servers_answer_is_the_sentence_alone_or_is_rejected():
    escaped = {'"He said \\"go\\" to me."': ('He said "go" to me.', None)}
    kept = (
        dict.fromkeys(THE_SENTENCE, (S, None))
        | {answer: (answer, None) for answer in CLEAN}
        | escaped
    )
    asked = [*kept, *NO_SENTENCE]
    requests = [
        Request(f"Rewrite 1. man. Sentence 3 of {n}. {PROMPT}", (), n << 33)
        for n in range(len(asked))
    ]
    with ordered_server(
        lambda body, _: completion("", message={"content": asked[body["seed"]]})
    ) as server:
        found = complete(connect(server.base_url, chat=True), requests, SETTINGS)
    assert {
        answer: (one.text, one.problem)
        for answer, one in zip(asked, found, strict=True)
        if answer in kept
    } == kept
    assert [one.problem for one in found[len(kept) :]] == list(NO_SENTENCE.values())
    assert max(len(one.text) for one in found) <= 32 * SETTINGS.max_new_tokens
    plain = ['\ufeffA dog.</s>"', '\u200b"', 'He said \\"no\\""', '</think> A"']
    with ordered_server(lambda _, n: completion(plain[n])) as server:
        found = complete(connect(server.base_url, concurrency=1), REQUESTS[:4], SETTINGS)
    assert [one.problem for one in found] == [None, "empty", "not_closed", "not_a_sentence"]
    assert found[0].text == "A dog."


LEAD_INS = [
    *("Output:", "Rephrased:", "Paraphrase:", "S2:", "Sentence 2 -", "Sentence 2:", "User:"),
    *("Assistant:", "→", "=>", "Result:", "Text 2:", "Response:", "T2:"),
]
FRAMES = [
    "{}",
    "&ldquo;{}&#8221;",
    '"{}"',
    "**{}**",
    "{}\\n",
    "&quot;{}&quot;",
    "\\boxed{{{}}}",
    "1. {}",
    "“{}”",
]
REFUSALS = [
    *("As an AI language model, I cannot {}", "I'm sorry, but I can't {}", "I cannot {}"),
    *("I am unable to {}", "Sorry, I won't {}", "Unfortunately, I can’t {}"),
]
VERBS = ["help with that.", "generate this text.", "provide a sentence.", "comply.", "write it."]
ABOUT_THE_TASK = [
    *(form.format(verb) for form in REFUSALS for verb in VERBS),
    "Error: rate limit exceeded, please retry in 20 s",
    "Rate limit exceeded.",
    "502 Bad Gateway",
    "Internal Server Error",
    "ValueError: no tokens",
    "Okay, the user wants a sentence that means the same.",
    "The user asks for a paraphrase.",
    "Thinking Process: first I read the sentence.",
    "We need to write a sentence with the same meaning.",
    "Let me think about the sentence.",
    "(No response)",
    "[no output]",
    "null",
    "N/A",
    "Als KI kann ich das nicht.",
    "Es tut mir leid, aber ich kann dabei nicht helfen.",
    "En tant qu'intelligence artificielle, je ne sais pas.",
    "Je suis désolé, mais je ne peux pas le faire.",
    "Como modelo de lenguaje, no sé.",
    "Lo siento, pero no puedo ayudar con eso.",
    "作为一个人工智能，我不知道。",
    "抱歉，我无法回答。",
]
HOSTILE = {
    **{f"{lead} {frame.format(S)}": None for lead in LEAD_INS for frame in FRAMES[:2]},
    **{frame.format(S): None for frame in FRAMES},
    **{f"{lead}\n{S}": None for lead in LEAD_INS},
    **dict.fromkeys(ABOUT_THE_TASK, "about_the_task"),
    **{f'"{text}"': "about_the_task" for text in ABOUT_THE_TASK},
    **{f"Output: {text}": "about_the_task" for text in ABOUT_THE_TASK[:40]},
    **{f"<think>hm</think>{text}": "about_the_task" for text in ABOUT_THE_TASK},
    f"1. {S} 2. Another one leaves.": "several_sentences",
    f"(1) {S} (2) Another one leaves.": "several_sentences",
    f"1) {S}  2) Two.  3) Three.": "several_sentences",
}
TAKEN_FOR_SENTENCES = [
    "I'm sorry, but I can't come tonight.",
    "Error bars show the spread.",
    "The user interface was slow.",
    "Let's start with the soup.",
    "As an assistant professor, she taught logic.",
    "None of the boats left.",
    "We need to write a letter.",
    "Undefined behaviour is bad.",
    "Thinking is hard.",
]


def ask_chat(answers: list[str], prompts: list[str] | None = None) -> list[Completion]:
    """Ask a chat server once for each answer, and read what it answered."""
    prompts = prompts or ["Write a sentence. " + PROMPT] * len(answers)
    requests = [Request(prompt, (), n << 33) for n, prompt in enumerate(prompts)]
    with ordered_server(
        lambda body, _: completion("", message={"content": answers[body["seed"]]})
    ) as server:
        return complete(connect(server.base_url, chat=True), requests, SETTINGS)


def test_hostile_answers_are_the_sentence_alone_or_have_a_named_reason():
    assert len(HOSTILE) + len(THE_SENTENCE) + len(NO_SENTENCE) > 240
    found = ask_chat(list(HOSTILE))
    assert {
        answer: (S if one.problem is None else None, one.problem)
        for answer, one in zip(HOSTILE, found, strict=True)
        if one.problem is not None or one.text == S
    } == {answer: (None if reason else S, reason) for answer, reason in HOSTILE.items()}
    assert [(one.text, one.problem) for one in ask_chat(TAKEN_FOR_SENTENCES)] == [
        (text, None) for text in TAKEN_FOR_SENTENCES
    ]


def test_what_the_source_sentence_says_itself_is_no_reason():
    sentence = "Error: rate limit exceeded in the log."
    prompts = [f'Sentence: "{sentence}" Rewrite it. {PROMPT}', f"User: a dog. {PROMPT}"]
    answers = ["Error: rate limit reached.", "User: a cat."]
    found = ask_chat([*answers], prompts)
    assert [(one.text, one.problem) for one in found] == [
        ("Error: rate limit reached.", None),
        ("User: a cat.", None),
    ]


def test_random_answers_are_texts_that_files_can_hold_or_have_a_reason():
    pieces = [
        *("\ud800", "\udfff\ud800", "\x00", "\x1b[31m", "\u202e", "\ufeff", "\n", "\\n", '"', "“"),
        *(
            "&quot;",
            "&#x27;",
            "<think>",
            "</think>",
            "```",
            "1.",
            "2)",
            "- ",
            "**",
            "\\boxed{",
            "}",
        ),
        *(
            "Sure!",
            "Here is",
            "Sentence 2:",
            "<|im_end|>",
            "</s>",
            "I cannot help",
            "é",
            "名",
            "🦕",
        ),
        *(
            "a dog",
            "runs.",
            "«",
            "»",
            "'",
            "\t",
            "\u3164",
            "{",
            "[",
            "(",
            "null",
            "Error:",
            "|",
            " ",
        ),
    ]
    draw = random.Random(1)
    answers = ["".join(draw.choices(pieces, k=draw.randint(0, 12))) for _ in range(2000)]
    model, server = section(chat=True)
    writer = OpenAIServer(model)
    for answer in answers:
        for end in ("stop", "length", None):
            payload = {"choices": [{"message": {"content": answer}, "finish_reason": end}]}
            read = read_answer(payload, model, server, SETTINGS)
            one = writer._make_completion(Request(PROMPT, (), 0), read, SETTINGS)
            one.text.encode()
            assert one.problem is not None or (one.text.strip() and "\n" not in one.text)


STRUCTURED = {
    json.dumps({"sentence": S}): (S, None),
    json.dumps({"sentence": f"“{S}”"}): (S, None),
    '{"sentence": "The boat dep': ('{"sentence": "The boat dep', "not_closed"),
    json.dumps({"sentence": "A.\nB."}): ("A.\nB.", "line_break"),
    json.dumps({"sentence": " "}): ("", "empty"),
    json.dumps({"sentence": "I cannot help with that."}): (
        "I cannot help with that.",
        "about_the_task",
    ),
    '{"sentence": "\\ud800 x"}': ("\ufffd x", None),
    json.dumps({"sentence": 5}): ('{"sentence": 5}', "not_closed"),
}


def test_structured_output_is_one_sentence_in_json():
    asked = list(STRUCTURED)
    requests = [Request(PROMPT, (), n << 33) for n in range(len(asked))]
    with ordered_server(
        lambda body, _: completion("", message={"content": asked[body["seed"]]})
    ) as server:
        writer = connect(server.base_url, chat=True, dialect="vllm", structured_output=True)
        found = complete(writer, requests, SETTINGS)
    assert {
        answer: (one.text, one.problem) for answer, one in zip(asked, found, strict=True)
    } == STRUCTURED
    body = server.bodies[0]
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["sentence"]
    assert body["messages"][-1]["role"] == "user"
    assert body["max_tokens"] == SETTINGS.max_new_tokens + 16
    assert len(server.bodies) == len(asked)  # the first request proves the form and counts
    assert writer.describe()["structured_output"] is True


def test_a_server_that_ignores_the_schema_is_named_by_its_first_answers(tmp_path):
    with ordered_server(lambda *_: completion("", message={"content": "Sure!"})) as server:
        writer = connect(server.base_url, tmp_path / "run", chat=True, structured_output=True)
        error = failure(writer, REQUESTS)
    assert "without the JSON of model.server.structured_output: 'Sure!'" in str(error)
    assert "remove structured_output" in str(error) and len(server.bodies) == 3


def test_a_model_that_misses_the_json_once_goes_on():
    sentence = json.dumps({"sentence": "It rains."})
    with ordered_server(
        lambda _, number: completion("", message={"content": sentence if number else "Sure!"})
    ) as server:
        writer = connect(server.base_url, chat=True, structured_output=True, concurrency=1)
        # texts that share an HTTP request prove it once
        writer._prove_structured_output([*REQUESTS[:1] * 3, REQUESTS[1]], SETTINGS)
        assert len(server.bodies) == 2
        found = complete(writer, REQUESTS[:3], SETTINGS)
    assert [one.text for one in found] == ["Sure!", "It rains.", "It rains."]
    assert found[0].problem == "not_closed" and len(server.bodies) == 3


def test_an_unclosed_quotation_in_the_first_sentence_is_no_missing_json():
    answer = json.dumps({"sentence": "«Bonjour"})
    with ordered_server(lambda *_: completion("", message={"content": answer})) as server:
        writer = connect(server.base_url, chat=True, structured_output=True)
        (found,) = complete(writer, REQUESTS[:1], SETTINGS)
    assert (found.text, found.problem) == ("«Bonjour", "not_closed")


@pytest.mark.parametrize(
    ("end", "tokens", "problem"),
    [
        ("stop", 5, None),
        ("eos", 5, None),
        ("end_turn", None, None),
        (None, None, None),
        (None, 5, None),
        (None, SETTINGS.max_new_tokens, "not_closed"),
        ("length", 5, "not_closed"),
        ("content_filter", 5, "not_closed"),
    ],
)
def test_the_end_of_a_turn_has_many_names_or_none(end, tokens, problem):
    payload = {
        "choices": [{"message": {"content": S}, "finish_reason": end}],
        "usage": {"completion_tokens": tokens},
    }
    model, server = section(chat=True)
    answer = read_answer(payload, model, server, SETTINGS)
    assert answer.has_ended(SETTINGS.max_new_tokens) == (problem is None)


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "503"}}, 503),
        ({"error": {"type": "rate_limit_exceeded"}}, 429),
        ({"error": {"message": "Incorrect API key"}}, 401),
        ({"error": {"message": "boom"}}, 500),
        ({"error": {"message": "exceeds the context size"}}, 400),
        ({"error": {"message": "upstream: context deadline exceeded"}}, 500),
        ({"error": "context canceled"}, 500),
        ({"error": "boom"}, 500),
        ({"error": ["x"]}, 500),
        ({"error": {"code": 10**30}}, 500),
        ({"error": {"code": 200, "message": "bad request"}}, 400),
        ({"error": {"message": "Prompt has too many tokens: 5000 > 4096"}}, 400),
        ({"error": "too many tokens: total number of tokens in the prompt cannot exceed 4"}, 400),
        ({"error": "Too many tokens, please wait before trying again."}, 429),
        ({"error": "Too many concurrent requests"}, 429),
        ({"error": {"type": "server_error", "message": "invalid response of the worker"}}, 500),
        ({"error": "failed to load author/model; worker lost"}, 500),
        ({"error": "unauthorized"}, 401),
        ({"error": None}, None),
        ({"error": {}, "choices": []}, None),
        ({"error": "note", "choices": [{"text": "A"}]}, None),
        ([], None),
        ("error", None),
    ],
    ids=str,
)
def test_an_error_object_names_its_status(payload, status):
    assert find_error_status(payload) == status


def section(chat: bool = False, **server: object) -> tuple[LanguageModel, Server]:
    given = {"base_url": "http://localhost:1/v1", "model": "lm", **server}
    model = LanguageModel.model_validate(
        {"backend": "openai", "license": "x", "chat_template": chat, "server": given}
    )
    assert model.server is not None
    return model, model.server


def body(
    chat: bool = False, top_k: int = 5, text_end: TextEnd = "quotation_mark", **server: object
) -> dict:
    model, given = section(chat, **server)
    settings = DecodingParameters(decay_constant=0.0, epsilon=1.0, top_k=top_k, text_end=text_end)
    sent = make_body(model, given, Request(PROMPT, (), SEED), settings)
    assert chat == ("messages" in sent)
    return sent


def test_a_plain_server_gets_only_fields_of_openai_unless_the_recipe_asks_for_top_k():
    known = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}
    assert set(body(top_k=0)) == known and set(body()) == {*known, "top_k"}
    sent = body()
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"], sent["top_p"]) == (
        PROMPT,
        40,
        1.0,
        0.9,
    )
    assert sent["seed"] == 2**31 - 1 and body(logprobs=True)["logprobs"] == 1
    for dialect in DIALECTS:
        assert body(dialect=dialect, text_end="line")["stop"] == ["\n"]
        assert body(dialect=dialect)["stop"] == (["\n"] if dialect == "openai" else ['"', "\n"])


def test_each_dialect_fixes_what_a_models_own_configuration_could_change():
    sent = body(dialect="vllm", top_k=0)
    assert (sent["top_k"], sent["min_p"], sent["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert sent["include_stop_str_in_output"] is True
    sent = body(dialect="transformers", top_k=0)
    config = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 0.9,
        "repetition_penalty": 1.0,
    }
    assert json.loads(sent["generation_config"]) == config and "top_k" not in sent
    sent = body(dialect="llamacpp", top_k=0)
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["seed"]) == (
        1.0,
        0,
        0.9,
        2**31 - 1,
    )
    assert sent["samplers"] == ["top_k", "top_p", "temperature"] and sent["verbose"] is True
    assert (
        sent["ignore_eos"] is True
        and body(dialect="llamacpp", text_end="line")["ignore_eos"] is False
    )
    assert body(dialect="llamacpp", logprobs=True)["stop"] == ["\n"]


def test_chat_sends_the_prompt_as_a_turn_and_begins_the_answer_where_the_server_can():
    turn = {"role": "user", "content": PROMPT.removesuffix('"')}
    assert body(chat=True)["messages"] == [turn] and "stop" not in body(chat=True)
    assert body(chat=True, logprobs=True)["logprobs"] is True
    for dialect in ("vllm", "llamacpp"):
        begun = body(chat=True, dialect=dialect)
        assert begun["messages"] == [turn, {"role": "assistant", "content": '"'}]
        assert begun["continue_final_message"] is True and begun["add_generation_prompt"] is False


def test_llama_cpp_reports_the_stop_word():
    model, server = section(dialect="llamacpp")
    verbose = {"content": "A man plays.", "stopping_word": '"', "truncated": False}

    def text(**changes: object) -> str:
        payload = {"choices": [{"text": "A man plays."}], "__verbose": {**verbose, **changes}}
        return read_answer(payload, model, server, SETTINGS).text

    assert text() == 'A man plays."'
    with pytest.raises(
        InputError,
        match=r"localhost:1/v1: its context was full before the text ended; start it with",
    ):
        text(truncated=True)
    with pytest.raises(
        InputError, match=r"does not report in __verbose .*; use llama.cpp's server of July 2026"
    ):
        read_answer({"choices": [{"text": "A man plays."}]}, model, server, SETTINGS)
    with pytest.raises(ValidationError):
        text(stopping_word=None)


def test_log_probabilities_are_averaged_up_to_the_closing_mark():
    def mean(text_end: TextEnd = "quotation_mark", **choice: object) -> float | None:
        settings = SETTINGS.model_copy(update={"text_end": text_end})
        return read_answer({"choices": [choice]}, *section(), settings).log_prob

    tokens = {"tokens": ["A", " man", '."', " And"], "token_logprobs": [-1.0, -2.0, -3.0, -40.0]}
    assert mean(text='A man." And', logprobs=tokens) == -2.0
    content = [
        {"token": token, "logprob": value} for token, value in zip(*tokens.values(), strict=True)
    ]
    chat = {"message": {"content": "A man"}, "logprobs": {"content": content}}
    assert mean(**chat) == -2.0 and mean("line", **chat) == -11.5
    assert mean(text="A", logprobs={"tokens": ["A", "b"], "token_logprobs": [None, -1.0]}) is None
    # the mark and a stop word were one token
    unclosed = {"tokens": ["A", " man"], "token_logprobs": [-1.0, -2.0]}
    assert mean(text='A man"', logprobs=unclosed) is None


def test_the_documented_recipes_are_valid():
    text = Path("docs/backends.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    sections = [
        yaml.safe_load(textwrap.dedent(block))["model"]
        for block in blocks
        if block.startswith("    model:")
    ]
    assert [LanguageModel.model_validate(section).backend for section in sections] == ["openai"] * 5


def test_kept_answers_outlive_their_process(tmp_path):
    path, answer = (
        tmp_path / "run.answers.sqlite",
        Answer('héllo"\x00', "stop", 3, None, -0.5, "lm-1"),
    )
    AnswerCache(path).add([hash_request("a", 1)], [answer])
    cache = AnswerCache(path)
    assert cache.find(hash_request("a", 1)) == answer and cache.find(hash_request("a", 2)) is None
    assert list(cache.sum_tokens().values()) == [1, 1, 3, 0, 1]
    pages = cache._connection.execute("PRAGMA page_count").fetchone()[0]
    cache._connection.execute(f"PRAGMA max_page_count = {pages}")  # as a full disk does it
    with pytest.raises(
        RunError, match=r"run.answers.sqlite: cannot keep answers: database or disk is full"
    ):
        for number in range(100):
            cache.add([hash_request(number)], [Answer("x" * 1000, None, None, None, None)])
    path.write_bytes(b"no journal" * 1000)
    with pytest.raises(InputError, match=r"is not a journal of answers.*move it away"):
        AnswerCache(path)


def test_a_full_disk_under_the_temporary_file_of_answers_is_named():
    cache = AnswerCache(None)
    cache._connection.execute("PRAGMA max_page_count = 3")
    with pytest.raises(RunError, match=r"^temporary file of a server's answers: cannot keep"):
        cache.add([b"1"], [Answer("A" * 10**5, "stop", 1, 1, None)])


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def connect(
    base_url: str, directory: Path | None = None, chat: bool = False, **server: object
) -> OpenAIServer:
    given = {"max_retries": 0, "timeout": 20, **server}
    writer = load_writer(section(chat, base_url=base_url, **given)[0], directory)
    assert isinstance(writer, OpenAIServer)
    return writer


def failure(writer: OpenAIServer, requests: list[Request] = REQUESTS[:1]) -> StsDinoError:
    with pytest.raises(StsDinoError) as caught:
        complete(writer, requests, SETTINGS)
    shown = (
        repr(caught.value)
        + repr(caught.value.__context__)
        + repr(caught.value.__cause__)
        + repr(vars(writer))
    )
    assert KEY not in shown and "\n" not in str(caught.value)
    return caught.value


def echo(body: dict, _: int) -> Reply:
    return completion(body["prompt"][13:-11] + '" and more')


def test_answers_come_back_with_their_requests_and_the_key_only_in_its_header(key):
    with ordered_server(echo) as server:
        found = complete(connect(server.base_url), REQUESTS, SETTINGS)
    assert found == [Completion(str(number), None, None, None) for number in range(8)]
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert server.paths == ["/v1/completions"] * 8 and KEY not in json.dumps(server.bodies)
    assert sorted(body["seed"] for body in server.bodies) == list(range(8))


def test_concurrency_bounds_the_requests_under_way_and_the_queue_may_grow():
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
        queue = deque(REQUESTS[:6])
        stream = connect(server.base_url, concurrency=3).stream(queue, SETTINGS, None)
        next(stream)
        queue.extend(REQUESTS[6:])
        assert len(list(stream)) == 7 == len(server.bodies) - 1
    assert most[0] == 3 and not together.broken


def test_the_answers_of_a_stream_do_not_stay_in_memory(monkeypatch):
    kept = weakref.WeakSet[Answer]()
    fetch = OpenAIServer._fetch_answers

    def fetch_answers(*arguments: Any) -> list[Answer]:
        answers = fetch(*arguments)
        kept.update(answers)
        return answers

    monkeypatch.setattr(OpenAIServer, "_fetch_answers", fetch_answers)
    with ordered_server(echo) as server:
        stream = connect(server.base_url, concurrency=1).stream(deque(REQUESTS), SETTINGS, None)
        for _ in REQUESTS:
            next(stream)
        assert len(kept) <= 2


def test_the_queue_holds_the_texts_of_all_requests_under_way():
    writer = connect("http://127.0.0.1:9/v1", concurrency=3, choices=4)
    assert writer.choose_queue_length(SETTINGS, None) == 12


def test_requests_under_way_are_in_the_message_of_a_budget():
    prices = {"price_per_million": (0, 1e6), "budget": 15}
    writer = connect("http://127.0.0.1:9/v1", **prices)
    body = {"prompt": "A", "max_tokens": 10}
    with (
        writer._keep_budget(body),
        pytest.raises(RunError, match=r"0\.0000 spent, and .* may cost 20\.0000"),
        writer._keep_budget(body),
    ):
        pass


def test_busy_and_broken_servers_are_asked_again_and_retry_after_is_kept():
    troubles: list[Reply] = [(429, {"Retry-After": "1.2"}, "{}"), None, (503, {}, "oh")]
    with ordered_server(
        lambda body, n: troubles[n] if n < len(troubles) else echo(body, n)
    ) as server:
        assert (
            complete(connect(server.base_url, max_retries=4), REQUESTS[:1], SETTINGS)[0].text == "0"
        )
    assert len(server.bodies) == 4
    assert server.times[1] - server.times[0] >= 1.2  # without the header at most 0.5 s


UNEXPECTED = (400, {}, f'{{"detail": "Unexpected fields: [\'top_k\'], key {KEY}\x1b[31m"}}')
OTHER = "another form than OpenAI's: choices"


LIKELIHOODS: list[dict] = [
    *(
        {"tokens": ["A"], "token_logprobs": [value]}
        for value in (2.0, float("nan"), float("-inf"), -1e308, True, "-1")
    ),
    *({"content": content} for content in (["A"], [None], [{"token": 5, "logprob": -1}], 5)),
    {"tokens": 5, "token_logprobs": [-1]},
]


@pytest.mark.parametrize(
    ("reply", "retries", "error", "words", "requests"),
    [
        (
            (500, {}, '{"error": "no\nmemory"}'),
            1,
            BrokenRequestError,
            ["HTTP 500", "no memory", "run the same command again"],
            2,
        ),
        (
            (429, {"Retry-After": "3600"}, "{}"),
            6,
            RunError,
            ["after 3600 s run the same command again"],
            1,
        ),
        (
            (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, "{}"),
            0,
            RunError,
            ["HTTP 429: {}; run the same command again"],
            1,
        ),
        (
            (401, {}, f'{{"error": "Incorrect key: {KEY}"}}'),
            6,
            InputError,
            ["HTTP 401", "OPENAI_API_KEY"],
            1,
        ),
        (
            (402, {}, '{"error": "Insufficient Balance"}'),
            6,
            RunError,
            ["HTTP 402", "Insufficient Balance", "run the same command again"],
            1,
        ),
        ((404, {}, '{"error": "no model lm"}'), 6, InputError, ["no model lm", "base_url"], 1),
        (
            UNEXPECTED,
            6,
            RefusedRequestError,
            ["['top_k'], key [key]", "sent: model, max_tokens", "leaves top_k out"],
            1,
        ),
        (
            (200, {"Content-Type": "text/html"}, "<h1>Welcome</h1>"),
            0,
            RunError,
            ["not JSON: <h1>Welcome</h1>"],
            1,
        ),
        ((200, {}, b'{"choices": "\xff"}'), 0, RunError, ["not JSON"], 1),
        # an error object in a successful answer counts as the status that it names
        (
            (200, {}, '{"error": {"message": "slow down", "code": 429}}'),
            1,
            RunError,
            ["HTTP 429", "slow down", "run the same command again"],
            2,
        ),
        (
            (200, {}, '{"error": {"message": "no such model", "type": "invalid_request_error"}}'),
            6,
            InputError,
            ["HTTP 404", "no such model", "base_url"],
            1,
        ),
        (
            (200, {}, '{"choices": [{"text": "A"}], "usage": {"prompt_tokens": 1e30}}'),
            0,
            RunError,
            ["usage"],
            1,
        ),
        (completion(f'my key is {KEY}"'), 0, RunError, ["holds the API key"], 1),
        *(
            (completion("A", logprobs=wrong), 0, RunError, ["choices.0.logprobs."], 1)
            for wrong in LIKELIHOODS
        ),
        (completion('A"', KEY), 0, RunError, ["holds the API key"], 1),
        ((200, {}, "[1, 2]"), 0, RunError, ["OpenAI's: the whole: "], 1),
        ((200, {}, "[" * 200_000), 0, RunError, ["not JSON"], 1),
        (
            (200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * 10**7, mtime=0)),
            0,
            RunError,
            ["not JSON"],
            1,
        ),
        (
            (307, {"Location": "http://127.0.0.1:9/v1"}, ""),
            6,
            InputError,
            ["on to http://127.0.0.1:9/v1", "307"],
            1,
        ),
        (
            (302, {"Location": "file:///etc/passwd"}, ""),
            6,
            InputError,
            ["on to file:///etc/passwd"],
            1,
        ),
        ((307, {"Location": "http://a:b"}, ""), 0, RunError, ["not JSON"], 1),
        (
            (500, {"Content-Type": "text/plain; charset=base64"}, "oh"),
            0,
            BrokenRequestError,
            ["HTTP 500: oh"],
            1,
        ),
    ],
    ids=lambda value: str(value)[:90],
)
def test_a_hostile_answer_is_one_line_without_the_key_and_is_not_kept(
    reply, retries, error, words, requests, key, tmp_path, caplog
):
    caplog.set_level("DEBUG")
    with ordered_server(lambda *_: reply) as server:
        writer = connect(server.base_url, tmp_path / "run", max_retries=retries, concurrency=1)
        found = failure(writer, REQUESTS)
    assert (
        type(found) is error
        and all(word in str(found) for word in words)
        and "\x1b" not in str(found)
    )
    assert len(server.bodies) == requests and writer.usage["answers"] == 0
    assert "/completions" in caplog.text and KEY not in caplog.text
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("key", ["sk-gehéim", "sk-ge\nheim", "sk-ge\x01heim"])
def test_a_key_that_no_header_can_hold_is_named_and_not_shown(key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match=r"^OPENAI_API_KEY: holds letters beyond ASCII") as caught:
        connect("http://127.0.0.1:9/v1")
    assert "heim" not in str(caught.value) and "gehé" not in str(caught.value)


def test_blanks_around_a_key_are_not_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")  # as ``cat`` gives the line of a file
    with ordered_server(echo) as server:
        complete(connect(server.base_url), REQUESTS[:1], SETTINGS)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_silent_and_absent_servers_and_a_missing_key_are_one_line(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    released = threading.Event()
    with ordered_server(lambda *_: (released.wait(60), completion("x"))[1]) as server:
        error = failure(connect(server.base_url, timeout=0.3, max_retries=1))
        released.set()
    assert (
        isinstance(error, RunError)
        and "no answer within 0.3 s" in str(error)
        and len(server.bodies) == 2
    )
    error = failure(connect(f"http://127.0.0.1:{free_port()}/v1"))
    assert (
        isinstance(error, RunError)
        and "cannot be reached" in str(error)
        and "refused" in str(error)
    )
    with ordered_server(lambda *_: (401, {}, "{}")) as server:
        assert "without a key; set OPENAI_API_KEY" in str(failure(connect(server.base_url)))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2"
ENDLESS = {
    "a status": (b"HTTP/1.1 200 ", b"O"),
    "a header": (HEAD + b"X-Name: ", b"a"),
    "headers": (HEAD, b"X-Name: a\r\n"),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "a chunk's name": (CHUNKED + b";", b"a"),
    "trailers": (CHUNKED + b"\r\n{}\r\n0\r\n", b"X-Name: a\r\n"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_surrounds_a_body_has_an_end(name):
    def drip() -> None:
        connection, sent = listener.accept()[0], 0
        with suppress(OSError), connection:
            connection.sendall(ENDLESS[name][0])
            while sent < 100:
                connection.sendall(ENDLESS[name][1])
                sent += 1
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread, began = threading.Thread(target=drip), time.monotonic()
        thread.start()
        error = failure(connect(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeout=0.3))
        assert "no answer within 0.3 s" in str(error) and time.monotonic() - began < 1.5
        thread.join()


def test_an_answer_has_an_end_in_time_and_in_bytes_and_a_redirect_stays_with_its_server(
    monkeypatch,
):
    sent: list[int] = []

    def pieces(size: int, seconds: float) -> Iterator[bytes]:
        for _ in range(100):
            sent.append(size)
            yield b" " * size
            time.sleep(seconds)

    with ordered_server(lambda *_: (200, {}, pieces(1, 0.05))) as server:
        error = failure(connect(server.base_url, timeout=0.3))
    assert isinstance(error, RunError) and "no answer within 0.3 s" in str(error) and len(sent) < 50
    monkeypatch.setattr(openai_server, "_LONGEST_ANSWER", 2**20)
    with ordered_server(lambda *_: (200, {}, pieces(2**20, 0.01))) as server:
        assert "read (the answer has more than 1 MB)" in str(failure(connect(server.base_url)))
    assert sent.count(2**20) < 50
    moved = (307, {"Location": "/v1/elsewhere"}, "")
    with ordered_server(lambda body, n: echo(body, n) if n else moved) as server:
        assert complete(connect(server.base_url), REQUESTS[:1], SETTINGS)[0].text == "0"


def test_an_answer_is_never_paid_for_twice_and_the_cost_adds_up(tmp_path):
    prices = {"price_per_million": [2.0, 10.0]}
    together = threading.Barrier(4)

    def one_fails(body: dict, _: int) -> Reply:
        together.wait(timeout=20)
        if body["seed"] == 0:
            return (403, {}, "{}")
        time.sleep(0.5)  # the others are under way when it fails
        return echo(body, 0)

    with ordered_server(one_fails) as server:
        url = server.base_url
        writer = connect(url, tmp_path / "run", concurrency=4)
        failure(writer, REQUESTS)
        assert len(server.bodies) == 4 and writer.usage["answers"] == 3, (
            "those under way are kept, no other begins"
        )
        server._reply = echo
        writer = connect(url, tmp_path / "run", concurrency=1, **prices)
        found = complete(writer, REQUESTS, SETTINGS)
    assert [completion.text for completion in found] == [str(number) for number in range(8)]
    asked = [body["prompt"] for body in server.bodies[4:]]
    assert asked == [REQUESTS[n].prompt for n in (0, 4, 5, 6, 7)]
    assert writer.usage == {
        "answers": 8,
        "prompt_tokens": 80,
        "completion_tokens": 40,
        "counted_requests": 8,
        "uncounted": 0,
        "cost": (80 * 2 + 40 * 10) / 1e6,
        "models": {},
    }
    assert connect(url, tmp_path / "other").usage["answers"] == 0
    with ordered_server(lambda *_: (200, {}, '{"choices": [{"text": "Yes.\\""}]}')) as server:
        writer = connect(server.base_url)
        # without a token count, which is not the same as free
        complete(writer, REQUESTS[:2], SETTINGS)
    assert writer.usage == {
        "answers": 2,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "counted_requests": 0,
        "uncounted": 2,
        "cost": None,
        "models": {},
    }


def test_a_change_of_anything_that_decides_an_answer_asks_anew(tmp_path):
    with ordered_server(echo) as server:

        def ask(
            request: Request = REQUESTS[0],
            settings: DecodingParameters = SETTINGS,
            **changes: object,
        ) -> int:
            complete(connect(server.base_url, tmp_path / "run", **changes), [request], settings)
            return len(server.bodies)

        assert [ask(), ask()] == [1, 1]
        # the same 31 bits are sent, the row is another
        assert ask(replace(REQUESTS[0], seed=1)) == 2
        assert ask(replace(REQUESTS[0], prompt='Other "')) == 3
        assert ask(settings=SETTINGS.model_copy(update={"top_p": 0.8})) == 4
        assert ask(model="other") == 5 and ask(dialect="vllm") == 6
        assert ask(timeout=5, concurrency=2, max_retries=2, price_per_million=[1, 1]) == 6


def test_tokens_are_counted_by_a_named_tokenizer(tmp_path):
    with pytest.raises(
        InputError, match=r"no tokenizer is named; give model.path or model.repo_id"
    ):
        connect("http://localhost:1/v1").count_tokens("A man")
    model, _ = section()
    local = model.model_copy(update={"path": str(make_lm(tmp_path))})
    writer = load_writer(local)
    assert writer.count_tokens("Two dogs run on the beach.") > 4 and writer.context == 0
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="its tokenizer cannot be loaded"):
        load_writer(local).count_tokens("A man")
    with pytest.raises(InputError, match=r"model.revision: .*; pin that of org/lm"):
        load_writer(model.model_copy(update={"repo_id": "org/lm"})).count_tokens("A man")


NLI, STS = Path("recipes/demo/auto-nli.yaml"), Path("recipes/demo/sts-dino-x2.yaml")


@pytest.mark.parametrize(
    ("recipe", "server", "message"),
    [
        (STS, "{base_url: 'http://localhost:1/v1', model: lm}", "counter_labels draws each token"),
        (NLI, "{base_url: 'https://me:secret@host/v1', model: lm}", "model.server.base_url"),
        (
            NLI,
            "{base_url: 'http://h/v1', model: lm, dialect: transformers, logprobs: true}",
            "no log-probabilities",
        ),
    ],
)
def test_recipes_that_do_not_fit_the_backend(recipe, server, message):
    with pytest.raises(InputError, match=message):
        load_recipe(recipe, DatasetRecipe, ["model.backend=openai", f"model.server={server}"])


def settings(base_url: str) -> list[str]:
    section = {"base_url": base_url, "model": "lm", "concurrency": 1, "max_retries": 1}
    sizes = ["source.limit=8", "shard_size=3", "decoding.max_attempts=3"]
    return ["model.backend=openai", f"model.server={json.dumps(section)}", *sizes]


def answers(directory: Path) -> list[str]:
    path = directory.with_name(f"{directory.name}.answers.sqlite")
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE name = 'answers'"
        ).fetchone()
        return [text for (text,) in connection.execute("SELECT text FROM answers")] if found else []


@pytest.mark.slow("a process of its own, killed")
def test_a_killed_run_and_one_whose_server_died_resume_to_the_same_bytes_and_pay_for_nothing_twice(
    tmp_path,
):
    whole, out, dead = tmp_path / "whole", tmp_path / "out", []

    def reply(body: dict, _: int) -> Reply:
        time.sleep(0.02)
        return None if dead else completion(f'A dog runs {body["seed"] % 97} times." And')

    def generate(directory: Path) -> None:
        job.generate(load_recipe(NLI, DatasetRecipe, settings(server.base_url)), directory, "test")

    with ordered_server(reply) as server:
        generate(whole)
        asked = len(server.bodies)
        words = [word for setting in settings(server.base_url) for word in ("--set", setting)]
        killed([str(NLI), "--out", str(out), *words], lambda: len(answers(out)) >= 7)
        dead.append(True)
        with pytest.raises(RunError, match="cannot be reached"):
            generate(out)
        assert 7 <= len(answers(out)) < len(answers(whole)) == asked
        dead.clear()
        generate(out)
    left, right = contents(out / "data"), contents(whole / "data")
    assert left == right
    # one was under way at the kill, two met the dead server
    assert len(server.bodies) <= 2 * asked + 3
    usage = json.loads(whole.with_name("whole.usage.json").read_text())
    assert (
        usage["answers"] == asked
        and usage["prompt_tokens"] == 10 * asked
        and usage["uncounted"] == 0
    )

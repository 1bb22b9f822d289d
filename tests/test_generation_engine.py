from pathlib import Path

import numpy as np
import pytest
from reference_decoding import reference
from tiny_lm import make_lm
from transformers import AutoModelForCausalLM

from generation.engine import Engine
from generation.writer import Request, Settings, complete
from hub.errors import InputError

INSTRUCTIONS = ("mean the same thing", "are somewhat similar", "are on completely different topics")
KINDS = ("llama", "gpt2", "opt", "qwen3")


def prompt(number: int, text: str) -> str:
    return f'Task: Write two sentences that {INSTRUCTIONS[number]}.\nSentence 1: "{text}"\nSentence 2: "'


def requests(count: int) -> list[Request]:
    texts = ["A man is playing a flute.", "Two dogs.", "A woman cooks and sings in the old kitchen."]
    made = []
    for seed in range(count):
        text, label = texts[seed % 3], seed % 3
        counters = tuple(prompt(i, text) for i in range(label))
        made.append(Request(prompt(label, text), counters, seed * 7919))
    return made


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("lm") / request.param, request.param)


@pytest.fixture(scope="module")
def engine(directory) -> Engine:
    engine = Engine.load(str(directory), None, "float32", "cpu")
    assert engine._plain is None, "the fast path must take this architecture"
    return engine


@pytest.fixture(scope="module")
def original(directory):
    """The model as transformers loads it, for the reference."""
    return AutoModelForCausalLM.from_pretrained(directory).eval()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(100.0, 0.01, 5, 0.9, 12),
        Settings(0.0, 0.01, 5, 0.9, 12),
        Settings(100.0, 0.01, 0, 0.9, 12),
        Settings(100.0, 0.01, 5, 1.0, 12),
        Settings(100.0, 0.01, 5, 0.9, 1),
    ],
    ids=["paper", "no-debiasing", "no-top-k", "no-top-p", "one-token"],
)
def test_texts_equal_the_reference(engine, original, settings):
    asked = requests(12)
    ours = [completion.text for completion in complete(engine, asked, settings, 8)]
    assert ours == [reference(original, engine.tokenizer, request, settings) for request in asked]
    assert len(set(ours)) > 3


def test_texts_do_not_depend_on_batch_size_or_order(engine):
    settings, asked = Settings(100.0, 0.01, 5, 0.9, 20), requests(24)
    whole = complete(engine, asked, settings, 96)
    assert [c.text for c in whole] == [c.text for c in complete(engine, asked, settings, 1)]
    assert [c.text for c in whole] == [c.text for c in complete(engine, asked[::-1], settings, 5)][::-1]


def test_debiasing_changes_texts_only_where_there_are_counter_prompts(engine):
    asked = requests(24)
    on = complete(engine, asked, Settings(100.0, 0.01, 0, 1.0, 20), 96)
    off = complete(engine, asked, Settings(0.0, 0.01, 0, 1.0, 20), 96)
    changed = [a.text != b.text for a, b in zip(on, off, strict=True)]
    assert not any(change for change, request in zip(changed, asked, strict=True) if not request.counter_prompts)
    assert any(changed)


def test_statistics_and_problems(engine):
    for request, done in zip(
        requests(30), complete(engine, requests(30), Settings(100, 0.01, 0, 1.0, 9), 7), strict=True
    ):
        assert done.log_prob < 0 and (done.margin is None) == (not request.counter_prompts)
        assert done.problem in (None, "not_closed", "line_break", "empty")
        assert '"' not in done.text and "\n" not in done.text


def test_a_prompt_beyond_the_context_is_an_input_error(engine):
    with pytest.raises(InputError, match="exceed the model's context of 256"):
        complete(engine, [Request("word " * 300 + '"', (), 1)], Settings(100.0, 0.01, 5, 0.9, 40), 4)


def test_a_folder_without_a_model_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="tokenizer cannot be loaded"):
        Engine.load(str(tmp_path), None, "float32", "cpu")


@pytest.mark.parametrize(
    ("written", "text", "problem"),
    [
        (["A dog", '."', ""], "A dog.", None),
        (["A dog", ".\n"], "A dog.", "line_break"),
        (["A\ndog", '"'], "A", "line_break"),
        (["A dog", "<|end|>"], "A dog", "not_closed"),
        (["A dog"], "A dog", "not_closed"),
        ([" ", '"'], "", "empty"),
    ],
)
def test_why_a_text_ends(engine, written, text, problem):
    tokens = [token for part in written for token in engine.tokenizer(part, add_special_tokens=False).input_ids]
    done = engine._finish(tokens, np.array([-6.0, -8.0]))
    assert (done.text, done.problem) == (text, problem)
    assert done.log_prob == -6.0 / len(tokens) and done.margin == pytest.approx(2.0 / len(tokens))

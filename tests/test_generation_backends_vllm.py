"""What of the vLLM backend runs without vLLM: what it hands over, how it reads what comes back, its errors.

vLLM needs a GPU and is not installed here; ``FakeLLM`` has the few attributes of ``vllm.LLM`` (0.27 to 0.33) in use.
"""

import sys
from collections import deque
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tiny_lm import make_tokenizer

from generation.backends.vllm_local import VLLM, engine_arguments, sampling_arguments
from generation.writer import Completion, Request, Settings, complete, load_writer
from hub.errors import InputError
from hub.recipe import LanguageModel

SETTINGS = Settings(0.0, 1.0, 5, 0.9, 40)
PROMPT = 'Task: Write two sentences that mean the same thing.\nSentence 1: "A woman cooks."\nSentence 2: "'
TEMPLATE = "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% endfor %}<assistant>"


class FakeLLM:
    """Answers every prompt with its seed; keeps what it was asked."""

    def __init__(self, **arguments: Any):
        self.arguments, self.batches, self.tokenizer = arguments, [], make_tokenizer()
        self.tokenizer.chat_template = TEMPLATE
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=256))

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def generate(self, prompts: list[dict], sampling_params: list[dict], use_tqdm: bool = True) -> list[Any]:
        assert len(prompts) == len(sampling_params) and not use_tqdm
        self.batches.append([self.tokenizer.decode(prompt["prompt_token_ids"]) for prompt in prompts])
        texts = [f'{params["seed"]}."' for params in sampling_params]
        ended = {"token_ids": (7, 8), "finish_reason": "stop"}
        outputs = [SimpleNamespace(text=text, cumulative_logprob=-3.0, **ended) for text in texts]
        return [SimpleNamespace(outputs=[output]) for output in outputs]


def model(**changes: object) -> LanguageModel:
    return LanguageModel.model_validate({"backend": "vllm", "path": "models/lm", "license": "x", **changes})


@pytest.fixture
def vllm(monkeypatch):
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = FakeLLM, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)


def test_without_vllm_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed, wherever this runs
    with pytest.raises(InputError, match=r"model.backend vllm: the package vllm is missing .*docs/backends.md"):
        load_writer(model())


def test_sampling_arguments():
    assert sampling_arguments(SETTINGS, 2**64 - 1) == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 2**63 - 1,
        "max_tokens": 40,
        "stop": ['"', "\n"],
        "include_stop_str_in_output": True,
        "logprobs": 0,
    }
    assert sampling_arguments(Settings(0.0, 1.0, 0, 1.0, 1), 0)["top_k"] == -1
    assert sampling_arguments(Settings(0.0, 1.0, 0, 1.0, 1, "line"), 0)["stop"] == ["\n"]


def test_engine_arguments():
    assert engine_arguments(model(path=None, repo_id="org/lm", revision="abc", dtype="bfloat16")) == {
        "model": "org/lm",
        "revision": "abc",
        "tokenizer_revision": "abc",
        "dtype": "bfloat16",
        "quantization": None,
        "enable_prefix_caching": True,
        "trust_remote_code": False,
    }
    assert engine_arguments(model(quantization={"quant_method": "awq"}))["quantization"] == "awq"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization": {"quant_method": "awq", "bits": "4"}}, r"model.quantization \['bits'\]: .* the method only"),
        ({"device_map": "auto"}, "model.device_map: .*remove it"),
    ],
)
def test_what_vllm_has_no_argument_for_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        engine_arguments(model(**changes))


def test_texts_come_back_with_their_requests_and_the_queue_may_grow(vllm):
    writer = load_writer(model())
    assert isinstance(writer, VLLM) and writer.context == 256
    queue = deque(Request(PROMPT, (), number << 1, number) for number in range(5))
    stream = writer.stream(queue, SETTINGS, 2)
    first = next(stream)
    assert (first[0].key, first[1]) == (0, Completion("0.", None, -1.5, None)) and len(queue) == 3
    queue.append(Request(PROMPT, (), 5 << 1, 5))
    assert [(request.key, done.text) for request, done in stream] == [(n, f"{n}.") for n in range(1, 6)]
    assert writer._llm.batches == [[PROMPT] * 2] * 3


def test_a_chats_answer_is_opened_with_the_quotation_mark(vllm):
    writer = load_writer(model(chat_template=True))
    complete(writer, [Request(PROMPT, (), 0)], SETTINGS)
    assert writer._llm.batches == [["<user>" + PROMPT.removesuffix('"') + '<assistant>"']]  # type: ignore[attr-defined]


def test_a_prompt_longer_than_the_context(vllm):
    writer = load_writer(model())
    assert writer.count_tokens("Two dogs run.") > 2
    with pytest.raises(InputError, match=r"tokens \+ 250 to write exceed the model's context of 256"):
        complete(writer, [Request(PROMPT, (), 0)], Settings(0.0, 1.0, 5, 0.9, 250))


def test_a_model_that_cannot_be_loaded(vllm, monkeypatch):
    def broken(**_: Any) -> None:
        raise ValueError("no config.json\nmore")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", broken)
    with pytest.raises(InputError, match=r"models/lm: cannot be loaded by vLLM: no config.json$"):
        load_writer(model())

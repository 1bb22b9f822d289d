"""``backend: openai``, dialect llamacpp: llama.cpp's own server and a tiny random model."""

from collections import Counter
from pathlib import Path

import pytest
from tiny_lm import make_lm

pytest.importorskip(
    "openai", reason='the extra openai is not installed: pip install -e ".[openai]"'
)
pytest.importorskip(
    "xllamacpp", reason="llama.cpp's server is not installed: pip install xllamacpp"
)

import torch
from tiny_gguf import make_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from sts_dino.experiments.speed.llamacpp_server import Serving, serve
from sts_dino.generation.backends.protocol import Request, Writer, complete
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.backends.self_debiasing import select_nucleus
from sts_dino.hub.contract.recipe import DecodingParameters, LanguageModel

PROMPT = (
    "Task: Write two sentences that mean the same thing.\n"
    'Sentence 1: "A man is playing a flute."\nSentence 2: "'
)
SETTINGS = DecodingParameters(decay_constant=0.0, epsilon=1.0, max_new_tokens=40)
ONE_TOKEN = SETTINGS.model_copy(update={"max_new_tokens": 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = make_lm(tmp_path_factory.mktemp("lm"), max_position_embeddings=1024)
    model = AutoModelForCausalLM.from_pretrained(folder)
    # some tokens are likely, the end of text among them, most are not: min_p would show
    model.lm_head.weight.data *= 6
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def file(folder) -> Path:
    return make_gguf(folder, folder / "tiny.gguf")


@pytest.fixture(scope="module")
def server(file):
    with serve(file, slots=4, context=1024) as serving:
        yield serving


def section(server: Serving, **more: object) -> dict[str, object]:
    return {
        "base_url": server.base_url,
        "model": "tiny",
        "dialect": "llamacpp",
        "max_retries": 0,
        **more,
    }


def connect(
    server: Serving, directory: Path | None = None, chat: bool = False, **more: object
) -> Writer:
    model = {
        "backend": "openai",
        "license": "x",
        "chat_template": chat,
        "server": section(server, **more),
    }
    return load_writer(LanguageModel.model_validate(model), directory)


def asked(count: int, prompt: str = PROMPT) -> list[Request]:
    return [
        Request(prompt, (), (number * 2_654_435_761 % 2**31) << 33, number)
        for number in range(count)
    ]


def log_probs(folder: Path) -> torch.Tensor:
    """Of the first token after the prompt, (1, V), as transformers computes them."""
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(ids).logits[:, -1].log_softmax(-1)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 0.9), (0, 1.0)])
def test_a_token_is_drawn_from_the_engines_distribution(server, folder, top_k, top_p):
    settings = ONE_TOKEN.model_copy(update={"top_k": top_k, "top_p": top_p})
    own, tokenizer = log_probs(folder), AutoTokenizer.from_pretrained(folder)
    # the engine's ban: the quotation mark closes, nothing else
    own[:, tokenizer.eos_token_id] = -torch.inf
    expected: Counter[str] = Counter()
    for probability, token in zip(
        *(part[0].tolist() for part in select_nucleus(own, settings)), strict=True
    ):
        expected[tokenizer.decode([token]).split('"')[0].strip()] += 1000 * probability
    found = Counter(
        completion.text for completion in complete(connect(server), asked(1000), settings)
    )
    assert set(found) <= {text for text, times in expected.items() if times > 0}
    common = {text: times for text, times in expected.items() if times >= 5}
    rest = 1000 - sum(common.values())
    chi2 = sum((found[text] - times) ** 2 / times for text, times in common.items())
    chi2 += (1000 - sum(found[text] for text in common) - rest) ** 2 / rest if rest > 1 else 0
    freedom = len(common) - (rest <= 1)
    # about 1 in 10,000 for draws of the right distribution
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


def test_the_closing_mark_and_the_line_break_differ_from_a_text_that_was_cut(server):
    texts = complete(
        connect(server), asked(80), SETTINGS.model_copy(update={"top_k": 0, "top_p": 1.0})
    )
    problems = Counter(completion.problem for completion in texts)
    assert min(problems[None], problems["line_break"], problems["not_closed"]) >= 5
    assert not any('"' in completion.text or "\n" in completion.text for completion in texts)
    text = next(completion.text for completion in texts if completion.problem == "not_closed")
    assert len(text) > 20  # forty tokens, which the model's end of text does not cut short

"""λ and γ of a text: what a mixed batch writes is, to the last bit, what each text alone is written with."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding_requests import prompt, requests
from reference_decoding import reference
from tiny_lm import load_engine, make_family
from transformers import AutoModelForCausalLM

from generation.decoding import output_layer
from generation.decoding.protocol import Request, complete
from generation.decoding.sampling import WholeLogits, choose, guided_rows
from generation.decoding.self_debiasing import debias, draw, nucleus
from generation.inputs.row_seeds import uniforms
from hub.contract.recipe import DecodingParameters

PLAIN = 'Sentence 2: "'
OWN = [(None, None), (0.0, 0.0), (5.0, None), (None, 1.5), (1e4, 0.0), (30.0, 0.2), (0.0, 0.8)]  # λ, γ
SETTINGS = {
    "all": DecodingParameters(max_new_tokens=12, guidance=0.5),
    "no-top-k": DecodingParameters(max_new_tokens=12, guidance=0.5, top_k=0),
    "unguided": DecodingParameters(max_new_tokens=12, decay_constant=0.0),
}


@pytest.fixture(params=["in pieces", "whole"])
def logits(request, monkeypatch):
    """The tiny vocabularies are read as large ones are, or as a whole."""
    monkeypatch.setattr(output_layer, "SMALLEST", 1 if request.param == "in pieces" else 16_384)


def settings_of(request: Request, settings: DecodingParameters) -> DecodingParameters:
    own = {"decay_constant": request.decay_constant_in(settings), "guidance": request.guidance_in(settings)}
    return settings.model_copy(update=own)


def bare(request: Request) -> Request:
    return replace(request, decay_constant=None, guidance=None)


def mixed(count: int, settings: DecodingParameters) -> list[Request]:
    """Texts of all the pairs in ``OWN``; those without γ have no plain prompt, as a recipe's have none."""
    found = []
    for number, one in enumerate(requests(count)):
        decay, guidance = OWN[number // 3 % len(OWN)]
        own = replace(one, decay_constant=decay, guidance=guidance, plain_prompt=PLAIN)
        if number % 2:
            own = replace(own, scored_prompts=tuple(prompt(place, one.prompt.split('"')[1]) for place in range(3)))
        found.append(own if own.guidance_in(settings) else replace(own, plain_prompt=None))
    return found


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", ["gemma3", "qwen2.5", "gemma2"])
def test_a_mixed_batch_equals_each_text_alone(name, settings, logits, tmp_path):
    """Alone, with settings that say for all texts what the text says for itself. gemma2 takes the plain loop."""
    engine, asked = load_engine(make_family(tmp_path, name)), mixed(42, settings)
    assert len({(one.decay_constant_in(settings), one.guidance_in(settings)) for one in asked}) >= 6
    together = complete(engine, asked, settings, 500)
    alone = [complete(engine, [bare(one)], settings_of(one, settings), 8)[0] for one in asked]
    if name == "gemma2":  # its rows are padded to the longest prompt of the batch, which moves last bits
        assert [done.text for done in together] == [done.text for done in alone]
    else:
        assert together == alone
        assert complete(engine, asked[::-1], settings, 23)[::-1] == alone
    without = complete(engine, [bare(one) for one in asked], settings, 500)
    assert sum(ours.text != theirs.text for ours, theirs in zip(together, without, strict=True)) >= 5


@pytest.mark.parametrize("name", ["gemma3", "gemma2"])
def test_each_text_equals_the_reference_with_its_own_constants(name, tmp_path):
    settings = SETTINGS["all"]
    engine, asked = load_engine(make_family(tmp_path, name)), mixed(21, settings)
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    wanted = [reference(original, engine.tokenizer, one, settings_of(one, settings)) for one in asked]
    assert [done.text for done in complete(engine, asked, settings, 60)] == wanted


@pytest.mark.parametrize("top_k", [1, 5, 0])
def test_the_bound_of_the_likeliest_tokens_is_of_each_text(top_k):
    """Each text's draw is that of its own debiasing and guidance over the whole vocabulary."""
    texts, words = 300, 3000
    generator = torch.Generator().manual_seed(4)
    own = 3 * torch.randn(texts, words, generator=generator)
    table = torch.cat([own, *(own + spread * torch.randn(own.shape, generator=generator) for spread in (0.3, 2))])
    drawn = torch.arange(2 * texts).view(2, texts).T.contiguous()
    decay = torch.tensor([0.0, 3.0, 100.0, 1e6]).repeat(texts // 4)
    guidance = torch.tensor([0.0, 0.8, 3.0]).repeat(texts // 3)
    settings = DecodingParameters(epsilon=1e-9, top_k=top_k)
    numbers = torch.from_numpy(uniforms(np.arange(texts, dtype=np.uint64), 0))
    plain = torch.where(guidance > 0, torch.arange(2 * texts, 3 * texts), torch.arange(texts))
    outputs, *rows = guided_rows(table, drawn, drawn, plain, guidance)
    assert len(outputs) == 2 * texts + int((guidance > 0).sum())  # none for a text without guidance
    assert torch.equal(rows[2] == rows[0][:, 0], guidance == 0)
    tokens, _ = choose(WholeLogits(outputs), rows[0], settings, numbers, rows[1], rows[2], decay)
    log = table.log_softmax(-1)
    for text in range(texts):
        gamma = float(guidance[text])
        target = ((1 + gamma) * log[text] - gamma * log[2 * texts + text]).log_softmax(-1)[None]
        debiased = debias(log[drawn[text]][None], float(decay[text]), settings.epsilon, target)
        assert int(draw(*nucleus(debiased, settings), numbers[text : text + 1])) == int(tokens[text])


def test_one_number_or_one_for_each_text():
    log_probs = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    constants = [0.0, 5.0, 100.0, 0.0]
    together = debias(log_probs, torch.tensor(constants)[:, None], 0.01)
    for number, constant in enumerate(constants):
        assert torch.equal(together[number], debias(log_probs[number : number + 1], constant, 0.01)[0])
    assert torch.equal(debias(log_probs, torch.zeros(4, 1), 0.01), log_probs[:, 0])

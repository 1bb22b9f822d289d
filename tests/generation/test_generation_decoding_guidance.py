"""Guidance: the texts of transformers' own processor on every path, and the model's own probabilities beside them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding_requests import prompt, requests
from reference_decoding import reference
from tiny_lm import load_engine, make_family
from transformers import AutoModelForCausalLM

from generation.decoding import output_layer
from generation.decoding.engine import Engine
from generation.decoding.output_layer import LogitsInPieces, OutputLayer
from generation.decoding.protocol import Request, complete
from generation.decoding.sampling import WholeLogits, choose, guided_rows
from generation.decoding.self_debiasing import debias, draw, guide, nucleus
from generation.inputs.row_seeds import uniforms
from hub.contract.recipe import DecodingParameters

PLAIN = 'Sentence 2: "'
SETTINGS = DecodingParameters(max_new_tokens=12, guidance=0.5)
OTHERS = {
    "strong": DecodingParameters(max_new_tokens=12, guidance=3.0),
    "no-debiasing": DecodingParameters(decay_constant=0.0, max_new_tokens=12, guidance=1.5),
    "no-top-k": DecodingParameters(top_k=0, max_new_tokens=12, guidance=0.5),
    "line": DecodingParameters(max_new_tokens=12, text_end="line", guidance=0.5),
}
SLOW = pytest.mark.slow("what the everyday families beside these go through, too")
FAMILIES = ("gemma3", "gemma2", "qwen2.5", *(pytest.param(name, marks=SLOW) for name in ("gpt2", "granite", "phi")))


def guided(count: int) -> list[Request]:
    return [replace(one, plain_prompt=PLAIN) for one in requests(count)]


def scored(count: int) -> list[Request]:
    return [
        replace(one, scored_prompts=tuple(prompt(number, one.prompt.split('"')[1]) for number in range(3)))
        for one in guided(count)
    ]


@pytest.fixture(params=["in pieces", "whole"])
def logits(request, monkeypatch):
    """The tiny vocabularies are read as large ones are, or as a whole."""
    monkeypatch.setattr(output_layer, "SMALLEST", 1 if request.param == "in pieces" else 16_384)
    return request.param


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_equal_the_reference(name, logits, tmp_path):
    """gemma2 is written by the plain loop, in either case."""
    engine, asked = load_engine(make_family(tmp_path, name)), guided(12)
    assert engine.attention.shared == (name != "gemma2")
    assert (engine._output is not None) == (logits == "in pieces" and name != "gemma2")
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    wanted = [reference(original, engine.tokenizer, request, SETTINGS) for request in asked]
    for rows in (7, 96):
        assert [done.text for done in complete(engine, asked, SETTINGS, rows)] == wanted
    without = [done.text for done in complete(engine, requests(12), DecodingParameters(max_new_tokens=12), 96)]
    assert sum(ours != theirs for ours, theirs in zip(wanted, without, strict=True)) >= 3


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_texts_equal_the_reference_in_other_settings(settings, logits, tmp_path):
    engine, asked = load_engine(make_family(tmp_path, "gemma3")), guided(12)
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    wanted = [reference(original, engine.tokenizer, request, settings) for request in asked]
    assert [done.text for done in complete(engine, asked, settings, 30)] == wanted and len(set(wanted)) >= 3


@pytest.mark.parametrize("top_k", [5, 0], ids=["top-k", "no-top-k"])
@pytest.mark.parametrize("name", ["gemma3", pytest.param("gpt2", marks=SLOW), pytest.param("qwen2.5", marks=SLOW)])
def test_nothing_depends_on_batch_size_order_or_history(name, top_k, logits, tmp_path):
    """To the last bit, whether two rows or seventy read the plain prompt."""
    engine, asked = load_engine(make_family(tmp_path, name)), scored(70)
    settings = DecodingParameters(top_k=top_k, top_p=0.95, max_new_tokens=20, guidance=0.7)
    prefixes = [prompt(number, "").split('"')[0] + '"' for number in range(3)]
    whole = complete(engine, asked, settings, 400, prefixes)
    assert complete(engine, asked[::-1], settings, 400, prefixes)[::-1] == whole
    assert complete(engine, asked[:6], settings, 1, prefixes) == whole[:6]
    assert complete(engine, asked[:40], settings, 23, prefixes) == whole[:40]
    assert complete(engine, asked[33:], settings, 90, prefixes) == whole[33:]
    unscored = [replace(done, log_likelihoods=()) for done in whole]
    assert complete(engine, guided(70), settings, 90, prefixes) == unscored


def test_without_strength_or_plain_prompt_it_is_nothing(logits, tmp_path):
    engine, asked, off = load_engine(make_family(tmp_path, "gemma3")), scored(24), replace_guidance(0.0)
    bare = [replace(one, plain_prompt=None) for one in asked]
    wanted = complete(engine, bare, off, 60)
    assert complete(engine, asked, off, 60) == complete(engine, bare, SETTINGS, 60) == wanted
    mixed = [one if number % 2 else replace(one, plain_prompt=None) for number, one in enumerate(asked)]
    theirs = complete(engine, asked, SETTINGS, 60)
    assert theirs != wanted
    assert complete(engine, mixed, SETTINGS, 60) == [
        (theirs if number % 2 else wanted)[number] for number in range(len(mixed))
    ]


def replace_guidance(value: float) -> DecodingParameters:
    return SETTINGS.model_copy(update={"guidance": value})


@pytest.mark.parametrize("name", ["gemma3", "gemma2"])
def test_what_is_told_is_the_models_own(name, tmp_path, monkeypatch):
    """log_prob, margin and likelihoods are those of a plain forward pass over the text, before guidance."""
    monkeypatch.setattr(output_layer, "SMALLEST", 1)
    engine, asked, found = load_engine(make_family(tmp_path, name)), scored(12), {}
    finish = Engine._finish

    def noted(self, tokens, log_probs, settings):
        done = finish(self, tokens, log_probs, settings)
        found[done.log_prob] = list(tokens)
        return done

    monkeypatch.setattr(Engine, "_finish", noted)
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for request, done in zip(asked, complete(engine, asked, SETTINGS, 60), strict=True):
        tokens = found[done.log_prob]
        sums = {}
        for text in request.told_prompts:
            with torch.inference_mode():
                ids = torch.tensor([[*engine.encode(text), *tokens]])
                logits = original(input_ids=ids).logits[0, -len(tokens) - 1 : -1].double()
                logits[:, engine.banned(SETTINGS)] = -torch.inf
            sums[text] = float(logits.log_softmax(-1)[range(len(tokens)), tokens].sum())
        assert done.log_likelihoods == pytest.approx([sums[text] for text in request.scored_prompts], abs=1e-3)
        assert done.log_prob == pytest.approx(sums[request.prompt] / len(tokens), abs=1e-4)
        if request.counter_prompts:
            best = max(sums[text] for text in request.counter_prompts)
            assert done.margin == pytest.approx((sums[request.prompt] - best) / len(tokens), abs=2e-4)


def test_texts_beyond_the_window_are_guided_too(tmp_path):
    engine, asked = load_engine(make_family(tmp_path, "gemma3", sliding_window=45)), guided(24)
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    done = complete(engine, asked, SETTINGS, 96)
    assert [one.text for one in done] == [reference(original, engine.tokenizer, one, SETTINGS) for one in asked]
    assert complete(engine, asked[::-1], SETTINGS, 9)[::-1] == done


def test_the_plain_prompt_is_read_in_one_product(tmp_path, monkeypatch):
    """Were it read in turns of eight rows, levels would be as many as texts."""
    engine, levels = load_engine(make_family(tmp_path, "gemma3")), []
    passed = engine._step

    def step(batch, settings):
        plan = batch.next_pass

        def counted():
            now = plan()
            levels.append(len(now.levels))
            return now

        monkeypatch.setattr(batch, "next_pass", counted)
        return passed(batch, settings)

    monkeypatch.setattr(engine, "_step", step)
    complete(engine, guided(90), SETTINGS, 600)
    with_plain, levels[:] = max(levels), []
    complete(engine, requests(90), replace_guidance(0.0), 600)
    assert with_plain == max(levels) + 1


@pytest.mark.parametrize("decay_constant", [0.0, 100.0, 1e6])
@pytest.mark.parametrize("top_k", [1, 5, 40, 0])
def test_equal_to_guiding_the_whole_vocabulary(decay_constant, top_k):
    texts, words, gamma = 300, 3000, 0.8
    generator = torch.Generator().manual_seed(4)
    own = 3 * torch.randn(texts, words, generator=generator)
    table = torch.cat([own, *(own + spread * torch.randn(own.shape, generator=generator) for spread in (0.3, 1.0, 2))])
    told = torch.arange(3 * texts).view(3, texts).T.contiguous()
    drawn, plain = told[:, :2], torch.arange(3 * texts, 4 * texts)
    settings = DecodingParameters(decay_constant=decay_constant, epsilon=1e-9, top_k=top_k, guidance=gamma)
    numbers = torch.from_numpy(uniforms(np.arange(texts, dtype=np.uint64), 0))
    outputs, *rows = guided_rows(table, drawn, told, plain, torch.full((texts,), gamma))
    assert len(outputs) == len(table)  # in the place of the plain rows
    tokens, log_probs = choose(WholeLogits(outputs), rows[0], settings, numbers, rows[1], rows[2])
    log = table.log_softmax(-1)
    target = ((1 + gamma) * log[:texts] - gamma * log[plain]).log_softmax(-1)
    debiased = debias(log[drawn], decay_constant, settings.epsilon, target)
    assert torch.equal(tokens, draw(*nucleus(debiased, settings), numbers))
    wanted = log[told].gather(2, tokens[:, None, None].expand(-1, 3, 1))[:, :, 0]
    assert torch.allclose(log_probs, wanted, atol=1e-4)


def test_alpha_is_of_the_unguided_probabilities():
    """A token that guidance favours is struck down all the same where a counter-prompt made it likelier."""
    own = torch.tensor([[0.3, 0.3, 0.4]]).log()
    log_probs = torch.stack([own, torch.tensor([[0.6, 0.2, 0.2]]).log()], dim=1)
    target = guide(own, torch.tensor([[0.1, 0.3, 0.6]]).log(), 1.0).log_softmax(-1)
    assert torch.allclose(target.exp(), torch.tensor([[0.9, 0.3, 0.4 * 0.4 / 0.6]]) / (0.9 + 0.3 + 0.16 / 0.6))
    found = debias(log_probs, 10.0, 1e-6, target).exp()[0]
    weights = target.exp()[0] * torch.tensor([float(np.exp(-3)), 1, 1])
    assert torch.allclose(found, weights / weights.sum(), atol=1e-6)


@pytest.mark.parametrize("vocabulary", [330, 9001])
def test_in_half_precision_guided_logits_are_not_rounded_once_more(vocabulary):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(vocabulary, 64, generator=generator).bfloat16()
    hidden = torch.randn(60, 64, generator=generator).bfloat16()
    drawn = torch.arange(20)[:, None]
    outputs, drawn, _, places = guided_rows(hidden, drawn, drawn, torch.arange(20, 40), torch.full((20,), 1.5))
    pieces = LogitsInPieces(OutputLayer(weight, None), outputs, [])
    exact = hidden.double() @ weight.double().T
    wanted = 2.5 * exact[:20] - 1.5 * exact[20:40]
    found, ids = pieces.largest(places, 5)
    assert torch.allclose(found.double(), wanted.gather(1, ids), atol=1e-4)
    best = wanted.topk(5).values
    assert (best - found).abs().max() < 0.5  # of 40 to 60: candidates come from rounded logits
    assert torch.equal(pieces.at(drawn, ids), LogitsInPieces(OutputLayer(weight, None), hidden[:20], []).at(drawn, ids))


@pytest.mark.parametrize("name", ["gemma3", "gemma2", "qwen2.5"])
def test_half_precision_writes(name, logits, tmp_path):
    engine = load_engine(make_family(tmp_path, name), dtype="bfloat16")
    done = complete(engine, scored(9), SETTINGS, 60)
    assert all(one.log_prob < 0 and np.isfinite(one.log_likelihoods).all() for one in done)

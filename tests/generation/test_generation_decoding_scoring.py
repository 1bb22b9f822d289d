"""Scoring of texts under further prompts while they are written: right, for every path, and it changes no text."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding_requests import prompt, requests
from tiny_lm import FAMILIES, load_engine, make_family
from transformers import AutoModelForCausalLM

from generation.backends import output_layer
from generation.backends.engine import Engine
from generation.backends.protocol import Request, complete
from hub.contract.recipe import DecodingParameters

EVERYDAY = (
    "gemma3",
    "qwen2.5",
    "gemma2",
    "gpt2",
)  # windows; padded vocabulary; the plain loop; another tokenizer's way
OTHERS = pytest.mark.slow("the families beside some with most of the oddities")
NAMES = [name if name in EVERYDAY else pytest.param(name, marks=OTHERS) for name in FAMILIES]
SETTINGS = DecodingParameters(max_new_tokens=12)
LINE = DecodingParameters(max_new_tokens=12, text_end="line", top_k=0)


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch):
    """The tiny vocabularies are read as large ones are."""
    monkeypatch.setattr(output_layer, "SMALLEST", 1)


def scored(count: int) -> list[Request]:
    """DINO's requests, each scored under the prompts of all three labels."""
    return [
        replace(one, scored_prompts=tuple(prompt(number, one.prompt.split('"')[1]) for number in range(3)))
        for one in requests(count)
    ]


@pytest.fixture
def tokens_of(monkeypatch):
    """The drawn tokens of each text, by its prompt and the sum of its log-probabilities."""
    found, finish = {}, Engine._finish

    def noted(self, tokens, log_probs, settings):
        done = finish(self, tokens, log_probs, settings)
        found[done.log_prob] = list(tokens)
        return done

    monkeypatch.setattr(Engine, "_finish", noted)
    return found


@torch.inference_mode()
def plain_score(model, engine, text_prompt, tokens, settings):
    """log p(tokens | prompt) by one forward pass of transformers' own model, over the tokens that can be drawn."""
    ids = [*engine.encode(text_prompt), *tokens]
    logits = model(input_ids=torch.tensor([ids])).logits[0, -len(tokens) - 1 : -1].double()
    logits[:, engine.banned(settings)] = -torch.inf
    return float(logits.log_softmax(dim=-1)[range(len(tokens)), tokens].sum())


@pytest.mark.parametrize("settings", [SETTINGS, LINE], ids=["quotation mark", "line"])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_a_plain_forward_pass(name, settings, tmp_path, tokens_of):
    engine, asked = load_engine(make_family(tmp_path, name)), scored(12)
    done = complete(engine, asked, settings, 96)
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for request, one in zip(asked, done, strict=True):
        tokens = tokens_of[one.log_prob]
        wanted = [plain_score(original, engine, text, tokens, settings) for text in request.scored_prompts]
        assert one.log_likelihoods == pytest.approx(wanted, abs=1e-4 * len(tokens))
        own = one.log_likelihoods[request.scored_prompts.index(request.prompt)]
        assert own == pytest.approx(one.log_prob * len(tokens), abs=1e-9)
    assert len({one.log_likelihoods for one in done}) > len(done) // 2


@pytest.mark.parametrize("name", ["gemma3", "qwen2.5", "gemma2", pytest.param("llama3", marks=OTHERS)])
def test_scores_do_not_depend_on_the_batch_and_change_no_text(name, tmp_path):
    engine, asked = load_engine(make_family(tmp_path, name)), scored(24)
    done = complete(engine, asked, SETTINGS, 96)
    texts = complete(engine, requests(24), SETTINGS, 96)
    if engine.attention.shared:
        assert complete(engine, asked[::-1], SETTINGS, 7)[::-1] == done
        assert [complete(engine, [request], SETTINGS)[0] for request in asked[:6]] == done[:6]
        prefixes = [prompt(number, "").split('"')[0] + '"' for number in range(3)]
        assert [one.text for one in complete(engine, asked, SETTINGS, 40, prefixes)] == [one.text for one in done]
        assert [replace(one, log_likelihoods=()) for one in done] == texts
    assert [one.text for one in done] == [one.text for one in texts]
    assert all(one.log_likelihoods == () for one in texts)


def test_requests_with_and_without_scores_stand_side_by_side(tmp_path):
    """Unequal numbers of rows: a text is drawn from its own prompt and counter-prompts alone."""
    engine = load_engine(make_family(tmp_path, "qwen2.5"))
    asked = [one if number % 2 else replace(one, scored_prompts=()) for number, one in enumerate(scored(18))]
    done = complete(engine, asked, SETTINGS, 30)
    assert [replace(one, log_likelihoods=()) for one in done] == complete(engine, requests(18), SETTINGS, 30)
    assert [len(one.log_likelihoods) for one in done] == [0, 3] * 9
    plain = Engine(AutoModelForCausalLM.from_pretrained(tmp_path), engine.tokenizer, shared=False)
    for ours, theirs in zip(done, complete(plain, asked, SETTINGS, 30), strict=True):
        assert (ours.text, len(ours.log_likelihoods)) == (theirs.text, len(theirs.log_likelihoods))
        assert np.allclose(ours.log_likelihoods, theirs.log_likelihoods, atol=1e-3)


def test_texts_beyond_the_window_are_scored_too(tmp_path):
    engine, asked = load_engine(make_family(tmp_path, "gemma3", sliding_window=45)), scored(12)
    done = complete(engine, asked, SETTINGS, 96)
    whole = load_engine(make_family(tmp_path / "whole", "gemma3", sliding_window=45))
    alone = [complete(whole, [request], SETTINGS)[0] for request in asked]
    assert alone == done and all(len(one.log_likelihoods) == 3 for one in done)

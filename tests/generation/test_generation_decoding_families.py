"""Today's families, with the shapes of their configs: which path they take, and texts equal to the reference."""

import pytest
from decoding_requests import requests
from reference_decoding import reference
from tiny_lm import FAMILIES, load_engine, make_family
from transformers import AutoModelForCausalLM

from generation.backends import output_layer
from generation.backends.protocol import complete
from hub.contract.recipe import DecodingParameters

EVERYDAY = ("gemma3", "qwen2.5", "phi")  # windows and one key head; padded vocabulary; biases, parallel residual
PLAIN = ("gemma2",)  # soft caps
OTHERS = pytest.mark.slow("the families beside three with most of the oddities")
NAMES = [name if name in EVERYDAY else pytest.param(name, marks=OTHERS) for name in FAMILIES]
SETTINGS = DecodingParameters(max_new_tokens=12)


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch):
    """The tiny vocabularies are read as large ones are."""
    monkeypatch.setattr(output_layer, "SMALLEST", 1)


@pytest.mark.parametrize("name", NAMES)
def test_texts_equal_the_reference(name, tmp_path):
    engine = load_engine(make_family(tmp_path, name))
    assert engine.attention.shared == (name not in PLAIN), engine.attention.reason
    assert (engine._output is not None) == engine.attention.shared
    original, asked = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), requests(12)
    wanted = [reference(original, engine.tokenizer, request, SETTINGS) for request in asked]
    assert len(set(wanted)) >= 3
    for rows in (7, 96):
        assert [done.text for done in complete(engine, asked, SETTINGS, rows)] == wanted


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_takes_the_same_path(name, tmp_path):
    engine = load_engine(make_family(tmp_path, name), dtype="bfloat16")
    assert engine.attention.shared == (name not in PLAIN), engine.attention.reason
    done = complete(engine, requests(6), SETTINGS, 96)
    assert all(completion.log_prob < 0 for completion in done)


@pytest.mark.parametrize("name", ["gemma3", pytest.param("phi3", marks=OTHERS)])
def test_texts_beyond_the_window_stand_among_others(name, tmp_path, capsys):
    """Bits do not depend on who else is written, on either side of the window."""
    engine, asked = load_engine(make_family(tmp_path, name, sliding_window=45)), requests(24)
    original = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    lengths = [max(len(engine.encode(p)) for p in (one.prompt, *one.counter_prompts)) + 12 for one in asked]
    assert engine.attention.window == 45 and engine.context == 256
    assert 4 <= sum(length > 45 for length in lengths) <= 20
    done = complete(engine, asked, SETTINGS, 96)
    said = "beyond the model's window of 45 tokens"
    assert said in capsys.readouterr().err
    wanted = [reference(original, engine.tokenizer, request, SETTINGS) for request in asked]
    assert [one.text for one in done] == wanted
    assert complete(engine, asked[::-1], SETTINGS, 7)[::-1] == done
    assert [complete(engine, [request], SETTINGS)[0] for request in asked[:9]] == done[:9]
    assert said not in capsys.readouterr().err


def test_ids_that_are_no_token_are_never_drawn(tmp_path, monkeypatch):
    engine = load_engine(make_family(tmp_path, "qwen2.5"))
    assert engine.no_tokens == [*range(len(engine.tokenizer), engine.vocabulary)] and len(engine.no_tokens) > 60
    monkeypatch.setattr(engine, "_finish", lambda tokens, sums, settings: list(tokens))
    settings = DecodingParameters(max_new_tokens=12, top_k=0, top_p=1.0, text_end="line")

    def drawn():
        return {token for tokens in complete(engine, requests(24), settings, 96) for token in tokens}

    assert max(drawn()) < len(engine.tokenizer)
    monkeypatch.setattr(engine, "no_tokens", [])
    assert max(drawn()) >= len(engine.tokenizer)

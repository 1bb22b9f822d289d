"""Which models read through shared attention: mistakes in the attention are refused in every dtype, rounding is not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_lm import load_engine, make_family, make_lm
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from generation.backends import model_check
from generation.backends.model_check import TRIAL, AttentionPath, Preview, find_path, small_config
from generation.backends.shared_attention import attend
from hub.contract.recipe import LanguageModel
from hub.errors import InputError

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
LM = Path("artifacts/lm/gemma-3-270m")
LATER = 20  # a position behind the prompt of the trial


def path_of(folder: Path, dtype: torch.dtype) -> AttentionPath:
    return find_path(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval())


def broken(monkeypatch: pytest.MonkeyPatch, attention: Any) -> None:
    """Put another attention in the place of the shared one."""
    monkeypatch.setitem(AttentionInterface._global_mapping, TRIAL, attention)


def refused(folder: Path, dtype: torch.dtype) -> bool:
    found = path_of(folder, dtype)
    return not found.shared and "logits differ" in found.reason


@DTYPES
@pytest.mark.parametrize("factor", [0.5, 2**0.5])
def test_a_wrong_scale_is_refused(factor, dtype, tmp_path, monkeypatch):
    folder = make_family(tmp_path, "qwen3")
    assert path_of(folder, dtype).shared

    def scaled(module, query, key, value, mask, scaling=None, **more):
        return attend(module, query, key, value, mask, scaling=factor * scaling, **more)

    broken(monkeypatch, scaled)
    assert refused(folder, dtype)


@DTYPES
def test_a_soft_cap_is_refused_and_so_is_one_left_out(dtype, tmp_path, monkeypatch):
    folder = make_family(tmp_path, "gemma2", attn_logit_softcapping=1.0)
    assert "softcap" in path_of(folder, dtype).reason
    broken(monkeypatch, lambda *given, softcap, **more: attend(*given, **more))
    assert refused(folder, dtype)


@DTYPES
@pytest.mark.parametrize("window", [8, 24])
def test_a_window_within_the_trial_is_refused_and_so_is_one_not_told(window, dtype, tmp_path, monkeypatch):
    folder = make_lm(tmp_path, "mistral", sliding_window=window)
    assert f"window of {window} tokens" in path_of(folder, dtype).reason
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, TRIAL, lambda **_: None)
    assert refused(folder, dtype)


@DTYPES
def test_wrong_positions_are_refused(dtype, tmp_path, monkeypatch):
    folder, plain = make_family(tmp_path, "llama3"), model_check.run_pass

    def shifted(model, now):
        now.positions = now.positions + (now.positions >= LATER)
        return plain(model, now)

    monkeypatch.setattr(model_check, "run_pass", shifted)
    assert refused(folder, dtype)


@DTYPES
def test_wrong_positions_of_the_last_tokens_alone_are_refused(dtype, tmp_path, monkeypatch):
    """A page that begins anew: two tokens of the trial lie in the second one."""
    folder, plain = make_family(tmp_path, "llama3"), model_check.run_pass

    def anew(model, now):
        now.positions = now.positions % 32
        return plain(model, now)

    monkeypatch.setattr(model_check, "run_pass", anew)
    assert refused(folder, dtype)


def test_a_model_that_is_refused_keeps_its_own_attention(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(make_family(tmp_path, "gemma2")).eval()
    own = model.config._attn_implementation
    assert find_path(model).own == own == model.config._attn_implementation


def test_the_likeliest_tokens_decide_in_half_precision():
    """One logit of thousands that is far off says nothing, one among the likeliest does; the mean must be small."""
    wanted = torch.randn(19, 5000, generator=torch.Generator().manual_seed(0))
    found = wanted + 0.01 * torch.randn(19, 5000, generator=torch.Generator().manual_seed(1))
    assert model_check._alike(found, wanted, 0.01)
    assert not model_check._alike(found, wanted, 0.003)
    assert not model_check._alike(found + torch.nan, wanted, 0.01)
    unlikely, likely = found.clone(), found.clone()
    unlikely[3, wanted[3].argmin()] += 1
    likely[3, wanted[3].argmin()] += 20
    assert model_check._alike(unlikely, wanted, 0.01) and not model_check._alike(likely, wanted, 0.01)


@pytest.mark.slow("loads a model of 270M parameters twice")
@pytest.mark.skipif(not LM.is_dir(), reason="the LM at hand is not made")
@DTYPES
def test_the_lm_at_hand_is_taken(dtype):
    found = path_of(LM, dtype)
    assert found.shared and found.window == 512


def test_the_manifest_tells_the_path_and_why(tmp_path, capsys):
    windowed = load_engine(make_family(tmp_path / "a", "gemma3")).describe()
    assert windowed["attention"] == "shared" and windowed["attention_window"] == 128 and windowed["parameters"] > 0
    capped = load_engine(make_family(tmp_path / "b", "gemma2")).describe()
    assert capped["attention"] == "plain" and "softcap" in capped["attention_reason"]
    assert "attention_window" not in capped and "the plain, slower loop" in capsys.readouterr().err


def preview(folder: Path, **keys: Any) -> Preview:
    return Preview.of(LanguageModel(path=str(folder), license="mit", **keys))


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3", "qwen2"])
def test_a_preview_expects_what_the_engine_finds(name, tmp_path):
    engine, seen = load_engine(make_family(tmp_path, name)), preview(tmp_path)
    assert seen.describe() == engine.attention.describe()
    assert (seen.context, seen.count_tokens("A man.")) == (engine.context, engine.count_tokens("A man."))


def test_a_preview_reads_no_weights_and_wants_them_there(tmp_path, monkeypatch):
    folder = make_family(tmp_path, "llama3")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("the weights are read"))
    lines = list(preview(folder).lines())
    assert lines[0] == "model: float32 on cpu"
    assert lines[1] == "attention: shared, expected (gives the logits of the model's own attention)"
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be loaded as a causal language model"):
        preview(folder)
    weights.unlink()
    with pytest.raises(InputError, match="has no weights in safetensors"):
        preview(folder)


def test_a_small_config_keeps_the_shape_of_the_attention(tmp_path):
    seen = preview(make_family(tmp_path, "gemma3"))
    config = seen.config
    config.layer_types, config.num_hidden_layers = ["sliding_attention"] * 25 + ["full_attention"], 26
    small = small_config(config)
    assert small.layer_types == ["sliding_attention", "full_attention"] and small.num_hidden_layers == 2
    assert (small.head_dim, small.num_attention_heads, small.hidden_size) == (16, 4, 40)
    assert config.num_hidden_layers == 26


def test_half_precision_that_the_cpu_imitates_is_said_once(tmp_path, monkeypatch, capsys):
    folder = make_family(tmp_path, "llama3")
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert load_engine(folder, dtype="bfloat16").model.dtype == torch.bfloat16
    assert capsys.readouterr().err.count("does not multiply it natively") == 1
    assert any("warning: model.dtype bfloat16" in line for line in preview(folder, dtype="bfloat16").lines())


def test_a_chunk_is_a_window_whatever_its_name(tmp_path):
    sizes = {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64}
    folder = make_lm(tmp_path, "llama4_text", attention_chunk_size=64, **sizes)
    assert path_of(folder, torch.float32).window == preview(folder).describe()["attention_window"] == 64


@DTYPES
def test_layers_that_remember_in_another_way_are_refused(dtype, tmp_path):
    """A convolution over the tokens before: its state is in no cache of keys and values."""
    folder = make_lm(tmp_path, "lfm2", num_key_value_heads=2, layer_types=["conv", "full_attention"])
    assert not path_of(folder, dtype).shared

"""Loading: dtype and device, which models read through shared attention, and the preview of a model
without weights.
"""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tiny_lm import load_engine, make_family, make_lm
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from sts_dino.generation.backends import load_model, model_check, output_layer
from sts_dino.generation.backends.load_model import (
    describe_slow_dtype,
    get_torch_dtype,
    load_preview,
    resolve_dtype,
)
from sts_dino.generation.backends.model_check import TRIAL, AttentionPath, choose_attention
from sts_dino.generation.backends.output_layer import Int8Linear, get_precision
from sts_dino.generation.backends.shared_attention import attend
from sts_dino.hub.contract.recipe import LanguageModel
from sts_dino.hub.errors import InputError

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)
LATER = 20  # a position behind the prompt of the trial


def model(dtype: str = "auto", path: Path | str = "lm", **keys: object) -> LanguageModel:
    return LanguageModel.model_validate(
        {"path": str(path), "license": "mit", "dtype": dtype, **keys}
    )


@pytest.fixture
def cpu(monkeypatch):
    return lambda *names: monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True)
    )


@pytest.mark.parametrize(
    ("names", "wanted", "beside"),
    [
        (("avx2", "avx512_f"), "float32", torch.float32),
        (("avx512_bf16",), "bfloat16", torch.bfloat16),
        (("bf16",), "bfloat16", torch.bfloat16),
        (("avx512_bf16", "avx512_vnni"), "int8", torch.bfloat16),
        (("avx2", "avx_vnni"), "int8", torch.float32),
        (("avx512_vnni", "amx_bf16"), "bfloat16", torch.bfloat16),
        ((), "float32", torch.float32),
    ],
)
def test_auto_is_the_fastest_dtype_of_the_cpu(cpu, names, wanted, beside):
    cpu(*names)
    assert (resolve_dtype(model()), get_torch_dtype(model())) == (wanted, beside)


@pytest.mark.parametrize("vnni", [True, False])
@DTYPES
def test_an_int8_layer_is_close_to_its_own_for_the_largest_values(cpu, vnni, dtype):
    if vnni and not output_layer.cpu_has(*output_layer.VNNI):
        pytest.skip("this CPU adds pairs of 8-bit products in 16 bits")
    cpu("avx2", *["avx512_vnni"] * vnni)
    generator = torch.Generator().manual_seed(1)
    weight, bias, inputs = (
        torch.randn(*shape, generator=generator) for shape in ((48, 64), (48,), (2, 33, 64))
    )
    inputs[0] = 100 * inputs[0].sign()  # sums of pairs would not fit 16 bits
    inputs[1, 0] = 0
    weight, bias, inputs = weight.to(dtype), bias.to(dtype), inputs.to(dtype)
    before = weight.clone()
    with torch.inference_mode():
        plain = torch.nn.functional.linear(inputs, weight, bias)
        error = Int8Linear(weight, bias)(inputs) - plain
    assert error.dtype == dtype and torch.equal(weight, before)
    assert error.float().norm() < (0.02 if vnni else 0.03) * plain.float().norm()


def test_int8_generates_and_a_cpu_without_its_kernels_refuses(cpu, tmp_path):
    folder = make_family(tmp_path, "llama3")
    engine = load_engine(folder, dtype="int8")
    assert get_precision(engine.model) == "int8" and engine.attention.shared
    cpu("avx2")
    assert "does not multiply it natively" in str(describe_slow_dtype(model("int8")))
    cpu("neon")
    with pytest.raises(
        InputError, match=r"model.dtype: int8: this CPU has no kernel.*--set model.dtype=auto"
    ):
        load_engine(folder, dtype="int8")
    with pytest.raises(ValueError, match="int8 is for a CPU"):
        model("int8", device="cuda")


def test_a_named_dtype_stays_and_a_gpu_is_asked_for_its_own(monkeypatch):
    monkeypatch.setattr(load_model, "cpu_has", lambda *_: 1 / 0)
    dtypes = ["float32", "bfloat16", "float16", "int8"]
    assert [resolve_dtype(model(dtype)) for dtype in dtypes] == dtypes
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for native, wanted in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation, n=native: n
        )
        assert (
            resolve_dtype(model(device="cuda:1"))
            == resolve_dtype(model(device_map="auto"))
            == wanted
        )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"model.dtype: 'auto': cuda is not here.*name the dtype"):
        resolve_dtype(model(device="cuda"))


def test_device_map_decides_the_dtype_in_place_of_device(cpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cpu("amx_bf16")
    for device in ("cpu", "cuda", "mps"):
        assert resolve_dtype(model(device=device, device_map="auto")) == "bfloat16"


def test_half_precision_that_a_cpu_emulates_is_a_warning(cpu, tmp_path, capsys):
    cpu("avx2")
    assert "model.dtype=auto is faster here" in str(describe_slow_dtype(model("bfloat16")))
    assert (
        describe_slow_dtype(model()) is None
        and describe_slow_dtype(model("bfloat16", device="cuda")) is None
    )
    folder = make_family(tmp_path, "llama3")
    assert load_engine(folder, dtype="bfloat16").model.dtype == torch.bfloat16
    assert capsys.readouterr().err.count("does not multiply it natively") == 1
    assert any(
        "warning: model.dtype bfloat16" in line
        for line in load_preview(model("bfloat16", folder))[1]
    )
    cpu("amx_bf16")
    assert describe_slow_dtype(model("bfloat16")) is None and "float16" in str(
        describe_slow_dtype(model("float16"))
    )


def path_of(folder: Path, dtype: torch.dtype, copy_folder: Path | None = None) -> AttentionPath:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.copy_folder = copy_folder
    return choose_attention(model)


def refused(folder: Path, dtype: torch.dtype) -> bool:
    found = path_of(folder, dtype)
    return not found.shared and "logits differ" in found.reason


@DTYPES
def test_a_wrong_scale_or_wrong_positions_are_refused(dtype, tmp_path, monkeypatch):
    folder, run_pass = make_family(tmp_path, "qwen3"), model_check.run_pass
    assert path_of(folder, dtype).shared

    for factor in (0.5, 2**0.5):

        def scaled(module, query, key, value, mask, scaling=None, by=factor, **more):
            return attend(module, query, key, value, mask, scaling=by * scaling, **more)

        with monkeypatch.context() as patched:
            patched.setitem(AttentionInterface._global_mapping, TRIAL, scaled)
            assert refused(folder, dtype)
    # 32: a page anew
    shifts = (lambda positions: positions + (positions >= LATER), lambda positions: positions % 32)
    for shift in shifts:

        def moved(trial, now, shift=shift):
            now.positions = shift(now.positions)
            return run_pass(trial, now)

        monkeypatch.setattr(model_check, "run_pass", moved)
        assert refused(make_family(tmp_path / "llama", "llama3"), dtype)


@DTYPES
def test_what_shared_attention_lacks_is_refused_and_so_is_what_a_model_does_not_report(
    dtype, tmp_path, monkeypatch
):
    """A soft cap, windows within the trial, layers with a state outside the cache."""
    capped = make_family(tmp_path / "capped", "gemma2", attn_logit_softcapping=1.0)
    windows = {
        window: make_lm(tmp_path / f"{window}", "mistral", sliding_window=window)
        for window in (8, 24)
    }
    state = make_lm(
        tmp_path / "state", "lfm2", num_key_value_heads=2, layer_types=["conv", "full_attention"]
    )
    assert "softcap" in path_of(capped, dtype).reason and not path_of(state, dtype).shared
    assert all(
        f"window of {window} tokens" in path_of(folder, dtype).reason
        for window, folder in windows.items()
    )
    left_out = lambda *given, softcap=None, **more: attend(*given, **more)  # noqa: E731
    monkeypatch.setitem(AttentionInterface._global_mapping, TRIAL, left_out)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, TRIAL, lambda **_: None)
    assert all(refused(folder, dtype) for folder in (capped, *windows.values()))


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "qwen2"])
def test_the_manifest_has_the_attention_and_its_reason(name, tmp_path):
    engine, (seen, _) = load_engine(make_family(tmp_path, name)), load_preview(model(path=tmp_path))
    facts = engine.describe()
    assert facts["parameters"] > 0 and facts["attention"] == (
        "plain" if name == "gemma2" else "shared"
    )
    assert ("softcap" in facts["attention_reason"]) == (name == "gemma2")
    assert facts.get("attention_window") == (128 if name == "gemma3" else None)
    assert (seen.context, seen.count_tokens("A man.")) == (
        engine.context,
        engine.count_tokens("A man."),
    )


@pytest.mark.parametrize(("factor", "shared"), [(1, True), (2**0.5, False)])
def test_scores_of_hundreds_are_not_rounded(factor, shared, tmp_path, monkeypatch):
    """Keys with a large bias, as Qwen 2.5 has: half precision would round their scores by more than
    1.
    """
    model = AutoModelForCausalLM.from_pretrained(
        make_family(tmp_path, "qwen2"), dtype=torch.bfloat16
    ).eval()
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.data.view(-1, 8)[:, 3::4] = 1000

    def scaled(module, *given, scaling, **more):
        return attend(module, *given, scaling=factor * scaling, **more)

    monkeypatch.setitem(AttentionInterface._global_mapping, TRIAL, scaled)
    found = choose_attention(model)
    logged = re.search(r"by 0\.\d+ of their spread on average \(allowed: 0\.\d+\)", found.reason)
    assert (found.shared, bool(logged)) == (shared, not shared), found.reason


def test_a_trial_is_kept_with_a_copy_of_the_weights_and_a_torn_record_is_tried_again(
    tmp_path, monkeypatch
):
    folder, tried = make_family(tmp_path, "qwen3"), Mock(wraps=model_check._try_shared_attention)
    monkeypatch.setattr(model_check, "_try_shared_attention", tried)
    first, second = (path_of(folder, torch.float32, tmp_path) for _ in range(2))
    next(tmp_path.glob("attention-*.json")).write_text('{"shared": tr')
    assert (
        first == second == path_of(folder, torch.float32, tmp_path)
        and first.shared
        and tried.call_count == 2
    )


def test_a_preview_reads_no_weights_and_requires_them(tmp_path, monkeypatch):
    folder = make_family(tmp_path, "llama3")
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *_, **__: pytest.fail("the weights are read"),
    )
    assert load_preview(model("float32", folder))[1] == ["model: float32 on cpu"]
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be loaded as a causal language model"):
        load_preview(model(path=folder))
    weights.unlink()
    with pytest.raises(InputError, match="has no weights in safetensors"):
        load_preview(model(path=folder))


def test_a_cpu_without_packed_bfloat16_multiplies_it_as_it_is(monkeypatch):
    layer = torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
    monkeypatch.setattr(output_layer, "has_packed_bfloat16", lambda: False)
    assert output_layer.pack_layer(layer) is layer
    assert output_layer.pack_layer(layer.float()) is not layer  # float32 is packed everywhere

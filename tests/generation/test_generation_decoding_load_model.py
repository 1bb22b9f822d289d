"""``model.dtype: auto``: bfloat16 where it is native, resolved before a run is named, and told."""

import pytest
import torch

from generation.backends import load_model
from generation.backends.load_model import cpu_has_bfloat16, resolve_dtype, slow_dtype
from hub.contract.recipe import LanguageModel
from hub.errors import InputError


def model(dtype: str = "auto", **keys: object) -> LanguageModel:
    return LanguageModel.model_validate({"path": "lm", "license": "mit", "dtype": dtype, **keys})


@pytest.fixture
def cpu(monkeypatch):
    return lambda *names: monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("avx2", "avx512_f"), "float32"),
        (("avx512_bf16",), "bfloat16"),
        (("amx_bf16",), "bfloat16"),
        (("bf16",), "bfloat16"),
        ((), "float32"),
    ],
)
def test_auto_is_what_the_cpu_multiplies(cpu, names, wanted):
    cpu(*names)
    assert resolve_dtype(model()) == wanted and cpu_has_bfloat16() == (wanted == "bfloat16")


def test_a_dtype_that_is_named_stays(monkeypatch):
    monkeypatch.setattr(load_model, "cpu_has_bfloat16", lambda: 1 / 0)
    assert [resolve_dtype(model(dtype)) for dtype in ("float32", "bfloat16", "float16")] == [
        "float32",
        "bfloat16",
        "float16",
    ]


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_is_asked_for_its_own(monkeypatch, native):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    wanted = "bfloat16" if native else "float32"
    assert resolve_dtype(model(device="cuda:1")) == resolve_dtype(model(device_map="auto")) == wanted


def test_a_gpu_that_is_not_here_cannot_be_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"model.dtype: 'auto': cuda is not here.*name the dtype"):
        resolve_dtype(model(device="cuda"))


def test_half_precision_that_a_cpu_imitates_is_told(cpu):
    cpu("avx2")
    assert "float32 is faster here" in str(slow_dtype(model("bfloat16")))
    assert slow_dtype(model()) is None and slow_dtype(model("float32")) is None
    assert slow_dtype(model("bfloat16", device="cuda")) is None
    cpu("amx_bf16")
    assert slow_dtype(model("bfloat16")) is None and "float16" in str(slow_dtype(model("float16")))

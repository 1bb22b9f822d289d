"""A causal language model and its tokenizer from the Hub or a folder: safetensors only, no code from outside."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import logging as transformers_logging

from generation.decoding.memory import is_out_of_memory, typed_out_of_memory
from generation.decoding.packed_linear import pack
from hub.cli import say
from hub.client.failures import hub_errors
from hub.contract.dataset_sections import quantization_values
from hub.contract.recipe import LanguageModel
from hub.errors import InputError
from hub.model_folder import NO_CODE, NO_PICKLES, reading_model

_SMALLER = "use a smaller model or a narrower dtype (model.dtype)"
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # torch.cpu.get_capabilities: x86, x86, Arm
_ACCESS = "check repo_id and revision; a private or gated model needs a token here (hf auth login)"


@hub_errors("read the language model")
def load_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """The model, ready to read on the recipe's number of torch threads, and its tokenizer.

    Raises InputError when one of them is unusable, OutOfMemory when there is no room for it.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    where, tokenizer, quantization = model_place(recipe), load_tokenizer(recipe), recipe.quantization
    if warning := slow_dtype(recipe):
        say(f"warning: {warning}")
    placed = {"device_map": recipe.device_map} if recipe.device_map else {}
    with (
        typed_out_of_memory("for the model", _SMALLER),
        reading_model(where, "cannot be loaded as a causal language model", passes=_is_memory),
    ):
        model = AutoModelForCausalLM.from_pretrained(
            model_name(recipe),
            revision=recipe.revision,
            dtype=getattr(torch, resolve_dtype(recipe)),
            quantization_config=quantization and AutoQuantizationConfig.from_dict(quantization_values(quantization)),
            **NO_PICKLES,
            **placed,
        )
        model = model if placed else model.to(_device(recipe.device))  # type: ignore[arg-type]  # its stub is wrong
    check_vocabulary(tokenizer, model.config, where)
    model.parameters_as_published = model.num_parameters()  # packing takes weights out of what torch counts
    with typed_out_of_memory("for the model", _SMALLER):
        pack(model)
    return model, tokenizer


@hub_errors("read the language model's tokenizer")
def load_tokenizer(recipe: LanguageModel) -> Any:
    """The model's tokenizer. Raises InputError when it cannot be loaded."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with reading_model(model_place(recipe), "its tokenizer cannot be loaded", hint=_ACCESS if recipe.repo_id else None):
        return AutoTokenizer.from_pretrained(model_name(recipe), revision=recipe.revision, **NO_CODE)


def resolve_dtype(recipe: LanguageModel) -> str:
    """``dtype``, and for ``auto`` bfloat16 where the device multiplies it natively, else float32.

    Raises InputError when the device is not here to be asked.
    """
    if recipe.dtype != "auto":
        return recipe.dtype
    gpu = torch.cuda.is_available()
    if recipe.device.startswith("cuda") and not recipe.device_map and not gpu:
        hint = "name the dtype, or --set model.device=cpu"
        raise InputError("model.dtype", f"'auto': {recipe.device} is not here to be asked", hint=hint)
    if recipe.device.startswith("cuda") or (recipe.device_map and gpu):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = (recipe.device == "cpu" or bool(recipe.device_map)) and cpu_has_bfloat16()
    return "bfloat16" if native else "float32"


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions that multiply bfloat16: AVX-512's, AMX or Arm's."""
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch before it had them tells nothing
    return any(able.get(name, False) for name in _CPU_BFLOAT16)


def slow_dtype(recipe: LanguageModel) -> str | None:
    """What there is to say of half precision that a CPU has to imitate: texts are right, and late. None: nothing."""
    dtype = "float32" if recipe.device != "cpu" or recipe.device_map else resolve_dtype(recipe)
    if dtype == "float32" or (dtype == "bfloat16" and cpu_has_bfloat16()):
        return None
    return f"model.dtype {dtype}: this CPU does not multiply it natively; float32 is faster here (model.dtype: auto)"


def model_name(recipe: LanguageModel) -> str:
    """What transformers is asked for: a folder or a Hub id."""
    return recipe.path or recipe.repo_id or ""


def model_place(recipe: LanguageModel) -> Path | str:
    """How messages name the model: the whole path of a folder, or its Hub id."""
    return Path(model_name(recipe)).resolve() if Path(model_name(recipe)).exists() else model_name(recipe)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError("model.device", f"unknown device {name!r}", allowed="cpu, cuda, cuda:0, mps ...") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("model.device", f"{name!r}: no CUDA device is there", hint="--set model.device=cpu")
    return device


def check_vocabulary(tokenizer: Any, config: Any, where: object) -> None:
    """Raise InputError for a tokenizer that cannot serve: no opening quotation mark, or ids beyond the model's."""
    vocabulary = config.get_text_config().vocab_size
    ids = tokenizer('Sentence 2: "').input_ids
    if not ids or tokenizer.decode(ids, skip_special_tokens=True).strip()[-1:] != '"':
        raise InputError(where, "its tokenizer loses the quotation mark that opens a text")
    if max(ids) >= vocabulary or len(tokenizer) == 0:
        raise InputError(where, f"its tokenizer gives ids beyond the model's vocabulary of {vocabulary}")


def _is_memory(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and is_out_of_memory(error)

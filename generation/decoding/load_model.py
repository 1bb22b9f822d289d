"""A causal language model and its tokenizer from the Hub or a folder: safetensors or GGUF, no code from outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import logging as transformers_logging

from generation.decoding.memory import is_out_of_memory, typed_out_of_memory
from generation.decoding.packed_linear import pack
from generation.inputs.gguf_file import OTHER_WAYS, gguf_alone, gguf_path
from hub.cli import say
from hub.client.connection import hub_errors, lost_connection
from hub.contract.dataset_sections import quantization_values
from hub.contract.recipe import LanguageModel
from hub.errors import InputError
from hub.untrusted import NO_CODE, NO_PICKLES, reading_model

_SMALLER = "use a smaller model or a narrower dtype (model.dtype)"
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # torch.cpu.get_capabilities: x86, x86, Arm
_ACCESS = "check repo_id and revision; a private or gated model needs a token here (hf auth login)"


def load_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """The model, ready to write on the recipe's number of torch threads, and its tokenizer.

    Raises InputError when one of them is unusable, OutOfMemory when there is no room for it.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    if warning := slow_dtype(recipe):
        say(f"warning: {warning}")
    model, tokenizer = read_model(recipe)
    check_vocabulary(tokenizer, model.config, model_place(recipe))
    model.parameters_as_published = model.num_parameters()  # packing takes weights out of what torch counts
    with typed_out_of_memory("for the model", _SMALLER):
        pack(model)
    return model, tokenizer


@hub_errors("read the language model")
def read_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """The model as transformers has it, on its device, and its tokenizer. Raises as ``load_model``."""
    where, tokenizer = model_place(recipe), load_tokenizer(recipe)
    placed: dict[str, Any] = {"device_map": recipe.device_map} if recipe.device_map else {}
    with (
        model_origin(recipe) as origin,
        typed_out_of_memory("for the model", _SMALLER),
        reading_model(where, "cannot be loaded as a causal language model", hint=_hint(recipe), passes=_is_memory),
    ):
        if recipe.gguf_file:  # left out, transformers looks for kernels on the Hub and computes on the packed weights
            placed["quantization_config"] = GgufConfig(dequantize=True)
        elif recipe.quantization:
            arguments = quantization_values(recipe.quantization)
            placed["quantization_config"] = AutoQuantizationConfig.from_dict(arguments)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            **origin,
            dtype=getattr(torch, resolve_dtype(recipe)),
            output_loading_info=True,
            **NO_PICKLES,
            **placed,
        )
        model, told = loaded
        if absent := sorted(told["missing_keys"]):
            raise InputError(where, f"lacks {len(absent)} of the model's weights, {absent[0]} among them")
        return model if recipe.device_map else model.to(_device(recipe.device)), tokenizer


@hub_errors("read the language model's tokenizer")
def load_tokenizer(recipe: LanguageModel) -> Any:
    """The model's tokenizer. Raises InputError when it cannot be loaded."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hint = _hint(recipe) or (_ACCESS if recipe.repo_id else None)
    with (
        model_origin(recipe) as origin,
        reading_model(model_place(recipe), "its tokenizer cannot be loaded", hint=hint, passes=_is_of_the_way),
    ):
        return AutoTokenizer.from_pretrained(**origin, **NO_CODE)


@contextmanager
def model_origin(recipe: LanguageModel) -> Iterator[dict[str, Any]]:
    """What ``from_pretrained`` reads the model from, as arguments."""
    if recipe.gguf_file:
        with gguf_alone(gguf_path(recipe)) as file:
            yield file
    else:
        yield {"pretrained_model_name_or_path": model_name(recipe), "revision": recipe.revision}


def _hint(recipe: LanguageModel) -> str | None:
    return f"is the file whole? If it is, {OTHER_WAYS}" if recipe.gguf_file else None


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
    """How messages name the model: the whole path of a folder or GGUF file, or its Hub id."""
    name = f"{model_name(recipe)}/{recipe.gguf_file}" if recipe.gguf_file else model_name(recipe)
    return Path(name).resolve() if Path(name).exists() else name


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


def _is_of_the_way(error: Exception) -> bool:
    return lost_connection(error) is not None


def _is_memory(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and is_out_of_memory(error)

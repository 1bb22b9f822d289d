"""A causal language model and its tokenizer from the Hub or a folder: safetensors only, no code from outside."""

from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.quantizers.auto import AutoQuantizationConfig

from generation.packed_linear import pack
from hub.errors import InputError
from hub.recipe import LanguageModel
from hub.remote import hub_errors

_ACCESS = "check repo_id and revision; a private or gated model needs a token here (hf auth login)"


@hub_errors("read the language model")
def load_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """The model, ready to read on the recipe's number of torch threads, and its tokenizer.

    Raises InputError when one of them is unusable.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    where, tokenizer = _place(recipe), load_tokenizer(recipe)
    placed = {"device_map": recipe.device_map} if recipe.device_map else {}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            _name(recipe),
            revision=recipe.revision,
            dtype=getattr(torch, recipe.dtype),
            use_safetensors=True,
            quantization_config=_quantization(recipe),
            **placed,
        )
        model = model if placed else model.to(_device(recipe.device))  # type: ignore[arg-type]  # its stub is wrong
    except (OSError, ValueError, ImportError) as error:
        hint = "install what the quantization needs" if isinstance(error, ImportError) else None
        message = f"cannot be loaded as a causal language model: {_first_line(error)}"
        raise InputError(where, message, hint=hint) from error
    _check(tokenizer, model, where)
    model.parameters_as_published = model.num_parameters()  # packing takes weights out of what torch counts
    pack(model)
    return model, tokenizer


@hub_errors("read the language model's tokenizer")
def load_tokenizer(recipe: LanguageModel) -> Any:
    """The model's tokenizer. Raises InputError when it cannot be loaded."""
    try:
        return AutoTokenizer.from_pretrained(_name(recipe), revision=recipe.revision)
    except (OSError, ValueError, KeyError, TypeError) as error:
        refused = recipe.repo_id and not getattr(error, "errno", None)  # a disk's errors have a number
        hint = _ACCESS if refused else None
        raise InputError(_place(recipe), f"its tokenizer cannot be loaded: {_first_line(error)}", hint=hint) from error


def _name(recipe: LanguageModel) -> str:
    return recipe.path or recipe.repo_id or ""


def _place(recipe: LanguageModel) -> Path | str:
    return Path(_name(recipe)).resolve() if Path(_name(recipe)).exists() else _name(recipe)


def _quantization(recipe: LanguageModel) -> Any:
    """The recipe's quantization as transformers' config object; values are YAML scalars (true, 4, nf4)."""
    if recipe.quantization is None:
        return None
    settings = {key: yaml.safe_load(value) for key, value in recipe.quantization.items()}
    return AutoQuantizationConfig.from_dict(settings)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError("model.device", f"unknown device {name!r}", allowed="cpu, cuda, cuda:0, mps ...") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("model.device", f"{name!r}: no CUDA device is there", hint="--set model.device=cpu")
    return device


def _check(tokenizer: Any, model: Any, where: object) -> None:
    """Raise InputError when the tokenizer cannot serve the model's prompts."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = tokenizer('Sentence 2: "').input_ids
    if not ids or tokenizer.decode(ids, skip_special_tokens=True).strip()[-1:] != '"':
        raise InputError(where, "its tokenizer loses the quotation mark that opens a text")
    if max(ids) >= vocabulary or len(tokenizer) == 0:
        raise InputError(where, f"its tokenizer gives ids beyond the model's vocabulary of {vocabulary}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

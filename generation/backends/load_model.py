"""A causal language model and its tokenizer from the Hub or a folder: safetensors or GGUF, no code from outside."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors import safe_open
from transformers import (
    TOKENIZER_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedTokenizerFast,
)
from transformers.integrations.gguf import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import logging as transformers_logging

from generation.backends.gguf_file import GgufWeights, read_config
from generation.backends.model_check import CAUSAL, OTHER_MODEL, require_servable
from generation.backends.output_layer import VNNI, cpu_has, pack
from generation.inputs.chat_template import PromptEncoder
from hub.cli import say
from hub.client.connection import hub_errors, lost_connection
from hub.contract.packaged import require_memory
from hub.contract.recipe import LanguageModel, quantization_values
from hub.errors import InputError, OutOfMemory
from hub.model_limits import require_ids
from hub.untrusted import NO_CODE, NO_PICKLES, reading_model, require_safetensors

_SMALLER = "use a smaller model or a narrower dtype (model.dtype)"
_UNREADABLE = "cannot be loaded as a causal language model"
_PROMPT_TOKENS = 32  # a guess of a prompt's own tokens; a wrong guess costs at most one out-of-memory error
_SHARE = 0.5  # of the free memory
_MOST = {"cpu": 512, "cuda": 4096}  # rows; more take memory and bring little
_CUDA_MEMORY = 2  # cudaErrorMemoryAllocation
_SIGNS = ("can't allocate memory", "not enough memory", "status_alloc_failed", "cuda error: out of memory")
_AUTO = "model.dtype=auto"
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # torch.cpu.get_capabilities: x86, x86, ARMv8
_OTHER_WAYS = (
    "serve the file with llama.cpp and send prompts there (backend: openai, docs/backends.md), or give the model in "
    "safetensors (path or repo_id without gguf_file)"
)
_ALIASES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
_SCALED_BY_CONFIG = ("gpt-oss", "qwen35", "qwen35moe", "lfm2")  # transformers takes their RoPE from the file, whole
_WHOLE = f"is the file whole? If it is, {_OTHER_WAYS}"
_ACCESS = "check repo_id and revision; a private or gated model needs a token here (hf auth login)"


def load_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """The model, ready to write on the recipe's number of torch threads, and its tokenizer.

    Raises InputError when one of them is unusable, OutOfMemory when there is no room for it.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    if warning := slow_dtype(recipe):
        say(f"warning: {warning}")
    return _proved(recipe)


def _proved(recipe: LanguageModel) -> tuple[Any, Any]:
    """The packed model and its tokenizer, both proved to serve."""
    _require_memory(recipe)
    where, (model, tokenizer) = model_place(recipe), read_model(recipe)
    check_vocabulary(tokenizer, model.config, where)
    model.parameters_as_published = model.num_parameters()  # packing takes weights out of what torch counts
    with (
        typed_out_of_memory("for the model", _SMALLER),
        reading_model(where, "cannot serve", allowed=CAUSAL, hint=OTHER_MODEL, passes=is_out_of_memory),
    ):
        eight_bits = resolve_dtype(recipe) == "int8"
        if not pack(model.eval(), eight_bits=eight_bits) and eight_bits:
            problem = "int8: this CPU has no kernel for it, or the model no linear layer"
            raise InputError("model.dtype", problem, hint=f"--set {_AUTO}")
        require_servable(model, where)
    return model, tokenizer


def _require_memory(recipe: LanguageModel) -> None:
    if recipe.device == "cpu" and not recipe.device_map:
        require_memory(recipe.path, recipe.gguf_file, psutil.virtual_memory().available)


def try_model(recipe: LanguageModel) -> str:
    """Load a model that lies here and prove that it can serve, as a run does; a line about that.

    268M parameters take seconds. Raises as ``load_model``.
    """
    if not recipe.path:
        return "model: not tried yet, its weights are on the Hub; a run tries it before it writes"
    if recipe.device.startswith("cuda") and not torch.cuda.is_available():
        return f"model: not tried, {recipe.device} is not here; a run tries it before it writes"
    _require_memory(recipe)
    folder = Path(recipe.path)
    files = [folder / recipe.gguf_file] if recipe.gguf_file else folder.glob("*.safetensors")
    size, free = 2 * sum(file.stat().st_size for file in files), psutil.virtual_memory().available
    if size > free:  # a dtype twice as wide as the file's may not fit
        return f"model: not tried, it may take {size / 1e9:.0f} GB; a run tries it before it writes"
    _proved(recipe)
    return "model: tried: single prompts and a padded batch give equal logits, and no later token changes them"


@hub_errors("read the language model")
def read_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """The model as transformers has it, on its device, and its tokenizer. Raises as ``load_model``."""
    where, tokenizer = model_place(recipe), load_tokenizer(recipe)
    placed: dict[str, Any] = {"device_map": recipe.device_map} if recipe.device_map else {}
    with (
        model_origin(recipe) as origin,
        typed_out_of_memory("for the model", _SMALLER),
        reading_model(where, _UNREADABLE, hint=_WHOLE if recipe.gguf_file else None, passes=is_out_of_memory),
    ):
        dtype = torch_dtype(recipe)
        model_class: Any = AutoModelForCausalLM
        if weights := GgufWeights.proven(origin.get("gguf_file"), dtype):
            model_class = weights.model_class
            origin = {"pretrained_model_name_or_path": None, "config": weights.config, "state_dict": weights.read()}
        elif recipe.gguf_file:  # left out, transformers looks for kernels and computes on the packed weights
            placed["quantization_config"] = GgufConfig(dequantize=True)
        elif recipe.quantization:
            arguments = quantization_values(recipe.quantization)
            placed["quantization_config"] = AutoQuantizationConfig.from_dict(arguments)
        loaded: Any = model_class.from_pretrained(
            **origin,
            dtype=dtype,
            output_loading_info=True,
            **NO_PICKLES,
            **placed,
        )
        model, info = loaded
        if absent := sorted(info["missing_keys"]):
            raise InputError(where, f"lacks {len(absent)} of the model's weights, {absent[0]} among them")
        model.kept_in = weights.kept_in if weights else None
        return model if recipe.device_map else model.to(_device(recipe.device)), tokenizer


@hub_errors("read the language model's tokenizer")
def load_tokenizer(recipe: LanguageModel) -> Any:
    """The model's tokenizer. Raises InputError when it cannot be loaded."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hint = _WHOLE if recipe.gguf_file else _ACCESS if recipe.repo_id else None
    with (
        model_origin(recipe) as origin,
        reading_model(model_place(recipe), "its tokenizer cannot be loaded", hint=hint, passes=lost_connection),
    ):
        config = read_config(origin.get("gguf_file"))
        kind: Any = TOKENIZER_MAPPING.get(type(config), PreTrainedTokenizerFast) if config else AutoTokenizer
        return kind.from_pretrained(**origin, **NO_CODE)


@hub_errors("read the language model's config")
def load_preview(recipe: LanguageModel) -> tuple[PromptEncoder, list[str]]:
    """The prompt encoder of a model whose weights are not read, and lines about the model: its dtype, a slow one.

    Raises InputError when its config or tokenizer is unusable, or a local model's weights are missing.
    """
    place, tokenizer = model_place(recipe), load_tokenizer(recipe)
    with model_origin(recipe) as origin, reading_model(place, "its config cannot be read"):
        config = read_config(origin.get("gguf_file")) or AutoConfig.from_pretrained(**origin, **NO_CODE)
    if isinstance(place, Path) and place.is_dir():
        require_safetensors(place, place)
        with reading_model(place, _UNREADABLE):
            for file in sorted(place.glob("*.safetensors")):
                with safe_open(file, framework="pt"):  # its header, held against the file's size
                    pass
    check_vocabulary(tokenizer, config, place)
    warning, dtype = slow_dtype(recipe), resolve_dtype(recipe)
    lines = [f"model: {dtype} on {recipe.device_map or recipe.device}", *([f"warning: {warning}"] if warning else [])]
    return PromptEncoder(tokenizer, config, recipe.chat_template), lines


@contextmanager
def model_origin(recipe: LanguageModel) -> Iterator[dict[str, Any]]:
    """Arguments of ``from_pretrained``: where it reads the model. Raises InputError for a GGUF that it reads wrong.

    A GGUF file lies in a folder of its own: transformers would prefer a neighbour tokenizer.json.
    """
    if not recipe.gguf_file:
        yield {"pretrained_model_name_or_path": model_name(recipe), "revision": recipe.revision}
        return
    file = _gguf_path(recipe, recipe.gguf_file)
    _check_gguf(file)
    with TemporaryDirectory(prefix="gguf-") as folder:
        alone = Path(folder, "model.gguf")
        alone.symlink_to(file.resolve())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": str(alone)}


def _gguf_path(model: LanguageModel, name: str) -> Path:
    """Where the model's GGUF file lies, downloaded from the Hub if need be. Raises InputError when it is not there."""
    if model.path:
        return Path(model.path).resolve() / name
    try:
        return Path(hf_hub_download(model.repo_id or "", name, revision=model.revision))
    except LocalEntryNotFoundError:  # no Hub answers
        raise
    except EntryNotFoundError:
        problem = f"{model.repo_id} has no such file at revision {model.revision}"
        raise InputError(f"model.gguf_file {name}", problem, hint="look at its list of files") from None


def _check_gguf(file: Path) -> None:
    with reading_model(file, "cannot be read as a GGUF file", hint="is the file whole? Download it again"):
        metadata, tensors = read_gguf_metadata(str(file))
    kind = str(metadata["general.architecture"])
    if _ALIASES.get(kind, kind) not in GGUF_SUPPORTED_ARCHITECTURES and kind not in _SCALED_BY_CONFIG:
        problem = f"is a GGUF of the architecture {kind!r}, which transformers does not read"
        raise InputError(file, problem, hint=_OTHER_WAYS)
    if metadata.get("split.count", 1) > 1:
        raise InputError(file, f"is one of {metadata['split.count']} parts", hint="join them: llama-gguf-split --merge")
    scaled = [name for name in tensors if name.startswith(("rope_freqs", "rope_factors"))]
    scaled += [key for key in (f"{kind}.rope.scaling.type",) if metadata.get(key, "none") != "none"]
    if scaled and kind not in _SCALED_BY_CONFIG:
        problem = f"scales its positions ({scaled[0]}), which transformers passes over: its texts would be others"
        raise InputError(file, problem, hint=_OTHER_WAYS)


def resolve_dtype(recipe: LanguageModel) -> str:
    """``dtype``, and for ``auto`` the fastest one of the device: on a CPU bfloat16 with AMX, int8 with VNNI.

    Raises InputError when the device is not here to be asked.
    """
    if recipe.dtype != "auto":
        return recipe.dtype
    gpu = torch.cuda.is_available()
    if recipe.device.startswith("cuda") and not recipe.device_map and not gpu:
        hint = "name the dtype, or --set model.device=cpu"
        raise InputError("model.dtype", f"'auto': {recipe.device} is not here to be asked", hint=hint)
    if recipe.device.startswith("cuda") or (recipe.device_map and gpu):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if recipe.device == "cpu" and not recipe.device_map and cpu_has(*VNNI) and not cpu_has("amx_bf16"):
        return "int8"
    return half_or_float32() if recipe.device == "cpu" or recipe.device_map else "float32"


def half_or_float32() -> str:
    """bfloat16 where this CPU multiplies it natively, else float32."""
    return "bfloat16" if cpu_has(*_CPU_BFLOAT16) else "float32"


def torch_dtype(recipe: LanguageModel) -> torch.dtype:
    """The dtype of the tensors; with ``int8`` of all but the layers' weights and products."""
    name = resolve_dtype(recipe)
    dtype: torch.dtype = getattr(torch, half_or_float32() if name == "int8" else name)
    return dtype


def slow_dtype(recipe: LanguageModel) -> str | None:
    """What there is to say of a dtype that a CPU has to imitate: texts are right, and late. None: nothing."""
    dtype = "float32" if recipe.device != "cpu" or recipe.device_map else resolve_dtype(recipe)
    if dtype == "float32" or dtype == half_or_float32() or (dtype == "int8" and cpu_has(*VNNI)):
        return None
    return f"model.dtype {dtype}: this CPU does not multiply it natively; {_AUTO} is faster here"


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
    if len(tokenizer) == 0:
        raise InputError(where, "its tokenizer has no tokens")
    require_ids(tokenizer, vocabulary, where, ids)


def rows_that_fit(model: Any, max_new_tokens: int, logits: int) -> int:
    """Model rows to decode together: what half of the free memory holds, within the limits of use; fewer are reported.

    ``logits``: bytes that the output layer takes for a row. A row has its keys and values and its activations beside.
    """
    device, config = model.get_input_embeddings().weight.device, model.config.get_text_config()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = model.get_input_embeddings().weight.element_size()
    cached = 2 * config.num_hidden_layers * heads * head * width * (_PROMPT_TOKENS + max_new_tokens)
    row = int(cached + 4 * _PROMPT_TOKENS * 16 * config.hidden_size) + logits
    most = _MOST.get(device.type, _MOST["cpu"])
    rows = max(16, min(most, int(_SHARE * free / row)))
    if rows < most and not getattr(model, "said_fewer_rows", False):
        model.said_fewer_rows = True
        say(f"memory: {free / 1e9:.1f} GB are free, so {rows} rows are decoded together, not {most}: this takes longer")
    return rows


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, the system or torch says that memory ran out.

    By its type, but torch's allocator on a CPU and CUDA's libraries raise plain RuntimeErrors.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, OutOfMemory)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, getattr(torch, "AcceleratorError", ())):  # torch 2.8
        return getattr(error, "error_code", None) == _CUDA_MEMORY
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


@contextmanager
def typed_out_of_memory(purpose: str, hint: str) -> Iterator[None]:
    """Raise OutOfMemory for every error that says that memory ran out; it passes whole from process to process."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory("memory", f"is too small {purpose}", hint=hint) from error

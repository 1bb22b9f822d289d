"""Load a causal language model and its tokenizer from the Hub or a folder.

Formats: safetensors and GGUF. No code of the model's repository is run.
"""

import errno
import logging
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

from sts_dino.generation.backends.gguf_file import (
    REMOVE_COPIES,
    GgufWeights,
    count_weight_bytes,
    read_config,
)
from sts_dino.generation.backends.model_check import CAUSAL, OTHER_MODEL, require_servable
from sts_dino.generation.backends.output_layer import VNNI, cpu_has, pack_layers
from sts_dino.generation.inputs.chat_template import PromptEncoder
from sts_dino.hub.client.connection import convert_hub_errors, find_lost_connection
from sts_dino.hub.contract.packaged import require_memory
from sts_dino.hub.contract.recipe import LanguageModel, parse_quantization
from sts_dino.hub.errors import InputError, OutOfMemory
from sts_dino.hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    convert_model_errors,
    require_ids,
    require_safetensors,
)

logger = logging.getLogger(__name__)

_SMALLER = "use a smaller model or a narrower dtype (model.dtype)"
_UNREADABLE = "cannot be loaded as a causal language model"
# a guess of a prompt's tokens after its shared prefix; a wrong guess costs at most one
# out-of-memory error
_PROMPT_TOKENS = 32
# a guess of the numbers for each hidden unit of a token that a pass has in memory at a time
_NUMBERS_OF_UNIT = 16
_FEWEST_ROWS = 16
_MEMORY_SHARE = 0.5  # of the free memory, for the rows of a batch
_MOST_ROWS = {"cpu": 512, "cuda": 4096}  # more rows take memory and hardly any time off
_CUDA_MEMORY = 2  # cudaErrorMemoryAllocation
# parts of the messages of RuntimeErrors that mean out of memory
_MEMORY_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",
    "cuda error: out of memory",
)
_AUTO = "model.dtype=auto"
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # torch.cpu.get_capabilities: x86, x86, ARMv8
_OTHER_WAYS = (
    "serve the file with llama.cpp and send prompts there (backend: openai, docs/backends.md), or "
    "give the model in safetensors (path or repo_id without gguf_file)"
)
# architecture of a GGUF file → its other name in transformers
_ALIASES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}
# architectures for which transformers reads all settings of RoPE from the GGUF file
_SCALED_BY_CONFIG = ("gpt-oss", "qwen35", "qwen35moe", "lfm2")
_WHOLE_FILE = f"is the file whole? If it is, {_OTHER_WAYS}"
_ACCESS = "check repo_id and revision; a private or gated model needs a token here (hf auth login)"
_LATER = "a run tries it before it writes"


def load_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """Load a model that can serve, and its tokenizer; set torch's threads to the recipe's number.

    A warning is logged for a slow dtype.

    Raises:
        InputError: one of them is unusable.
        OutOfMemory: the model does not fit into memory.
        RunError: the Hub fails.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    warning = describe_slow_dtype(recipe)
    if warning:
        logger.warning(warning)
    return _load_checked(recipe)


def _load_checked(recipe: LanguageModel) -> tuple[Any, Any]:
    """Return the packed model and its tokenizer, after the model has proved that it can serve.

    Raises what ``load_model`` raises.
    """
    _require_memory(recipe)
    place = get_model_place(recipe)
    model, tokenizer = read_model(recipe)
    check_vocabulary(tokenizer, model.config, place)

    # Pack its layers. Count before: torch does not count packed weights
    model.parameters_as_published = model.num_parameters()
    eight_bits = resolve_dtype(recipe) == "int8"
    with (
        convert_out_of_memory("for the model", _SMALLER),
        convert_model_errors(
            place, "cannot serve", allowed=CAUSAL, hint=OTHER_MODEL, passes=is_out_of_memory
        ),
    ):
        packed = pack_layers(model.eval(), eight_bits=eight_bits)
        if eight_bits and not packed:
            raise InputError(
                "model.dtype",
                "int8: this CPU has no kernel for it, or the model no linear layer",
                hint=f"--set {_AUTO}",
            )
        require_servable(model, place)
    return model, tokenizer


def _require_memory(recipe: LanguageModel) -> None:
    """Raise OutOfMemory when a packaged model is loaded on a CPU and exceeds the free memory."""
    if recipe.device == "cpu" and not recipe.device_map:
        require_memory(recipe.path, recipe.gguf_file, psutil.virtual_memory().available)


def try_model(recipe: LanguageModel) -> str:
    """Load a local model as a run does, check that it can serve, and return a line about it.

    A model on the Hub, on a GPU that is not here, or with weights that may exceed the free memory
    is not loaded; the line says so. Raises what ``load_model`` raises.
    """
    # Say why it is not tried
    if not recipe.path:
        return f"model: not tried yet, its weights are on the Hub; {_LATER}"
    if recipe.device.startswith("cuda") and not torch.cuda.is_available():
        return f"model: not tried, {recipe.device} is not here; {_LATER}"
    _require_memory(recipe)
    size = count_weight_bytes(recipe.path, recipe.gguf_file, recipe.dtype)
    if not recipe.gguf_file:
        size *= 2  # 16 bits on the disk may become float32
    if size > psutil.virtual_memory().available:
        return f"model: not tried, it may take {size / 1e9:.0f} GB; {_LATER}"

    # Try it
    _load_checked(recipe)
    return (
        "model: tried: single prompts and a padded batch give equal logits, and no later token "
        "changes them"
    )


@convert_hub_errors("read the language model")
def read_model(recipe: LanguageModel) -> tuple[Any, Any]:
    """Return transformers' model, on its device, and its tokenizer.

    ``model.copy_folder`` is set to the copy of its weights that was read, or None. Raises what
    ``load_model`` raises.
    """
    place = get_model_place(recipe)
    tokenizer = load_tokenizer(recipe)
    hint = _WHOLE_FILE if recipe.gguf_file else None
    with (
        open_model_origin(recipe) as origin,
        convert_out_of_memory("for the model", _SMALLER),
        convert_model_errors(place, _UNREADABLE, hint=hint, passes=is_out_of_memory),
    ):
        # Choose the reader of the weights
        dtype = get_torch_dtype(recipe)
        model_class: Any = AutoModelForCausalLM
        arguments: dict[str, Any] = dict(origin)
        weights = GgufWeights.open_proven(origin.get("gguf_file"), dtype)
        if weights:
            model_class = weights.model_class
            arguments = {
                "pretrained_model_name_or_path": None,
                "config": weights.config,
                "state_dict": weights.read(),
            }
        elif recipe.gguf_file:
            # without it, transformers looks for kernels that compute on the quantised weights
            arguments["quantization_config"] = GgufConfig(dequantize=True)
        elif recipe.quantization:
            quantization = parse_quantization(recipe.quantization)
            arguments["quantization_config"] = AutoQuantizationConfig.from_dict(quantization)
        if recipe.device_map:
            arguments["device_map"] = recipe.device_map

        # Read them
        model, info = model_class.from_pretrained(
            **arguments, dtype=dtype, output_loading_info=True, **NO_PICKLES
        )
        missing = sorted(info["missing_keys"])
        if missing:
            raise InputError(
                place,
                f"lacks {len(missing)} of the model's weights, {missing[0]} among them",
            )
        model.copy_folder = weights.copy_folder if weights else None
        if not recipe.device_map:
            model = model.to(_get_device(recipe.device))
        return model, tokenizer


@convert_hub_errors("read the language model's tokenizer")
def load_tokenizer(recipe: LanguageModel) -> Any:
    """Return the model's tokenizer.

    From then on transformers logs only errors, and shows no progress bars. Raises InputError when
    the tokenizer cannot be loaded, RunError when the Hub fails.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hint = None
    if recipe.gguf_file:
        hint = _WHOLE_FILE
    elif recipe.repo_id:
        hint = _ACCESS
    problem = "its tokenizer cannot be loaded"
    with (
        open_model_origin(recipe) as origin,
        convert_model_errors(
            get_model_place(recipe), problem, hint=hint, passes=find_lost_connection
        ),
    ):
        config = read_config(origin.get("gguf_file"))
        tokenizer_class: Any = AutoTokenizer
        if config:
            tokenizer_class = TOKENIZER_MAPPING.get(type(config), PreTrainedTokenizerFast)
        return tokenizer_class.from_pretrained(**origin, **NO_CODE)


@convert_hub_errors("read the language model's config")
def load_preview(recipe: LanguageModel) -> tuple[PromptEncoder, list[str]]:
    """Return a model's prompt encoder, without its weights, and lines about its dtype and copy.

    Raises InputError when its config or tokenizer is unusable, or a local model's weights are
    missing or damaged; RunError when the Hub fails.
    """
    # Read the tokenizer and the config
    place = get_model_place(recipe)
    tokenizer = load_tokenizer(recipe)
    with (
        open_model_origin(recipe) as origin,
        convert_model_errors(place, "its config cannot be read"),
    ):
        config = read_config(origin.get("gguf_file"))
        if config is None:
            config = AutoConfig.from_pretrained(**origin, **NO_CODE)

    # Check the weights of a folder by their headers alone
    if isinstance(place, Path) and place.is_dir():
        require_safetensors(place, place)
        with convert_model_errors(place, _UNREADABLE):
            for file in sorted(place.glob("*.safetensors")):
                with safe_open(file, framework="pt"):  # compares its header with the file's size
                    pass
    check_vocabulary(tokenizer, config, place)

    # Describe the model
    lines = [f"model: {resolve_dtype(recipe)} on {recipe.device_map or recipe.device}"]
    lines += describe_copy(recipe)
    warning = describe_slow_dtype(recipe)
    if warning:
        lines.append(f"warning: {warning}")
    return PromptEncoder(tokenizer, config, recipe.chat_template), lines


def describe_copy(recipe: LanguageModel) -> list[str]:
    """Return a line about the copy of a GGUF file's weights for faster loads; [] without a copy.

    Raises InputError for an unusable GGUF file.
    """
    if not recipe.gguf_file:
        return []
    with open_model_origin(recipe) as origin:
        weights = GgufWeights.open_proven(origin["gguf_file"], get_torch_dtype(recipe))
    if weights is None or not weights.has_copy:
        return []
    return [f"disk: {weights.describe_copy()}; {REMOVE_COPIES}"]


@contextmanager
def open_model_origin(recipe: LanguageModel) -> Iterator[dict[str, Any]]:
    """Yield the arguments with which ``from_pretrained`` finds the model.

    A GGUF file is linked into a temporary folder, which exists during the block, because
    transformers would prefer a tokenizer.json beside it. Raises InputError for a GGUF file that is
    not on the Hub, or that transformers cannot read or reads wrong. Errors of the Hub's client pass
    unchanged.
    """
    if not recipe.gguf_file:
        name = get_model_name(recipe)
        yield {"pretrained_model_name_or_path": name, "revision": recipe.revision}
        return
    file = _find_gguf(recipe, recipe.gguf_file)
    _check_gguf(file)
    with TemporaryDirectory(prefix="gguf-") as folder:
        link = Path(folder, "model.gguf")
        link.symlink_to(file.resolve())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": str(link)}


def _find_gguf(recipe: LanguageModel, name: str) -> Path:
    """Return the path of the model's GGUF file ``name``, downloaded from the Hub if necessary.

    Raises InputError when the Hub has no such file; other errors of the Hub's client pass
    unchanged.
    """
    if recipe.path:
        return Path(recipe.path).resolve() / name
    try:
        return Path(hf_hub_download(recipe.repo_id or "", name, revision=recipe.revision))
    except LocalEntryNotFoundError:  # a subclass of the next error: the Hub cannot be reached
        raise
    except EntryNotFoundError:
        raise InputError(
            f"model.gguf_file {name}",
            f"{recipe.repo_id} has no such file at revision {recipe.revision}",
            hint="look at its list of files",
        ) from None


def _check_gguf(file: Path) -> None:
    """Raise InputError for a GGUF file that transformers cannot read, or reads wrong."""
    # Read its header
    hint = "is the file whole? Download it again"
    with convert_model_errors(file, "cannot be read as a GGUF file", hint=hint):
        metadata, tensors = read_gguf_metadata(str(file))
    kind = str(metadata["general.architecture"])
    takes_scaling = kind in _SCALED_BY_CONFIG

    # Refuse what transformers does not read
    if _ALIASES.get(kind, kind) not in GGUF_SUPPORTED_ARCHITECTURES and not takes_scaling:
        raise InputError(
            file,
            f"is a GGUF of the architecture {kind!r}, which transformers does not read",
            hint=_OTHER_WAYS,
        )
    parts = metadata.get("split.count", 1)
    if parts > 1:
        raise InputError(
            file,
            f"is one of {parts} parts",
            hint="join them: llama-gguf-split --merge",
        )

    # Refuse scaled positions (RoPE) that transformers would leave out
    scaling = [name for name in tensors if name.startswith(("rope_freqs", "rope_factors"))]
    if metadata.get(f"{kind}.rope.scaling.type", "none") != "none":
        scaling.append(f"{kind}.rope.scaling.type")
    if scaling and not takes_scaling:
        raise InputError(
            file,
            f"scales its positions ({scaling[0]}), which transformers passes over: its texts would "
            "be others",
            hint=_OTHER_WAYS,
        )


def resolve_dtype(recipe: LanguageModel) -> str:
    """Return the recipe's dtype; for ``auto``, the fastest dtype of its device.

    - CUDA, or ``device_map`` with a GPU: bfloat16 if the GPU supports it natively, else float32.
    - CPU: int8 with VNNI and without AMX, else the result of ``get_half_or_float32``.
    - ``device_map`` without a GPU: the result of ``get_half_or_float32``.
    - Another device: float32.

    ``device`` plays no part in a recipe with ``device_map``. Raises InputError for ``auto`` on CUDA
    when torch finds no GPU.
    """
    if recipe.dtype != "auto":
        return recipe.dtype
    has_gpu = torch.cuda.is_available()
    device = recipe.device
    if recipe.device_map:
        device = "cuda" if has_gpu else "cpu"
    if device.startswith("cuda"):
        if not has_gpu:
            raise InputError(
                "model.dtype",
                f"'auto': {device} is not here, so its fastest dtype is unknown",
                hint="name the dtype, or --set model.device=cpu",
            )
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if is_native else "float32"
    if device != "cpu":
        return "float32"
    # A recipe with device_map cannot have int8.
    if not recipe.device_map and cpu_has(*VNNI) and not cpu_has("amx_bf16"):
        return "int8"
    return get_half_or_float32()


def get_half_or_float32() -> str:
    """Return "bfloat16" if this CPU multiplies it natively, else "float32"."""
    return "bfloat16" if cpu_has(*_CPU_BFLOAT16) else "float32"


def get_torch_dtype(recipe: LanguageModel) -> torch.dtype:
    """Return the dtype in which the model is loaded.

    For ``int8`` this is the result of ``get_half_or_float32``: linear layers are rounded later.
    """
    name = resolve_dtype(recipe)
    return getattr(torch, get_half_or_float32() if name == "int8" else name)


def describe_slow_dtype(recipe: LanguageModel) -> str | None:
    """Return a warning for a dtype that this CPU does not multiply natively, or None.

    Such a dtype is correct and slow. For a GPU, and with ``device_map``, there is no warning.
    """
    if recipe.device != "cpu" or recipe.device_map:
        return None
    dtype = resolve_dtype(recipe)
    if dtype in ("float32", get_half_or_float32()) or (dtype == "int8" and cpu_has(*VNNI)):
        return None
    return f"model.dtype {dtype}: this CPU does not multiply it natively; {_AUTO} is faster here"


def get_model_name(recipe: LanguageModel) -> str:
    """Return the model's folder, or its id on the Hub, as ``from_pretrained`` takes it."""
    return recipe.path or recipe.repo_id or ""


def get_model_place(recipe: LanguageModel) -> Path | str:
    """Return the model's name in messages: a full path of a folder or GGUF file, or a Hub id."""
    name = get_model_name(recipe)
    if recipe.gguf_file:
        name = f"{name}/{recipe.gguf_file}"
    return Path(name).resolve() if Path(name).exists() else name


def _get_device(name: str) -> torch.device:
    """Return torch's device of this name.

    Raises InputError for an unknown device, and for CUDA without a GPU.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(
            "model.device",
            f"unknown device {name!r}",
            allowed="cpu, cuda, cuda:0, mps ...",
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "model.device",
            f"{name!r}: no CUDA device is there",
            hint="--set model.device=cpu",
        )
    return device


def check_vocabulary(tokenizer: Any, config: Any, where: object) -> None:
    """Raise InputError for a tokenizer that cannot be used.

    Such a tokenizer loses the quotation mark that opens a text, or has an id beyond the model's
    vocabulary. Special tokens that it does not put into a text may be beyond it (``require_ids``).

    Args:
        tokenizer: transformers' tokenizer.
        config: the model's config.
        where: the model's name in the error.
    """
    vocabulary = config.get_text_config().vocab_size
    ids = tokenizer('Sentence 2: "').input_ids
    if not ids or tokenizer.decode(ids, skip_special_tokens=True).strip()[-1:] != '"':
        raise InputError(where, "its tokenizer loses the quotation mark that opens a text")
    require_ids(tokenizer, vocabulary, where, ids)


def choose_row_count(model: Any, max_new_tokens: int, logits_bytes: int) -> int:
    """Return how many model rows to decode together.

    These are as many as fit in half of the free memory, at least ``_FEWEST_ROWS`` and at most
    ``_MOST_ROWS``. The first time that there are fewer than ``_MOST_ROWS`` for a model, this is
    logged.

    Args:
        model: transformers' model, on its device.
        max_new_tokens: the longest text, in tokens.
        logits_bytes: bytes that the output layer needs for a row, beside the row's keys, values and
            activations.
    """
    # Find the free memory of the device
    embedding = model.get_input_embeddings().weight
    config = model.config.get_text_config()
    if embedding.device.type == "cuda":
        free = torch.cuda.mem_get_info(embedding.device)[0]
    else:
        free = psutil.virtual_memory().available

    # Estimate the bytes of a row: keys and values, states, activations in float32, logits
    layers = config.per_layer_config
    key_numbers = sum(_count_key_numbers(layer) for layer in layers)
    token_bytes = 2 * key_numbers * embedding.element_size()  # values have as many numbers as keys
    cache_bytes = token_bytes * (_PROMPT_TOKENS + max_new_tokens)
    # twice: states are copied before the old ones are freed
    cache_bytes += 2 * getattr(model, "state_bytes", 0)
    activation_bytes = 4 * _PROMPT_TOKENS * _NUMBERS_OF_UNIT * config.hidden_size
    row_bytes = int(cache_bytes + activation_bytes) + logits_bytes

    # Choose as many as fit
    most = _MOST_ROWS.get(embedding.device.type, _MOST_ROWS["cpu"])
    fitting = int(_MEMORY_SHARE * free / row_bytes)
    rows = max(_FEWEST_ROWS, min(most, fitting))
    if rows < most and not getattr(model, "has_logged_fewer_rows", False):
        model.has_logged_fewer_rows = True
        logger.info(
            f"memory: {free / 1e9:.1f} GB are free, so {rows} rows are decoded together, "
            f"not {most}: this takes longer"
        )
    return rows


def _count_key_numbers(layer: Any) -> int:
    """Return how many numbers the keys of a token have in a layer; 0 without attention.

    ``layer``: the configuration of this layer; layers of Gemma 4 differ.
    """
    heads = getattr(layer, "num_attention_heads", 0)
    if not heads:
        return 0
    key_heads = getattr(layer, "num_key_value_heads", None) or heads
    head_size = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    return int(key_heads * head_size)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, the system or torch reports that memory ran out.

    The type or number of the error decides. Torch's allocator on a CPU and CUDA's libraries raise
    plain RuntimeErrors, where the message decides.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, OutOfMemory)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, getattr(torch, "AcceleratorError", ())):  # torch 2.8
        return getattr(error, "error_code", None) == _CUDA_MEMORY
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in message for part in _MEMORY_MESSAGES)


@contextmanager
def convert_out_of_memory(purpose: str, hint: str) -> Iterator[None]:
    """Raise every out-of-memory error of a block as OutOfMemory; other errors pass unchanged.

    Unlike torch's error, a process without torch can unpickle OutOfMemory.

    Args:
        purpose: the end of the message "memory: is too small ...", e.g. ``for the model``.
        hint: the next step.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory("memory", f"is too small {purpose}", hint=hint) from error

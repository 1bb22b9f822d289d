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
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.integrations.gguf import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import logging as transformers_logging

from generation.backends.output_layer import pack
from generation.inputs.chat_template import ChatTemplate, encoded_prompt
from hub.cli import say
from hub.client.connection import hub_errors, lost_connection
from hub.contract.recipe import LanguageModel, quantization_values
from hub.errors import InputError, OutOfMemory
from hub.untrusted import NO_CODE, NO_PICKLES, reading_model, require_safetensors

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
        model, info = loaded
        if absent := sorted(info["missing_keys"]):
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


class Preview:
    """A language model without its weights: its ``context`` in tokens (0: not known) and its token counts."""

    def __init__(self, recipe: LanguageModel, config: Any, tokenizer: Any):
        self.recipe, self.tokenizer = recipe, tokenizer
        self.context = int(getattr(config.get_text_config(), "max_position_embeddings", 0) or 0)
        self._template = ChatTemplate(tokenizer)

    @classmethod
    @hub_errors("read the language model's config")
    def of(cls, recipe: LanguageModel) -> "Preview":
        """The preview of a recipe's section ``model``. Raises InputError when its config or tokenizer is unusable."""
        place, tokenizer = model_place(recipe), load_tokenizer(recipe)
        with model_origin(recipe) as origin, reading_model(place, "its config cannot be read"):
            config = AutoConfig.from_pretrained(**origin, **NO_CODE)
        if isinstance(place, Path) and place.is_dir():
            require_safetensors(place, place)
            with reading_model(place, "cannot be loaded as a causal language model"):
                for file in sorted(place.glob("*.safetensors")):
                    with safe_open(file, framework="pt"):  # its header, held against the file's size
                        pass
        check_vocabulary(tokenizer, config, place)
        return cls(recipe, config, tokenizer)

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt: special tokens and the chat template's included."""
        return len(encoded_prompt(prompt, self.tokenizer, self._template if self.recipe.chat_template else None))

    def lines(self) -> Iterator[str]:
        """Lines about the model: the dtype, and a warning for a slow one."""
        yield f"model: {resolve_dtype(self.recipe)} on {self.recipe.device_map or self.recipe.device}"
        if warning := slow_dtype(self.recipe):
            yield f"warning: {warning}"


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


OTHER_WAYS = (
    "serve the file with llama.cpp and send prompts there (backend: openai, docs/backends.md), or give the model in "
    "safetensors (path or repo_id without gguf_file)"
)
_ALIASES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
_SCALED_BY_CONFIG = ("gpt-oss", "qwen35", "qwen35moe", "lfm2")  # transformers takes their RoPE from the file, whole


def gguf_path(model: LanguageModel) -> Path:
    """Where the model's GGUF file lies, downloaded if it is of the Hub. Raises InputError when it is not there."""
    assert model.gguf_file is not None
    if model.path:
        return Path(model.path).resolve() / model.gguf_file
    try:
        return Path(hf_hub_download(model.repo_id or "", model.gguf_file, revision=model.revision))
    except LocalEntryNotFoundError:  # no Hub answers
        raise
    except EntryNotFoundError:
        problem = f"{model.repo_id} has no such file at revision {model.revision}"
        raise InputError(f"model.gguf_file {model.gguf_file}", problem, hint="look at its list of files") from None


@contextmanager
def gguf_alone(file: Path) -> Iterator[dict[str, str]]:
    """What ``from_pretrained`` takes to read ``file`` and nothing beside it, as arguments.

    It lies in a folder of its own: of a file's neighbours transformers would prefer tokenizer.json, and of the current
    folder a file of the same name. Raises InputError for a file that is no GGUF or that transformers would misread.
    """
    _check(file)
    with TemporaryDirectory(prefix="gguf-") as folder:
        alone = Path(folder, "model.gguf")
        alone.symlink_to(file.resolve())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": str(alone)}


def _check(file: Path) -> None:
    with reading_model(file, "cannot be read as a GGUF file", hint="is the file whole? Download it again"):
        metadata, tensors = read_gguf_metadata(str(file))
    kind = str(metadata["general.architecture"])
    if _ALIASES.get(kind, kind) not in GGUF_SUPPORTED_ARCHITECTURES and kind not in _SCALED_BY_CONFIG:
        problem = f"is a GGUF of the architecture {kind!r}, which transformers does not read"
        raise InputError(file, problem, hint=OTHER_WAYS)
    if metadata.get("split.count", 1) > 1:
        raise InputError(file, f"is one of {metadata['split.count']} parts", hint="join them: llama-gguf-split --merge")
    scaled = [name for name in tensors if name.startswith(("rope_freqs", "rope_factors"))]
    scaled += [key for key in (f"{kind}.rope.scaling.type",) if metadata.get(key, "none") != "none"]
    if scaled and kind not in _SCALED_BY_CONFIG:
        problem = f"scales its positions ({scaled[0]}), which transformers passes over: its texts would be others"
        raise InputError(file, problem, hint=OTHER_WAYS)


PROMPT_TOKENS = 32  # a guess of a prompt's own tokens; a wrong guess costs at most one out-of-memory error
SHARE = 0.5  # of the free memory
MOST = {"cpu": 512, "cuda": 4096}  # more rows take memory and bring little
_CUDA_MEMORY = 2  # cudaErrorMemoryAllocation
_SIGNS = ("can't allocate memory", "not enough memory", "status_alloc_failed", "cuda error: out of memory")


def rows_that_fit(model: Any, max_new_tokens: int, logits: int) -> int:
    """Model rows to decode together: what half of the free memory holds, within the limits of use.

    ``logits``: bytes that the output layer takes for a row.
    """
    device = model.get_input_embeddings().weight.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    most = MOST.get(device.type, MOST["cpu"])
    return max(16, min(most, int(SHARE * free / (bytes_per_row(model, max_new_tokens) + logits))))


def bytes_per_row(model: Any, max_new_tokens: int) -> int:
    """Bytes of one row: its keys and values and its activations."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = model.get_input_embeddings().weight.element_size()
    cached = 2 * config.num_hidden_layers * heads * head * width * (PROMPT_TOKENS + max_new_tokens)
    return int(cached + 4 * PROMPT_TOKENS * 16 * config.hidden_size)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, the system or torch says that memory ran out.

    By its type, but for torch's allocator on a CPU and what it passes on of CUDA's libraries: plain RuntimeErrors.
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

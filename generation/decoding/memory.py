"""How many rows fit in memory, and which errors of other libraries say that they did not."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from hub.errors import OutOfMemory

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

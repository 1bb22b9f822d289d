"""How many rows fit in memory, and whether an error says that they did not."""

from typing import Any

import psutil
import torch

PROMPT_TOKENS = 32  # a guess of a prompt's own tokens; a wrong guess costs at most one out-of-memory error
SHARE = 0.5  # of the free memory
MOST = {"cpu": 512, "cuda": 4096}  # more rows take memory and bring little
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory")


def rows_that_fit(model: Any, max_new_tokens: int) -> int:
    """Model rows to decode together: what half of the free memory holds, within the limits of use."""
    device = model.get_input_embeddings().weight.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    most = MOST.get(device.type, MOST["cpu"])
    return max(16, min(most, int(SHARE * free / bytes_per_row(model, max_new_tokens))))


def bytes_per_row(model: Any, max_new_tokens: int) -> int:
    """Bytes of one row: its keys and values, its logits in float32 (three times, for the softmax), its activations."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = model.get_input_embeddings().weight.element_size()
    cached = 2 * config.num_hidden_layers * heads * head * width * (PROMPT_TOKENS + max_new_tokens)
    return int(cached + 12 * config.vocab_size + 4 * PROMPT_TOKENS * 16 * config.hidden_size)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says that memory ran out (on a GPU, or on the CPU, where it has no error class of its own)."""
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error).lower() for sign in _SIGNS)

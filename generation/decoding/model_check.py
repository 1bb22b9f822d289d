"""Whether a model can read through ``generation.decoding.shared_attention``: tried at load, on the model itself."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from generation.decoding.batch import KVCaches, LiveBatch
from generation.decoding.protocol import Request
from generation.decoding.shared_attention import NAME, run_pass
from hub.cli import say

NARROWEST = 1024  # tokens: models with a narrower sliding window take the plain loop
PROMPT, WRITTEN = 16, 18  # tokens of the trial: written ones in two pages


def window(config: Any) -> int:
    """Tokens that all layers of a model see: its sliding window; 0 where it has none."""
    kinds = getattr(config, "layer_types", None)
    slides = getattr(config, "use_sliding_window", True) and (kinds is None or "sliding_attention" in kinds)
    return int((slides and getattr(config, "sliding_window", None)) or 0)


@torch.inference_mode()
def can_share(model: Any) -> bool:
    """Let the model read through shared attention if that gives the logits of its own attention; whether it does.

    Says so when it does not. A model that is spread over several devices is not tried.
    """
    config = model.config.get_text_config()
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return _told(config, "it is spread over several devices")
    if 0 < window(config) < NARROWEST:
        return _told(config, f"its window of {window(config)} tokens is narrower than {NARROWEST}")
    own = config._attn_implementation
    ids = np.random.default_rng(0).integers(5, config.vocab_size, PROMPT + WRITTEN)
    device = model.get_input_embeddings().weight.device
    wanted = model(input_ids=torch.from_numpy(ids)[None].to(device), use_cache=False).logits[0].float()
    try:
        model.set_attn_implementation(NAME)
        found, why = _logits(model, ids, device), "its logits differ"
    except (NotImplementedError, ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        found, why = None, str(error)  # whatever a foreign architecture does with an attention it does not know
    if found is not None and _agree(found, wanted[PROMPT - 1 :], model.dtype == torch.float32):
        return True
    model.set_attn_implementation(own)
    return _told(config, why)


def _told(config: Any, why: str) -> bool:
    """False, and the reason on stderr: the plain loop is several times slower."""
    say(f"{config.model_type}: the plain, slower loop writes the texts ({(why.splitlines() or [''])[0]})")
    return False


def _logits(model: Any, ids: np.ndarray, device: torch.device) -> Tensor:
    """Logits (1 + WRITTEN, V) of the end of the prompt and of every written token, read as the engine reads them."""
    batch = LiveBatch(KVCaches(), [], device)
    batch.add(Request("", (), 0), [(tuple(ids[:PROMPT].tolist()), -1)])
    found = []
    for token in [*ids[PROMPT:].tolist(), 0]:
        found.append(run_pass(model, batch.next_pass())[-1].float())
        batch.prefill = []
        batch.sequences[0].tokens.append(token)
    return torch.stack(found)


def _agree(found: Tensor, wanted: Tensor, exact: bool) -> bool:
    """Up to rounding: a mistake in the attention moves logits by about their own spread."""
    return bool((found - wanted).abs().max() <= (1e-2 if exact else 0.2) * wanted.std())

"""How a model's attention is computed: through ``generation.backends.shared_attention`` or in the plain loop.

Tried at load on the model itself: the logits of some tokens, read as the engine reads them, against those of the
model's own attention. The masks that the model asks for tell its window.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from generation.backends.batch import KVCaches, LiveBatch
from generation.backends.protocol import Request
from generation.backends.shared_attention import NAME, attend, run_pass

PROMPT, WRITTEN = 16, 18  # tokens of the trial: written ones in two pages
TRIAL = "sts_dino_trial"  # shared attention of a model that also says which masks it wants
EXACT = 1e-2  # of the logits' spread: the largest error in float32; a wrong attention moves them by their spread
ROUNDING = 2.0  # times the mean difference between two orders of the model's own sums, in half precision
UNKNOWN_ROUNDING = 0.02  # of the spread: the same difference where only one order is right
WIDEST = 0.1  # of the spread: the largest mean error, whatever the rounding
PLACES, SLIP = (1, 10), 0.25  # the likeliest tokens, in half precision: how far below their rank, of the spread
_WINDOWS: ContextVar[set[int]] = ContextVar("windows that a model on trial asked masks for")


@dataclass(frozen=True)
class AttentionPath:
    """How a model reads: ``shared`` attention up to ``window`` tokens (0: no limit), or the plain loop for all.

    ``own``: transformers' name of the model's own attention, which the plain loop uses.
    """

    shared: bool
    reason: str
    own: str
    window: int = 0

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest: ``attention`` (shared, plain), its reason, and the window where there is one."""
        facts: dict[str, Any] = {"attention": "shared" if self.shared else "plain", "attention_reason": self.reason}
        return facts | ({"attention_window": self.window} if self.window else {})

    def holds(self, tokens: int) -> bool:
        """Whether texts of so many tokens, prompt included, can be read through shared attention."""
        return self.shared and (not self.window or tokens <= self.window)


@torch.inference_mode()
def find_path(model: Any) -> AttentionPath:
    """Try shared attention and leave the model with it if it gives the logits of the model's own, else as it was.

    A model that is spread over several devices is not tried.
    """
    config = model.config.get_text_config()
    own = config._attn_implementation
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return AttentionPath(False, "the model is spread over several devices", own)
    ids = np.random.default_rng(0).integers(5, config.vocab_size, PROMPT + WRITTEN)
    wanted = _own_logits(model, ids)
    windows: set[int] = set()
    token = _WINDOWS.set(windows)
    try:
        model.set_attn_implementation(TRIAL)
        if config._attn_implementation != TRIAL:
            return AttentionPath(False, "transformers cannot exchange its attention", own)
        found = _shared_logits(model, ids)
    except (NotImplementedError, ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        model.set_attn_implementation(own)  # whatever a foreign architecture does with an attention it does not know
        return AttentionPath(False, (str(error).splitlines() or [type(error).__name__])[0], own)
    finally:
        _WINDOWS.reset(token)
    model.set_attn_implementation(own)
    window = min(windows, default=0)
    if 0 < window < len(ids):
        return AttentionPath(False, f"its window of {window} tokens is narrower than a prompt", own)
    if not _alike(found, wanted, None if model.dtype == torch.float32 else _rounding(model, ids, wanted)):
        return AttentionPath(False, "its logits differ from those of the model's own attention", own)
    model.set_attn_implementation(NAME)
    return AttentionPath(True, "gives the logits of the model's own attention", own, window)


@contextmanager
def with_attention(model: Any, name: str) -> Iterator[None]:
    """Let the model read with the attention that transformers knows by this name, for as long as it is needed."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _own_logits(model: Any, ids: np.ndarray) -> Tensor:
    """(1 + WRITTEN, V) of the end of the prompt and of every written token, in one pass of the model as it stands."""
    device = model.get_input_embeddings().weight.device
    logits: Tensor = model(input_ids=torch.from_numpy(ids)[None].to(device), use_cache=False).logits[0, PROMPT - 1 :]
    return logits.float()


def _shared_logits(model: Any, ids: np.ndarray) -> Tensor:
    """The same, read as the engine reads them."""
    batch = LiveBatch(KVCaches(), [], model.get_input_embeddings().weight.device)
    batch.add(Request("", (), 0), [(tuple(ids[:PROMPT].tolist()), -1)])
    found = []
    for token in [*ids[PROMPT:].tolist(), 0]:
        found.append(run_pass(model, batch.next_pass())[-1].float())
        batch.prefill = []
        batch.sequences[0].tokens.append(token)
    return torch.stack(found)


def _rounding(model: Any, ids: np.ndarray, wanted: Tensor) -> float:
    """The mean difference of logits between two orders of the same sums (SDPA, eager), in units of their spread."""
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return UNKNOWN_ROUNDING
    with with_attention(model, "eager"):
        return float((_own_logits(model, ids) - wanted).abs().mean() / wanted.std())


def _alike(found: Tensor, wanted: Tensor, rounding: float | None) -> bool:
    """Whether logits are equal, in half precision up to ``rounding``: of some million logits the worst says little.

    There the mean error is about what another order of the same sums makes; and the likeliest tokens, the first and the
    first ten, are the likeliest ones of the model's own attention, or close to them.
    """
    if rounding is None:
        return bool((found - wanted).abs().max() <= EXACT * wanted.std())
    spread = wanted.std()
    if not (found - wanted).abs().mean() / spread <= min(ROUNDING * rounding, WIDEST):
        return False
    for places in PLACES:
        least = wanted.topk(places).values[:, -1]
        chosen = wanted.gather(1, found.topk(places).indices).amin(dim=1)
        if not ((least - chosen) / spread).max() <= SLIP:
            return False
    return True


def _no_mask(local_size: int | None = None, **_: Any) -> None:
    """The mask of shared attention: none; the window or chunk that the model wants is noted."""
    if local_size:
        _WINDOWS.get().add(int(local_size))


AttentionInterface.register(TRIAL, attend)
AttentionMaskInterface.register(TRIAL, _no_mask)

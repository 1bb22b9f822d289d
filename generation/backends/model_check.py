"""What a model can do, tried at load on the model itself: serve at all, and read through shared attention.

The logits of some tokens, read as the engine reads them, are compared with those of the model's own forward pass. The
masks that the model asks for tell its window.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache

from generation.backends.batch import KVCaches, LiveBatch
from generation.backends.output_layer import precision
from generation.backends.protocol import Request
from generation.backends.shared_attention import NAME, attend, run_pass
from hub.durable import write_text
from hub.errors import InputError

PROMPT, WRITTEN = 16, 18  # tokens of the trial: written ones in two pages
CAUSAL = "a causal language model with attention in every layer"
OTHER_MODEL = "use another one, e.g. one of `sts-dino lm`, or serve this one and send prompts there (backend: openai)"
TRIAL = "sts_dino_trial"  # shared attention of a model that also says which masks it wants
EXACT = 1e-2  # of the logits' spread: the largest error in float32; a wrong attention moves them by their spread
ROUNDING = 2.0  # times the mean difference between two orders of the model's own sums, in half precision
UNKNOWN_ROUNDING = 0.02  # of the spread: the same difference where only one order is right
WIDEST = 0.1  # of the spread: the largest mean error, whatever the rounding
PLACES, SLIP = (1, 10), 0.25  # the likeliest tokens, in half precision: how far below their rank, of the spread
READINGS, LIKELIEST = 8, 3  # passes that make random tokens likely; ranks of the tokens that they take
PLAIN = "it is several times slower, most so with examples in the prompt"
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
def require_servable(model: Any, where: object) -> None:
    """Prove that a loaded model can serve, in five short passes.

    A later token moves no earlier logit. Two prompts in one padded batch, read as the plain loop reads them, get the
    logits of the model's own pass. Raises InputError where that is not so, and whatever the model raises.
    """
    kind, problem = model.config.get_text_config().model_type, None
    ids = np.random.default_rng(0).integers(5, model.config.get_text_config().vocab_size, PROMPT + WRITTEN)
    wanted, half = _own_logits(model, ids), precision(model) != "float32"
    changed = _own_logits(model, np.append(ids[:PROMPT], ids[:WRITTEN]))

    def same(found: Tensor, expected: Tensor) -> bool:
        error = (found - expected).abs() / wanted.std()
        return bool(error.mean() <= WIDEST) if half else bool(error.max() <= EXACT)

    if not wanted.isfinite().all():
        problem = "its logits are not finite numbers (damaged weights, or too narrow a model.dtype)"
    elif not same(changed[0], wanted[0]):
        problem = f"{kind} reads both ways: a later token changes earlier logits"
    elif not same(_padded_logits(model, ids), wanted[[0, -2, -1, 1, -1]]):
        problem = f"{kind} gives other logits in a padded batch than for a prompt alone"
    if problem:
        raise InputError(where, f"cannot serve: {problem}", allowed=CAUSAL, hint=OTHER_MODEL)


def _padded_logits(model: Any, ids: np.ndarray) -> Tensor:
    """(5, V) of two prompts and of a token after the second, first and second, read as the plain loop does."""
    short, device = PROMPT, model.get_input_embeddings().weight.device
    batch, mask = (torch.zeros(2, len(ids) - 1, dtype=torch.long) for _ in range(2))
    batch[0, -short:], mask[0, -short:] = torch.from_numpy(ids[:short]), 1
    batch[1], mask[1] = torch.from_numpy(ids[:-1]), 1
    mask, cache = mask.to(device), DynamicCache(config=model.config)
    found = [plain_logits(model, batch, mask, cache)]
    kept = torch.tensor([1, 0, 1], device=device)
    cache.batch_select_indices(kept)
    mask = torch.cat([mask[kept], mask.new_ones(3, 1)], dim=1)
    found.append(plain_logits(model, torch.tensor([ids[-1], ids[short], ids[-1]])[:, None], mask, cache))
    return torch.cat(found).float()


def plain_logits(model: Any, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    """(B, V) of the last tokens of ``ids`` (B, n), padded on the left where ``mask`` has zeros."""
    positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)[:, -ids.shape[1] :]  # GPT-2 with left padding needs them
    output = model(
        input_ids=ids.to(mask.device),
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


def find_path(model: Any) -> AttentionPath:
    """What ``_tried`` finds, kept with a copy of the weights for later loads (1.5 billion parameters: 14 seconds).

    Another torch, processor or code of the trial tries again.
    """
    folder, code = getattr(model, "kept_in", None), Path(__file__).parent
    if folder is None:
        return _tried(model)
    decides = [(code / name).read_bytes() for name in ("model_check.py", "shared_attention.py", "batch.py")]
    device = model.get_input_embeddings().weight.device.type
    facts = (torch.__version__, torch.backends.cpu.get_cpu_capability(), device, precision(model))
    decides.append(repr(facts).encode())
    file = folder / f"attention-{sha256(b''.join(decides)).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, TypeError):
        known = AttentionPath(**json.loads(file.read_bytes()))
        model.set_attn_implementation(NAME)
        return known
    found = _tried(model)
    with suppress(OSError):
        if found.shared:  # a refusal may come from want of memory, and is tried again
            write_text(file, json.dumps(asdict(found)))
    return found


@torch.inference_mode()
def _tried(model: Any) -> AttentionPath:
    """Try shared attention and leave the model with it if it gives the logits of the model's own, else as it was.

    A model that is spread over several devices is not tried.
    """
    config = model.config.get_text_config()
    own = config._attn_implementation
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return AttentionPath(False, "the model is spread over several devices", own)
    ids = np.random.default_rng(0).integers(5, config.vocab_size, PROMPT + WRITTEN)
    wanted = _own_logits(model, ids)
    rounding = None if precision(model) == "float32" else _rounding(model, ids, wanted)
    if rounding and ROUNDING * rounding > WIDEST:  # such a trial would decide nothing
        ids = _likely(model, ids)
        wanted = _own_logits(model, ids)
        rounding = _rounding(model, ids, wanted)
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
    if problem := _difference(found, wanted, rounding):
        return AttentionPath(False, f"its logits differ from those of the model's own attention: {problem}", own)
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


def _own_logits(model: Any, ids: np.ndarray, first: int = PROMPT - 1) -> Tensor:
    """(1 + WRITTEN, V) of the end of the prompt and of every written token, in one pass of the model as it stands."""
    device = model.get_input_embeddings().weight.device
    logits: Tensor = model(input_ids=torch.from_numpy(ids)[None].to(device), use_cache=False).logits[0, first:]
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


def _likely(model: Any, ids: np.ndarray) -> np.ndarray:
    """Tokens that the model finds likely behind each other, in place of random ``ids``.

    Random tokens may magnify rounding: another order of the same sums then moves logits as far as wrong positions do.
    """
    ids, ranks = ids.copy(), np.random.default_rng(1).integers(LIKELIEST, size=len(ids) - 1)
    for _ in range(READINGS):
        likeliest = _own_logits(model, ids, first=0)[:-1].topk(LIKELIEST).indices.cpu().numpy()
        ids[1:] = likeliest[np.arange(len(ranks)), ranks]
    return ids


def _difference(found: Tensor, wanted: Tensor, rounding: float | None) -> str | None:
    """How far logits differ, in units of their spread, where that is more than allowed.

    In half precision up to ``rounding``, since of some million logits the worst says little: the mean error is about
    what another order of the same sums makes; and the likeliest tokens, the first and the first ten, are the likeliest
    ones of the model's own attention, or close to them.
    """
    spread = wanted.std()
    errors = (found - wanted).abs() / spread
    if rounding is None:
        exact = (found - wanted).abs().max() <= EXACT * spread
        return None if exact else f"by up to {errors.max():.2g} of their spread (allowed: {EXACT})"
    allowed = min(ROUNDING * rounding, WIDEST)
    if not errors.mean() <= allowed:
        return f"by {errors.mean():.2g} of their spread on average (allowed: {allowed:.2g})"
    for places in PLACES:
        least = wanted.topk(places).values[:, -1]
        chosen = wanted.gather(1, found.topk(places).indices).amin(dim=1)
        if not (slip := ((least - chosen) / spread).max()) <= SLIP:
            return f"the {places} likeliest tokens by {slip:.2g} of their spread (allowed: {SLIP})"
    return None


def _no_mask(local_size: int | None = None, **_: Any) -> None:
    """The mask of shared attention: none; the window or chunk that the model wants is noted."""
    if local_size:
        _WINDOWS.get().add(int(local_size))


AttentionInterface.register(TRIAL, attend)
AttentionMaskInterface.register(TRIAL, _no_mask)

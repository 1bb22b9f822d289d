"""Checks of a loaded model: can the engine use it, and can it use shared attention?

The logits of some tokens, read as the engine reads them, are compared with those of the model's own
forward pass. The masks that the model requests show its window.
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
from transformers import AttentionInterface, AttentionMaskInterface

from sts_dino.generation.backends.batch import (
    KVCaches,
    LiveBatch,
    PlainBatch,
    has_states,
)
from sts_dino.generation.backends.output_layer import get_precision
from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.backends.shared_attention import SHARED_ATTENTION, attend, run_pass
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError

# tokens of the trial's prompt, and of its generated text, which takes two pages
PROMPT = 16
GENERATED = 18
CAUSAL = "a causal language model that reads a prompt in a batch as it reads it alone"
OTHER_MODEL = (
    "use another one, e.g. one of `sts-dino lm`, or serve this one and send prompts there (backend:"
    " openai)"
)
TRIAL = "sts_dino_trial"  # name of shared attention in the trial, which notes requested windows
# Errors of logits are in units of their standard deviation ("spread"), by which a wrong attention
# moves them.
EXACT = 1e-2  # largest error in float32
# in half precision, the largest mean error: so many times the mean difference between two orders of
# the model's own sums, but at most WIDEST
ROUNDING = 2.0
UNKNOWN_ROUNDING = 0.02  # assumed mean difference, for a model with only one order of its sums
WIDEST = 0.1
# in half precision: the numbers of likeliest tokens that are compared, and how far their logits may
# be below those of the model's own likeliest tokens
PLACES = (1, 10)
SLIP = 0.25
# passes that replace random tokens by likely ones: each by one of the LIKELIEST likeliest tokens
READINGS = 8
LIKELIEST = 3
PLAIN = "it is several times slower, most so with examples in the prompt"
# errors of a model's code that does not support another attention
TRIAL_ERRORS = (
    NotImplementedError,
    ValueError,
    TypeError,
    RuntimeError,
    AttributeError,
    KeyError,
)
_WINDOWS: ContextVar[set[int]] = ContextVar("windows that a model on trial asked masks for")


@dataclass(frozen=True)
class AttentionPath:
    """How a model reads: with ``shared`` attention up to ``window`` tokens (0: no limit), or in the
    plain loop.

    ``reason``: why the model reads so. ``own``: transformers' name of the model's own attention,
    which the plain loop uses.
    """

    shared: bool
    reason: str
    own: str
    window: int = 0

    def describe(self) -> dict[str, Any]:
        """Return facts for the manifest: the attention, its reason, and the window if any."""
        facts: dict[str, Any] = {
            "attention": "shared" if self.shared else "plain",
            "attention_reason": self.reason,
        }
        if self.window:
            facts["attention_window"] = self.window
        return facts

    def can_read(self, tokens: int) -> bool:
        """Return whether shared attention can read a prompt and text of this many tokens."""
        return self.shared and (not self.window or tokens <= self.window)


@torch.inference_mode()
def require_servable(model: Any, where: object) -> None:
    """Raise InputError, which names ``where``, unless a loaded model can serve.

    It can serve under three conditions, which at most five short passes test. Its logits are
    finite. A later token changes no earlier logit. Two prompts in one padded batch, read as the
    plain loop reads them, get the logits of the model's own pass. Errors that the model raises are
    not converted. For a model that can serve, ``model.state_bytes`` is set to the bytes of a row's
    states.
    """
    kind = model.config.get_text_config().model_type
    ids = _draw_tokens(model)
    expected = _compute_own_logits(model, ids)
    # the same prompt before other tokens
    changed = _compute_own_logits(model, np.append(ids[:PROMPT], ids[:GENERATED]))

    problem = None
    if not expected.isfinite().all():
        problem = "its logits are not finite numbers (damaged weights, or too narrow a model.dtype)"
    elif not _are_close(model, changed[0], expected[0], expected.std()):
        problem = f"{kind} reads both ways: a later token changes earlier logits"
    else:
        padded = _compute_padded_logits(model, ids)
        # as in ``padded``: the logits after the prompt, after all tokens but the last, after all,
        # after the prompt and one more token, and again after all
        own = expected[[0, -2, -1, 1, -1]]
        if not _are_close(model, padded, own, expected.std()):
            problem = f"{kind} gives other logits in a batch of two prompts than for a prompt alone"
    if problem:
        raise InputError(where, f"cannot serve: {problem}", allowed=CAUSAL, hint=OTHER_MODEL)


def _draw_tokens(model: Any) -> np.ndarray:
    """Return the random tokens (PROMPT + GENERATED,) of the trial; their seed is fixed.

    The first ids, often special tokens, are left out.
    """
    config = model.config.get_text_config()
    return np.random.default_rng(0).integers(5, config.vocab_size, PROMPT + GENERATED)


def _are_close(model: Any, logits: Tensor, expected: Tensor, spread: Tensor) -> bool:
    """Return whether logits are equal up to the rounding of the model's precision.

    ``logits`` and ``expected`` have one shape. ``spread``: the standard deviation of logits, the
    unit of errors.
    """
    error = (logits - expected).abs() / spread
    if get_precision(model) == "float32":
        return bool(error.max() <= EXACT)
    return bool(error.mean() <= WIDEST)


def _compute_padded_logits(model: Any, ids: np.ndarray) -> Tensor:
    """Return logits (5, V) of two prompts of unequal length, read as the plain loop reads them.

    The prompts are the trial's, and all its tokens but the last. Then one more token is read after
    the second, the first and again the second prompt, as for three texts. ``model.state_bytes`` is
    set.
    """
    tokens = ids.tolist()
    batch = PlainBatch(model, [tokens[:PROMPT], tokens[:-1]])
    model.state_bytes = batch.count_state_bytes()
    prompt_logits = batch.logits
    newest = [tokens[-1], tokens[PROMPT], tokens[-1]]
    batch.read_tokens([1, 0, 1], newest)
    return torch.cat([prompt_logits, batch.logits]).float()


def choose_attention(model: Any) -> AttentionPath:
    """Try shared attention, set the model to it if it can be used, and return how the model reads.

    For weights with a copy for faster loads, a result with shared attention is stored in the folder
    of the copy: the trial takes 14 seconds for 1.5 billion parameters. The trial is repeated with
    another version of torch, processor, dtype or code of the trial.
    """
    folder = getattr(model, "copy_folder", None)
    if folder is None:
        return _try_shared_attention(model)

    # Read the result of an earlier load; a damaged one is replaced
    file = folder / f"attention-{_hash_trial(model)}.json"
    with suppress(OSError, ValueError, TypeError):
        path = AttentionPath(**json.loads(file.read_bytes()))
        _set_attention(model, SHARED_ATTENTION)
        return path

    # Try the model. A failed trial is not stored: memory may have been too small
    path = _try_shared_attention(model)
    if path.shared:
        with suppress(OSError):
            write_text(file, json.dumps(asdict(path)))
    return path


def _hash_trial(model: Any) -> str:
    """Return 16 hex digits of a SHA-256 of all that decides the trial besides the weights."""
    digest = sha256()
    for name in ("model_check.py", "shared_attention.py", "batch.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    cpu = torch.backends.cpu.get_cpu_capability()
    device = model.get_input_embeddings().weight.device.type
    digest.update(repr((torch.__version__, cpu, device, get_precision(model))).encode())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def _try_shared_attention(model: Any) -> AttentionPath:
    """Set the model to shared attention if that gives the logits of its own attention.

    Else the model keeps its own, and the returned path has the reason. A model on several devices,
    or with recurrent states, is not tried.
    """
    own = model.config.get_text_config()._attn_implementation
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return AttentionPath(False, "the model is spread over several devices", own)
    if has_states(model):
        return AttentionPath(False, "its layers carry states from token to token", own)

    # Compute the model's own logits, and the rounding of its sums
    ids = _draw_tokens(model)
    expected = _compute_own_logits(model, ids)
    rounding = _measure_rounding(model, ids, expected)
    if rounding and ROUNDING * rounding > WIDEST:
        # Rounding would hide a wrong attention. Random tokens may magnify it, likely ones do not.
        ids = _make_likely(model, ids)
        expected = _compute_own_logits(model, ids)
        rounding = _measure_rounding(model, ids, expected)

    # Compute the same logits through shared attention
    windows: set[int] = set()  # of the layers, in tokens; the trial's attention adds them
    token = _WINDOWS.set(windows)
    try:
        with use_attention(model, TRIAL):
            if model.config.get_text_config()._attn_implementation != TRIAL:
                return AttentionPath(False, "transformers cannot exchange its attention", own)
            logits = _compute_shared_logits(model, ids)
    except TRIAL_ERRORS as error:
        reason = str(error) or type(error).__name__
        return AttentionPath(False, reason.splitlines()[0], own)
    finally:
        _WINDOWS.reset(token)

    # Compare them
    window = min(windows, default=0)  # 0: no layer has one
    if 0 < window < len(ids):
        return AttentionPath(False, f"its window of {window} tokens is narrower than a prompt", own)
    difference = _describe_difference(logits, expected, rounding)
    if difference:
        reason = f"its logits differ from those of the model's own attention: {difference}"
        return AttentionPath(False, reason, own)
    _set_attention(model, SHARED_ATTENTION)
    return AttentionPath(True, "gives the logits of the model's own attention", own, window)


@contextmanager
def use_attention(model: Any, name: str) -> Iterator[None]:
    """Set the model to the attention of this name in transformers during the block."""
    own = model.config.get_text_config()._attn_implementation
    try:
        _set_attention(model, name)
        yield
    finally:
        _set_attention(model, own)


def _set_attention(model: Any, name: str) -> None:
    """Set the attention of the layers that read text, by its name in transformers.

    Layers for images and sounds keep theirs: Gemma 4's layers for sounds accept no other one.
    """
    text_config = model.config.get_text_config()
    for key in model.config.sub_configs:
        if getattr(model.config, key, None) is text_config:
            model.set_attn_implementation({key: name})
            return
    model.set_attn_implementation(name)


def _compute_own_logits(model: Any, ids: np.ndarray, first: int = PROMPT - 1) -> Tensor:
    """Return the logits (n - first, V) after each of ``ids`` (n,) from index ``first`` on.

    They come from one pass of the model with its current attention. By default ``first`` is the
    index of the last token of the prompt.
    """
    device = model.get_input_embeddings().weight.device
    output = model(input_ids=torch.from_numpy(ids)[None].to(device), use_cache=False)
    return output.logits[0, first:].float()


def _compute_shared_logits(model: Any, ids: np.ndarray) -> Tensor:
    """Return the logits after the prompt and after each later token, (GENERATED + 1, V), float32.

    They are computed as the engine computes them: the prompt in one pass, then token by token.
    ``_compute_own_logits`` should give the same.

    ids: (PROMPT + GENERATED,), the tokens.
    """
    batch = LiveBatch(KVCaches(), [], model.get_input_embeddings().weight.device)
    # one sequence of one prompt; -1: it shares no prefix
    batch.add(Request("", (), 0), [(tuple(ids[:PROMPT].tolist()), -1)])
    logits = [run_pass(model, batch.make_next_pass())[-1].float()]
    batch.prefill = []  # the first pass has read the prompt
    for token in ids[PROMPT:].tolist():
        batch.sequences[0].tokens.append(token)
        logits.append(run_pass(model, batch.make_next_pass())[-1].float())
    return torch.stack(logits)


def _measure_rounding(model: Any, ids: np.ndarray, logits: Tensor) -> float | None:
    """Return the mean difference of logits between SDPA and eager attention, in their spread.

    Both compute the same sums in another order, so this is the rounding of the model's precision.
    Returns None in float32, and ``UNKNOWN_ROUNDING`` for a model that does not use SDPA.

    Args:
        model: the loaded model.
        ids: (n,) the tokens of the trial.
        logits: what ``_compute_own_logits`` returns for them.
    """
    if get_precision(model) == "float32":
        return None
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return UNKNOWN_ROUNDING
    with use_attention(model, "eager"):
        difference = (_compute_own_logits(model, ids) - logits).abs().mean()
    return float(difference / logits.std())


def _make_likely(model: Any, ids: np.ndarray) -> np.ndarray:
    """Return the tokens with all but the first replaced by tokens that the model finds likely.

    Random tokens may magnify rounding: another order of the same sums then moves logits as far as
    wrong positions do. Every pass replaces each token by one that is likely after the tokens before
    it. ``ids``: (n,), as the result.
    """
    ids = ids.copy()
    ranks = np.random.default_rng(1).integers(LIKELIEST, size=len(ids) - 1)
    for _ in range(READINGS):
        logits = _compute_own_logits(model, ids, first=0)[:-1]
        likeliest = logits.topk(LIKELIEST).indices.cpu().numpy()
        ids[1:] = likeliest[np.arange(len(ranks)), ranks]
    return ids


def _describe_difference(logits: Tensor, expected: Tensor, rounding: float | None) -> str | None:
    """Return how far logits (n, V) differ from the expected ones, as a phrase; None: not too far.

    In float32 (``rounding`` is None) the largest error counts. In half precision the worst of some
    million logits says little. There the mean error has to be about that of another order of the
    same sums (``rounding``), and the likeliest token and the ten likeliest ones have to be those of
    the model's own attention, or nearly as likely.
    """
    spread = expected.std()
    errors = (logits - expected).abs() / spread
    if rounding is None:
        if (logits - expected).abs().max() <= EXACT * spread:
            return None
        return f"by up to {errors.max():.2g} of their spread (allowed: {EXACT})"

    # "not <=" also refuses NaN
    allowed = min(ROUNDING * rounding, WIDEST)
    if not errors.mean() <= allowed:
        return f"by {errors.mean():.2g} of their spread on average (allowed: {allowed:.2g})"
    for count in PLACES:
        least = expected.topk(count).values[:, -1]
        likeliest = expected.gather(1, logits.topk(count).indices).amin(dim=1)
        slip = ((least - likeliest) / spread).max()
        if not slip <= SLIP:
            return f"the {count} likeliest tokens by {slip:.2g} of their spread (allowed: {SLIP})"
    return None


def _make_no_mask(local_size: int | None = None, **_: Any) -> None:
    """Return no mask, as shared attention needs; note the window or chunk that a model requests.

    This is a function of transformers' ``AttentionMaskInterface``. ``local_size``: tokens.
    """
    if local_size:
        _WINDOWS.get().add(int(local_size))


AttentionInterface.register(TRIAL, attend)
AttentionMaskInterface.register(TRIAL, _make_no_mask)

"""Checks of a model at load, on the model itself: can it serve, and read through shared attention?

The logits of some tokens, read as the engine reads them, are compared with those of the model's own
forward pass. The masks that the model asks for tell its window.
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

from sts_dino.generation.backends.batch import KVCaches, LiveBatch
from sts_dino.generation.backends.output_layer import get_precision
from sts_dino.generation.backends.plain_batch import PlainBatch, has_states
from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.backends.shared_attention import NAME, attend, run_pass
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError

# tokens of the trial: of its prompt, and the generated ones, in two pages
PROMPT = 16
GENERATED = 18
CAUSAL = "a causal language model that reads a prompt in a batch as it reads it alone"
OTHER_MODEL = (
    "use another one, e.g. one of `sts-dino lm`, or serve this one and send prompts there (backend:"
    " openai)"
)
TRIAL = "sts_dino_trial"  # shared attention of a model that also says which masks it wants
# of the logits' spread: the largest error in float32; a wrong attention moves them by their spread
EXACT = 1e-2
# times the mean difference between two orders of the model's own sums, in half precision
ROUNDING = 2.0
UNKNOWN_ROUNDING = 0.02  # of the spread: the same difference where only one order is right
WIDEST = 0.1  # of the spread: the largest mean error, whatever the rounding
# half precision: numbers of likeliest tokens that are compared, and how far below their rank they
# may be, of the spread
PLACES = (1, 10)
SLIP = 0.25
# passes that make random tokens likely; ranks of the tokens that they choose
READINGS = 8
LIKELIEST = 3
PLAIN = "it is several times slower, most so with examples in the prompt"
# what a foreign architecture raises with an attention that it does not know
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
    """How a model reads: ``shared`` attention up to ``window`` tokens (0: no limit), or plain.

    ``own``: transformers' name of the model's own attention, which the plain loop uses.
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
        """Return whether texts of this many tokens, with their prompt, fit shared attention."""
        return self.shared and (not self.window or tokens <= self.window)


@torch.inference_mode()
def require_servable(model: Any, where: object) -> None:
    """Prove that a loaded model can serve, in five short passes.

    A later token moves no earlier logit. Two prompts in one padded batch, read as the plain loop
    reads them, get the logits of the model's own pass. Raises InputError where that is not so, and
    whatever the model raises.
    """
    kind = model.config.get_text_config().model_type
    ids = _draw_tokens(model)
    expected = _compute_own_logits(model, ids)
    changed = _compute_own_logits(model, np.append(ids[:PROMPT], ids[:GENERATED]))

    problem = None
    if not expected.isfinite().all():
        problem = "its logits are not finite numbers (damaged weights, or too narrow a model.dtype)"
    elif not _are_close(model, changed[0], expected[0], expected.std()):
        problem = f"{kind} reads both ways: a later token changes earlier logits"
    else:
        padded = _compute_padded_logits(model, ids)
        if not _are_close(model, padded, expected[[0, -2, -1, 1, -1]], expected.std()):
            problem = f"{kind} gives other logits in a batch of two prompts than for a prompt alone"
    if problem:
        raise InputError(where, f"cannot serve: {problem}", allowed=CAUSAL, hint=OTHER_MODEL)


def _draw_tokens(model: Any) -> np.ndarray:
    """Return the random tokens of the trial, the same ones for every model of a vocabulary."""
    config = model.config.get_text_config()
    return np.random.default_rng(0).integers(5, config.vocab_size, PROMPT + GENERATED)


def _are_close(model: Any, logits: Tensor, expected: Tensor, spread: Tensor) -> bool:
    """Return whether logits are equal but for the rounding of the model's precision."""
    error = (logits - expected).abs() / spread
    if get_precision(model) == "float32":
        return bool(error.max() <= EXACT)
    return bool(error.mean() <= WIDEST)


def _compute_padded_logits(model: Any, ids: np.ndarray) -> Tensor:
    """Return (5, V) logits, read as the plain loop does.

    They are of two prompts, and of a token after the second, first and second.
    """
    tokens = ids.tolist()
    batch = PlainBatch(model, [tokens[:PROMPT], tokens[:-1]])
    model.state_bytes = batch.count_state_bytes()
    prompt_logits = batch.logits
    batch.read_tokens([1, 0, 1], [tokens[-1], tokens[PROMPT], tokens[-1]])
    return torch.cat([prompt_logits, batch.logits]).float()


def find_path(model: Any) -> AttentionPath:
    """Return how a model reads, and let it read that way.

    The result of the trial is stored with a copy of the weights for later loads (1.5 billion
    parameters: 14 seconds). Another torch, processor or code of the trial tries again.
    """
    folder = getattr(model, "copy_folder", None)
    if folder is None:
        return _try_shared_attention(model)

    file = folder / f"attention-{_hash_trial(model)}.json"
    with suppress(OSError, ValueError, TypeError):
        path = AttentionPath(**json.loads(file.read_bytes()))
        _set_attention(model, NAME)
        return path
    path = _try_shared_attention(model)
    if path.shared:  # a refusal may come from a lack of memory, and is tried again
        with suppress(OSError):
            write_text(file, json.dumps(asdict(path)))
    return path


def _hash_trial(model: Any) -> str:
    """Return the beginning of the SHA-256 of everything that decides the trial of a model."""
    digest = sha256()
    for name in ("model_check.py", "shared_attention.py", "batch.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    cpu = torch.backends.cpu.get_cpu_capability()
    device = model.get_input_embeddings().weight.device.type
    digest.update(repr((torch.__version__, cpu, device, get_precision(model))).encode())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def _try_shared_attention(model: Any) -> AttentionPath:
    """Let the model read through shared attention if that gives the logits of its own attention.

    Else the model stays as it was. A model on several devices is not tried.
    """
    own = model.config.get_text_config()._attn_implementation
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return AttentionPath(False, "the model is spread over several devices", own)
    if has_states(model):
        return AttentionPath(False, "its layers carry states from token to token", own)

    # The model's own logits, and the rounding of its sums
    ids = _draw_tokens(model)
    expected = _compute_own_logits(model, ids)
    rounding = _measure_rounding(model, ids, expected)
    if rounding and ROUNDING * rounding > WIDEST:  # such a trial would decide nothing
        ids = _make_likely(model, ids)
        expected = _compute_own_logits(model, ids)
        rounding = _measure_rounding(model, ids, expected)

    # The same logits through shared attention
    windows: set[int] = set()
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

    # Decide
    window = min(windows, default=0)
    if 0 < window < len(ids):
        return AttentionPath(False, f"its window of {window} tokens is narrower than a prompt", own)
    difference = _describe_difference(logits, expected, rounding)
    if difference:
        reason = f"its logits differ from those of the model's own attention: {difference}"
        return AttentionPath(False, reason, own)
    _set_attention(model, NAME)
    return AttentionPath(True, "gives the logits of the model's own attention", own, window)


@contextmanager
def use_attention(model: Any, name: str) -> Iterator[None]:
    """Let the model read with the attention of this name in transformers, within the context."""
    own = model.config.get_text_config()._attn_implementation
    try:
        _set_attention(model, name)
        yield
    finally:
        _set_attention(model, own)


def _set_attention(model: Any, name: str) -> None:
    """Let the layers that read text use the attention of this name.

    Layers of images and sounds keep theirs: Gemma 4's for sounds accept no other one.
    """
    text_config = model.config.get_text_config()
    for key in model.config.sub_configs:
        if getattr(model.config, key, None) is text_config:
            model.set_attn_implementation({key: name})
            return
    model.set_attn_implementation(name)


def _compute_own_logits(model: Any, ids: np.ndarray, first: int = PROMPT - 1) -> Tensor:
    """Return the logits (n - first, V) of ``ids`` (n,) from token ``first`` on.

    One pass of the model as it stands. By default these are of the end of the prompt and of every
    generated token.
    """
    device = model.get_input_embeddings().weight.device
    output = model(input_ids=torch.from_numpy(ids)[None].to(device), use_cache=False)
    return output.logits[0, first:].float()


def _compute_shared_logits(model: Any, ids: np.ndarray) -> Tensor:
    """Return the logits of ``_compute_own_logits``, read as the engine reads them."""
    batch = LiveBatch(KVCaches(), [], model.get_input_embeddings().weight.device)
    batch.add(Request("", (), 0), [(tuple(ids[:PROMPT].tolist()), -1)])
    logits = []
    for token in [*ids[PROMPT:].tolist(), 0]:
        logits.append(run_pass(model, batch.next_pass())[-1].float())
        batch.prefill = []
        batch.sequences[0].tokens.append(token)
    return torch.stack(logits)


def _measure_rounding(model: Any, ids: np.ndarray, logits: Tensor) -> float | None:
    """Return the mean difference of logits between two orders of the same sums (SDPA, eager).

    The unit is their spread. Returns None in float32.
    """
    if get_precision(model) == "float32":
        return None
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return UNKNOWN_ROUNDING
    with use_attention(model, "eager"):
        difference = (_compute_own_logits(model, ids) - logits).abs().mean()
    return float(difference / logits.std())


def _make_likely(model: Any, ids: np.ndarray) -> np.ndarray:
    """Return tokens that the model finds likely after each other, in place of random ``ids``.

    Random tokens may magnify rounding: another order of the same sums then moves logits as far as
    wrong positions do.
    """
    ids = ids.copy()
    ranks = np.random.default_rng(1).integers(LIKELIEST, size=len(ids) - 1)
    for _ in range(READINGS):
        logits = _compute_own_logits(model, ids, first=0)[:-1]
        likeliest = logits.topk(LIKELIEST).indices.cpu().numpy()
        ids[1:] = likeliest[np.arange(len(ranks)), ranks]
    return ids


def _describe_difference(logits: Tensor, expected: Tensor, rounding: float | None) -> str | None:
    """Return how far logits differ, in units of their spread, or None where that is allowed.

    In half precision up to ``rounding``, since of some million logits the worst says little: the
    mean error is about what another order of the same sums makes; and the likeliest tokens, the
    first and the first ten, are the likeliest ones of the model's own attention, or close to them.
    """
    spread = expected.std()
    errors = (logits - expected).abs() / spread
    if rounding is None:
        if (logits - expected).abs().max() <= EXACT * spread:
            return None
        return f"by up to {errors.max():.2g} of their spread (allowed: {EXACT})"

    # "not <=" also refuses what is no number
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
    """The mask of shared attention: none. Note the window or chunk that the model wants."""
    if local_size:
        _WINDOWS.get().add(int(local_size))


AttentionInterface.register(TRIAL, attend)
AttentionMaskInterface.register(TRIAL, _make_no_mask)

"""The next token of many texts at once: self-debiasing, top-k and top-p without touching the whole vocabulary.

Debiasing only lowers: p·α <= p. So the k best debiased tokens are among the M best raw ones as soon as the k-th
debiased value is at least the M-th raw one; M is widened for the rows where it is not. With top-k off the bound says
nothing and the whole vocabulary is used, a few texts at a time. With guidance p is the guided probability, which has a
row of its own. λ and γ are of each text, and so is the bound.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from generation.backends.self_debiasing import debias, draw, guide, log_alpha, nucleus
from hub.contract.recipe import DecodingParameters

WHOLE_ROWS = 64  # rows whose logits are computed as a whole at a time, where that must be
TOPK_TILE = 64  # tokens whose maximum stands for them in the search for the largest


class NextTokenLogits(Protocol):
    """The logits of R rows over V tokens, in the forms that a draw needs."""

    norms: Tensor  # (R,) log-normalisers

    def largest(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The largest logits (B, count or fewer: all) of the rows (B,), in falling order, and their tokens."""
        ...

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Logits (B, W, C) of the rows (B, W) at the tokens (B, C)."""
        ...

    def whole(self, rows: Tensor) -> Tensor:
        """All logits (n, V) of the rows (n,)."""
        ...


class WholeLogits:
    """Logits (R, V) that are in memory."""

    def __init__(self, table: Tensor, banned: Sequence[int] = ()):
        """``banned`` tokens get a logit of -∞, in ``table`` itself."""
        table[:, list(banned)] = -torch.inf
        self._table = table.float()
        self.norms = self._table.logsumexp(dim=-1)

    def largest(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """See ``NextTokenLogits``."""
        return largest(self._table[rows], min(count, self._table.shape[1]))

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """See ``NextTokenLogits``."""
        return self._table[rows[:, :, None], ids[:, None]]

    def whole(self, rows: Tensor) -> Tensor:
        """See ``NextTokenLogits``."""
        return self._table[rows]


def guided_rows(
    outputs: Tensor, drawn: Tensor, told: Tensor, plain: Tensor, guidance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A model's outputs with a row for each guided text in the place of plain ones, which nobody reads by themselves.

    Args:
        outputs: (R, V) logits, or (R, H) hidden states before an affine output layer.
        drawn: (B, 1 + K) rows among those of ``told``, as ``index`` of ``choose``.
        told: (B, W) the rows whose log-probabilities are told.
        plain: (B,) the row of each text's plain prompt; any where γ is 0.
        guidance: (B,) γ of each text.

    Returns:
        outputs (R', V or H) in float32, drawn and told there, and the rows that texts are drawn from (B,): the guided
        ones, and where γ is 0 their own, so that such a text is drawn as one in a batch without guidance.
    """
    chosen = guidance.nonzero()[:, 0]
    own = outputs[drawn[chosen, 0]].float()
    guided = guide(own, outputs[plain[chosen]].float(), guidance[chosen, None])
    read, told = told.unique(return_inverse=True)
    drawn = torch.searchsorted(read, drawn.contiguous())
    places = drawn[:, 0].clone()
    places[chosen] = torch.arange(len(read), len(read) + len(guided), device=outputs.device)
    return torch.cat([outputs[read].float(), guided]), drawn, told, places


def choose(
    logits: NextTokenLogits,
    index: Tensor,
    settings: DecodingParameters,
    uniforms: Tensor,
    scored: Tensor | None = None,
    guided: Tensor | None = None,
    decay_constants: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw one token for each text.

    Args:
        logits: of every row.
        index: (B, 1 + K) for each text the row of its prompt, then of its counter-prompts; a text with fewer than K
            counter-prompts repeats its own row, which changes nothing (δ = 0).
        uniforms: (B,) float64 in [0, 1), the randomness.
        scored: (B, W) the rows whose log-probabilities are told; None: those of ``index``.
        guided: (B,) the rows that texts are drawn from; None: those of their prompts.
        decay_constants: (B,) λ of each text; None: that of ``settings``.

    Returns:
        token ids (B,) and their log-probabilities under each row of ``scored`` (B, W), before debiasing.
    """
    if decay_constants is None:
        decay_constants = torch.full((len(index),), settings.decay_constant, device=index.device)
    unsure = torch.arange(len(index), device=index.device)
    tokens = torch.zeros_like(unsure)
    for width in (4 * settings.top_k, 32 * settings.top_k) if settings.top_k else ():
        if len(unsure):
            some = None if guided is None else guided[unsure]
            constants = decay_constants[unsure, None]
            probs, ids, again = _among_largest(logits, index[unsure], settings, width, some, constants)
            tokens[unsure] = draw(probs, ids, uniforms[unsure])
            unsure = unsure[again]
    read = index if guided is None else torch.cat([index, guided[:, None]], dim=1)
    for some in unsure.split(max(1, WHOLE_ROWS // read.shape[1])) if len(unsure) else ():
        rows = read[some]
        log_probs = logits.whole(rows.flatten()).unflatten(0, rows.shape) - logits.norms[rows][:, :, None]
        drawn = None if guided is None else log_probs[:, -1]
        debiased = debias(log_probs[:, : index.shape[1]], decay_constants[some, None], settings.epsilon, drawn)
        probs, ids = nucleus(debiased, settings)
        tokens[some] = draw(probs, ids, uniforms[some])
    told = index if scored is None else scored
    return tokens, logits.at(told, tokens[:, None])[:, :, 0] - logits.norms[told]


def _among_largest(
    logits: NextTokenLogits,
    index: Tensor,
    settings: DecodingParameters,
    width: int,
    guided: Tensor | None,
    decay_constants: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and ids (B, k) among the ``width`` largest logits drawn from; texts for which they may be wrong."""
    rows = index[:, 0] if guided is None else guided
    found, ids = logits.largest(rows, width)
    drawn = found - logits.norms[rows, None]
    debiased = drawn
    if index.shape[1] > 1 and decay_constants.any():
        own = drawn
        if guided is not None:
            apart = logits.at(index[:, :1], ids)[:, 0] - logits.norms[index[:, :1]]
            own = torch.where((guided == index[:, 0])[:, None], drawn, apart)
        counters = logits.at(index[:, 1:], ids) - logits.norms[index[:, 1:], None]
        debiased = drawn + log_alpha(own, counters, decay_constants, settings.epsilon)
    best, place = debiased.topk(min(settings.top_k, debiased.shape[1]), dim=-1)
    probs, order = nucleus(best, settings)
    bounded = debiased is drawn or found.shape[1] < width
    unsure = torch.zeros(len(index), dtype=torch.bool, device=index.device) if bounded else best[:, -1] < drawn[:, -1]
    return probs, ids.gather(1, place).gather(1, order), unsure


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row (B, V) in falling order, and their places.

    They lie inside the ``count`` tiles with the largest maxima, so long rows are searched through their tiles.
    """
    rows, length = values.shape
    tiles = length // TOPK_TILE
    if tiles < 2 * count:
        return values.topk(count, dim=-1)
    whole = tiles * TOPK_TILE
    tops = values[:, :whole].view(rows, tiles, TOPK_TILE).amax(dim=-1)
    chosen = tops.topk(count, dim=-1).indices
    places = (chosen[:, :, None] * TOPK_TILE + torch.arange(TOPK_TILE, device=values.device)).flatten(1)
    rest = torch.arange(whole, length, device=values.device).expand(rows, -1)
    places = torch.cat([places, rest], dim=1)
    found, order = values.gather(1, places).topk(count, dim=-1)
    return found, places.gather(1, order)

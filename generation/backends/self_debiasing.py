"""The mathematics of self-debiasing and guidance, pure: logits under some prompts to one distribution.

Source: DINO (Schick & Schütze 2021), section 3; ε is the original implementation's. A token that is likelier
under some counter-instruction than under its own is penalised by α = max(exp(λ·δ), ε), with
δ = p_y(token) - max over counter-labels y' of p_y'(token), wherever δ < 0; then the distribution is renormalised.

Guidance (classifier-free guidance for language models, Sanchez et al. 2023) multiplies p_y by (p_y / p_plain)^γ, where
the plain prompt has neither task nor source sentence. α depends on p_y alone, and multiplies the guided probability.

``choose`` draws without the whole vocabulary. Debiasing only lowers: p·α <= p. So the k best debiased tokens are among
the M best raw ones as soon as the k-th debiased value is at least the M-th raw one; else M is widened. With top-k off
the whole vocabulary is used, a few texts at a time.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hub.contract.recipe import DecodingParameters


def guide(own: Tensor, plain: Tensor, guidance: Tensor | float) -> Tensor:
    """Guided logits: those of p·(p / p_plain)^γ but for a constant, as (1 + γ)·own - γ·plain.

    Of hidden states before an affine output layer it makes those that have the guided logits.

    Args:
        own: (B, V) logits, or (B, H) hidden states, under the own instruction.
        plain: the same under the plain prompt.
        guidance: γ >= 0, one number or (B, 1); 0 gives ``own``.
    """
    return own + guidance * (own - plain)


def debias(log_probs: Tensor, decay_constant: Tensor | float, epsilon: float, guided: Tensor | None = None) -> Tensor:
    """Self-debiased log-probabilities.

    Args:
        log_probs: (B, 1 + K, V) normalised; row 0 under the own instruction, rows 1..K under counter-instructions.
        decay_constant: λ >= 0, one number or (B, 1); 0 leaves a distribution as it is.
        epsilon: ε in (0, 1], the smallest factor a probability is multiplied by.
        guided: (B, V) log-probabilities that α multiplies; None: those of row 0.

    Returns:
        (B, V), normalised.
    """
    own = log_probs[:, 0]
    drawn = own if guided is None else guided
    constants = torch.as_tensor(decay_constant, device=drawn.device)
    if log_probs.shape[1] == 1 or not constants.any():
        return drawn
    debiased = (drawn + log_alpha(own, log_probs[:, 1:], decay_constant, epsilon)).log_softmax(dim=-1)
    return torch.where(constants > 0, debiased, drawn)


def log_alpha(own: Tensor, counters: Tensor, decay_constant: Tensor | float, epsilon: float) -> Tensor:
    """log α of each token: never above 0, never below log ε.

    Args:
        own: (B, V) log-probabilities under the own instruction.
        counters: (B, K, V), K >= 1, under the counter-instructions.
        decay_constant: λ, one number or (B, 1).

    Returns:
        (B, V).
    """
    delta = own.exp() - counters.amax(dim=1).exp()
    return (decay_constant * delta.clamp(max=0)).clamp(min=math.log(epsilon))


def nucleus(log_probs: Tensor, settings: DecodingParameters) -> tuple[Tensor, Tensor]:
    """What sampling may choose from: top-k, renormalised, then top-p, renormalised (transformers' order).

    Args:
        log_probs: (B, V).
        settings: ``top_k`` tokens stay (0 keeps all), of them the smallest set of the likeliest whose probabilities
            reach ``top_p``; at least one.

    Returns:
        probabilities (B, M) in falling order, zero where cut, and their token ids (B, M).
    """
    vocabulary = log_probs.shape[-1]
    size = min(settings.top_k, vocabulary) if settings.top_k else vocabulary
    values, ids = log_probs.topk(size, dim=-1)
    probs = values.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    probs = probs.masked_fill(before >= settings.top_p, 0.0)
    probs[:, 0] = probs[:, 0].clamp(min=torch.finfo(probs.dtype).tiny)
    return probs / probs.sum(dim=-1, keepdim=True), ids


def draw(probs: Tensor, ids: Tensor, uniforms: Tensor) -> Tensor:
    """One token per row by inverting the cumulative distribution.

    Args:
        probs: (B, M) in falling order, each row summing to 1.
        ids: (B, M).
        uniforms: (B,) in [0, 1), float64.

    Returns:
        (B,) token ids. Never one of probability zero.
    """
    cumulative = probs.double().cumsum(dim=-1)
    position = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(dim=-1)
    last = (probs > 0).sum(dim=-1) - 1
    return ids.gather(1, torch.minimum(position, last)[:, None])[:, 0]


WHOLE_ROWS = 64  # rows whose logits are computed as a whole at a time, where that must be
TOPK_TILE = 64  # tokens whose maximum stands for them in the search for the largest


class NextTokenLogits:
    """The logits (R, V) of R rows over V tokens, in memory, in the forms that a draw needs.

    ``norms``: (R,) log-normalisers. ``output_layer.LogitsInPieces`` computes the same from hidden states.
    """

    def __init__(self, table: Tensor, banned: Sequence[int] = ()):
        """``banned`` tokens get a logit of -∞, in ``table`` itself."""
        table[:, list(banned)] = -torch.inf
        self._table = table.float()
        self.norms = self._table.logsumexp(dim=-1)

    def largest(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The largest logits (B, count or fewer: all) of the rows (B,), in falling order, and their tokens."""
        return largest(self._table[rows], min(count, self._table.shape[1]))

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Logits (B, W, C) of the rows (B, W) at the tokens (B, C)."""
        return self._table[rows[:, :, None], ids[:, None]]

    def whole(self, rows: Tensor) -> Tensor:
        """All logits (n, V) of the rows (n,)."""
        return self._table[rows]


def guided_rows(
    outputs: Tensor, drawn: Tensor, scored: Tensor, plain: Tensor, guidance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A model's outputs with a row for each guided text in the place of plain ones, which nobody reads by themselves.

    Args:
        outputs: (R, V) logits, or (R, H) hidden states before an affine output layer.
        drawn: (B, 1 + K) rows among those of ``scored``, as ``index`` of ``choose``.
        scored: (B, W) the rows whose log-probabilities are reported.
        plain: (B,) the row of each text's plain prompt; any where γ is 0.
        guidance: (B,) γ of each text.

    Returns:
        outputs (R', V or H) in float32, drawn and scored there, and the rows that texts are drawn from (B,): the guided
        ones, and where γ is 0 their own, so that such a text is drawn as one in a batch without guidance.
    """
    chosen = guidance.nonzero()[:, 0]
    own = outputs[drawn[chosen, 0]].float()
    guided = guide(own, outputs[plain[chosen]].float(), guidance[chosen, None])
    read, scored = scored.unique(return_inverse=True)
    drawn = torch.searchsorted(read, drawn.contiguous())
    places = drawn[:, 0].clone()
    places[chosen] = torch.arange(len(read), len(read) + len(guided), device=outputs.device)
    return torch.cat([outputs[read].float(), guided]), drawn, scored, places


def choose(
    logits: NextTokenLogits,
    index: Tensor,
    settings: DecodingParameters,
    uniforms: Tensor,
    scored: Tensor,
    guided: Tensor | None,
    decay_constants: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw one token for each text.

    Args:
        logits: of every row.
        index: (B, 1 + K) for each text the row of its prompt, then of its counter-prompts; a text with fewer than K
            counter-prompts repeats its own row, which changes nothing (δ = 0).
        uniforms: (B,) float64 in [0, 1), the randomness.
        scored: (B, W) the rows whose log-probabilities are reported.
        guided: (B,) the rows that texts are drawn from; None: those of their prompts.
        decay_constants: (B,) λ of each text.

    Returns:
        token ids (B,) and their log-probabilities under each row of ``scored`` (B, W), before debiasing.
    """
    unsure = torch.arange(len(index), device=index.device)
    tokens = torch.zeros_like(unsure)
    debiases = index.shape[1] > 1 and bool(decay_constants.any())
    for factor in ((4, 32) if debiases else (1,)) if settings.top_k else ():
        if len(unsure):
            width = factor * settings.top_k
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
    return tokens, logits.at(scored, tokens[:, None])[:, :, 0] - logits.norms[scored]


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

"""Self-debiasing and guidance: from logits under several prompts to one distribution and a token.

Source: DINO (Schick & Schütze 2021), section 3; ε is the original implementation's. A token that is
likelier under some counter-instruction than under its own is penalised by α = max(exp(λ·δ), ε),
with δ = p_y(token) - max over counter-labels y' of p_y'(token), wherever δ < 0; then the
distribution is renormalised.

Guidance (classifier-free guidance for language models, Sanchez et al. 2023) multiplies p_y by (p_y
/ p_plain)^γ, where the plain prompt has neither task nor source sentence. α depends on p_y alone,
and multiplies the guided probability.

``choose_tokens`` draws without the whole vocabulary. Debiasing never raises a value: p·α <= p. So
the k best debiased tokens are among the M best raw tokens if the k-th debiased value is at least
the M-th raw value; else a larger M is tried. Without top-k the whole vocabulary is used, a few
texts at a time.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sts_dino.hub.contract.recipe import DecodingParameters

WHOLE_ROWS = 64  # rows whose logits over the whole vocabulary are in memory at a time
TOPK_TILE = 64  # tokens of a tile; the largest tokens are searched in the tiles of largest maximum
# M, the numbers of likeliest tokens that are tried, as multiples of top-k: with debiasing, without
DEBIASED_WIDTHS = (4, 32)
PLAIN_WIDTHS = (1,)


def guide(own: Tensor, plain: Tensor, guidance: Tensor | float) -> Tensor:
    """Return guided logits (1 + γ)·own - γ·plain: those of p·(p / p_plain)^γ, up to a constant.

    For hidden states before an affine output layer, it returns the states that have these logits.

    Args:
        own: (B, V) logits, or (B, H) hidden states, under the own instruction.
        plain: the logits or hidden states under the plain prompt, of this shape.
        guidance: γ >= 0, one number or (B, 1); 0 gives ``own``.
    """
    return own + guidance * (own - plain)


def debias(
    log_probs: Tensor, decay_constant: Tensor | float, epsilon: float, guided: Tensor | None = None
) -> Tensor:
    """Return self-debiased log-probabilities: log(p·α), normalised.

    Args:
        log_probs: (B, 1 + K, V) normalised; row 0 under the own instruction, rows 1..K under
            counter-instructions. With K = 0 nothing is debiased.
        decay_constant: λ >= 0, one number or (B, 1); 0 leaves a distribution unchanged.
        epsilon: ε in (0, 1], the smallest factor a probability is multiplied by.
        guided: (B, V) log-probabilities that α multiplies; None: those of row 0.

    Returns:
        (B, V), normalised.
    """
    own = log_probs[:, 0]
    target = own if guided is None else guided
    constants = torch.as_tensor(decay_constant, device=target.device)
    if log_probs.shape[1] == 1 or not constants.any():
        return target
    log_alpha = compute_log_alpha(own, log_probs[:, 1:], decay_constant, epsilon)
    debiased = (target + log_alpha).log_softmax(dim=-1)
    return torch.where(constants > 0, debiased, target)


def compute_log_alpha(
    own: Tensor, counters: Tensor, decay_constant: Tensor | float, epsilon: float
) -> Tensor:
    """Return log α of each token: never above 0, never below log ε.

    Args:
        own: (B, V) log-probabilities under the own instruction.
        counters: (B, K, V), K >= 1, under the counter-instructions.
        decay_constant: λ, one number or (B, 1).
        epsilon: ε in (0, 1].

    Returns:
        (B, V).
    """
    delta = own.exp() - counters.amax(dim=1).exp()
    return (decay_constant * delta.clamp(max=0)).clamp(min=math.log(epsilon))


def select_nucleus(log_probs: Tensor, settings: DecodingParameters) -> tuple[Tensor, Tensor]:
    """Select the tokens that sampling may draw: top-k, renormalised, then top-p, renormalised.

    This is transformers' order.

    Args:
        log_probs: (B, V).
        settings: the ``top_k`` likeliest tokens stay (0: all). Of these, only the smallest set of
            likeliest tokens stays whose probabilities sum to at least ``top_p``. It has at least
            one token.

    Returns:
        probabilities (B, M) in falling order, zero for tokens that top-p removes, and the token ids
        (B, M). M is ``top_k``, or V if that is 0 or larger.
    """
    vocabulary = log_probs.shape[-1]
    size = min(settings.top_k, vocabulary) if settings.top_k else vocabulary
    values, ids = log_probs.topk(size, dim=-1)
    probs = values.softmax(dim=-1)
    likelier = probs.cumsum(dim=-1) - probs  # total probability of all likelier tokens
    probs = probs.masked_fill(likelier >= settings.top_p, 0.0)
    # the likeliest token stays, whatever rounding does to the sums
    probs[:, 0] = probs[:, 0].clamp(min=torch.finfo(probs.dtype).tiny)
    return probs / probs.sum(dim=-1, keepdim=True), ids


def draw(probs: Tensor, ids: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        probs: (B, M) in falling order, each row summing to 1.
        ids: (B, M).
        uniforms: (B,) in [0, 1), float64.

    Returns:
        (B,) token ids, none of probability zero.
    """
    cumulative = probs.double().cumsum(dim=-1)
    position = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(dim=-1)
    last = (probs > 0).sum(dim=-1) - 1
    return ids.gather(1, torch.minimum(position, last)[:, None])[:, 0]


class NextTokenLogits:
    """The logits (R, V) of R rows over V tokens, as ``choose_tokens`` reads them.

    ``norms``: (R,) logarithm of the sum of exponentials of each row. The subclass
    ``output_layer.LogitsInPieces`` computes the same from hidden states, without all logits in
    memory.
    """

    def __init__(self, table: Tensor, banned: Sequence[int] = ()):
        """Read ``table`` (R, V); ``banned`` tokens get a logit of -∞, in ``table`` itself."""
        table[:, list(banned)] = -torch.inf
        self._table = table.float()
        self.norms = self._table.logsumexp(dim=-1)

    def find_largest(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the ``count`` largest logits (B, count) of rows (B,), and their tokens.

        They are in falling order; there are V of them if ``count`` exceeds V.
        """
        return find_largest(self._table[rows], min(count, self._table.shape[1]))

    def get(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (B, W, C) of the rows (B, W) for the tokens (B, C)."""
        return self._table[rows[:, :, None], ids[:, None]]

    def get_rows(self, rows: Tensor) -> Tensor:
        """Return all logits (n, V) of the rows (n,)."""
        return self._table[rows]


class TextRows(NamedTuple):
    """The rows of a model's outputs that B texts are drawn and scored from."""

    # (B, 1 + K) row of each text's prompt, then of its counter-prompts. A text with fewer than K
    # counter-prompts repeats its own row, which changes nothing (δ = 0).
    compared: Tensor
    scored: Tensor  # (B, W) rows whose log-probabilities are reported
    # (B,) rows that texts are drawn from; None: those of their prompts
    guided: Tensor | None = None


def append_guided_rows(
    outputs: Tensor, rows: TextRows, plain: Tensor, guidance: Tensor
) -> tuple[Tensor, TextRows]:
    """Append a guided row for each text with guidance to a model's outputs.

    Rows that are not in ``rows.scored``, such as those of plain prompts, are dropped.

    Args:
        outputs: (R, V) logits, or (R, H) hidden states before an affine output layer.
        rows: the rows of the texts; those of ``compared`` are among those of ``scored``.
        plain: (B,) the row of each text's plain prompt; any row if its γ is 0.
        guidance: (B,) γ of each text.

    Returns:
        outputs (R', V or H) in float32, and the rows of the texts there, with ``guided``. A text
        with γ = 0 has its own row as the guided row, so it is drawn as in a batch without guidance.
    """
    guided_texts = guidance.nonzero()[:, 0]
    own_outputs = outputs[rows.compared[guided_texts, 0]].float()
    plain_outputs = outputs[plain[guided_texts]].float()
    guided_outputs = guide(own_outputs, plain_outputs, guidance[guided_texts, None])

    # Keep the rows that are read, and append the guided ones
    kept_rows, scored = rows.scored.unique(return_inverse=True)
    compared = torch.searchsorted(kept_rows, rows.compared.contiguous())
    guided = compared[:, 0].clone()
    total = len(kept_rows) + len(guided_outputs)
    guided[guided_texts] = torch.arange(len(kept_rows), total, device=outputs.device)
    outputs = torch.cat([outputs[kept_rows].float(), guided_outputs])
    return outputs, TextRows(compared, scored, guided)


def choose_tokens(
    logits: NextTokenLogits,
    rows: TextRows,
    settings: DecodingParameters,
    uniforms: Tensor,
    decay_constants: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw one token for each of B texts from its debiased and guided distribution.

    Args:
        logits: the logits of every row.
        rows: the rows of the texts.
        settings: top-k, top-p and ε.
        uniforms: (B,) float64 in [0, 1), the randomness.
        decay_constants: (B,) λ of each text.

    Returns:
        token ids (B,) and their log-probabilities under each row of ``rows.scored`` (B, W), before
        debiasing.
    """
    compared, scored, guided = rows
    tokens = torch.zeros(len(compared), dtype=torch.long, device=compared.device)
    unsure = torch.arange(len(compared), device=compared.device)  # texts without a certain token

    # Draw among the likeliest tokens; try more of them for texts for which these may not suffice
    widths: tuple[int, ...] = ()
    if settings.top_k:
        debiases = compared.shape[1] > 1 and bool(decay_constants.any())
        widths = DEBIASED_WIDTHS if debiases else PLAIN_WIDTHS
    for width in widths:
        if not len(unsure):
            break
        probs, ids, is_unsure = _search_likeliest(
            logits,
            compared[unsure],
            None if guided is None else guided[unsure],
            settings,
            width * settings.top_k,
            decay_constants[unsure, None],
        )
        tokens[unsure] = draw(probs, ids, uniforms[unsure])
        unsure = unsure[is_unsure]

    # Draw for the remaining texts among the whole vocabulary, a few texts at a time
    read = compared if guided is None else torch.cat([compared, guided[:, None]], dim=1)
    size = max(1, WHOLE_ROWS // read.shape[1])
    for start in range(0, len(unsure), size):
        texts = unsure[start : start + size]
        text_rows = read[texts]
        all_logits = logits.get_rows(text_rows.flatten()).unflatten(0, text_rows.shape)
        log_probs = all_logits - logits.norms[text_rows][:, :, None]
        debiased = debias(
            log_probs[:, : compared.shape[1]],
            decay_constants[texts, None],
            settings.epsilon,
            guided=None if guided is None else log_probs[:, -1],
        )
        probs, ids = select_nucleus(debiased, settings)
        tokens[texts] = draw(probs, ids, uniforms[texts])

    token_logits = logits.get(scored, tokens[:, None])[:, :, 0]
    return tokens, token_logits - logits.norms[scored]


def _search_likeliest(
    logits: NextTokenLogits,
    compared: Tensor,
    guided: Tensor | None,
    settings: DecodingParameters,
    width: int,
    decay_constants: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Select the nucleus among the ``width`` likeliest tokens of each text.

    Args:
        logits: the logits of every row.
        compared: (B, 1 + K), see ``TextRows``.
        guided: (B,) or None, see ``TextRows``.
        settings: top-k, top-p and ε.
        width: the number of likeliest tokens.
        decay_constants: (B, 1) λ of each text.

    Returns:
        probabilities and token ids (B, k) of the nucleus, as ``select_nucleus`` returns them, and
        (B,) whether a token outside the ``width`` likeliest may belong to the nucleus.
    """
    # Find the likeliest tokens before debiasing: log-probabilities in falling order (B, width)
    prompt_rows = compared[:, 0]
    drawn_rows = prompt_rows if guided is None else guided
    values, ids = logits.find_largest(drawn_rows, width)
    log_probs = values - logits.norms[drawn_rows, None]

    # Debias them: α compares the distributions without guidance
    debiased = log_probs
    if compared.shape[1] > 1 and decay_constants.any():
        unguided = log_probs
        if guided is not None:
            unguided = logits.get(compared[:, :1], ids)[:, 0] - logits.norms[prompt_rows, None]
            # ``get`` may round otherwise than ``find_largest``, so a text with γ = 0 keeps the
            # values that it has in a batch without guidance
            has_guidance = (guided != prompt_rows)[:, None]
            unguided = torch.where(has_guidance, unguided, log_probs)
        counters = logits.get(compared[:, 1:], ids) - logits.norms[compared[:, 1:], None]
        log_alpha = compute_log_alpha(unguided, counters, decay_constants, settings.epsilon)
        debiased = log_probs + log_alpha
    best, positions = debiased.topk(min(settings.top_k, debiased.shape[1]), dim=-1)
    probs, order = select_nucleus(best, settings)

    # A token outside the ``width`` likeliest is at most the last of ``log_probs``, also debiased,
    # because debiasing never raises a value
    is_unsure = best[:, -1] < log_probs[:, -1]
    if log_probs.shape[1] < width:  # the vocabulary has no other token
        is_unsure = torch.zeros_like(is_unsure)
    return probs, ids.gather(1, positions).gather(1, order), is_unsure


def find_largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest of each row (B, V) in falling order, and their positions.

    They are in the ``count`` tiles with the largest maxima, or after the last whole tile. So in
    long rows only these values are searched, which is faster than torch's ``topk`` over the row.
    ``count`` is at most V.
    """
    rows, length = values.shape
    tiles = length // TOPK_TILE
    if tiles < 2 * count:
        return values.topk(count, dim=-1)

    # Find the tiles with the largest maxima; add the values after the last whole tile
    tiled = tiles * TOPK_TILE
    maxima = values[:, :tiled].view(rows, tiles, TOPK_TILE).amax(dim=-1)
    best_tiles = maxima.topk(count, dim=-1).indices
    offsets = torch.arange(TOPK_TILE, device=values.device)
    positions = (best_tiles[:, :, None] * TOPK_TILE + offsets).flatten(1)
    remainder = torch.arange(tiled, length, device=values.device).expand(rows, -1)
    positions = torch.cat([positions, remainder], dim=1)

    largest, order = values.gather(1, positions).topk(count, dim=-1)
    return largest, positions.gather(1, order)

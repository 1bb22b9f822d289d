"""The next token of many texts at once: self-debiasing, top-k and top-p without touching the whole vocabulary.

Debiasing only lowers: p·α <= p. So the k best debiased tokens are among the M best raw ones as soon as the k-th
debiased value is at least the M-th raw one; M is widened for the rows where it is not. With top-k off the bound says
nothing and the whole vocabulary is used.
"""

import torch
from torch import Tensor

from generation.decoding.self_debiasing import debias, draw, log_alpha, nucleus
from hub.contract.recipe import DecodingParameters

TOPK_TILE = 64  # tokens whose maximum stands for them in the search for the largest


def choose(table: Tensor, index: Tensor, settings: DecodingParameters, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token for each text.

    Args:
        table: (R, V) logits of every row.
        index: (B, 1 + K) for each text the row of its prompt, then of its counter-prompts; a text with fewer than K
            counter-prompts repeats its own row, which changes nothing (δ = 0).
        uniforms: (B,) float64 in [0, 1), the randomness.

    Returns:
        token ids (B,) and their log-probabilities under each row of ``index`` (B, 1 + K), before debiasing.
    """
    table = table.float()
    norms = table.logsumexp(dim=-1)
    if settings.top_k:
        probs, ids = _likeliest(table, norms, index, settings, 4 * settings.top_k)
    else:
        log_probs = table[index] - norms[index][:, :, None]
        probs, ids = nucleus(debias(log_probs, settings.decay_constant, settings.epsilon), settings)
    tokens = draw(probs, ids, uniforms)
    return tokens, table[index, tokens[:, None]] - norms[index]


def _likeliest(
    table: Tensor, norms: Tensor, index: Tensor, settings: DecodingParameters, width: int
) -> tuple[Tensor, Tensor]:
    """Probabilities and ids (B, k) that sampling may choose from; ``width`` grows for texts where it is too small."""
    probs, ids, unsure = _among_largest(table, norms, index, settings, width)
    while len(unsure):
        width *= 8
        probs[unsure], ids[unsure], again = _among_largest(table, norms, index[unsure], settings, width)
        unsure = unsure[again]
    return probs, ids


def _among_largest(
    table: Tensor, norms: Tensor, index: Tensor, settings: DecodingParameters, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and ids (B, k) among the ``width`` largest raw logits; the texts for which they may be wrong."""
    width = min(width, table.shape[1])
    logits, ids = largest(table[index[:, 0]], width)
    own = logits - norms[index[:, 0], None]
    debiased = own
    if index.shape[1] > 1 and settings.decay_constant:
        counters = table[index[:, 1:, None], ids[:, None]] - norms[index[:, 1:], None]
        debiased = own + log_alpha(own, counters, settings.decay_constant, settings.epsilon)
    best, place = debiased.topk(min(settings.top_k, width), dim=-1)
    probs, order = nucleus(best, settings)
    bounded = debiased is own or width == table.shape[1]
    unsure = torch.zeros(0, dtype=torch.long) if bounded else (best[:, -1] < own[:, -1]).nonzero()[:, 0]
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

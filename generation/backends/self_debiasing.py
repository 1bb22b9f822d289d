"""The mathematics of self-debiasing and guidance, pure: logits under some prompts to one distribution.

Source: DINO (Schick & Schütze 2021), section 3; ε is the original implementation's. A token that is likelier
under some counter-instruction than under its own is penalised by α = max(exp(λ·δ), ε), with
δ = p_y(token) - max over counter-labels y' of p_y'(token), wherever δ < 0; then the distribution is renormalised.

Guidance (classifier-free guidance for language models, Sanchez et al. 2023) multiplies p_y by (p_y / p_plain)^γ, where
the plain prompt has neither task nor first text. α is made of p_y as it is, and multiplies what guidance gives.
"""

import math

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

"""Losses by their sentence-transformers names, and the pair forms each one can learn from."""

from dataclasses import dataclass

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from torch import nn

from hub.errors import InputError, nearest


@dataclass(frozen=True)
class LossKind:
    """A loss class, built as ``make(model)``, and the names of the forms it takes."""

    make: type[nn.Module]
    forms: tuple[str, ...]


LOSSES = {
    "CosineSimilarityLoss": LossKind(losses.CosineSimilarityLoss, ("sts",)),  # DINO section 4: MSE of the cosine
    "CoSENTLoss": LossKind(losses.CoSENTLoss, ("sts",)),
    "AnglELoss": LossKind(losses.AnglELoss, ("sts",)),
    "MultipleNegativesRankingLoss": LossKind(losses.MultipleNegativesRankingLoss, ("triplet",)),
    "CachedMultipleNegativesRankingLoss": LossKind(losses.CachedMultipleNegativesRankingLoss, ("triplet",)),
}


def check_loss(name: str, form: str, place: str) -> LossKind:
    """The loss called ``name``. Raises InputError when it is unknown or does not take ``form``; ``place`` is named."""
    if name not in LOSSES:
        guess = nearest(name, LOSSES)
        hint = f"did you mean {guess!r}?" if guess else None
        raise InputError(f"{place}.loss", f"unknown loss {name!r}", allowed=sorted(LOSSES), hint=hint)
    kind = LOSSES[name]
    if form not in kind.forms:
        fitting = [other for other, candidate in LOSSES.items() if form in candidate.forms]
        raise InputError(f"{place}.loss", f"{name} does not learn from the {form} form", allowed=fitting or "none yet")
    return kind


def build_loss(name: str, model: SentenceTransformer) -> nn.Module:
    """The loss of that name around ``model``, with upstream defaults."""
    return LOSSES[name].make(model)

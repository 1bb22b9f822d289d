"""Losses by their sentence-transformers names: the forms each one learns from, its arguments typed by its signature.

In-batch losses compare every row with the others of its batch. With several processes they are given the rows of all,
so that the recipe's batch decides what is compared, not the number of processes.
"""

import inspect
import math
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad
from torch import nn

from hub.errors import InputError, nearest
from hub.recipe import NLI_LABELS, TrainingData
from training.bases import Base
from training.declutr import DeclutrLoss, load_head

DECIDED = {
    **dict.fromkeys(("model", "student", "head", "embedding_dimension"), "the recipe's base"),
    **dict.fromkeys(("num_labels", "gather_across_devices", "show_progress_bar"), "this stage"),
    **dict.fromkeys(("similarity_fct", "loss_fct", "cos_score_transformation"), "the loss: a function is no text"),
    **dict.fromkeys(("directions", "partition_mode"), "this stage: anchors are compared with positives and negatives"),
}
MAY_BE_ZERO = ("hardness_strength", "mlm_probability")


class GatheredCoSENTLoss(losses.CoSENTLoss):
    """CoSENT's comparison of every two pairs in the batch of all processes; upstream compares those of one process.

    Every process computes the loss of the whole batch, of which it has a share of one size. Gradients of the gathered
    embeddings are summed over processes on their way back, and the trainer averages those of the weights, which makes
    the gradient of one process on the batch.
    """

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and (rows,) scores."""
        return super().compute_loss_from_embeddings(*_everyones(embeddings, labels))


class GatheredAnglELoss(losses.AnglELoss):
    """AnglE's comparison in the same way."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: torch.Tensor | None) -> torch.Tensor:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and (rows,) scores."""
        assert labels is not None  # the sts form has scores
        return super().compute_loss_from_embeddings(*_everyones(embeddings, labels))


def _everyones(embeddings: list[torch.Tensor], labels: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [all_gather_with_grad(side) for side in embeddings], all_gather(labels)


@dataclass(frozen=True)
class LossKind:
    """A loss class, built as ``make(student, **arguments)``, and the forms it takes.

    ``in_batch``: it compares the rows of a batch with one another, so accumulated steps are not one batch for it.
    ``gathered``: its class for several processes, where it has no argument for them.
    """

    make: type[nn.Module]
    forms: tuple[str, ...]
    in_batch: bool = False
    gathered: type[nn.Module] | None = None


LOSSES = {
    # DINO section 4: the squared error of the cosine
    "CosineSimilarityLoss": LossKind(losses.CosineSimilarityLoss, ("sts",)),
    # Huang et al. 2024: the order of the cosines
    "CoSENTLoss": LossKind(losses.CoSENTLoss, ("sts",), True, GatheredCoSENTLoss),
    # Li and Li 2024: the order of angles in complex space
    "AnglELoss": LossKind(losses.AnglELoss, ("sts",), True, GatheredAnglELoss),
    # InfoNCE with in-batch and hard negatives; scale is 1 / temperature, so its default 20 is temperature 0.05
    "MultipleNegativesRankingLoss": LossKind(losses.MultipleNegativesRankingLoss, ("triplet",), True),
    # the same by gradient caching (Gao et al. 2021): mini_batch_size rows are in memory at a time
    "CachedMultipleNegativesRankingLoss": LossKind(losses.CachedMultipleNegativesRankingLoss, ("triplet",), True),
    # Reimers and Gurevych 2019, section 3: a classifier on (u, v, |u - v|); a parameter of the loss, not of the student
    "SoftmaxLoss": LossKind(losses.SoftmaxLoss, ("pair-class",)),
    # Giorgi et al. 2021: NT-Xent on spans plus masked language modelling
    "DeclutrLoss": LossKind(DeclutrLoss, ("documents",), True),
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
        raise InputError(f"{place}.loss", f"{name} does not learn from the {form} form", allowed=fitting)
    return kind


def check_arguments(spec: TrainingData, place: str) -> dict[str, Any]:
    """The recipe's ``loss_arguments`` with the types that the loss class declares.

    Raises InputError naming ``place``.loss_arguments.NAME for an unknown name, one decided elsewhere or
    an unfit value.
    """
    loss = LOSSES[spec.loss].make
    hints = get_type_hints(loss.__init__)
    names = [name for name in inspect.signature(loss).parameters if name not in DECIDED]
    here = f"{place}.loss_arguments"
    return {name: _typed(name, text, hints, names, f"{here}.{name}") for name, text in spec.loss_arguments.items()}


def _typed(name: str, text: str, hints: dict[str, Any], names: list[str], place: str) -> Any:
    if name in DECIDED:
        raise InputError(place, f"is set by {DECIDED[name]}", hint="remove it from the recipe")
    if name not in names:
        guess = nearest(name, names)
        hint = f"did you mean {guess!r}?" if guess else None
        if name == "temperature" and "scale" in names:
            hint = "scale is 1 / temperature"
        raise InputError(place, "is not an argument of the loss", allowed=names or "none", hint=hint)
    try:
        value = TypeAdapter(hints[name]).validate_python(text)
    except ValidationError as error:
        raise InputError(place, f"{error.errors()[-1]['msg']} (found {text!r})") from error
    if isinstance(value, int | float) and not isinstance(value, bool):
        low = value >= 0 if name in MAY_BE_ZERO else value > 0
        if not (low and math.isfinite(value)):
            allowed = "0 or a positive number" if name in MAY_BE_ZERO else "a positive number"
            raise InputError(place, f"is {value:g}", allowed=allowed)
    return value


def build_loss(spec: TrainingData, student: SentenceTransformer, base: Base, processes: int = 1) -> nn.Module:
    """The loss of a dataset around ``student``; its own parameters, if any, are drawn from torch's generator.

    Raises InputError when the loss and the student, or the arguments, do not go together.
    """
    kind = LOSSES[spec.loss]
    arguments = check_arguments(spec, "datasets")
    loss = kind.make
    if processes > 1 and kind.gathered is not None:
        loss = kind.gathered
    elif processes > 1 and "gather_across_devices" in inspect.signature(loss).parameters:
        arguments["gather_across_devices"] = True
    if spec.loss == "SoftmaxLoss":
        arguments |= {"embedding_dimension": student.get_embedding_dimension(), "num_labels": len(NLI_LABELS)}
    if spec.loss == "DeclutrLoss":
        arguments["head"] = load_head(base)
    try:
        return loss(student, **arguments)
    except ValueError as error:
        raise InputError(f"datasets: {spec.loss}", str(error)) from error

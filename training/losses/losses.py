"""Losses by their sentence-transformers names: each one declared once, with the example types it learns from.

In-batch losses compare every row with the others of its batch. With several processes they get the rows of all, so the
recipe's batch decides what is compared, not the number of processes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hub.contract.recipe import ModelRecipe, TrainingData
from hub.contract.schema import NLI_LABELS
from hub.errors import InputError, did_you_mean
from training.data.example_types import (
    DOCUMENTS,
    EXAMPLE_TYPES,
    GRADED_PAIR,
    GRADED_TRIPLET,
    PAIR_CLASS,
    QUERY_PAIR,
    SELF_PAIR,
    STS,
    TRIPLET,
    ExampleType,
)
from training.encoder.bases import Base

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

UPSTREAM, OWN = "sentence_transformers.sentence_transformer.losses", "training.losses.modules"
# Anchors, positives and perhaps hard negatives.
CONTRASTIVE = (TRIPLET, QUERY_PAIR, SELF_PAIR, GRADED_PAIR, GRADED_TRIPLET)
LOWER = "lower its loss_arguments.mini_batch_size, which fits any memory"
OTHERS = "use more processes, or arguments.activation_checkpointing"


def _classifier(encoder: SentenceTransformer, base: Base) -> dict[str, Any]:
    return {"embedding_dimension": encoder.get_embedding_dimension(), "num_labels": len(NLI_LABELS)}


def _language_head(encoder: SentenceTransformer, base: Base) -> dict[str, Any]:
    from training.losses.modules import load_head

    return {"head": load_head(base)}


@dataclass(frozen=True)
class Loss:
    """A training loss: the class called ``name`` in ``module``, imported when it is used, and its example types.

    ``in_batch``: it compares the rows of a batch with one another, so accumulated steps are not one batch for it;
    ``smaller``: the way to less memory. ``gathered``: ``modules.Gathered...`` is its class for several processes, since
    it has no argument for them. ``guided``: a second encoder detects false negatives. ``decided``: the arguments that
    encoder and base decide.
    """

    name: str
    examples: tuple[ExampleType, ...]
    in_batch: bool = False
    smaller: str = OTHERS
    gathered: bool = False
    guided: bool = False
    module: str = UPSTREAM
    decided: Callable[[SentenceTransformer, Base], dict[str, Any]] = lambda encoder, base: {}

    def loss_class(self, processes: int = 1) -> type[nn.Module]:
        """The class over the batch of so many processes."""
        own = "Gathered" if processes > 1 and self.gathered else ""
        return getattr(import_module(OWN if own else self.module), own + self.name)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of the class by name."""
        return dict(inspect.signature(self.loss_class()).parameters)


ALL = (
    # DINO section 4: the squared error of the cosine
    Loss("CosineSimilarityLoss", (STS,)),
    # Huang et al. 2024: the order of the cosines
    Loss("CoSENTLoss", (STS,), in_batch=True, gathered=True),
    # Li and Li 2024: the order of angles in complex space
    Loss("AnglELoss", (STS,), in_batch=True, gathered=True),
    # InfoNCE with in-batch and hard negatives; scale is 1 / temperature, so its default 20 is temperature 0.05
    Loss(
        "MultipleNegativesRankingLoss",
        CONTRASTIVE,
        in_batch=True,
        smaller="use CachedMultipleNegativesRankingLoss: its mini_batch_size fits any memory",
    ),
    # the same by gradient caching (Gao et al. 2021): mini_batch_size rows are in memory at a time
    Loss("CachedMultipleNegativesRankingLoss", CONTRASTIVE, in_batch=True, smaller=LOWER),
    # Solatorio 2024: InfoNCE without the negatives that a guide finds nearer to the anchor than its positive
    Loss(
        "GISTEmbedLoss",
        CONTRASTIVE,
        in_batch=True,
        smaller="use CachedGISTEmbedLoss: its mini_batch_size fits any memory",
        gathered=True,
        guided=True,
    ),
    Loss("CachedGISTEmbedLoss", CONTRASTIVE, in_batch=True, smaller=LOWER, gathered=True, guided=True),
    # Reimers and Gurevych 2019, section 3: a classifier on (u, v, |u - v|); a parameter of the loss, not of the encoder
    Loss("SoftmaxLoss", (PAIR_CLASS,), decided=_classifier),
    # Giorgi et al. 2021: NT-Xent on spans plus masked language modelling
    Loss("DeclutrLoss", (DOCUMENTS,), in_batch=True, module=OWN, decided=_language_head),
)
LOSSES = {loss.name: loss for loss in ALL}

DECIDED = {
    **dict.fromkeys(("model", "encoder", "head", "embedding_dimension"), "the recipe's base"),
    "guide": "the dataset's own key guide",
    **dict.fromkeys(("num_labels", "gather_across_devices", "show_progress_bar"), "this stage"),
    **dict.fromkeys(("similarity_fct", "loss_fct", "cos_score_transformation"), "the loss: a function is not text"),
    **dict.fromkeys(("directions", "partition_mode"), "this stage: anchors are compared with positives and negatives"),
}
MAY_BE_ZERO = ("hardness_strength", "mlm_probability", "contrastive_weight", "margin")


def check_losses(recipe: ModelRecipe, place: str) -> None:
    """Check each dataset's loss, example type, guide and batch, without the libraries of training.

    Raises InputError naming ``place``:KEY.
    """
    for index, spec in enumerate(recipe.datasets):
        _check_loss(spec, f"{place}:datasets.{index}")
        loss = LOSSES[spec.loss]
        if DOCUMENTS in loss.examples and recipe.base.modules != "transformer":
            found = f"is {recipe.base.modules}, and documents train layers that read tokens in their places"
            raise InputError(f"{place}:base.modules", found, allowed="transformer")
        if spec.guide is not None and recipe.base.prompt is not None:
            found = "would read base.prompt around every text: it gets what the encoder reads"
            hint = "leave it out: the untrained encoder is the guide then"
            raise InputError(f"{place}:datasets.{index}.guide", found, hint=hint)
        alone = SELF_PAIR.name, GRADED_PAIR.name  # a row without negatives of its own
        if loss.in_batch and (STS in loss.examples or spec.example_type in alone) and recipe.batch_size == 1:
            found = f"is 1, and {spec.loss} compares pairs of a batch with one another: it would learn nothing"
            raise InputError(f"{place}:batch_size", found, allowed="at least 2")


def _check_loss(spec: TrainingData, place: str) -> None:
    if spec.loss not in LOSSES:
        hint = did_you_mean(spec.loss, LOSSES)
        raise InputError(f"{place}.loss", f"unknown loss {spec.loss!r}", allowed=sorted(LOSSES), hint=hint)
    needs: dict[str, tuple[Callable[[Loss], bool], str]] = {
        "loss": (
            lambda loss: EXAMPLE_TYPES[spec.example_type] in loss.examples,
            f"does not learn from example type {spec.example_type}",
        ),
        "guide": (lambda loss: loss.guided, "has no guide"),
    }
    for key, (fits, problem) in needs.items():
        if getattr(spec, key) is not None and not fits(LOSSES[spec.loss]):
            allowed = [other.name for other in ALL if fits(other)]
            raise InputError(f"{place}.{key}", f"{spec.loss} {problem}", allowed=allowed)
    if spec.weights is not None:
        raise InputError(f"{place}.weights", "is no longer supported: every row counts the same", hint="remove it")


def loss_arguments(spec: TrainingData, place: str) -> dict[str, Any]:
    """The recipe's ``loss_arguments`` with the types that the loss class declares.

    Raises InputError naming ``place``.loss_arguments.NAME for an unknown name, one decided elsewhere or an unfit value.
    """
    here, loss, typed = f"{place}.loss_arguments", LOSSES[spec.loss], dict[str, Any]()
    for name in spec.loss_arguments:
        if name in DECIDED:
            raise InputError(f"{here}.{name}", f"is set by {DECIDED[name]}", hint="remove it from the recipe")
    if spec.loss_arguments:
        hints = get_type_hints(loss.loss_class().__init__)
        names = [name for name in loss.parameters if name not in DECIDED]
    for name, text in spec.loss_arguments.items():
        if name not in names:
            scaled = name == "temperature" and "scale" in names
            hint = "scale is 1 / temperature" if scaled else did_you_mean(name, names)
            raise InputError(f"{here}.{name}", "is not an argument of the loss", allowed=names or "none", hint=hint)
        typed[name] = value = typed_argument(text, hints[name], f"{here}.{name}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            require_positive(value, f"{here}.{name}", zero=name in MAY_BE_ZERO)
    if loss.guided and spec.example_type == SELF_PAIR.name and not typed.get("margin"):
        found = "is 0: a text is most similar to itself, so every negative would stay"
        raise InputError(f"{here}.margin", found, hint="give one, e.g. margin: 0.1")
    return typed


def build_loss(
    spec: TrainingData,
    encoder: SentenceTransformer,
    base: Base,
    processes: int = 1,
    guide: SentenceTransformer | None = None,
) -> nn.Module:
    """The loss of a dataset around ``encoder``; its own parameters, if any, are drawn from torch's generator.

    ``guide``: of a guided loss, which it freezes. Raises InputError when the loss and the encoder, or the arguments, do
    not go together.
    """
    loss = LOSSES[spec.loss]
    arguments = loss_arguments(spec, "datasets") | loss.decided(encoder, base)
    if guide is not None:
        arguments["guide"] = guide.requires_grad_(False).eval()
    if processes > 1 and not loss.gathered and "gather_across_devices" in loss.parameters:
        arguments["gather_across_devices"] = True
    try:
        return loss.loss_class(processes)(encoder, **arguments)
    except ValueError as error:
        raise InputError(f"datasets: {spec.loss}", str(error)) from error


def typed_argument(text: str, declared: Any, place: str) -> Any:
    """``text`` as a value of the type ``declared``. Raises InputError naming ``place``."""
    try:
        return TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(text)
    except ValidationError as error:
        raise InputError(place, f"{error.errors()[0]['msg']} (found {text!r})") from error


def require_positive(value: float, place: str, zero: bool = False, infinity: bool = False) -> None:
    """Raise InputError unless ``value`` is above 0; or 0, or infinite, where these are allowed."""
    if not (value >= 0 if zero else value > 0) or (math.isinf(value) and not infinity):
        allowed = "0 or a positive number" if zero else "a positive number"
        raise InputError(place, f"is {value:g}", allowed=allowed)

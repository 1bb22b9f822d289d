"""Example types (the columns of a training row), and the losses that learn from each.

In-batch losses compare every row with the other rows of its batch. With several processes each
process gets the rows of all processes. So the batch of the recipe decides the comparisons, not the
number of processes.

This module imports no slow library. ``sts_dino.training.loop.losses`` builds a loss.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sts_dino.hub.contract import schema
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.schema import ROW_SCHEMAS, ColumnType
from sts_dino.hub.errors import InputError, suggest_choice

if TYPE_CHECKING:
    import datasets
    from torch import nn


@dataclass(frozen=True)
class Target:
    """The column of numbers that an encoder learns from: scores or class labels.

    ``low`` to ``high``: the range of its values, both included. ``allowed``: the range in words,
    for errors. ``kind``: integers (class labels) or numbers.
    """

    column: str
    low: float
    high: float
    allowed: str
    kind: str


@dataclass(frozen=True)
class ExampleType:
    """A type of training example; ``name`` is its value of ``example_type`` in recipes.

    ``columns``: column → type, in the order of the loss's arguments. ``target``: the column of
    numbers; None: all columns are texts. ``shuffle_buffer``: the number of a stream's rows that are
    shuffled together. ``may_be_blank``: whether a text may be blank, e.g. a line of a file.
    ``made_from``: the type of the dataset's rows, from which rows of this type are made; None: the
    dataset has rows of this type.
    """

    name: str
    columns: dict[str, ColumnType]
    target: Target | None = None
    shuffle_buffer: int = 10_000
    may_be_blank: bool = False
    made_from: ExampleType | None = None

    @property
    def kinds(self) -> dict[str, str]:
        """Column → the kind of its cells: text, numbers or integers."""
        kinds = dict.fromkeys(self.columns, "text")
        if self.target is not None:
            kinds[self.target.column] = self.target.kind
        return kinds

    @property
    def text_columns(self) -> list[str]:
        """The names of the columns of texts, which the encoder reads, in order."""
        return [column for column, kind in self.kinds.items() if kind == "text"]

    @property
    def source_type(self) -> ExampleType:
        """The type of the rows in the dataset: ``made_from``, else this type."""
        return self.made_from or self

    @property
    def features(self) -> datasets.Features:
        """The columns with their types, as ``datasets`` features."""
        return schema.build_features(self.columns)


SCORE = Target("score", 0, 1, "0 to 1 (cosine similarities)", kind="numbers")
LABEL = Target(
    "label", 0, 2, "0 to 2 (sts_dino.hub.contract.schema's label order)", kind="integers"
)
PAIR_COLUMNS = ROW_SCHEMAS["pair"].columns

STS = ExampleType("sts", ROW_SCHEMAS["sts"].columns, SCORE)
PAIR_CLASS = ExampleType("pair-class", ROW_SCHEMAS["pair-class"].columns, LABEL)
TRIPLET = ExampleType("triplet", ROW_SCHEMAS["triplet"].columns)
# a row is a document, which is cut into spans; documents are long, so fewer are shuffled together
DOCUMENTS = ExampleType("documents", {"text": "string"}, shuffle_buffer=1_000, may_be_blank=True)
QUERY_PAIR = ExampleType("pair", PAIR_COLUMNS)
# a recipe names the column of texts
TEXTS = ExampleType("self-pair", {"text": "string"}, may_be_blank=True)
SELF_PAIR = ExampleType("self-pair", PAIR_COLUMNS, made_from=TEXTS)
GRADED_PAIR = ExampleType("graded-pair", PAIR_COLUMNS, made_from=STS)
GRADED_TRIPLET = ExampleType("graded-triplet", TRIPLET.columns, made_from=STS)

# anchors, positives and perhaps hard negatives
CONTRASTIVE = (TRIPLET, QUERY_PAIR, SELF_PAIR, GRADED_PAIR, GRADED_TRIPLET)
_ALL_TYPES = (STS, PAIR_CLASS, DOCUMENTS, *CONTRASTIVE)
EXAMPLE_TYPES = {example_type.name: example_type for example_type in _ALL_TYPES}

UPSTREAM_MODULE = "sentence_transformers.sentence_transformer.losses"
OWN_MODULE = "sts_dino.training.loop.losses"
LOWER_MINI_BATCH_HINT = "lower its loss_arguments.mini_batch_size, which fits any memory"
LESS_MEMORY_HINT = "use more processes, or arguments.activation_checkpointing"


@dataclass(frozen=True)
class Loss:
    """A training loss: the class ``name`` in ``module``.

    ``example_types``: the types that the loss learns from. ``in_batch``: whether the loss compares
    the rows of a batch with one another; accumulated steps add no rows to compare. ``smaller``: the
    remedy when memory is too small, for errors. ``gathered``: whether several processes use the
    class ``Gathered{name}`` of ``sts_dino.training.loop.losses``. ``guided``: whether a second
    encoder, the guide, detects false negatives.
    """

    name: str
    example_types: tuple[ExampleType, ...]
    in_batch: bool = False
    smaller: str = LESS_MEMORY_HINT
    gathered: bool = False
    guided: bool = False
    module: str = UPSTREAM_MODULE

    def import_class(self, processes: int = 1) -> type[nn.Module]:
        """Return the loss's class; for several ``processes``, its ``Gathered`` class, if any."""
        if processes > 1 and self.gathered:
            return getattr(import_module(OWN_MODULE), f"Gathered{self.name}")
        return getattr(import_module(self.module), self.name)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of the loss's class in one process, name → parameter. Imports the class."""
        return dict(inspect.signature(self.import_class()).parameters)


_DECLARED = (
    # DINO section 4: the squared error of the cosine
    Loss("CosineSimilarityLoss", (STS,)),
    # Huang et al. 2024: the order of the cosines
    Loss("CoSENTLoss", (STS,), in_batch=True, gathered=True),
    # Li and Li 2024: the order of angles in complex space
    Loss("AnglELoss", (STS,), in_batch=True, gathered=True),
    # the correlation with a teacher's cosines (docs/decisions.md)
    Loss("CorrelationLoss", (STS,), in_batch=True, gathered=True, module=OWN_MODULE),
    # InfoNCE with in-batch and hard negatives; scale is 1 / temperature, so its default 20 is
    # temperature 0.05
    Loss(
        "MultipleNegativesRankingLoss",
        CONTRASTIVE,
        in_batch=True,
        smaller="use CachedMultipleNegativesRankingLoss: its mini_batch_size fits any memory",
    ),
    # InfoNCE by gradient caching (Gao et al. 2021): mini_batch_size rows are in memory at a time
    Loss(
        "CachedMultipleNegativesRankingLoss",
        CONTRASTIVE,
        in_batch=True,
        smaller=LOWER_MINI_BATCH_HINT,
    ),
    # Solatorio 2024: InfoNCE without the negatives that are nearer to the anchor than its positive,
    # by the cosines of a guide
    Loss(
        "GISTEmbedLoss",
        CONTRASTIVE,
        in_batch=True,
        smaller="use CachedGISTEmbedLoss: its mini_batch_size fits any memory",
        gathered=True,
        guided=True,
    ),
    Loss(
        "CachedGISTEmbedLoss",
        CONTRASTIVE,
        in_batch=True,
        smaller=LOWER_MINI_BATCH_HINT,
        gathered=True,
        guided=True,
    ),
    # Reimers and Gurevych 2019, section 3: a classifier on (u, v, |u - v|), which belongs to the
    # loss, not to the encoder
    Loss("SoftmaxLoss", (PAIR_CLASS,)),
    # Giorgi et al. 2021: NT-Xent on spans plus masked language modelling
    Loss("DeclutrLoss", (DOCUMENTS,), in_batch=True, module=OWN_MODULE),
)
LOSSES = {loss.name: loss for loss in _DECLARED}
IN_BATCH_LOSSES = frozenset(loss.name for loss in _DECLARED if loss.in_batch)

_BASE = "the recipe's base"
_STAGE = "this stage"
_FUNCTION = "the loss: a function is not text"
_DIRECTIONS = "this stage: anchors are compared with positives and negatives"
# arguments of loss classes that a recipe cannot set → what sets them
DECIDED_ARGUMENTS = {
    "model": _BASE,
    "encoder": _BASE,
    "head": _BASE,
    "embedding_dimension": _BASE,
    "guide": "the dataset's own key guide",
    "num_labels": _STAGE,
    "gather_across_devices": _STAGE,
    "show_progress_bar": _STAGE,
    "similarity_fct": _FUNCTION,
    "loss_fct": _FUNCTION,
    "cos_score_transformation": _FUNCTION,
    "directions": _DIRECTIONS,
    "partition_mode": _DIRECTIONS,
}
ARGUMENTS_THAT_MAY_BE_ZERO = (
    "hardness_strength",
    "mlm_probability",
    "contrastive_weight",
    "margin",
)


def check_losses(recipe: ModelRecipe, where: str) -> None:
    """Raise InputError naming ``where``:KEY when a loss does not fit the recipe.

    The function checks each dataset by itself (``_check_loss``), then its loss with the recipe's
    base and batch size. It reads no data and imports no training library. ``where``: the recipe
    file.
    """
    for index, spec in enumerate(recipe.datasets):
        # The dataset by itself.
        key = f"{where}:datasets.{index}"
        _check_loss(spec, key)

        # The dataset with the recipe's base and batch.
        loss = LOSSES[spec.loss]
        if DOCUMENTS in loss.example_types and recipe.base.modules != "transformer":
            raise InputError(
                f"{where}:base.modules",
                f"is {recipe.base.modules}, "
                "and documents train layers that read tokens in their places",
                allowed="transformer",
            )
        if spec.guide is not None and recipe.base.prompt is not None:
            raise InputError(
                f"{key}.guide",
                "would read base.prompt around every text: it gets what the encoder reads",
                hint="leave it out: the untrained encoder is the guide then",
            )
        # Rows of these types have no negative or second pair of their own.
        needs_other_rows = spec.example_type in (STS.name, SELF_PAIR.name, GRADED_PAIR.name)
        if loss.in_batch and needs_other_rows and recipe.batch_size == 1:
            raise InputError(
                f"{where}:batch_size",
                f"is 1, and {spec.loss} compares pairs of a batch with one another: "
                "it would learn nothing",
                allowed="at least 2",
            )


def _check_loss(spec: TrainingData, where: str) -> None:
    """Raise InputError naming ``where``.KEY for a loss or key that does not fit the dataset.

    The function checks loss, example type, columns and guide, and refuses the key ``weights``.
    ``where``: the dataset's key in the recipe.
    """
    if spec.loss not in LOSSES:
        raise InputError(
            f"{where}.loss",
            f"unknown loss {spec.loss!r}",
            allowed=sorted(LOSSES),
            hint=suggest_choice(spec.loss, LOSSES),
        )
    example_type = EXAMPLE_TYPES[spec.example_type]
    if example_type not in LOSSES[spec.loss].example_types:
        raise InputError(
            f"{where}.loss",
            f"{spec.loss} does not learn from example type {spec.example_type}",
            allowed=[loss.name for loss in _DECLARED if example_type in loss.example_types],
        )
    # The texts of self-pairs may come from any number of columns.
    needed = list(example_type.source_type.columns)
    if spec.columns is not None and example_type != SELF_PAIR and len(spec.columns) != len(needed):
        raise InputError(
            f"{where}.columns",
            f"names {len(spec.columns)} columns",
            allowed=f"{len(needed)}, the data's names for {', '.join(needed)}",
        )
    if spec.columns is not None and len(set(spec.columns)) < len(spec.columns):
        raise InputError(
            f"{where}.columns",
            f"names a column twice: {', '.join(spec.columns)}",
            allowed="distinct columns",
        )
    if spec.guide is not None and not LOSSES[spec.loss].guided:
        raise InputError(
            f"{where}.guide",
            f"{spec.loss} has no guide",
            allowed=[loss.name for loss in _DECLARED if loss.guided],
        )
    if spec.weights is not None:
        raise InputError(
            f"{where}.weights",
            "is no longer supported: every row counts the same",
            hint="remove it",
        )


def parse_loss_arguments(spec: TrainingData, where: str) -> dict[str, Any]:
    """Return the ``loss_arguments`` of a dataset, name → value of the type that the class declares.

    Raises InputError naming ``where``.loss_arguments.NAME for an unknown argument, for an argument
    of ``DECIDED_ARGUMENTS``, for a value of another type, and for a number that is not positive (0
    passes for ``ARGUMENTS_THAT_MAY_BE_ZERO``). A guided loss of self-pairs needs a ``margin`` above
    0. ``where``: the dataset's key in the recipe.
    """
    loss = LOSSES[spec.loss]
    names = [name for name in loss.parameters if name not in DECIDED_ARGUMENTS]
    arguments: dict[str, Any] = {}
    for name, text in spec.loss_arguments.items():
        key = f"{where}.loss_arguments.{name}"
        if name in DECIDED_ARGUMENTS:
            raise InputError(
                key, f"is set by {DECIDED_ARGUMENTS[name]}", hint="remove it from the recipe"
            )
        if name not in names:
            hint = suggest_choice(name, names)
            if name == "temperature" and "scale" in names:
                hint = "scale is 1 / temperature"
            raise InputError(
                key, "is not an argument of the loss", allowed=names or "none", hint=hint
            )
        types = get_type_hints(loss.import_class().__init__)
        value = parse_argument(text, types[name], key)
        # A bool is an int in Python, but has no range.
        if isinstance(value, int | float) and not isinstance(value, bool):
            require_positive(value, key, may_be_zero=name in ARGUMENTS_THAT_MAY_BE_ZERO)
        arguments[name] = value

    if loss.guided and spec.example_type == SELF_PAIR.name and not arguments.get("margin"):
        raise InputError(
            f"{where}.loss_arguments.margin",
            "is 0: a text is most similar to itself, so every negative would stay",
            hint="give one, e.g. margin: 0.1",
        )
    return arguments


def parse_argument(text: str, declared: Any, where: str) -> Any:
    """Parse the text of a recipe as a value of the type ``declared``, e.g. "1e-5" as a float.

    Where the type allows any text, e.g. ``dict | str``, ``text`` is returned unchanged. Raises
    InputError naming ``where`` for a text that is not a value of the type.
    """
    adapter = TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        raise InputError(where, f"{error.errors()[0]['msg']} (found {text!r})") from error


def name_key(where: str, key: str) -> str:
    """Return the full name of a recipe's key: ``base: org/model`` and ``prompt`` give base.prompt.

    ``where``: a section of the recipe; a colon and the place of its data may follow, which are left
    out. ``key``: a key of the section.
    """
    return f"{where.partition(':')[0]}.{key}"


def require_positive(
    value: float, where: str, may_be_zero: bool = False, may_be_infinite: bool = False
) -> None:
    """Raise InputError naming ``where`` unless ``value`` is a positive number.

    NaN never passes. 0 passes with ``may_be_zero``, infinity with ``may_be_infinite``.
    """
    is_in_range = value > 0 or (may_be_zero and value == 0)
    if not is_in_range or (math.isinf(value) and not may_be_infinite):
        raise InputError(
            where,
            f"is {value:g}",
            allowed="0 or a positive number" if may_be_zero else "a positive number",
        )

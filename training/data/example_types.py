"""Example types: what one training example is, declared once and read by row checks, losses, validation and dry run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub.contract import schema
from hub.contract.schema import ROW_SCHEMAS, ColumnType

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Target:
    """The column that is learned: its range, and whether its values are integers (class labels)."""

    column: str
    low: float
    high: float
    allowed: str  # the range in words
    integers: bool


@dataclass(frozen=True)
class ExampleType:
    """A type of training example, under its name in recipes (``example_type``).

    ``columns``: of the trainer, in the loss's order. ``buffer``: rows that a stream draws from. ``blank``: whether a
    text may be blank, e.g. lines of a file. ``made_from``: the type of the rows that the trainer's are made from.
    """

    name: str
    columns: dict[str, ColumnType]
    target: Target | None = None
    buffer: int = 10_000
    blank: bool = False
    made_from: ExampleType | None = None

    @property
    def texts(self) -> list[str]:
        """The columns that the encoder reads."""
        return [column for column in self.columns if self.target is None or column != self.target.column]

    @property
    def read(self) -> ExampleType:
        """The type of the rows as they are read."""
        return self.made_from or self

    @property
    def features(self) -> datasets.Features:
        """The columns with their types."""
        return schema.features(self.columns)


SCORE = Target("score", 0, 1, "0 to 1 (cosine similarities)", integers=False)
LABEL = Target("label", 0, 2, "0 to 2 (hub.contract.schema's label order)", integers=True)

STS = ExampleType("sts", ROW_SCHEMAS["sts"].columns, SCORE)
PAIR_CLASS = ExampleType("pair-class", ROW_SCHEMAS["pair-class"].columns, LABEL)
TRIPLET = ExampleType("triplet", ROW_SCHEMAS["triplet"].columns)
DOCUMENTS = ExampleType("documents", {"text": "string"}, buffer=1_000, blank=True)  # each is cut into spans

PAIR = ROW_SCHEMAS["pair"].columns
QUERY_PAIR = ExampleType("pair", PAIR)
TEXTS = ExampleType("self-pair", {"text": "string"}, blank=True)  # its columns are those that a recipe names
SELF_PAIR = ExampleType("self-pair", PAIR, made_from=TEXTS)
GRADED_PAIR = ExampleType("graded-pair", PAIR, made_from=STS)
GRADED_TRIPLET = ExampleType("graded-triplet", TRIPLET.columns, made_from=STS)

EXAMPLE_TYPES = {
    found.name: found
    for found in (STS, PAIR_CLASS, TRIPLET, QUERY_PAIR, DOCUMENTS, SELF_PAIR, GRADED_PAIR, GRADED_TRIPLET)
}

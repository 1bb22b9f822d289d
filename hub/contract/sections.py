"""What the sections of all recipes share: their base class, marks of keys, and the types of plain values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

X1 = "<X1>"
QUOTE = '"'

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=96)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
LANGUAGE = r"^([a-z]{2,3}|code|multilingual)$"  # what the Hub takes: ISO 639, lower case
Language = Annotated[str, Field(pattern=LANGUAGE)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
TextEnd = Literal["quotation_mark", "line"]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class NotFingerprinted:
    """Marks a key, as ``Annotated[str, CARD_ONLY]``, that decides no row and no weight. Any other key does."""

    use: str


CARD_ONLY = NotFingerprinted("what a card says")
SCORING_ONLY = NotFingerprinted("how a finished encoder is scored")
PLACE_ONLY = NotFingerprinted("where the same is had: it is not published")
SPEED_ONLY = NotFingerprinted("how fast, or at what price, the same is done")


@dataclass(frozen=True)
class LeftOutUnlessSet:
    """Marks a key, as ``Annotated[bool, OPTION]``, that a recipe without it does not know of.

    While it has its default it stands neither in the fingerprint nor in the resolved recipe, so that recipes, runs and
    cards from before the key was made stay as they are.
    """


OPTION = LeftOutUnlessSet()


class Strict(BaseModel):
    """Base of every recipe section: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), serialize_by_alias=True)

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each; the first one is reported."""
        yield from ()

    @model_validator(mode="after")
    def _without_problems(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self

    @classmethod
    def deciding_keys(cls) -> list[str]:
        """The keys that decide rows or weights: all but those that are marked otherwise."""
        fields = cls.model_fields.items()
        return [
            name for name, field in fields if not any(isinstance(mark, NotFingerprinted) for mark in field.metadata)
        ]

    @property
    def also_deciding(self) -> frozenset[str]:
        """Keys that are marked otherwise and decide rows or weights all the same, for what other keys say."""
        return frozenset()

    @property
    def unset_options(self) -> set[str]:
        """The keys marked ``OPTION`` that have their default."""
        fields = type(self).model_fields.items()
        options = {name: field for name, field in fields if OPTION in field.metadata}
        return {
            name
            for name, field in options.items()
            if getattr(self, name) == field.get_default(call_default_factory=True)
        }

    @model_serializer(mode="wrap")
    def _without_unset_options(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unset = self.unset_options
        return {name: value for name, value in serialised(self).items() if name not in unset}


def part_problems(origin: Any) -> Iterator[str]:
    """What is wrong with ``config`` and ``splits`` where there is one file, or no data, to read."""
    if origin.kind == "hub" and origin.path is None:
        return
    for key in ("config", "splits"):
        if getattr(origin, key) != type(origin).model_fields[key].default:
            reads = "the model writes these texts" if origin.kind == "model" else "one file is read, whole"
            yield f"{key} names parts of a Hub dataset, but {reads}: remove {key}"

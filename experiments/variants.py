"""Dataset variants of experiments: the source sentences, recipe and settings of each, and what variants share. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from hub.contract.sections.base import Name, Positive, Strict

FINISHING = ("verification=", "verification.", "postprocess.", "decoding.samples=")  # settings that generate no text


class Source(Strict):
    """Source sentences: a file of sentences as ``generation`` reads it (.gz, too), or the language model (no path).

    ``path`` is relative to the data folder or to the repository. ``pairs``: the file has the STS Benchmark's layout and
    both sentences of a row are drawn. ``checked``: draw no sentence of STS12-16, the STS Benchmark or SICK; else none
    of the STS Benchmark's scored splits. ``texts``: the number of sentences, in place of the plan's.
    """

    path: str | None = None
    columns: tuple[str, ...] = ()
    pairs: bool = False
    checked: bool = True
    texts: Positive | None = None
    license: str
    dataset_license: str  # of a dataset of these sentences and the model's texts
    description: str


class Seeds(Strict):
    """Seeds of a plan: each data seed draws its own source sentences and has its own training seeds."""

    data: Annotated[tuple[int, ...], Field(min_length=1)]
    trainings: Positive  # per data seed

    def each(self) -> list[tuple[int, int]]:
        """(data seed, training seed) of every training; no training seed occurs twice."""
        numbered = enumerate(self.data)
        return [(data, place * self.trainings + one + 1) for place, data in numbered for one in range(self.trainings)]


class Variant(Strict):
    """A dataset variant: a recipe with settings, or the texts of another variant filtered and scored again.

    ``extends``: inherit recipe, settings and source of that variant. ``same_texts``: generate nothing; apply these
    settings of filtering and scoring to that variant's texts. Settings are written as for ``--set``.
    """

    name: Name
    says: str
    recipe: Path | None = None
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()
    extends: str | None = None
    same_texts: str | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        given = [key for key in ("recipe", "extends", "same_texts") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"{self.name}: give exactly one of recipe, extends and same_texts")
        if self.same_texts and self.source:
            raise ValueError(f"{self.name}: its source sentences are those of {self.same_texts}")
        for setting in self.settings if self.same_texts else ():
            if not setting.startswith(FINISHING):
                raise ValueError(f"{self.name}: {setting} changes the generated texts: use extends, not same_texts")
        return self

    @property
    def based_on(self) -> Iterator[str]:
        """The variants that this one names."""
        yield from (name for name in (self.extends, self.same_texts) if name)


@dataclass(frozen=True)
class Texts:
    """The generation of a variant: recipe, all settings, and the name of its source."""

    recipe: Path
    settings: tuple[str, ...]
    source: str


class Datasets(Strict):
    """Sources, seeds and variants of a plan. ``texts``: source sentences of each dataset."""

    sources: Mapping[str, Source]
    default_source: str
    texts: Positive
    seeds: Seeds
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        names = [variant.name for variant in self.variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two variants are called {name}")
        for variant in self.variants:
            for name in variant.based_on:
                if name not in names:
                    raise ValueError(f"{variant.name}: unknown variant {name}")
        places = {self.default_source: "default_source"}
        places |= {variant.source: variant.name for variant in self.variants if variant.source}
        for name, place in places.items():
            if name not in self.sources:
                raise ValueError(f"{place}: unknown source {name}; allowed: {', '.join(self.sources)}")
        try:
            list(TopologicalSorter({variant.name: set(variant.based_on) for variant in self.variants}).static_order())
        except CycleError as error:
            raise ValueError(f"variants depend on each other: {' - '.join(error.args[1])}") from None
        return self

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)

    def generation(self, name: str) -> Texts:
        """The generation of a variant's texts: its own, or that of the variant that it shares them with."""
        variant = self.variant(name)
        if variant.same_texts:
            return self.generation(variant.same_texts)
        if variant.extends is None:
            assert variant.recipe is not None
            return Texts(variant.recipe, variant.settings, variant.source or self.default_source)
        before = self.generation(variant.extends)
        return Texts(before.recipe, (*before.settings, *variant.settings), variant.source or before.source)

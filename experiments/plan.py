"""The plan of experiments, read from YAML files: dataset variants, encoders, tables and the effects to test. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from hub.contract.measured import Split
from hub.contract.recipe import Name, Positive, Strict
from hub.contract.recipe_file import read_yaml
from hub.errors import InputError, did_you_mean
from hub.papers import Column, Table, find_paper

FINISHING = ("verification=", "verification.", "postprocess.", "decoding.samples=")  # settings that generate no text


class Source(Strict):
    """Source sentences: a file of sentences as ``generation`` reads it (.gz, too), or the language model (no path).

    ``path`` is relative to the data folder or to the repository. ``pairs``: the file has the STS Benchmark's layout and
    both sentences of a row are drawn. ``checked``: draw no sentence of STS12-16, the STS Benchmark or SICK; else none
    of the STS Benchmark's scored splits. ``texts``: the number of sentences, in place of the plan's.
    """

    path: str | None = None
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


class Encoder(Strict):
    """An encoder in a table: trained by a recipe, untrained, or any encoder by name.

    ``recipe``: a model recipe; its ``datasets`` read the variant ``dataset``, whatever path they name (None: as they
    stand). ``trained``: false scores the base of the recipe. ``baseline``: simcse trains by unsupervised SimCSE on the
    source sentences of ``dataset``; shuffled trains on its pairs with permuted scores. ``model``: what ``sts-dino score
    --model`` takes, in place of a recipe.
    """

    name: Name
    says: str
    recipe: Path | None = None
    model: str | None = None
    dataset: str | None = None
    trained: bool = True
    baseline: Literal["simcse", "shuffled"] | None = None
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if [self.recipe, self.model].count(None) != 1:
            raise ValueError(f"{self.name}: give exactly one of recipe and model")
        if self.recipe is None and (self.dataset or self.settings or self.baseline):
            raise ValueError(f"{self.name}: dataset, set and baseline need a recipe")
        if self.baseline and not (self.dataset and self.trained):
            raise ValueError(f"{self.name}: a baseline needs a dataset and a training")
        return self


class OwnColumn(Strict):
    """A column that the paper does not print: the mean of tasks on a split."""

    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split = "test"


class Effect(Strict):
    """An effect of a paper: the row ``better`` scores higher than the row ``than`` in a column.

    ``paper``: the paper's difference, where it is not the difference of two printed rows.
    """

    says: str
    better: str
    than: str
    column: str = "Avg."
    paper: float | None = None


class Experiment(Strict):
    """A table or figure of a paper, or a table of ours (``paper`` None).

    ``rows``: encoder → the paper's row (None: it has none). ``columns``: the paper's columns to measure (None: all that
    have tasks), then ``own_columns``. ``data_seeds``, ``training_seeds``: how many of the plan's. ``finished``: the git
    revision that can repeat the kept result, where this code cannot; ``labels``: its rows; ``beside``: of a result that
    is no table of encoders, row → the paper's row. ``repeats``: the experiment whose effects this one measures again
    with a larger language model. ``judges``: name → encoder that measures the label agreement of the rows' datasets.
    ``parameters``: row → parameters of its language model in millions: a plot of these rows by size.
    """

    name: Name
    paper: str | None = None
    repeats: str | None = None
    judges: Mapping[str, str] = Field(default_factory=dict)
    parameters: Mapping[str, float] = Field(default_factory=dict)
    table: int | None = None
    figure: int | None = None
    title: str
    rows: Mapping[str, str | None] = Field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    own_columns: Mapping[str, OwnColumn] = Field(default_factory=dict)
    finished: str | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    beside: Mapping[str, str] = Field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    data_seeds: Positive = 1
    training_seeds: Positive | None = None
    reading: str = ""  # interpretation of the numbers, in sentences
    deviations: tuple[str, ...] = ()  # from the paper

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if not (self.finished or self.rows):
            raise ValueError(f"{self.name}: has no rows")
        return self

    @property
    def printed(self) -> Table | None:
        """The paper's table, where its numbers are kept. Raises InputError."""
        return find_paper(self.paper).table(self.table) if self.paper and self.table is not None else None

    def measured_columns(self) -> dict[str, OwnColumn]:
        """Column → its tasks and split. An average has the tasks of its columns. Raises InputError."""
        table = self.printed
        there = {column.name: column for column in table.columns} if table else {}
        every = tuple(name for name, column in there.items() if column.reason is None)
        chosen = every if self.columns is None else self.columns
        for name in chosen:
            if name not in there:
                raise InputError(f"{self.name}: column {name!r}", "is not in the table", allowed=list(there))
        found = {name: OwnColumn(tasks=tuple(_tasks(there[name], there))) for name in chosen}
        return found | dict(self.own_columns)


def _tasks(column: Column, there: Mapping[str, Column]) -> Iterator[str]:
    if column.task is not None:
        yield column.task
    for part in column.mean_of:
        if not isinstance(part, str):
            raise InputError(f"column {column.name!r}", "counts several metrics as one", hint="use own_columns")
        yield from _tasks(there[part], there)


class Plan(Strict):
    """All experiments, with the dataset variants and encoders that they share."""

    datasets: Datasets
    encoders: tuple[Encoder, ...]
    experiments: Annotated[tuple[Experiment, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        variants = {variant.name for variant in self.datasets.variants}
        encoders = [encoder.name for encoder in self.encoders]
        for names in (encoders, [one.name for one in self.experiments]):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"two are called {name}")
        for encoder in self.encoders:
            if encoder.dataset is not None and encoder.dataset not in variants:
                raise ValueError(f"{encoder.name}: unknown variant {encoder.dataset}")
        most = len(self.datasets.seeds.data)
        for one in self.experiments:
            if one.data_seeds > most:
                raise ValueError(f"{one.name}: {one.data_seeds} data seeds, but the plan has {most}")
            if one.repeats and one.repeats not in {other.name for other in self.experiments}:
                raise ValueError(f"{one.name}: unknown experiment {one.repeats}")
            for name in () if one.finished else one.rows:
                if name not in encoders:
                    raise ValueError(f"{one.name}: unknown encoder {name}")
        return self

    def encoder(self, name: str) -> Encoder:
        """The encoder of that name."""
        return next(encoder for encoder in self.encoders if encoder.name == name)

    def encoders_of(self, experiment: Experiment) -> list[Encoder]:
        """The encoders that an experiment trains or scores, each once."""
        return [self.encoder(name) for name in experiment.rows if not experiment.finished]

    def chosen(self, names: Sequence[str]) -> list[Experiment]:
        """The experiments with these names or of these papers; all without a name. Raises InputError."""
        allowed = [
            *(one.name for one in self.experiments),
            *sorted({one.paper for one in self.experiments if one.paper}),
        ]
        for name in names:
            if name not in allowed:
                hint = did_you_mean(name, allowed) or "see --list"
                raise InputError(name, "unknown experiment or paper", hint=hint)
        return [one for one in self.experiments if not names or one.name in names or one.paper in names]


def read_plan(path: Path) -> Plan:
    """The plan of a YAML file, or of all files of a folder merged. Raises InputError with the place of an error."""
    if not path.exists():
        raise InputError(path, "no such plan", hint="run the command in the folder of a clone")
    tree = dict[str, Any]()
    for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
        tree = merged(tree, read_yaml(file), str(file))
    try:
        return Plan.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}:{place}" if place else path, first["msg"].removeprefix("Value error, ")) from error


def merged(first: Mapping[str, Any], second: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Two trees as one: mappings joined, lists concatenated. Raises InputError for a value that both define."""
    found = dict(first)
    for key, value in second.items():
        before = found.get(key)
        if key not in found:
            found[key] = value
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            found[key] = merged(before, value, f"{place}:{key}")
        elif isinstance(before, list) and isinstance(value, list):
            found[key] = [*before, *value]
        else:
            raise InputError(f"{place}:{key}", "another file of the folder defines it, too")
    return found

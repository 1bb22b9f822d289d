"""The plan of experiments, read from YAML files: dataset variants, encoders, tables and the effects
to test. The module reads files and writes none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from sts_dino.hub.contract.measured import Split
from sts_dino.hub.contract.recipe import Name, Positive, Strict
from sts_dino.hub.contract.recipe_file import read_yaml
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.papers import Column, Table, find_paper

AnyPlan = TypeVar("AnyPlan", bound=Strict)

# Prefixes of the settings that leave the generated texts unchanged
FINISHING = ("verification=", "verification.", "postprocess.", "decoding.samples=")


class Source(Strict):
    """The source sentences of datasets: a file has them, or the language model generates them.

    ``path``: the file, as ``generation`` reads it or .gz, relative to the data folder or to the
    repository; None: the language model generates the sentences. ``pairs``: the file has the STS
    Benchmark's layout, and both sentences of a row are drawn. ``checked``: draw no sentence of
    STS12-16, the STS Benchmark or SICK; else none of the STS Benchmark's scored splits. ``texts``:
    the number of sentences; None: the plan's number.
    """

    path: str | None = None
    pairs: bool = False
    checked: bool = True
    texts: Positive | None = None
    license: str
    dataset_license: str  # of a dataset of these sentences and the model's texts
    description: str


class Seeds(Strict):
    """Seeds of a plan: each data seed draws its own source sentences and has its own training
    seeds.
    """

    data: Annotated[tuple[int, ...], Field(min_length=1)]
    trainings: Positive  # per data seed

    def list_pairs(self) -> list[tuple[int, int]]:
        """List the (data seed, training seed) pairs of all trainings; no training seed recurs."""
        pairs: list[tuple[int, int]] = []
        for data_seed in self.data:
            for _ in range(self.trainings):
                pairs.append((data_seed, len(pairs) + 1))
        return pairs


class Variant(Strict):
    """A dataset variant: a recipe with settings, or the texts of another variant filtered and
    scored again.

    ``says``: the variant's description in tables. ``set``: settings, written as for ``--set``.
    ``extends``: the variant whose recipe, settings and source this one inherits. ``same_texts``:
    the variant whose texts this one filters and scores again, under its own settings; nothing is
    generated. ``source``: the name of a source; None: the inherited or the plan's default source.
    """

    name: Name
    says: str
    recipe: Path | None = None
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()
    extends: str | None = None
    same_texts: str | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        """Require exactly one of recipe, extends and same_texts.

        With ``same_texts``, also refuse a source and a setting that changes the generated texts.
        Raises ValueError.
        """
        origins = [self.recipe, self.extends, self.same_texts]
        if len(origins) - origins.count(None) != 1:
            raise ValueError(f"{self.name}: give exactly one of recipe, extends and same_texts")
        if self.same_texts is None:
            return self
        if self.source:
            raise ValueError(f"{self.name}: its source sentences are those of {self.same_texts}")
        for setting in self.settings:
            if not setting.startswith(FINISHING):
                problem = f"{setting} changes the generated texts: use extends, not same_texts"
                raise ValueError(f"{self.name}: {problem}")
        return self

    @property
    def base_names(self) -> Iterator[str]:
        """The names of the variants that this one depends on."""
        yield from (name for name in (self.extends, self.same_texts) if name)


@dataclass(frozen=True)
class Texts:
    """The generation of a variant: recipe, all settings, and the name of its source."""

    recipe: Path
    settings: tuple[str, ...]
    source: str


class Datasets(Strict):
    """Sources, seeds and variants of a plan.

    ``texts``: the number of source sentences of each dataset whose source states none.
    """

    sources: Mapping[str, Source]
    default_source: str
    texts: Positive
    seeds: Seeds
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_variants(self) -> Self:
        """Require unique names, known bases and sources, and no circle of bases.

        A variant may stand before its base. Raises ValueError.
        """
        names = [variant.name for variant in self.variants]
        require_unique(names, "variants")
        for variant in self.variants:
            for name in variant.base_names:
                if name not in names:
                    raise ValueError(f"{variant.name}: unknown variant {name}")
        self._require_source("default_source", self.default_source)
        for variant in self.variants:
            if variant.source:
                self._require_source(variant.name, variant.source)
        self._require_no_circle()
        return self

    def _require_source(self, place: str, name: str) -> None:
        """Raise ValueError, naming ``place``, for a source that the plan does not have."""
        if name not in self.sources:
            allowed = ", ".join(self.sources)
            raise ValueError(f"{place}: unknown source {name}; allowed: {allowed}")

    def _require_no_circle(self) -> None:
        """Raise ValueError for variants that depend on each other in a circle."""
        bases = {variant.name: set(variant.base_names) for variant in self.variants}
        try:
            TopologicalSorter(bases).prepare()
        except CycleError as error:
            circle = " - ".join(error.args[1])
            raise ValueError(f"variants depend on each other: {circle}") from None

    def get_variant(self, name: str) -> Variant:
        """Return the variant ``name``, which the plan has."""
        return next(variant for variant in self.variants if variant.name == name)

    def get_generation(self, name: str) -> Texts:
        """Return how the texts of the variant ``name`` are generated; the plan has the variant.

        A variant without a recipe adds its settings to those of the variant that it extends or
        whose texts it has, and takes that variant's source unless it names one.
        """
        variant = self.get_variant(name)
        if variant.recipe is not None:
            return Texts(variant.recipe, variant.settings, variant.source or self.default_source)
        base = self.get_generation(next(variant.base_names))
        settings = (*base.settings, *variant.settings)
        return Texts(base.recipe, settings, variant.source or base.source)


def require_unique(names: Sequence[str], kind: str) -> None:
    """Raise ValueError for a name that occurs twice; ``kind`` is their plural, e.g. variants."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {kind} are called {name}")


class Encoder(Strict):
    """An encoder in a table: trained by a recipe, untrained, or any encoder by name.

    ``says``: the encoder's description in tables. ``recipe``: a model recipe. ``set``: settings of
    the recipe. ``dataset``: the variant that the recipe's datasets read, whatever path they name;
    None: they are read as the recipe names them. ``trained``: false scores the base of the recipe.
    ``baseline``: simcse trains by unsupervised SimCSE on the source sentences of ``dataset``;
    shuffled trains on its pairs with permuted scores; None trains on its pairs. ``model``: what
    ``sts-dino score --model`` takes, instead of a recipe.
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
    def _check_origin(self) -> Self:
        """Require a recipe or a model, and the keys that other keys need. Raises ValueError.

        The keys dataset, set and baseline need a recipe; baseline needs a dataset and a training.
        """
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

    ``says``: the effect in words. ``paper``: the paper's difference; None: the difference of the
    two rows as the paper prints them.
    """

    says: str
    better: str
    than: str
    column: str = "Avg."
    paper: float | None = None


class Experiment(Strict):
    """A table or figure of a paper, or a table of ours (``paper`` None).

    rows: encoder → the paper's row; None: the paper has no such row.
    columns: the paper's columns to measure; None: all columns that have tasks.
    own_columns: further columns, by name.
    data_seeds: how many of the plan's data seeds are used.
    training_seeds: the number of trainings for each data seed; None: the plan's number.
    repeats: the experiment whose effects this one measures again with a larger language model.
    judges: name → encoder that measures the label agreement of the rows' datasets.
    parameters: row → parameters of its language model in millions, for a plot by size.
    finished: the git revision that can repeat the kept result; None: this code can.
    labels: row of a kept result → its text in the table.
    beside: row of a kept result → the paper's row, where rows are not encoders.
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
    def _check_rows(self) -> Self:
        if not (self.finished or self.rows):
            raise ValueError(f"{self.name}: has no rows")
        return self

    @property
    def printed(self) -> Table | None:
        """The paper's table; None without one. Raises InputError for an unknown paper or table."""
        if not self.paper or self.table is None:
            return None
        return find_paper(self.paper).find_table(self.table)

    def list_columns(self) -> dict[str, OwnColumn]:
        """Return the tasks and the split of each column to measure, by the column's name.

        The paper's columns come first, then ``own_columns``. An average has the tasks of the
        columns that it averages. Raises InputError for an unknown paper or table, for a column that
        the paper's table does not have or that has no task, and for an average over several
        metrics. Also raises InputError for an effect in another column.
        """
        # Choose the columns
        table = self.printed
        printed = {column.name: column for column in table.columns} if table else {}
        names = self.columns
        if names is None:
            names = tuple(name for name, column in printed.items() if column.reason is None)

        # List the tasks of each
        columns: dict[str, OwnColumn] = {}
        for name in names:
            place = f"{self.name}: column {name!r}"
            if name not in printed:
                raise InputError(place, "is not in the table", allowed=list(printed))
            tasks = tuple(_list_tasks(printed[name], printed))
            if not tasks:
                raise InputError(place, f"has no task: {printed[name].reason}")
            columns[name] = OwnColumn(tasks=tasks)
        columns |= self.own_columns

        # An effect in another column would be left out silently
        for effect in self.effects:
            if effect.column not in columns:
                place = f"{self.name}: column {effect.column!r} of an effect"
                raise InputError(place, "is not measured", allowed=list(columns))
        return columns


def _list_tasks(column: Column, columns: Mapping[str, Column]) -> Iterator[str]:
    """Yield the tasks of a column; for an average, those of the columns that it averages.

    ``columns``: all columns of the table by name. Raises InputError for an average in which several
    metrics of a task count as one.
    """
    if column.task is not None:
        yield column.task
    for part in column.mean_of:
        if not isinstance(part, str):
            place = f"column {column.name!r}"
            raise InputError(place, "counts several metrics as one", hint="use own_columns")
        yield from _list_tasks(columns[part], columns)


class Plan(Strict):
    """All experiments, with the dataset variants and encoders that they share."""

    datasets: Datasets
    encoders: tuple[Encoder, ...]
    experiments: Annotated[tuple[Experiment, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Require distinct names, and references to variants, encoders and seeds that exist.

        Raises ValueError.
        """
        require_unique([encoder.name for encoder in self.encoders], "encoders")
        require_unique([experiment.name for experiment in self.experiments], "experiments")
        variants = {variant.name for variant in self.datasets.variants}
        for encoder in self.encoders:
            if encoder.dataset is not None and encoder.dataset not in variants:
                raise ValueError(f"{encoder.name}: unknown variant {encoder.dataset}")
        for experiment in self.experiments:
            self._check_experiment(experiment)
        return self

    def _check_experiment(self, experiment: Experiment) -> None:
        """Raise ValueError for more data seeds than the plan has, and for an unknown name.

        The rows of a finished experiment are not checked.
        """
        name = experiment.name
        data_seeds = len(self.datasets.seeds.data)
        if experiment.data_seeds > data_seeds:
            problem = f"{experiment.data_seeds} data seeds, but the plan has {data_seeds}"
            raise ValueError(f"{name}: {problem}")
        experiments = {other.name for other in self.experiments}
        if experiment.repeats and experiment.repeats not in experiments:
            raise ValueError(f"{name}: unknown experiment {experiment.repeats}")
        # The rows of a finished experiment are those of its kept result
        if experiment.finished:
            return
        encoders = {encoder.name for encoder in self.encoders}
        for row in experiment.rows:
            if row not in encoders:
                raise ValueError(f"{name}: unknown encoder {row}")
        for row in experiment.parameters:
            if row not in experiment.rows:
                raise ValueError(f"{name}: parameters of the unknown row {row}")
        for effect in experiment.effects:
            for row in (effect.better, effect.than):
                if row not in experiment.rows:
                    raise ValueError(f"{name}: an effect compares the unknown row {row}")

    def get_encoder(self, name: str) -> Encoder:
        """Return the encoder ``name``, which the plan has."""
        return next(encoder for encoder in self.encoders if encoder.name == name)

    def list_encoders(self, experiment: Experiment) -> list[Encoder]:
        """List the encoders of an experiment's rows, in their order; the experiment can be run."""
        return [self.get_encoder(name) for name in experiment.rows]

    def choose_experiments(self, names: Sequence[str]) -> list[Experiment]:
        """Return the experiments with these names or of these papers, in the plan's order.

        Without a name all experiments are returned. Raises InputError for a name that is neither an
        experiment nor a paper.
        """
        papers = sorted({experiment.paper for experiment in self.experiments if experiment.paper})
        allowed = [*(experiment.name for experiment in self.experiments), *papers]
        for name in names:
            if name not in allowed:
                hint = suggest_choice(name, allowed) or "see --list"
                raise InputError(name, "unknown experiment or paper", hint=hint)
        if not names:
            return list(self.experiments)
        return [
            experiment
            for experiment in self.experiments
            if experiment.name in names or experiment.paper in names
        ]


def read_plan(path: Path) -> Plan:
    """Read the plan of a YAML file, or of all *.yaml files of a folder merged.

    Raises InputError for a missing path, for a folder without such files, for a malformed file, for
    a value that two files define, and for a plan that ``Plan`` refuses.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not (path.exists() and files):
        raise InputError(
            path,
            "no such plan",
            allowed="a YAML file, or a folder of *.yaml files",
            hint="run the command in the folder of a clone",
        )
    tree: dict[str, Any] = {}
    for file in files:
        tree = merge_trees(tree, read_yaml(file), str(file))
    return validate_plan(Plan, tree, path)


def validate_plan(model: type[AnyPlan], tree: Mapping[str, Any], path: Path) -> AnyPlan:
    """Return the tree as a plan. Raises InputError, naming ``path`` and the key, for an error."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        keys = ".".join(str(key) for key in first["loc"])
        place = f"{path}:{keys}" if keys else path
        raise InputError(place, first["msg"].removeprefix("Value error, ")) from error


def merge_trees(first: Mapping[str, Any], second: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Merge two trees: mappings joined, lists concatenated.

    ``place``: the file of ``second``, with the keys that lead to it, for the error. Raises
    InputError for a key of both trees whose values are neither two mappings nor two lists.
    """
    tree = dict(first)
    for key, value in second.items():
        present = tree.get(key)
        if key not in tree:
            tree[key] = value
        elif isinstance(present, Mapping) and isinstance(value, Mapping):
            tree[key] = merge_trees(present, value, f"{place}:{key}")
        elif isinstance(present, list) and isinstance(value, list):
            tree[key] = [*present, *value]
        else:
            raise InputError(f"{place}:{key}", "another file of the folder defines it, too")
    return tree

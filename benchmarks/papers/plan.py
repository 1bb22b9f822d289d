"""The papers' experiments, read from YAML files: datasets, encoders, tables and the effects they show. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from benchmarks.better_pairs.arms import RUN_OF, Search, checked_plan, read_plan
from benchmarks.papers.made import names_in
from hub.contract.measured import Split
from hub.contract.recipe_file import read_yaml
from hub.contract.sections import Name, Positive, Strict
from hub.errors import InputError, did_you_mean
from hub.papers import Column, Table, find_paper

ENCODER_OF = re.compile(r"<encoder:([a-z0-9.-]+)>")  # in the words of a measurement: an encoder's folder


class Encoder(Strict):
    """An encoder of a table's row: trained by a recipe on an arm's pairs, not trained at all, or any that can be named.

    ``recipe``: its ``datasets`` read the arm ``pairs``, whatever path they name (None: they are as they stand).
    ``trained``: false takes its base as it is. ``copies``: it reads the first texts of ``pairs`` alone, each as its own
    positive (unsupervised SimCSE). ``example_sets``: each training reads the rows of the next of so many sets of
    few-shot examples, so the mean over trainings is that over sets. ``model``: in place of a recipe, what ``eval.run
    --model`` takes. ``grid``: a grid whose cells' scores are pooled like those of several seeds, ``cells``: the values
    of factors that these cells have; cells of rows that are compared stand in one order.
    """

    name: Name
    says: str
    recipe: Path | None = None
    model: str | None = None
    pairs: str | None = None
    trained: bool = True
    copies: bool = False
    grid: str | None = None
    cells: Mapping[str, str] = Field(default_factory=dict)
    example_sets: Positive | None = None
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if [self.recipe, self.model, self.grid].count(None) != 2:
            raise ValueError(f"{self.name}: give exactly one of recipe, model and grid")
        if self.cells and not self.grid:
            raise ValueError(f"{self.name}: cells are of a grid")
        if self.recipe is None and (self.pairs or self.settings or self.copies):
            raise ValueError(
                f"{self.name}: a model or a grid is scored as it is; pairs, set and copies belong to a recipe"
            )
        if self.copies and not (self.pairs and self.trained):
            raise ValueError(f"{self.name}: copies are of the first texts of pairs, and train")
        if self.example_sets and (self.copies or not self.pairs):
            raise ValueError(f"{self.name}: example_sets are of pairs")
        return self


class Grid(Strict):
    """Encoders of one recipe, one for every combination of settings: a grid of hyperparameters.

    ``crossed``: factor → its values, each a name and its settings. A cell is called ``NAME-FACTORvalue-...``; a row
    that is a ``grid`` names cells by the factors that are held, e.g. ``cells: {anchors: 1}``.
    """

    name: Name
    recipe: Path
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()
    crossed: Annotated[Mapping[str, Mapping[str, tuple[str, ...]]], Field(min_length=1)]

    def cells(self, held: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, tuple[str, ...]]]:
        """Name and settings of the cells with these values, the last factor varying fastest. Raises ValueError."""
        for factor, value in held.items():
            if value not in self.crossed.get(factor, {}):
                raise ValueError(f"{self.name}: no cell has {factor} {value}")
        found = []
        for chosen in product(*(values for values in self.crossed.values())):
            cell = dict(zip(self.crossed, chosen, strict=True))
            if held.items() <= cell.items():
                more = [word for factor, value in cell.items() for word in self.crossed[factor][value]]
                name = "-".join([self.name, *(f"{factor}{value}" for factor, value in cell.items())])
                found.append((name, (*self.settings, *more)))
        return found

    def encoders(self) -> list[Encoder]:
        """The cells as encoders."""
        of = {"recipe": self.recipe}
        return [
            Encoder.model_validate({"name": name, "says": name, "set": words, **of}) for name, words in self.cells()
        ]


class OwnColumn(Strict):
    """A column that no paper prints: the mean of tasks on a split."""

    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split = "test"


class Effect(Strict):
    """What a paper shows: the row ``better`` stands above ``than`` in a column; rows are named as in the result.

    ``paper``: the paper's difference, where it cannot be read from two printed rows.
    """

    says: str
    better: str
    than: str
    column: str = "Avg."
    paper: float | None = None


class FullRecipe(Strict):
    """A recipe at the paper's size, and what its GPU-hours are estimated from: sequences that pass the model once.

    ``sequences``: rows of all batches, counter-prompts' and repeated attempts included (training: of all epochs);
    ``tokens``: of one, prompt included; ``parameters``: of the model. ``why``: how the two were counted.
    """

    recipe: Path
    parameters: Annotated[float, Field(gt=0)]
    sequences: Annotated[float, Field(gt=0)]
    tokens: Annotated[float, Field(gt=0)]
    why: str


class FullSize(Strict):
    """The same at the paper's size: recipes in the order they run. ``said``: the cost that the paper states."""

    recipes: tuple[FullRecipe, ...] = ()
    said: str = "the paper states no cost"
    lacks: tuple[str, ...] = ()  # rows of the table that no recipe stands for, and why


class Experiment(Strict):
    """A table or figure of a paper. ``rows``: the encoder's name → the paper's row (None: it has none).

    ``data_seeds``: how many of the stage's write its datasets; ``training_seeds``: of each encoder (None: the stage's).
    ``columns``: those of the paper's table that are measured (left out: all with tasks), then ``own_columns``.
    ``measure``: in place of encoders, the words of a module that writes a result (``benchmarks.papers.result``):
    ``<run:ARM>`` is an arm's dataset, ``<encoder:NAME>`` an encoder's folder, ``<data>`` the data folder, ``<out>`` the
    file to write; ``beside``: its row → the paper's row.
    """

    name: Name
    paper: str
    table: int | None = None
    figure: int | None = None
    title: str
    rows: Mapping[str, str | None] = Field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    own_columns: Mapping[str, OwnColumn] = Field(default_factory=dict)
    measure: tuple[str, ...] = ()
    beside: Mapping[str, str] = Field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    data_seeds: Positive = 1
    training_seeds: Positive | None = None
    reading: str = ""  # what the numbers say, in sentences
    deviations: tuple[str, ...] = ()
    full_size: FullSize = FullSize()

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.rows) == bool(self.measure):
            raise ValueError(f"{self.name}: give exactly one of rows and measure")
        return self

    @property
    def arms_named(self) -> list[str]:
        """The arms whose datasets ``measure`` reads."""
        return [name for word in self.measure for name in RUN_OF.findall(word)]

    @property
    def encoders_named(self) -> list[str]:
        """The encoders whose folders ``measure`` reads."""
        return [name for word in self.measure for name in ENCODER_OF.findall(word)]

    @property
    def printed(self) -> Table | None:
        """The paper's table, where its numbers are kept. Raises InputError."""
        return find_paper(self.paper).table(self.table) if self.table is not None else None

    def measured_columns(self) -> dict[str, OwnColumn]:
        """Column → its tasks and split; an average's are those of its columns. Raises InputError for an unknown one."""
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
            raise InputError(f"column {column.name!r}", "counts several metrics as one", hint="give it as own column")
        yield from _tasks(there[part], there)


class Papers(Strict):
    """All experiments, with the datasets (arms of a search) and encoders that they share.

    ``made``: files and folders that a module writes once, e.g. people's pairs in the layout of examples: name → its
    words, with ``<data>`` and ``<out>``. ``<made:NAME>`` in a setting or measurement is its place.
    """

    pairs: Search
    grids: tuple[Grid, ...] = ()
    made: Mapping[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    encoders: tuple[Encoder, ...]
    experiments: Annotated[tuple[Experiment, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        arms = {arm.name for arm in self.pairs.arms}
        encoders = [encoder.name for encoder in self.every_encoder()]
        for names in (encoders, [one.name for one in self.experiments]):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"two are called {name}")
        for encoder in self.every_encoder():
            if encoder.pairs is not None and encoder.pairs not in arms:
                raise ValueError(f"{encoder.name}: no arm is called {encoder.pairs}")
            self.pooled(encoder)
        most = min(len(stage.data_seeds) for stage in self.pairs.stages.values())
        for one in self.experiments:
            if one.data_seeds > most:
                raise ValueError(f"{one.name}: {one.data_seeds} data seeds, but the stage has {most}: give it more")
            for name in (*one.rows, *one.encoders_named):
                if name not in encoders:
                    raise ValueError(f"{one.name}: no encoder is called {name}")
            for name in one.arms_named:
                if name not in arms:
                    raise ValueError(f"{one.name}: no arm is called {name}")
        words = [word for one in self.experiments for word in one.measure]
        words += [word for made in self.made.values() for word in made]
        words += [setting for arm in self.pairs.arms for setting in arm.settings]
        words += [setting for encoder in self.every_encoder() for setting in encoder.settings]
        for name in names_in(words):
            if name not in self.made:
                raise ValueError(f"nothing that is made is called {name}")
        return self

    def every_encoder(self) -> list[Encoder]:
        """The encoders, cells of grids included."""
        return [*self.encoders, *(cell for grid in self.grids for cell in grid.encoders())]

    def encoder(self, name: str) -> Encoder:
        """The encoder of that name."""
        return next(encoder for encoder in self.every_encoder() if encoder.name == name)

    def pooled(self, encoder: Encoder) -> list[str]:
        """The names of the encoders that a row stands for: its own, or those of its cells. Raises ValueError."""
        if encoder.grid is None:
            return [encoder.name]
        grid = next((one for one in self.grids if one.name == encoder.grid), None)
        if grid is None:
            raise ValueError(f"{encoder.name}: no grid is called {encoder.grid}")
        return [name for name, _ in grid.cells(encoder.cells)]

    def encoders_of(self, experiment: Experiment) -> list[Encoder]:
        """The encoders that an experiment trains or scores, each once; a grid stands for its cells."""
        named = [self.encoder(name) for name in (*experiment.rows, *experiment.encoders_named)]
        return [self.encoder(name) for name in dict.fromkeys(one for row in named for one in self.pooled(row))]

    def chosen(self, names: Sequence[str]) -> list[Experiment]:
        """The experiments of these names, papers' keys included; all without one. Raises InputError."""
        allowed = [*(one.name for one in self.experiments), *sorted({one.paper for one in self.experiments})]
        for name in names:
            if name not in allowed:
                hint = did_you_mean(name, allowed) or "see --list"
                raise InputError(name, "is no experiment and no paper", hint=hint)
        return [one for one in self.experiments if not names or one.name in names or one.paper in names]


def read_papers(path: Path) -> Papers:
    """The experiments of a file, or of a folder's files as if they were one. Raises InputError naming the place."""
    if not path.is_dir():
        return read_plan(path, Papers)
    tree = dict[str, Any]()
    for file in sorted(path.glob("*.yaml")):
        tree = merged(tree, read_yaml(file), str(file))
    return checked_plan(path, tree, Papers)


def merged(first: Mapping[str, Any], second: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Two trees as one: mappings joined, lists one after the other. Raises InputError for a value that both give."""
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
            raise InputError(f"{place}:{key}", "is given by another file of the folder, too")
    return found

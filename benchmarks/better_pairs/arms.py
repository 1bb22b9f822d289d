"""The arms of the search, read from a YAML file: the recipe of each, and what it shares with others. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from hub.contract.recipe_file import read_yaml
from hub.contract.sections import Name, Positive, Strict
from hub.errors import InputError, did_you_mean

Plan = TypeVar("Plan", bound=BaseModel)
GOLD = "<gold>"  # in a setting: the file of people's pairs
RUN_OF = re.compile(r"<run:([a-z0-9.-]+)>")  # in a setting: the run directory of another arm
FINISHING = ("verification=", "verification.", "postprocess.", "decoding.samples=")  # settings that write no text


class FirstTexts(Strict):
    """Where first texts are drawn from: a file of sentences, as ``generation`` reads it (.gz, too), or the model.

    ``path``: below the data folder, or in the repository; None: the language model writes them, too. ``pairs``: the
    file has the STS Benchmark's layout, both of its sentences are drawn. ``checked``: sentences of STS12-16, the STS
    Benchmark and SICK are passed over; else those of the STS Benchmark's scored parts alone. ``texts``: so many, in
    place of the stage's number; fewer of the same file are the first of more.
    """

    path: str | None = None
    columns: tuple[str, ...] = ()
    pairs: bool = False
    checked: bool = True
    texts: Positive | None = None
    license: str
    dataset_license: str  # what a dataset of these first texts and the model's texts has
    description: str


class Stage(Strict):
    """How every arm of a stage is measured. Each data seed draws first texts, and has training seeds, of its own."""

    texts: Positive  # first texts
    pairs: Annotated[int, Field(ge=2)]  # that every student is trained on
    data_seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    training_seeds: Positive  # of each data seed
    split: Literal["validation", "test"]
    first_texts: str | None = None  # of arms that name none; left out: the search's default
    student: Path = Path("recipes/value/value-student.yaml")
    student_set: tuple[str, ...] = ()
    shuffled: bool = True  # whether the control of shuffled scores is trained, too


class Arm(Strict):
    """One arm: a recipe with settings, or what is made anew of another arm's texts.

    Settings are written as for ``--set``. ``extends``: recipe, settings, first texts and student are that arm's, these
    come after them. ``same_texts``: nothing is written; the rows are finished again from that arm's texts under these
    settings (none: they are the same rows, for another student). ``as_many_as``: of its texts, so many of each label
    are drawn at random as that arm keeps: the control of a filter. ``student``: settings of the student's recipe.
    ``against``: the arm whose pairs it is compared with, beside the controls; else the one that it builds on.
    """

    name: Name
    group: str
    varies: str
    recipe: Path | None = None
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()
    extends: str | None = None
    same_texts: str | None = None
    as_many_as: str | None = None
    first_texts: str | None = None
    student: tuple[str, ...] = ()
    against: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        given = [key for key in ("recipe", "extends", "same_texts") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"{self.name}: give exactly one of recipe, extends and same_texts")
        if self.as_many_as and (not self.same_texts or self.settings):
            raise ValueError(f"{self.name}: as_many_as draws from the rows of same_texts, without settings")
        if self.same_texts:
            if self.first_texts:
                raise ValueError(f"{self.name}: its first texts are those of {self.same_texts}")
            for setting in self.settings:
                if not setting.startswith(FINISHING):
                    raise ValueError(f"{self.name}: {setting} decides what is written, not what is kept: use extends")
        return self

    @property
    def reference(self) -> str | None:
        """The arm that it is compared with."""
        return self.against or self.as_many_as or self.same_texts or self.extends

    @property
    def named(self) -> Iterator[str]:
        """Every arm that it names."""
        yield from (name for name in (self.extends, self.same_texts, self.as_many_as, self.against) if name)
        yield from (name for setting in self.settings for name in RUN_OF.findall(setting))


@dataclass(frozen=True)
class Texts:
    """The generation of an arm, whole: recipe, settings and the name of its first texts."""

    recipe: Path
    settings: tuple[str, ...]
    first_texts: str


class Search(Strict):
    """The whole file: where first texts come from, the stages, and the arms in the order of the tables."""

    first_texts: Mapping[str, FirstTexts]
    default_first_texts: str
    stages: Mapping[str, Stage]
    arms: Annotated[tuple[Arm, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        names = [arm.name for arm in self.arms]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two arms are called {name}")
            if name in {arm.group for arm in self.arms}:
                raise ValueError(f"{name} is an arm and a group")
        for arm in self.arms:
            for name in arm.named:
                if name not in names:
                    raise ValueError(f"{arm.name}: no arm is called {name}")
        places = {self.default_first_texts: "default_first_texts"}
        places |= {arm.first_texts: arm.name for arm in self.arms if arm.first_texts}
        places |= {stage.first_texts: name for name, stage in self.stages.items() if stage.first_texts}
        for name, place in places.items():
            if name not in self.first_texts:
                raise ValueError(f"{place}: no first texts are called {name}; there are {', '.join(self.first_texts)}")
        try:
            list(TopologicalSorter({arm.name: set(arm.named) for arm in self.arms}).static_order())
        except CycleError as error:
            raise ValueError(f"arms wait for each other: {' - '.join(error.args[1])}") from None
        return self

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def texts(self, name: str) -> Texts:
        """What writes the texts of an arm: its own, or those of the arm that it shares them with."""
        arm = self.arm(name)
        if arm.same_texts:
            return self.texts(arm.same_texts)
        if arm.extends is None:
            assert arm.recipe is not None
            return Texts(arm.recipe, arm.settings, arm.first_texts or self.default_first_texts)
        before = self.texts(arm.extends)
        return Texts(before.recipe, (*before.settings, *arm.settings), arm.first_texts or before.first_texts)

    def student(self, name: str) -> tuple[str, ...]:
        """An arm's settings of the student, after those of the arm that it builds on."""
        arm = self.arm(name)
        base = arm.extends or arm.same_texts
        return (*(self.student(base) if base else ()), *arm.student)

    def chosen(self, words: Sequence[str]) -> list[Arm]:
        """The arms of these names and groups, or all; each after those that it names. Raises InputError."""
        groups = {arm.group for arm in self.arms}
        allowed = [*(arm.name for arm in self.arms), *sorted(groups)]
        for word in words:
            if word not in allowed:
                raise InputError(word, "is no arm and no group", hint=did_you_mean(word, allowed) or "see --list")
        order = list(TopologicalSorter({arm.name: list(arm.named) for arm in self.arms}).static_order())
        wanted = [arm for arm in self.arms if not words or arm.name in words or arm.group in words]
        return sorted(wanted, key=lambda arm: order.index(arm.name))


def read_search(path: Path) -> Search:
    """The search of a file. Raises InputError naming the place in it."""
    return read_plan(path, Search)


def read_plan(path: Path, form: type[Plan]) -> Plan:
    """A YAML file of experiments, checked by its model. Raises InputError naming the place in it."""
    return checked_plan(path, read_yaml(path), form)


def checked_plan(path: Path, tree: Mapping[str, Any], form: type[Plan]) -> Plan:
    """Experiments that were read from ``path``, checked by their model. Raises InputError naming the place in it."""
    try:
        return form.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}:{place}" if place else path, first["msg"].removeprefix("Value error, ")) from error

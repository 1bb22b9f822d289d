"""Units of a run: shards and groups with their file names, tasks and their results, and what executes them.

A shard is the unit of generation, a group of neighbouring shards that of finishing. Names follow from the recipe alone.
A task's result is a function of the task, the recipe and the files it reads: it may be done again, in any order and
place, without changing a byte.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, Field

from generation.inputs.prompts import Prompts, TokenCounter
from generation.inputs.sources import SourceSentence
from generation.rows.filters import filtered
from hub.contract.recipe import DatasetRecipe, Variant, config_features, config_name
from hub.contract.run_dir import File, described
from hub.contract.shards import ROWS_PER_FILE, shard_bytes, shard_path

Row = dict[str, Any]
Tick = Callable[[int], object]  # gets every number of texts that are accepted or given up
Read = Callable[[str], Path | bytes]  # a file of the run directory: its path, or its content


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of work: the source sentences of one of ``blocks`` blocks, in one variant of the prompt."""

    variant: Variant
    block: int
    blocks: int


@dataclass(frozen=True)
class Group:
    """Neighbouring shards of one shot count whose finished rows share files; ``index`` counts from 0."""

    shots: int | None
    index: int
    total: int
    shards: tuple[Shard, ...]

    def path(self, config: str, split: str) -> str:
        """The group's file of a finished config."""
        return shard_path(config_name(config, self.shots), split, self.index, self.total)


def shards(recipe: DatasetRecipe, blocks: int) -> list[Shard]:
    """All shards in the order of work: every block of a variant, then the next variant."""
    return [Shard(variant, block, blocks) for variant in recipe.variants for block in range(blocks)]


def paths(recipe: DatasetRecipe, shard: Shard) -> tuple[str, str]:
    """The files of a shard's raw and rejected rows. The shards of a shot count's example sets follow each other."""
    sets = sum(variant.shots == shard.variant.shots for variant in recipe.variants)
    index, total = shard.variant.example_set * shard.blocks + shard.block, sets * shard.blocks
    raw, rejected = (config_name(base, shard.variant.shots) for base in ("raw", "rejected"))
    late = int(recipe.dataset_schema.distinct)  # one more file: texts that another shard holds already
    return shard_path(raw, "train", index, total), shard_path(rejected, "train", index, total + late)


def groups(recipe: DatasetRecipe, blocks: int) -> Iterator[Group]:
    """The groups of a run, shot count by shot count, one in memory at a time; each shard belongs to one."""
    size = shards_per_group(recipe)
    for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
        variants = [variant for variant in recipe.variants if variant.shots == shots]
        count = len(variants) * blocks
        for index, start in enumerate(range(0, count, size)):
            numbers = range(start, min(start + size, count))
            members = tuple(Shard(variants[number // blocks], number % blocks, blocks) for number in numbers)
            yield Group(shots, index, -(-count // size), members)


def shards_per_group(recipe: DatasetRecipe) -> int:
    """The largest number that gives a finished file at most ``ROWS_PER_FILE`` rows; at least one."""
    kept = len(recipe.written_labels) * min(recipe.decoding.max_attempts, recipe.postprocess.max_per_label)
    sampled = recipe.postprocess.sampled_negatives if recipe.dataset_schema.sampled_negatives else 0
    return max(1, ROWS_PER_FILE // (recipe.shard_size * (kept + sampled)))


def sources_per_file(recipe: DatasetRecipe) -> int:
    """Rows of a file of the config ``sources``, which has at most a thousand files."""
    return max(ROWS_PER_FILE, (recipe.source.limit or 0) // 1_000)


def folders(recipe: DatasetRecipe, source_sentences: int) -> dict[str, int]:
    """Config → files of its folder when the run is complete, at most: a file without rows is not written."""
    blocks, per_group = -(-source_sentences // recipe.shard_size), shards_per_group(recipe)
    found = dict.fromkeys(recipe.configs, -(-source_sentences // sources_per_file(recipe)))  # that of ``sources`` stays
    for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
        count = blocks * sum(variant.shots == shots for variant in recipe.variants)
        late = int(recipe.dataset_schema.distinct)
        finished = 2 * -(-count // per_group)  # train and validation
        sizes = {"raw": count, "rejected": count + late, **dict.fromkeys(recipe.dataset_schema.finished, finished)}
        found |= {name: size for base, size in sizes.items() if (name := config_name(base, shots)) in found}
    return found


@dataclass(frozen=True)
class WriteSourceSentences:
    """Generate the source sentences of some numbers."""

    numbers: range

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        return f"source-sentences-{self.numbers.start}-{self.numbers.stop}"


@dataclass(frozen=True)
class WriteShard:
    """Generate the texts of a shard."""

    shard: Shard
    firsts: tuple[SourceSentence, ...]

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        shots, example_set = self.shard.variant.shots, self.shard.variant.example_set
        return f"shard-{shots or 0}-{example_set}-{self.shard.block:06d}-of-{self.shard.blocks:06d}"


@dataclass(frozen=True)
class FinishGroup:
    """Finish the raw rows of a group. ``empty``: files among its inputs that were not written, for want of rows."""

    group: Group
    empty: frozenset[str]

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        return f"group-{self.group.shots or 0}-{self.group.index:06d}-of-{self.group.total:06d}"


Task = WriteSourceSentences | WriteShard | FinishGroup


class TaskResult(BaseModel, frozen=True, extra="forbid"):
    """The result of a task. Without ``task`` and ``contents`` it is a line of JSON in a journal or a store.

    ``contents``: content of files that are neither in the run directory nor in a store. ``empty``: paths without rows.
    ``facts``: JSON that the task's kind defines. ``rows``: accepted texts. ``raw``: digest of a group's raw files.
    """

    key: str
    files: tuple[File, ...] = ()
    empty: tuple[str, ...] = ()
    facts: Any = None
    rows: int = 0
    raw: str = ""
    seconds: float = 0.0
    task: Any = Field(default=None, exclude=True)
    contents: dict[str, bytes] = Field(default_factory=dict, exclude=True)

    def line(self) -> bytes:
        """One line of JSON, with infinities and lone surrogates."""
        return json.dumps(self.model_dump()).encode()

    @classmethod
    def read(cls, line: bytes, task: Task | None = None) -> "TaskResult | None":
        """The result in a line; None for a torn or foreign one."""
        try:
            found = cls.model_validate(json.loads(line))
        except (ValueError, RecursionError):
            return None
        whole = found.model_fields_set == cls.model_fields.keys() - {"task", "contents"}
        return found.with_(task=task) if whole else None

    def with_(self, **changes: Any) -> "TaskResult":
        """The same with other values."""
        return self.model_copy(update=changes)


def shard_files(recipe: DatasetRecipe, task: WriteShard, raw: list[Row], failed: list[Row]) -> TaskResult:
    """The files of one shard. A file without rows is not written: it could not be loaded.

    ``failed``: rows without a usable text; those that the filters reject join them, in the order of work.
    """
    _, dropped = filtered(raw, recipe)
    named = dict(zip(paths(recipe, task.shard), (raw, [*failed, *dropped]), strict=True))
    empty = tuple(path for path, rows in named.items() if not rows)
    return with_files(TaskResult(key=task.key, task=task, empty=empty, rows=len(raw)), recipe, named)


def with_files(result: TaskResult, recipe: DatasetRecipe, rows: dict[str, list[Row]]) -> TaskResult:
    """A result with parquet files in memory, by path, from their rows."""
    files, contents = list[File](), dict[str, bytes]()
    for path, of_file in rows.items():
        if of_file:
            _, config, name = path.split("/")
            contents[path] = shard_bytes(of_file, config_features(config, recipe))
            facts = {"config": config, "split": name.split("-")[0], "rows": len(of_file)}
            files.append(described(path, contents[path], **facts))
    return result.with_(files=tuple(files), contents=contents)


class Executor(Protocol):
    """Workers of one recipe, started by ``generation.run``."""

    @property
    def model(self) -> TokenCounter:
        """Context and token counts of the model."""

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Do tasks; yield their results in any order.

        ``tasks`` is read as workers become free, never far ahead. Every file of a result is either whole in the run
        directory or handed over. The caller may stop listening; unfinished tasks are then abandoned.
        """

    def describe(self) -> dict[str, Any]:
        """Facts about the model for the manifest (``Writer.describe``)."""


@dataclass(frozen=True)
class ExecutorSpec:
    """The run of an executor. ``run``: names recipe, inputs and code; results of another run are not used."""

    recipe: DatasetRecipe
    prompts: Prompts
    directory: Path
    run: str


StartExecutor = Callable[[ExecutorSpec], AbstractContextManager[Executor]]

"""Units of a run: shards and groups with their file names, tasks with their results, executors.

A shard is the unit of generation, a group of neighbouring shards is the unit of finishing. The
recipe alone decides the names of files. A task's result is a function of the task, the recipe and
the files that it reads: tasks may be repeated, in any order and place, without changing a byte.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, Field

from sts_dino.generation.inputs.prompts import Prompts, TokenCounter
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.generation.rows.selection import Row
from sts_dino.hub.contract.recipe import (
    DatasetRecipe,
    Variant,
    build_config_features,
    format_config_name,
)
from sts_dino.hub.contract.run_dir import File, describe_content
from sts_dino.hub.contract.shards import ROWS_PER_FILE, encode_shard, format_shard_path

Tick = Callable[[int], object]  # is called with the number of texts just accepted or given up
Read = Callable[[str], Path | bytes]  # path in the run directory → full path, or content


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of generation: the texts of block ``block`` of ``blocks`` blocks, in one variant.

    A block is ``shard_size`` consecutive source sentences; blocks count from 0.
    """

    variant: Variant
    block: int
    blocks: int


class ShardPaths(NamedTuple):
    """The paths of a shard's raw and rejected rows, from the run directory."""

    raw: str
    rejected: str


@dataclass(frozen=True)
class Group:
    """Neighbouring shards of one shot count, whose finished rows share files.

    ``index``: the group's position among the ``total`` groups of the shot count, from 0. ``shots``:
    None: the prompts have no few-shot section.
    """

    shots: int | None
    index: int
    total: int
    shards: tuple[Shard, ...]

    def make_path(self, config: str, split: str) -> str:
        """Return the path, from the run directory, of the group's file of a config and split."""
        return format_shard_path(
            format_config_name(config, self.shots), split, self.index, self.total
        )


def list_shards(recipe: DatasetRecipe, blocks: int) -> list[Shard]:
    """Return all shards in the order of work: every block of a variant, then the next variant.

    ``blocks``: number of blocks of source sentences.
    """
    return [Shard(variant, block, blocks) for variant in recipe.variants for block in range(blocks)]


def group_variants(recipe: DatasetRecipe) -> dict[int | None, list[Variant]]:
    """Return the variants of each shot count, both in the recipe's order."""
    by_shots: dict[int | None, list[Variant]] = {}
    for variant in recipe.variants:
        by_shots.setdefault(variant.shots, []).append(variant)
    return by_shots


def make_shard_paths(recipe: DatasetRecipe, shard: Shard) -> ShardPaths:
    """Return the paths of a shard's files, which are numbered within the shot count.

    All blocks of one example set come before the blocks of the next example set.
    """
    shots = shard.variant.shots
    sets = sum(variant.shots == shots for variant in recipe.variants)
    index = shard.variant.example_set * shard.blocks + shard.block
    total = sets * shard.blocks
    # a schema of distinct texts has one more file: the texts that an earlier shard has, too
    rejected_total = total + int(recipe.dataset_schema.distinct)
    return ShardPaths(
        format_shard_path(format_config_name("raw", shots), "train", index, total),
        format_shard_path(format_config_name("rejected", shots), "train", index, rejected_total),
    )


def iter_groups(recipe: DatasetRecipe, blocks: int) -> Iterator[Group]:
    """Yield the groups of a run, shot count by shot count. Each shard belongs to one group.

    ``blocks``: the number of shards of one variant.
    """
    size = count_shards_per_group(recipe)
    all_shards = list_shards(recipe, blocks)
    for shots in group_variants(recipe):
        shards = [shard for shard in all_shards if shard.variant.shots == shots]
        total = ceil(len(shards) / size)
        for index in range(total):
            members = shards[index * size : (index + 1) * size]
            yield Group(shots, index, total, tuple(members))


def count_shards_per_group(recipe: DatasetRecipe) -> int:
    """Return the number of shards whose finished rows share a file, at least one.

    It is the most shards that together have at most ``ROWS_PER_FILE`` finished rows.
    """
    texts_per_label = min(recipe.decoding.max_attempts, recipe.postprocess.max_per_label)
    rows_per_sentence = len(recipe.written_labels) * texts_per_label
    if recipe.dataset_schema.sampled_negatives:
        rows_per_sentence += recipe.postprocess.sampled_negatives
    return max(1, ROWS_PER_FILE // (recipe.shard_size * rows_per_sentence))


def count_sources_per_file(recipe: DatasetRecipe) -> int:
    """Return how many rows a full file of the config ``sources`` has.

    That is ``ROWS_PER_FILE``, or more if all source sentences would need over 1,000 files.
    """
    return max(ROWS_PER_FILE, (recipe.source.limit or 0) // 1_000)


def count_files(recipe: DatasetRecipe, source_sentences: int) -> dict[str, int]:
    """Return config → the most files that it can have in a complete run.

    A config has fewer files when some of them would have no rows: those are not written.
    ``source_sentences``: number of source sentences.
    """
    blocks = ceil(source_sentences / recipe.shard_size)
    sizes = {"sources": ceil(source_sentences / count_sources_per_file(recipe))}
    for shots, variants in group_variants(recipe).items():
        shards = len(variants) * blocks
        sizes[format_config_name("raw", shots)] = shards
        sizes[format_config_name("rejected", shots)] = shards + int(recipe.dataset_schema.distinct)
        for config in recipe.dataset_schema.finished:
            train_and_validation = 2 * ceil(shards / count_shards_per_group(recipe))
            sizes[format_config_name(config, shots)] = train_and_validation
    return {config: sizes[config] for config in recipe.configs}


@dataclass(frozen=True)
class WriteSourceSentences:
    """Generate the source sentences with these numbers."""

    numbers: range

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        return f"source-sentences-{self.numbers.start}-{self.numbers.stop}"


@dataclass(frozen=True)
class WriteShard:
    """Generate the texts of a shard from its source sentences."""

    shard: Shard
    sentences: tuple[SourceSentence, ...]

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        shots, example_set = self.shard.variant.shots, self.shard.variant.example_set
        return f"shard-{shots or 0}-{example_set}-{self.shard.block:06d}-of-{self.shard.blocks:06d}"


@dataclass(frozen=True)
class FinishGroup:
    """Finish the raw rows of a group.

    ``empty``: paths of its input files that do not exist, because they would have no rows.
    """

    group: Group
    empty: frozenset[str]

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        return f"group-{self.group.shots or 0}-{self.group.index:06d}-of-{self.group.total:06d}"


Task = WriteSourceSentences | WriteShard | FinishGroup


class TaskResult(BaseModel, frozen=True, extra="forbid"):
    """The result of a task; a journal or a store holds it as a line of JSON.

    - ``key``: the key of the task.
    - ``files``: the manifest's entries of the files that the task makes.
    - ``empty``: paths of files that would have no rows, so that they are not written.
    - ``facts``: JSON that the task's kind defines.
    - ``rows``: number of raw rows of a shard, or of usable source sentences; 0 for a group.
    - ``raw``: digest of the raw files of the run, for a stored group; else empty.
    - ``seconds``: seconds that the task took.
    - ``task``: the task; not in the line.
    - ``contents``: path → content of files that are not written yet; not in the line.
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

    def to_line(self) -> bytes:
        """Return one line of JSON without its line break; lone surrogates are kept as escapes."""
        return json.dumps(self.model_dump()).encode()

    @classmethod
    def from_line(cls, line: bytes, task: Task | None = None) -> "TaskResult | None":
        """Return the result in a line, with ``task``; None for a torn line or one of other code."""
        try:
            result = cls.model_validate(json.loads(line))
        except (ValueError, RecursionError):
            return None
        # a line of this code has every key; a line of other code may lack some
        if result.model_fields_set != cls.model_fields.keys() - {"task", "contents"}:
            return None
        return result.model_copy(update={"task": task})


def make_shard_result(
    recipe: DatasetRecipe, task: WriteShard, raw: Sequence[Row], failed: Sequence[Row]
) -> TaskResult:
    """Return the result of one shard, with its files in memory.

    The file of rejected rows holds ``failed`` and copies of the raw rows that the filters reject. A
    file without rows is not made, because the library datasets could not load it.

    Args:
        recipe: the dataset's recipe.
        task: the task of the shard.
        raw: rows with an accepted text.
        failed: rejected rows, with their reason.
    """
    _, filtered_out = filter_rows(raw, recipe)
    paths = make_shard_paths(recipe, task.shard)
    rows = {paths.raw: raw, paths.rejected: [*failed, *filtered_out]}
    empty = tuple(path for path in paths if not rows[path])
    result = TaskResult(key=task.key, task=task, empty=empty, rows=len(raw))
    return add_files(result, recipe, rows)


def add_files(
    result: TaskResult, recipe: DatasetRecipe, rows: Mapping[str, Sequence[Row]]
) -> TaskResult:
    """Return a result with a parquet file in memory for each path that has rows.

    These files replace those of ``result``. ``rows``: path, ``data/<config>/<split>-….parquet``,
    → the rows of the file.
    """
    files = []
    contents = {}
    for path, file_rows in rows.items():
        if file_rows:
            _, config, name = path.split("/")
            split = name.split("-")[0]
            contents[path] = encode_shard(file_rows, build_config_features(config, recipe))
            files.append(
                describe_content(
                    path, contents[path], config=config, split=split, rows=len(file_rows)
                )
            )
    return result.model_copy(update={"files": tuple(files), "contents": contents})


class Executor(Protocol):
    """Workers of one recipe, started by ``sts_dino.generation.run``."""

    @property
    def model(self) -> TokenCounter:
        """Context and token counts of the model."""

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Do tasks; yield their results in any order.

        ``tasks`` is read as workers become free, never far ahead. Every file of a result is either
        complete in the run directory or in the result's ``contents``. The caller may stop
        iterating; unfinished tasks are then abandoned.
        """

    def describe(self) -> dict[str, Any]:
        """Facts about the model for the manifest (``Writer.describe``)."""


@dataclass(frozen=True)
class ExecutorSpec:
    """The run of an executor.

    Args:
        recipe: the dataset's recipe.
        prompts: the prompts of the recipe.
        directory: the run directory.
        run: digest of recipe, inputs and code; results with another digest are not used.
    """

    recipe: DatasetRecipe
    prompts: Prompts
    directory: Path
    run: str


StartExecutor = Callable[[ExecutorSpec], AbstractContextManager[Executor]]

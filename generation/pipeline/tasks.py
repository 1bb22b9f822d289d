"""Units of a run: shards and groups with their file names, tasks and their results, and what executes them.

A shard is the unit of generation, a group of neighbouring shards that of finishing. Names follow from the recipe alone,
so a run of any size can be generated, and finished, in any order and place. A task's result is a function of the task,
the recipe and the files it reads: a task may be done again, anywhere, without changing a byte.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from generation.inputs.prompts import Prompts
from generation.inputs.sources import SourceSentence
from generation.rows.filters import filtered
from hub.contract.recipe import DatasetRecipe, Variant, config_features, config_name
from hub.contract.run_dir import File, described
from hub.contract.shards import ROWS_PER_FILE, shard_bytes, shard_path

Row = dict[str, Any]
Tick = Callable[[int], object]  # gets every number of newly accepted texts
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
        return f"first-texts-{self.numbers.start}-{self.numbers.stop}"


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


@dataclass(frozen=True)
class OutputFile:
    """A file of a result: its manifest entry and its content (None: it is in the run directory or a store)."""

    file: File
    content: bytes | None


@dataclass(frozen=True)
class TaskResult:
    """The result of a task.

    ``empty``: paths that got no file, for want of rows. ``facts``: JSON that the task's kind defines. ``rows``:
    accepted texts. ``seconds`` and ``node``: how long it took and where; nothing published depends on them.
    """

    task: Task
    outputs: tuple[OutputFile, ...] = ()
    empty: tuple[str, ...] = ()
    facts: Any = None
    rows: int = 0
    seconds: float = 0.0
    node: str = ""


def shard_files(recipe: DatasetRecipe, task: WriteShard, raw: list[Row], failed: list[Row]) -> TaskResult:
    """The files of one shard. A file without rows is not written: it could not be loaded.

    ``failed``: rows without a usable text; those that the filters reject join them, in the order of work.
    """
    _, dropped = filtered(raw, recipe)
    named = dict(zip(paths(recipe, task.shard), (raw, [*failed, *dropped]), strict=True))
    empty = tuple(path for path, rows in named.items() if not rows)
    files = output_files(recipe, {path: rows for path, rows in named.items() if rows})
    return TaskResult(task, files, empty, rows=len(raw))


def output_files(recipe: DatasetRecipe, files: dict[str, list[Row]]) -> tuple[OutputFile, ...]:
    """Parquet files in memory, by path, from their rows."""
    outputs = []
    for path, rows in files.items():
        _, config, name = path.split("/")
        content = shard_bytes(rows, config_features(config, recipe))
        split = name.split("-")[0]
        outputs.append(OutputFile(described(path, content, config=config, split=split, rows=len(rows)), content))
    return tuple(outputs)


class Executor(Protocol):
    """Workers of one recipe: one in this process (``pipeline.worker``) or many on Ray (``executors``)."""

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Do tasks; yield their results in any order.

        ``tasks`` is read as workers become free, never far ahead. Every file of a result is either whole in the run
        directory or handed over. The caller may stop listening; unfinished tasks are then abandoned.
        """
        ...

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together; 0: not known."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens of ``text`` by the model's tokenizer, without special tokens."""
        ...

    def prompt_tokens(self, prompt: str) -> int:
        """Number of tokens that the model reads of a prompt. Called only where the context is known."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts about the model for the manifest (``Writer.describe``)."""
        ...


@dataclass(frozen=True)
class ExecutorSpec:
    """The run of an executor. ``run``: names recipe, inputs and code; results of another run are not used."""

    recipe: DatasetRecipe
    prompts: Prompts
    directory: Path
    run: str


StartExecutor = Callable[[ExecutorSpec], AbstractContextManager[Executor]]

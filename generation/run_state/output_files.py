"""Rows as parquet files of the published layout, in memory: a shard's raw and rejected ones, a group's finished."""

from generation.rows.filters import sifted
from generation.run_state import layout
from generation.run_state.tasks import OutputFile, Row, TaskResult, WriteShard
from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.run_dir import described
from hub.contract.shards import shard_bytes


def shard_files(recipe: DatasetRecipe, task: WriteShard, raw: list[Row], failed: list[Row]) -> TaskResult:
    """The files of one shard. No file is made without rows: it cannot load.

    ``failed`` rows were no usable text; those that sifting drops join them, in the order of work.
    """
    _, dropped = sifted(raw, recipe)
    named = dict(zip(layout.paths(recipe, task.shard), (raw, [*failed, *dropped]), strict=True))
    empty = tuple(path for path, rows in named.items() if not rows)
    return TaskResult(
        task, output_files(recipe, {path: rows for path, rows in named.items() if rows}), empty, rows=len(raw)
    )


def output_files(recipe: DatasetRecipe, files: dict[str, list[Row]]) -> tuple[OutputFile, ...]:
    """Files, by path, from their rows."""
    outputs = []
    for path, rows in files.items():
        _, config, name = path.split("/")
        content = shard_bytes(rows, config_features(config, recipe))
        split = name.split("-")[0]
        outputs.append(OutputFile(described(path, content, config=config, split=split, rows=len(rows)), content))
    return tuple(outputs)

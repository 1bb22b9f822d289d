"""Where the shards of a run stand, and which of them are finished together: functions of the recipe alone.

A shard is the unit of generation, a group of neighbouring shards that of finishing. Nobody has to look at another's
rows to know a name, so a run of any size can be written, and finished, in any order and place.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hub.recipe import DatasetRecipe, Variant, config_name
from hub.shards import ROWS_PER_FILE, shard_path


@dataclass(frozen=True)
class Shard:
    """The unit of work: the first texts of one of ``blocks`` blocks, asked for in one variant."""

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
    """Where a shard's raw and rejected rows stand. The shards of a shot count's example sets follow each other."""
    sets = sum(variant.shots == shard.variant.shots for variant in recipe.variants)
    index, total = shard.variant.example_set * shard.blocks + shard.block, sets * shard.blocks
    raw, rejected = (config_name(base, shard.variant.shots) for base in ("raw", "rejected"))
    late = int(recipe.form == "text")  # one more file: texts that another shard holds already
    return shard_path(raw, "train", index, total), shard_path(rejected, "train", index, total + late)


def groups(recipe: DatasetRecipe, blocks: int) -> Iterator[Group]:
    """The groups of a run, shot count by shot count; each shard stands in one."""
    size = shards_per_group(recipe)
    every = shards(recipe, blocks)
    for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
        members = [shard for shard in every if shard.variant.shots == shots]
        parts = [tuple(members[start : start + size]) for start in range(0, len(members), size)]
        for index, part in enumerate(parts):
            yield Group(shots, index, len(parts), part)


def shards_per_group(recipe: DatasetRecipe) -> int:
    """So many that a finished file has at most ``ROWS_PER_FILE`` rows, and at least one."""
    kept = len(recipe.labels) * min(recipe.decoding.max_attempts, recipe.postprocess.max_per_label)
    sampled = recipe.postprocess.sampled_negatives if recipe.form == "sts" else 0
    return max(1, ROWS_PER_FILE // (recipe.shard_size * (kept + sampled)))

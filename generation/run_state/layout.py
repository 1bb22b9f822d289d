"""Layout of a run: names of shard files, and groups of shards that are finished together, from the recipe alone.

A shard is the unit of generation, a group of neighbouring shards that of finishing. Nobody has to look at another's
rows to know a name, so a run of any size can be written, and finished, in any order and place.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hub.contract.recipe import DatasetRecipe, Variant, config_name
from hub.contract.shards import ROWS_PER_FILE, shard_path


@dataclass(frozen=True, slots=True)
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
    late = int(recipe.dataset_schema.distinct)  # one more file: texts that another shard holds already
    return shard_path(raw, "train", index, total), shard_path(rejected, "train", index, total + late)


def groups(recipe: DatasetRecipe, blocks: int) -> Iterator[Group]:
    """The groups of a run, shot count by shot count, one in memory at a time; each shard stands in one."""
    size = shards_per_group(recipe)
    for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
        variants = [variant for variant in recipe.variants if variant.shots == shots]
        count = len(variants) * blocks
        for index, start in enumerate(range(0, count, size)):
            numbers = range(start, min(start + size, count))
            members = tuple(Shard(variants[number // blocks], number % blocks, blocks) for number in numbers)
            yield Group(shots, index, -(-count // size), members)


def shards_per_group(recipe: DatasetRecipe) -> int:
    """So many that a finished file has at most ``ROWS_PER_FILE`` rows, and at least one."""
    kept = len(recipe.written_labels) * min(recipe.decoding.max_attempts, recipe.postprocess.max_per_label)
    sampled = recipe.postprocess.sampled_negatives if recipe.dataset_schema.sampled_negatives else 0
    return max(1, ROWS_PER_FILE // (recipe.shard_size * (kept + sampled)))


def sources_per_file(recipe: DatasetRecipe) -> int:
    """Rows of a file of the config ``sources``, which has a thousand files at the most."""
    return max(ROWS_PER_FILE, (recipe.source.limit or 0) // 1_000)


def folders(recipe: DatasetRecipe, first_texts: int) -> dict[str, int]:
    """Config → files of its folder when the run is complete, at most: without rows, no file is made."""
    blocks, per_group = -(-first_texts // recipe.shard_size), shards_per_group(recipe)
    found = dict.fromkeys(recipe.configs, -(-first_texts // sources_per_file(recipe)))  # that of ``sources`` stays
    for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
        count = blocks * sum(variant.shots == shots for variant in recipe.variants)
        late = int(recipe.dataset_schema.distinct)
        finished = 2 * -(-count // per_group)  # train and validation
        sizes = {"raw": count, "rejected": count + late, **dict.fromkeys(recipe.dataset_schema.finished, finished)}
        found |= {name: size for base, size in sizes.items() if (name := config_name(base, shots)) in found}
    return found

"""Names, groups and file counts of a run: functions of the recipe, one group in memory at a time."""

import itertools
import tracemalloc
from pathlib import Path

import pytest
from small_runs import small_recipe

from generation.pipeline import group_rows
from generation.run_state import layout
from generation.run_state.layout import Shard
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.schema import SCHEMAS


@pytest.mark.parametrize("form", SCHEMAS)
@pytest.mark.parametrize("blocks", [1, 7, 400])
def test_every_shard_stands_in_one_group_and_has_paths_of_its_own(form, blocks):
    recipe = small_recipe(form, shard_size=5)
    shards = layout.shards(recipe, blocks)
    groups = list(layout.groups(recipe, blocks))
    assert [shard for group in groups for shard in group.shards] == shards
    assert all(len(group.shards) <= layout.shards_per_group(recipe) for group in groups)
    paths = [path for shard in shards for path in layout.paths(recipe, shard)]
    assert len(set(paths)) == len(paths) == 2 * len(shards)
    for shots, same in itertools.groupby(groups, key=lambda group: group.shots):
        members = list(same)
        assert [(group.index, group.total) for group in members] == [(i, len(members)) for i in range(len(members))]
        assert all(shard.variant.shots == shots for group in members for shard in group.shards)


def test_a_finished_file_has_no_more_rows_than_it_may_and_a_group_at_least_one_shard():
    for size in (1, 5, 333, 20_000):
        recipe = small_recipe("sts", shard_size=size)
        rows = size * (len(recipe.labels) * recipe.postprocess.max_per_label + recipe.postprocess.sampled_negatives)
        count = layout.shards_per_group(recipe)
        assert count == 1 or count * rows <= layout.ROWS_PER_FILE < (count + 1) * rows


def test_groups_of_a_million_shards_do_not_stand_in_memory_together():
    recipe = small_recipe("sts", shard_size=1_000)
    tracemalloc.start()
    try:
        assert sum(len(group.shards) for group in layout.groups(recipe, 5_000)) == 5_000
        few = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        taken = sum(len(group.shards) for group in itertools.islice(layout.groups(recipe, 10**9), 500))
        assert taken == 500 * layout.shards_per_group(recipe)
        assert tracemalloc.get_traced_memory()[1] < few + 50_000
    finally:
        tracemalloc.stop()


def test_files_read_are_those_of_the_group_and_its_partners():
    recipe = small_recipe("sts", shard_size=800)
    group = list(layout.groups(recipe, 50))[3]
    first, last = group.shards[0].block, group.shards[-1].block
    far = {(block + 25) % 50 for block in range(first, last + group_rows.PARTNERS)}
    raw = {layout.paths(recipe, Shard(group.shards[0].variant, block, 50))[0] for block in far}
    assert group_rows.files_read(recipe, group) == raw | {p for s in group.shards for p in layout.paths(recipe, s)}


@pytest.mark.parametrize("form", SCHEMAS)
def test_folders_count_what_the_layout_names(form):
    """The files that shards and groups may have, counted one by one, are those that the recipe predicts."""
    recipe, first_texts = small_recipe(form, shard_size=500), 60_100
    blocks = -(-first_texts // 500)
    named = {path for shard in layout.shards(recipe, blocks) for path in layout.paths(recipe, shard)}
    for group in layout.groups(recipe, blocks):
        named |= {
            group.path(base, split) for base in recipe.dataset_schema.finished for split in ("train", "validation")
        }
    counted = {config: sum(path.startswith(f"data/{config}/") for path in named) for config in recipe.configs}
    if form == "text":
        counted |= {"rejected": counted["rejected"] + 1, "sources": 4}
    assert layout.folders(recipe, first_texts) == counted


def test_the_demo_has_the_predicted_folders():
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe)
    assert layout.folders(recipe, 1200) == {"postprocessed": 2, "raw": 3, "rejected": 3}

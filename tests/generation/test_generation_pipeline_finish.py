"""From raw shards to finished configs: layout, counts, sampled negatives, the text schema, few-shot
sets.
"""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_runs import FEW_SHOT, small_recipe, write_shard

from sts_dino.generation.pipeline import finish as group_rows
from sts_dino.generation.pipeline import tasks as layout
from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.finish import finish
from sts_dino.generation.pipeline.tasks import Shard
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.contract.schema import SCHEMAS
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.errors import RunError


@pytest.mark.parametrize("form", SCHEMAS)
@pytest.mark.parametrize("blocks", [1, 7, 400])
def test_every_shard_stands_in_one_group_and_has_paths_of_its_own(form, blocks):
    recipe = small_recipe(form, shard_size=5)
    shards = layout.list_shards(recipe, blocks)
    groups = list(layout.iter_groups(recipe, blocks))
    assert [shard for group in groups for shard in group.shards] == shards
    assert all(len(group.shards) <= layout.count_shards_per_group(recipe) for group in groups)
    paths = [path for shard in shards for path in layout.make_shard_paths(recipe, shard)]
    assert len(set(paths)) == len(paths) == 2 * len(shards)
    for shots, same in itertools.groupby(groups, key=lambda group: group.shots):
        members = list(same)
        assert [(group.index, group.total) for group in members] == [
            (i, len(members)) for i in range(len(members))
        ]
        assert all(shard.variant.shots == shots for group in members for shard in group.shards)


def test_files_read_are_those_of_the_group_and_its_partners():
    recipe = small_recipe("sts", shard_size=800)
    group = list(layout.iter_groups(recipe, 50))[3]
    first, last = group.shards[0].block, group.shards[-1].block
    far = {(block + 25) % 50 for block in range(first, last + group_rows.MOST_PARTNER_SHARDS)}
    raw = {
        layout.make_shard_paths(recipe, Shard(group.shards[0].variant, block, 50))[0]
        for block in far
    }
    assert group_rows.list_input_files(recipe, group) == raw | {
        p for s in group.shards for p in layout.make_shard_paths(recipe, s)
    }


@pytest.mark.parametrize("form", SCHEMAS)
def test_folders_count_what_the_layout_names(form):
    """The files that shards and groups may have, counted one by one, are those that the recipe
    predicts.
    """
    recipe, source_sentences = small_recipe(form, shard_size=500), 60_100
    blocks = -(-source_sentences // 500)
    named = {
        path
        for shard in layout.list_shards(recipe, blocks)
        for path in layout.make_shard_paths(recipe, shard)
    }
    for group in layout.iter_groups(recipe, blocks):
        bases = recipe.dataset_schema.finished
        named |= {
            group.make_path(base, split) for base in bases for split in ("train", "validation")
        }
    counted = {
        config: sum(path.startswith(f"data/{config}/") for path in named)
        for config in recipe.configs
    }
    if form == "text":
        counted |= {"rejected": counted["rejected"] + 1, "sources": 4}
    assert layout.count_files(recipe, source_sentences) == counted


X2 = Path("recipes/demo/sts-dino-x2.yaml")


def row(first: int, text2: str, target: str, attempt: int = 0, **more: Any) -> dict[str, Any]:
    numbers = {
        "sample": attempt,
        "attempt": attempt,
        "seed": first,
        "log_prob": -1.0,
        "margin": None,
    }
    return {
        "text1": f"first {first}",
        "text2": text2,
        "source_id": f"{first:06d}",
        "target": target,
        **numbers,
        **more,
    }


def begun(directory: Path, recipe: DatasetRecipe) -> DatasetRun:
    manifest = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f")
    return DatasetRun(directory, recipe, run_dir.begin(directory, manifest, format_recipe(recipe)))


def written(run: DatasetRun, blocks: int, size: int) -> list[dict[str, Any]]:
    """Shards of ``size`` source sentences, each with one text of every label; half failed once
    before.
    """
    rows = []
    for shard in layout.list_shards(run.recipe, blocks):
        sets = {"example_set": shard.variant.example_set} if run.recipe.few_shot else {}
        raw, failed = [], []
        for first in range(shard.block * size, (shard.block + 1) * size):
            for label in run.recipe.labels:
                text = f"{label.name} of {first} in {shard.variant}"
                raw.append(row(first, text, label.name, first % 2, **sets))
                failed += [row(first, "open", label.name, 0, reason="not_closed", **sets)] * (
                    first % 2
                )
        write_shard(run, shard, raw, failed)
        rows += raw
    return rows


def read(run: DatasetRun, config: str) -> dict[str, list[dict[str, Any]]]:
    """Split → rows of a config."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in run.manifest.shards(config):
        found.setdefault(file.split or "", []).extend(read_shard(run.directory / file.path))
    return found


def test_sampled_negatives_come_from_far_away_and_about_equally_often(tmp_path, monkeypatch):
    monkeypatch.setattr(group_rows, "POOL_PAIRS", 20)
    run = begun(tmp_path / "run", load_recipe(X2, DatasetRecipe))
    written(run, blocks=16, size=20)
    finish(run, 16, 320)
    splits = read(run, "postprocessed")
    owner = {
        r["sentence2"]: int(r["source_id"])
        for rows in splits.values()
        for r in rows
        if r["target"] != "sampled"
    }
    used = Counter[str]()
    for name, rows in splits.items():
        inside = {r["sentence1"] for r in rows}
        sampled = [r for r in rows if r["target"] == "sampled"]
        assert len(sampled) == 2 * len(inside)
        for r in sampled:
            assert f"first {owner[r['sentence2']]}" in inside, "a text of the same split"
        if name == "train":
            used.update(r["sentence2"] for r in sampled)
            distance = [
                (owner[r["sentence2"]] // 20 - int(r["source_id"]) // 20) % 16 for r in sampled
            ]
            assert set(distance) == {8}
    assert max(used.values()) <= 8 and len(used) > 300
    assert run.manifest.counts["sampled_negatives"] == 640


def test_every_shot_count_has_configs_and_counts_of_its_own(tmp_path):
    recipe = small_recipe("nli")
    run = begun(tmp_path / "run", recipe)
    written(run, blocks=2, size=10)
    finish(run, 2, 20)
    counts = run.manifest.counts
    assert counts["variants"] == {
        "0shot": {"requested": 60, "kept": 40, "rejected": 20},
        "5shot": {"requested": 120, "kept": 80, "rejected": 40},
    }
    assert (
        set(counts["splits"]) == set(recipe.configs) and len(run.manifest.shards("raw-5shot")) == 4
    )
    triplets = [r for rows in read(run, "triplet-5shot").values() for r in rows]
    assert Counter(r["example_set"] for r in triplets) == {0: 20, 1: 20}
    assert all("example_set=1" in r["positive"] for r in triplets if r["example_set"] == 1)


def test_the_text_form_drops_a_text_that_another_shard_holds_and_counts_it(tmp_path):
    recipe = load_recipe(X2, DatasetRecipe).model_copy(update={"schema_name": "text"})
    run = begun(tmp_path / "run", recipe)
    shards = layout.list_shards(run.recipe, 3)
    write_shard(
        run, shards[0], [row(0, "good", "1"), row(0, "bad", "0"), row(0, "so so", "0.5")], []
    )
    write_shard(
        run,
        shards[1],
        [row(1, "good", "1"), row(1, "good", "0")],
        [row(1, "x", "1", reason="not_closed")],
    )
    write_shard(run, shards[2], [row(2, "good", "1"), row(2, "bad", "1")], [])
    finish(run, 3, 3)
    rows = [r for split in read(run, "postprocessed").values() for r in split]
    found = [
        (r["text"], r["label"]) for r in sorted(rows, key=lambda r: (r["source_id"], r["label"]))
    ]
    assert found == [("good", 0), ("so so", 1), ("bad", 2), ("good", 2), ("bad", 0)]
    counts = run.manifest.counts
    assert counts["rejected"] == {"duplicate": 2, "not_closed": 1}
    assert (counts["requested"], counts["kept"]) == (8, 5)
    assert [(r["source_id"], r["reason"]) for r in read(run, "rejected")["train"]] == [
        ("000001", "not_closed"),
        ("000001", "duplicate"),
        ("000002", "duplicate"),
    ]
    assert run.manifest.shards("rejected")[-1].path.endswith("train-00003-of-00004.parquet")


def test_a_label_without_rows_is_named_with_its_shot_count_and_leaves_nothing_half_written(
    tmp_path,
):
    recipe = small_recipe("nli", few_shot=FEW_SHOT | {"sets": 1})
    run = begun(tmp_path / "run", recipe)
    for shard in layout.list_shards(run.recipe, 1):
        failed = [row(0, "open", "contradiction", reason="not_closed", example_set=0)] * bool(
            shard.variant.shots
        )
        raw = [row(0, "a", "entailment", example_set=0)]
        write_shard(
            run,
            shard,
            raw if failed else [*raw, row(0, "b", "contradiction", example_set=0)],
            failed,
        )
    named = r"'contradiction': no row is left of it at 5 shots \(rejected: {'not_closed': 1}"
    with pytest.raises(RunError, match=named):
        finish(run, 1, 1)
    assert not run.manifest.complete and not list(run.directory.rglob("*.tmp"))

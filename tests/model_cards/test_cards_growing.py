"""A growing dataset loads at every commit, with the counts of its card, and the card has its progress."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import pytest
from card_runs import card_of, front
from small_runs import PROVENANCE, SIZE, raw_rows, small_recipe, write_shard
from test_cards_dataset import offline

from generation.pipeline.directory import DatasetRun
from generation.pipeline.finish import finish
from hub.contract import run_dir
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import Manifest, read_manifest
from hub.contract.schema import base_config
from hub.errors import InputError
from model_cards.render import render, write

NOW = datetime(2026, 1, 31, 22, 0, tzinfo=UTC)
SHARDS = 3
__all__ = ["offline"]


def begun(directory: Path, form: str = "sts") -> DatasetRun:
    """A run whose source sentences are known and of which no shard is written."""
    recipe = small_recipe(form)
    manifest = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64)
    run = DatasetRun(directory, recipe, run_dir.begin(directory, manifest, resolved(recipe)))
    run.record([], provenance=PROVENANCE, counts={"sources": SIZE * SHARDS})
    run.count(shards_done=0, shards_total=len(run.shards(SHARDS)))
    return run


def grow(run: DatasetRun, shards: int | None = None) -> None:
    """Write the next shards (None: all), each with a rejected row."""
    for shard in run.missing(run.shards(SHARDS))[:shards]:
        rows = list(raw_rows(run.recipe, shard))
        write_shard(run, shard, rows, [{**rows[0], "text2": "open", "reason": "not_closed"}])


def commit(run: DatasetRun, where: Path) -> dict[str, Any]:
    """The repository after one atomic commit: the manifest's files and the card. Its front matter."""
    manifest = read_manifest(run.directory)
    shutil.rmtree(where, ignore_errors=True)
    for name in (*(file.path for file in manifest.files), run_dir.MANIFEST, run_dir.RECIPE):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run.directory / name, where / name)
    files = render(run.directory, manifest=manifest, now=NOW)
    write(where, files)
    return front(files["README.md"].decode())


def loads_as_stated(where: Path, head: dict[str, Any]) -> dict[str, int]:
    """Every config loads, streams and has the rows its card states; (rows of the default config by split)."""
    names = [entry["config_name"] for entry in head["configs"]]
    (default,) = [entry["config_name"] for entry in head["configs"] if entry.get("default")]
    found = {}
    for name, info in zip([None, *names], [None, *head["dataset_info"]], strict=True):
        loaded = datasets.load_dataset(str(where), name)
        found[name or "default"] = {split: len(rows) for split, rows in loaded.items()}
        if info:
            assert found[name] == {split["name"]: split["num_examples"] for split in info["splits"]}
            streamed = datasets.load_dataset(str(where), name, streaming=True)
            assert {split: sum(1 for _ in rows) for split, rows in streamed.items()} == found[name]
    assert found["default"] == found[default]
    return found["default"]


@pytest.mark.parametrize("form", ["sts", "nli"])  # of several shot counts
def test_every_commit_loads_with_the_counts_its_card_states(tmp_path: Path, form: str) -> None:
    run = begun(tmp_path / "run", form)
    for done in (1, 2):
        grow(run, 1)
        head = commit(run, tmp_path / f"commit{done}")
        default = next(entry["config_name"] for entry in head["configs"] if entry.get("default"))
        assert base_config(default) == "raw"
        rows = sum(file.rows for file in read_manifest(run.directory).shards(default))
        assert loads_as_stated(tmp_path / f"commit{done}", head) == {"train": rows}
    grow(run)
    finish(run, SHARDS, SIZE * SHARDS)
    head = commit(run, tmp_path / "last")
    assert next(entry["config_name"] for entry in head["configs"] if entry.get("default")) == run.recipe.configs[0]
    loads_as_stated(tmp_path / "last", head)


def test_a_growing_card_says_how_far_it_is_and_when_it_is_done(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    assert "0 of 3 shards are done (0%). The remaining time is not known yet." in card_of(run.directory, now=NOW)
    grow(run, 1)
    said = card_of(run.directory, now=NOW)
    (shard,) = read_manifest(run.directory).shards("raw")
    assert f"1 of 3 shards are done (33%); rows so far: {shard.rows} in `raw`, " in said
    assert "The remaining time is not known yet." in said
    assert "**For now** this loads `raw`" in said and "## Contents" not in said
    timing = tmp_path / "run.timing.json"
    timing.write_text(json.dumps({"seconds": 3600.0, "rows": shard.rows, "peak_rss_mb": 1}))
    said = card_of(run.directory, now=NOW)
    assert " rows a second, 2.0 h of work remain" in said
    assert "around 2026-02-01 00:00 UTC (estimated 2026-01-31 22:00 UTC)" in said
    grow(run)
    assert "3 of 3 shards are done (100%)" in card_of(run.directory, now=NOW)
    assert "All shards are written" in card_of(run.directory, now=NOW)
    finish(run, SHARDS, SIZE * SHARDS)
    said = card_of(run.directory, now=NOW)
    assert "still growing" not in said and "For now" not in said and "2026-" not in said


def test_a_snapshot_is_rendered_while_the_run_goes_on(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    grow(run, 1)
    snapshot = read_manifest(run.directory)
    before = render(run.directory, manifest=snapshot, now=NOW)
    grow(run, 1)
    stray = run.directory / "data/raw/train-00002-of-00003.parquet"
    stray.write_bytes(b"half a file")
    assert render(run.directory, manifest=snapshot, now=NOW) == before
    assert render(run.directory, now=NOW) != before


def test_a_growing_card_reads_footers_and_no_data(tmp_path: Path) -> None:
    """The last shard's data are damaged, its footer and size are not: only a full read could notice."""
    run = begun(tmp_path / "run")
    grow(run)
    path = run.directory / "data/raw/train-00002-of-00003.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(bytes(content))
    assert "3 of 3 shards" in card_of(run.directory, now=NOW)
    path.write_bytes(bytes(content) + b"x")
    with pytest.raises(InputError, match="not the file the manifest names"):
        render(run.directory, now=NOW)

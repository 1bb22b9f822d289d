"""The published form of rows: zstd parquet, an explicit schema, row groups that the Hub's viewer can read."""

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from card_runs import FEW_SHOT, dataset_recipe
from small_runs import FORMS, small_recipe, small_run

from hub.contract import shards
from hub.contract.recipe import DatasetRecipe, config_features, finished_schema
from hub.contract.recipe_file import load_recipe
from hub.contract.schema import EXAMPLE_SET, PROVENANCE
from hub.contract.shards import Parts, read_shard, write_shard

RECIPES = sorted(Path("recipes/datasets").glob("*.yaml"))
TEXTS = datasets.Features({"text": datasets.Value("string"), "number": datasets.Value("int32")})
HUNDRED_MB = 100_000_000


def groups(path: Path) -> list[tuple[int, int]]:
    """(rows, uncompressed bytes) of each row group."""
    metadata = pq.ParquetFile(path).metadata
    found = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in found]


def long_rows(count: int, size: int) -> list[dict[str, object]]:
    return [{"text": f"{number:06d}" + "x" * size, "number": number} for number in range(count)]


@pytest.mark.parametrize("form", FORMS)
def test_files_are_zstd_with_the_whole_schema_written_in_them(tmp_path, form):
    """Also where a column has nothing but nulls, which would else have no type."""
    recipe = small_recipe(form)
    manifest = small_run(tmp_path / "run", recipe)
    for file in manifest.files:
        parquet = pq.ParquetFile(tmp_path / "run" / file.path)
        wanted = config_features(str(file.config), recipe)
        assert parquet.schema_arrow.equals(wanted.arrow_schema, check_metadata=True)
        group = parquet.metadata.row_group(0)
        assert {group.column(index).compression for index in range(group.num_columns)} == {"ZSTD"}
    assert {path.suffix for path in (tmp_path / "run" / "data").rglob("*.*")} == {".parquet"}


def test_the_default_config_comes_first_and_each_shot_count_has_its_own():
    assert dataset_recipe("nli", changes={"few_shot": FEW_SHOT}).configs == (
        *("triplet-0shot", "pair-class-0shot", "raw-0shot", "rejected-0shot"),
        *("triplet-5shot", "pair-class-5shot", "raw-5shot", "rejected-5shot"),
    )
    text = dataset_recipe("text")
    assert text.configs == ("postprocessed", "raw", "rejected")
    assert config_features("postprocessed", text)["label"].names == ["good", "bad"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_viewer_shows_the_texts_first(path):
    recipe = load_recipe(path, DatasetRecipe)
    for config in recipe.configs:
        names = list(config_features(config, recipe))
        if config.startswith("sources"):
            assert names[:2] == ["source_id", "text"]
            continue
        if config.startswith(("raw", "rejected")):
            own = ["text1", "text2"]
        else:
            own = list(finished_schema(config, recipe).columns)
        assert names[: len(own)] == own
        assert set(names[len(own) :]) <= {*PROVENANCE, *EXAMPLE_SET, "reason"}
        assert set(EXAMPLE_SET) & set(names) == (set(EXAMPLE_SET) if recipe.few_shot else set())


def test_long_texts_make_smaller_groups(tmp_path):
    rows = long_rows(5_200, 40_000)
    write_shard(tmp_path / "a.parquet", rows, TEXTS)
    found = groups(tmp_path / "a.parquet")
    assert sum(size for _, size in found) > 2 * HUNDRED_MB, "a group of 5,000 such rows would be too large"
    assert max(size for _, size in found) < HUNDRED_MB
    assert sum(count for count, _ in found) == 5_200 and found[-1][0] == 200
    parts = Parts(tmp_path, "c", "train", TEXTS, rows_per_file=10_000)
    parts.add(rows)
    [(path, written)] = parts.finish()
    assert written == 5_200 and groups(tmp_path / path) == found
    assert pq.ParquetFile(tmp_path / path).read(["number"]).column(0).to_pylist() == list(range(5_200))


def test_groups_keep_to_the_grid_whatever_their_texts(tmp_path, monkeypatch):
    """So the bytes of a file do not depend on how many rows its writer holds at a time."""
    monkeypatch.setattr(shards, "ROW_GROUP", 8)
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 1_000)
    rows = [{"text": "x" * (600 if number == 9 else 100), "number": number} for number in range(27)]
    write_shard(tmp_path / "a.parquet", rows, TEXTS)
    parts = Parts(tmp_path, "c", "train", TEXTS, None)
    for row in rows:
        parts.add([row])
    [(path, _)] = parts.finish()
    assert (tmp_path / path).read_bytes() == (tmp_path / "a.parquet").read_bytes()
    assert [count for count, _ in groups(tmp_path / path)] == [8, 4, 4, 8, 3]
    assert read_shard(tmp_path / path) == rows


def test_a_single_row_beyond_the_limit_is_a_group_of_its_own(monkeypatch):
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 50)
    table = pa.table({"text": ["a", "b" * 500, "c"]})
    assert [group.to_pylist() for group in shards.row_groups(table)] == [
        [{"text": text}] for text in table["text"].to_pylist()
    ]


def test_rows_that_do_not_fit_the_schema_leave_no_file(tmp_path):
    with pytest.raises(pa.ArrowInvalid):
        write_shard(tmp_path / "a.parquet", [{"text": "a", "number": "many"}], TEXTS)
    assert not list(tmp_path.iterdir())

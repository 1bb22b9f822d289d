"""The published form of rows: zstd parquet, an explicit schema, row groups that the Hub's viewer
can read.
"""

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import FORMS, small_recipe, small_run

from sts_dino.hub.contract import shards
from sts_dino.hub.contract.recipe import build_config_features
from sts_dino.hub.contract.shards import (
    Parts,
    iter_shard_tables,
    read_parquet_schema,
    read_shard,
    write_shard,
)
from sts_dino.hub.durable import name_in_errors

TEXTS = datasets.Features({"text": datasets.Value("string"), "number": datasets.Value("int32")})


def groups(path: Path) -> list[tuple[int, int]]:
    """(rows, uncompressed bytes) of each row group."""
    metadata = pq.ParquetFile(path).metadata
    found = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in found]


@pytest.mark.parametrize("form", FORMS)
def test_files_are_zstd_with_the_whole_schema_written_in_them(tmp_path, form):
    """Also where a column has nothing but nulls, which would else have no type."""
    recipe = small_recipe(form)
    manifest = small_run(tmp_path / "run", recipe)
    for file in manifest.files:
        parquet = pq.ParquetFile(tmp_path / "run" / file.path)
        wanted = build_config_features(str(file.config), recipe)
        assert parquet.schema_arrow.equals(wanted.arrow_schema, check_metadata=True)
        group = parquet.metadata.row_group(0)
        assert {group.column(index).compression for index in range(group.num_columns)} == {"ZSTD"}
    assert {path.suffix for path in (tmp_path / "run" / "data").rglob("*.*")} == {".parquet"}


def test_groups_keep_to_the_grid_whatever_their_texts(tmp_path, monkeypatch):
    """Bytes do not depend on how many rows a writer holds; a row beyond the limit is a group of its
    own.
    """
    monkeypatch.setattr(shards, "ROW_GROUP_ROWS", 8)
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 1_000)
    rows = [
        {"text": "x" * {9: 600, 17: 2000}.get(number, 100), "number": number}
        for number in range(27)
    ]
    write_shard(tmp_path / "a.parquet", rows, TEXTS)
    parts = Parts(tmp_path, "c", "train", TEXTS, None)
    for row in rows:
        parts.add([row])
    [(path, _)] = parts.finish()
    assert (tmp_path / path).read_bytes() == (tmp_path / "a.parquet").read_bytes()
    assert [count for count, _ in groups(tmp_path / path)] == [8, 4, 4, 1, 1, 6, 3]
    assert read_shard(tmp_path / path) == rows


def test_rows_that_do_not_fit_the_schema_leave_no_file(tmp_path):
    with pytest.raises(pa.ArrowInvalid):
        write_shard(tmp_path / "a.parquet", [{"text": "a", "number": "many"}], TEXTS)
    assert not list(tmp_path.iterdir())


def test_a_missing_shard_is_named(tmp_path):
    path = tmp_path / "absent.parquet"
    for read in (read_shard, read_parquet_schema, lambda shard: list(iter_shard_tables(shard, 1))):
        with pytest.raises(FileNotFoundError) as caught:
            read(path)
        assert caught.value.filename == str(path)


def test_an_error_without_a_number_keeps_its_message(tmp_path):
    with pytest.raises(OSError, match=r"^broken page$"), name_in_errors(tmp_path):
        raise OSError("broken page")

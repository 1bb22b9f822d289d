import pytest

from hub import run_dir
from hub.errors import InputError, RunError
from hub.run_dir import Manifest
from hub.shards import atomic_path, read_shard, write_shard, write_text


def manifest(fingerprint: str = "f") -> Manifest:
    return Manifest(kind="dataset", name="x", version="0.1.0", fingerprint=fingerprint)


def test_begin_starts_resumes_and_drops_damaged_files(tmp_path):
    directory = tmp_path / "run"
    started = run_dir.begin(directory, manifest(), "recipe")
    write_text(directory / "a.txt", "one")
    write_text(directory / "b.txt", "two")
    files = [run_dir.describe(directory, name) for name in ("a.txt", "b.txt")]
    run_dir.write_manifest(directory, started.with_files(files, complete=True))
    assert run_dir.begin(directory, manifest(), "recipe").complete
    (directory / "a.txt").write_text("changed")
    (directory / ".b.txt.77.tmp").write_text("left by a killed process")
    resumed = run_dir.begin(directory, manifest(), "recipe")
    assert [file.path for file in resumed.files] == ["b.txt"] and not resumed.complete
    assert not list(directory.glob(".*.tmp"))


def test_begin_refuses_what_is_not_its_run(tmp_path):
    run_dir.begin(tmp_path / "run", manifest(), "recipe")
    with pytest.raises(InputError, match="another recipe"):
        run_dir.begin(tmp_path / "run", manifest("other"), "recipe")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and not a run directory"):
        run_dir.begin(tmp_path / "mine", manifest(), "recipe")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_require_complete(tmp_path):
    with pytest.raises(InputError, match="not a run directory"):
        run_dir.require_complete(tmp_path)
    run_dir.write_manifest(tmp_path, manifest())
    with pytest.raises(InputError, match="not finished"):
        run_dir.require_complete(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="not a manifest"):
        run_dir.require_complete(tmp_path)


def test_lock(tmp_path):
    held, again = run_dir.locked(tmp_path / "run"), run_dir.locked(tmp_path / "run")
    with held, pytest.raises(RunError, match="another process"), again:
        pass
    with run_dir.locked(tmp_path / "run"):
        pass


def test_atomic_path_leaves_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_shards_are_zstd_typed_and_byte_stable(tmp_path):
    import pyarrow.parquet as pq

    from hub.schema import PAIR_CLASS, published_features

    row = {"premise": "a", "hypothesis": "b", "label": 2, "source_id": "1", "target": "contradiction", "attempt": 0}
    rows = [row | {"seed": 2**64 - 1, "log_prob": -1.5, "margin": None}]
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.parquet", rows, published_features(PAIR_CLASS))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert read_shard(tmp_path / "a.parquet") == rows
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert b"contradiction" in file.schema_arrow.metadata[b"huggingface"]

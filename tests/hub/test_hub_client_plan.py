"""What a publication changes: files to be against files that are there."""

import hashlib

import pytest
from huggingface_hub.hf_api import RepoFile

from hub.client.plan import Changes, Content, Plan, Remote, compare, is_beside, strangers, text_diff
from hub.contract.run_dir import File, Manifest


def regular(path: str, content: bytes) -> RepoFile:
    """As the Hub tells of a small file."""
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return RepoFile(path=path, size=len(content), oid=oid)


def large(path: str, content: bytes) -> RepoFile:
    """As the Hub tells of one that is kept by its SHA-256."""
    lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return RepoFile(path=path, size=len(content), oid="0" * 40, lfs=lfs)


def remote(*files: RepoFile) -> Remote:
    return Remote("a" * 40, {file.path: file for file in files})


def test_a_file_is_the_same_by_git_id_or_by_sha256_of_disk_or_memory(tmp_path):
    (tmp_path / "f").write_bytes(b"one")
    for content in (
        Content(b"one"),
        Content(tmp_path / "f"),
        Content(tmp_path / "f", hashlib.sha256(b"one").hexdigest()),
    ):
        assert content.equals(regular("f", b"one")) and content.equals(large("f", b"one")) and content.size == 3
        assert not content.equals(regular("f", b"two")) and not content.equals(large("f", b"two"))


def test_what_is_added_replaced_and_deleted():
    there = remote(
        regular("b", b"old"), regular("c", b"same"), large("d", b"gone"), regular(".gitattributes", b"its own")
    )
    snapshot = {"c": Content(b"same"), "b": Content(b"new"), "a": Content(b"new")}
    assert compare(snapshot, there) == Changes(("a",), ("b",), ("d",))
    assert compare(snapshot, None) == Changes(("a", "b", "c")) and not compare({}, None)


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("README.md", True),
        ("assets/plot.png", True),
        (".eval_results/a.yaml", True),
        ("assets/deep/plot.png", False),
        ("docs/README.md", False),
        ("assets/plot.svg", False),
    ],
)
def test_files_beside_those_of_the_manifest(path, ours):
    assert is_beside(path) is ours


def test_what_is_not_ours_is_named():
    file = File(path="data/a.parquet", bytes=1, sha256=hashlib.sha256(b"a").hexdigest())
    manifest = Manifest(kind="dataset", name="n", version="0.1.0", fingerprint="f", files=(file,))
    there = [large("data/a.parquet", b"a"), regular("README.md", b"card"), regular(".gitattributes", b"")]
    assert strangers(remote(*there), manifest) == {}
    more = [large("data/a.parquet", b"b"), regular("n.py", b""), regular("lib/n.py", b""), regular("notes.txt", b"")]
    assert strangers(remote(*there[1:], *more), manifest) == {
        "data/a.parquet": "changed by hand",
        "lib/n.py": "not ours",
        "n.py": "a script on main: datasets 4 and later refuse to load the repository",
        "notes.txt": "not ours",
    }
    assert set(strangers(remote(*there), None)) == {"data/a.parquet", "README.md"}


def test_a_long_diff_is_cut_and_says_so():
    lines = text_diff("", "\n".join(map(str, range(100))), "README.md")
    assert lines[:2] == ["--- README.md as published", "+++ README.md on the Hub now"] and len(lines) == 41
    assert lines[-1] == "... and 63 more lines"


def test_a_plan_reads_as_a_diff_of_the_repository():
    changes = Changes(("a",), ("b",), ("c",))
    plan = Plan("o/n", "dataset", None, changes, "v0.1.0", True, {"x": "not ours"}, ("-old", "+new"), 12345)
    said = ["dataset o/n (new)", "  + a", "  ~ b", "  - c", "  12,345 bytes to send", "  tag v0.1.0", "  branch script"]
    assert str(plan).splitlines() == [*said, "  ! x: not ours", "    -old", "    +new"]
    assert str(Plan("o/n", "model", remote(), Changes(), None)).splitlines() == ["model o/n", "  no file changes"]

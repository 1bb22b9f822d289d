"""What a publication changes: files to be against files that are there."""

import hashlib

import pytest
from huggingface_hub.hf_api import RepoFile

from hub.client.plan import Changes, Content, Plan, Remote, is_beside


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


def test_a_plan_reads_as_a_diff_of_the_repository():
    changes = Changes(("a",), ("b",), ("c",))
    plan = Plan("o/n", "dataset", None, changes, "v0.1.0", True, {"x": "not ours"}, ("-old", "+new"), 12345)
    said = ["dataset o/n (new)", "  + a", "  ~ b", "  - c", "  12,345 bytes to send", "  tag v0.1.0", "  branch script"]
    assert str(plan).splitlines() == [*said, "  ! x: not ours", "    -old", "    +new"]
    assert str(Plan("o/n", "model", remote(), Changes(), None)).splitlines() == ["model o/n", "  no file changes"]

"""The local Hub's pure rules: git ids against git itself, attribute patterns, ref names, signatures, cards."""

import shutil
import subprocess
import time

import pytest

from hub_server.pages import cards
from hub_server.storage.credentials import Signer
from hub_server.storage.errors import HubError
from hub_server.storage.rules import check_path, check_ref_name, default_gitattributes, is_ignored, is_lfs
from hub_server.storage.trees import commit_id, object_id, tree_id


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
def test_ids_are_those_of_git(tmp_path):
    def git(*words: str) -> str:
        when = "1700000000 +0000"
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
               for key, value in (("NAME", "demo"), ("EMAIL", "demo@localhost"), ("DATE", when))}  # fmt: skip
        done = subprocess.run(["git", *words], cwd=tmp_path, env=who, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    contents = {"a.txt": b"a\n", "a/x": b"x", "a-b": b"", "a0": b"0", "é": b"e"}
    del contents["a.txt"]  # sorts between a-b and a/: put back under another folder
    contents["b/a.txt"] = b"a\n"
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    git("add", "-A")
    blob = {name: object_id("blob", content) for name, content in contents.items()}
    inner = {
        folder: tree_id([(file, blob[f"{folder}/{file}"], False)]) for folder, file in (("a", "x"), ("b", "a.txt"))
    }
    entries = [("é", blob["é"], False), ("a", inner["a"], True), ("b", inner["b"], True)]
    tree = tree_id(entries + [(name, blob[name], False) for name in ("a0", "a-b")])
    assert tree == git("write-tree")
    first = git("commit-tree", tree, "-m", "title\n\nmore")
    assert commit_id(tree, None, "demo", 1_700_000_000, "title\n\nmore") == first
    second = git("commit-tree", tree, "-p", first, "-m", "next")
    assert commit_id(tree, first, "demo", 1_700_000_000, "next") == second


@pytest.mark.parametrize(
    ("path", "size", "large"),
    [("a.parquet", 1, True), ("deep/a.safetensors", 1, True), ("a.parquet", 0, False), ("README.md", 1, False),
     ("saved_model/x/y", 1, True), ("other/saved_model/x/y", 1, False), ("events.tfevents.1", 1, True),
     ("x.json", 10_000_001, True), ("x.json", 10_000_000, False), ("a.tar.gz", 1, True), ("parquet", 1, False),
     ("x.lfs.y", 1, True)],
)  # fmt: skip
def test_default_attributes(path, size, large):
    assert is_lfs(default_gitattributes("model").decode(), path, size) == large


def test_own_attributes():
    rules = (
        "*.txt filter=lfs -text\ndocs/*.txt -filter\n# *.md filter=lfs\n[ab].md filter=lfs\n[!ab].rst filter=lfs\n[\n"
    )
    answers = {"a.txt": True, "docs/a.txt": False, "docs/in/a.txt": True, "a.md": True, "c.md": False}
    answers |= {"a.rst": False, "c.rst": True, "[": False}
    assert {path: is_lfs(rules, path, 1) for path in answers} == answers


def test_ignore_rules():
    rules = "*.tmp\n!keep.tmp\nbuild/\n/top.txt\n# no\n\na/**/z\n"
    ignored = {"x.tmp": True, "d/x.tmp": True, "keep.tmp": False, "build/x": True, "in/build/x": True, "build": False}
    ignored |= {"top.txt": True, "a/b/c/z": True, "a/z": True, "b/z": False, "no": False}
    assert {path: is_ignored(rules, path) for path in ignored} == ignored


@pytest.mark.parametrize(
    "name",
    [".git", ".GIT", ".git ", ".git.", ".git. .", "git~1", "GIT~1", "git~1 .", ".g\u200cit", "\ufeff.git", ".gi\u202et",
     ".git:x", ".git::$INDEX_ALLOCATION", ".git\u200d "],
)  # fmt: skip
def test_what_a_file_system_takes_for_git_is_refused(name):
    for path in (name, f"a/{name}", f"{name}/config"):
        with pytest.raises(HubError) as refused:
            check_path(path)
        assert refused.value.status == 422


def test_names_like_git_are_allowed():
    for path in (".gitignore", ".gitattributes", "x.git", "git", "git~2", ".github/x", "agit~1", ".git-x", "a .git"):
        assert check_path(path) == path


def test_patterns_that_nobody_can_read_fit_nothing():
    rules = "[z-a]\n\\\n!\n[[:alpha:]]\n*.tmp\n"
    assert is_ignored(rules, "x.tmp") and not is_ignored(rules, "x")


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/", "a//b", "a.lock", "x/.a", "a.",
     "@", "a@{1}", "-a", "HEAD", "refs/heads/x", "0" * 40, "x\x7f", "x" * 256],
)  # fmt: skip
def test_ref_names_git_refuses(name):
    with pytest.raises(HubError) as refused:
        check_ref_name(name)
    assert refused.value.status == 400


@pytest.mark.parametrize("name", ["main", "v1.0.0", "feature/one", "a@b", "é", "0" * 39])
def test_ref_names_git_takes(name):
    assert check_ref_name(name) == name


def test_signatures_expire(tmp_path):
    now = int(time.time())
    signed = Signer(tmp_path / "key").sign("PUT", "/x", now + 60)
    signer = Signer(tmp_path / "key")
    assert signer.accepts(signed, "PUT", "/x")
    assert not signer.accepts(signer.sign("PUT", "/x", now - 60), "PUT", "/x")
    assert not signer.accepts(signed, "POST", "/x") and not signer.accepts(signed, "PUT", "/y")
    assert not Signer(tmp_path / "other").accepts(signed, "PUT", "/x")
    for changed in (signed.replace(str(now + 60), str(now + 61)), signed[:-1], "", "-", "9"):
        assert not signer.accepts(changed, "PUT", "/x")


def test_metadata_becomes_json():
    text = "---\nwhen: 2024-01-02\n1: x\nn: .nan\nconfigs:\n- config_name: a\n---\nbody\n---\n"
    assert cards.read_metadata(text) == {"when": "2024-01-02", "1": "x", "n": "nan", "configs": [{"config_name": "a"}]}
    assert cards.read_metadata("body\n---\na: b\n---\n") is None and cards.read_metadata("---\n---\n") is None
    with pytest.raises(cards.CardProblem):
        cards.read_metadata("---\n- a\n---\n")

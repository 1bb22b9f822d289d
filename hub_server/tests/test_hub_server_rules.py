"""The local Hub's pure rules: git ids, attribute patterns, ref names, signatures, cards."""

import shutil
import subprocess
import time

import pytest

from hub_server.pages import cards
from hub_server.storage.credentials import Signer
from hub_server.storage.errors import HubError
from hub_server.storage.rules import (
    check_path,
    check_ref_name,
    check_repo_name,
    is_ignored,
    is_lfs,
    make_gitattributes,
)
from hub_server.storage.trees import compute_commit_id, compute_object_id, compute_tree_id


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
def test_ids_are_those_of_git(tmp_path):
    def git(*words: str) -> str:
        when = "1700000000 +0000"
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
               for key, value in (("NAME", "demo"), ("EMAIL", "demo@localhost"), ("DATE", when))}  # fmt: skip
        done = subprocess.run(
            ["git", *words], cwd=tmp_path, env=who, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    contents = {"a.txt": b"a\n", "a/x": b"x", "a-b": b"", "a0": b"0", "é": b"e"}
    del contents["a.txt"]  # sorts between a-b and a/: put back under another folder
    contents["b/a.txt"] = b"a\n"
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    git("add", "-A")
    blob = {name: compute_object_id("blob", content) for name, content in contents.items()}
    inner = {
        folder: compute_tree_id([(file, blob[f"{folder}/{file}"], False)])
        for folder, file in (("a", "x"), ("b", "a.txt"))
    }
    entries = [("é", blob["é"], False), ("a", inner["a"], True), ("b", inner["b"], True)]
    tree = compute_tree_id(entries + [(name, blob[name], False) for name in ("a0", "a-b")])
    assert tree == git("write-tree")
    first = git("commit-tree", tree, "-m", "title\n\nmore")
    assert compute_commit_id(tree, None, "demo", 1_700_000_000, "title\n\nmore") == first
    second = git("commit-tree", tree, "-p", first, "-m", "next")
    assert compute_commit_id(tree, first, "demo", 1_700_000_000, "next") == second


def test_attributes_decide_which_files_are_large():
    small = [
        ("a.parquet", 0),
        ("README.md", 1),
        ("other/saved_model/x/y", 1),
        ("x.json", 10_000_000),
        ("parquet", 1),
    ]
    large = [
        "a.parquet",
        "deep/a.safetensors",
        "saved_model/x/y",
        "events.tfevents.1",
        "a.tar.gz",
        "x.lfs.y",
    ]
    default = make_gitattributes("model").decode()
    assert all(is_lfs(default, path, 1) for path in large) and is_lfs(default, "x.json", 10_000_001)
    assert not [path for path, size in small if is_lfs(default, path, size)]
    own = (
        "*.txt filter=lfs -text\ndocs/*.txt -filter\n# *.md filter=lfs\n"
        "[ab].md filter=lfs\n[!ab].rst filter=lfs\n[\n"
    )
    answers = {
        "a.txt": True,
        "docs/a.txt": False,
        "docs/in/a.txt": True,
        "a.md": True,
        "c.md": False,
    }
    answers |= {"a.rst": False, "c.rst": True, "[": False}
    assert {path: is_lfs(own, path, 1) for path in answers} == answers


def test_ignore_rules():
    rules = "*.tmp\n!keep.tmp\nbuild/\n/top.txt\n# no\n\na/**/z\n"
    ignored = {
        "x.tmp": True,
        "d/x.tmp": True,
        "keep.tmp": False,
        "build/x": True,
        "in/build/x": True,
        "build": False,
    }
    ignored |= {"top.txt": True, "a/b/c/z": True, "a/z": True, "b/z": False, "no": False}
    assert {path: is_ignored(rules, path) for path in ignored} == ignored
    unreadable = "[z-a]\n\\\n!\n[[:alpha:]]\n*.tmp\n"
    assert is_ignored(unreadable, "x.tmp") and not is_ignored(unreadable, "x")


def refused(check, name: str) -> int:
    """The status of the refusal."""
    with pytest.raises(HubError) as error:
        check(name)
    return error.value.status


GIT = [
    ".git",
    ".GIT",
    ".git ",
    ".git.",
    ".git. .",
    "git~1",
    "GIT~1",
    "git~1 .",
    ".g\u200cit",
    "\ufeff.git",
]
GIT += [".gi\u202et", ".git:x", ".git::$INDEX_ALLOCATION", ".git\u200d "]
BAD_PATHS = [
    "../x",
    "a/../x",
    "a//b",
    "/x",
    "x/",
    "",
    ".",
    "a/./b",
    "..\\x",
    "a\\b",
    "C:/x",
    "a\x00b",
    "a\nb",
]
BAD_PATHS += ["a/" + "b" * 256, "/".join(["abcdefgh"] * 120), "/".join("a" * 101)]
BAD_REFS = [
    "",
    "a b",
    "a..b",
    "a~1",
    "a^",
    "a:b",
    "a?",
    "a*",
    "a[",
    "a\\b",
    "/a",
    "a/",
    "a//b",
    "a.lock",
    "x/.a",
    "a.",
]
BAD_REFS += ["@", "a@{1}", "-a", "HEAD", "refs/heads/x", "0" * 40, "x\x7f", "x" * 256]


def test_paths_and_refs_that_git_or_a_file_system_misreads_are_refused():
    paths = BAD_PATHS + [
        place.format(name) for name in GIT for place in ("{}", "a/{}", "{}/config")
    ]
    assert {refused(check_path, path) for path in paths} == {422}
    assert {refused(check_ref_name, name) for name in BAD_REFS} == {400}
    like_git = (
        ".gitignore",
        ".gitattributes",
        "x.git",
        "git",
        "git~2",
        ".github/x",
        "agit~1",
        ".git-x",
        "a .git",
    )
    assert [check_path(path) for path in like_git] == [*like_git]
    refs = ("main", "v1.0.0", "feature/one", "a@b", "é", "0" * 39)
    assert [check_ref_name(name) for name in refs] == [*refs]


def test_the_refusal_of_a_name_lists_every_rule():
    names = ("", "é", "-a", ".a", "a-", "a.", "data.git", "a--b", "a..b", "a" * 97)
    assert {refused(check_repo_name, name) for name in names} == {400}
    with pytest.raises(HubError, match=r"1 to 96 .*start with .*end with .* or '.git', or contain"):
        check_repo_name("data.git")
    with pytest.raises(HubError, match=r"check-ref-format.* 255 bytes.*HEAD.*commit id.*'refs/'"):
        check_ref_name("0" * 40)
    assert [check_repo_name(name) for name in ("_", "a.b", "a" * 96)] == ["_", "a.b", "a" * 96]


def test_signatures_expire(tmp_path):
    now = int(time.time())
    signed = Signer(tmp_path / "key").sign("PUT", "/x", now + 60)
    signer = Signer(tmp_path / "key")
    assert signer.verify(signed, "PUT", "/x")
    assert not signer.verify(signer.sign("PUT", "/x", now - 60), "PUT", "/x")
    assert not signer.verify(signed, "POST", "/x") and not signer.verify(signed, "PUT", "/y")
    assert not Signer(tmp_path / "other").verify(signed, "PUT", "/x")
    for changed in (signed.replace(str(now + 60), str(now + 61)), signed[:-1], "", "-", "9"):
        assert not signer.verify(changed, "PUT", "/x")


def test_metadata_becomes_json():
    text = "---\nwhen: 2024-01-02\n1: x\nn: .nan\nconfigs:\n- config_name: a\n---\nbody\n---\n"
    assert cards.read_metadata(text) == {
        "when": "2024-01-02",
        "1": "x",
        "n": "nan",
        "configs": [{"config_name": "a"}],
    }
    assert (
        cards.read_metadata("body\n---\na: b\n---\n") is None
        and cards.read_metadata("---\n---\n") is None
    )
    with pytest.raises(cards.CardProblem):
        cards.read_metadata("---\n- a\n---\n")


@pytest.mark.parametrize("value", ['!!int ""', '!!float ""', "!!map x", "!!map [1]", "!!set [1]"])
def test_a_value_that_is_not_of_its_yaml_type_is_a_problem_of_the_card(value):
    with pytest.raises(cards.CardProblem, match="not a"):
        cards.read_metadata(f"---\na: {value}\n---\n")

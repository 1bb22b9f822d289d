"""Which code of ours stops an unfinished run when it changes, and which code every node of a
cluster must have.
"""

import ast
import shutil
from pathlib import Path

import pytest

from sts_dino.generation.executors import ray_workers as cluster_actor
from sts_dino.generation.executors.ray_workers import CLUSTER_CODE, require_versions
from sts_dino.generation.pipeline.code_digest import (
    UNDECIDING_MODULES,
    combine_hashes,
    compute_code_digest,
    hash_deciding_modules,
    hash_reachable_modules,
)
from sts_dino.hub.errors import InputError

WORKER = "sts_dino.generation.executors.ray_workers"


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return hash_deciding_modules()


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the code that is looked at."""
    for package in ("generation", "hub"):
        shutil.copytree(
            package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "local")
        )
    return tmp_path


def add(tree: Path, modules: set[str], line: str) -> None:
    for module in modules:
        path = tree.joinpath(*module.removeprefix("sts_dino.").split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")


def replace(tree: Path, path: str, before: str, after: str) -> None:
    text = (tree / path).read_text(encoding="utf-8")
    assert before in text, path
    (tree / path).write_text(text.replace(before, after, 1), encoding="utf-8")


def test_every_module_that_a_run_reaches_counts_unless_it_is_named_aside(here):
    assert compute_code_digest() == combine_hashes(here)
    reached = set(hash_reachable_modules("sts_dino.generation.pipeline.job"))
    assert reached == here.keys() | UNDECIDING_MODULES.keys()  # and none of those named is gone
    row_makers = (
        "inputs.examples",
        "inputs.sources",
        "backends.engine",
        "rows.attempts",
        "rows.pairs",
        "pipeline.source_sentences",
    )
    assert {f"sts_dino.generation.{name}" for name in row_makers} <= here.keys()
    assert {
        "sts_dino.hub.contract.recipe",
        "sts_dino.hub.contract.schema",
        "sts_dino.hub.contract.shards",
    } <= here.keys()


def test_nothing_is_imported_by_a_name_that_cannot_be_read():
    for path in [*Path("generation").rglob("*.py"), *Path("hub").rglob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        called |= {node.id for node in nodes if isinstance(node, ast.Name)}
        assert not called & {"import_module", "__import__"}, path
        assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level], (
            f"{path}: relative"
        )


def test_a_change_of_each_row_deciding_module_stops_a_run(here, tree):
    add(tree, set(here), "ADDED = 1")
    changed = hash_deciding_modules(tree)
    assert changed.keys() == here.keys() and not [
        name for name in here if changed[name] == here[name]
    ]


def test_a_change_of_what_decides_no_row_stops_none(here, tree):
    talk = {"plan", "run", "explain", "executors.ray_executor", "executors.store"}
    add(
        tree,
        UNDECIDING_MODULES.keys()
        | {f"sts_dino.generation.{name}" for name in talk}
        | {"sts_dino.hub.contract.licences", "sts_dino.hub.client.publish"},
        "ADDED = 1",
    )
    replace(tree, "generation/rows/pairs.py", '"""', '"""In other words: ')
    add(tree, {"sts_dino.generation.backends.engine"}, "# a remark")
    assert hash_deciding_modules(tree) == here


def test_all_packages_around_an_imported_module_count(tmp_path):
    folder = tmp_path / "hub" / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "c.py").write_text("VALUE = 1\n")
    for package in (folder, folder.parent, tmp_path / "hub"):
        (package / "__init__.py").write_text("")
    for line in ("import sts_dino.hub.a.b.c", "from sts_dino.hub.a.b.c import VALUE"):
        (tmp_path / "start.py").write_text(line)
        assert hash_reachable_modules("sts_dino.start", root=tmp_path).keys() == {
            "sts_dino.start",
            "sts_dino.hub",
            "sts_dino.hub.a",
            "sts_dino.hub.a.b",
            "sts_dino.hub.a.b.c",
        }


def test_docstrings_of_no_kind_of_code_are_hashed(tree):
    code = 'async def ask():\n    """Ask."""\n    return 1\n\nclass A:\n    """An A."""'
    add(tree, {"sts_dino.generation.backends.engine"}, code)
    before = hash_deciding_modules(tree)
    replace(tree, "generation/backends/engine.py", '"""Ask."""', '"""Ask once."""')
    replace(tree, "generation/backends/engine.py", '"""An A."""', '"""Another A."""')
    assert hash_deciding_modules(tree) == before
    replace(tree, "generation/backends/engine.py", "return 1", "return 2")
    assert hash_deciding_modules(tree) != before


def test_a_node_with_any_other_module_of_ours_is_refused(tree):
    found = hash_reachable_modules(WORKER)
    assert {
        "sts_dino.generation.executors.store",
        "sts_dino.hub.untrusted",
        "sts_dino.hub.contract.run_dir",
    } <= found.keys()
    mine = cluster_actor.read_code_versions()
    assert (
        mine[CLUSTER_CODE]
        == combine_hashes(found)
        == combine_hashes(hash_reachable_modules(WORKER, root=tree))
    )
    add(tree, set(found), "ADDED = 1")
    other = hash_reachable_modules(WORKER, root=tree)
    for name in found:
        node = mine | {CLUSTER_CODE: combine_hashes(found | {name: other[name]})}
        with pytest.raises(
            InputError, match="versions: are not the driver's: sts-dino cluster code"
        ):
            require_versions(mine, node)

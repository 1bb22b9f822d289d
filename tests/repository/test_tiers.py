"""The suite in two tiers: whatever is marked slow says why, and what a person runs before a commit leaves it out."""

import ast
from pathlib import Path

import pytest

TESTS = sorted(Path("tests").rglob("test_*.py"))


def markers(tree: ast.AST) -> list[ast.expr]:
    """Every use of the marker ``slow``, called or not."""
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_slow(node.func)]
    within = {id(node.func) for node in called}
    return [*called, *(node for node in ast.walk(tree) if is_slow(node) and id(node) not in within)]


def is_slow(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow"


def reason(marker: ast.expr) -> str:
    """What a marker gives as its reason; nothing when it gives none."""
    given = marker.args if isinstance(marker, ast.Call) else []
    return str(given[0].value) if len(given) == 1 and isinstance(given[0], ast.Constant) else ""


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_a_slow_test_says_why(path):
    for marker in markers(ast.parse(path.read_text(encoding="utf-8"))):
        assert len(reason(marker)) > 10, f"{path}:{marker.lineno}: pytest.mark.slow needs a reason"


def test_a_marker_without_a_reason_is_found():
    tree = ast.parse('@pytest.mark.slow\ndef one(): ...\n@pytest.mark.slow("kills it again and again")\ndef two(): ...')
    assert sorted(reason(marker) for marker in markers(tree)) == ["", "kills it again and again"]


def test_the_commands_are_the_two_tiers():
    makefile = Path("Makefile").read_text(encoding="utf-8")
    assert '-m "not loaders and not slow"' in makefile.split("\ntest:")[1].split("\n\n")[0]
    assert "-m " not in makefile.split("\ntest-all:")[1].split("\n\n")[0].replace("$(RUN) -m pytest", "")
    assert "make test-all" in Path(".ci/run").read_text(encoding="utf-8")

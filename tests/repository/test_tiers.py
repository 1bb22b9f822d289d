"""The suite in two tiers: every slow test gives a reason, and what a person runs before a commit leaves it out."""

import ast
from pathlib import Path

import pytest

TESTS = [*sorted(Path("tests").rglob("test_*.py")), *sorted(Path("hub_server/tests").rglob("test_*.py"))]


def without_reason(tree: ast.AST) -> list[int]:
    """The lines of the markers ``slow`` that give no reason."""
    nodes = list(ast.walk(tree))
    given = {
        id(node.func)
        for node in nodes
        if isinstance(node, ast.Call) and node.args and len(str(getattr(node.args[0], "value", ""))) > 10
    }
    named = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow"]
    return [node.lineno for node in named if id(node) not in given]


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_a_slow_test_says_why(path):
    assert without_reason(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_a_marker_without_a_reason_is_found():
    tree = ast.parse('@pytest.mark.slow\ndef one(): ...\n@pytest.mark.slow("kills it again and again")\ndef two(): ...')
    assert without_reason(tree) == [1]


def test_the_commands_are_the_two_tiers():
    makefile = Path("Makefile").read_text(encoding="utf-8")
    assert '-m "not loaders and not slow"' in makefile.split("\ntest:")[1].split("\n\n")[0]
    assert "-m " not in makefile.split("\ntest-all:")[1].split("\n\n")[0].replace("$(RUN) -m pytest", "")
    assert "make test-all" in Path(".ci/run").read_text(encoding="utf-8")

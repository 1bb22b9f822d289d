"""The distribution imports the standard library, its declared dependencies, and itself."""

import ast
import re
import sys
import tomllib
from pathlib import Path

HOME = Path(__file__).parents[1]
ROOMS = {"storage": "", "pages": "", "handlers": "storage pages"}  # and what each may import
MODULES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((HOME / "src").rglob("*.py"))
}
MODULES_OF = {
    "markdown-it-py": {"markdown_it"},
    "pyyaml": {"yaml"},
    "uvicorn": {"uvicorn", "h11"},
    "starlette": {"starlette", "anyio"},
    "pathspec": {"pathspec", "re2"},
}


def imported(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_it_imports_nothing_of_sts_dino_and_nothing_undeclared():
    declared = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.split(r"[^\w-]", one)[0] for one in declared]
    allowed = set().union(
        *(MODULES_OF.get(name, {name}) for name in names), sys.stdlib_module_names
    )
    for path, tree in MODULES.items():
        assert {name.split(".")[0] for name in imported(tree)} <= allowed | {"hub_server"}, path


def test_folders_import_one_way():
    for path, tree in MODULES.items():
        room = path.relative_to(HOME / "src/hub_server").parts[0]
        if room in ROOMS:
            rooms = {
                name.split(".")[1] for name in imported(tree) if name.startswith("hub_server.")
            }
            assert rooms <= {room, *ROOMS[room].split()}, path

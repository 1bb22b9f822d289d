"""The house rules that a machine can hold: who imports whom, what stays at the rim, no module that hides another."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGES = ("hub", "generation", "training", "eval", "model_cards", "release", "benchmarks", "demo")
MAY_IMPORT = {
    "hub": {"hub"},
    "generation": {"hub", "generation"},
    "training": {"hub", "training"},
    "eval": {"hub", "eval"},
    "model_cards": {"hub", "model_cards"},
    "release": {"hub", "model_cards", "release"},
    "benchmarks": set(PACKAGES),
    "demo": {"hub", "release", "demo"},
}
FILES = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Every module a file imports, in full."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_flow_one_way(path):
    ours = {name.split(".")[0] for name in imported(path)} & set(PACKAGES)
    assert ours <= MAY_IMPORT[path.parts[0]]


@pytest.mark.parametrize("path", [*FILES, *sorted(Path("tests").glob("*.py"))], ids=str)
def test_nothing_kills_the_builtin_eval(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not {name for name in names if name.split(".")[0] == "eval"}


def test_heavy_libraries_stay_at_the_rim():
    heavy = {"torch", "transformers", "sentence_transformers", "mteb"}
    for path in FILES:
        if path.parts[0] in ("hub", "model_cards"):
            assert not {name.split(".")[0] for name in imported(path)} & heavy, path


def test_a_backends_library_is_imported_by_one_file_that_is_imported_when_used():
    for library, home in (("openai", "openai_client"), ("vllm", "vllm_local")):
        users = {path.stem for path in FILES if library in {name.split(".")[0] for name in imported(path)}}
        assert users == {home}
        for path in FILES:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            at_once = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
            assert f"generation.backends.{home}" not in at_once, path


def test_only_one_module_writes_to_a_hub():
    writes = {
        "create_commit",
        "upload_file",
        "upload_folder",
        "create_repo",
        "create_tag",
        "create_branch",
        "delete_branch",
        "push_to_hub",
        "delete_repo",
    }
    for path in FILES:
        if path == Path("hub/repository.py") or path.parts[:2] == ("hub", "local"):
            continue
        called = {n.attr for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Attribute)}
        assert not called & writes, path


def test_module_names_are_nouns_that_hide_nothing():
    libraries = {"datasets", "evaluate", "transformers", "torch", "mteb", "tokenizers"} | set(sys.stdlib_module_names)
    for path in FILES:
        assert path.stem not in {"utils", "helpers", "common"}, path
        if len(path.parts) == 2 and path.stem != "__init__":
            assert path.stem not in libraries - {"token", "cards"}, path


def test_every_package_is_listed_and_the_test_tree_is_flat():
    text = Path("pyproject.toml").read_text()
    for init in (p for package in PACKAGES for p in Path(package).rglob("__init__.py")):
        assert f'"{".".join(init.parent.parts)}"' in text, init
    assert not list(Path("tests").rglob("__init__.py"))


def test_makefile_targets_are_phony_and_have_no_name_clash():
    text = Path("Makefile").read_text()
    phony = {word for line in text.splitlines() if line.startswith(".PHONY") for word in line.split()[1:]}
    targets = {
        line.split(":")[0]
        for line in text.splitlines()
        if line[:1].isalpha() and ": " in line and "=" not in line.split(":")[0]
    }
    assert targets <= phony | {"PYTHON ?", "RUN "}, targets - phony

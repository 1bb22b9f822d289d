"""The project's weight: lines of Python by package, modules, lines of documentation, each with an upper bound."""

import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

BOUNDS = yaml.safe_load(Path(__file__).with_name("weight.yaml").read_text())
TREES = {"hub_server", "tests"}  # what "product" leaves out


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project that git knows, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(path for name in names if (path := Path(name)).is_file())


def is_test(path: Path) -> bool:
    return "tests" in path.parts


def lines(files: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def python_files(name: str) -> list[Path]:
    """The modules that a row of the table counts: those of its folders, or all of the product, or all tests."""
    files = [path for path in tracked() if path.suffix == ".py"]
    if name == "tests":
        return [path for path in files if is_test(path)]
    code = [path for path in files if not is_test(path)]
    if name == "product":
        return [path for path in code if path.parts[0] not in TREES]
    rows = [row.split() for row in BOUNDS["lines"] if row not in ("product", "tests")]
    inner = {folder for row in rows for folder in row if "/" in folder and folder not in name.split()}
    chosen = [path for path in code if any(path.is_relative_to(folder) for folder in name.split())]
    return [path for path in chosen if not any(path.is_relative_to(folder) for folder in inner)]


@pytest.mark.parametrize("name", BOUNDS["lines"])
def test_lines_of_python(name):
    counted, most = lines(python_files(name)), BOUNDS["lines"][name]["at_most"]
    assert counted <= most, f"{name}: {counted} lines; remove some, or argue in decisions.md"


def test_modules_are_few_and_each_is_counted_once():
    modules = [path for path in tracked() if path.suffix == ".py" and not is_test(path)]
    assert len(modules) <= BOUNDS["modules"]["at_most"], f"{len(modules)} modules outside tests"
    rows = [path for name in BOUNDS["lines"] if name not in ("product", "tests") for path in python_files(name)]
    assert sorted(rows) == sorted(modules)


def test_lines_of_documentation():
    pages = [path for path in tracked() if path.parts[0] == "docs" and path.suffix == ".md"]
    assert lines(pages) <= BOUNDS["docs"]["at_most"]
    assert lines([Path("README.md")]) <= BOUNDS["README.md"]["at_most"]

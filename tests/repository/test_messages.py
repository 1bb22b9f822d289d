"""Messages are log records: a program that uses the library can silence, route and keep them."""

import ast
import subprocess
import sys
from pathlib import Path

import import_graph
import pytest
from import_graph import PACKAGES

FILES = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.py"))]
COMMAND_LINE = "hub.cli"
# It prints before a logging handler can be imported, and when the installation is broken.
STARTS_THE_COMMAND_LINE = Path("sts_dino/__main__.py")
MESSAGES = """
import logging
from sts_dino import api
log = logging.getLogger("sts_dino.training.run")
log.info("a message")
log.warning("a warning")
"""


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def called_names(tree: ast.Module) -> set[str]:
    """The names of the functions that a module calls, without what they belong to."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names.add(ast.unparse(node.func).rpartition(".")[2])
    return names


def defines_commands(tree: ast.Module) -> bool:
    """Whether a module defines commands or their options: with typer, or our settings of it."""
    uses_options = any(
        isinstance(node, ast.Attribute) and node.attr.endswith("Option") for node in ast.walk(tree)
    )
    return (
        "typer" in import_graph.imported(tree) or "make_app" in called_names(tree) or uses_options
    )


def prints_to_stderr(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    streams = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "file"]
    writes = ast.unparse(node.func) == "sys.stderr.write"
    return writes or (ast.unparse(node.func) == "print" and streams == ["sys.stderr"])


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )


def test_only_modules_that_define_commands_import_the_command_line():
    for path in FILES:
        tree = parse(path)
        if COMMAND_LINE in import_graph.imported(tree):
            assert defines_commands(tree), path


def test_importing_the_api_leaves_logging_as_it_is():
    done = run_python(
        "import logging; from sts_dino import api; library = logging.getLogger('sts_dino')\n"
        "print(logging.root.handlers, library.handlers, library.level, library.propagate)"
    )
    assert done.stdout == "[] [] 0 True\n"


@pytest.mark.parametrize("path", [path for path in FILES if path != STARTS_THE_COMMAND_LINE])
def test_library_code_does_not_print_to_stderr(path):
    assert not [node.lineno for node in ast.walk(parse(path)) if prints_to_stderr(node)]


def test_a_modules_logger_has_the_modules_name():
    """So the level and the handlers of the logger ``sts_dino`` hold for every message."""
    for path in FILES:
        for node in parse(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "logger":
                assert ast.unparse(node.value) == "logging.getLogger(__name__)", path


def test_a_level_silences_the_api_in_a_fresh_process():
    silence = "import logging; logging.getLogger('sts_dino').setLevel(logging.ERROR)"
    assert run_python(MESSAGES).stderr == "a warning\n"
    assert run_python(silence + MESSAGES).stderr == ""


def test_a_process_that_configured_logging_gets_each_message_once():
    configure = "import logging; logging.basicConfig(level='INFO', format='mine: %(message)s')"
    assert run_python(configure + MESSAGES).stderr == "mine: a message\nmine: a warning\n"


def test_the_command_line_prints_one_line_for_each_message():
    """Also where another library configured logging: the records do not reach its handler."""
    done = run_python(
        "import logging; logging.basicConfig(level='INFO')\n"
        "from sts_dino.hub.cli import run_app\n"
        f"run_app(lambda: exec({MESSAGES!r}))"
    )
    assert done.stderr == "a message\nwarning: a warning\n" and done.stdout == ""

"""The house rules that a machine can hold: who imports whom, what stays at the rim, no module that
hides another.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import import_graph
import pytest
from import_graph import PACKAGES

MAY_IMPORT = {
    "hub": {"hub"},
    "generation": {"hub", "generation"},
    "training": {"hub", "training"},
    "eval": {"hub", "eval"},
    "model_cards": {"hub", "model_cards"},
    "release": {"hub", *import_graph.STAGES},
    "sts_dino": {"hub", *import_graph.STAGES, "sts_dino"},
    "experiments": {*PACKAGES, "hub_server"},
}
# Package → folder → the folders of the same package that it may import besides itself; the commands
# at its top: all.
ARROWS = {
    "hub": {"contract": "", "client": "contract"},
    "generation": {
        "inputs": "",
        "backends": "inputs",
        "rows": "inputs backends",
        "pipeline": "inputs backends rows",
        "executors": "inputs backends rows pipeline",
    },
    "eval": {
        "tasks": "",
        "encoders": "tasks",
        "scoring": "tasks encoders",
        "runs": "tasks encoders scoring",
        "compare": "tasks encoders scoring runs",
        "audit": "tasks encoders",
    },
    "training": {
        "data": "",
        "encoder": "data",
        "loop": "data encoder",
    },
}
# not installed: they read and write what only a clone has
OF_THE_REPOSITORY = {"experiments"}
FILES = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.py"))]
GRAPH = import_graph.module_graph()
PAGES = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    Path("experiments/speed/README.md"),
    *sorted(Path("docs").glob("*.md")),
]
STANDALONE = (("eval", "metrics"),)  # loaded by path, by the library ``evaluate``


def imported(path: Path) -> set[str]:
    """Every module a file imports, in full."""
    return import_graph.imported(ast.parse(path.read_text(encoding="utf-8")))


def test_imports_flow_one_way():
    for path in FILES:
        # a distribution of its own
        ours = {name.split(".")[0] for name in imported(path)} & {*PACKAGES, "hub_server"}
        assert ours <= MAY_IMPORT[path.parts[0]], path
    assert import_graph.circle(GRAPH) == []


@pytest.mark.parametrize("package", ARROWS)
def test_folders_of_a_package_import_one_way(package):
    found = {
        name.partition(".")[2]: {other.partition(".")[2] for other in others}
        for name, others in import_graph.inside(GRAPH, package).items()
        if tuple(name.split(".")) not in STANDALONE
    }
    assert found.keys() == ARROWS[package].keys()
    assert not [
        (name, extra)
        for name in found
        if (extra := found[name] - set(ARROWS[package][name].split()))
    ]
    for name, others in GRAPH.items():
        if name.startswith(f"{package}.") and import_graph.folder(name) != package:
            commands = {other for other in others if import_graph.folder(other) == package}
            # hub's own modules are what all share
            assert not commands or package == "hub", (name, commands)


def test_the_page_on_architecture_shows_the_imports_as_they_are():
    page = import_graph.PAGE.read_text(encoding="utf-8")
    drawn = import_graph.with_diagrams(page, import_graph.diagrams(GRAPH))
    assert page == drawn, "run: python tests/support/import_graph.py --write"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_that_a_page_names_is_there(page):
    named = re.findall(
        r"(?<![\w/.-])((?:[a-z_]+/)+[\w.-]+\.(?:py|yaml|jinja|md))\b",
        page.read_text(encoding="utf-8"),
    )
    ours = {
        name
        for name in named
        if Path(name.split("/")[0]).is_dir() and not name.startswith("artifacts/")
    }
    examples = {name for name in ours if "NAME" in name or "..." in name}
    assert not [name for name in ours - examples if not Path(name).is_file()]


def test_nothing_kills_the_builtin_eval():
    for path in [*FILES, *sorted(Path("tests").rglob("*.py"))]:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        assert not {name for name in names if name.split(".")[0] == "eval"}, path


def test_heavy_libraries_stay_at_the_rim():
    heavy = {"torch", "transformers", "sentence_transformers", "mteb"}
    for path in FILES:
        libraries = {name.split(".")[0] for name in imported(path)}
        assert path.parts[0] not in ("hub", "model_cards") or not libraries & heavy, path
        assert "openai" not in libraries or path.stem == "openai_server", path
    server = "generation.backends.openai_server"
    assert {name for name, others in GRAPH.items() if server in others} == {
        "generation.backends.registry"
    }


def test_only_one_module_writes_to_a_hub():
    writes = {
        "create_commit",
        "upload_file",
        "upload_folder",
        "create_repo",
        "create_tag",
        "create_branch",
    }
    writes |= {"delete_branch", "push_to_hub", "delete_repo"}
    for path in FILES:
        called = {
            n.attr
            for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(n, ast.Attribute)
        }
        assert path == Path("hub/client/repository.py") or not called & writes, path


def test_every_package_is_found_and_the_test_tree_is_flat():
    """A folder with modules is a package, and ``setup.py`` names its top, but for those that need a
    clone.
    """
    text = Path("setup.py").read_text()
    for path in FILES:
        assert path.parts[:2] in STANDALONE or (path.parent / "__init__.py").is_file(), path
        assert (f'"{path.parts[0]}"' in text) is (path.parts[0] not in OF_THE_REPOSITORY), path
    assert not list(Path("tests").rglob("__init__.py"))


def test_the_contract_and_the_client_import_nothing_that_takes_seconds():
    files = [path.with_suffix("") for path in FILES if path.parts[0] == "hub"]
    modules = [".".join(["sts_dino", *path.parts]) for path in files]
    heavy = {"datasets", "pandas", "huggingface_hub.hf_api", "matplotlib", "torch"}
    code = f"import sys, {', '.join(modules)}; print(sorted({heavy!r} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_a_slow_test_says_why():
    for path in [*Path("tests").rglob("test_*.py"), *Path("hub_server/tests").rglob("test_*.py")]:
        tree = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        calls = [node for node in tree if isinstance(node, ast.Call) and node.args]
        given = [node.func for node in calls if len(str(getattr(node.args[0], "value", ""))) > 10]
        named = [
            node
            for node in tree
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow"
        ]
        assert [node.lineno for node in named if node not in given] == [], path


def test_the_commands_are_the_two_tiers():
    """What a person runs before a commit leaves out the slow tests."""
    makefile = Path("Makefile").read_text(encoding="utf-8")
    assert '-m "not loaders and not slow"' in makefile.split("\ntest:")[1].split("\n\n")[0]
    assert "-m " not in makefile.split("\ntest-all:")[1].split("\n\n")[0].replace(
        "$(RUN) -m pytest", ""
    )
    assert "make test-all" in Path(".ci/run").read_text(encoding="utf-8")

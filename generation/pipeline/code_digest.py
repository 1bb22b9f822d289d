"""Versions that decide a run's bytes besides its recipe and inputs: the libraries, and a digest of our own code.

A run that one version begins must not be finished by another: no version could reproduce the mixture of rows. So
``hub.contract.run_dir.begin`` compares these versions with the manifest and refuses to resume. The code hash covers the
modules that a run can reach. A module counts unless ``ASIDE`` says why it decides no row, so a new one cannot be
forgotten. Library versions are compared whole: a patch release of torch may change the last bit of a sum, and one bit
may change a token.

A module's digest leaves out docstrings, comments, layout and the words of errors. It leaves out keys of a recipe and
their checks as well: the recipe's values, defaults included, are in its fingerprint. Properties stay.
"""

import ast
import hashlib
import importlib.metadata
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hub.contract.recipe import DatasetRecipe

LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
LANGUAGES = "py3langid"  # tells them apart, for recipes that ask for it
CODE = "sts-dino code"
ROOT = Path(__file__).parents[2]
_PACKAGES = ("generation", "hub")
_WORK = "generation.pipeline.job"  # what a run calls
_SECTION = "Strict"  # hub.contract.recipe: the base of recipes and their sections
_CHECKS = ("field_validator", "model_validator")
_PROBLEMS = "_problems"  # how a section's checks of several keys end
ASIDE = {
    "generation.pipeline.reporting": "the progress bar, timing, a server's cost, the manifest's provenance",
    "generation.pipeline.code_digest": "this digest",
    "hub.cli": "talk on stderr, exit codes",
    "hub.client.connection": "how long a Hub may take, and how its failures are known",
    "hub.errors": "the wording of a problem",
    "hub.process": "signals, exit codes, the peak of memory",
    "hub.untrusted": "text on its way to a terminal or a page, YAML, model folders",
    "hub.contract.recipe_file": "what it reads is in the fingerprint",
    "hub.contract.run_dir": "the manifest, which is written anew as a whole",
}


def versions(recipe: DatasetRecipe | None = None) -> dict[str, str]:
    """Library → version, and the digest of our own code; of all libraries, or those that decide a recipe's rows."""
    detects = recipe is None or "wrong_language" in recipe.postprocess.reject
    names = (*LIBRARIES, *((LANGUAGES,) if detects else ()))
    return {name: importlib.metadata.version(name) for name in names} | {CODE: code_digest()}


@cache
def code_digest() -> str:
    """SHA-256, shortened, over the code of ours that decides rows."""
    return digest_of(deciding_modules())


def deciding_modules(root: Path = ROOT) -> dict[str, str]:
    """Module → SHA-256 of its code: all that a run can reach but ``ASIDE``."""
    return module_digests(_WORK, ASIDE, root)


def digest_of(modules: Mapping[str, str]) -> str:
    """SHA-256, shortened, of all modules together."""
    text = "".join(f"{name} {modules[name]}\n" for name in sorted(modules))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def module_digests(start: str, aside: Collection[str] = (), root: Path = ROOT) -> dict[str, str]:
    """Module → SHA-256 of its code, for ``start`` and what it imports, at the top or inside functions.

    Modules ``aside`` are left out, and what they alone import.
    """
    found, waiting = dict[str, str](), [start]
    while waiting:
        name = waiting.pop()
        path = _file(name, root)
        if name not in found and name not in aside and path.is_file():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            waiting += [other for other in _imported(tree) if other.split(".")[0] in _PACKAGES]
            found[name] = hashlib.sha256(bare(tree).encode()).hexdigest()
    return found


def _file(module: str, root: Path) -> Path:
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    parents = {name.rpartition(".")[0] for name in names}  # a package's own code runs first
    return names | {parent for parent in parents if parent}


def bare(tree: ast.Module) -> str:
    """A module's code without what is only words, and without a recipe's keys and checks. Changes ``tree``."""
    return ast.unparse(_Bare().visit(tree))


class _Bare(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        checks = any(name.id in _CHECKS for mark in node.decorator_list for name in _names(mark))
        return None if checks or node.name.endswith(_PROBLEMS) else self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        if any(name.id == _SECTION for base in node.bases for name in _names(base)):
            node.body = [part for part in node.body if not isinstance(part, ast.AnnAssign)]
        return self._without_docstring(node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return node

    def _without_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    visit_Module = visit_AsyncFunctionDef = _without_docstring


def _names(node: ast.AST) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]

"""Versions that decide a run's bytes besides its recipe and inputs: the libraries, and a digest of our own code.

A run that one version begins must not be finished by another: ``hub.contract.run_dir.begin`` refuses it. The digest
covers every module that a run can reach, unless ``ASIDE`` says why it decides no row. Library versions are compared
whole: a patch release of torch may change the last bit of a sum, and so a token.
"""

import ast
import hashlib
import importlib.metadata
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from hub.contract.recipe import DatasetRecipe

LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
LANGUAGES = "py3langid"  # tells them apart, for recipes that ask for it
CODE = "sts-dino code"
ROOT = Path(__file__).parents[2]
_PACKAGES = ("generation", "hub")
_WORK = "generation.pipeline.job"  # what a run calls
ASIDE = {
    "generation.pipeline.reporting": "the progress bar, timing, a server's cost, the manifest's provenance",
    "generation.pipeline.code_digest": "this digest",
    "hub.cli": "talk on stderr, exit codes",
    "hub.client.connection": "how long a Hub may take, and how its failures are known",
    "hub.environment": "which environment variables are refused",
    "hub.errors": "the wording of a problem",
    "hub.contract.packaged": "where the models of sts-dino lm are, and whether memory holds them",
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
    """Module → SHA-256 of its code, for ``start`` and what it imports anywhere, but through modules ``aside``."""
    found, waiting = dict[str, str](), [start]
    while waiting:
        name = waiting.pop()
        path = _file(name, root)
        if name not in found and name not in aside and path.is_file():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            waiting += [other for other in _imported(tree) if other.split(".")[0] in _PACKAGES]
            found[name] = hashlib.sha256(_bare(tree).encode()).hexdigest()
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


def _bare(tree: ast.Module) -> str:
    """A module's code without docstrings, comments and layout. Changes ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)

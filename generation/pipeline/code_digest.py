"""Versions that decide a run's bytes besides its recipe and inputs: libraries and our own code.

A run that one version begins cannot be finished by another:
``sts_dino.hub.contract.run_dir.begin`` refuses it. The digest of our code covers every module that
a run can reach, except those that decide no row (``UNDECIDING_MODULES``). Library versions are
compared in full: a patch release of torch may change the last bit of a sum, and so a token.
"""

import ast
import hashlib
import importlib.metadata
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from sts_dino.hub.contract.recipe import DatasetRecipe

LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
SELECTION_LIBRARY = "sentence-transformers"  # of recipes that choose texts by an encoder
LANGUAGE_LIBRARY = "py3langid"  # recognises languages, for recipes that reject wrong ones
CODE_VERSION_NAME = "sts-dino code"
# the folder that holds generation/ and hub/: a clone, or the package sts_dino of an installation
CODE_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("sts_dino.generation.", "sts_dino.hub.")
_START = "sts_dino.generation.pipeline.job"  # the module that a run calls
# module → what it does that decides no row
UNDECIDING_MODULES = {
    "sts_dino.generation.pipeline.reporting": "the progress bar, timing, a server's usage and "
    "the estimate of its price, the manifest's provenance",
    "sts_dino.generation.pipeline.code_digest": "this digest",
    "sts_dino.hub.client.connection": "timeouts of a Hub, and how its failures are recognised",
    "sts_dino.hub.errors": "the wording of a problem",
    "sts_dino.hub.contract.licences": "the licences that the manifest's provenance names",
    "sts_dino.hub.contract.packaged": "where the models of sts-dino lm are, and whether memory "
    "holds them",
    "sts_dino.hub.messages": "messages, and how progress is shown",
    "sts_dino.hub.process": "signals, exit codes, the peak of memory, environment variables",
    "sts_dino.hub.untrusted": "text on its way to a terminal or a page, YAML, model folders",
    "sts_dino.hub.contract.recipe_file": "what it reads is in the fingerprint",
    "sts_dino.hub.contract.run_dir": "the manifest, which is written anew as a whole",
}


def get_versions(recipe: DatasetRecipe | None = None) -> dict[str, str]:
    """Return name → version of the libraries, and ``CODE_VERSION_NAME`` → the digest of our code.

    The libraries are those that can change a recipe's rows; without a recipe, those of any recipe.
    """
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    if recipe is None or "wrong_language" in recipe.postprocess.reject:
        versions[LANGUAGE_LIBRARY] = importlib.metadata.version(LANGUAGE_LIBRARY)
    if recipe is None or recipe.selection is not None:
        versions[SELECTION_LIBRARY] = importlib.metadata.version(SELECTION_LIBRARY)
    versions[CODE_VERSION_NAME] = compute_code_digest()
    return versions


@cache
def compute_code_digest() -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of our code that decides rows."""
    return combine_hashes(hash_deciding_modules())


def hash_deciding_modules(root: Path = CODE_ROOT) -> dict[str, str]:
    """Return module → SHA-256 of the code of each module that a run imports.

    ``UNDECIDING_MODULES`` and modules that only they import are left out. ``root``: the folder that
    holds ``generation/`` and ``hub/``.
    """
    return hash_reachable_modules(_START, UNDECIDING_MODULES, root)


def combine_hashes(modules: Mapping[str, str]) -> str:
    """Return the first 16 hexadecimal digits of one SHA-256 for all modules.

    ``modules``: name → SHA-256; their order does not matter.
    """
    text = "".join(f"{name} {modules[name]}\n" for name in sorted(modules))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_reachable_modules(
    start: str, excluded: Collection[str] = (), root: Path = CODE_ROOT
) -> dict[str, str]:
    """Return name → SHA-256 of the code of a module, and of each of our modules that it imports.

    Imports inside functions count, too, and imports of imported modules. Docstrings, comments and
    layout do not count.

    Args:
        start: name of the first module.
        excluded: modules that are left out, with the modules that only they import.
        root: the folder that holds ``generation/`` and ``hub/``.
    """
    hashes: dict[str, str] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        path = _find_file(name, root)
        # an imported name may be no module: a function, for example
        if name in hashes or name in excluded or not path.is_file():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for imported in _list_imports(tree):
            # with the dot a package itself counts, too
            if f"{imported}.".startswith(_PACKAGES):
                waiting.append(imported)
        hashes[name] = hashlib.sha256(_unparse_code(tree).encode()).hexdigest()
    return hashes


def _find_file(module: str, root: Path) -> Path:
    """Return the file of a module: ``sts_dino.hub.errors`` lies in the folder ``hub``."""
    _, *parts = module.split(".")
    path = root.joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _list_imports(tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports, and the packages that contain them.

    ``from a.b import c`` gives a.b.c, a.b and a: ``c`` may be a module. Relative imports are left
    out; this project has none.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)

    # the code of every package that contains a module runs before the module's
    packages: set[str] = set()
    for name in names:
        parts = name.split(".")
        packages.update(".".join(parts[:count]) for count in range(1, len(parts)))
    return names | packages


def _unparse_code(tree: ast.Module) -> str:
    """Return the code of a module without docstrings, comments and layout.

    The docstrings are removed from ``tree`` itself.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)

"""What decides a run's bytes besides its recipe and inputs: the libraries and our own code.

A run that one version begins must not be finished by another: its rows would be a mixture that neither can make again.
So ``hub.run_dir.begin`` compares what stands here with the manifest and refuses to go on. Our code is told by a digest
over the modules that a run can reach, not by a number that somebody must remember to raise; docstrings, comments and
layout are left out, so that an edit of words interrupts nobody. Library versions are compared whole: a patch release of
torch may change the last bit of a sum, and one bit may change a token.
"""

import ast
import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path

LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
CODE = "sts-dino code"
_ROOT = Path(__file__).parent.parent
_WORK = "generation.job"  # what a run calls
_FORM = ("hub.schema", "hub.shards")  # how rows become bytes


def versions() -> dict[str, str]:
    """Library → version, and the digest of our own code."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES} | {CODE: code_digest()}


@cache
def code_digest() -> str:
    """SHA-256, shortened, over the modules of ``generation`` that the work of a run imports, and over the file form."""
    digest = hashlib.sha256()
    for name in sorted({*reachable(_WORK), *_FORM}):
        digest.update(f"{name}\n{_bare(_file(name))}\n".encode())
    return digest.hexdigest()[:16]


def reachable(start: str) -> set[str]:
    """``start`` and every module of ``generation`` that it imports, at the top or inside functions, directly or not."""
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name not in found and _file(name).is_file():
            found.add(name)
            waiting += [other for other in _imported(_file(name)) if other.startswith("generation.")]
    return found


def _file(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _bare(path: Path) -> str:
    """A module's code without docstrings, comments and layout."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)

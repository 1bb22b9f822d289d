"""Every function of the Python API, for people: sts-dino api-reference --write

``docs/api.md``, from the signatures and docstrings of ``sts_dino.api``.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hub import cli
from sts_dino import api

PAGE = Path("docs/api.md")
SOURCE = Path(__file__).with_name("api.py")
HEAD = """# Python API

Drawn from the signatures and docstrings of `sts_dino/api.py` by `sts-dino api-reference --write`; a test
holds the page to them. All of it at work: [notebooks/first_encoder.ipynb](notebooks/first_encoder.ipynb).
"""

app = cli.new_app(__doc__)


@app.command()
def main(write: Annotated[bool, typer.Option("--write", help="Write the page, in a clone")] = False) -> None:
    """Print the reference, or write it to the clone.

    Example:

      sts-dino api-reference --write
    """
    if write:
        PAGE.write_text(page(), encoding="utf-8")
    print(PAGE if write else page(), end="\n" if write else "")


def page() -> str:
    """The reference as Markdown: what the module says, then every public function in its order."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    return "\n".join([HEAD, f"{_prose(tree)}\n", *_functions(tree)])


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"## {node.name}\n\n```python\n{_signature(node)}\n```\n\n{_prose(node)}\n"


def _signature(node: ast.FunctionDef) -> str:
    """The signature as one would write it, an argument a line, with the values of its defaults."""
    of, given = node.args, inspect.signature(getattr(api, node.name)).parameters
    lines = [_argument(one, given[one.arg]) for one in (*of.posonlyargs, *of.args)]
    if of.vararg:
        lines.append(f"*{_argument(of.vararg, given[of.vararg.arg])}")
    elif of.kwonlyargs:
        lines.append("*")
    lines += [_argument(one, given[one.arg]) for one in of.kwonlyargs]
    inside = "".join(f"    {line},\n" for line in lines)
    return f"api.{node.name}(\n{inside}) -> {_type(node.returns)}"


def _argument(one: ast.arg, given: inspect.Parameter) -> str:
    value = json.dumps(given.default) if isinstance(given.default, str) else repr(given.default)
    return f"{one.arg}: {_type(one.annotation)}" + ("" if given.default is given.empty else f" = {value}")


def _type(annotation: ast.expr | None) -> str:
    """A type, also where it is quoted in the source, for it is imported by none."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation) if annotation else "None"


def _prose(node: ast.Module | ast.FunctionDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "").replace("``", "`")

"""Run the code cells of a notebook in order, as Jupyter does, and keep their outputs:
notebook_cells.py FILE

With ``--write`` the outputs go into the notebook, else the notebook with its outputs is printed as
JSON. Talk and progress (stderr) are not kept. Run it in an empty folder: a notebook writes where it
runs.
"""

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

TEXT, HTML = "text/plain", "text/html"


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its code cells. What a cell raises passes through."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"], cell["outputs"] = (
            number,
            outputs("".join(cell["source"]), names, number),
        )
    return notebook


def outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What one cell prints, and the value of its last expression."""
    tree, value = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    shown: list[dict[str, Any]] = []
    if text := printed.getvalue():
        shown.append(
            {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
        )
    if value is not None:
        data = {TEXT: repr(value).splitlines(keepends=True)}
        html = getattr(value, "_repr_html_", None)
        data |= {HTML: html().splitlines(keepends=True)} if html and html() else {}
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
        shown.append(result | {"data": data})
    return shown


if __name__ == "__main__":
    path = Path(sys.argv[1])
    found = (
        json.dumps(
            executed(json.loads(path.read_text(encoding="utf-8"))), indent=1, ensure_ascii=False
        )
        + "\n"
    )
    if sys.argv[2:] == ["--write"]:
        path.write_text(found, encoding="utf-8")
    else:
        print(found)

"""The README's picture, drawn from a run: python -m benchmarks.picture RUN_DIR --out docs/picture.svg --row ID

One first text with what the language model wrote for each label, how near a judge that no filter asks
(all-MiniLM-L6-v2) finds each text to it, and how good the row is among all of the run's, which the picture says.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from benchmarks.papers.dino.examples import Example, examples, judged, written
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE
from hub.durable import write_text
from hub.errors import InputError
from hub.untrusted import visible_line

LETTERS = 66  # of a line of a text, in the template's font
LINE, PADDING = 22, 16  # units between lines, and above and below a text

app = cli.new_app(__doc__)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset of scored pairs")],
    row: Annotated[str, typer.Option("--row", metavar="ID", help="The first text's source_id")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The SVG file")],
    model: Annotated[str, typer.Option("--model", help="What the picture calls the language model")],
) -> None:
    """Draw one first text with the texts that were written for it.

    Examples:

      python -m benchmarks.picture RUN_DIR --row 001216 --model "Gemma 3 270M" --out docs/picture.svg
    """
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    pairs = written(directory)
    found = examples(pairs, judged(pairs))
    meanings = {label.name: label.meaning or "" for label in recipe.labels}
    write_text(out, picture(found, row, model, meanings))
    cli.say(f"written: {out}")


def picture(found: Sequence[Example], row: str, model: str, meanings: dict[str, str]) -> str:
    """The SVG of the row whose source_id is ``row``. Raises InputError when no first text with all labels has it."""
    order = sorted(found, key=lambda one: one.gap, reverse=True)
    rank = next((rank for rank, one in enumerate(order, 1) if one.source == row), None)
    if rank is None:
        raise InputError("--row", f"no first text with a text for every label is called {row!r}")
    one = order[rank - 1]
    boxes, top = [], 0
    for label, text in {"": one.first, **one.texts}.items():
        lines = wrap(visible_line(text), LETTERS)
        height = len(lines) * LINE + 2 * PADDING
        boxes.append({"label": label, "meaning": meanings.get(label, ""), "lines": lines, "top": top, "height": height})
        boxes[-1]["cosine"] = one.cosines.get(label)
        top += height + 12 + (10 if not label else 0)
    drawn = {"boxes": boxes, "height": top + 42, "model": model, "rank": rank, "of": len(order)}
    return _template().render(**drawn, line=LINE, padding=PADDING)


def _template() -> Template:
    where = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=where, autoescape=True, undefined=StrictUndefined).get_template("picture.svg.jinja")


if __name__ == "__main__":
    cli.run(app)

"""Compare evaluations: ``sts-dino compare A B C [--out DIR]``.

Prints the scores and the verdict on every pair of models, and writes ``comparison.md``, CSV files and plots.
Evaluations are read as they are on disk; nothing is encoded.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eval.compare import tables
from eval.compare.tables import Comparison, compared, result_tables
from eval.runs.records import read_evaluation
from hub.cli import JsonOption, answer, new_app, say
from hub.contract.run_dir import ARTIFACTS
from hub.durable import write_bytes, write_text
from hub.errors import InputError

LONGEST = 80  # characters of the default folder's name


app = new_app("Compare evaluations: which differences between scored encoders are significant.")


@app.command()
def main(
    evaluations: Annotated[
        list[Path], typer.Argument(metavar="EVALUATION...", help="Evaluations, scored models or results files")
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="[default: artifacts/comparisons/NAMES]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare evaluations: scores, paired intervals, a verdict for each pair of models; tables and plots.

    Example:

      sts-dino compare artifacts/models/A artifacts/evaluations/B --out /tmp/comparison
    """
    compare(evaluations, out, as_json)


def compare(places: Sequence[str | Path], out: Path | None = None, as_json: bool = False) -> Comparison:
    """Print and write the comparison of the evaluations in ``places``: their folders, run directories or results files.

    ``out`` is by default artifacts/comparisons/NAMES. Raises InputError when fewer than two are given, one is given
    twice, or no two share a measurement (then nothing is written).
    """
    known = [Path(place).resolve() for place in places]
    if len(known) < 2:
        raise InputError("compare", f"needs two evaluations or more, {len(known)} given", hint="name two")
    if len(set(known)) < len(known):
        twice = next(place for place, path in zip(places, known, strict=True) if known.count(path) > 1)
        raise InputError("compare", f"{twice} is given twice")
    comparison = compared([read_evaluation(place) for place in places])
    folder = out or ARTIFACTS / "comparisons" / folder_name(comparison.models)
    write(comparison, folder)
    shown = result_tables(comparison)
    facts = {"directory": folder, **{sheet.title: [sheet.header, *sheet.rows] for sheet in shown}}
    answer("\n\n".join(map(tables.text, shown)), facts, as_json)
    say(f"written: {folder}")
    return comparison


def write(comparison: Comparison, folder: Path) -> None:
    """Write every table and plot of a comparison, each file atomically."""
    from eval.compare.plots import plots  # matplotlib costs seconds

    pictures = plots(comparison)
    shown = [(words, name) for name, (words, _) in pictures.items() if name.endswith(".png")]
    write_text(folder / "comparison.md", tables.as_markdown(result_tables(comparison), shown))
    write_text(folder / "scores.csv", tables.scores_csv(comparison))
    write_text(folder / "differences.csv", tables.verdicts_csv(comparison))
    for name, (_, content) in pictures.items():
        write_bytes(folder / name, content)


def folder_name(models: Sequence[str]) -> str:
    """A folder's name from models' names: safe in a path, distinct for distinct models."""
    plain = "--".join(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model" for name in models)
    digest = hashlib.sha256("\n".join(models).encode()).hexdigest()[:8]
    return f"{plain[:LONGEST].strip('-.')}-{digest}"

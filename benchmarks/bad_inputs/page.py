"""The page of bad inputs, from the results of a run."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trials import table
from hub.durable import write_text
from hub.untrusted import code
from sts_dino.commands import COMMANDS

MOST_SHOWN, ENDING = 360, 120  # characters of a message on the page
HEAD = """# Bad inputs

What people get wrong, and what they are told: {count} cases, each a real command in a folder of its own, written by
`python -m benchmarks.bad_inputs`. Exit code 2 means that the input has to change, 1 that the world failed (a disk, a
lock, a Hub). A refusal is one line: the place, what was found, what is allowed, what to do next. The seconds are the
whole process's CPU time and what one waits; a language model is loaded only in those that need one.
"""


def write_page(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the page."""
    write_text(path, page(rows))


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The page as Markdown: a table for each command, in the order of the rows."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        word = row["command"].split()[1]
        tables.setdefault(f"sts-dino {word}" if word in COMMANDS else "No command", []).append(row)
    parts = [f"## {title}\n\n{_table(found)}\n" for title, found in tables.items()]
    return "\n".join([HEAD.format(count=len(rows)), *parts])


def cut(message: str) -> str:
    """A message without the middle of a long list of what is allowed."""
    return message if len(message) <= MOST_SHOWN else f"{message[: MOST_SHOWN - ENDING]} […] {message[-ENDING:]}"


def _table(rows: Iterable[dict[str, Any]]) -> str:
    cells = [
        [
            row["did"],
            code(row["command"]),
            code(cut(row["message"])),
            str(row["code"]),
            f"{row['cpu_s']:.1f}",
            f"{row['wall_s']:.1f}",
        ]
        for row in rows
    ]
    return table(["what was given", "command", "what is said", "exit code", "CPU s", "wall s"], cells, names=3)

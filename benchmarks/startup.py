"""Seconds until every command answers ``--help`` and refuses bad input: medians over fresh processes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trials import cost_of, interleaved, spread, table, write_results
from hub import cli
from sts_dino.commands import COMMANDS

MISSING = "no-such-place"
REFUSALS = {name: [name, MISSING] for name in ("write", "explain", "train", "score", "card", "release", "publish")}

app = cli.new_app(__doc__)


def questions() -> dict[str, list[str]]:
    """Name of a measurement → words of ``sts-dino``: each command's help, and one refusal (an unknown option else)."""
    helps = {f"{name} --help": [name, "--help"] for name in COMMANDS}
    refusals = {f"{name}, refusal": REFUSALS.get(name, [name, "--no-such-option"]) for name in COMMANDS}
    return {"--version": ["--version"], "--help": ["--help"], **helps, **refusals}


@app.command(no_args_is_help=False)
def main(
    only: Annotated[list[str] | None, typer.Option("--only", help="Commands to measure; repeatable")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1)] = 3,
    out: Annotated[Path, typer.Option("--out", help="JSON file")] = Path("benchmarks/results/startup.json"),
) -> None:
    """Measure how fast every command answers, and print median CPU and wall seconds."""
    wanted = {name: words for name, words in questions().items() if not only or words[0] in only}
    runs = interleaved(list(wanted), rounds, lambda name, _: cost_of(*wanted[name]))
    found: dict[str, dict[str, Any]] = {
        name: {key: spread([getattr(run, key) for run in of]) for key in ("cpu_s", "wall_s")} | {"code": of[0].code}
        for name, of in runs.items()
    }
    write_results(out, {"commands": found, "rounds": rounds}, ["typer", "pydantic"])
    rows = [[name, *(f"{one[key]['median']:.2f}" for key in ("cpu_s", "wall_s"))] for name, one in found.items()]
    print(table(["command", "CPU seconds", "wall seconds"], rows))

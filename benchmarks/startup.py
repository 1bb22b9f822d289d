"""Start-up time of every command: python -m benchmarks.startup [--only "sts_dino new"] [--rounds 3]

CPU and wall seconds of ``--help``, ``--version`` and one refusal of each ``python -m`` command of the project and of
each word of ``sts-dino``, the median over the rounds, each in a fresh process and one process at a time. The commands
are found by their source: a module that makes a typer app and runs it. A command without ``--version`` refuses it.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trials import table, write_results
from hub import cli
from sts_dino.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("generation", "training", "eval", "model_cards", "release", "sts_dino", "demo", "benchmarks")
MISSING = "no-such-place"
OFTEN = """
generation.run generation.explain training.run eval.run model_cards.render
release.run release.publish release.repeats
"""
REFUSALS = {command: [MISSING] for command in OFTEN.split()}  # of every other command: an unknown option

app = cli.new_app(__doc__)


def commands() -> Iterator[str]:
    """Every module that ``python -m`` runs as a command, by name."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if path.name == "__main__.py" or ("new_app(" in text and '__name__ == "__main__"' in text):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def questions(command: str) -> dict[str, list[str]]:
    """What is asked of a command, by kind."""
    return {
        "help": ["--help"],
        "version": ["--version"],
        "refusal": REFUSALS.get(command, ["--no-such-option"]),
    }


def started(command: str, words: list[str]) -> dict[str, float]:
    """Seconds and exit code of one fresh process."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *command.split(), *words], cwd=ROOT, capture_output=True, check=False)  # noqa: S603
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": round(cpu, 2), "wall_s": round(wall, 2), "code": done.returncode}


def measured(command: str, rounds: int) -> dict[str, dict[str, float]]:
    """Kind of question → median CPU and wall seconds, and the exit code."""
    found = {}
    for kind, words in questions(command).items():
        runs = [started(command, words) for _ in range(rounds)]
        found[kind] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return found


def told(results: dict[str, Any]) -> str:
    """CPU (wall) seconds as a Markdown table."""
    cells = {
        command: [f"{kind['cpu_s']:.2f} ({kind['wall_s']:.2f})" for kind in kinds.values()]
        for command, kinds in results.items()
    }
    return table(["command", "--help", "--version", "refusal"], [[f"`{name}`", *row] for name, row in cells.items()])


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option("--only", help="This command alone; repeatable")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1)] = 3,
    out: Annotated[Path, typer.Option("--out")] = ROOT / "benchmarks/results/startup.json",
) -> None:
    """Measure how fast every command answers, and print CPU (wall) seconds."""
    results = {}
    for command in only or [*commands(), *(f"sts_dino {word}" for word in COMMANDS)]:
        results[command] = measured(command, rounds)
        cli.say(f"{command}: {results[command]}")
    write_results(out, {"commands": results, "rounds": rounds}, ["typer", "pydantic"])
    print(told(results))


if __name__ == "__main__":
    cli.run(app)

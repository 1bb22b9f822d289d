"""Dataset generation in one process, with one Ray worker and with two: rows per second by the clock.

Every run is a fresh process with one thread per worker. Start-up (Ray, libraries, models) is measured by a run of two
shards and subtracted. Two workers need two free cores.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.trials import cost_of, interleaved, ratios, spread, table, write_results
from hub import cli
from hub.errors import RunError

RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
WAYS: dict[str, list[str]] = {
    "one process": [],
    "1 worker": ["--workers", "1"],
    "2 workers": ["--workers", "2"],
}
WARM = 2  # shards of the run that measures start-up

app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main(
    limit: Annotated[int, typer.Option(min=2, help="Source sentences of the demo recipe")] = 192,
    shard_size: Annotated[int, typer.Option(min=1, help="Source sentences of a shard")] = 3,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/scaling.json"),
) -> None:
    """Measure, print a table, write a JSON file with every round."""
    own = [f"shard_size={shard_size}", *settings]

    def trial(way: str, number: int) -> dict[str, float]:
        _, startup = one_run([*WAYS[way]], WARM * shard_size, own)
        rows, seconds = one_run([*WAYS[way]], limit, own)
        return {"startup_seconds": startup, "rows_per_second": rows / max(seconds - startup, 1e-9)}

    runs = interleaved(list(WAYS), rounds, trial)
    rates = {way: [run["rows_per_second"] for run in of] for way, of in runs.items()}
    summary = {
        way: {
            "rows_per_second": spread(rates[way]),
            "startup_seconds": spread([run["startup_seconds"] for run in of]),
            "speedup": ratios(rates[way], rates["one process"]),
        }
        for way, of in runs.items()
    }
    facts = {"source_sentences": limit, "settings": own}
    write_results(out, {**facts, "summary": summary, "rounds": runs}, ("torch", "transformers", "ray"))
    columns = list(next(iter(summary.values())))
    print(table(["", *columns], [[way, *(one[key]["median"] for key in columns)] for way, one in summary.items()]))


def one_run(words: list[str], limit: int, settings: list[str]) -> tuple[int, float]:
    """Rows and wall seconds of a fresh run of the demo recipe."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        given = [word for setting in settings for word in ("--set", setting)]
        found = cost_of("write", RECIPE, "--limit", limit, "--out", run, *words, *given)
        if found.code:
            raise RunError("sts-dino write", f"ended with exit code {found.code}")
        return json.loads((run / "manifest.json").read_bytes())["counts"]["requested"], found.wall_s

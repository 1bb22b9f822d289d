"""How every command refuses what users get wrong: python -m benchmarks.bad_inputs [--only TEXT]

Each case is a child process in a folder of its own, as a user would call it. Exit code 1 when a case is not refused in
one line that says what it must, with its exit code, and in two CPU-seconds where no model is needed.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.bad_inputs.run import ROOT, Refusal
from hub import cli
from hub.errors import RunError

app = cli.new_app(__doc__)


@app.command()
def main(
    only: Annotated[str, typer.Option("--only", help="Cases whose words hold this")] = "",
    out: Annotated[Path, typer.Option("--out")] = ROOT / "benchmarks/results/bad_inputs.json",
    page: Annotated[Path, typer.Option("--page", help="The table for people")] = ROOT / "docs/bad_inputs.md",
) -> None:
    """Run the cases, write the results and the page (not with --only), and name what is not as it should be."""
    from benchmarks.bad_inputs.case import Box, make_world
    from benchmarks.bad_inputs.cases import CASES
    from benchmarks.bad_inputs.page import write_page
    from benchmarks.bad_inputs.run import called, environment, faults, refused, row
    from benchmarks.trials import write_results

    wrong, rows = 0, []
    with tempfile.TemporaryDirectory() as place:
        world = Path(place, "world")
        world.mkdir()
        make_world(world, lambda words: _made(called(words, world, environment(world, PYTHONPATH=f"{ROOT}:{world}"))))
        for number, case in enumerate(CASES):
            if only not in f"{case.did}: {case.words}":
                continue
            box = Box(Path(place, f"{number:03d}"), world)
            box.folder.mkdir()
            found = refused(case, box)
            rows.append(row(case, found, box.folder))
            problems = faults(case, found)
            wrong += bool(problems)
            cli.say(f"{case.did}: {'; '.join(problems) or 'as it should be'}; {found.cpu_s} s: {found.message}")
    if not only:
        write_results(out, {"cases": rows}, ["typer", "pydantic"])
        write_page(page, rows)
    if wrong:
        raise RunError("bad inputs", f"{wrong} of {len(rows)} are not refused as they should be")


def _made(found: Refusal) -> None:
    if found.code:
        raise RunError("bad inputs", f"what the cases begin with was not made: {found.told}")


if __name__ == "__main__":
    cli.run(app)

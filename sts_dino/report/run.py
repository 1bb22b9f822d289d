"""Write a report of runs: one self-contained HTML file, without scripts, that needs no network.

It reads run directories and the files beside them, and computes cosines.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from hub import cli
from hub.contract.run_dir import MANIFEST, REPORT, locked, require_complete
from hub.durable import make_folder, write_text
from hub.errors import InputError

if TYPE_CHECKING:
    from sts_dino.report.facts import ReportFacts

app = cli.new_app(__doc__)


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories of datasets and encoders")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML file [default: of one run, RUN/report.html]")
    ] = None,
    annotations: Annotated[
        list[Path], typer.Option(metavar="DIR", help="Human scores (sts-dino annotate --out); repeatable")
    ] = [],  # noqa: B006 - typer reads it, nobody writes it
    as_json: cli.JsonOption = False,
) -> None:
    """Write one HTML file about generated, trained and scored runs. A run publishes its RUN/report.html.

    Examples:

      sts-dino report artifacts/datasets/NAME artifacts/models/NAME --out report.html

      sts-dino report artifacts/models/NAME
    """
    if out is None:
        if len(runs) > 1:
            raise InputError("--out", f"is required for {len(runs)} runs", hint="name a file: --out FILE")
        require_complete(runs[0])
    place = out or runs[0] / REPORT
    facts = report(runs, place, annotations=annotations)
    from sts_dino.report.page import sentences

    summary = sentences("summary", facts)
    found = {"report": place, "summary": summary, "not_measured": sentences("missing", facts)}
    then = [] if out else [f"sts-dino card {quote(str(runs[0]))}"]
    cli.answer("\n".join([*summary, f"written: {place}"]), found, as_json, then)


def report(
    runs: Sequence[Path],
    out: Path,
    commands: Sequence[str] = (),
    annotations: Sequence[Path] = (),
) -> "ReportFacts":
    """Write the report of some runs to ``out``, atomically, and return its facts.

    commands: printed unchanged (default: those in the manifests). annotations: folders of human answers.

    Raises InputError for a folder that is not a run directory, for damaged files, and where it cannot write.
    """
    if out.is_dir():
        raise InputError(out, "is a folder", allowed="a file", hint=f"--out {out / REPORT}")
    from sts_dino.report.facts import collect  # importing the readers takes a second
    from sts_dino.report.page import render

    within = (out.parent / MANIFEST).is_file()
    make_folder(out.parent)
    facts = collect(runs, commands, annotations)
    page = render(facts)
    with locked(out.parent) if within else nullcontext():
        write_text(out, page)
    return facts

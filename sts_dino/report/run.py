"""Write a report of runs: one self-contained HTML file, without scripts, that needs no network.

It reads run directories and the files beside them, and computes cosines.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from sts_dino.hub import cli
from sts_dino.hub.contract.run_dir import MANIFEST, REPORT, lock_run, require_complete
from sts_dino.hub.durable import make_folder, write_text
from sts_dino.hub.errors import InputError

if TYPE_CHECKING:
    from sts_dino.report.facts import ReportFacts

app = cli.make_app(__doc__)


@app.command()
def main(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories of datasets and encoders"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="HTML file [default: of one run, RUN/report.html]"),
    ] = None,
    annotations: Annotated[
        list[Path],
        typer.Option(metavar="DIR", help="Human scores (sts-dino annotate --out); repeatable"),
    ] = [],  # noqa: B006 - typer reads it, nobody writes it
    as_json: cli.JsonOption = False,
) -> None:
    """Write one HTML file about generated, trained and scored runs.

    The default RUN/report.html is published with the run.

    Examples:

      sts-dino report artifacts/datasets/NAME artifacts/models/NAME --out report.html

      sts-dino report artifacts/models/NAME
    """
    # The report of one run lies in its directory, which must be finished; that of several runs
    # needs --out.
    if out is None:
        if len(runs) > 1:
            raise InputError(
                "--out", f"is required for {len(runs)} runs", hint="name a file: --out FILE"
            )
        require_complete(runs[0])
    path = out or runs[0] / REPORT
    facts = make_report(runs, path, annotations=annotations)
    from sts_dino.report.page import list_sentences

    summary = list_sentences("summary", facts)
    answer = {
        "report": path,
        "summary": summary,
        "not_measured": list_sentences("missing", facts),
    }
    next_commands = [] if out else [f"sts-dino card {quote(str(runs[0]))}"]
    text = "\n".join([*summary, f"written: {path}"])
    cli.print_answer(text, answer, as_json, next_commands)


def make_report(
    runs: Sequence[Path],
    out: Path,
    commands: Sequence[str] = (),
    annotations: Sequence[Path] = (),
    advice: str = "",
) -> "ReportFacts":
    """Write the report of runs to ``out``, atomically, and return its facts.

    Args:
        runs: run directories of datasets and models.
        out: the HTML file.
        commands: command lines that the report prints; none: those in the manifests.
        annotations: folders of human answers.
        advice: a line about what to try next; empty: none.

    Raises InputError for a folder that is not a run directory, for damaged files, and where ``out``
    is a folder; RunError when ``out`` is in a run directory that another process works on.
    """
    if out.is_dir():
        raise InputError(out, "is a folder", allowed="a file", hint=f"--out {out / REPORT}")
    from sts_dino.report.facts import collect_facts  # importing the readers takes a second
    from sts_dino.report.page import render

    make_folder(out.parent)  # it fails before minutes of work, not after them
    facts = replace(collect_facts(runs, commands, annotations), advice=advice)
    page = render(facts)
    # No other process may write to a run directory meanwhile.
    is_in_run = (out.parent / MANIFEST).is_file()
    with lock_run(out.parent) if is_in_run else nullcontext():
        write_text(out, page)
    return facts

"""Write a report: sts-dino report artifacts/datasets/NAME artifacts/models/NAME --out report.html

Reads run directories and what lies beside them, and writes one HTML file without scripts that needs no network.
Similarities that were computed are kept beside it (``NAME.cosines.json``), so that it is quickly written again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from hub import cli
from hub.contract.run_dir import MANIFEST, REPORT, locked, require_complete
from hub.durable import make_folder, write_text
from hub.errors import InputError

if TYPE_CHECKING:
    from sts_dino.report.collect import Facts, Judgements

app = cli.new_app(__doc__)


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories of datasets and encoders")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where it goes [default: of one run, RUN/report.html]")
    ] = None,
    annotations: Annotated[
        list[Path],
        typer.Option("--annotations", metavar="DIR", help="People's answers (sts-dino annotate --out); repeatable"),
    ] = [],  # noqa: B006 - typer reads it, nobody writes it
    as_json: cli.JsonOption = False,
) -> None:
    """Write one HTML file about what was written, trained and scored. In RUN/report.html it is published with the run.

    Examples:

      sts-dino report artifacts/datasets/NAME artifacts/models/NAME --out report.html

      sts-dino report artifacts/models/NAME
    """
    if out is None:
        if len(runs) > 1:
            raise InputError("--out", f"is not given, and there are {len(runs)} runs", hint="say where: --out FILE")
        require_complete(runs[0])
    place = out or runs[0] / REPORT
    told = report(runs, place, annotations=annotations)
    from sts_dino.report.words import not_measured, summary

    facts = {"report": place, "summary": summary(told), "not_measured": not_measured(told)}
    then = [] if out else [f"sts-dino card {quote(str(runs[0]))}"]
    cli.answer("\n".join([*summary(told), f"written: {place}"]), facts, as_json, then)


def report(
    runs: Sequence[Path],
    out: Path,
    commands: Sequence[str] = (),
    judgements: "Judgements | None" = None,
    annotations: Sequence[Path] = (),
) -> "Facts":
    """Write the report of some runs to ``out``, atomically, and return what it tells.

    commands: how the runs were made, line by line; left out, what their manifests say. They are shown as they are
    given, and a report may be published. judgements: how encoders agree with people, where people were asked; left
    out, they are computed from ``annotations``, folders of answers.

    Raises InputError for what is no run directory, is damaged, or cannot be written.
    """
    if out.is_dir():
        raise InputError(out, "is a folder", allowed="a file", hint=f"--out {out / REPORT}")
    from sts_dino.report.collect import collect  # importing the readers takes a second
    from sts_dino.report.render import render

    within = (out.parent / MANIFEST).is_file()
    beside = out.parent.resolve() if within else out.with_suffix("")  # what is in a run directory is published
    kept = beside.with_name(f"{beside.name}.cosines.json")
    make_folder(out.parent)
    facts = collect(runs, kept, commands, judgements)
    if annotations and judgements is None:
        from sts_dino.report.judgements import read_judgements

        facts = replace(facts, judgements=read_judgements(annotations, facts.datasets, facts.models, kept))
    page = render(facts)
    if within:
        with locked(out.parent):
            write_text(out, page)
    else:
        write_text(out, page)
    return facts

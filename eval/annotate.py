"""Label a dataset by people, blind: ``sts-dino annotate RUN [--sample --seed --port --out --report]``.

DINO's human evaluation (Table 3). RUN is a finished dataset run directory or ``ORG/NAME@REVISION`` of a Hub. A page on
this machine (127.0.0.1 only, no network) shows random pairs without their labels; several people can answer, each under
a name. Answers are on disk at once, and a later start resumes. ``--report`` compares them with the generator's labels:
confusion tables and Cohen's κ, on stdout and as ``agreement.md`` and ``agreement.json``.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from eval.audit.agreement import document, make_report, markdown
from eval.audit.page import Page
from eval.audit.source import default_folder, find_rows, made_folder
from eval.audit.survey import FILE, AnswerStore, Survey, draw, page_words, read_examples
from hub.cli import JsonOption, answer, new_app, say
from hub.durable import write_text
from hub.errors import InputError

app = new_app("Label a dataset by people, blind, and compare their labels with the generator's.")


@app.command()
def main(
    place: Annotated[str, typer.Argument(metavar="RUN", help="Dataset run directory, or ORG/NAME@REVISION of a Hub")],
    sample: Annotated[int, typer.Option(min=1, help="How many random rows are shown")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Which rows: the same seed, the same rows")] = 42,
    config: Annotated[str | None, typer.Option(help="Config [default: pair-class, triplet or postprocessed]")] = None,
    split: Annotated[str, typer.Option(help="Split of the config")] = "train",
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of the page's words, e.g. de [default: the dataset's]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free one")] = 7860,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where answers are kept [default: in artifacts/annotations]")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="No page: compare the answers, print and write")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show random rows of RUN to people, without labels, and compare their labels with the generator's.

    Examples:

      sts-dino annotate artifacts/datasets/sts-dino-x2

      sts-dino annotate artifacts/datasets/sts-dino-x2 --report
    """
    if language is not None and language not in page_words():
        raise InputError("--language", f"{language!r} is not spoken by the page", allowed=", ".join(page_words()))
    drawn = draw(read_examples(find_rows(place, config, split), language), sample, seed)
    folder = out or default_folder("annotations", drawn.examples.name, drawn.examples.config)
    if report and not (folder / FILE).is_file():
        raise InputError(folder, f"holds no answers (no {FILE})", hint="run without --report first")
    made_folder(folder)
    survey = Survey(drawn, AnswerStore(folder, drawn.examples))
    if report:
        _report(survey, folder, as_json)
        return
    with Page(survey, port) as page:
        examples = drawn.examples
        source = f"{examples.name} ({examples.config}, {examples.split})"
        say(f"{len(drawn)} of {len(examples)} rows of {source}, seed {drawn.seed}; answers in {folder}")
        say(f"open {page.url} in a browser; Ctrl-C ends")
        try:
            page.serve_forever()
        except KeyboardInterrupt:  # the usual end
            say("stopped; every answer is on disk. The same command with --report compares them, finished or not")
    if any(len(given) == len(drawn) for given in survey.answers().values()):  # nobody is to see labels before
        _report(survey, folder, as_json)


def _report(survey: Survey, folder: Path, as_json: bool) -> None:
    """Write and print agreement.md and agreement.json. Raises InputError when nobody answered."""
    report = make_report(survey.sample, survey.answers())
    if not report.annotators:
        raise InputError(folder, "holds no answer to these rows", hint="run without --report first, or check --seed")
    text, facts = markdown(report), document(report)
    write_text(folder / "agreement.md", text)
    write_text(folder / "agreement.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    say(f"written: {folder / 'agreement.md'} and agreement.json")
    answer(text.rstrip(), facts, as_json)

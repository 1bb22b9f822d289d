"""Label a dataset by people, blind: ``sts-dino annotate RUN [--sample --seed --port --out --report]``.

DINO's human evaluation (Table 3). RUN is a finished dataset run directory or ``ORG/NAME@REVISION`` of a Hub. A page on
this machine (127.0.0.1 only, no network) shows random pairs without their labels; several people can answer, each under
a name. Answers are on disk at once, and a later start resumes. ``--report`` compares them with the generator's labels:
confusion tables and Cohen's κ, on stdout and as ``agreement.md`` and ``agreement.json``.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from eval.audit.agreement import (
    Report,
    document,
    encoder_agreements,
    encoders_markdown,
    make_report,
    markdown,
)
from eval.audit.page import Page
from eval.audit.source import default_folder, find_rows, made_folder
from eval.audit.survey import FILE, AnswerStore, Survey, draw, page_words, read_examples
from hub.cli import JsonOption, answer, new_app, say
from hub.durable import write_text
from hub.errors import InputError

app = new_app("Label a dataset by people, blind, and compare their labels with the generator's.")


def beside_people(report: Report, places: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """How encoders agree with people, as Markdown and for programs; with a trained one, its untrained base.

    MiniLM is added where its package is installed. Raises InputError where there is nothing to correlate.
    """
    import transformers  # it and torch cost seconds

    from eval.encoders.load import MINILM, MODULE, Encoder, load_encoder, minilm
    from eval.runs.job import beside_model
    from eval.runs.records import BASE

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loaded, bases = list[Encoder](), dict[str, str]()
    for place in places:
        loaded.append(load_encoder(place))
        if base := beside_model(place, BASE):
            loaded.append(load_encoder(base))
            bases[loaded[-2].name] = loaded[-1].name
    if find_spec(MODULE):
        loaded.append(replace(load_encoder(str(minilm())), name=MINILM))
    found = encoder_agreements(report, loaded, bases)
    return encoders_markdown(found), [one.model_dump() for one in found]


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
    encoders: Annotated[
        list[str],
        typer.Option(
            "--encoder", metavar="MODEL", help="An encoder to compare with people, folder or Hub id; repeatable"
        ),
    ] = [],  # noqa: B006 - typer copies it
    report: Annotated[bool, typer.Option("--report", help="No page: compare the answers, print and write")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show random rows of RUN to people, without labels, and compare their labels with the generator's.

    Examples:

      sts-dino annotate artifacts/datasets/sts-dino-x2

      sts-dino annotate artifacts/datasets/sts-dino-x2 --report

      sts-dino annotate artifacts/datasets/sts-dino-x2 --encoder artifacts/models/demo-sts-dino
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
        _report(survey, folder, encoders, as_json)
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
        _report(survey, folder, encoders, as_json)


def _report(survey: Survey, folder: Path, encoders: Sequence[str], as_json: bool) -> None:
    """Write and print agreement.md and agreement.json. Raises InputError when nobody answered."""
    report = make_report(survey.sample, survey.answers())
    if not report.annotators:
        raise InputError(folder, "holds no answer to these rows", hint="run without --report first, or check --seed")
    text, facts = markdown(report), document(report)
    if encoders:
        section, facts["encoders"] = beside_people(report, encoders)
        text = f"{text}\n{section}"
    write_text(folder / "agreement.md", text)
    write_text(folder / "agreement.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    say(f"written: {folder / 'agreement.md'} and agreement.json")
    answer(text.rstrip(), facts, as_json)

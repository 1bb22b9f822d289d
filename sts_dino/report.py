"""Write a report of runs: one self-contained HTML file, without scripts, that needs no network.

It reads run directories and the files beside them, and computes cosines. The page is Markdown from
a template, as a card is, in a frame of HTML.
"""

import base64
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from html import unescape
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import numpy as np
import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sts_dino.hub import cli
from sts_dino.hub import scores as formats
from sts_dino.hub.contract.results import Results, map_by_task
from sts_dino.hub.contract.run_dir import MANIFEST, REPORT, lock_run, require_complete
from sts_dino.hub.durable import make_folder, write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import Markdown, escape_inline, make_visible
from sts_dino.model_cards import renderer
from sts_dino.model_cards.dataset_card import (
    LABEL_PLOT,
    build_counts_context,
    build_measured_context,
    describe_progress,
    draw_pictures,
)
from sts_dino.model_cards.facts import DatasetFacts, ModelFacts
from sts_dino.model_cards.model_card import build_model_context
from sts_dino.model_cards.scores import SIMCSE, TRAINED
from sts_dino.report_facts import (
    PAIRS_PER_LABEL,
    SAMPLE_SEED,
    DatasetPage,
    ReportFacts,
    collect_facts,
    find_misfits,
)

SHOWN_PAIRS_PER_LABEL = 5
SHOWN_CHARACTERS = 400  # characters of a text
CHARTED_TASKS = 8  # the table has all tasks

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
) -> ReportFacts:
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
    make_folder(out.parent)  # it fails before minutes of work, not after them
    facts = replace(collect_facts(runs, commands, annotations), advice=advice)
    page = render(facts)
    # No other process may write to a run directory meanwhile.
    is_in_run = (out.parent / MANIFEST).is_file()
    with lock_run(out.parent) if is_in_run else nullcontext():
        write_text(out, page)
    return facts


def render(facts: ReportFacts) -> str:
    """Return the report as one HTML page. The same facts give the same bytes."""
    title = ", ".join(run.manifest.name for run in facts.runs)
    licences = []
    for run in facts.runs:
        if run.verdict is not None:
            attribution = renderer.fill_template("attribution.md.jinja", {"verdict": run.verdict})
            licences.append((run.manifest.name, Markdown(attribution)))
    context = {
        "title": title,
        "summary": list_sentences("summary", facts),
        "advice": facts.advice,
        "datasets": [_build_dataset_context(page) for page in facts.datasets],
        "models": [_build_model_context(model) for model in facts.models],
        "judgements": facts.judgements,
        "costs": zip(facts.runs, _list_costs(facts), strict=True),
        "kept_tokens": count_kept_tokens,
        "quartiles": compute_quartiles,
        "cut": shorten_text,
        "licences": licences,
        "commands": "\n".join(facts.commands),
        "missing": list_sentences("missing", facts),
        "per_label": PAIRS_PER_LABEL,
        "seed": SAMPLE_SEED,
    }

    # Fill the Markdown template, as for a card; then put its HTML into the page's frame.
    markdown = renderer.fill_template("report.md.jinja", context)
    environment = Environment(
        loader=FileSystemLoader(renderer.TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        title=make_visible(title),
        fingerprints=" ".join(run.manifest.fingerprint for run in facts.runs),
        body=renderer.convert_to_html(markdown),
    )


def _list_costs(facts: ReportFacts) -> list[Mapping[str, Any]]:
    """List the costs in the order of ``facts.runs``."""
    return [*(page.cost for page in facts.datasets), *facts.costs]


def _build_dataset_context(page: DatasetPage) -> dict[str, Any]:
    """Return the template variables of a dataset: counts, plots, sample pairs and misfits."""
    # Fill the sections of the card that the dataset has.
    facts = page.facts
    context = build_counts_context(facts) | build_measured_context(facts)
    sections = {
        name: Markdown(renderer.fill_template(f"{name}.md.jinja", context))
        for name in ("fidelity", "value")
        if context[name]
    }
    context |= {
        "page": page,
        "facts": facts,
        "chart": None,
        "similarity": None,
        "samples": {},
        "misfits": [],
        "sections": sections,
    }

    # Draw the plots, and choose the pairs to show.
    if facts.counts:
        context["chart"] = embed_image(draw_pictures(facts)[LABEL_PLOT])
    if page.cosines:
        from sts_dino.model_cards.plots import draw_similarity_plot  # matplotlib takes a second

        context["similarity"] = embed_image(draw_similarity_plot(page.cosines))
    if page.sample:
        context["samples"] = {
            label: pairs[:SHOWN_PAIRS_PER_LABEL] for label, pairs in page.sample.pairs.items()
        }
    if page.sample and page.judged:
        context["misfits"] = find_misfits(page.sample, page.judged)
    return context


def _build_model_context(facts: ModelFacts) -> dict[str, Any]:
    """Return the template variables of a model: plots, and the sections of its card.

    An unfinished model has its facts alone.
    """
    if facts.provenance is None:
        return {"facts": facts}
    from sts_dino.model_cards.plots import (  # matplotlib takes a second to import
        draw_score_plot,
        draw_training_plot,
    )

    # The plots, and the names of the card's sections
    training = facts.training
    results = facts.results
    names = ["base"]
    context: dict[str, Any] = {"facts": facts, "curves": None, "chart": None, "uncharted": 0}
    if training:
        names += ["training_data", "training"]
        if training.loss_curve:
            context["curves"] = embed_image(draw_training_plot(training))
    if results:
        names.append("scores")
        sides = {}
        if results.base_scores:
            sides[facts.recipe.base.start] = results.base_scores
        if results.control_scores:
            sides[SIMCSE] = results.control_scores
        own_side = TRAINED if training else "score"
        sides[own_side] = results.scores
        context["chart"] = embed_image(draw_score_plot(results, sides, CHARTED_TASKS))
        context["uncharted"] = max(0, len(results.scores) - CHARTED_TASKS)

    # The text of the sections, as in the card
    card = build_model_context(facts)
    context["sections"] = {
        name: Markdown(renderer.fill_template(f"{name}.md.jinja", card)) for name in names
    }
    return context


def embed_image(png: bytes) -> Markdown:
    """Return a PNG picture as a data URL, for the address of a Markdown image."""
    return Markdown(f"data:image/png;base64,{base64.b64encode(png).decode()}")


def shorten_text(text: str) -> Markdown:
    """Return a text escaped for Markdown.

    A text of more than ``SHOWN_CHARACTERS`` is cut and ends in its length.
    """
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS].rstrip()}… ({len(text):,} characters)"
    return escape_inline(text)


def compute_quartiles(values: Sequence[float]) -> list[Markdown]:
    """Return the median, the lower and the upper quartile of numbers, each with two decimals."""
    return [Markdown(f"{value:.2f}") for value in np.percentile(values, [50, 25, 75])]


def count_kept_tokens(facts: DatasetFacts | ModelFacts) -> int:
    """Count the tokens of the kept texts; 0 where the manifest does not count lengths in tokens."""
    if not isinstance(facts, DatasetFacts) or not facts.counts:
        return 0
    lengths = facts.counts.token_lengths
    if lengths is None or lengths.unit != "tokens":
        return 0
    tokens = 0
    for texts_by_length in lengths.by_label.values():
        tokens += sum(length * texts for length, texts in texts_by_length.items())
    return tokens


def list_sentences(kind: str, facts: ReportFacts) -> list[str]:
    """Return lines of plain text about the runs.

    kind: ``summary`` for the result of each run, ``missing`` for the measurements that it lacks.
    """
    context = {
        "facts": facts,
        "costs": _list_costs(facts),
        "progress": describe_progress,
        "headline": choose_headline,
        "score": formats.format_score,
        "difference": formats.format_difference,
    }
    text = renderer.fill_template(f"report_{kind}.md.jinja", context)
    return [unescape(line) for line in text.splitlines() if line]


def choose_headline(results: Results) -> dict[str, Any]:
    """Choose the score that a summary names: the first of a test split, else the first.

    Returns ``score``, ``gain`` over the base encoder and ``over`` the SimCSE baseline; each is None
    where it is missing.
    """
    # "all" is the only split of a task that is scored by cross-validation.
    tested = [score for score in results.scores if score.split in ("test", "all")]
    scores = tested or results.scores
    if not scores:
        return {"score": None, "gain": None, "over": None}
    key = (scores[0].task, scores[0].split)
    return {
        "score": scores[0],
        "gain": map_by_task(results.gains).get(key),
        "over": map_by_task(results.over_control).get(key),
    }

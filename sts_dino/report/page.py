"""The report's page: facts in a Markdown template, rendered like a card, as self-contained HTML without scripts."""

import base64
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hub import scores as formats
from hub.contract.results import Results, by_task
from hub.untrusted import Markdown, inline, visible
from model_cards import renderer
from model_cards.dataset_card import LABELS, counts_context, done_so_far, measured_context, pictures
from model_cards.facts import DatasetFacts, ModelFacts
from model_cards.model_card import model_context
from model_cards.scores import SIMCSE, TRAINED
from sts_dino.report.facts import DatasetPage, ReportFacts
from sts_dino.report.pairs import PER_LABEL, SEED, misfits

TEMPLATES = Path(__file__).with_name("templates")
SAMPLES = 5  # pairs of a label
LONGEST = 400  # characters of a text
CHARTED = 8  # tasks; the table has all


def render(facts: ReportFacts) -> str:
    """The whole page. The same facts give the same bytes."""
    names = [one.manifest.name for one in facts.runs]
    body = renderer.fill(
        "report.md.jinja",
        {
            "title": ", ".join(names),
            "summary": sentences("summary", facts),
            "datasets": [_dataset(one) for one in facts.datasets],
            "models": [_model(one) for one in facts.models],
            "judgements": facts.judgements,
            "costs": zip(facts.runs, [*(one.cost for one in facts.datasets), *facts.costs], strict=True),
            "kept_tokens": kept_tokens,
            "quartiles": quartiles,
            "cut": cut,
            "licences": [
                (one.manifest.name, Markdown(renderer.fill("attribution.md.jinja", {"verdict": one.verdict})))
                for one in facts.runs
                if one.verdict is not None
            ],
            "commands": "\n".join(facts.commands),
            "missing": sentences("missing", facts),
            "per_label": PER_LABEL,
            "seed": SEED,
        },
    )
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=True, trim_blocks=True)
    fingerprints = " ".join(one.manifest.fingerprint for one in facts.runs)
    page = {"title": visible(", ".join(names)), "fingerprints": fingerprints, "body": renderer.html(body)}
    return environment.get_template("report.html.jinja").render(page)


def _dataset(page: DatasetPage) -> dict[str, Any]:
    facts, sample = page.facts, page.sample
    context = counts_context(facts) | measured_context(facts)
    similarity = None
    if page.cosines:
        from model_cards.plots import similarity_plot  # matplotlib takes a second to import

        similarity = image(similarity_plot(page.cosines))
    return context | {
        "page": page,
        "facts": facts,
        "chart": image(pictures(facts)[LABELS]) if facts.counts else None,
        "similarity": similarity,
        "samples": {label: pairs[:SAMPLES] for label, pairs in sample.pairs.items()} if sample else {},
        "misfits": misfits(sample, page.judged) if sample and page.judged else [],
        "sections": {
            name: Markdown(renderer.fill(f"{name}.md.jinja", context))
            for name in ("fidelity", "value")
            if context[name]
        },
    }


def _model(facts: ModelFacts) -> dict[str, Any]:
    training, results = facts.training, facts.results
    if facts.provenance is None:
        return {"facts": facts}
    from model_cards.plots import score_plot, training_plot  # matplotlib takes a second to import

    context, chart = model_context(facts), None
    if results:
        sides = {facts.recipe.base.start: results.base_scores, SIMCSE: results.control_scores}
        sides = {name: found for name, found in sides.items() if found}
        chart = image(score_plot(results, {**sides, TRAINED if training else "score": results.scores}, CHARTED))
    names = ["base", *(["training_data", "training"] if training else []), *(["scores"] if results else [])]
    return {
        "facts": facts,
        "curves": image(training_plot(training)) if training and training.loss_curve else None,
        "chart": chart,
        "uncharted": max(0, len(results.scores) - CHARTED) if results else 0,
        "sections": {name: Markdown(renderer.fill(f"{name}.md.jinja", context)) for name in names},
    }


def image(png: bytes) -> Markdown:
    """A picture as the address of a Markdown image."""
    return Markdown(f"data:image/png;base64,{base64.b64encode(png).decode()}")


def cut(text: str) -> Markdown:
    """A text, or its beginning and its length."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}… ({len(text):,} characters)"
    return inline(short)


def quartiles(values: Sequence[float]) -> list[Markdown]:
    """Median, lower and upper quartile."""
    return [Markdown(f"{value:.2f}") for value in np.percentile(values, [50, 25, 75])]


def kept_tokens(facts: DatasetFacts | ModelFacts) -> int:
    """The tokens of the kept texts, where the manifest counts lengths in tokens; else 0."""
    lengths = facts.counts.token_lengths if isinstance(facts, DatasetFacts) and facts.counts else None
    if lengths is None or lengths.unit != "tokens":
        return 0
    return sum(size * texts for of in lengths.by_label.values() for size, texts in of.items())


def sentences(kind: str, facts: ReportFacts) -> list[str]:
    """Lines of plain text: ``summary``, the result of each run; ``missing``, measurements that it lacks."""
    formatters = {"score": formats.score, "difference": formats.difference}
    costs = [*(one.cost for one in facts.datasets), *facts.costs]
    context = {"facts": facts, "costs": costs, "progress": done_so_far, "headline": headline, **formatters}
    return [unescape(line) for line in renderer.fill(f"report_{kind}.md.jinja", context).splitlines() if line]


def headline(results: Results) -> dict[str, Any]:
    """The score of a summary, the first of a test split or else the first, and its gains."""
    tested = [score for score in results.scores if score.split in ("test", "all")]
    score = next(iter((*tested, *results.scores)), None)
    key = (score.task, score.split) if score else ("", "")
    return {"score": score, "gain": by_task(results.gains).get(key), "over": by_task(results.over_control).get(key)}

"""The report's HTML: facts in a template that escapes whatever it prints. No script, nothing loaded from elsewhere."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hub.untrusted import visible
from sts_dino.report import charts, scores, tables, words
from sts_dino.report.collect import DatasetFacts, Facts, ModelFacts
from sts_dino.report.pairs import PER_LABEL, SEED, misfits

TEMPLATE = "report.html.jinja"
SAMPLES = 5  # pairs of a label that are shown
LONGEST = 400  # characters of a text that are shown
CHARTED = 8  # tasks; a table has them all


def render(facts: Facts) -> str:
    """The whole page. The same facts give the same bytes."""
    names = [one.manifest.name for one in facts.runs]
    context = {
        "title": ", ".join(names),
        "fingerprints": " ".join(one.manifest.fingerprint for one in facts.runs),
        "summary": words.summary(facts),
        "datasets": [_dataset(one) for one in facts.datasets],
        "models": [_model(one) for one in facts.models],
        "judgements": facts.judgements,
        "agreement": tables.agreement(facts.judgements) if facts.judgements else None,
        "costs": tables.costs(facts),
        "licences": tables.licences(facts),
        "commands": facts.commands,
        "missing": words.not_measured(facts),
        "per_label": PER_LABEL,
        "seed": SEED,
    }
    return _environment().get_template(TEMPLATE).render(context)


def _dataset(found: DatasetFacts) -> dict[str, Any]:
    counts, sample = found.counts, found.sample
    by_label = [(name, one.kept, one.rejected) for name, one in counts.by_label.items()] if counts else []
    order = tables.label_names(found.recipe, counts) if counts else []
    encoder = list(found.cosines)[-1] if found.cosines else ""
    return {
        "facts": found,
        "chart": charts.kept_chart(sorted(by_label, key=lambda row: order.index(row[0]))),
        "labels": tables.labels(found) if counts else None,
        "reasons": tables.reasons(found) if counts else None,
        "histograms": charts.histograms(_by_label(found)) if found.cosines else None,
        "similarities": tables.similarities(found) if found.cosines else None,
        "samples": {label: pairs[:SAMPLES] for label, pairs in sample.pairs.items()} if sample else {},
        "misfits": misfits(sample, found.cosines[encoder]) if sample and encoder else [],
        "fidelity": tables.fidelity(found),
        "value": tables.value(found),
    }


def _by_label(found: DatasetFacts) -> dict[str, dict[str, list[float]]]:
    labels = found.sample.pairs if found.sample else {}
    return {label: {name: list(of[label]) for name, of in found.cosines.items()} for label in labels}


def _model(found: ModelFacts) -> dict[str, Any]:
    training = found.provenance.training if found.provenance else None
    results = found.results
    metric = (training.validation_metric if training else None) or "Score"
    return {
        "facts": found,
        "training": tables.training(found, training) if training else None,
        "loss": charts.curve_chart("Training loss", training.loss_curve, training.best_step) if training else "",
        "validation": charts.curve_chart(
            f"{metric[:1].upper()}{metric[1:]} on validation", training.validation_curve, training.best_step
        )
        if training
        else "",
        "scores": scores.scores(results, training is not None) if results else None,
        "chart": charts.score_chart(scores.marks(results)[:CHARTED]) if results else None,
        "uncharted": max(0, len(results.scores) - CHARTED) if results else 0,
        "averages": scores.average_scores(results) if results else None,
    }


def cut(text: str) -> str:
    """A text as it is shown: its beginning, and how long it is, where it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}… ({len(text):,} characters)"


def _printed(value: Any) -> Any:
    """Whatever a template prints: hidden and direction characters shown as U+FFFD; markup of our own as it is."""
    if isinstance(value, Markup | StrictUndefined):
        return value
    return visible(str(value))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        finalize=_printed,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(cut=cut)
    return environment

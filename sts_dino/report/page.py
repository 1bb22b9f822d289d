"""The report's page: facts in a Markdown template, rendered like a card, as self-contained HTML without scripts."""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hub import scores as formats
from hub.contract.results import Gain, Results, TaskScore, by_task
from hub.untrusted import Markdown, code, inline, table, visible
from model_cards import renderer
from model_cards.dataset_card import LABELS, counts_context, done_so_far, measured_context, pictures
from model_cards.facts import DatasetFacts, ModelFacts
from model_cards.model_card import model_context
from model_cards.scores import SIMCSE, TRAINED, UNTRAINED
from sts_dino.report.facts import DatasetPage, ReportFacts
from sts_dino.report.pairs import PER_LABEL, SEED, Pair, misfits

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
            "summary": summary(facts),
            "datasets": [_dataset(one) for one in facts.datasets],
            "models": [_model(one) for one in facts.models],
            "judgements": facts.judgements,
            "costs": cost_table(facts),
            "licences": [
                (one.manifest.name, Markdown(renderer.fill("attribution.md.jinja", {"verdict": one.verdict})))
                for one in facts.runs
                if one.verdict is not None
            ],
            "commands": "\n".join(facts.commands),
            "missing": not_measured(facts),
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
    encoder = list(page.cosines)[-1] if page.cosines else ""
    context = counts_context(facts) | measured_context(facts)
    found = misfits(sample, page.cosines[encoder]) if sample and encoder else []
    samples = {label: pair_table(pairs[:SAMPLES]) for label, pairs in sample.pairs.items()} if sample else {}
    similarity = {"picture": None, "table": None}
    if page.cosines:
        from model_cards.plots import similarity_plot  # matplotlib takes a second to import

        similarity = {"picture": image(similarity_plot(page.cosines)), "table": similarity_table(page)}
    return context | {
        "page": page,
        "facts": facts,
        "chart": image(pictures(facts)[LABELS]) if facts.counts else None,
        "similarity": similarity,
        "samples": samples,
        "misfits": misfit_table(found) if found else None,
        "sections": {
            name: Markdown(renderer.fill(f"{name}.md.jinja", context)) if context[name] else None
            for name in ("fidelity", "value")
        },
    }


def _model(facts: ModelFacts) -> dict[str, Any]:
    training, results = facts.training, facts.results
    if facts.provenance is None:
        return {"facts": facts}
    context = model_context(facts)
    curves = scores = None
    if training and training.loss_curve:
        from model_cards.plots import training_plot

        curves = image(training_plot(training))
    if results:
        from model_cards.plots import score_plot

        sides = {UNTRAINED: results.base_scores, SIMCSE: results.control_scores}
        sides = {name: found for name, found in sides.items() if found}
        scores = image(score_plot(results, {**sides, TRAINED if training else "score": results.scores}, CHARTED))
    parts = {
        "base": True,
        "training_data": training,
        "training": training,
        "scores": results and results.scores,
    }
    filled = {
        name: Markdown(renderer.fill(f"{name}.md.jinja", context)) if there else None for name, there in parts.items()
    }
    uncharted = max(0, len(results.scores) - CHARTED) if results else 0
    return {"facts": facts, "curves": curves, "chart": scores, "uncharted": uncharted, **filled}


def image(png: bytes) -> Markdown:
    """A picture as the address of a Markdown image."""
    return Markdown(f"data:image/png;base64,{base64.b64encode(png).decode()}")


def cut(text: str) -> Markdown:
    """A text, or its beginning and its length."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}… ({len(text):,} characters)"
    return inline(short)


def pair_table(pairs: Sequence[Pair]) -> Markdown:
    """Pairs, or single texts, one row each."""
    texts = [[cut(pair.first), *([cut(pair.second)] if pair.second else [])] for pair in pairs]
    return table(["source sentence", "generated text"][: max(map(len, texts), default=1)], texts)


def misfit_table(found: Sequence[Any]) -> Markdown:
    """The pairs farthest from the median cosine of their label."""
    numbers = [[code(one.label), Markdown(f"{one.cosine:.2f}"), Markdown(f"{one.median:.2f}")] for one in found]
    rows = [[*row, cut(one.pair.first), cut(one.pair.second)] for row, one in zip(numbers, found, strict=True)]
    return table(["label", "cosine", "median of the label", "source sentence", "generated text"], rows)


def similarity_table(page: DatasetPage) -> Markdown:
    """Quartiles of each label's cosines under every encoder."""
    rows = []
    for label in page.sample.pairs if page.sample else ():
        for encoder, of in page.cosines.items():
            low, middle, high = np.percentile(of[label], [25, 50, 75])
            rows.append([code(label), encoder, len(of[label]), *(Markdown(f"{x:.2f}") for x in (middle, low, high))])
    return table(["label", "encoder", "pairs", "median", "lower quartile", "upper quartile"], rows)


def cost_table(facts: ReportFacts) -> Markdown:
    """The recorded cost of each run; only columns with a value."""
    runs = [(one.facts, one.cost) for one in facts.datasets] + list(zip(facts.models, facts.costs, strict=True))
    rows = [{"run": inline(one.manifest.name), **dict(_cost(one, cost))} for one, cost in runs]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return table(columns, [[row.get(name, "") for name in columns] for row in rows])


def _cost(facts: DatasetFacts | ModelFacts, cost: Any) -> Iterator[tuple[str, str]]:
    seconds, rows = cost.get("seconds"), cost.get("rows")
    rate = cost.get("samples_per_second") or (rows / seconds if rows and seconds else None)
    yield "seconds", f"{seconds:,.1f}" if seconds is not None else "not recorded"
    if rate is not None:
        yield "rows per second", f"{rate:,.1f}"
    for name, key in (("peak memory", "peak_rss_mb"), ("peak GPU memory", "peak_gpu_mb")):
        if cost.get(key):
            yield name, f"{cost[key]:,.0f} MB"
    lengths = facts.counts.token_lengths if isinstance(facts, DatasetFacts) and facts.counts else None
    if cost.get("prompt_tokens") is not None:
        yield "tokens", f"{cost['prompt_tokens']:,} in prompts, {cost['completion_tokens']:,} generated"
    elif lengths is not None and lengths.unit == "tokens":
        total = sum(size * texts for of in lengths.by_label.values() for size, texts in of.items())
        yield "tokens", f"{total:,} of kept texts"
    if cost.get("cost") is not None:
        yield "price", f"{cost['cost']:.4f} in the server's currency"


def summary(facts: ReportFacts) -> list[str]:
    """The result of each run in one sentence."""
    return [*(of_dataset(one.facts) for one in facts.datasets), *map(of_model, facts.models)]


def of_dataset(facts: DatasetFacts) -> str:
    """The result of a generation in one sentence."""
    name, counts, model = facts.manifest.name, facts.counts, facts.recipe.model
    if counts is None:
        assert facts.progress is not None
        return f"{name} is not finished: {done_so_far(facts.manifest, facts.progress).replace('`', '')}"
    named = model.repo_id or model.gguf_file or PurePath(model.path or "").name
    generator, labels = model.server.model if model.server else named, len(counts.by_label)
    share = f" ({counts.kept / counts.requested:.0%})" if counts.requested else ""
    texts = f"generated {counts.requested:,} texts; {name} keeps {counts.kept:,}{share}"
    return f"For {counts.sources:,} source sentences and {labels} label{'s' * (labels != 1)}, {generator} {texts}."


def of_model(facts: ModelFacts) -> str:
    """The result of a training in one sentence."""
    name, training = facts.manifest.name, facts.training
    if facts.provenance is None:
        return f"The training of {name} is not finished."
    rows = [next(iter(item.splits.values())) for item in facts.provenance.datasets]  # validation comes second
    made = f"{name} is an untrained baseline"
    if training is not None:
        on = f" on {sum(map(int, filter(None, rows))):,} rows" if rows and None not in rows else ""
        made = f"{name} was trained{on} in {training.steps:,} steps"
    score = headline(facts.results) if facts.results else None
    return f"{made}{_scored(facts.results, score) if facts.results and score else '; it was not scored'}."


def headline(results: Results) -> TaskScore | None:
    """The score of a summary: the first of a test split, else the first."""
    tested = [score for score in results.scores if score.split in ("test", "all")]
    return next(iter((*tested, *results.scores)), None)


def _scored(results: Results, score: TaskScore) -> str:
    gains = {"the untrained encoder": results.gains, "the unsupervised SimCSE baseline": results.over_control}
    found = {name: by_task(some).get((score.task, score.split)) for name, some in gains.items()}
    over = [f"{_difference(gain)} over {name}" for name, gain in found.items() if gain is not None]
    return "; ".join([f" and scores {formats.score(score)} on {score.task} {score.split}", *over])


def _difference(gain: Gain) -> str:
    return f"{formats.difference(gain)} points" if gain.verdict is None else f"{formats.difference(gain)},"


def not_measured(facts: ReportFacts) -> list[str]:
    """The measurements that this report lacks, each with the command that takes it."""
    found = [line for one in facts.datasets for line in _missing_of_dataset(one)]
    found += [line for one in facts.models for line in _missing_of_model(one)]
    costs = [*(one.cost for one in facts.datasets), *facts.costs]
    missing = {
        "Human judgements of the pairs: none were given (sts-dino annotate).": facts.judgements is None,
        "Time: no stage's timing lies beside these runs.": not any("seconds" in cost for cost in costs),
        "Energy: no stage measures it.": True,
        "Price: none was given.": not any(cost.get("cost") is not None for cost in costs),
        "The machine: no stage records it.": True,
        "Facts in the texts: nobody checked whether the texts are true.": True,
    }
    return [*found, *(line for line, lacks in missing.items() if lacks)]


def _missing_of_dataset(page: DatasetPage) -> list[str]:
    measured, has_pairs = page.facts.measured, page.sample is not None and page.sample.has_pairs
    missing = {
        "cosine similarity by label: this report has no trained encoder": not page.cosines and has_pairs,
        "cosine similarity by label: it has no pairs": not page.cosines and not has_pairs,
        "label agreement, by an independent judge (sts-dino fidelity)": measured.fidelity is None,
        "downstream gain over baselines, over several seeds (sts-dino value)": measured.value is None,
        "overlap with evaluation data (sts-dino decontaminate)": measured.ledger is None,
    }
    if page.facts.counts is None:
        missing = {"kept texts and rejection reasons, until the run is finished": True}
    return [f"{page.facts.manifest.name}: {line}." for line, lacks in missing.items() if lacks]


def _missing_of_model(facts: ModelFacts) -> list[str]:
    results, trained = facts.results, facts.training is not None
    missing = {"everything, until its training is finished": facts.provenance is None}
    if facts.provenance and results is None:
        missing = {"its scores (sts-dino score)": True}
    elif facts.provenance and results:
        tested = any(score.split in ("test", "all") for score in results.scores)
        missing = {
            "the scores of the untrained encoder": trained and not results.base_scores,
            "the unsupervised SimCSE baseline (control: simcse in the recipe, sts-dino release)": trained
            and not results.control_scores,
            "intervals of some scores: the program that scored kept no outcomes of rows": any(
                score.interval() is None for score in results.scores
            ),
            "a test split: its scores are of validation data": not tested,
        }
    return [f"{facts.manifest.name}: {line}." for line, lacks in missing.items() if lacks]

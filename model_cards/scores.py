"""The score tables of cards and reports: encoder, base encoder, SimCSE baseline, paper, and several trainings.

A table holds one family of scores: those with the same aggregation, head and metric. A task's name carries its protocol
(``sts12/mean``); a classifier's score says whether it transfers or probes.
"""

from collections.abc import Iterable
from typing import Any

from hub import scores as formats
from hub.contract.measured import Repeats, Summary
from hub.contract.results import RULE, Gain, Method, Part, Results, TaskScore, by_task
from hub.untrusted import Markdown, code, table
from model_cards.papers import PaperRow

EARLIER_PROBING = ["sentlen", "wc", "treedepth", "topconst", "bshift", "tense", "subjnum", "objnum", "somo", "coordinv"]
"""Data sets of probing tasks in results from before a score recorded its family."""
STS = "Semantic textual similarity"
OPTIMISERS = {"senteval": "SentEval's own optimiser", "lbfgs": "optimum by L-BFGS"}
CHOOSING = "validation accuracy, by which the regularisation is chosen"
PROBES = {**OPTIMISERS, **{f"{mode}-validation": f"{words}; {CHOOSING}" for mode, words in OPTIMISERS.items()}}
TITLES = {  # protocol → title, in the order of a card
    "all": f"{STS}: one correlation over all pairs",
    "mean": f"{STS}: mean over subsets",
    "wmean": f"{STS}: mean over subsets, weighted by pairs",
    "regression": "Relatedness with a trained head",
    **{f"transfer/{mode}": f"Transfer tasks: classifiers on the embeddings, {words}" for mode, words in PROBES.items()},
    **{f"probing/{mode}": f"Probing tasks: classifiers on the embeddings, {words}" for mode, words in PROBES.items()},
}
MTEB, OTHER = "MTEB", "Other tasks"
INTERVALS: dict[Method, str] = {
    "percentile": "95 % percentile bootstrap intervals",
    "bca": "95 % bootstrap intervals, bias-corrected and accelerated (BCa),",
}
OPEN_PROTOCOLS = 6  # a card folds more of them away
SIMCSE, TRAINED = "SimCSE baseline", "trained"  # the encoder before training: ``Encoder.start``


def families(scores: Iterable[TaskScore]) -> dict[str, list[TaskScore]]:
    """Title → scores of one table: families in the order of a card, scores in the given order."""
    found: dict[str, list[TaskScore]] = {}
    for score in scores:
        found.setdefault(title(score.task, score.main_metric, score.family), []).append(score)
    return {name: found[name] for name in in_order(found)}


def in_order(titles: Iterable[str]) -> list[str]:
    """Each title once: those of ``TITLES`` in that order, then MTEB's and others."""
    order = {name: place for place, name in enumerate(TITLES.values())}
    last = len(order)
    return sorted(set(titles), key=lambda name: (order.get(name, last + (not name.startswith(MTEB))), name))


def title(task: str, metric: str, family: str | None = None) -> str:
    """The title of a task's scores under a metric; ``family`` is the recorded one, None in earlier results."""
    dataset, _, protocol = task.partition("/")
    if dataset == "mteb":
        return f"{MTEB}: {metric}"
    if protocol in PROBES:
        protocol = f"{family or ('probing' if dataset in EARLIER_PROBING else 'transfer')}/{protocol}"
    known = TITLES.get("all" if protocol == "cosine" else protocol)
    return known or f"{OTHER}: {protocol}, {metric}"


def score_context(results: Results, row: PaperRow | None, start: str, trained: bool) -> dict[str, Any]:
    """Template variables of ``scores.md.jinja``; ``start``: what the encoder before training is called."""
    scores = [*results.scores, *results.base_scores, *results.control_scores]
    named = {"": results.scores, f"{start}, ": results.base_scores, f"{SIMCSE}, ": results.control_scores}
    sides = [(side, one) for side, found in named.items() for one in found]
    return {
        "results": results,
        "scores": {
            name: _table(found, results, row, start, trained) for name, found in families(results.scores).items()
        },
        "elsewhere": formats.elsewhere(results, start) if trained else "",
        "paper_averages": row.averages if row else {},
        "parts": parts_of(results),
        "no_interval": any(score.interval() is None for score in scores),
        "interval": INTERVALS[results.interval],
        "rule": RULE if any(gain.verdict for gain in (*results.gains, *results.over_control)) else None,
        "protocols": list({(score.task, score.protocol): score for score in results.scores}.values()),
        "open_protocols": OPEN_PROTOCOLS,
        "other_versions": [(f"{side}{one.task} {one.split}", one.versions) for side, one in sides if one.versions],
    }


def _table(scores: list[TaskScore], results: Results, row: PaperRow | None, start: str, trained: bool) -> Markdown:
    """The scores of a family, those of a trained encoder beside its baselines, and the paper's numbers."""
    before, gains = by_task(results.base_scores), by_task(results.gains)
    control, over = by_task(results.control_scores), by_task(results.over_control)
    units = {score.unit for score in scores}
    papers = [row.score(score) if row else None for score in scores]
    in_paper = any(paper is not None for paper in papers)
    header = ["task", "split", *(units if len(units) == 1 else ["rows"])]
    header += [*([start] if trained else []), *([SIMCSE] if control else []), TRAINED if trained else "score"]
    header += [*(["gain"] if trained else []), *(["gain over SimCSE"] if control else [])]
    rows: list[list[Any]] = []
    for score, paper in zip(scores, papers, strict=True):
        counted = score.n if len(units) == 1 else f"{score.n:,} {score.unit}"
        key = score.task, score.split
        sides = [*([(before, gains)] if trained else []), *([(control, over)] if control else [])]
        cells = [*(formats.score(found.get(key)) for found, _ in sides), formats.score(score)]
        cells += [_gain(found.get(key), score, gain.get(key)) for found, gain in sides]
        cells += ["" if paper is None else formats.number(paper)] if in_paper else []
        rows.append([code(score.task), score.split, counted, *map(Markdown, cells)])
    return table([*header, *(["paper"] if in_paper else [])], rows)


def _gain(before: TaskScore | None, after: TaskScore, gain: Gain | None) -> str:
    if gain is not None or before is None:
        return formats.difference(gain)
    return f"{formats.number(after.main_score - before.main_score, signed=True)} [{formats.NO_INTERVAL}]"


def parts_of(results: Results) -> list[tuple[str, str, str, Part]]:
    """(data set, split, name, part) of every task with parts, e.g. STS subsets, once a data set."""
    parts = {
        (score.task if score.task.startswith("mteb/") else score.task.partition("/")[0], score.split, name, part)
        for score in results.scores
        for name, part in score.parts.items()
    }
    return sorted(parts, key=lambda found: found[:3])


def repeated_scores(repeats: Repeats, results: Results | None = None) -> dict[str, list[Summary]]:
    """Title → summaries of several trainings; ``results`` have the metrics."""
    known = {score.task: (score.main_metric, score.family) for score in results.scores} if results else {}
    found = {one.task: title(one.task, *known.get(one.task, ("other metric", None))) for one in repeats.summaries}
    return {name: [one for one in repeats.summaries if found[one.task] == name] for name in in_order(found.values())}

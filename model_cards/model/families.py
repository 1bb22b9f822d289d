"""Scores in families: what may stand in one column, because aggregation, head and metric are the same.

A task's name carries its protocol (``sts12/mean``); of classifiers the score says whether they transfer or probe.
"""

from collections.abc import Iterable

from hub.contract.results import TaskScore

EARLIER_PROBING = ["sentlen", "wc", "treedepth", "topconst", "bshift", "tense", "subjnum", "objnum", "somo", "coordinv"]
"""Data sets of probing tasks in results that were written before a score told its family; no newer one joins them."""
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
    "retrieval": "Caption-image retrieval",
}
MTEB, OTHER = "MTEB", "Other tasks"


def families(scores: Iterable[TaskScore]) -> dict[str, list[TaskScore]]:
    """Title → scores that one table shows: families in the order of a card, scores in the order given."""
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
    """The title of a task's scores under a metric; ``family`` is what the score says, None in earlier results."""
    dataset, _, protocol = task.partition("/")
    if dataset == "mteb":
        return f"{MTEB}: {metric}"
    if protocol in PROBES:
        protocol = f"{family or ('probing' if dataset in EARLIER_PROBING else 'transfer')}/{protocol}"
    known = TITLES.get("all" if protocol == "cosine" else protocol)
    return known or f"{OTHER}: {protocol}, {metric}"

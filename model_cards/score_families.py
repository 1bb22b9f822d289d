"""Scores in families: what may stand in one column, because aggregation, head and metric are the same.

A task's name carries its protocol (``sts12/mean``), so the family follows from the name and the metric.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hub.results import TaskScore

PROBING = frozenset(
    ("sentlen", "wc", "treedepth", "topconst", "bshift", "tense", "subjnum", "objnum", "somo", "coordinv")
)
STS = "Semantic textual similarity"
PROBES = {"senteval": "SentEval's own optimiser", "lbfgs": "optimum by L-BFGS"}
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


@dataclass(frozen=True)
class Family:
    """Scores that one table shows. ``title`` is plain text."""

    title: str
    scores: tuple[TaskScore, ...]

    @property
    def unit(self) -> str | None:
        """What all of them count their rows in; None when they differ."""
        units = {score.unit for score in self.scores}
        return units.pop() if len(units) == 1 else None


def families(scores: Iterable[TaskScore]) -> list[Family]:
    """The scores by family, families in the order of a card, scores in the order given."""
    scores = list(scores)
    found = {score.task: title(score.task, score.main_metric) for score in scores}
    return [
        Family(name, tuple(score for score in scores if found[score.task] == name)) for name in in_order(found.values())
    ]


def in_order(titles: Iterable[str]) -> list[str]:
    """Each title once: those of ``TITLES`` in that order, then MTEB's and others."""
    order = {name: place for place, name in enumerate(TITLES.values())}
    last = len(order)
    return sorted(set(titles), key=lambda name: (order.get(name, last + (not name.startswith(MTEB))), name))


def title(task: str, metric: str) -> str:
    """The title of the family of a task's scores under a metric."""
    dataset, _, protocol = task.partition("/")
    if dataset == "mteb":
        return f"{MTEB}: {metric}"
    if protocol in PROBES:
        protocol = f"{'probing' if dataset in PROBING else 'transfer'}/{protocol}"
    known = TITLES.get("all" if protocol == "cosine" else protocol)
    return known or f"{OTHER}: {protocol}, {metric}"

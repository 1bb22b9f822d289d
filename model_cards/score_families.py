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
    """The scores by family, families in the order of ``TITLES``, then MTEB's and others; scores in the order given."""
    found: dict[str, list[TaskScore]] = {}
    for score in scores:
        found.setdefault(title(score), []).append(score)
    order = {name: place for place, name in enumerate(TITLES.values())}
    last = len(order)
    names = sorted(found, key=lambda name: (order.get(name, last + (not name.startswith(MTEB))), name))
    return [Family(name, tuple(found[name])) for name in names]


def title(score: TaskScore) -> str:
    """The title of a score's family."""
    dataset, _, protocol = score.task.partition("/")
    if dataset == "mteb":
        return f"{MTEB}: {score.main_metric}"
    if protocol in PROBES:
        protocol = f"{'probing' if dataset in PROBING else 'transfer'}/{protocol}"
    known = TITLES.get("all" if protocol == "cosine" else protocol)
    return known or f"{OTHER}: {protocol}, {score.main_metric}"

"""Semantic textual similarity: the cosine of two embeddings, correlated with human scores.

STS12–16 consist of subsets, and three ways to one figure are in use, which differ by up to ten points: ``all``
(Reimers & Gurevych 2019, SimCSE, MTEB), ``mean`` and ``wmean`` over subsets (SentEval, Conneau & Kiela 2018).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.tasks.rows import Rows, Vector
from eval.tasks.task import Side, Task
from hub.errors import RunError

Correlation = Callable[[Vector, Vector], float]
CHUNK = 1024  # pairs whose embeddings are in memory as float64
DECIMALS = 12  # of a cosine: what float64 can tell apart
INDISTINCT = 1e-6  # cosines of float32 embeddings that differ by less are the same number


def measure_sts(task: Task, data: Mapping[str, Rows], embed: Embed, _: Sequence[int] = ()) -> Measured:
    """Spearman x 100 as ``task`` aggregates it, Pearson beside it, and Spearman of every subset.

    ``data`` has the scored split alone. A subset whose correlation is undefined is left out of ``parts``. Raises
    RunError naming the task when the score itself is: a correlation with a constant is undefined, not 0.
    """
    (pairs,) = data.values()
    cosines = cosine_scores(pairs, embed, task.sides)
    if np.ptp(cosines) < INDISTINCT:
        problem = f"all {len(pairs)} cosines are {cosines[0]:.6g}: their correlation with human scores is undefined"
        raise RunError(task.name, problem, hint="the encoder gives every text the same embedding, or nearly so")
    part = tuple(name for name, start, stop in pairs.subsets for _ in range(start, stop))
    outcomes = Outcomes(pairs.target, cosines, part)
    score, other = (_aggregated(task, outcomes, correlation) for correlation in (spearman, pearson))
    parts = {}
    for name, start, stop in pairs.subsets:
        gold, found = pairs.target[start:stop], cosines[start:stop]
        if not (_constant(gold) or _constant(found)):
            parts[name] = (100 * spearman(found, gold), stop - start)
    return Measured(outcomes, score, {"pearson": other}, parts)


def cosine_scores(pairs: Rows, embed: Embed, sides: tuple[Side, Side] | None = None) -> Vector:
    """Cosine of the two embeddings of every pair, (pairs,); 0 where one of them is the zero vector.

    sides: of the first and the second texts, where they are queries and documents.

    Cosines that differ by float64's rounding alone are made equal: 65 of SMTeuroparl's 459 pairs are two identical
    sentences, and rounding would rank them (its correlation moves by up to 0.08).

    Raises RunError when an embedding is not finite.
    """
    found = np.empty(len(pairs))
    embeds: list[Embed] = [partial(embed, side=side) for side in sides] if sides else [embed, embed]
    for start in range(0, len(pairs), CHUNK):
        rows = slice(start, start + CHUNK)
        texts = pairs.first[rows], pairs.second[rows]
        left, right = (_unit(of_side(side)) for of_side, side in zip(embeds, texts, strict=True))
        found[rows] = np.einsum("ij,ij->i", left, right)
    return found.round(DECIMALS)


def _unit(embeddings: NDArray[np.floating]) -> NDArray[np.float64]:
    rows = np.asarray(embeddings, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise RunError("evaluation", "the model gives embeddings that are not finite", hint="its training diverged")
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _aggregated(task: Task, outcomes: Outcomes, correlation: Correlation) -> float:
    """The correlation x 100 as the task aggregates it. Raises RunError naming the task and subset if undefined."""
    total = 0.0
    for rows, weight in outcomes.parts(task.aggregation):
        gold, system = outcomes.gold[rows], outcomes.predicted[rows]
        if _constant(gold) or _constant(system):
            side = "human scores" if _constant(gold) else "cosines"
            of_part = f" of {outcomes.part[rows[0]]}" if len(rows) < len(outcomes) else ""
            raise RunError(task.name, f"all {len(rows)} {side}{of_part} are the same: the correlation is undefined")
        total += weight * correlation(system, gold)
    return 100 * total


def _constant(values: Vector) -> bool:
    return bool(np.ptp(values) == 0)


def pearson(first: Vector, second: Vector) -> float:
    """Pearson correlation, -1…1. Raises RunError when one side is constant, where it is undefined."""
    if _constant(first) or _constant(second):
        raise RunError("evaluation", "a correlation with a constant is undefined", hint="do all embeddings coincide?")
    return float(np.corrcoef(first, second)[0, 1])


def spearman(first: Vector, second: Vector) -> float:
    """Spearman correlation, -1…1: Pearson of the ranks, ties sharing their mean. Raises RunError as ``pearson``."""
    from scipy.stats import rankdata

    return pearson(rankdata(first), rankdata(second))

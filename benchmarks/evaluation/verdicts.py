"""How often systems that are equally good are told apart: python -m benchmarks.evaluation.verdicts [--families N]

Every family is two systems on some tasks, drawn so that neither is better: both are the same function of the gold, of
noise that they share and of noise of their own. ``eval.statistics.paired``' rule (a paired interval, a test,
Holm's correction over the family) should then find a difference somewhere in at most 5 % of the families. Beside it,
for correlations: the same rule with Williams' t, on ranks for Spearman, which it replaced; how often a 95 % interval
alone excludes 0; and how much of a small true difference is found. Writes a JSON file.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

from benchmarks.trials import write_results
from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import Resampling, score
from eval.statistics.paired import holm, influence, paired_test, resampled
from eval.tasks.rows import Vector
from eval.tasks.task import Aggregation, Metric
from hub.cli import new_app, run
from hub.contract.results import LEVEL

app = new_app(__doc__)
Draw = np.random.Generator
Systems = tuple[Outcomes, Outcomes]
STS = (3108, 1500, 3750, 3000, 1186, 1379, 4927)  # rows of STS12 to 16, the STS Benchmark, SICK
SUBSETS = (5, 3, 6, 5, 5)  # of STS12 to 16
TRANSFER = (10662, 3775, 10000, 10606, 1821, 500, 1725)  # rows of MR, CR, SUBJ, MPQA, SST2, TREC, MRPC
BETTER = 20  # families of each scenario with a true difference


@dataclass(frozen=True)
class Scenario:
    """A family of tasks: rows and subsets of each, how it is scored, and what draws two systems on it.

    ``make`` takes a generator, the number of rows and by how much less the first system's own noise is.
    """

    make: Callable[[Draw, int, float], tuple[Vector, Vector, Vector]]
    rows: tuple[int, ...]
    metric: Metric = "spearman"
    aggregation: Aggregation = "all"
    parts: tuple[int, ...] = ()
    intervals: int = 0  # families whose intervals are all made, for their coverage alone

    def family(self, draw: Draw, less: float = 0.0) -> list[Systems]:
        """Two systems on every task."""
        return [self._task(draw, place, less) for place in range(len(self.rows))]

    def _task(self, draw: Draw, place: int, less: float) -> Systems:
        rows = self.rows[place]
        gold, first, second = self.make(draw, rows, less)
        count = self.parts[place] if self.parts else 0
        part = tuple(str(row * count // rows) for row in range(rows)) if count else ()
        return Outcomes(gold, first, part), Outcomes(gold, second, part)


def normal(draw: Draw, rows: int, less: float) -> tuple[Vector, Vector, Vector]:
    """Normal similarities, correlated by 0.8 with normal scores of two digits: what Williams' t is derived for."""
    gold, shared, one, other = draw.normal(size=(4, rows))
    first, second = (0.8 * gold + 0.6 * (0.9 * shared + 0.44 * noise) for noise in ((1 - less) * one, other))
    return np.round(gold, 1), first, second


def similarities(draw: Draw, rows: int, less: float) -> tuple[Vector, Vector, Vector]:
    """As of sentences: scores from 0 to 5 in steps of 0.2; cosines below 1, surer of equal than of unlike pairs."""
    gold = np.round(25 * draw.beta(1.0, 0.8, size=rows)) / 5
    shared, one, other = draw.standard_t(4, size=(3, rows))
    spread = 0.35 - 0.05 * gold
    first, second = (np.tanh(0.15 * gold + spread * (0.8 * shared + 0.6 * n)) for n in ((1 - less) * one, other))
    return gold, first, second


def classes(draw: Draw, rows: int, less: float) -> tuple[Vector, Vector, Vector]:
    """Two classes, right on 85 % of the rows, mostly on the same ones."""
    gold = draw.integers(0, 2, rows).astype(float)
    hard, (one, other) = draw.random(rows), draw.random((2, rows))
    right = [np.where(own < 0.3, own / 0.3, hard) < 0.85 + more for own, more in ((one, less), (other, 0.0))]
    return gold, np.where(right[0], gold, 1 - gold), np.where(right[1], gold, 1 - gold)


SCENARIOS = {
    "spearman, seven STS tasks": Scenario(similarities, STS),
    "spearman, seven STS tasks, normal data": Scenario(normal, STS),
    "spearman, seven tasks of 250 rows": Scenario(similarities, (250,) * 7, intervals=400),
    "pearson, seven STS tasks": Scenario(similarities, STS, "pearson"),
    "spearman, means of the subsets of STS12 to 16": Scenario(similarities, STS[:5], aggregation="mean", parts=SUBSETS),
    "spearman, weighted means of the same": Scenario(similarities, STS[:5], aggregation="wmean", parts=SUBSETS),
    "accuracy, seven transfer tasks": Scenario(classes, TRANSFER, "accuracy"),
    "f1, seven tasks of 1,725 rows": Scenario(classes, (1725,) * 7, "f1"),
}


@app.command()
def main(
    families: Annotated[int, typer.Option(min=1, help="Families of each scenario")] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/verdicts.json"),
) -> None:
    """Draw families of equal systems, judge them; write a JSON file."""
    began = time.process_time()
    found = {name: judged(name, one, families, seed) for name, one in SCENARIOS.items()}
    result = {
        "families": families,
        "scenarios": found,
        "cpu_seconds": round(time.process_time() - began),
    }
    print(json.dumps(result, indent=2))
    write_results(out, result, ("numpy", "scipy"))


def judged(name: str, scenario: Scenario, families: int, seed: int) -> dict[str, Any]:
    """What the rule says of equal systems, and of a first one with a quarter less noise of its own (classes: a point).

    ``families_told_apart`` is to be at most 5 %, ``tests_below_0.05`` and the intervals that exclude 0 about 5 %.
    """
    draw = np.random.default_rng([seed, list(SCENARIOS).index(name)])
    correlated = scenario.metric in ("spearman", "pearson") and not scenario.parts
    rule, former, tests, outside = 0, 0, list[float](), {"percentile": 0, "bca": 0}
    for number in tqdm(range(families), desc=name, unit=" families"):
        tasks = scenario.family(draw)
        p = [p_value(scenario, systems) for systems in tasks]
        tests += p
        rule += any(told_apart(scenario, tasks, p))
        if correlated:
            former += any(told_apart(scenario, tasks, [williams(scenario.metric, systems) for systems in tasks]))
        if number < scenario.intervals:
            for systems in tasks:
                for method in outside:
                    outside[method] += excludes_zero(scenario, systems, method)
    better = [scenario.family(draw, 0.01 if scenario.make is classes else 0.25) for _ in range(BETTER)]
    points = [difference(scenario, systems) for tasks in better for systems in tasks]
    found = [told_apart(scenario, tasks, [p_value(scenario, systems) for systems in tasks]) for tasks in better]
    told: dict[str, Any] = {
        "tasks": len(scenario.rows),
        "families_told_apart": share(rule, families),
        "tests_below_0.05": share(sum(p < LEVEL for p in tests), len(tests)),
        "a_true_difference": {
            "points": round(float(np.mean(points)), 2),
            "tasks_told_apart": share(sum(map(sum, found)), len(points)),
        },
    }
    if correlated:
        told["families_told_apart_with_williams_t"] = share(former, families)
    if scenario.intervals:
        made = min(families, scenario.intervals) * len(scenario.rows)
        told["intervals_that_exclude_0"] = {method: share(count, made) for method, count in outside.items()}
    return told


def share(count: int, of: int) -> dict[str, float]:
    """A share in per cent with its 95 % Wilson interval."""
    from scipy import stats

    around = stats.binomtest(int(count), of).proportion_ci(method="wilson")
    values = {"share": count / of, "low": around.low, "high": around.high}
    return {name: round(100 * float(value), 2) for name, value in values.items()}


def p_value(scenario: Scenario, systems: Systems) -> float:
    """The rule's test of one task."""
    values = [influence(one, scenario.metric, scenario.aggregation) for one in systems]
    return paired_test(systems, scenario.metric, difference(scenario, systems), values[0] - values[1]).p


def difference(scenario: Scenario, systems: Systems) -> float:
    """The first system's score minus the second's, in points."""
    first, second = (score(one, scenario.metric, scenario.aggregation) for one in systems)
    return first - second


def told_apart(scenario: Scenario, tasks: Sequence[Systems], p: Sequence[float]) -> list[bool]:
    """Whether the rule finds a difference, task by task; the interval is made only where the test allows one."""
    return [
        adjusted < LEVEL and excludes_zero(scenario, systems) for systems, adjusted in zip(tasks, holm(p), strict=True)
    ]


def excludes_zero(scenario: Scenario, systems: Systems, method: str = "percentile") -> bool:
    """Whether the paired interval does."""
    how = Resampling(method="bca" if method == "bca" else "percentile")
    around = resampled(systems, scenario.metric, scenario.aggregation, how).difference(0, 1).around
    return not around.low <= 0 <= around.high


def williams(metric: Metric, systems: Systems) -> float:
    """Williams' t for two correlations with the same gold, on ranks for Spearman: its p-value (Steiger 1980, eq. 7)."""
    from scipy import stats

    columns = [systems[0].gold, systems[0].predicted, systems[1].predicted]
    r = np.corrcoef([stats.rankdata(column) for column in columns] if metric == "spearman" else columns)
    n, mean = len(columns[0]), (r[0, 1] + r[0, 2]) / 2
    spread = 2 * np.linalg.det(r) * (n - 1) / (n - 3) + mean**2 * (1 - r[1, 2]) ** 3
    t = (r[0, 1] - r[0, 2]) * np.sqrt((n - 1) * (1 + r[1, 2]) / spread)
    return float(2 * stats.t.sf(abs(t), n - 3))


if __name__ == "__main__":
    run(app)

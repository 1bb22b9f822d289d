"""Intervals over sentence pairs, training seeds and data seeds at once: a bootstrap, paired between systems.

Every resample draws rows with replacement, the same for all systems, and seeds with replacement, the same for all that
were trained with several. S seeds drawn from S vary less than new ones would, by (S - 1) / S (Davison & Hinkley 1997,
section 2.3), so their part is scaled up by the root of S / (S - 1): with three seeds it matters.
"""

import numpy as np
from numpy.typing import NDArray

from eval.runs.records import read_evaluation
from eval.scoring.search import OF_TREC
from eval.statistics.bootstrap import Matrix, interval, resample, score
from eval.tasks.registry import find_task
from eval.tasks.rows import Vector
from hub.contract.measured import Estimate, VariantPlan, VariantScore, VariantScores
from hub.errors import InputError

APART = 1_000  # between the seeds of draws that are independent; tasks take the numbers between


def drawn_seeds(seeds: int, samples: int, seed: int) -> NDArray[np.intp]:
    """Which seeds every resample draws: (samples, seeds)."""
    return np.random.default_rng(seed).integers(0, seeds, size=(samples, seeds))


def over_seeds(scores: Matrix, drawn: NDArray[np.intp]) -> Vector:
    """Mean over seeds in every resample: (seeds, samples) scores of resampled rows → (samples,).

    ``drawn`` (samples, seeds) says which seeds each resample drew. Of a single seed there is nothing to draw.
    """
    seeds, samples = scores.shape
    centre = scores.mean(axis=0)
    if seeds == 1:
        return centre
    mean = scores[drawn, np.arange(samples)[:, None]].mean(axis=1)
    return centre + np.sqrt(seeds / (seeds - 1)) * (mean - centre)


def over_data_seeds(scores: Matrix, data_seeds: int, seed: int) -> Vector:
    """``over_seeds`` at two levels: (data seeds x training seeds, samples) scores → (samples,).

    Every resample draws data seeds, the same for all systems, and training seeds of each data seed by itself. With few
    data seeds intervals are rather too wide than too narrow.
    """
    number, samples = scores.shape
    if number == 1:
        return over_seeds(scores, np.zeros((samples, 1), dtype=np.intp))
    each = number // data_seeds
    of_data = [
        over_seeds(scores[place * each : (place + 1) * each], drawn_seeds(each, samples, seed + APART * place))
        for place in range(data_seeds)
    ]
    return over_seeds(np.stack(of_data), drawn_seeds(data_seeds, samples, seed - 1))


SEED = 42  # of the resamples
SAMPLES = 1000  # of one evaluation's


def split_of(name: str, split: str) -> str:
    """The split that a task's rows are kept under: the plan's, or the one of a task that cuts its own folds."""
    if name.rpartition("/")[2] in OF_TREC:  # a search of own files
        return split
    task = find_task(name)
    return split if split in task.splits or task.is_of_mteb else task.default_split


def compared(plan: VariantPlan) -> VariantScores:
    """The scores of a plan's variants.

    Raises InputError when an evaluation lacks a task or was made on other rows than the others.
    """
    places = [(variant, place) for variant, folders in plan.variants.items() for place in folders]
    evaluations = [read_evaluation(place) for _, place in places]
    drawn, points = list[Matrix](), dict[str, list[float]]()
    for place, task in enumerate(plan.tasks):
        split = split_of(task, plan.split)
        outcomes = [evaluation.outcomes(task, split) for evaluation in evaluations]
        record = evaluations[0].records.find(task, split)
        assert record is not None and record.metric is not None  # it has outcomes
        try:
            drawn.append(resample(outcomes, record.metric, record.aggregation, plan.samples, SEED + place))
        except ValueError as error:
            raise InputError("evaluations", str(error), hint="score all variants on the same data") from error
        points[task] = [score(one, record.metric, record.aggregation) for one in outcomes]
    rows = np.mean(drawn, axis=0)  # (systems, samples)
    mine = {name: [number for number, (of, _) in enumerate(places) if of == name] for name in plan.variants}
    samples = {variant: over_data_seeds(rows[numbers], plan.data_seeds, SEED) for variant, numbers in mine.items()}
    by_task = {
        variant: {task: float(np.mean([found[n] for n in numbers])) for task, found in points.items()}
        for variant, numbers in mine.items()
    }

    def estimate(variant: str, against: str | None = None) -> Estimate:
        centre, moved = np.mean(list(by_task[variant].values())), samples[variant]
        if against is not None:
            centre, moved = centre - np.mean(list(by_task[against].values())), moved - samples[against]
        around = interval(moved)
        return Estimate(score=float(centre), low=around.low, high=around.high)

    variants = {}
    for variant in plan.variants:
        over = None if variant == plan.control else estimate(variant, plan.control)
        variants[variant] = VariantScore(average=estimate(variant), tasks=by_task[variant], over_simcse=over)
    differences = tuple(estimate(*pair) for pair in plan.differences)
    return VariantScores(variants=variants, pairs=plan.differences, differences=differences)

"""Intervals over sentence pairs, training seeds and data seeds at once: a paired bootstrap.

Every resample draws rows with replacement, the same rows for all systems. Every resample also draws
seeds with replacement, the same seeds for all systems with several seeds. The variance of S seeds
drawn from S is (S - 1) / S of the variance of new seeds (Davison & Hinkley 1997, section 2.3). So
the deviation that seeds cause is scaled up by the root of S / (S - 1).
"""

from itertools import chain
from typing import NamedTuple

import numpy as np

from sts_dino.eval.runs.records import read_evaluation
from sts_dino.eval.scoring.bootstrap import Matrix, compute_interval, compute_score, resample
from sts_dino.eval.scoring.cosines import TREC_METRICS
from sts_dino.eval.tasks.registry import find_task
from sts_dino.eval.tasks.rows import Vector
from sts_dino.hub.contract.measured import Estimate, VariantPlan, VariantScore, VariantScores
from sts_dino.hub.errors import InputError

# Data seeds draw with random seeds this far apart; the numbers between are the tasks'
SEED_STRIDE = 1_000


def resample_seeds(scores: Matrix, seed: int) -> Vector:
    """Return the mean score over seeds drawn with replacement in each resample, (samples,).

    The deviation from the mean over all seeds is scaled by sqrt(seeds / (seeds - 1)), as the
    module's docstring explains. With a single seed the result is its scores.

    Args:
        scores: scores of each seed on the resampled rows, (seeds, samples).
        seed: seed of the draw of training seeds or data seeds.
    """
    seeds, samples = scores.shape
    centre = scores.mean(axis=0)
    if seeds == 1:
        return centre
    drawn = np.random.default_rng(seed).integers(0, seeds, size=(samples, seeds))
    mean = scores[drawn, np.arange(samples)[:, None]].mean(axis=1)
    return centre + np.sqrt(seeds / (seeds - 1)) * (mean - centre)


def resample_data_seeds(scores: Matrix, data_seeds: int, seed: int) -> Vector:
    """Return the mean score over data seeds and training seeds in each resample, (samples,).

    Every resample draws data seeds, the same for all systems, and draws training seeds for each
    data seed apart. With few data seeds the intervals are too wide rather than too narrow. A single
    run, without seeds, gives its own scores.

    Args:
        scores: scores of each run on the resampled rows, (data seeds x training seeds, samples);
            the training seeds of a data seed are consecutive.
        data_seeds: the number of data seeds, which divides the number of runs.
        seed: seed of the draws.
    """
    if len(scores) == 1:
        return scores[0]

    # Average the training seeds of each data seed, which draws with its own random seed
    seeds = len(scores) // data_seeds
    means = []
    for number in range(data_seeds):
        seed_scores = scores[number * seeds : (number + 1) * seeds]
        means.append(resample_seeds(seed_scores, seed + SEED_STRIDE * number))

    # Average the data seeds; their random seed differs from all seeds above and those of the tasks
    return resample_seeds(np.stack(means), seed - 1)


RESAMPLING_SEED = 42
DEFAULT_RESAMPLES = 1000  # of the rows and seeds of a plan


def find_split(name: str, split: str) -> str:
    """Return the split under which an evaluation has the scored rows of a task.

    It is ``split`` where the task has that split, else the task's default split: a task that cuts
    its own folds has only one. MTEB tasks and searches in a user's own files have ``split``.

    Args:
        name: the task.
        split: the plan's split.

    Raises InputError for an unknown task.
    """
    if name.rpartition("/")[2] in TREC_METRICS:  # a search in a user's own files: not in TASKS
        return split
    task = find_task(name)
    return split if split in task.splits or task.is_of_mteb else task.default_split


class VariantSamples(NamedTuple):
    """Scores x 100 of a variant.

    ``tasks``: task → mean over seeds. ``mean``: the mean over the tasks. ``samples``: the mean over
    tasks and seeds in each resample.
    """

    tasks: dict[str, float]
    mean: float
    samples: Vector  # (samples,)


def compare_variants(plan: VariantPlan) -> VariantScores:
    """Compare the variants of a plan, with 95 % intervals over rows and seeds.

    The scores are by variant, in the order of the plan. Raises InputError when an evaluation has no
    results or lacks a task, and when two evaluations scored different rows of a task; RunError when
    the rows of a task cannot be resampled.
    """
    # Resample the rows of all evaluations together, task by task
    folders = chain.from_iterable(plan.variants.values())
    evaluations = [read_evaluation(folder) for folder in folders]
    task_samples: list[Matrix] = []
    task_scores: dict[str, list[float]] = {}
    for number, task in enumerate(plan.tasks):
        split = find_split(task, plan.split)
        outcomes = [evaluation.read_outcomes(task, split) for evaluation in evaluations]
        record = evaluations[0].records.find(task, split)
        assert record is not None and record.metric is not None  # its outcomes were read
        metric, aggregation = record.metric, record.aggregation
        try:
            task_samples.append(
                resample(outcomes, metric, aggregation, plan.samples, RESAMPLING_SEED + number)
            )
        except ValueError as error:
            raise InputError(
                "evaluations", str(error), hint="score all variants on the same data"
            ) from error
        task_scores[task] = [compute_score(rows, metric, aggregation) for rows in outcomes]
    samples = np.mean(task_samples, axis=0)  # (evaluations, samples)

    # Average each variant over its tasks and seeds; the evaluations of a variant are consecutive
    variants: dict[str, VariantSamples] = {}
    start = 0
    for variant, variant_folders in plan.variants.items():
        runs = slice(start, start + len(variant_folders))
        start = runs.stop
        tasks = {task: float(np.mean(values[runs])) for task, values in task_scores.items()}
        resampled = resample_data_seeds(samples[runs], plan.data_seeds, RESAMPLING_SEED)
        variants[variant] = VariantSamples(tasks, float(np.mean(list(tasks.values()))), resampled)

    # Estimate the mean of each variant, and the differences
    scores: dict[str, VariantScore] = {}
    control = variants[plan.control]
    for name, variant_samples in variants.items():
        scores[name] = VariantScore(
            average=_estimate(variant_samples.mean, variant_samples.samples),
            tasks=variant_samples.tasks,
            over_simcse=None if name == plan.control else _subtract(variant_samples, control),
        )
    differences = tuple(
        _subtract(variants[first], variants[second]) for first, second in plan.differences
    )
    return VariantScores(variants=scores, pairs=plan.differences, differences=differences)


def _estimate(mean: float, samples: Vector) -> Estimate:
    """Return a mean with the 95 % interval of its resamples, (samples,)."""
    ends = compute_interval(samples)
    return Estimate(score=float(mean), low=ends.low, high=ends.high)


def _subtract(first: VariantSamples, second: VariantSamples) -> Estimate:
    """Return the first variant's mean score minus the second's, with its paired 95 % interval."""
    return _estimate(first.mean - second.mean, first.samples - second.samples)

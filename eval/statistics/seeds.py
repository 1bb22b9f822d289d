"""Intervals over sentence pairs, training seeds and data seeds at once: a bootstrap, paired between systems.

Every resample draws rows with replacement, the same for all systems, and seeds with replacement, the same for all that
were trained with several. S seeds drawn from S vary less than new ones would, by (S - 1) / S (Davison & Hinkley 1997,
section 2.3), so their part is scaled up by the root of S / (S - 1): with three seeds it matters.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import resample
from eval.statistics.resampling import Matrix
from eval.tasks.data.example_types import Vector
from eval.tasks.task import Aggregation, Metric

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

    Every resample draws data seeds, the same for all systems, and training seeds of each data seed by itself. The
    spread between data seeds holds some of that between trainings already, so with few of them intervals are rather
    too wide than too narrow. A single system, trained once for all data, has nothing to draw.
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


def mean_over_tasks(tasks: Sequence[tuple[Sequence[Outcomes], Metric, Aggregation]], samples: int, seed: int) -> Matrix:
    """Mean score x 100 over tasks of several systems on the same resamples: (systems, samples).

    tasks: for each, every system's outcomes on the same rows. Raises what ``eval.statistics.bootstrap.resample`` does.
    """
    drawn = [
        resample(outcomes, metric, aggregation, samples, seed + place)
        for place, (outcomes, metric, aggregation) in enumerate(tasks)
    ]
    return np.mean(drawn, axis=0)

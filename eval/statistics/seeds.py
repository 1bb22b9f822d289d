"""Intervals over sentence pairs and training seeds at once: a bootstrap of two levels, paired between systems.

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


def mean_over_tasks(tasks: Sequence[tuple[Sequence[Outcomes], Metric, Aggregation]], samples: int, seed: int) -> Matrix:
    """Mean score x 100 over tasks of several systems on the same resamples: (systems, samples).

    tasks: for each, every system's outcomes on the same rows. Raises what ``eval.statistics.bootstrap.resample`` does.
    """
    drawn = [
        resample(outcomes, metric, aggregation, samples, seed + place)
        for place, (outcomes, metric, aggregation) in enumerate(tasks)
    ]
    return np.mean(drawn, axis=0)

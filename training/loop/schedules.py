"""Learning-rate schedules that the trainer does not have."""

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def slanted_triangular(step: int, steps: int, cut_fraction: float = 0.1, ratio: float = 32.0) -> float:
    """The share of the peak rate at ``step`` (from 0) of ``steps``: up to 1 at the cut, then down to 1 / ``ratio``.

    Howard and Ruder 2018, equation 3, with cut = floor(steps * cut_fraction). Their fall has the length
    cut * (1 / cut_fraction - 1), which is steps - cut where steps * cut_fraction is whole. Where it is not, theirs ends
    early and would pass zero, so steps - cut is used throughout. A cut of 0 (few steps) leaves the fall alone.
    """
    cut = math.floor(steps * cut_fraction)
    rise = step / cut if step < cut else max(0.0, 1 - (step - cut) / (steps - cut))
    return (1 + rise * (ratio - 1)) / ratio


def slanted_triangular_schedule(optimizer: Optimizer, steps: int, cut_fraction: float, ratio: float) -> LambdaLR:
    """The schedule for a trainer's ``create_scheduler``; its peak is the rate that ``optimizer`` was made with."""
    return LambdaLR(optimizer, partial(slanted_triangular, steps=steps, cut_fraction=cut_fraction, ratio=ratio))

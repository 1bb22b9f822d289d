"""eval.statistics.scores: an interval is that of the rows that are kept, whatever the mean over seeds is."""

import numpy as np
import pytest

from eval.scoring.outcomes import Measured, Outcomes
from eval.statistics.bootstrap import score
from eval.statistics.scores import EvaluationSettings, task_score
from eval.tasks.registry import find_task


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_a_mean_over_seeds_does_not_move_the_interval_of_the_first(method):
    draw = np.random.default_rng(1)
    gold = draw.integers(0, 2, 300).astype(float)
    rows = Outcomes(gold, np.where(draw.random(300) < 0.8, gold, 1 - gold))
    task, settings = find_task("sst2/senteval"), EvaluationSettings(bootstrap_samples=200, interval=method)
    own = score(rows, "accuracy")
    alone, among = (
        task_score(task, "test", Measured(rows, points), "0" * 64, settings, {}) for points in (own, own + 3)
    )
    assert (alone.main_score, among.main_score) == (own, own + 3)
    assert among.interval() == alone.interval()
    assert alone.low < own < alone.high

"""eval.statistics.paired: against hand-made and textbook values."""

import numpy as np
import pytest
from scipy import stats

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import score
from eval.statistics.paired import holm, influence, jackknife_z, mcnemar


def test_the_jackknifes_z_of_a_mean_is_that_of_the_rows_differences():
    """Two accuracies differ by the mean of what the rows do: the z of a paired t-test, but for n in place of n - 1."""
    draw = np.random.default_rng(1)
    gold = draw.integers(0, 2, 500).astype(float)
    first, second = (Outcomes(gold, np.where(draw.random(500) < 0.8, gold, 1 - gold)) for _ in range(2))
    by_row = influence(first, "accuracy") - influence(second, "accuracy")
    found = jackknife_z(score(first, "accuracy") - score(second, "accuracy"), by_row)
    t = stats.ttest_rel(*(1.0 * (one.predicted == gold) for one in (first, second))).statistic
    assert found.statistic == pytest.approx(t * np.sqrt(500 / 499))


def test_a_difference_of_1_96_standard_errors_has_p_of_0_05():
    by_row = np.full(100, 0.1)  # a standard error of 1
    assert jackknife_z(1.959963985, by_row).p == pytest.approx(0.05, abs=1e-9)
    assert jackknife_z(-1.959963985, by_row).statistic == pytest.approx(-1.959963985)
    assert jackknife_z(0.0, np.zeros(5)).p == 1.0
    assert jackknife_z(1.0, np.zeros(5)).p == 0.0


def test_mcnemar_counts_the_rows_that_one_alone_has_right():
    gold = np.zeros(20)
    first = np.array([0] * 15 + [1] * 5)  # right on 15
    second = np.array([1] * 9 + [0] * 10 + [1])  # right on 10, six of them shared
    found = mcnemar(gold, first, second)  # 9 wins, 4 losses: 2 * P(X <= 4), X ~ Binomial(13, 1/2) = 2 * 1093 / 8192
    assert found.statistic == 5
    assert found.p == pytest.approx(2 * 1093 / 8192, abs=1e-12)
    assert mcnemar(gold, first, first).p == 1.0


def test_holm_by_hand():
    """0.01 x 4; 0.02 x 3 = 0.06; 0.03 x 2 = 0.06; 0.04 x 1 lifted to 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []

"""eval.correlation_tests: the published worked examples, to their digits."""

import numpy as np
import pytest
from scipy import stats

from eval.correlation_tests import bootstrap_z, correlations, holm, mcnemar, steiger, williams


@pytest.mark.parametrize(
    ("found", "statistic", "p", "digits"),
    [
        # Silver, Hittner and May 2006 (program depcor), r = .3, .4, .5, n = 100
        (williams(0.3, 0.4, 0.5, 100), -1.0767, 0.2843, 4),
        (steiger(0.3, 0.4, 0.5, 100), -1.0718, 0.2838, 4),
        # Dunn and Clark 1969
        (steiger(0.3, 0.4, 0.5, 100, pooled=False), -1.0730, 0.2833, 4),
        # stat-help.com's spreadsheet
        (steiger(0.5, 0.6, 0.7, 100, pooled=False), -1.5838851123, 0.1132198659, 10),
    ],
)
def test_statistic_and_p_are_the_published(found, statistic, p, digits):
    assert round(found.statistic, digits) == statistic
    assert round(found.p, digits) == p


def test_steigers_own_example():
    """Steiger 1980, p. 249, case A: Z = -.8913 from a covariance rounded to .0042, -0.8887185 from the exact one."""
    found = steiger(0.4, 0.5, 0.1, 103)
    assert round(found.statistic, 7) == -0.8887185
    assert found.statistic == pytest.approx(-0.8913, abs=0.003)


def test_williams_as_documented_by_psych():
    """R's psych, r.test: three given digits by digit, p = 0.1000759 two-sided at n = 5105."""
    found = williams(0.693458895410494, 0.695966022434845, 0.988475791500198, 5105)
    assert round(found.p, 7) == 0.1000759


def test_the_sign_says_who_is_better_and_equal_systems_do_not_differ():
    for test in (williams, steiger):
        better, worse = test(0.8, 0.7, 0.9, 500), test(0.7, 0.8, 0.9, 500)
        assert better.statistic == pytest.approx(-worse.statistic) and better.statistic > 0 and better.p == worse.p
        assert test(0.7, 0.7, 1.0, 500).p == 1.0


def test_two_equally_good_systems_are_told_apart_as_often_as_chance_says():
    generator = np.random.default_rng(5)
    below = {"williams": 0, "steiger": 0}
    for _ in range(400):
        gold = generator.normal(size=200)
        shared = generator.normal(size=200)
        first, second = (gold + shared + generator.normal(size=200) for _ in range(2))
        found = correlations(gold, first, second, ranks=True)
        below["williams"] += williams(*found, 200).p < 0.05
        below["steiger"] += steiger(*found, 200).p < 0.05
    assert all(8 <= count <= 36 for count in below.values()), below  # 20 ± 3.7 standard deviations


def test_correlations_are_scipys():
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 5, 60).astype(float)
    first, second = gold + generator.normal(size=(2, 60))
    for ranks, reference in ((True, stats.spearmanr), (False, stats.pearsonr)):
        wanted = [reference(a, b).statistic for a, b in ((first, gold), (second, gold), (first, second))]
        assert correlations(gold, first, second, ranks) == pytest.approx(wanted, abs=1e-12)


def test_mcnemar_counts_the_rows_that_one_alone_has_right():
    gold = np.zeros(20)
    first = np.array([0] * 15 + [1] * 5)  # right on 15
    second = np.array([1] * 9 + [0] * 10 + [1])  # right on 10, six of them shared
    found = mcnemar(gold, first, second)  # 9 wins, 4 losses: 2 * P(X <= 4), X ~ Binomial(13, 1/2) = 2 * 1093 / 8192
    assert found.statistic == 5
    assert found.p == pytest.approx(2 * 1093 / 8192, abs=1e-12)
    assert mcnemar(gold, first, first).p == 1.0


def test_bootstrap_z_is_the_difference_in_standard_errors():
    samples = np.array([-1.0, 0.0, 1.0])
    assert bootstrap_z(1.959963985, samples).p == pytest.approx(0.05, abs=1e-9)
    assert bootstrap_z(0.0, np.zeros(5)).p == 1.0


def test_holm_by_hand():
    """0.01 x 4; 0.02 x 3 = 0.06; 0.03 x 2 = 0.06; 0.04 x 1 lifted to 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []

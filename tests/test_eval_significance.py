"""eval.significance: the fast bootstrap equals a plain slow one, and its intervals cover the truth."""

import numpy as np
import pytest
from scipy import stats

from eval.significance import CHUNK, bootstrap_spearman, interval


def data(pairs, seed=0):
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 6, pairs).astype(float)  # many ties, as people's scores have
    good = np.round(gold + generator.normal(size=pairs), 1)
    return gold, np.stack([good, generator.normal(size=pairs)])


def slow_bootstrap(gold, systems, samples, seed):
    """The definition: draw pairs, compute scipy's Spearman on what was drawn."""
    generator = np.random.default_rng(seed)
    drawn = np.concatenate(
        [generator.integers(0, len(gold), size=(CHUNK, len(gold))) for _ in range(-(-samples // CHUNK))]
    )
    return np.array(
        [[stats.spearmanr(system[rows], gold[rows]).statistic for rows in drawn[:samples]] for system in systems]
    )


def test_equals_a_plain_bootstrap_resample_by_resample():
    gold, systems = data(60)
    fast = bootstrap_spearman(gold, systems, CHUNK + 20, seed=7)
    assert fast.shape == (2, CHUNK + 20)
    assert np.abs(fast - slow_bootstrap(gold, systems, CHUNK + 20, seed=7)).max() < 1e-12


def test_the_seed_decides_the_resamples():
    gold, systems = data(30)
    once, again, other = (bootstrap_spearman(gold, systems, 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


def test_a_system_is_resampled_alike_alone_and_beside_another():
    gold, systems = data(40)
    assert np.array_equal(bootstrap_spearman(gold, systems[:1], 30, 5)[0], bootstrap_spearman(gold, systems, 30, 5)[0])


def test_a_system_gains_nothing_over_itself_and_much_over_noise():
    gold, systems = data(200)
    same = bootstrap_spearman(gold, systems[[0, 0]], 100, 3)
    assert np.array_equal(same[0], same[1])
    gain = bootstrap_spearman(gold, systems, 400, 3)
    assert interval(gain[0] - gain[1]).low > 0.3


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(11)
    rho = 0.6
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman of a bivariate normal
    covered = 0
    for seed in range(100):
        gold = generator.normal(size=150)
        system = rho * gold + np.sqrt(1 - rho**2) * generator.normal(size=150)
        found = interval(bootstrap_spearman(gold, system[None], CHUNK, seed)[0])
        covered += found.low <= truth <= found.high
    assert 86 <= covered <= 100


def test_resamples_without_a_correlation_are_drawn_again():
    gold, system = np.array([0.0, 0.0, 1.0, 1.0]), np.array([[0.1, 0.2, 0.3, 0.4]])
    assert np.isfinite(bootstrap_spearman(gold, system, 300, 1)).all()
    with pytest.raises(ValueError, match="too few"):
        bootstrap_spearman(np.ones(4), system, 10, 1)


def test_interval_is_the_central_ninety_five_percent():
    found = interval(np.arange(1001) / 10)
    assert (found.low, found.high) == pytest.approx((2.5, 97.5))

"""training.loop.trainer against Howard and Ruder 2018, equation 3, and inside torch's scheduler."""

import math

import pytest
import torch

from training.loop.trainer import slanted_triangular, slanted_triangular_schedule


def equation_3(t, steps, cut_fraction, ratio):
    cut = math.floor(steps * cut_fraction)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_fraction - 1))
    return (1 + p * (ratio - 1)) / ratio


@pytest.mark.parametrize(("steps", "cut_fraction", "ratio"), [(100, 0.1, 32), (40, 0.25, 10), (1000, 0.1, 2)])
def test_it_is_the_papers_equation(steps, cut_fraction, ratio):
    for t in range(steps + 1):
        assert slanted_triangular(t, steps, cut_fraction, ratio) == pytest.approx(
            equation_3(t, steps, cut_fraction, ratio)
        )


@pytest.mark.parametrize("steps", [1, 3, 15, 19, 101, 31117])
def test_it_stays_between_the_ends_with_any_number_of_steps(steps):
    """Also where the cut is not whole: the equation itself falls below zero there (15 steps: by step 15)."""
    shares = [slanted_triangular(t, steps, 0.1, 32) for t in range(steps + 1)]
    cut = math.floor(steps * 0.1)
    assert shares[cut] == max(shares) == 1
    assert shares[-1] == min(shares) == pytest.approx(1 / 32)
    assert shares[: cut + 1] == sorted(shares[: cut + 1])
    assert shares[cut:] == sorted(shares[cut:], reverse=True)
    assert equation_3(15, 15, 0.1, 32) < 0


def test_the_schedule_scales_every_groups_own_peak_and_goes_on_from_its_state():
    def made():
        groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in (5e-5, 1e-3)]
        optimizer = torch.optim.AdamW(groups)
        return optimizer, slanted_triangular_schedule(optimizer, 20, 0.1, 32.0)

    optimizer, schedule = made()
    rates = []
    for _ in range(20):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
        if len(rates) == 7:
            kept = optimizer.state_dict(), schedule.state_dict()
    for t, (small, large) in enumerate(rates):
        assert small == pytest.approx(5e-5 * equation_3(t, 20, 0.1, 32))
        assert large == pytest.approx(20 * small)
    optimizer, schedule = made()
    optimizer.load_state_dict(kept[0])
    schedule.load_state_dict(kept[1])
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates[7])
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates[8])

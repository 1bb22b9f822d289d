import math

import numpy as np
import pytest
import torch

from generation.backends.self_debiasing import debias, draw, nucleus
from generation.inputs.row_seeds import fraction, row_seed, uniforms
from hub.contract.recipe import DecodingParameters


def slow(logits: np.ndarray, decay: float, floor: float) -> np.ndarray:
    """The formula of the paper, token by token, in float64. logits: (1 + K, V)."""
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    result = []
    for token in range(logits.shape[1]):
        delta = probs[0, token] - max(probs[1:, token])
        alpha = max(math.exp(decay * delta), floor) if delta < 0 else 1.0
        result.append(alpha * probs[0, token])
    return np.array(result) / sum(result)


@pytest.mark.parametrize("counters", [1, 2, 4])
@pytest.mark.parametrize("decay", [1.0, 100.0, 200.0])
def test_debias_is_the_formula(counters, decay):
    logits = torch.randn(8, 1 + counters, 50, generator=torch.Generator().manual_seed(1)) * 3
    ours = debias(logits.log_softmax(-1), decay, 0.01).exp().numpy()
    for row in range(8):
        np.testing.assert_allclose(ours[row], slow(logits[row].double().numpy(), decay, 0.01), rtol=2e-4, atol=1e-7)


def test_zero_decay_and_no_counters_leave_the_distribution_alone():
    log_probs = torch.randn(3, 3, 20).log_softmax(-1)
    assert torch.equal(debias(log_probs, 0.0, 0.01), log_probs[:, 0])
    assert torch.equal(debias(log_probs[:, :1], 100.0, 0.01), log_probs[:, 0])


def test_floor_bounds_the_penalty():
    own, counter = torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1])
    ours = debias(torch.stack([own, counter])[None].log(), 1000.0, 0.01).exp()[0]
    assert ours[0] == pytest.approx(0.001 / 0.901, rel=1e-5)


def test_nucleus_keeps_the_smallest_set_that_reaches_top_p():
    log_probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    probs, ids = nucleus(log_probs, DecodingParameters(top_k=0, top_p=0.65))
    assert ids[0, :2].tolist() == [0, 1] and probs[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    probs, _ = nucleus(log_probs, DecodingParameters(top_k=2, top_p=1.0))
    assert probs[0].tolist() == pytest.approx([4 / 7, 3 / 7])
    probs, _ = nucleus(log_probs, DecodingParameters(top_k=0, top_p=1e-9))
    assert probs[0].tolist() == [1, 0, 0, 0]


def test_nucleus_matches_the_warpers_of_transformers():
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(2)) * 2
    for top_k, top_p in ((5, 0.9), (50, 0.5), (3, 1.0)):
        scores = TopKLogitsWarper(top_k)(None, logits)
        expected = (TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores).softmax(-1)
        probs, ids = nucleus(logits.log_softmax(-1), DecodingParameters(top_k=top_k, top_p=top_p))
        torch.testing.assert_close(torch.zeros_like(logits).scatter(1, ids, probs), expected)


def test_draw_follows_the_probabilities_and_never_takes_a_cut_token():
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).expand(4, 4)
    ids = torch.tensor([[7, 8, 9, 1]]).expand(4, 4)
    drawn = draw(probs, ids, torch.tensor([0.0, 0.5, 0.79999, 1 - 2**-53], dtype=torch.float64))
    assert drawn.tolist() == [7, 8, 8, 9]


def test_uniforms_belong_to_the_row_and_are_uniform():
    seeds = np.array([row_seed(42, i, "1") for i in range(20_000)], dtype=np.uint64)
    numbers = uniforms(seeds, 3)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert abs(numbers.mean() - 0.5) < 0.01 and np.histogram(numbers, 10, (0, 1))[0].min() > 1800
    assert abs(np.corrcoef(numbers, uniforms(seeds, 4))[0, 1]) < 0.03
    assert uniforms(seeds[5:6], 3)[0] == numbers[5]


def test_seeds_do_not_depend_on_the_process():
    assert row_seed(42, "000001", "text", "0.5", 0) == 7692900716544361569
    assert row_seed("a", "b") != row_seed("ab")
    assert 0 <= fraction("x") < 1

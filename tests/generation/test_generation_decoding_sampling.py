"""The next token found among the largest logits is the one found in the whole vocabulary."""

import numpy as np
import pytest
import torch

from generation.decoding.sampling import WholeLogits, choose, largest
from generation.decoding.self_debiasing import debias, draw, nucleus
from generation.inputs.row_seeds import uniforms
from hub.contract.recipe import DecodingParameters

TEXTS, WORDS = 400, 3000


def in_full(
    table: torch.Tensor, index: torch.Tensor, settings: DecodingParameters, numbers: torch.Tensor
) -> torch.Tensor:
    log_probs = table.log_softmax(dim=-1)[index]
    debiased = debias(log_probs, settings.decay_constant, settings.epsilon)
    return draw(*nucleus(debiased, settings), numbers)


@pytest.fixture
def rows():
    """Logits of prompts and counter-prompts that like the same words, as real ones do."""
    generator = torch.Generator().manual_seed(4)  # (seed 3 has two words of equal logit, whose order is free)
    own = 3 * torch.randn(TEXTS, WORDS, generator=generator)
    counters = [own + spread * torch.randn(TEXTS, WORDS, generator=generator) for spread in (0.3, 1.0)]
    index = torch.arange(3 * TEXTS).view(3, TEXTS).T.contiguous()
    return torch.cat([own, *counters]), index


@pytest.mark.parametrize("decay_constant", [0.0, 100.0, 1e6])
@pytest.mark.parametrize("top_k", [1, 5, 40, 0])
def test_equal_to_debiasing_the_whole_vocabulary(rows, decay_constant, top_k):
    table, index = rows
    settings = DecodingParameters(decay_constant=decay_constant, epsilon=1e-9, top_k=top_k, max_new_tokens=1)
    numbers = torch.from_numpy(uniforms(np.arange(TEXTS, dtype=np.uint64), 0))
    tokens, log_probs = choose(WholeLogits(table), index, settings, numbers)
    assert torch.equal(tokens, in_full(table, index, settings, numbers))
    wanted = table.log_softmax(dim=-1)[index].gather(2, tokens[:, None, None].expand(-1, 3, 1))[:, :, 0]
    assert torch.allclose(log_probs, wanted, atol=1e-4)


def test_the_search_is_widened_where_debiasing_strikes_the_likeliest(monkeypatch):
    """The 40 likeliest words are all struck down, so the 5 best debiased ones lie below them."""
    own = torch.full((1, 500), -20.0)
    own[0, :40] = torch.linspace(5, 4.5, 40)
    own[0, 40:60] = torch.linspace(1, 0, 20)
    counter = own.clone()
    counter[0, :40] += 1
    table, index = torch.cat([own, counter]), torch.tensor([[0, 1]])
    settings = DecodingParameters(decay_constant=1e6, epsilon=1e-9, top_p=1.0, max_new_tokens=1)
    drawn = {
        int(choose(WholeLogits(table), index, settings, torch.tensor([number]))[0])
        for number in np.linspace(0, 0.999, 50)
    }
    assert drawn == {40, 41, 42, 43, 44}


def test_repeating_the_own_row_changes_nothing(rows):
    table, index = rows
    settings, numbers = DecodingParameters(max_new_tokens=1), torch.linspace(0, 0.99, TEXTS, dtype=torch.float64)
    narrow = choose(WholeLogits(table), index[:, :2], settings, numbers)[0]
    padded = torch.cat([index[:, :2], index[:, :1]], dim=1)
    assert torch.equal(choose(WholeLogits(table), padded, settings, numbers)[0], narrow)


@pytest.mark.parametrize("length", [10, 640, 5001])
def test_the_largest_through_their_blocks(length):
    values = torch.randn(50, length, generator=torch.Generator().manual_seed(0))
    count = min(20, length)
    found, places = largest(values, count)
    assert torch.equal(found, values.topk(count).values) and torch.equal(values.gather(1, places), found)

"""The output layer in pieces says what the whole logits say, for every way in which they are read."""

from types import SimpleNamespace

import pytest
import torch
from tiny_lm import TEXTS, load_engine, make_lm
from torch import nn

from generation.decoding import engine, memory, output_layer
from generation.decoding.output_layer import LogitsInPieces, OutputLayer
from generation.decoding.protocol import Request, complete
from generation.decoding.sampling import WholeLogits, choose
from hub.contract.recipe import DecodingParameters

ROWS, WIDTH = 90, 24
BANNED = [0, 4099]


@pytest.fixture(params=[(10, False), (330, True), (4096, False), (9001, True)], ids=str)
def both(request):
    """The same logits, whole and in pieces: shorter than a tile's round, one piece, a last piece cut short."""
    vocabulary, biased = request.param
    generator = torch.Generator().manual_seed(vocabulary)
    layer = nn.Linear(WIDTH, vocabulary, bias=biased).requires_grad_(False)
    layer.weight.normal_(0, 1, generator=generator)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    banned = [token for token in BANNED if token < vocabulary]
    pieces = LogitsInPieces(OutputLayer(layer.weight, layer.bias), hidden, banned)
    return WholeLogits(layer(hidden), banned), pieces, vocabulary


def test_normalisers_values_and_largest(both):
    whole, pieces, vocabulary = both
    generator = torch.Generator().manual_seed(1)
    assert torch.allclose(pieces.norms, whole.norms, atol=1e-4)
    rows = torch.randint(ROWS, (20, 3), generator=generator)
    ids = torch.randint(vocabulary, (20, 7), generator=generator)
    ids[0, 0] = 0  # banned
    assert torch.allclose(pieces.at(rows, ids), whole.at(rows, ids), atol=1e-4)
    assert torch.allclose(pieces.whole(rows[:, 0]), whole.whole(rows[:, 0]), atol=1e-4)
    for count in (1, 20, 200):
        found, ours = pieces.largest(rows[:, 0], count)
        wanted, _ = whole.largest(rows[:, 0], count)
        assert torch.allclose(found, wanted, atol=1e-4)
        assert torch.allclose(whole.at(rows[:, :1], ours)[:, 0], wanted, atol=1e-4) or vocabulary < count


@pytest.mark.parametrize("top_k", [5, 0])
def test_the_same_tokens_are_drawn(both, top_k):
    whole, pieces, _ = both
    index = torch.arange(ROWS).view(3, -1).T
    settings = DecodingParameters(top_k=top_k, epsilon=1e-6)
    numbers = torch.linspace(0, 0.99, len(index), dtype=torch.float64)
    wanted, log_probs = choose(whole, index, settings, numbers)
    tokens, ours = choose(pieces, index, settings, numbers)
    assert torch.equal(tokens, wanted) and torch.allclose(ours, log_probs, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [10, 9001])
def test_in_half_precision_what_is_likely_is_as_in_float32(vocabulary):
    """Logits of 30 are rounded by up to 0.06 in bfloat16; log-probabilities of likely tokens are not."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(vocabulary, 64, generator=generator).bfloat16()
    hidden = torch.randn(40, 64, generator=generator).bfloat16()
    hidden[::2] = weight[: 20 if vocabulary > 20 else 10].repeat(2, 1)[:20] * 0.5  # one token takes nearly all
    wanted = torch.log_softmax(hidden.float() @ weight.float().T, dim=-1)
    rows = torch.arange(40)
    pieces = LogitsInPieces(OutputLayer(weight, None), hidden, [])
    found, ids = pieces.largest(rows, 5)
    likely = wanted.gather(1, ids)
    whole = torch.log_softmax((hidden @ weight.T).float(), dim=-1).gather(1, ids)  # of logits in bfloat16
    for ours in (found, pieces.whole(rows).gather(1, ids)):
        ours -= pieces.norms[:, None]
        assert 8 * (ours.exp() - likely.exp()).abs().mean() < (whole.exp() - likely.exp()).abs().mean()


@pytest.mark.parametrize("top_k", [5, 0])
def test_a_row_has_the_same_bits_whatever_rows_are_there(top_k):
    generator = torch.Generator().manual_seed(2)
    layer = OutputLayer(torch.randn(9001, 640, generator=generator), None)
    hidden, settings = torch.randn(100, 640, generator=generator), DecodingParameters(top_k=top_k, epsilon=1e-6)
    numbers = torch.rand(100, generator=generator, dtype=torch.float64)

    def drawn(rows, index):
        return choose(LogitsInPieces(layer, hidden[rows], []), index, settings, numbers[rows[index[:, 0]]])

    everything = torch.arange(100)
    whole = drawn(everything, torch.stack([everything, everything.roll(1)], dim=1))
    for size in (1, 2, 7, 33, 64):
        rows = torch.randperm(100, generator=generator)[:size]
        rows = torch.cat([rows, (rows - 1) % 100])
        found = drawn(rows, torch.stack([torch.arange(size), torch.arange(size, 2 * size)], dim=1))
        assert torch.equal(found[0], whole[0][rows[:size]]) and torch.equal(found[1], whole[1][rows[:size]])


def test_logits_of_all_rows_are_never_there_at_once(tmp_path, monkeypatch):
    """With a vocabulary of five pieces: the forward pass ends with hidden states, no product is wider."""
    loaded = load_engine(make_lm(tmp_path, vocab_size=5 * output_layer.PIECE))
    passed, shapes = engine.run_pass, set()

    def run_pass(*given):
        outputs = passed(*given)
        shapes.add(("outputs", outputs.shape[1]))
        return outputs

    def pieces(*given):
        for logits in OutputLayer.pieces(*given):
            shapes.add(("piece", logits.shape[1]))
            yield logits

    monkeypatch.setattr(engine, "run_pass", run_pass)
    monkeypatch.setattr(loaded._output, "pieces", lambda *given: pieces(loaded._output, *given))
    requests = [Request(TEXTS[0], (TEXTS[1],), seed) for seed in range(5)]
    assert complete(loaded, requests, DecodingParameters(max_new_tokens=3), 4)
    assert shapes == {("outputs", 32), ("piece", output_layer.PIECE)}


def test_rows_that_fit_count_the_output_layer(tmp_path, monkeypatch):
    """In 64 MB there is room for more than twice as many rows as with whole logits."""
    free = SimpleNamespace(available=64 << 20)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: free)
    engine = load_engine(make_lm(tmp_path, vocab_size=5 * output_layer.PIECE))
    in_pieces = engine.rows(DecodingParameters())
    monkeypatch.setattr(engine, "_output", None)
    assert 100 < in_pieces < 512 and 16 < engine.rows(DecodingParameters()) < in_pieces / 2

"""The formula of self-debiasing and guidance; draws without the whole vocabulary equal it."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_lm import TEXTS, load_engine, make_lm
from torch import nn

from sts_dino.generation.backends import engine, load_model, output_layer, self_debiasing
from sts_dino.generation.backends.output_layer import LogitsInPieces, OutputLayer
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.backends.self_debiasing import (
    NextTokenLogits,
    TextRows,
    append_guided_rows,
    debias,
    draw,
    find_largest,
    guide,
    select_nucleus,
)
from sts_dino.generation.inputs.prompts import load_prompts
from sts_dino.generation.inputs.row_seeds import draw_fraction, draw_uniforms, make_seed
from sts_dino.hub.contract.recipe import DatasetRecipe, DecodingParameters
from sts_dino.hub.contract.recipe_file import load_recipe

ROWS, WIDTH = 90, 24
BANNED = [0, 4099]


def choose(logits, index, settings, numbers, scored=None, guided=None, decay=None):
    decay = torch.full((len(index),), settings.decay_constant) if decay is None else decay
    rows = TextRows(index, index if scored is None else scored, guided)
    return self_debiasing.choose_tokens(logits, rows, settings, numbers, decay)


def slow(logits: np.ndarray, decay: float, epsilon: float) -> np.ndarray:
    """The formula of the paper, token by token, in float64. logits: (1 + K, V)."""
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    result = []
    for token in range(logits.shape[1]):
        delta = probs[0, token] - max(probs[1:, token])
        alpha = max(math.exp(decay * delta), epsilon) if delta < 0 else 1.0
        result.append(alpha * probs[0, token])
    return np.array(result) / sum(result)


@pytest.mark.parametrize("decay", [1.0, 200.0])
def test_debias_is_the_formula(decay):
    for counters in (1, 4):
        logits = torch.randn(8, 1 + counters, 50, generator=torch.Generator().manual_seed(1)) * 3
        ours = debias(logits.log_softmax(-1), decay, 0.01).exp().numpy()
        wanted = [slow(row.double().numpy(), decay, 0.01) for row in logits]
        np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=1e-7)


def test_debiasing_is_bounded_by_epsilon_and_off_without_decay_or_counters():
    own, counter = torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1])
    ours = debias(torch.stack([own, counter])[None].log(), 1000.0, 0.01).exp()[0]
    assert ours[0] == pytest.approx(0.001 / 0.901, rel=1e-5)
    log_probs = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    assert torch.equal(debias(log_probs, 0.0, 0.01), log_probs[:, 0])
    assert torch.equal(debias(log_probs[:, :1], 100.0, 0.01), log_probs[:, 0])
    constants = [0.0, 5.0, 100.0, 0.0]  # one for each text
    together = debias(log_probs, torch.tensor(constants)[:, None], 0.01)
    for number, constant in enumerate(constants):
        assert torch.equal(
            together[number], debias(log_probs[number : number + 1], constant, 0.01)[0]
        )


def test_debiased_texts_fit_the_counter_labels_less():
    """Of the shipped language model: what self-debiasing is for (DINO, section 3)."""
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe)
    writer, prompts = load_writer(recipe.model), load_prompts(recipe)
    texts = [
        line.split("\t")[0]
        for line in Path("assets/demo-data/x1.tsv").read_text("utf-8").splitlines()[1:41]
    ]
    for label in recipe.labels[1:]:
        asked = [
            Request(
                *prompts.make_prompts(label, text, recipe.variants[0]),
                make_seed(7, text, label.name),
            )
            for text in texts
        ]
        margins = [
            np.array(
                [
                    one.margin
                    for one in complete(writer, asked, recipe.decoding.model_copy(update=decay), 40)
                ]
            )
            for decay in ({"decay_constant": 0.0}, {"decay_constant": 100.0})
        ]
        # of the log-probability over the best counter-prompt's, per source sentence
        rises = margins[1] - margins[0]
        assert rises.mean() > 2.5 * rises.std(ddof=1) / math.sqrt(len(rises)), label.name


def test_alpha_is_of_the_unguided_probabilities():
    """A token that guidance favours is penalised all the same where a counter-prompt made it
    likelier.
    """
    own = torch.tensor([[0.3, 0.3, 0.4]]).log()
    log_probs = torch.stack([own, torch.tensor([[0.6, 0.2, 0.2]]).log()], dim=1)
    target = guide(own, torch.tensor([[0.1, 0.3, 0.6]]).log(), 1.0).log_softmax(-1)
    assert torch.allclose(
        target.exp(), torch.tensor([[0.9, 0.3, 0.4 * 0.4 / 0.6]]) / (0.9 + 0.3 + 0.16 / 0.6)
    )
    found = debias(log_probs, 10.0, 1e-6, target).exp()[0]
    weights = target.exp()[0] * torch.tensor([float(np.exp(-3)), 1, 1])
    assert torch.allclose(found, weights / weights.sum(), atol=1e-6)


def test_nucleus_keeps_the_smallest_set_that_reaches_top_p():
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    probs, ids = select_nucleus(
        torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log(), DecodingParameters(top_k=0, top_p=0.65)
    )
    assert ids[0, :2].tolist() == [0, 1] and probs[0].tolist() == pytest.approx(
        [4 / 7, 3 / 7, 0, 0]
    )
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(2)) * 2
    for top_k, top_p in ((5, 0.9), (50, 0.5), (3, 1.0)):
        scores = TopKLogitsWarper(top_k)(None, logits)
        expected = (TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores).softmax(-1)
        probs, ids = select_nucleus(
            logits.log_softmax(-1), DecodingParameters(top_k=top_k, top_p=top_p)
        )
        torch.testing.assert_close(torch.zeros_like(logits).scatter(1, ids, probs), expected)


def test_draws_follow_the_probabilities_and_the_numbers_of_a_row_are_its_own():
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).expand(4, 4)
    ids = torch.tensor([[7, 8, 9, 1]]).expand(4, 4)
    drawn = draw(probs, ids, torch.tensor([0.0, 0.5, 0.79999, 1 - 2**-53], dtype=torch.float64))
    assert drawn.tolist() == [7, 8, 8, 9]
    seeds = np.array([make_seed(42, i, "1") for i in range(20_000)], dtype=np.uint64)
    numbers = draw_uniforms(seeds, 3)
    assert ((numbers >= 0) & (numbers < 1)).all() and draw_uniforms(seeds[5:6], 3)[0] == numbers[5]
    assert abs(numbers.mean() - 0.5) < 0.01 and np.histogram(numbers, 10, (0, 1))[0].min() > 1800
    assert abs(np.corrcoef(numbers, draw_uniforms(seeds, 4))[0, 1]) < 0.03
    assert make_seed(42, "000001", "text", "0.5", 0) == 7692900716544361569, (
        "the same in every process and version"
    )
    assert make_seed("a", "b") != make_seed("ab") and 0 <= draw_fraction("x") < 1


@pytest.mark.parametrize("top_k", [1, 5, 40, 0])
def test_choose_equals_debiasing_and_guiding_the_whole_vocabulary(top_k):
    """Each text with its own λ and γ."""
    texts, words = 300, 3000
    generator = torch.Generator().manual_seed(4)
    own = 3 * torch.randn(texts, words, generator=generator)
    table = torch.cat(
        [
            own,
            *(
                own + spread * torch.randn(own.shape, generator=generator)
                for spread in (0.3, 1.0, 2)
            ),
        ]
    )
    scored = torch.arange(3 * texts).view(3, texts).T.contiguous()
    drawn = scored[:, :2]
    decay = torch.tensor([0.0, 3.0, 100.0, 1e6]).repeat(texts // 4)
    guidance = torch.tensor([0.0, 0.8, 3.0]).repeat(texts // 3)
    settings = DecodingParameters(epsilon=1e-9, top_k=top_k)
    numbers = torch.from_numpy(draw_uniforms(np.arange(texts, dtype=np.uint64), 0))
    plain = torch.where(guidance > 0, torch.arange(3 * texts, 4 * texts), torch.arange(texts))
    outputs, rows = append_guided_rows(table, TextRows(drawn, scored), plain, guidance)
    # no row for a text without guidance
    assert len(outputs) == 3 * texts + int((guidance > 0).sum())
    assert torch.equal(rows[2] == rows[0][:, 0], guidance == 0)
    tokens, log_probs = choose(
        NextTokenLogits(outputs), rows[0], settings, numbers, rows[1], rows[2], decay
    )
    log = table.log_softmax(-1)
    for text in range(texts):
        gamma = float(guidance[text])
        target = ((1 + gamma) * log[text] - gamma * log[3 * texts + text]).log_softmax(-1)[None]
        debiased = debias(log[drawn[text]][None], float(decay[text]), settings.epsilon, target)
        assert int(draw(*select_nucleus(debiased, settings), numbers[text : text + 1])) == int(
            tokens[text]
        )
    wanted = log[scored].gather(2, tokens[:, None, None].expand(-1, 3, 1))[:, :, 0]
    assert torch.allclose(log_probs, wanted, atol=1e-4)
    # fewer counter-prompts than others: the own row again
    padded = torch.cat([drawn, drawn[:, :1]], dim=1)
    alike = (
        choose(NextTokenLogits(table), index, settings, numbers)[0] for index in (drawn, padded)
    )
    assert torch.equal(*alike)


def test_the_search_is_widened_where_debiasing_strikes_the_likeliest():
    """The 40 likeliest words are all struck down, so the 5 best debiased ones lie below them."""
    own = torch.full((1, 500), -20.0)
    own[0, :40], own[0, 40:60] = torch.linspace(5, 4.5, 40), torch.linspace(1, 0, 20)
    counter = own.clone()
    counter[0, :40] += 1
    table, index = torch.cat([own, counter]), torch.tensor([[0, 1]])
    settings = DecodingParameters(decay_constant=1e6, epsilon=1e-9, top_p=1.0, max_new_tokens=1)
    numbers = np.linspace(0, 0.999, 50)
    drawn = {
        int(choose(NextTokenLogits(table), index, settings, torch.tensor([number]))[0])
        for number in numbers
    }
    assert drawn == {40, 41, 42, 43, 44}


@pytest.fixture(params=[(10, False), (330, True), (4096, False), (9001, True)], ids=str)
def both(request):
    """The same logits, whole and in pieces: shorter than a tile's round, one piece, a last piece
    cut short.
    """
    vocabulary, biased = request.param
    generator = torch.Generator().manual_seed(vocabulary)
    layer = nn.Linear(WIDTH, vocabulary, bias=biased).requires_grad_(False)
    layer.weight.normal_(0, 1, generator=generator)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    banned = [token for token in BANNED if token < vocabulary]
    pieces = LogitsInPieces(OutputLayer(layer.weight, layer.bias), hidden, banned)
    return NextTokenLogits(layer(hidden), banned), pieces, vocabulary


def test_the_output_layer_in_pieces_gives_the_whole_logits_and_draws(both):
    whole, pieces, vocabulary = both
    values = whole.get_rows(torch.arange(ROWS))
    found, places = find_largest(values, min(20, vocabulary))  # through tiles
    assert torch.equal(found, values.topk(min(20, vocabulary)).values) and torch.equal(
        values.gather(1, places), found
    )
    generator = torch.Generator().manual_seed(1)
    assert torch.allclose(pieces.norms, whole.norms, atol=1e-4)
    rows = torch.randint(ROWS, (20, 3), generator=generator)
    ids = torch.randint(vocabulary, (20, 7), generator=generator)
    ids[0, 0] = 0  # banned
    assert torch.allclose(pieces.get(rows, ids), whole.get(rows, ids), atol=1e-4)
    assert torch.allclose(pieces.get_rows(rows[:, 0]), whole.get_rows(rows[:, 0]), atol=1e-4)
    for count in (1, 20, 200):
        found, ours = pieces.find_largest(rows[:, 0], count)
        wanted, _ = whole.find_largest(rows[:, 0], count)
        assert torch.allclose(found, wanted, atol=1e-4)
        assert (
            torch.allclose(whole.get(rows[:, :1], ours)[:, 0], wanted, atol=1e-4)
            or vocabulary < count
        )
    index = torch.arange(ROWS).view(3, -1).T
    numbers = torch.linspace(0, 0.99, len(index), dtype=torch.float64)
    for top_k in (5, 0):
        settings = DecodingParameters(top_k=top_k, epsilon=1e-6)
        (wanted, log_probs), (tokens, ours) = (
            choose(one, index, settings, numbers) for one in (whole, pieces)
        )
        assert torch.equal(tokens, wanted) and torch.allclose(ours, log_probs, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [10, 9001])
def test_in_half_precision_likely_tokens_are_as_in_float32(vocabulary):
    """Logits of 30 are rounded by up to 0.06 in bfloat16; log-probabilities of likely tokens are
    not.
    """
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(vocabulary, 64, generator=generator).bfloat16()
    hidden = torch.randn(40, 64, generator=generator).bfloat16()
    # one token takes nearly all
    hidden[::2] = weight[: 20 if vocabulary > 20 else 10].repeat(2, 1)[:20] * 0.5
    wanted, rows = torch.log_softmax(hidden.float() @ weight.float().T, dim=-1), torch.arange(40)
    pieces = LogitsInPieces(OutputLayer(weight, None), hidden, [])
    found, ids = pieces.find_largest(rows, 5)
    likely = wanted.gather(1, ids)
    # of logits in bfloat16
    whole = torch.log_softmax((hidden @ weight.T).float(), dim=-1).gather(1, ids)
    for ours in (found, pieces.get_rows(rows).gather(1, ids)):
        ours -= pieces.norms[:, None]
        assert (
            8 * (ours.exp() - likely.exp()).abs().mean() < (whole.exp() - likely.exp()).abs().mean()
        )


@pytest.mark.parametrize("vocabulary", [330, 9001])
def test_in_half_precision_guided_logits_are_not_rounded_once_more(vocabulary):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(vocabulary, 64, generator=generator).bfloat16()
    hidden = torch.randn(60, 64, generator=generator).bfloat16()
    drawn = torch.arange(20)[:, None]
    outputs, (drawn, _, places) = append_guided_rows(
        hidden, TextRows(drawn, drawn), torch.arange(20, 40), torch.full((20,), 1.5)
    )
    pieces = LogitsInPieces(OutputLayer(weight, None), outputs, [])
    exact = hidden.double() @ weight.double().T
    wanted = 2.5 * exact[:20] - 1.5 * exact[20:40]
    found, ids = pieces.find_largest(places, 5)
    assert torch.allclose(found.double(), wanted.gather(1, ids), atol=1e-4)
    # of 40 to 60: candidates come from rounded logits
    assert (wanted.topk(5).values - found).abs().max() < 0.5
    assert torch.equal(
        pieces.get(drawn, ids),
        LogitsInPieces(OutputLayer(weight, None), hidden[:20], []).get(drawn, ids),
    )


@pytest.mark.parametrize("top_k", [5, 0])
def test_a_row_has_the_same_bits_whatever_rows_are_there(monkeypatch, top_k):
    generator = torch.Generator().manual_seed(2)
    layer = OutputLayer(torch.randn(9001, 640, generator=generator), None)
    hidden, settings = (
        torch.randn(100, 640, generator=generator),
        DecodingParameters(top_k=top_k, epsilon=1e-6),
    )
    numbers = torch.rand(100, generator=generator, dtype=torch.float64)

    def drawn(rows, index):
        return choose(
            LogitsInPieces(layer, hidden[rows], []), index, settings, numbers[rows[index[:, 0]]]
        )

    everything = torch.arange(100)
    whole = drawn(everything, torch.stack([everything, everything.roll(1)], dim=1))
    # logits of five rows at a time
    most, read, embedding = 5 * 160 * 640, [], nn.functional.embedding
    monkeypatch.setitem(output_layer.AT_ONCE, "cpu", most)
    monkeypatch.setattr(
        nn.functional,
        "embedding",
        lambda ids, weight: read.append(ids.numel()) or embedding(ids, weight),
    )
    for size in (1, 2, 7, 33, 64):
        rows = torch.randperm(100, generator=generator)[:size]
        rows = torch.cat([rows, (rows - 1) % 100])
        found = drawn(rows, torch.stack([torch.arange(size), torch.arange(size, 2 * size)], dim=1))
        assert torch.equal(found[0], whole[0][rows[:size]]) and torch.equal(
            found[1], whole[1][rows[:size]]
        )
    assert 0 < max(read) * 640 <= most, "weights that are read together"


def test_logits_of_all_rows_are_never_there_at_once_and_more_rows_fit(tmp_path, monkeypatch):
    """With a vocabulary of five pieces: the forward pass ends with hidden states, no product is
    wider.
    """
    loaded = load_engine(make_lm(tmp_path, vocab_size=5 * output_layer.PIECE))
    passed, shapes = engine.run_pass, set()

    def run_pass(*given):
        outputs = passed(*given)
        shapes.add(("outputs", outputs.shape[1]))
        return outputs

    def pieces(*given):
        for logits in OutputLayer.compute_pieces(loaded._output, *given):
            shapes.add(("piece", logits.shape[1]))
            yield logits

    monkeypatch.setattr(engine, "run_pass", run_pass)
    with monkeypatch.context() as patched:
        patched.setattr(loaded._output, "compute_pieces", pieces)
        requests = [Request(TEXTS[0], (TEXTS[1],), seed) for seed in range(5)]
        assert complete(loaded, requests, DecodingParameters(max_new_tokens=3), 4)
    assert shapes == {("outputs", 32), ("piece", output_layer.PIECE)}
    monkeypatch.setattr(
        load_model.psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 20)
    )
    in_pieces = loaded.count_rows(DecodingParameters())
    monkeypatch.setattr(loaded, "_output", None)
    assert 100 < in_pieces < 512 and 16 < loaded.count_rows(DecodingParameters()) < in_pieces / 2

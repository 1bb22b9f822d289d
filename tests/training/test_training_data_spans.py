"""DeCLUTR's section 3.2 against an independent reading (statistical tests with fixed seeds), and
rows of token ids.
"""

import itertools
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from datasets import Dataset
from scipy import stats
from tiny_bases import make_mlm_tokenizer
from tiny_lm import TEXTS
from torch.utils.data import DataLoader
from transformers import TrainerControl, TrainerState

from sts_dino.hub.contract.recipe import Spans
from sts_dino.hub.errors import InputError
from sts_dino.training.data.spans import (
    Span,
    SpanCollator,
    draw_anchors_apart,
    draw_anchors_in_blocks,
    draw_positive,
    make_span_rows,
    sample_spans,
)

PAPER = Spans(anchor_placement="apart")  # the paper's other values are the defaults
STRATEGIES = ("any", "adjacent", "overlapping", "subsumed")
REJECTED = 1e-6  # a p-value below is a wrong distribution; above SOUND, the right one
SOUND = 1e-3


def lengths_p(lengths, alpha, beta, shortest=32, longest=512):
    """Chi-square of span lengths against floor(Beta * (longest - shortest) + shortest), ten lengths
    to a bin.
    """
    edges = np.array([*range(shortest, longest, 10), longest])
    observed, _ = np.histogram(lengths, bins=edges)
    assert observed.sum() == len(lengths)
    shares = np.diff(stats.beta.cdf((edges - shortest) / (longest - shortest), alpha, beta))
    wide = shares * len(lengths) >= 5
    pooled = [
        np.append(counts[wide], counts[~wide].sum()) for counts in (observed, shares * len(lengths))
    ]
    return stats.chisquare(*pooled).pvalue


def uniform_p(counts, choices):
    """Chi-square of counts against equal shares of all ``choices``."""
    assert set(counts) <= set(choices)
    return stats.chisquare([counts[choice] for choice in choices]).pvalue


def pair_kind(anchor: Span, positive: Span) -> str:
    """How ``positive`` lies to ``anchor`` (Figure 1b); one that contains the anchor and more is
    overlapping.

    Raises ValueError when there are tokens between them: the sampling never does that.
    """
    if anchor.start <= positive.start and positive.end <= anchor.end:
        return "subsumed"
    if positive.start < anchor.end and anchor.start < positive.end:
        return "overlapping"
    if positive.end == anchor.start or positive.start == anchor.end:
        return "adjacent"
    raise ValueError(f"{positive} lies apart from {anchor}")


@pytest.fixture(scope="module")
def drawn():
    """4,000 documents of 5,000 tokens: (anchors, positives) of each."""
    generator = np.random.default_rng(1)
    return [sample_spans(generator, 5000, PAPER) for _ in range(4000)]


def test_lengths_have_the_papers_beta_distributions(drawn):
    anchors = [span.end - span.start for anchors, _ in drawn for span in anchors]
    positives = [span.end - span.start for _, positives in drawn for span in positives]
    assert len(anchors) == 8000 and len(positives) == 16000
    assert min(anchors + positives) >= 32 and max(anchors + positives) < 512
    assert lengths_p(anchors, 4, 2) > SOUND
    assert lengths_p(positives, 2, 4) > SOUND
    assert lengths_p(anchors, 2, 4) < REJECTED
    assert lengths_p(positives, 2, 5) < REJECTED
    assert stats.ks_2samp(anchors, positives).pvalue < REJECTED


def allowed_placements(lengths, tokens, gap):
    """All starts of anchors in the document's order with at least ``gap`` tokens between them, by
    enumeration.
    """
    ranges = [range(tokens - length + 1) for length in lengths]
    return [
        starts
        for starts in itertools.product(*ranges)
        if all(starts[k] + lengths[k] + gap <= starts[k + 1] for k in range(len(lengths) - 1))
    ]


def test_anchors_take_every_allowed_placement_with_equal_chance():
    count, tokens = 3, 38
    spans = Spans(
        anchor_placement="apart", anchors=count, min_length=2, max_length=4, min_document=28
    )
    generator = np.random.default_rng(3)
    by_lengths = defaultdict(Counter)  # lengths of the anchors → their starts
    for anchors in (draw_anchors_apart(generator, tokens, spans) for _ in range(40000)):
        by_lengths[tuple(a.end - a.start for a in anchors)][tuple(a.start for a in anchors)] += 1
    assert len(by_lengths) == 2**count
    for lengths, starts in by_lengths.items():
        placements = allowed_placements(lengths, tokens, gap=8)
        if starts.total() >= 5 * len(placements):
            assert uniform_p(starts, placements) > SOUND


def test_positives_of_different_anchors_share_no_text(drawn):
    for anchors, positives in drawn:
        assert all(0 <= span.start < span.end <= 5000 for span in positives)
        assert max(span.end for span in positives[:2]) <= min(span.start for span in positives[2:])
        for k, span in enumerate(positives):
            pair_kind(anchors[k // 2], span)  # raises if they lie apart


ANCHORS = {"inside": Span(40, 49), "at the start": Span(0, 9), "near the end": Span(88, 97)}


@pytest.mark.parametrize("anchor", ANCHORS.values(), ids=ANCHORS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_positive_starts_anywhere_its_strategy_allows_with_equal_chance(strategy, anchor):
    """Against all starts of a document of 100 tokens, listed by the paper's range and the kind of
    the pair.
    """
    spans = Spans(
        anchor_placement="apart",
        anchors=1,
        min_length=4,
        max_length=16,
        min_document=30,
        strategy=strategy,
    )
    generator = np.random.default_rng(6)
    drawn = [draw_positive(generator, anchor, 100, spans) for _ in range(6000)]
    for length, count in Counter(span.end - span.start for span in drawn).items():
        in_range = range(anchor.start - length, anchor.end + 1)
        inside = [
            Span(start, start + length)
            for start in in_range
            if start >= 0 and start + length <= 100
        ]
        choices = [span for span in inside if strategy in ("any", pair_kind(anchor, span))]
        found = Counter(span for span in drawn if span.end - span.start == length)
        assert set(found) <= set(choices)
        if len(choices) > 1 and count >= 5 * len(choices):
            assert uniform_p(found, choices) > SOUND / 10  # some hundred tests


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("placement", ["apart", "blocks"])
def test_the_shortest_document_has_room_for_extreme_lengths(strategy, placement):
    for count, betas in itertools.product((1, 2, 3, 5), [(0.01, 100.0), (100.0, 0.01)]):
        extreme = {
            "anchor_placement": placement,
            "anchor_beta": betas,
            "positive_beta": betas,
            "strategy": strategy,
        }
        spans = Spans(anchors=count, min_length=2, max_length=6, min_document=99, **extreme)
        generator = np.random.default_rng(11)
        for _ in range(50):
            anchors, positives = sample_spans(generator, spans.needed_units, spans)
            assert len(anchors) == count and len(positives) == 2 * count
            assert all(0 <= s.start < s.end <= spans.needed_units for s in anchors + positives)
            blocks = sorted(anchor.start // 6 for anchor in anchors)
            assert all(b - a >= 2 for a, b in itertools.pairwise(blocks))


def test_anchors_in_blocks_are_drawn_as_the_authors_code_draws_them():
    """Two anchors in four blocks: a block, then one of those that are neither it nor beside it."""
    generator = np.random.default_rng(11)
    spans = Spans()
    drawn = [draw_anchors_in_blocks(generator, 2048, spans) for _ in range(8000)]
    pairs = Counter(tuple(anchor.start // 512 for anchor in anchors) for anchors in drawn)
    expected = {(0, 2): 1, (0, 3): 1, (1, 3): 2, (2, 0): 2, (3, 0): 1, (3, 1): 1}  # eighths
    assert set(pairs) == set(expected)
    shares = [8000 * expected[pair] / 8 for pair in sorted(expected)]
    assert stats.chisquare([pairs[pair] for pair in sorted(pairs)], shares).pvalue > SOUND
    for anchors in drawn:
        assert all(anchor.start // 512 == (anchor.end - 1) // 512 for anchor in anchors)
    places = [(a.start % 512) / (512 - (a.end - a.start)) for anchors in drawn for a in anchors]
    assert stats.kstest(places, "uniform").pvalue > SOUND / 100  # starts are whole numbers
    gaps = [max(a.start, b.start) - min(a.end, b.end) for a, b in drawn]
    assert min(gaps) >= 512 and sum(gap < 1024 for gap in gaps) / 8000 > 0.5


SPANS = Spans(unit="tokens", min_length=4, max_length=16, min_document=64)
WORDS = SPANS.model_copy(update={"unit": "words"})


def documents(count, seed=0):
    """Documents of 64 tokens or more from the tiny language models' texts, each of a few."""
    generator = random.Random(seed)
    return [
        {"text": " ".join(generator.choices(generator.sample(TEXTS, 3), k=30))}
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return make_mlm_tokenizer()


def taken(rows, count, workers=0):
    """The first ``count`` rows a loader gives, in batches of 1."""
    loader = iter(
        DataLoader(rows, batch_size=1, collate_fn=lambda batch: batch[0], num_workers=workers)
    )
    return [next(loader) for _ in range(count)]


@pytest.mark.parametrize(("unit", "streamed"), [("tokens", False), ("words", True)])
def test_rows_hold_pieces_of_the_document_between_special_tokens(tokenizer, unit, streamed):
    """Of tokens; or of words, where whitespace is one space and a span begins like a text of its
    own.
    """
    texts = [{"text": document["text"].replace(" ", " \t\n ")} for document in documents(2)]
    spans, given = SPANS.model_copy(update={"unit": unit}), Dataset.from_list(texts)
    rows = make_span_rows(
        given.to_iterable_dataset() if streamed else given, tokenizer, spans, 1, 64
    ).rows
    for row, document in zip(taken(rows, 2), texts, strict=True):
        words = document["text"].split()
        units = (
            words
            if unit == "words"
            else tokenizer(document["text"], add_special_tokens=False)["input_ids"]
        )
        pieces = [
            units[start:end] for start in range(len(units)) for end in range(start + 4, start + 16)
        ]
        allowed = [
            tokenizer(" ".join(piece))["input_ids"] if unit == "words" else [0, *piece, 2]
            for piece in pieces
        ]
        assert len(row["anchors"]) == 2 and len(row["positives"]) == 4
        assert all(ids in allowed for ids in row["anchors"] + row["positives"])


def test_short_documents_are_passed_over_and_counted(tokenizer):
    texts = [{"text": "too short"}, *documents(3), {"text": ""}]
    rows = make_span_rows(Dataset.from_list(texts), tokenizer, SPANS, 1, 32)
    assert len(rows.rows) == 3 and rows.passed_over == 2
    streamed = make_span_rows(
        Dataset.from_list(texts).to_iterable_dataset(), tokenizer, SPANS, 1, 32
    )
    assert streamed.passed_over is None
    assert taken(streamed.rows, 3) == list(rows.rows)


@pytest.mark.parametrize("streamed", [False, True])
def test_short_documents_alone_are_refused(tokenizer, streamed):
    texts = Dataset.from_list([{"text": "too short"}, {"text": ""}])
    given = texts.to_iterable_dataset() if streamed else texts
    with pytest.raises(InputError, match=r"no document has the 64 tokens of spans\.min_document; "):
        make_span_rows(given, tokenizer, SPANS, 1, 32)


def test_names_of_special_tokens_in_a_document_are_plain_text(tokenizer):
    text = {"text": "word <pad> </s> <mask> " * 60}
    rows = make_span_rows(Dataset.from_list([text]), tokenizer, SPANS, 1, 32).rows
    assert not {1, 2, 4} & {
        token for ids in rows[0]["anchors"] + rows[0]["positives"] for token in ids[1:-1]
    }


@pytest.mark.parametrize("streamed", [False, True])
def test_rows_do_not_depend_on_the_workers(tokenizer, streamed):
    texts = Dataset.from_list(documents(9))
    rows = make_span_rows(
        texts.to_iterable_dataset() if streamed else texts, tokenizer, SPANS, 1, 32
    ).rows
    alone = taken(rows, 9)
    assert taken(rows, 9, workers=2) == alone == taken(rows, 9)
    other_seed = make_span_rows(texts, tokenizer, SPANS, 2, 32).rows
    assert all(row != other for row, other in zip(alone, other_seed, strict=True))


def test_every_pass_has_new_spans_in_both_kinds(tokenizer):
    texts = Dataset.from_list(documents(5))
    kept = make_span_rows(texts, tokenizer, SPANS, 1, 32)
    passes = []
    for epoch in (0.0, 1.0, 2.0, 1.4):  # the last: a run resumed in its second epoch
        kept.cutter.on_epoch_begin(None, TrainerState(epoch=epoch), TrainerControl())
        passes.append(taken(kept.rows, 5, workers=1))
    assert passes[3] == passes[1]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert all(row != other for row, other in zip(passes[first], passes[second], strict=True))
    streamed = make_span_rows(texts.to_iterable_dataset(), tokenizer, SPANS, 1, 32).rows
    assert taken(streamed, 15) == [*passes[0], *passes[1], *passes[2]]


def test_the_collator_pads_on_the_right(tokenizer):
    rows = [
        {"anchors": [[0, 9, 2], [0, 8, 8, 8, 2]], "positives": [[0, 2]] * 4, "dataset_name": "d"},
        {"anchors": [[0, 7, 2], [0, 7, 2]], "positives": [[0, 6, 2]] * 4, "dataset_name": "d"},
    ]
    batch = SpanCollator(tokenizer)(rows)
    assert batch.pop("dataset_name") == "d"
    assert batch["anchors_input_ids"].shape == (2, 2, 5) and batch["positives_input_ids"].shape == (
        2,
        4,
        3,
    )
    assert batch["anchors_input_ids"][0].tolist() == [[0, 9, 2, 1, 1], [0, 8, 8, 8, 2]]
    assert batch["anchors_attention_mask"][0].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["positives_attention_mask"].sum(-1).tolist() == [[2] * 4, [3] * 4]


def test_a_span_of_words_loses_the_tokens_that_the_encoder_cannot_read(tokenizer):
    texts = Dataset.from_list([{"text": "flutes played incomprehensibly " * 40}])
    always_long = WORDS.model_copy(update={"anchor_beta": (1000.0, 0.001)})
    row = make_span_rows(texts, tokenizer, always_long, 1, 16).rows[0]
    assert [len(ids) for ids in row["anchors"]] == [16, 16] and row["anchors"][0][-1] == 2


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_documents_are_lowered_where_the_recipe_says_so(tokenizer, unit):
    plain = documents(2)
    texts = [
        [{"text": change(document["text"])} for document in plain]
        for change in (str.upper, str.lower)
    ]
    spans = SPANS.model_copy(update={"unit": unit, "lowercase": True})
    rows = [
        list(make_span_rows(Dataset.from_list(given), tokenizer, spans, 1, 64).rows)
        for given in texts
    ]
    assert rows[0] == rows[1]

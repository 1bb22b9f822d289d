"""training.data.spans: documents → rows of ids, the same in every process, worker, pass and kind of dataset."""

import random

import pytest
import torch
from accelerate import skip_first_batches
from datasets import Dataset
from tiny_bases import make_mlm_tokenizer
from tiny_lm import TEXTS
from torch.utils.data import DataLoader
from transformers import TrainerControl, TrainerState

from hub.contract.model_sections import Spans
from training.data.spans import SpanCollator, span_rows

SPANS = Spans(unit="tokens", min_length=4, max_length=16, min_document=64)
WORDS = SPANS.model_copy(update={"unit": "words"})


def documents(count, seed=0):
    """Documents of 64 tokens or more from the tiny language models' texts, each on a few of them."""
    generator = random.Random(seed)
    return [{"text": " ".join(generator.choices(generator.sample(TEXTS, 3), k=30))} for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return make_mlm_tokenizer()


def taken(rows, count, workers=0):
    """The first ``count`` rows a loader gives, in batches of 1."""
    loader = iter(DataLoader(rows, batch_size=1, collate_fn=lambda batch: batch[0], num_workers=workers))
    return [next(loader) for _ in range(count)]


def test_rows_hold_pieces_of_the_document_between_special_tokens(tokenizer):
    texts = documents(6)
    rows = span_rows(Dataset.from_list(texts), tokenizer, SPANS, 1, 18)
    assert len(rows.rows) == 6 and rows.passed_over == 0
    for row, document in zip(rows.rows, texts, strict=True):
        tokens = tokenizer(document["text"], add_special_tokens=False)["input_ids"]
        windows = {tuple(tokens[start:end]) for start in range(len(tokens)) for end in range(start + 4, start + 17)}
        assert len(row["anchors"]) == 2 and len(row["positives"]) == 4
        for ids in row["anchors"] + row["positives"]:
            assert ids[0] == 0 and ids[-1] == 2 and tuple(ids[1:-1]) in windows
            assert 4 <= len(ids) - 2 < 16


def test_short_documents_are_passed_over_and_counted(tokenizer):
    texts = [{"text": "too short"}, *documents(3), {"text": ""}]
    rows = span_rows(Dataset.from_list(texts), tokenizer, SPANS, 1, 32)
    assert len(rows.rows) == 3 and rows.passed_over == 2
    streamed = span_rows(Dataset.from_list(texts).to_iterable_dataset(), tokenizer, SPANS, 1, 32)
    assert streamed.passed_over is None
    assert taken(streamed.rows, 3) == list(rows.rows)


def test_names_of_special_tokens_in_a_document_are_plain_text(tokenizer):
    text = {"text": "word <pad> </s> <mask> " * 60}
    rows = span_rows(Dataset.from_list([text]), tokenizer, SPANS, 1, 32).rows
    assert not {1, 2, 4} & {token for ids in rows[0]["anchors"] + rows[0]["positives"] for token in ids[1:-1]}


@pytest.mark.parametrize("streamed", [False, True])
def test_rows_do_not_depend_on_the_workers(tokenizer, streamed):
    texts = Dataset.from_list(documents(9))
    rows = span_rows(texts.to_iterable_dataset() if streamed else texts, tokenizer, SPANS, 1, 32).rows
    alone = taken(rows, 9)
    assert taken(rows, 9, workers=2) == alone == taken(rows, 9)
    other_seed = span_rows(texts, tokenizer, SPANS, 2, 32).rows
    assert all(row != other for row, other in zip(alone, other_seed, strict=True))


def test_every_pass_has_new_spans_in_both_kinds(tokenizer):
    texts = Dataset.from_list(documents(5))
    kept = span_rows(texts, tokenizer, SPANS, 1, 32)
    passes = []
    for epoch in (0.0, 1.0, 2.0, 1.4):  # the last: a run resumed in its second epoch
        kept.callbacks[0].on_epoch_begin(None, TrainerState(epoch=epoch), TrainerControl())
        passes.append(taken(kept.rows, 5, workers=1))
    assert passes[3] == passes[1]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert all(row != other for row, other in zip(passes[first], passes[second], strict=True))
    streamed = span_rows(texts.to_iterable_dataset(), tokenizer, SPANS, 1, 32).rows
    assert taken(streamed, 15) == [*passes[0], *passes[1], *passes[2]]


def test_a_resumed_stream_goes_on_where_it_was(tokenizer):
    """Also after several passes: the trainer skips the batches it has had, and the stream never ends."""
    rows = span_rows(Dataset.from_list(documents(5)).to_iterable_dataset(), tokenizer, SPANS, 1, 32).rows
    collator = SpanCollator(tokenizer)
    whole = iter(DataLoader(rows, batch_size=2, collate_fn=collator))
    batches = [next(whole) for _ in range(9)]
    resumed = next(iter(skip_first_batches(DataLoader(rows, batch_size=2, collate_fn=collator), 8)))
    assert all(torch.equal(resumed[name], batches[8][name]) for name in resumed)


def test_the_collator_pads_on_the_right(tokenizer):
    rows = [
        {"anchors": [[0, 9, 2], [0, 8, 8, 8, 2]], "positives": [[0, 2]] * 4, "dataset_name": "d"},
        {"anchors": [[0, 7, 2], [0, 7, 2]], "positives": [[0, 6, 2]] * 4, "dataset_name": "d"},
    ]
    batch = SpanCollator(tokenizer)(rows)
    assert batch.pop("dataset_name") == "d"
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "anchors_input_ids": (2, 2, 5),
        "anchors_attention_mask": (2, 2, 5),
        "positives_input_ids": (2, 4, 3),
        "positives_attention_mask": (2, 4, 3),
    }
    assert batch["anchors_input_ids"][0].tolist() == [[0, 9, 2, 1, 1], [0, 8, 8, 8, 2]]
    assert batch["anchors_attention_mask"][0].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["positives_attention_mask"].sum(-1).tolist() == [[2] * 4, [3] * 4]


@pytest.mark.parametrize("streamed", [False, True])
def test_spans_of_words_are_tokenised_by_themselves(tokenizer, streamed):
    """Whitespace is one space, and a span begins like a text of its own."""
    texts = [{"text": document["text"].replace(" ", " \t\n ")} for document in documents(4)]
    given = Dataset.from_list(texts)
    rows = span_rows(given.to_iterable_dataset() if streamed else given, tokenizer, WORDS, 1, 64).rows
    for row, document in zip(taken(rows, 4), texts, strict=True):
        words = document["text"].split()
        spans = {
            tuple(tokenizer(" ".join(words[start:end]))["input_ids"])
            for start in range(len(words))
            for end in range(start + 4, start + 17)
        }
        assert {tuple(ids) for ids in row["anchors"] + row["positives"]} <= spans


def test_a_span_of_words_loses_the_tokens_that_the_encoder_cannot_read(tokenizer):
    texts = Dataset.from_list([{"text": "flutes played incomprehensibly " * 40}])
    always_long = WORDS.model_copy(update={"anchor_beta": (1000.0, 0.001)})
    row = span_rows(texts, tokenizer, always_long, 1, 16).rows[0]
    assert [len(ids) for ids in row["anchors"]] == [16, 16] and row["anchors"][0][-1] == 2


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_documents_are_lowered_where_the_recipe_says_so(tokenizer, unit):
    plain = documents(2)
    shouted = Dataset.from_list([{"text": document["text"].upper()} for document in plain])
    lowered = Dataset.from_list([{"text": document["text"].lower()} for document in plain])
    spans = SPANS.model_copy(update={"unit": unit, "lowercase": True})
    rows = [list(span_rows(texts, tokenizer, spans, 1, 64).rows) for texts in (shouted, lowered)]
    assert rows[0] == rows[1]

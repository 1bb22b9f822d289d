"""Documents → rows of token ids for DeCLUTR: anchors and positives cut anew in every pass, padded to features.

The trainer gives a loss text columns only; ``SpanCollator`` takes the place of its collator, and the rows hold ids.
"""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hub.errors import InputError
from hub.model_sections import Spans
from training.spans import Span, document_generator, sample_spans

IDS = List(Value("int32"))
FEATURES = Features({"anchors": List(IDS), "positives": List(IDS)})
READ_AT_ONCE = 64  # documents tokenised together, which a fast tokenizer does on all cores


@dataclass(frozen=True)
class SpanRows:
    """What a trainer needs of a documents dataset.

    ``rows``: one row a document, with columns ``anchors`` (spans.anchors lists of ids) and ``positives``
    (spans.positives lists for each anchor, in its order). Streamed rows never end: the trainer's own way to begin a
    stream again loses count of it when a run is resumed. ``passed_over``: documents that were too short, None when
    streamed. ``callback``: belongs into the trainer, else every epoch has the spans of the first.
    """

    rows: Dataset | IterableDataset
    passed_over: int | None
    callback: TrainerCallback


def span_rows(
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    spans: Spans,
    seed: int,
    max_seq_length: int,
    place: str = "datasets.0",
) -> SpanRows:
    """Rows of ids of ``documents``' column ``text``; ids of a row are at most ``max_seq_length``, with special tokens.

    Raises InputError, naming ``place``, when no document has ``spans.min_document`` tokens, or spans are longer than
    the encoder reads.
    """
    if spans.max_length > max_seq_length:
        problem = f"{spans.max_length} is more than the {max_seq_length} tokens that the encoder reads"
        hint = "raise base.max_seq_length, or cut shorter spans"
        raise InputError(f"{place}.spans.max_length", problem, hint=hint)
    reader = _Reader(tokenizer, spans.min_document)
    cutter = SpanCutter(tokenizer, spans, seed, max_seq_length)
    callback = NewSpans(cutter)
    if isinstance(documents, IterableDataset):
        rows = IterableDataset.from_generator(_Passes(documents, reader, cutter, place), features=FEATURES)
        next(iter(rows))  # raises now, and not in a loader's worker, when no document is long enough
        return SpanRows(rows, None, callback)
    kept = documents.map(
        reader,
        batched=True,
        batch_size=READ_AT_ONCE,
        remove_columns=documents.column_names,
        features=Features({"tokens": IDS}),
        desc="reading documents",
    )
    if len(kept) == 0:
        raise _none_long_enough(place, len(documents), spans.min_document)
    return SpanRows(kept.with_transform(cutter), len(documents) - len(kept), callback)


def _none_long_enough(place: str, count: int, shortest: int) -> InputError:
    problem = f"none of the {count:,} documents has the {shortest:,} tokens of spans.min_document"
    return InputError(place, problem, hint="give longer documents, or shorter spans with a smaller min_document")


class _Reader:
    """Texts → ids without special tokens, of the documents that are long enough.

    Names of special tokens in a text are read as plain text: documents are strangers' words, and a ``<pad>`` in one
    would move RoBERTa's positions. The tokenizer is a copy, since calls change what a saved tokenizer says.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, min_document: int):
        self.tokenizer = copy.deepcopy(tokenizer)
        self.min_document = min_document

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        encoded = self.tokenizer(
            batch["text"],
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # that documents are longer than the model reads is the point
        )
        return {"tokens": [ids for ids in encoded["input_ids"] if len(ids) >= self.min_document]}


class SpanCutter:
    """Tokenised documents → rows; callable as a dataset's transform.

    A span gets the special tokens that the encoder's own input has. Lengths count the document's tokens alone, as in
    the paper; a span within the special tokens' number of ``max_seq_length`` loses its last ones to them (of 512, with
    RoBERTa's two, only anchors of 511: 4 in 100,000).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spans: Spans, seed: int, max_seq_length: int):
        self.spans, self.seed = spans, seed
        self.before, self.after = special_tokens(tokenizer)
        self.room = max_seq_length - len(self.before) - len(self.after)
        self.number = torch.zeros((), dtype=torch.int64).share_memory_()  # of the pass; loaders' workers see it, too

    def row(self, tokens: list[int], number: int) -> dict[str, list[list[int]]]:
        """The row of one document in pass ``number``."""
        anchors, positives = sample_spans(document_generator(self.seed, number, tokens), len(tokens), self.spans)
        return {"anchors": self._ids(tokens, anchors), "positives": self._ids(tokens, positives)}

    def __call__(self, batch: dict[str, list[list[int]]]) -> dict[str, list[list[list[int]]]]:
        """The rows of tokenised documents in the pass that the trainer is in."""
        rows = [self.row(tokens, int(self.number)) for tokens in batch["tokens"]]
        return {column: [row[column] for row in rows] for column in FEATURES}

    def _ids(self, tokens: list[int], spans: list[Span]) -> list[list[int]]:
        return [[*self.before, *tokens[span.start : span.end][: self.room], *self.after] for span in spans]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text (a prompt in its post-processor included)."""
    tokenizer = copy.deepcopy(tokenizer)
    text = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(text) + 1):
        if whole[start : start + len(text)] == text:
            return whole[:start], whole[start + len(text) :]
    raise InputError("base: its tokenizer", "reads a text otherwise with special tokens than without")


class _Passes:
    """Rows of a stream, pass after pass without end."""

    def __init__(self, documents: IterableDataset, reader: _Reader, cutter: SpanCutter, place: str):
        self.documents, self.reader, self.cutter, self.place = documents, reader, cutter, place

    def __call__(self) -> Iterator[dict[str, list[list[int]]]]:
        for number in itertools.count():
            self.documents.set_epoch(number)  # another order, where the documents are shuffled
            seen = rows = 0
            for batch in self.documents.iter(batch_size=READ_AT_ONCE):
                seen += len(batch["text"])
                for tokens in self.reader(batch)["tokens"]:
                    rows += 1
                    yield self.cutter.row(tokens, number)
            if rows == 0:
                raise _none_long_enough(self.place, seen, self.cutter.spans.min_document)


class NewSpans(TrainerCallback):
    """Tells the cutter which pass over the data begins."""

    def __init__(self, cutter: SpanCutter):
        self.cutter = cutter

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count whole epochs; a run resumed in one has the spans of that one."""
        self.cutter.number.fill_(int(state.epoch or 0))


class SpanCollator:
    """Rows → ``anchors_`` and ``positives_`` ``input_ids`` and ``attention_mask``, (N, spans, tokens), padded right.

    The first dimension is the document, in every tensor, so that a batch can be cut and joined by documents.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = tokenizer.pad_token_id
        self.valid_label_columns: list[str] = []  # asked for by the trainer: spans have no labels

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch of one step."""
        batch = {"dataset_name": rows[0]["dataset_name"]} if "dataset_name" in rows[0] else {}
        for column in FEATURES:
            spans = [torch.tensor(ids) for row in rows for ids in row[column]]
            ids = pad_sequence(spans, batch_first=True, padding_value=self.pad)
            lengths = torch.tensor([len(span) for span in spans])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            shape = (len(rows), -1, ids.shape[1])
            batch |= {f"{column}_input_ids": ids.view(shape), f"{column}_attention_mask": mask.view(shape)}
        return batch

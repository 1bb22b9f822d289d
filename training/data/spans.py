"""DeCLUTR's span sampling (Giorgi et al. 2021, section 3.2): pure, from a numpy generator, lengths in words or tokens.

What the paper leaves open, and where the authors' code differs from it:

- *Anchors.* The paper has them "a minimum of 2 * lmax tokens apart". The code places each anchor in a block of lmax and
  excludes the neighbours of a used block: at least lmax lies between two anchors. ``blocks`` is the code, ``apart`` the
  sentence, read from one anchor's end to the next one's start: positives of two anchors never share text. 2 anchors of
  512 need 2,048, the paper's shortest document, either way.
- *The ends of the document.* Starts of a positive outside of the document are left out, and the others stay equally
  likely, as in the code.
- *Strategies.* The start is uniform among those of the strategy. Where it has room for less than lmax (inside the
  anchor, or beside it), the Beta distribution is scaled to that room, so every draw succeeds at once.
"""

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState

from hub.contract.recipe import Spans
from hub.errors import InputError
from training.data.rows import endless


class Span(NamedTuple):
    """Words or tokens ``start`` to ``end`` (not included) of a document."""

    start: int
    end: int


def document_generator(seed: int, number: int, document: bytes) -> np.random.Generator:
    """The random generator for a document in epoch ``number`` (from 0).

    It depends on the document's content, so spans do not depend on processes, workers, order and resumed steps.
    """
    digest = hashlib.blake2b(document, digest_size=16).digest()
    return np.random.default_rng([seed, number, int.from_bytes(digest, "little")])


def sample_spans(generator: np.random.Generator, units: int, spans: Spans) -> tuple[list[Span], list[Span]]:
    """Anchors, and ``spans.positives`` positives for each of them in a row, of a document of so many units.

    ``units`` must be at least ``spans.needed_units``.
    """
    place = anchors_in_blocks if spans.anchor_placement == "blocks" else anchors_apart
    anchors = place(generator, units, spans)
    positives = [sample_positive(generator, anchor, units, spans) for anchor in anchors for _ in range(spans.positives)]
    return anchors, positives


def anchors_in_blocks(generator: np.random.Generator, units: int, spans: Spans) -> list[Span]:
    """Anchors as the authors' code places them, in the order they are drawn.

    Blocks of ``max_length`` units begin at its multiples. A block is drawn uniformly from those left, the anchor's
    start uniformly from those that keep it in the block, and the block goes with its neighbours in the list of those
    left. Where few are left, the first or the last one is taken, which costs one block less: all anchors find one.
    """
    blocks = list(range(0, units - spans.max_length + 1, spans.max_length))
    anchors = []
    for missing in range(spans.anchors, 0, -1):
        length = _length(generator, spans.anchor_beta, spans.min_length, spans.max_length)
        scarce = len(blocks) // missing < missing
        index = int(generator.choice([0, len(blocks) - 1])) if scarce else int(generator.integers(len(blocks)))
        start = blocks[index] + int(generator.integers(spans.max_length - length + 1))
        anchors.append(Span(start, start + length))
        del blocks[max(0, index - 1) : index + 2]
    return anchors


def anchors_apart(generator: np.random.Generator, units: int, spans: Spans) -> list[Span]:
    """Anchors in the document's order: lengths first, then a place uniform over all that keep them 2 * lmax apart.

    Equal to drawing starts from {0 .. units - length} until all anchors are apart: each way of sharing the free units
    out is one choice of ``spans.anchors`` positions out of free + anchors.
    """
    lengths = [_length(generator, spans.anchor_beta, spans.min_length, spans.max_length) for _ in range(spans.anchors)]
    gap = 2 * spans.max_length
    free = units - sum(lengths) - gap * (spans.anchors - 1)
    chosen = np.sort(generator.choice(free + spans.anchors, size=spans.anchors, replace=False))
    anchors, taken = [], 0
    for index, length in enumerate(lengths):
        start = int(chosen[index]) - index + taken
        anchors.append(Span(start, start + length))
        taken += length + gap
    return anchors


def sample_positive(generator: np.random.Generator, anchor: Span, units: int, spans: Spans) -> Span:
    """A positive of ``anchor``: its length, then its start, uniform over the strategy's starts in the document."""
    shortest, longest = spans.min_length, spans.max_length
    if spans.strategy == "subsumed":
        longest = min(longest, anchor.end - anchor.start)
    elif spans.strategy == "adjacent":
        longest = min(longest, max(anchor.start, units - anchor.end))
    elif spans.strategy == "overlapping":
        shortest = max(shortest, 2)  # one unit is inside the anchor or outside
    length = _length(generator, spans.positive_beta, shortest, longest)
    ranges = [range(max(r.start, 0), min(r.stop, units - length + 1)) for r in _starts(spans.strategy, anchor, length)]
    starts = [start for part in ranges for start in part]
    start = starts[int(generator.integers(len(starts)))]
    return Span(start, start + length)


def _length(generator: np.random.Generator, beta: tuple[float, float], shortest: int, longest: int) -> int:
    return int(generator.beta(*beta) * (longest - shortest) + shortest)


def _starts(strategy: str, anchor: Span, length: int) -> tuple[range, ...]:
    """Where a positive of ``length`` may start, the document's ends not regarded."""
    if strategy == "adjacent":
        return range(anchor.start - length, anchor.start - length + 1), range(anchor.end, anchor.end + 1)
    if strategy == "subsumed":
        return (range(anchor.start, anchor.end - length + 1),)
    if strategy == "overlapping":
        from_before = range(anchor.start - length + 1, anchor.start)
        beyond_the_end = range(max(anchor.start, anchor.end - length + 1), anchor.end)
        return from_before, beyond_the_end
    return (range(anchor.start - length, anchor.end + 1),)


IDS = List(Value("int32"))
DOCUMENT = "document"
FEATURES = Features({"anchors": List(IDS), "positives": List(IDS)})
READ_AT_ONCE = 64  # documents tokenised together, which a fast tokenizer does on all cores


@dataclass(frozen=True)
class TrainerRows:
    """The rows of one dataset as the trainer reads them, with their collator and callbacks.

    ``passed_over``: rows that are not trained on (None: streamed, and so not counted).
    """

    rows: Dataset | IterableDataset
    collator: Any = None  # None: the trainer's own, for texts
    callbacks: tuple[TrainerCallback, ...] = ()
    passed_over: int | None = 0


def span_rows(
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    spans: Spans,
    seed: int,
    max_seq_length: int,
    place: str = "datasets.0",
) -> TrainerRows:
    """DeCLUTR's rows, one for each of ``documents`` (column ``text``) that is not too short.

    ``anchors`` are spans.anchors lists of ids, ``positives`` spans.positives lists for each anchor, in its order; a
    list has at most ``max_seq_length`` ids, with special tokens. Streamed rows never end.

    Raises InputError, naming ``place``, when no document has ``spans.min_document`` units, or spans are longer than
    the encoder reads.
    """
    if spans.max_length > max_seq_length:
        problem = f"{spans.max_length} {spans.unit} are more than the {max_seq_length} tokens that the encoder reads"
        hint = "raise base.max_seq_length, or cut shorter spans"
        raise InputError(f"{place}.spans.max_length", problem, hint=hint)
    tokenizer = copy.deepcopy(tokenizer)  # calls change what a saved tokenizer says
    reader = _Reader(tokenizer, spans)
    cutter = SpanCutter(reader, seed, max_seq_length)
    collator, callbacks = SpanCollator(tokenizer), (cutter,)
    if isinstance(documents, IterableDataset):
        if next(reader.each(documents), None) is None:
            raise _none_long_enough(place, spans)
        return TrainerRows(endless(documents, place, FEATURES, cutter.epoch), collator, callbacks, passed_over=None)
    kept = documents.map(
        reader,
        batched=True,
        batch_size=READ_AT_ONCE,
        remove_columns=documents.column_names,
        features=reader.features,
        desc="reading documents",
    )
    if len(kept) == 0:
        raise _none_long_enough(place, spans)
    return TrainerRows(kept.with_transform(cutter), collator, callbacks, len(documents) - len(kept))


def _none_long_enough(place: str, spans: Spans) -> InputError:
    problem = f"no document has the {spans.min_document:,} {spans.unit} of spans.min_document"
    return InputError(place, problem, hint="give longer documents, or shorter spans with a smaller min_document")


class _Reader:
    """Texts → documents that are long enough: their words, one space apart, or ids without special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spans: Spans):
        self.tokenizer, self.spans = tokenizer, spans
        self.features = Features({DOCUMENT: Value("large_string") if spans.unit == "words" else IDS})

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = [text.lower() for text in batch["text"]] if self.spans.lowercase else batch["text"]
        if self.spans.unit == "tokens":
            return {DOCUMENT: [ids for ids in plain_ids(self.tokenizer, texts) if len(ids) >= self.spans.min_document]}
        words = (text.split() for text in texts)
        return {DOCUMENT: [" ".join(found) for found in words if len(found) >= self.spans.min_document]}

    def each(self, documents: IterableDataset) -> Iterator[str | list[int]]:
        """The documents of a stream that are long enough."""
        for batch in documents.iter(batch_size=READ_AT_ONCE):
            yield from self(batch)[DOCUMENT]


def plain_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Ids of ``texts`` without special tokens, however long.

    Names of special tokens in a text are read as plain text: documents are untrusted, and a ``<pad>`` in one
    would move RoBERTa's positions.
    """
    if not texts:
        return []
    encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return list(encoded["input_ids"])


class SpanCutter(TrainerCallback):
    """Documents → rows of ids: a dataset's transform, and the callback that samples its spans anew in every epoch.

    A span gets the special tokens that the encoder's own input has, and loses what the encoder cannot read at its end:
    with RoBERTa's two, and spans of up to 512 tokens, anchors of 511 alone (4 in 100,000), but every span of words with
    more than 510 tokens, as in the authors' code. A span of words is tokenised by itself.
    """

    def __init__(self, reader: _Reader, seed: int, max_seq_length: int):
        self.reader, self.tokenizer, self.spans, self.seed = reader, reader.tokenizer, reader.spans, seed
        self.before, self.after = special_tokens(self.tokenizer)
        self.room = max_seq_length - len(self.before) - len(self.after)
        self.number = torch.zeros((), dtype=torch.int64).share_memory_()  # of the pass; loaders' workers see it, too

    def row(self, document: str | list[int], number: int) -> dict[str, list[list[int]]]:
        """The spans of one document in epoch ``number``."""
        if isinstance(document, str):
            units: list[Any] = document.split(" ")
            content = document.encode()
        else:
            units, content = document, np.asarray(document, dtype="<i8").tobytes()
        anchors, positives = sample_spans(document_generator(self.seed, number, content), len(units), self.spans)
        return {"anchors": self._ids(units, anchors), "positives": self._ids(units, positives)}

    def epoch(self, documents: IterableDataset, number: int) -> Iterator[dict[str, list[list[int]]]]:
        """The rows of a stream in epoch ``number``."""
        return (self.row(document, number) for document in self.reader.each(documents))

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count whole epochs; a run resumed in one has the spans of that one."""
        self.number.fill_(int(state.epoch or 0))

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[list[list[int]]]]:
        """The rows of documents in the trainer's epoch."""
        rows = [self.row(document, int(self.number)) for document in batch[DOCUMENT]]
        return {column: [row[column] for row in rows] for column in FEATURES}

    def _ids(self, units: list[Any], spans: list[Span]) -> list[list[int]]:
        cut = [units[span.start : span.end] for span in spans]
        if self.spans.unit == "words":
            cut = plain_ids(self.tokenizer, [" ".join(words) for words in cut])
        return [[*self.before, *ids[: self.room], *self.after] for ids in cut]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text (a prompt in its post-processor included)."""
    tokenizer = copy.deepcopy(tokenizer)
    text = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(text) + 1):
        if whole[start : start + len(text)] == text:
            return whole[:start], whole[start + len(text) :]
    raise InputError("base: its tokenizer", "reads a text otherwise with special tokens than without")


class SpanCollator:
    """Rows → ``anchors_`` and ``positives_`` ``input_ids`` and ``attention_mask``, (N, spans, tokens), padded right.

    The first dimension is the document, in every tensor, so that a batch can be cut and joined by documents.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = tokenizer.pad_token_id
        self.valid_label_columns: list[str] = []  # asked for by the trainer: spans have no labels

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The padded batch of one step."""
        batch = {"dataset_name": rows[0]["dataset_name"]} if "dataset_name" in rows[0] else {}
        for column in FEATURES:
            spans = [torch.tensor(ids) for row in rows for ids in row[column]]
            ids = pad_sequence(spans, batch_first=True, padding_value=self.pad)
            lengths = torch.tensor([len(span) for span in spans])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            shape = (len(rows), -1, ids.shape[1])
            batch |= {f"{column}_input_ids": ids.view(shape), f"{column}_attention_mask": mask.view(shape)}
        return batch

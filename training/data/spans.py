"""DeCLUTR's span sampling (Giorgi et al. 2021, section 3.2), from a numpy generator.

Lengths are in units, which are words or tokens. In these points the paper leaves a choice, or the
authors' code differs from it:

- *Anchors.* In the paper two anchors lie "a minimum of 2 * lmax tokens apart". The code places each
  anchor in a block of lmax and excludes the neighbours of a used block, so at least lmax lies
  between two anchors. ``blocks`` follows the code. ``apart`` follows the paper, measured from one
  anchor's end to the next anchor's start, so positives of two anchors share no text. Both need
  2,048 units for 2 anchors of 512, the paper's shortest document.
- *The ends of the document.* Starts outside the document are left out, and the other starts stay
  equally likely, as in the code.
- *Strategies.* The start is uniform among the starts that the strategy allows. Where a strategy has
  less room than lmax (inside the anchor, or beside it), the Beta distribution is scaled to the
  room, so every draw succeeds.
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

from sts_dino.hub.contract.recipe import Spans
from sts_dino.hub.errors import InputError
from sts_dino.training.data.rows import read_endlessly


class Span(NamedTuple):
    """Units (words or tokens) ``start`` to ``end`` (exclusive) of a document."""

    start: int
    end: int


def make_generator(seed: int, epoch: int, document: bytes) -> np.random.Generator:
    """Make the random generator of a document in an epoch (from 0).

    ``document``: the document's bytes. The generator depends on the arguments alone. So spans do
    not depend on the order of documents, on the number of processes and workers, or on the step
    from which a run resumes.
    """
    digest = hashlib.blake2b(document, digest_size=16).digest()
    return np.random.default_rng([seed, epoch, int.from_bytes(digest, "little")])


def sample_spans(
    generator: np.random.Generator, units: int, spans: Spans
) -> tuple[list[Span], list[Span]]:
    """Draw a document's anchors and their positives.

    Returns ``spans.anchors`` anchors, and a list of their positives: ``spans.positives`` of the
    first anchor, then as many of the second, and so on. ``units``: the document's length in units,
    at least ``spans.needed_units``.
    """
    if spans.anchor_placement == "blocks":
        anchors = draw_anchors_in_blocks(generator, units, spans)
    else:
        anchors = draw_anchors_apart(generator, units, spans)
    positives: list[Span] = []
    for anchor in anchors:
        for _ in range(spans.positives):
            positives.append(draw_positive(generator, anchor, units, spans))
    return anchors, positives


def draw_anchors_in_blocks(generator: np.random.Generator, units: int, spans: Spans) -> list[Span]:
    """Draw ``spans.anchors`` anchors as the authors' code does; return them in drawing order.

    ``units``: the document's length in units, at least ``spans.needed_units``.

    Blocks of ``max_length`` units begin at multiples of ``max_length``. A block is drawn uniformly
    from the list of free blocks, then the anchor's start uniformly inside the block. The block and
    its neighbours in the list are removed from the list. When few blocks are free, the first or the
    last block is drawn, because it has one neighbour only. So every anchor gets a block.
    """
    blocks = list(range(0, units - spans.max_length + 1, spans.max_length))
    anchors = []
    for missing in range(spans.anchors, 0, -1):
        length = _draw_length(generator, spans.anchor_beta, spans.min_length, spans.max_length)
        # The authors' rule: few blocks are free when each missing anchor has fewer of them than
        # there are missing anchors.
        if len(blocks) // missing < missing:
            index = int(generator.choice([0, len(blocks) - 1]))
        else:
            index = int(generator.integers(len(blocks)))
        start = blocks[index] + int(generator.integers(spans.max_length - length + 1))
        anchors.append(Span(start, start + length))
        del blocks[max(0, index - 1) : index + 2]
    return anchors


def draw_anchors_apart(generator: np.random.Generator, units: int, spans: Spans) -> list[Span]:
    """Draw ``spans.anchors`` anchors; return them in the order of the document.

    Lengths are drawn first. Then a placement is drawn uniformly from all placements in which at
    least 2 * ``max_length`` units lie between two anchors. A placement distributes the free units
    before, between and behind the anchors, so it is a choice of ``spans.anchors`` positions out of
    free units + anchors. ``units``: the document's length, at least ``spans.needed_units``.
    """
    lengths = [
        _draw_length(generator, spans.anchor_beta, spans.min_length, spans.max_length)
        for _ in range(spans.anchors)
    ]
    gap = 2 * spans.max_length
    # units that lie in no anchor and in no gap
    free = units - sum(lengths) - gap * (spans.anchors - 1)
    positions = generator.choice(free + spans.anchors, size=spans.anchors, replace=False)
    anchors = []
    used = 0  # units of the earlier anchors and of the gaps behind them
    for index, position in enumerate(np.sort(positions)):
        free_before = int(position) - index  # ``index`` of the earlier positions are anchors
        start = free_before + used
        anchors.append(Span(start, start + lengths[index]))
        used += lengths[index] + gap
    return anchors


def draw_positive(generator: np.random.Generator, anchor: Span, units: int, spans: Spans) -> Span:
    """Draw a positive of ``anchor``: its length, then its start.

    The start is uniform among the starts inside the document that ``spans.strategy`` allows.
    ``units``: the document's length in units, at least ``spans.needed_units``.
    """
    # The lengths for which the strategy has room.
    shortest = spans.min_length
    longest = spans.max_length
    if spans.strategy == "subsumed":
        longest = min(longest, anchor.end - anchor.start)
    elif spans.strategy == "adjacent":
        longest = min(longest, max(anchor.start, units - anchor.end))
    elif spans.strategy == "overlapping":
        shortest = max(shortest, 2)  # a span of one unit cannot lie partly in the anchor
    length = _draw_length(generator, spans.positive_beta, shortest, longest)

    # The starts that keep the positive inside the document.
    starts: list[int] = []
    for allowed in _list_start_ranges(spans.strategy, anchor, length):
        starts += range(max(allowed.start, 0), min(allowed.stop, units - length + 1))
    start = starts[int(generator.integers(len(starts)))]
    return Span(start, start + length)


def _draw_length(
    generator: np.random.Generator, beta: tuple[float, float], shortest: int, longest: int
) -> int:
    """Draw a length in units: a Beta variable scaled to ``shortest`` … ``longest``, rounded down.

    ``beta``: α and β of the Beta distribution.
    """
    return int(generator.beta(*beta) * (longest - shortest) + shortest)


def _list_start_ranges(strategy: str, anchor: Span, length: int) -> list[range]:
    """List the ranges of starts that a strategy allows for a positive of ``length`` units.

    A start may lie outside the document. ``any`` allows the two adjacent starts of ``adjacent`` and
    all starts between them.
    """
    ends_at_anchor = anchor.start - length
    last_inside = anchor.end - length
    ranges = {
        "any": [range(ends_at_anchor, anchor.end + 1)],
        "adjacent": [range(ends_at_anchor, ends_at_anchor + 1), range(anchor.end, anchor.end + 1)],
        "overlapping": [
            range(ends_at_anchor + 1, anchor.start),
            range(max(anchor.start, last_inside + 1), anchor.end),
        ],
        "subsumed": [range(anchor.start, last_inside + 1)],
    }
    return ranges[strategy]


IDS_FEATURE = List(Value("int32"))
DOCUMENT_COLUMN = "document"
DOCUMENTS_KEY = "datasets.0"  # documents are trained on alone
FEATURES = Features({"anchors": List(IDS_FEATURE), "positives": List(IDS_FEATURE)})
DOCUMENTS_PER_BATCH = 64  # documents tokenised together, which a fast tokenizer does on all cores


@dataclass(frozen=True)
class SpanRows:
    """Rows of spans, with their collator and callback for the trainer.

    ``rows``: the columns ``anchors`` and ``positives``, as ``make_span_rows`` describes them.
    ``cutter``: the callback that sets the epoch, on which the spans of the rows depend.
    ``passed_over``: the number of documents that are too short; None for a stream, which is not
    counted.
    """

    rows: Dataset | IterableDataset
    collator: "SpanCollator"
    cutter: "SpanCutter"
    passed_over: int | None


def make_span_rows(
    documents: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    spans: Spans,
    seed: int,
    max_seq_length: int,
) -> SpanRows:
    """Make DeCLUTR's rows, one for each document of at least ``spans.min_document`` units.

    Rows are in the order of the documents. The column ``anchors`` has ``spans.anchors`` lists of
    token ids. The column ``positives`` has ``spans.positives`` lists for each anchor, in the order
    of the anchors. A stream of documents makes an endless stream of rows.

    Args:
        documents: rows with the column ``text``.
        tokenizer: the tokenizer of the encoder.
        spans: the recipe's settings of the sampling.
        seed: decides the draws.
        max_seq_length: the number of tokens of a span at most, special tokens included.

    Raises InputError when no document has ``spans.min_document`` units, or ``spans.max_length`` is
    larger than ``max_seq_length``. Errors over reading a stream pass unchanged.
    """
    if spans.max_length > max_seq_length:
        raise InputError(
            f"{DOCUMENTS_KEY}.spans.max_length",
            f"{spans.max_length} {spans.unit} are more than the "
            f"{max_seq_length} tokens that the encoder reads",
            hint="raise base.max_seq_length, or cut shorter spans",
        )
    # a copy, because a call changes settings that are saved with a tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    reader = _DocumentReader(tokenizer, spans)
    cutter = SpanCutter(reader, seed, max_seq_length)
    collator = SpanCollator(tokenizer)

    if isinstance(documents, IterableDataset):
        is_empty = next(reader.iter_documents(documents), None) is None
        rows = read_endlessly(documents, DOCUMENTS_KEY, FEATURES, cutter.cut_stream)
        passed_over = None
    else:
        long_enough = documents.map(
            reader,
            batched=True,
            batch_size=DOCUMENTS_PER_BATCH,
            remove_columns=documents.column_names,
            features=reader.features,
            desc="reading documents",
        )
        is_empty = len(long_enough) == 0
        rows = long_enough.with_transform(cutter)
        passed_over = len(documents) - len(long_enough)
    if is_empty:
        raise InputError(
            DOCUMENTS_KEY,
            f"no document has the {spans.min_document:,} {spans.unit} of spans.min_document",
            hint="give longer documents, or shorter spans with a smaller min_document",
        )
    return SpanRows(rows, collator, cutter, passed_over)


class _DocumentReader:
    """Reads texts as documents of words or tokens, and keeps the documents that are long enough.

    A document becomes a text, its words joined by single spaces, or a list of its token ids without
    special tokens. ``features``: the type of the column ``document``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spans: Spans):
        self.tokenizer = tokenizer
        self.spans = spans
        dtype = Value("large_string") if spans.unit == "words" else IDS_FEATURE
        self.features = Features({DOCUMENT_COLUMN: dtype})

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the documents of at least ``min_document`` units, in the column ``document``.

        ``batch``: rows with the column ``text``. Documents stay in their order.
        """
        texts = batch["text"]
        if self.spans.lowercase:
            texts = [text.lower() for text in texts]
        documents: list[list[Any]]
        if self.spans.unit == "tokens":
            documents = list(tokenize_plain(self.tokenizer, texts))
        else:
            documents = [text.split() for text in texts]
        documents = [units for units in documents if len(units) >= self.spans.min_document]
        if self.spans.unit == "words":
            return {DOCUMENT_COLUMN: [" ".join(units) for units in documents]}
        return {DOCUMENT_COLUMN: documents}

    def iter_documents(self, documents: IterableDataset) -> Iterator[str | list[int]]:
        """Yield the documents of a stream of texts that are long enough, as ``__call__`` does."""
        for batch in documents.iter(batch_size=DOCUMENTS_PER_BATCH):
            yield from self(batch)[DOCUMENT_COLUMN]


def tokenize_plain(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text, without special tokens and without truncation.

    The name of a special token inside a text is read as plain text. Documents are untrusted, and a
    ``<pad>`` inside a document would shift RoBERTa's positions.
    """
    encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return list(encoded["input_ids"])


class SpanCutter(TrainerCallback):
    """Transform of a dataset: documents → rows with the token ids of their spans.

    Each epoch has new spans; as a callback of the trainer the transform knows the epoch. A span
    gets the special tokens of the encoder's input, and is truncated to ``max_seq_length`` tokens,
    as in the authors' code. With RoBERTa's two special tokens and ``max_seq_length`` 512, that cuts
    anchors of 511 tokens (4 in 100,000 anchors), and every span of words with more than 510 tokens.
    A span of words is tokenised without the rest of its document.
    """

    def __init__(self, reader: _DocumentReader, seed: int, max_seq_length: int):
        self.reader = reader
        self.seed = seed
        self.prefix, self.suffix = find_special_tokens(reader.tokenizer)
        self.most_span_ids = max_seq_length - len(self.prefix) - len(self.suffix)
        # shared with the workers of a data loader
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def cut_document(self, document: str | list[int], epoch: int) -> dict[str, list[list[int]]]:
        """Return the row of one document in an epoch (from 0): ids of its anchors and positives.

        ``document``: words, joined by single spaces, or token ids.
        """
        if isinstance(document, str):
            units: list[Any] = document.split(" ")
            content = document.encode()
        else:
            units = document
            content = np.asarray(document, dtype="<i8").tobytes()  # the same bytes on all machines
        generator = make_generator(self.seed, epoch, content)
        anchors, positives = sample_spans(generator, len(units), self.reader.spans)
        return {
            "anchors": self._get_ids(units, anchors),
            "positives": self._get_ids(units, positives),
        }

    def cut_stream(
        self, documents: IterableDataset, epoch: int
    ) -> Iterator[dict[str, list[list[int]]]]:
        """Yield the rows of a stream of texts in an epoch (from 0); short texts have no row."""
        for document in self.reader.iter_documents(documents):
            yield self.cut_document(document, epoch)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Set the epoch from the trainer's state; a run may resume inside any epoch."""
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[list[list[int]]]]:
        """Return the rows of the column ``document`` in the trainer's epoch, in their order."""
        rows = [self.cut_document(document, int(self.epoch)) for document in batch[DOCUMENT_COLUMN]]
        return {column: [row[column] for row in rows] for column in FEATURES}

    def _get_ids(self, units: list[Any], spans: list[Span]) -> list[list[int]]:
        """Return the token ids of each span, special tokens included, cut to the encoder's length.

        ``units``: the document's words or token ids.
        """
        span_ids = [units[span.start : span.end] for span in spans]
        if self.reader.spans.unit == "words":
            texts = [" ".join(words) for words in span_ids]
            span_ids = tokenize_plain(self.reader.tokenizer, texts)
        return [[*self.prefix, *ids[: self.most_span_ids], *self.suffix] for ids in span_ids]


def find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special ids that the tokenizer puts before a text, and those after it.

    The text "a" shows them. Pass a copy of the tokenizer: a call changes settings that are saved.
    """
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids = list(encoded["input_ids"])
    is_special = list(encoded["special_tokens_mask"])
    first = is_special.index(0)
    end = len(ids) - is_special[::-1].index(0)
    return ids[:first], ids[end:]


class SpanCollator:
    """Collator of N rows of spans, which makes padded ids and attention masks.

    The tensors are ``anchors_input_ids``, ``anchors_attention_mask``, ``positives_input_ids`` and
    ``positives_attention_mask``. Each is (N, spans of a row, tokens), padded on the right. The
    first dimension is the document, so a batch can be cut and joined by documents.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = tokenizer.pad_token_id
        # sentence-transformers' trainer reads this list; spans have no labels
        self.valid_label_columns: list[str] = []

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the padded batch of ``rows``, with their ``dataset_name`` if they have one."""
        batch: dict[str, Any] = {}
        # The trainer chooses the loss by the dataset's name.
        if "dataset_name" in rows[0]:
            batch["dataset_name"] = rows[0]["dataset_name"]
        for column in FEATURES:
            # Pad all spans of all rows together, (N * spans, tokens), then divide them by row.
            spans: list[torch.Tensor] = []
            for row in rows:
                spans += [torch.tensor(ids) for ids in row[column]]
            ids = pad_sequence(spans, batch_first=True, padding_value=self.pad)
            lengths = torch.tensor([len(span) for span in spans])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            shape = (len(rows), -1, ids.shape[1])
            batch[f"{column}_input_ids"] = ids.view(shape)
            batch[f"{column}_attention_mask"] = mask.view(shape)
        return batch

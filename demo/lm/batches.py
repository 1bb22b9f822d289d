"""From pairs to batches of token ids: documents of like length side by side, a weight for every token."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from demo.lm.pairs import PairMaker, word_salad
from demo.lm.prompts import Pair, before_first, between

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast


FIRST_WEIGHT = 0.4  # the loss of the first text, of which every completion is 1
EARLY_ROUNDS = 4  # rounds with the full range of label 0.5, see `pairs`
ROUND = 16384  # pairs drawn, sorted into lengths and shuffled at a time
SALAD = (0.25, 0.15, 0.1, 0.05, 0.02)  # random-word documents per pair, by round: copying comes first
MAX_TOKENS = 160


@dataclass(frozen=True)
class Batch:
    """Token ids (rows, length), the weight of each token's loss (0 for prompts and padding), the round they are of."""

    ids: torch.Tensor
    weights: torch.Tensor
    round: int = 0


@dataclass(frozen=True)
class Document:
    """One encoded training document."""

    ids: list[int]
    weights: list[float]


def encode(pairs: list[Pair], tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """Encode prompt, texts and quotes piece by piece, which equals encoding the whole: nothing merges over a quote."""
    quote = tokenizer.convert_tokens_to_ids('"')
    fixed = {p.label: [tokenizer.encode(part(p.label)) for part in (before_first, between)] for p in pairs}
    first = tokenizer([p.first for p in pairs])["input_ids"]
    second = tokenizer([p.second for p in pairs])["input_ids"]
    documents = []
    for pair, a, b in zip(pairs, first, second, strict=True):
        opening, middle = fixed[pair.label]
        end = [quote, tokenizer.eos_token_id]
        weight = 0.0 if pair.kind == "random words" else FIRST_WEIGHT
        weights = [0.0] * len(opening) + [weight] * (len(a) + 1) + [0.0] * (len(middle) - 1) + [1.0] * (len(b) + 2)
        documents.append(Document([*opening, *a, *middle, *b, *end], weights))
    return [d for d in documents if len(d.ids) <= MAX_TOKENS]


def _collate(documents: list[Document], pad: int) -> Batch:
    import torch

    longest = max(len(d.ids) for d in documents)
    ids = torch.full((len(documents), longest), pad)
    weights = torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        ids[row, : len(document.ids)] = torch.tensor(document.ids)
        weights[row, : len(document.ids)] = torch.tensor(document.weights)
    return Batch(ids, weights)


def pack(documents: list[Document], tokens: int, pad: int, rng: random.Random) -> list[Batch]:
    """Batches of about ``tokens`` tokens of documents of nearly one length, in random order."""
    order = sorted(documents, key=lambda d: (len(d.ids), rng.random()))
    batches, rows = [], list[Document]()
    for document in order:
        if rows and len(document.ids) * (len(rows) + 1) > tokens:
            batches.append(_collate(rows, pad))
            rows = []
        rows.append(document)
    batches.append(_collate(rows, pad))
    rng.shuffle(batches)
    return batches


def round_pairs(maker: PairMaker, number: int, seed: int, words: list[str]) -> tuple[list[Pair], random.Random]:
    """The pairs of one round and the generator that goes on to shuffle them."""
    rng = random.Random(f"{seed}/{number}")
    pairs = list(maker.draw(rng, ROUND, late=number >= EARLY_ROUNDS))
    salad = SALAD[min(number, len(SALAD) - 1)]
    return pairs + [word_salad(words, rng) for _ in range(int(ROUND * salad))], rng


def stream(
    maker: PairMaker,
    tokenizer: PreTrainedTokenizerFast,
    tokens: int,
    seed: int,
    counts: Counter[tuple[str, str]],
    start: int = 0,
) -> Iterator[Batch]:
    """Batches without end from round ``start`` on, the same for the same seed; ``counts`` collects all pairs' kinds."""
    words = sorted({w for t in maker.corpus.prose + maker.captions.sentences[::5] for w in t.split()})
    for number in itertools.count():
        pairs, rng = round_pairs(maker, number, seed, words)
        counts.update((p.label, p.kind) for p in pairs)
        if number >= start:
            for batch in pack(encode(pairs, tokenizer), tokens, int(tokenizer.pad_token_id or 0), rng):
                yield replace(batch, round=number)

"""DeCLUTR's span sampling (Giorgi et al. 2021, section 3.2): pure, from a numpy generator, lengths in words or tokens.

What the paper leaves open, and where the authors' code differs from it:

- *Anchors.* The paper has them "a minimum of 2 * lmax tokens apart". The code cuts the document into blocks of lmax,
  places each anchor somewhere in a block of its own, and takes a used block's neighbours out of the choice: at least
  lmax lies between two anchors, and positives of both may share text. ``blocks`` is the code, ``apart`` the sentence,
  read as what lies *between* one anchor's end and the next one's start; then positives, which reach at most lmax
  beyond theirs, never share text. 2 anchors of 512 need 2,048, the paper's shortest document, either way.
- *The ends of the document.* The range of a positive's start may reach out of the document. Starts outside are left
  out, and the others stay equally likely: the paper's distribution, given that the span lies inside. (Moving a span
  back inside would pile probability up on the first and last tokens.) The code does the same.
- *Strategies.* With one, the start is uniform among those of that kind. Where a kind has room for less than lmax
  (inside the anchor, or beside it), the Beta distribution is scaled to that room, so every draw succeeds at once.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from hub.contract.sections.model import Spans


@dataclass(frozen=True)
class Span:
    """Words or tokens ``start`` to ``end`` (not included) of a document."""

    start: int
    end: int


def document_generator(seed: int, number: int, document: bytes) -> np.random.Generator:
    """The random generator for a document in epoch ``number`` (from 0).

    It depends on the document's own content instead of its place in a stream, so spans are the same whatever the number
    of processes and workers, the order, and the step that a run is resumed at.
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

    Equal to drawing starts from {0 .. units - length} until all anchors are apart, without the tries: what the anchors
    and the units between them leave free is shared out, and each way of sharing it is one choice of ``spans.anchors``
    positions out of free + anchors.
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

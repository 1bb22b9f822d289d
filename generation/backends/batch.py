"""Continuous batching: the sequences being decoded, their paged KV cache, and the inputs of the next forward pass.

A request is one sequence of *rows*, one for each of its prompts; all get the same token. Each distinct prompt is
prefilled once, beside the tokens of other sequences, and kept while a sequence needs it (and a while longer: a second
attempt may ask for it). Generated tokens lie in pages of each row, which a sequence that ends frees at once.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from generation.backends.protocol import Request
from generation.backends.shared_attention import KVCache, Level, Pass, Write, rounded

KV_PAGE = 16  # written tokens of a row that are kept and read together; fixed: sums depend on where pages end
PROMPT_SLOTS = 8  # rows that read a prompt in one product, empty ones included: how sums are made depends on it
PREFIX_SLOTS = 16  # at least so many rows for a shared prefix: from there on sums are made alike


@dataclass
class Prompt:
    """A prompt and its entry in the KV cache of prompts."""

    entry: int
    prefix: int  # its entry in the cache of shared prefixes; -1: none
    prefix_length: int  # tokens of the shared prefix
    tokens: list[int]  # the rest
    common: bool = False  # the plain prompt of many sequences, whose rows read it in one product
    readers: int = 0  # rows of running sequences that ask for it
    output: Tensor = field(init=False)  # (H,) or (V,) that the forward pass gave for its last token


@dataclass
class Row:
    """One prompt of a sequence, and the cache entries of the pages with the tokens generated after it."""

    prompt: Prompt
    pages: list[int] = field(default_factory=list)


@dataclass
class LiveSequence:
    """One request that is being decoded."""

    request: Request
    rows: list[Row] = field(default_factory=list)  # of ``request.prompts``
    tokens: list[int] = field(default_factory=list)
    log_probs: np.ndarray = field(init=False)  # sums under ``request.reported_prompts``

    def __post_init__(self) -> None:
        self.log_probs = np.zeros(len(self.request.reported_prompts))

    def share(self, most: int) -> float:
        """The part of a row's tokens that is done, where ``most`` may be generated; rows share those of a prompt."""
        read = len(self.rows[0].prompt.tokens) / max(1, self.rows[0].prompt.readers)
        return (read + len(self.tokens)) / (read + most) if self.tokens else 0.0


class EntryAllocator:
    """Allocates the entries of a KV cache, the smallest free number first."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.used = 0

    def allocate(self) -> int:
        """A number that nobody has."""
        if self.free:
            return heapq.heappop(self.free)
        self.used += 1
        return self.used - 1

    def release(self, number: int) -> None:
        """Hand a number back."""
        heapq.heappush(self.free, number)


class KVCaches:
    """The KV caches of a batch, kept for the next one: making them anew would cost more than filling them."""

    def __init__(self) -> None:
        self.shared_prefixes, self.prompts = KVCache(), KVCache()
        self.pages: list[KVCache] = []  # of the first KV_PAGE tokens of a row, the next ...


class LiveBatch:
    """The running sequences and the KV caches that their rows read."""

    def __init__(self, caches: KVCaches, prefix_lengths: Sequence[int], device: torch.device):
        self.caches, self.prefix_lengths, self.device = caches, np.array([*prefix_lengths, 0]), device
        self.sequences: list[LiveSequence] = []
        self.prefill: list[Prompt] = []  # to be read in the next pass
        self.prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self.prompt_entries = EntryAllocator()
        self.page_entries: list[EntryAllocator] = []

    @property
    def rows(self) -> int:
        """Rows of all running sequences."""
        return sum(len(sequence.rows) for sequence in self.sequences)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that the next pass reads."""
        return sum(len(prompt.tokens) for prompt in self.prefill)

    def add(self, request: Request, prompts: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Begin a sequence. ``prompts``: the token ids and the prefix (-1: none) of each of its prompts."""
        rows = [Row(self._prompt(ids, prefix)) for ids, prefix in prompts]
        for row in rows:
            row.prompt.readers += 1
        if request.plain_prompt is not None:
            rows[request.plain_row].prompt.common = True
        self.sequences.append(LiveSequence(request, rows))

    def _prompt(self, ids: tuple[int, ...], prefix: int) -> Prompt:
        prompt = self.prompts.get(ids)
        if prompt is None:
            prefix_length = int(self.prefix_lengths[prefix])
            prompt = Prompt(self.prompt_entries.allocate(), prefix, prefix_length, list(ids[prefix_length:]))
            self.caches.prompts.reserve(self.prompt_entries.used, len(prompt.tokens))
            self.prompts[ids] = prompt
            self.prefill.append(prompt)
        self.prompts.move_to_end(ids)
        return prompt

    def end(self, sequence: LiveSequence) -> None:
        """Free the rows of a sequence that is written."""
        for row in sequence.rows:
            row.prompt.readers -= 1
            for allocator, entry in zip(self.page_entries, row.pages, strict=False):
                allocator.release(entry)

    def forget(self) -> None:
        """Let go of the prompts that nobody has read for longest; a quarter as many as are in use may stay."""
        unused = [ids for ids, prompt in self.prompts.items() if not prompt.readers]
        for ids in unused[: max(0, len(unused) - (len(self.prompts) - len(unused)) // 4)]:
            self.prompt_entries.release(self.prompts.pop(ids).entry)

    def next_pass(self) -> Pass:
        """The next forward pass: the newest token of every row, in order, then the tokens of the prompts to prefill."""
        decoding = [(sequence, row) for sequence in self.sequences if sequence.tokens for row in sequence.rows]
        offsets = np.array([len(sequence.tokens) - 1 for sequence, _ in decoding], dtype=np.int64)
        inputs = [
            (sequence.tokens[-1], row.prompt.prefix_length + len(row.prompt.tokens) + offset, row.prompt.prefix)
            for (sequence, row), offset in zip(decoding, offsets.tolist(), strict=True)
        ]
        for prompt in self.prefill:
            inputs += [
                (token, prompt.prefix_length + offset, prompt.prefix) for offset, token in enumerate(prompt.tokens)
            ]
        ids, positions, prefixes = np.array(inputs, dtype=np.int64).reshape(-1, 3).T
        lengths = [len(prompt.tokens) for prompt in self.prefill]
        last_tokens = len(decoding) + np.cumsum(lengths, dtype=np.int64) - 1
        found = Pass(ids, positions, np.concatenate([np.arange(len(decoding)), last_tokens]))
        self._prefix_level(found, prefixes)
        if decoding:
            rows = [row for _, row in decoding]
            self._prompt_levels(found, rows)
            self._page_levels(found, rows, offsets)
        if self.prefill:
            self._prefill_level(found, lengths, len(decoding))
        return found

    def _prefix_level(self, now: Pass, prefixes: np.ndarray) -> None:
        members = np.flatnonzero(prefixes >= 0)
        if not len(members):
            return
        cache, lengths = self.caches.shared_prefixes, self.prefix_lengths
        now.levels.append(self._shared_level(cache, prefixes, members, lengths, PREFIX_SLOTS))

    def _prompt_levels(self, now: Pass, rows: list[Row]) -> None:
        """The rows that decode read their prompts: common ones in one level, others PROMPT_SLOTS rows a level."""
        groups = np.array([row.prompt.entry for row in rows])
        lengths = np.zeros(self.prompt_entries.used, dtype=np.int64)
        lengths[groups] = [len(row.prompt.tokens) for row in rows]
        turn = _ranks(groups) // PROMPT_SLOTS
        turn[[row.prompt.common for row in rows]] = -1
        for number in np.unique(turn).tolist():
            members, width = np.flatnonzero(turn == number), PROMPT_SLOTS if number >= 0 else PREFIX_SLOTS
            now.levels.append(self._shared_level(self.caches.prompts, groups, members, lengths, width))

    def _shared_level(
        self, cache: KVCache, groups: np.ndarray, members: np.ndarray, lengths: np.ndarray, width: int
    ) -> Level:
        """What the rows ``members`` (L,) read of their groups' entries, which have ``lengths`` (E,) tokens."""
        entries, slots, place = _grouped(groups[members], members, width)
        length = rounded(int(lengths[entries].max()))
        seen = np.arange(length) < lengths[entries][:, None, None]
        return self._level(cache, entries, length, slots, place, self._chosen(members, len(groups)), seen)

    def _page_levels(self, now: Pass, rows: list[Row], offsets: np.ndarray) -> None:
        """Each row's newest token is written at its offset; then the row reads its pages, one level for each."""
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            for page in range(len(row.pages), offset // KV_PAGE + 1):
                if page == len(self.page_entries):
                    self.page_entries.append(EntryAllocator())
                if page == len(self.caches.pages):
                    self.caches.pages.append(KVCache(0, KV_PAGE))
                row.pages.append(self.page_entries[page].allocate())
                self.caches.pages[page].reserve(self.page_entries[page].used, KV_PAGE)
        for page in range(int(offsets.max()) // KV_PAGE + 1):
            members = np.flatnonzero(offsets >= page * KV_PAGE)
            entries = np.array([rows[number].pages[page] for number in members.tolist()])
            within = offsets[members] - page * KV_PAGE
            newest, cache = within < KV_PAGE, self.caches.pages[page]
            written = self._chosen(members[newest], len(rows))
            now.writes.append(Write(cache, written, self._tensor(entries[newest]), self._tensor(within[newest])))
            order, chosen = np.argsort(entries), self._chosen(members, len(rows))
            slots, seen = members[order][:, None], np.arange(KV_PAGE) <= within[order][:, None, None]
            now.levels.append(self._level(cache, entries[order], KV_PAGE, slots, np.argsort(order), chosen, seen))

    def _chosen(self, members: np.ndarray, rows: int) -> slice | Tensor:
        """The numbers of some of the first ``rows`` rows as an index; all of them are a slice, which copies nothing."""
        return slice(0, rows) if len(members) == rows else self._tensor(members)

    def _prefill_level(self, now: Pass, lengths: list[int], rows: int) -> None:
        """The tokens of the prompts to prefill, each of which sees those before it."""
        entries = np.array([prompt.entry for prompt in self.prefill])
        length, total = rounded(max(lengths)), rows + sum(lengths)
        offsets = np.concatenate([np.arange(size) for size in lengths])
        entry = np.repeat(np.arange(len(entries)), lengths)
        slots = np.zeros((len(entries), length), dtype=np.int64)
        slots[entry, offsets] = np.arange(rows, total)
        cache, members = self.caches.prompts, slice(rows, total)
        now.writes.append(Write(cache, members, self._tensor(entries[entry]), self._tensor(offsets)))
        seen = np.broadcast_to(np.tri(length, dtype=bool), (len(entries), length, length))
        place = entry * length + offsets
        now.levels.append(self._level(cache, entries, length, slots, place, members, seen, gathered=True))

    def _level(
        self,
        cache: KVCache,
        entries: np.ndarray,
        length: int,
        slots: np.ndarray,
        place: np.ndarray,
        members: slice | Tensor,
        seen: np.ndarray,
        gathered: bool = False,
    ) -> Level:
        """A level of entries in rising order: ``gathered``, as few ones are, else all up to the last, copying none."""
        span, width, chosen = int(entries[-1]) + 1, slots.shape[1], None
        if gathered or 2 * len(entries) < span:
            chosen = self._tensor(entries)
        else:
            spread, seen_there = np.zeros((span, width), dtype=np.int64), np.zeros((span, 1, length), dtype=bool)
            spread[entries], seen_there[entries] = slots, seen
            place = entries[place // width] * width + place % width
            slots, seen = spread, seen_there
        attn_bias = torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf))).to(self.device)
        return Level(cache, chosen, length, self._tensor(slots), self._tensor(place), members, attn_bias)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.device, non_blocking=True)


def _ranks(groups: np.ndarray) -> np.ndarray:
    """How many before each of (L,) are of the same group."""
    _, which, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    rank = np.empty(len(groups), dtype=np.int64)
    rank[np.argsort(which, kind="stable")] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def _grouped(groups: np.ndarray, members: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members by group: the groups there are (E,), a slot matrix (E, n) of members, each member's flat slot (L,).

    n is at least ``width``.
    """
    entries, which = np.unique(groups, return_inverse=True)
    rank = _ranks(groups)
    width = max(width, int(rank.max()) + 1)
    slots = np.zeros((len(entries), width), dtype=np.int64)
    slots[which, rank] = members
    return entries, slots, which * width + rank

"""Continuous batching: the sequences being decoded, their paged KV cache, and the inputs of the
next forward pass.

A request is one sequence of *rows*, one for each of its prompts; all get the same token. Each
distinct prompt is prefilled once, beside the tokens of other sequences. It stays while a sequence
needs it, and a while longer, since a second attempt may use it. Generated tokens lie in pages of
each row, which a sequence that ends frees at once.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.backends.shared_attention import (
    KVCache,
    Level,
    Pass,
    Write,
    round_length,
)

# generated tokens of a row in one page, read together; fixed: sums depend on where pages end
KV_PAGE = 16
# rows that read a prompt in one product, empty ones included: the order of sums depends on it
PROMPT_SLOTS = 8
# least rows of a shared prefix: from there on the order of sums is the same
PREFIX_SLOTS = 16


@dataclass
class Prompt:
    """A prompt and its entry in the KV cache of prompts."""

    entry: int
    prefix: int  # its entry in the cache of shared prefixes; -1: none
    prefix_length: int  # tokens of the shared prefix
    tokens: list[int]  # the tokens after it
    is_common: bool = False  # the plain prompt of many sequences, whose rows read it in one product
    readers: int = 0  # rows of running sequences that read it
    output: Tensor = field(init=False)  # (H,) or (V,), the forward pass's for its last token


@dataclass
class Row:
    """One prompt of a sequence, and the cache entries of the pages with the tokens after it."""

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

    def measure_progress(self, max_new_tokens: int) -> float:
        """Return the computed fraction of a row's tokens; rows share the tokens of a prompt."""
        if not self.tokens:
            return 0.0
        prompt = self.rows[0].prompt
        prompt_share = len(prompt.tokens) / max(1, prompt.readers)
        return (prompt_share + len(self.tokens)) / (prompt_share + max_new_tokens)


class EntryAllocator:
    """Allocates the entries of a KV cache, the smallest free number first."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.used = 0

    def allocate(self) -> int:
        """Return a free number."""
        if self.free:
            return heapq.heappop(self.free)
        self.used += 1
        return self.used - 1

    def release(self, number: int) -> None:
        """Free a number."""
        heapq.heappush(self.free, number)


class KVCaches:
    """The KV caches of a batch; the next one uses them again, since new ones cost more."""

    def __init__(self) -> None:
        self.shared_prefixes = KVCache()
        self.prompts = KVCache()
        self.pages: list[KVCache] = []  # of the first KV_PAGE tokens of a row, the next ...


class SlotTable(NamedTuple):
    """The slots in which E entries are read, as ``Level`` has them."""

    entries: np.ndarray  # (E,) in rising order
    slots: np.ndarray  # (E, n) the row in each slot
    member_slots: np.ndarray  # (L,) the flat slot of each member
    visible: np.ndarray  # (E, 1 or n, length) whether a slot sees a token


class LiveBatch:
    """The running sequences and the KV caches that their rows read."""

    def __init__(self, caches: KVCaches, prefix_lengths: Sequence[int], device: torch.device):
        self.caches = caches
        self.prefix_lengths = np.array([*prefix_lengths, 0])  # the last one, -1: no prefix
        self.device = device
        self.sequences: list[LiveSequence] = []
        self.prefill: list[Prompt] = []  # computed in the next pass
        self.prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self.prompt_entries = EntryAllocator()
        self.page_entries: list[EntryAllocator] = []

    @property
    def rows(self) -> int:
        """Rows of all running sequences."""
        return sum(len(sequence.rows) for sequence in self.sequences)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that the next pass computes."""
        return sum(len(prompt.tokens) for prompt in self.prefill)

    def add(self, request: Request, prompts: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Start a sequence. ``prompts``: token ids and prefix (-1: none) of each of its prompts."""
        rows = [Row(self._reserve_prompt(ids, prefix)) for ids, prefix in prompts]
        for row in rows:
            row.prompt.readers += 1
        if request.plain_prompt is not None:
            rows[request.plain_row].prompt.is_common = True
        self.sequences.append(LiveSequence(request, rows))

    def _reserve_prompt(self, ids: tuple[int, ...], prefix: int) -> Prompt:
        """Return the prompt with these token ids; a new one is prefilled in the next pass."""
        prompt = self.prompts.get(ids)
        if prompt is None:
            prefix_length = int(self.prefix_lengths[prefix])
            tokens = list(ids[prefix_length:])
            prompt = Prompt(self.prompt_entries.allocate(), prefix, prefix_length, tokens)
            self.caches.prompts.reserve(self.prompt_entries.used, len(tokens))
            self.prompts[ids] = prompt
            self.prefill.append(prompt)
        self.prompts.move_to_end(ids)
        return prompt

    def remove(self, sequence: LiveSequence) -> None:
        """Free the rows of a sequence that has ended."""
        for row in sequence.rows:
            row.prompt.readers -= 1
            for allocator, entry in zip(self.page_entries, row.pages, strict=False):
                allocator.release(entry)

    def drop_unused_prompts(self) -> None:
        """Free the prompts unused for longest; a quarter as many as are in use may stay."""
        unused = [ids for ids, prompt in self.prompts.items() if not prompt.readers]
        spare = (len(self.prompts) - len(unused)) // 4
        for ids in unused[: max(0, len(unused) - spare)]:
            self.prompt_entries.release(self.prompts.pop(ids).entry)

    def next_pass(self) -> Pass:
        """Return the next forward pass.

        Its rows are the newest token of every row, in order, then the tokens of the prompts to
        prefill.
        """
        # The newest token of every row that decodes
        rows: list[Row] = []
        offsets: list[int] = []  # of the token in the generated text
        inputs: list[tuple[int, int, int]] = []  # token id, position, prefix
        for sequence in self.sequences:
            if not sequence.tokens:
                continue
            newest = sequence.tokens[-1]
            offset = len(sequence.tokens) - 1
            rows += sequence.rows
            offsets += [offset] * len(sequence.rows)
            inputs += [
                (
                    newest,
                    row.prompt.prefix_length + len(row.prompt.tokens) + offset,
                    row.prompt.prefix,
                )
                for row in sequence.rows
            ]

        # The tokens of the prompts to prefill
        output_rows = list(range(len(rows)))
        for prompt in self.prefill:
            inputs += [
                (token, position, prompt.prefix)
                for position, token in enumerate(prompt.tokens, prompt.prefix_length)
            ]
            output_rows.append(len(inputs) - 1)

        # What these rows write and read
        ids, positions, prefixes = np.array(inputs, dtype=np.int64).reshape(-1, 3).T
        next_pass = Pass(ids, positions, np.array(output_rows, dtype=np.int64))
        self._add_prefix_level(next_pass, prefixes)
        if rows:
            self._add_prompt_levels(next_pass, rows)
            self._add_page_levels(next_pass, rows, np.array(offsets, dtype=np.int64))
        if self.prefill:
            self._add_prefill_level(next_pass, len(rows))
        return next_pass

    def _add_prefix_level(self, next_pass: Pass, prefixes: np.ndarray) -> None:
        """Let the rows read their shared prefixes. ``prefixes``: (M,) of each row."""
        members = np.flatnonzero(prefixes >= 0)
        if len(members):
            cache = self.caches.shared_prefixes
            table = _make_slot_table(prefixes, members, self.prefix_lengths, PREFIX_SLOTS)
            index = self._make_index(members, len(prefixes))
            next_pass.levels.append(self._make_level(cache, table, index))

    def _add_prompt_levels(self, next_pass: Pass, rows: list[Row]) -> None:
        """Let the rows that decode read their prompts.

        All rows of common prompts are one level, others PROMPT_SLOTS rows of a prompt a level.
        """
        entries = np.array([row.prompt.entry for row in rows])
        lengths = np.zeros(self.prompt_entries.used, dtype=np.int64)
        lengths[entries] = [len(row.prompt.tokens) for row in rows]
        numbers = _rank_in_groups(entries) // PROMPT_SLOTS  # the level of each row
        numbers[[row.prompt.is_common for row in rows]] = -1
        for number in np.unique(numbers).tolist():
            members = np.flatnonzero(numbers == number)
            width = PROMPT_SLOTS if number >= 0 else PREFIX_SLOTS
            table = _make_slot_table(entries, members, lengths, width)
            index = self._make_index(members, len(rows))
            next_pass.levels.append(self._make_level(self.caches.prompts, table, index))

    def _add_page_levels(self, next_pass: Pass, rows: list[Row], offsets: np.ndarray) -> None:
        """Write each row's newest token at its offset; let the row read its pages, a level each."""
        self._reserve_pages(rows, offsets)
        for page in range(int(offsets.max()) // KV_PAGE + 1):
            cache = self.caches.pages[page]
            members = np.flatnonzero(offsets >= page * KV_PAGE)
            entries = np.array([rows[row].pages[page] for row in members.tolist()])
            page_offsets = offsets[members] - page * KV_PAGE

            # The newest token of the rows whose last page this is
            is_last = page_offsets < KV_PAGE
            next_pass.writes.append(
                Write(
                    cache,
                    self._make_index(members[is_last], len(rows)),
                    self._to_tensor(entries[is_last]),
                    self._to_tensor(page_offsets[is_last]),
                )
            )

            # One slot per entry
            order = np.argsort(entries)
            visible = np.arange(KV_PAGE) <= page_offsets[order][:, None, None]
            slots = members[order][:, None]
            table = SlotTable(entries[order], slots, np.argsort(order), visible)
            index = self._make_index(members, len(rows))
            next_pass.levels.append(self._make_level(cache, table, index))

    def _reserve_pages(self, rows: list[Row], offsets: np.ndarray) -> None:
        """Give each row the pages up to its offset."""
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            for page in range(len(row.pages), offset // KV_PAGE + 1):
                if page == len(self.page_entries):
                    self.page_entries.append(EntryAllocator())
                if page == len(self.caches.pages):
                    self.caches.pages.append(KVCache(0, KV_PAGE))
                row.pages.append(self.page_entries[page].allocate())
                self.caches.pages[page].reserve(self.page_entries[page].used, KV_PAGE)

    def _add_prefill_level(self, next_pass: Pass, first: int) -> None:
        """Write the tokens of the prompts to prefill; each sees those before it.

        ``first``: the row of their first token.
        """
        entries = np.array([prompt.entry for prompt in self.prefill])
        lengths = [len(prompt.tokens) for prompt in self.prefill]
        length = round_length(max(lengths))
        members = slice(first, first + sum(lengths))

        # One slot per token: prompt i takes the first of its ``length`` slots
        prompt_numbers = np.repeat(np.arange(len(entries)), lengths)
        offsets = np.concatenate([np.arange(size) for size in lengths])
        slots = np.zeros((len(entries), length), dtype=np.int64)
        slots[prompt_numbers, offsets] = np.arange(members.start, members.stop)
        visible = np.broadcast_to(np.tri(length, dtype=bool), (len(entries), length, length))
        table = SlotTable(entries, slots, prompt_numbers * length + offsets, visible)

        cache = self.caches.prompts
        token_entries = self._to_tensor(entries[prompt_numbers])
        next_pass.writes.append(Write(cache, members, token_entries, self._to_tensor(offsets)))
        next_pass.levels.append(self._make_level(cache, table, members, gather=True))

    def _make_level(
        self, cache: KVCache, table: SlotTable, members: slice | Tensor, gather: bool = False
    ) -> Level:
        """Return the level that some rows read.

        Few entries are gathered, and with ``gather`` any. Else all up to the last are read, which
        copies none.
        """
        entries = None
        if gather or 2 * len(table.entries) <= int(table.entries[-1]):
            entries = self._to_tensor(table.entries)
        else:
            table = _spread_slots(table)
        attn_bias = np.where(table.visible, np.float32(0), np.float32(-np.inf))
        return Level(
            cache=cache,
            entries=entries,
            length=table.visible.shape[2],
            slots=self._to_tensor(table.slots),
            member_slots=self._to_tensor(table.member_slots),
            members=members,
            attn_bias=torch.from_numpy(attn_bias).to(self.device),
        )

    def _make_index(self, members: np.ndarray, rows: int) -> slice | Tensor:
        """Return some of the first ``rows`` rows as an index; all of them are a slice.

        A slice copies nothing.
        """
        return slice(0, rows) if len(members) == rows else self._to_tensor(members)

    def _to_tensor(self, values: np.ndarray) -> Tensor:
        contiguous = np.ascontiguousarray(values, dtype=np.int64)
        return torch.from_numpy(contiguous).to(self.device, non_blocking=True)


def _rank_in_groups(groups: np.ndarray) -> np.ndarray:
    """Return how many earlier ones of (L,) are of the same group, for each."""
    _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    first_of_group = np.repeat(np.cumsum(sizes) - sizes, sizes)
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[np.argsort(numbers, kind="stable")] = np.arange(len(groups)) - first_of_group
    return ranks


def _spread_slots(table: SlotTable) -> SlotTable:
    """Return the table with all entries up to the last; those in between are read by no row."""
    span = int(table.entries[-1]) + 1
    width = table.slots.shape[1]
    slots = np.zeros((span, width), dtype=np.int64)
    slots[table.entries] = table.slots
    visible = np.zeros((span, *table.visible.shape[1:]), dtype=bool)
    visible[table.entries] = table.visible
    numbers, ranks = np.divmod(table.member_slots, width)
    return SlotTable(np.arange(span), slots, table.entries[numbers] * width + ranks, visible)


def _make_slot_table(
    groups: np.ndarray, members: np.ndarray, lengths: np.ndarray, least_slots: int
) -> SlotTable:
    """Return the slots in which members read the entry of their group.

    Args:
        groups: (M,) the entry of each row.
        members: (L,) the rows that read.
        lengths: (entries,) tokens of every entry.
        least_slots: least slots of an entry.
    """
    entries, numbers = np.unique(groups[members], return_inverse=True)
    ranks = _rank_in_groups(groups[members])
    width = max(least_slots, int(ranks.max()) + 1)
    slots = np.zeros((len(entries), width), dtype=np.int64)
    slots[numbers, ranks] = members
    length = round_length(int(lengths[entries].max()))
    visible = np.arange(length) < lengths[entries][:, None, None]
    return SlotTable(entries, slots, numbers * width + ranks, visible)

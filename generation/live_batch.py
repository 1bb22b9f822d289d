"""The texts that are being written together: who reads which prompt, who has written what, what the next pass holds.

A request is B = 1 text with 1 + K *rows*, one for its prompt and one for each counter-prompt; all get the same token.
Each distinct prompt is read once, as rows of the same pass in which other texts get their next token, and is kept
while a text needs it (and a while longer: a second attempt may ask for it). A row that goes on copies the keys and
values of its prompt and adds its own, in blocks; a text that ends frees its blocks at once.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from generation.randomness import uniforms
from generation.shared_attention import FEWEST, Level, Pass, Store, Write, rounded
from generation.writer import Request

BLOCK = 32  # tokens of a row that are kept and read together; fixed, because sums depend on where blocks end


@dataclass
class Prompt:
    """A prompt in the store of prompts."""

    entry: int
    family: int  # the shared beginning in the store of families; -1: none
    begin: int  # tokens of the shared beginning
    tokens: list[int]  # the rest
    readers: int = 0  # rows of texts in work that ask for it
    logits: Tensor | None = None  # (V,) of its last token, once it has been read

    @property
    def last_logits(self) -> Tensor:
        """(V,) of its last token; it has been read."""
        assert self.logits is not None
        return self.logits


@dataclass
class Row:
    """One prompt of a text with what is written after it: its entry in each store of blocks."""

    prompt: Prompt
    blocks: list[int] = field(default_factory=list)


@dataclass
class Text:
    """One request that is being written."""

    request: Request
    rows: list[Row]  # of its prompt, then of its counter-prompts
    tokens: list[int]
    log_probs: np.ndarray  # (1 + K,) sums


class Numbers:
    """Entry numbers of a store: the smallest free one first."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.used = 0

    def take(self) -> int:
        """A number that nobody has."""
        if self.free:
            return heapq.heappop(self.free)
        self.used += 1
        return self.used - 1

    def give(self, number: int) -> None:
        """Hand a number back."""
        heapq.heappush(self.free, number)


class Stores:
    """The stores of a batch, kept for the next one: making them anew would cost more than filling them."""

    def __init__(self) -> None:
        self.families, self.prompts = Store(), Store()
        self.blocks: list[Store] = []  # of the first BLOCK tokens of a row, the next ...


class LiveBatch:
    """Texts in work and the stores their rows read."""

    def __init__(self, stores: Stores, family_lengths: Sequence[int], device: torch.device):
        self.stores, self.family_lengths, self.device = stores, np.array([*family_lengths, 0]), device
        self.texts: list[Text] = []
        self.fresh: list[Prompt] = []  # to be read in the next pass
        self.prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self.prompt_numbers = Numbers()
        self.block_numbers: list[Numbers] = []

    @property
    def rows(self) -> int:
        """Rows of all texts in work."""
        return sum(len(text.rows) for text in self.texts)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that the next pass reads."""
        return sum(len(prompt.tokens) for prompt in self.fresh)

    def add(self, request: Request, prompts: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Begin a text. ``prompts``: the token ids and the family (-1: none) of each of its 1 + K prompts."""
        rows = [Row(self._prompt(ids, family)) for ids, family in prompts]
        for row in rows:
            row.prompt.readers += 1
        self.texts.append(Text(request, rows, [], np.zeros(len(rows))))

    def _prompt(self, ids: tuple[int, ...], family: int) -> Prompt:
        prompt = self.prompts.get(ids)
        if prompt is None:
            begin = int(self.family_lengths[family])
            prompt = Prompt(self.prompt_numbers.take(), family, begin, list(ids[begin:]))
            self.stores.prompts.reserve(self.prompt_numbers.used, len(prompt.tokens))
            self.prompts[ids] = prompt
            self.fresh.append(prompt)
        self.prompts.move_to_end(ids)
        return prompt

    def end(self, text: Text) -> None:
        """Free the rows of a text that is written."""
        for row in text.rows:
            row.prompt.readers -= 1
            for numbers, entry in zip(self.block_numbers, row.blocks, strict=False):
                numbers.give(entry)

    def forget(self) -> None:
        """Let go of the prompts that nobody has read for longest; a quarter as many as are in use may stay."""
        unused = [ids for ids, prompt in self.prompts.items() if not prompt.readers]
        for ids in unused[: max(0, len(unused) - (len(self.prompts) - len(unused)) // 4)]:
            self.prompt_numbers.give(self.prompts.pop(ids).entry)

    def next_pass(self) -> tuple[Pass, np.ndarray, np.ndarray, np.ndarray]:
        """The next forward pass: what it writes and reads, token ids and positions of its rows, rows with logits.

        The rows of texts that have tokens come first, in order; then the tokens of the fresh prompts.
        """
        going = [(text, row) for text in self.texts if text.tokens for row in text.rows]
        places = np.array([len(row.prompt.tokens) + len(text.tokens) - 1 for text, row in going], dtype=np.int64)
        lengths = [len(prompt.tokens) for prompt in self.fresh]
        ids = [text.tokens[-1] for text, _ in going] + [token for prompt in self.fresh for token in prompt.tokens]
        positions = [row.prompt.begin + place for (_, row), place in zip(going, places.tolist(), strict=True)]
        positions += [prompt.begin + place for prompt in self.fresh for place in range(len(prompt.tokens))]
        families = [row.prompt.family for _, row in going]
        families += [prompt.family for prompt in self.fresh for _ in prompt.tokens]
        now = Pass()
        self._family_level(now, np.array(families, dtype=np.int64))
        self._block_levels(now, [row for _, row in going], places)
        if self.fresh:
            self._reading_level(now, lengths, len(going))
        wanted = [*range(len(going)), *(len(going) + np.cumsum(lengths, dtype=np.int64) - 1).tolist()]
        return now, np.array(ids), np.array(positions), np.array(wanted)

    def _family_level(self, now: Pass, families: np.ndarray) -> None:
        members = np.flatnonzero(families >= 0)
        if not len(members):
            return
        entries, slots, place = _grouped(families[members], members)
        length = rounded(int(self.family_lengths[entries].max()))
        seen = np.arange(length) < self.family_lengths[entries][:, None, None]
        chosen = slice(0, len(families)) if len(members) == len(families) else self._tensor(members)
        now.levels.append(self._level(self.stores.families, entries, length, slots, place, chosen, seen))

    def _block_levels(self, now: Pass, rows: list[Row], places: np.ndarray) -> None:
        """Each row's newest token is written at its place; then the row reads its blocks, one level for each."""
        self._seat(rows, places)
        for block in range(int(places.max()) // BLOCK + 1 if rows else 0):
            members = np.flatnonzero(places >= block * BLOCK)
            entries = np.array([rows[number].blocks[block] for number in members.tolist()])
            offsets = places[members] - block * BLOCK
            newest = offsets < BLOCK
            chosen = slice(0, len(rows)) if len(members) == len(rows) else self._tensor(members)
            written = slice(0, len(rows)) if newest.sum() == len(rows) else self._tensor(members[newest])
            store = self.stores.blocks[block]
            now.writes.append(Write(store, written, self._tensor(entries[newest]), self._tensor(offsets[newest])))
            span = int(entries.max()) + 1
            seen = np.arange(BLOCK) <= offsets[:, None, None]
            if 2 * len(entries) < span:
                now.levels.append(
                    self._level(store, entries, BLOCK, members[:, None], np.arange(len(members)), chosen, seen)
                )
                continue
            slots, spread = np.zeros((span, 1), dtype=np.int64), np.zeros((span, 1, BLOCK), dtype=bool)
            slots[entries, 0], spread[entries] = members, seen
            now.levels.append(self._level(store, np.arange(span), BLOCK, slots, entries, chosen, spread))

    def _seat(self, rows: list[Row], places: np.ndarray) -> None:
        """Give rows the blocks they need; a row's first ones begin with the keys and values of its prompt."""
        for row, place in zip(rows, places.tolist(), strict=True):
            for block in range(len(row.blocks), place // BLOCK + 1):
                if block == len(self.block_numbers):
                    self.block_numbers.append(Numbers())
                if block == len(self.stores.blocks):
                    self.stores.blocks.append(Store(0, BLOCK))
                row.blocks.append(self.block_numbers[block].take())
                self.stores.blocks[block].reserve(self.block_numbers[block].used, BLOCK)
        fresh = [row for row, place in zip(rows, places.tolist(), strict=True) if place == len(row.prompt.tokens)]
        for block in range(len(self.stores.blocks)):
            copied = [row for row in fresh if len(row.prompt.tokens) > block * BLOCK]
            if copied:
                sources = self._tensor(np.array([row.prompt.entry for row in copied]))
                entries = self._tensor(np.array([row.blocks[block] for row in copied]))
                self.stores.blocks[block].copy(entries, self.stores.prompts, sources, block * BLOCK)

    def _reading_level(self, now: Pass, lengths: list[int], rows: int) -> None:
        """The tokens of fresh prompts, each of which sees those before it."""
        entries = np.array([prompt.entry for prompt in self.fresh])
        length, total = rounded(max(lengths)), rows + sum(lengths)
        offsets = np.concatenate([np.arange(size) for size in lengths])
        entry = np.repeat(np.arange(len(entries)), lengths)
        slots = np.zeros((len(entries), length), dtype=np.int64)
        slots[entry, offsets] = np.arange(rows, total)
        store, members = self.stores.prompts, slice(rows, total)
        now.writes.append(Write(store, members, self._tensor(entries[entry]), self._tensor(offsets)))
        seen = np.broadcast_to(np.tri(length, dtype=bool), (len(entries), length, length))
        now.levels.append(self._level(store, entries, length, slots, entry * length + offsets, members, seen))

    def _level(
        self,
        store: Store,
        entries: np.ndarray,
        length: int,
        slots: np.ndarray,
        place: np.ndarray,
        members: slice | Tensor,
        seen: np.ndarray,
    ) -> Level:
        whole = store is not self.stores.prompts and np.array_equal(entries, np.arange(len(entries)))
        hidden = torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf))).to(self.device)
        chosen = None if whole else self._tensor(entries)
        return Level(store, chosen, length, self._tensor(slots), self._tensor(place), members, hidden)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.device, non_blocking=True)

    def uniforms(self, texts: Sequence[Text]) -> Tensor:
        """(B,) uniform numbers in [0, 1) for the next token of some texts."""
        seeds = np.array([text.request.seed for text in texts], dtype=np.uint64)
        steps = np.array([len(text.tokens) for text in texts], dtype=np.uint64)
        return torch.from_numpy(uniforms(seeds, steps)).to(self.device)


def _grouped(groups: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members by group: the groups there are (E,), a slot matrix (E, n) of members, each member's flat slot (L,)."""
    entries, which, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    width = max(FEWEST, int(sizes.max()))
    slots = np.zeros((len(entries), width), dtype=np.int64)
    slots[which, rank] = members
    return entries, slots, which * width + rank

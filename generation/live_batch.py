"""The texts that are being written together: who reads which prompt, who has written what, what the next pass holds.

A request is B = 1 text with 1 + K *rows*, one for its prompt and one for each counter-prompt; all get the same token.
Each distinct prompt is read once, as rows of the same pass in which other texts get their next token, and is kept
while a row needs it (and a while longer: a second attempt may ask for it). A text that ends frees its rows at once.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from generation.randomness import uniforms
from generation.shared_attention import BLOCK, FEWEST, Level, Pass, Store, Write, rounded
from generation.writer import Request


@dataclass
class Prompt:
    """A prompt in the store: its entry, the entry of its shared beginning (-1: none), the tokens after that."""

    entry: int
    family: int
    begin: int  # tokens of the shared beginning
    tokens: list[int]  # the rest
    readers: int = 0  # rows that continue it
    logits: Tensor | None = None  # (V,) of its last token, once it has been read

    @property
    def end(self) -> int:
        """Position of the first token written after it."""
        return self.begin + len(self.tokens)


@dataclass
class Text:
    """One request that is being written."""

    request: Request
    prompts: list[Prompt]  # its own, then its counter-prompts'
    slots: list[list[int]]  # of each row, its entry in the stores of written tokens, one for every BLOCK tokens
    tokens: list[int] = field(default_factory=list)
    log_probs: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (1 + K,) sums


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
        self.written: list[Store] = []  # of the first BLOCK written tokens, the next ...


class LiveBatch:
    """Texts in work and the stores their rows read."""

    def __init__(self, stores: Stores, family_lengths: Sequence[int], device: torch.device):
        self.stores, self.family_lengths, self.device = stores, np.array([*family_lengths, 0]), device
        self.texts: list[Text] = []
        self.fresh: list[Prompt] = []  # to be read in the next pass
        self.prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self.prompt_numbers = Numbers()
        self.written_numbers: list[Numbers] = []

    @property
    def rows(self) -> int:
        """Rows of all texts in work."""
        return sum(len(text.prompts) for text in self.texts)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that the next pass reads."""
        return sum(len(prompt.tokens) for prompt in self.fresh)

    def add(self, request: Request, prompts: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Begin a text. ``prompts``: the token ids and the family (-1: none) of each of its 1 + K prompts."""
        found = [self._prompt(ids, family) for ids, family in prompts]
        for prompt in found:
            prompt.readers += 1
        self.texts.append(Text(request, found, [[] for _ in found], [], np.zeros(len(found))))

    def _prompt(self, ids: tuple[int, ...], family: int) -> Prompt:
        prompt = self.prompts.get(ids)
        if prompt is None:
            begin = int(self.family_lengths[family])
            prompt = Prompt(self.prompt_numbers.take(), family, begin, list(ids[begin:]))
            self.prompts[ids] = prompt
            self.fresh.append(prompt)
        self.prompts.move_to_end(ids)
        return prompt

    def end(self, text: Text) -> None:
        """Free the rows of a text that is written."""
        for prompt, slots in zip(text.prompts, text.slots, strict=True):
            prompt.readers -= 1
            for block, slot in enumerate(slots):
                self.written_numbers[block].give(slot)

    def forget(self) -> None:
        """Let go of the prompts that nobody has read for longest; a quarter as many as are in use may stay."""
        unused = [ids for ids, prompt in self.prompts.items() if not prompt.readers]
        for ids in unused[: max(0, len(unused) - (len(self.prompts) - len(unused)) // 4)]:
            self.prompt_numbers.give(self.prompts.pop(ids).entry)

    def next_pass(self) -> tuple[Pass, np.ndarray, np.ndarray, np.ndarray]:
        """The next forward pass: what it writes and reads, token ids and positions of its rows, rows with logits.

        The rows of texts that have tokens come first, in order; then the tokens of the fresh prompts.
        """
        going = [(text, place) for text in self.texts if text.tokens for place in range(len(text.prompts))]
        count = np.array([len(text.tokens) for text, _ in going], dtype=np.int64)
        prompts = [text.prompts[place] for text, place in going]
        ids = [text.tokens[-1] for text, _ in going] + [token for prompt in self.fresh for token in prompt.tokens]
        positions = np.array([prompt.end for prompt in prompts], dtype=np.int64) + count - 1
        starts = [np.arange(prompt.begin, prompt.end) for prompt in self.fresh]
        positions = np.concatenate([positions, *starts]).astype(np.int64)
        lengths = [len(prompt.tokens) for prompt in self.fresh]
        total, rows = len(ids), len(going)
        now = Pass()
        families = np.array(
            [prompt.family for prompt in prompts]
            + [prompt.family for prompt in self.fresh for _ in range(len(prompt.tokens))],
            dtype=np.int64,
        )
        self._family_level(now, families, total)
        if rows:
            self._prompt_level(now, prompts, rows, total)
            self._written_levels(now, going, count, total)
        if self.fresh:
            self._reading_level(now, lengths, rows, total)
        last = rows + np.cumsum(lengths, dtype=np.int64) - 1
        return now, np.array(ids), positions, np.concatenate([np.arange(rows), last]).astype(np.int64)

    def _family_level(self, now: Pass, families: np.ndarray, total: int) -> None:
        members = np.flatnonzero(families >= 0)
        if not len(members):
            return
        entries, slots, place = _grouped(families[members], members)
        length = rounded(int(self.family_lengths[entries].max()))
        hidden = _mask(self.family_lengths[entries], length)
        chosen = slice(0, total) if len(members) == total else self._tensor(members)
        now.levels.append(self._level(self.stores.families, entries, length, slots, place, chosen, hidden))

    def _prompt_level(self, now: Pass, prompts: list[Prompt], rows: int, total: int) -> None:
        entry = np.array([prompt.entry for prompt in prompts])
        lengths = np.zeros(self.prompt_numbers.used, dtype=np.int64)
        lengths[entry] = [len(prompt.tokens) for prompt in prompts]
        entries, slots, place = _grouped(entry, np.arange(rows))
        length = rounded(int(lengths.max()))
        hidden = _mask(lengths[entries], length)
        now.levels.append(self._level(self.stores.prompts, entries, length, slots, place, slice(0, rows), hidden))

    def _written_levels(self, now: Pass, going: list[tuple[Text, int]], count: np.ndarray, total: int) -> None:
        """One level for every BLOCK written tokens; a row's newest token is written, then read with the others."""
        for block in range((int(count.max()) - 1) // BLOCK + 1):
            if block == len(self.written_numbers):
                self.written_numbers.append(Numbers())
            if block == len(self.stores.written):
                self.stores.written.append(Store())
            store, numbers = self.stores.written[block], self.written_numbers[block]
            members = np.flatnonzero(count > block * BLOCK)
            slots = []
            for row in members.tolist():
                text, place = going[row]
                if len(text.slots[place]) == block:
                    text.slots[place].append(numbers.take())
                slots.append(text.slots[place][block])
            entry = np.array(slots)
            if numbers.used > store.entries:
                store.grow(2 * numbers.used)
            newest = np.flatnonzero(count[members] <= (block + 1) * BLOCK)
            rows = slice(0, len(going)) if len(newest) == len(going) else self._tensor(members[newest])
            offsets = count[members[newest]] - 1 - block * BLOCK
            now.writes.append(Write(store, rows, self._tensor(entry[newest]), self._tensor(offsets)))
            hidden = _mask(np.minimum(count[members] - block * BLOCK, BLOCK), BLOCK)
            chosen = slice(0, len(going)) if len(members) == len(going) else self._tensor(members)
            level = self._level(store, entry, BLOCK, members[:, None], np.arange(len(members)), chosen, hidden)
            now.levels.append(level)

    def _reading_level(self, now: Pass, lengths: list[int], rows: int, total: int) -> None:
        """The tokens of fresh prompts, each of which sees those before it."""
        entries = np.array([prompt.entry for prompt in self.fresh])
        length = rounded(max(lengths))
        if self.prompt_numbers.used > self.stores.prompts.entries or length > self.stores.prompts.length:
            self.stores.prompts.grow(self.prompt_numbers.used * 5 // 4, length)
        offsets = np.concatenate([np.arange(size) for size in lengths])
        entry = np.repeat(np.arange(len(entries)), lengths)
        slots = np.zeros((len(entries), length), dtype=np.int64)
        slots[entry, offsets] = np.arange(rows, total)
        now.writes.append(
            Write(self.stores.prompts, slice(rows, total), self._tensor(entries[entry]), self._tensor(offsets))
        )
        causal = torch.full((length, length), -torch.inf).triu(1).expand(len(entries), -1, -1)
        members = slice(rows, total)
        place = entry * length + offsets
        now.levels.append(self._level(self.stores.prompts, entries, length, slots, place, members, causal))

    def _level(
        self,
        store: Store,
        entries: np.ndarray,
        length: int,
        slots: np.ndarray,
        place: np.ndarray,
        members: slice | Tensor,
        hidden: Tensor,
    ) -> Level:
        """A level over these entries; read where they lie when they are most of the store, else gathered first."""
        span = int(entries.max()) + 1
        if 2 * len(entries) >= span:
            slots, place, hidden = _spaced(entries, span, slots, place, hidden)
            chosen = None
        else:
            chosen = self._tensor(entries)
        return Level(store, chosen, length, self._tensor(slots), self._tensor(place), members, hidden.to(self.device))

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.device, non_blocking=True)

    def numbers(self, texts: Sequence[Text]) -> Tensor:
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


def _spaced(
    entries: np.ndarray, span: int, slots: np.ndarray, place: np.ndarray, hidden: Tensor
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Slots, places and mask of some entries, laid out over the first ``span`` entries of their store."""
    width = slots.shape[1]
    spread = np.zeros((span, width), dtype=np.int64)
    spread[entries] = slots
    shown = hidden.new_zeros(span, *hidden.shape[1:])
    shown[torch.from_numpy(entries)] = hidden
    return spread, entries[place // width] * width + place % width, shown


def _mask(lengths: np.ndarray, length: int) -> Tensor:
    """(E, 1, length) additive mask that shows the first ``lengths`` tokens."""
    seen = torch.arange(length) < torch.from_numpy(lengths)[:, None]
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None]

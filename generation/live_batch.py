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
from generation.shared_attention import FEWEST, Level, Pass, Store, Write, rounded
from generation.writer import Request

WRITTEN = 64  # written tokens that fit beside a prompt, and into each further store
ALL, NOBODY = 0, -1  # owners of a token besides the number of the row that wrote it


@dataclass
class Prompt:
    """A prompt in the stores, and what is written after it, by whichever row, in the order of writing."""

    entries: list[int]  # in the first store, then in the further ones as the written tokens need them
    family: int  # the shared beginning in the store of families; -1: none
    begin: int  # tokens of the shared beginning
    tokens: list[int]  # the rest
    room: int  # tokens that fit into the entry of the first store
    filled: int = 0  # tokens in all its entries, its own included
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
    rows: list[int]  # the number of each of its 1 + K rows, unique in the batch
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
        self.families = Store()
        self.texts = [Store()]  # of prompts and what fits beside them, then of WRITTEN further tokens, and so on


class LiveBatch:
    """Texts in work and the stores their rows read."""

    def __init__(self, stores: Stores, family_lengths: Sequence[int], device: torch.device):
        self.stores, self.family_lengths, self.device = stores, np.array([*family_lengths, 0]), device
        self.texts: list[Text] = []
        self.fresh: list[Prompt] = []  # to be read in the next pass
        self.prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self.numbers = [Numbers()]  # of the entries of each store of texts
        self.owners = [np.full((0, 0), NOBODY)]  # (entries, length) of each store: which row sees the token
        self.last_row = 0

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
        rows = list(range(self.last_row + 1, self.last_row + 1 + len(found)))
        self.last_row += len(found)
        self.texts.append(Text(request, found, rows, [], np.zeros(len(found))))

    def _prompt(self, ids: tuple[int, ...], family: int) -> Prompt:
        prompt = self.prompts.get(ids)
        if prompt is None:
            begin = int(self.family_lengths[family])
            tokens = list(ids[begin:])
            self._grow(0, self.numbers[0].used + 1, len(tokens) + WRITTEN)
            room = self.stores.texts[0].length
            prompt = Prompt([self.numbers[0].take()], family, begin, tokens, room, len(tokens))
            self.owners[0][prompt.entries[0]] = NOBODY
            self.owners[0][prompt.entries[0], : len(tokens)] = ALL
            self.prompts[ids] = prompt
            self.fresh.append(prompt)
        self.prompts.move_to_end(ids)
        return prompt

    def _grow(self, store: int, entries: int, length: int) -> None:
        """Make room in a store of texts and in its owners."""
        if store == len(self.stores.texts):
            self.stores.texts.append(Store())
        kept, owners = self.stores.texts[store], self.owners[store]
        if entries > kept.entries or length > kept.length:
            kept.grow(max(kept.entries, entries * 3 // 2), length)
        if owners.shape != (kept.entries, kept.length):
            self.owners[store] = np.full((kept.entries, kept.length), NOBODY)
            self.owners[store][: owners.shape[0], : owners.shape[1]] = owners

    def end(self, text: Text) -> None:
        """Free the rows of a text that is written."""
        for prompt in text.prompts:
            prompt.readers -= 1

    def forget(self) -> None:
        """Let go of the prompts that nobody has read for longest; a quarter as many as are in use may stay."""
        unused = [ids for ids, prompt in self.prompts.items() if not prompt.readers]
        for ids in unused[: max(0, len(unused) - (len(self.prompts) - len(unused)) // 4)]:
            for numbers, entry in zip(self.numbers, self.prompts.pop(ids).entries, strict=False):
                numbers.give(entry)

    def next_pass(self) -> tuple[Pass, np.ndarray, np.ndarray, np.ndarray]:
        """The next forward pass: what it writes and reads, token ids and positions of its rows, rows with logits.

        The rows of texts that have tokens come first, in order; then the tokens of the fresh prompts.
        """
        going = [
            (prompt, row, text.tokens[-1], len(text.tokens))
            for text in self.texts
            if text.tokens
            for prompt, row in zip(text.prompts, text.rows, strict=True)
        ]
        rows, lengths = len(going), [len(prompt.tokens) for prompt in self.fresh]
        ids = [token for _, _, token, _ in going] + [token for prompt in self.fresh for token in prompt.tokens]
        positions = [prompt.end + count - 1 for prompt, _, _, count in going]
        positions += [position for prompt in self.fresh for position in range(prompt.begin, prompt.end)]
        families = [prompt.family for prompt, _, _, _ in going]
        families += [prompt.family for prompt in self.fresh for _ in prompt.tokens]
        now = Pass()
        self._family_level(now, np.array(families, dtype=np.int64))
        if going:
            self._append(now, [prompt for prompt, _, _, _ in going], np.array([row for _, row, _, _ in going]))
        if self.fresh:
            self._reading_level(now, lengths, rows, len(ids))
        wanted = [*range(rows), *(rows + np.cumsum(lengths, dtype=np.int64) - 1).tolist()]
        return now, np.array(ids), np.array(positions), np.array(wanted)

    def _family_level(self, now: Pass, families: np.ndarray) -> None:
        members = np.flatnonzero(families >= 0)
        if not len(members):
            return
        entries, slots, place = _grouped(families[members], members)
        length = rounded(int(self.family_lengths[entries].max()))
        seen = torch.arange(length) < torch.from_numpy(self.family_lengths[entries])[:, None, None]
        chosen = slice(0, len(families)) if len(members) == len(families) else self._tensor(members)
        now.levels.append(self._level(self.stores.families, entries, length, slots, place, chosen, seen))

    def _append(self, now: Pass, prompts: list[Prompt], rows: np.ndarray) -> None:
        """The newest token of every row goes after what is there; then rows read the entries of their prompts."""
        where = [[] for _ in self.numbers] + [[]]  # of each store: (row in the pass, entry, offset)
        for number, prompt in enumerate(prompts):
            beyond = prompt.filled - prompt.room
            store, offset = (0, prompt.filled) if beyond < 0 else (1 + beyond // WRITTEN, beyond % WRITTEN)
            if store == len(prompt.entries):
                self._open(store, prompt)
                where += [[] for _ in range(store + 1 - len(where))]
            where[store].append((number, prompt.entries[store], offset))
            prompt.filled += 1
        for store, written in enumerate(where):
            if written:
                number, entries, offsets = np.array(written).T
                self.owners[store][entries, offsets] = rows[number]
                chosen = slice(0, len(rows)) if len(number) == len(rows) else self._tensor(number)
                target = self.stores.texts[store]
                now.writes.append(Write(target, chosen, self._tensor(entries), self._tensor(offsets)))
        for store in range(max(len(prompt.entries) for prompt in prompts)):
            self._text_level(now, store, prompts, rows)

    def _open(self, store: int, prompt: Prompt) -> None:
        """An entry in a further store."""
        if store == len(self.numbers):
            self.numbers.append(Numbers())
            self.owners.append(np.full((0, 0), NOBODY))
        self._grow(store, self.numbers[store].used + 1, WRITTEN)
        entry = self.numbers[store].take()
        self.owners[store][entry] = NOBODY
        prompt.entries.append(entry)

    def _text_level(self, now: Pass, store: int, prompts: list[Prompt], rows: np.ndarray) -> None:
        members = np.array([number for number, prompt in enumerate(prompts) if len(prompt.entries) > store])
        entry = np.array([prompts[number].entries[store] for number in members.tolist()])
        entries, slots, place = _grouped(entry, members)
        owners = self.owners[store][entries]
        length = rounded(int(np.flatnonzero((owners != NOBODY).any(axis=0)).max()) + 1)
        readers = torch.from_numpy(rows[slots])[:, :, None]
        owner = torch.from_numpy(owners[:, None, :length])
        chosen = slice(0, len(prompts)) if len(members) == len(prompts) else self._tensor(members)
        seen = (owner == ALL) | (owner == readers)
        now.levels.append(self._level(self.stores.texts[store], entries, length, slots, place, chosen, seen))

    def _reading_level(self, now: Pass, lengths: list[int], rows: int, total: int) -> None:
        """The tokens of fresh prompts, each of which sees those before it."""
        entries = np.array([prompt.entries[0] for prompt in self.fresh])
        length = rounded(max(lengths))
        offsets = np.concatenate([np.arange(size) for size in lengths])
        entry = np.repeat(np.arange(len(entries)), lengths)
        slots = np.zeros((len(entries), length), dtype=np.int64)
        slots[entry, offsets] = np.arange(rows, total)
        store, members = self.stores.texts[0], slice(rows, total)
        now.writes.append(Write(store, members, self._tensor(entries[entry]), self._tensor(offsets)))
        seen = torch.ones(length, length, dtype=torch.bool).tril().expand(len(entries), -1, -1)
        now.levels.append(self._level(store, entries, length, slots, entry * length + offsets, members, seen))

    def _level(
        self,
        store: Store,
        entries: np.ndarray,
        length: int,
        slots: np.ndarray,
        place: np.ndarray,
        members: slice | Tensor,
        seen: Tensor,
    ) -> Level:
        """A level over these entries; read where they lie when they are most of the store, else gathered first."""
        span = int(entries.max()) + 1
        chosen = None
        if len(entries) == span:
            pass
        elif 2 * len(entries) >= span:
            slots, place, seen = _spaced(entries, span, slots, place, seen)
        else:
            chosen = self._tensor(entries)
        hidden = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf).to(self.device)
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


def _spaced(
    entries: np.ndarray, span: int, slots: np.ndarray, place: np.ndarray, seen: Tensor
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Slots, places and mask of some entries, laid out over the first ``span`` entries of their store."""
    width = slots.shape[1]
    spread = np.zeros((span, width), dtype=np.int64)
    spread[entries] = slots
    shown = seen.new_zeros(span, *seen.shape[1:])
    shown[torch.from_numpy(entries)] = seen
    return spread, entries[place // width] * width + place % width, shown

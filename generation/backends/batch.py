"""The batches of the engine: ``LiveBatch`` for shared attention, ``PlainBatch`` for the plain loop.

A request is one sequence of *rows*, one for each of its prompts; all get the same token.

``LiveBatch`` does continuous batching with a paged KV cache, and makes the inputs of the next
forward pass. Each distinct prompt is prefilled once, in one pass with the newest tokens of other
sequences. It stays in the cache while a sequence needs it, and a while longer, since another
attempt may use it. Generated tokens are in pages of each row, which are free as soon as the
sequence ends.

``PlainBatch`` reads rows with the model's own layers and cache. Attention masks padding. A layer
with a recurrent state (Gated DeltaNet, Mamba, a convolution) reads padding as if it were text. Even
where the model masks padding, the last bits of the state depend on it. So such a model reads
prompts of one length together, without padding, and their caches are then joined: keys and values
are padded on the left, states are stacked. From there on every row adds one token a step.
"""

import heapq
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.backends.shared_attention import (
    KVCache,
    Level,
    Pass,
    Write,
    round_length,
)

# These three sizes are part of the results: the order of sums, and so the last bits, depend on them
KV_PAGE = 16  # generated tokens of a row in one page, which are read together
PROMPT_SLOTS = 8  # rows that read a prompt in one matrix product, empty slots included
PREFIX_SLOTS = 16  # least rows of a shared prefix; for more rows the order of sums is the same


@dataclass
class Prompt:
    """A prompt and its entry in the KV cache of prompts."""

    entry: int
    prefix: int  # its entry in the cache of shared prefixes; -1: none
    prefix_length: int  # tokens of the shared prefix
    tokens: list[int]  # the tokens after the shared prefix
    is_common: bool = False  # a plain prompt: all its rows read it in one matrix product
    readers: int = 0  # rows of running sequences that read it
    # (H,) hidden state or (V,) logits of its last token; set by the pass that prefills it
    output: Tensor = field(init=False)


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
    # (W,) log-probability of all tokens, in nats, under each of ``request.reported_prompts``
    log_probs: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.log_probs = np.zeros(len(self.request.reported_prompts))

    def measure_progress(self, max_new_tokens: int) -> float:
        """Return the computed fraction, 0 to 1, of the tokens of the sequence's first row.

        A prompt's tokens are divided among the rows that read it. Before the first generated token
        the fraction is 0.
        """
        if not self.tokens:
            return 0.0
        prompt = self.rows[0].prompt
        prompt_share = len(prompt.tokens) / max(1, prompt.readers)
        return (prompt_share + len(self.tokens)) / (prompt_share + max_new_tokens)


class EntryAllocator:
    """Allocates the entries of a KV cache, the smallest free number first.

    ``used``: one more than the largest number ever allocated, the entries that a cache needs.
    """

    def __init__(self) -> None:
        self.free: list[int] = []
        self.used = 0

    def allocate(self) -> int:
        """Return a free number; it is no longer free."""
        if self.free:
            return heapq.heappop(self.free)
        self.used += 1
        return self.used - 1

    def release(self, number: int) -> None:
        """Free a number."""
        heapq.heappush(self.free, number)


class KVCaches:
    """The KV caches of a batch. The next batch reuses them, since it costs time to make new ones.

    ``pages[i]`` holds the i-th ``KV_PAGE`` generated tokens of every row.
    """

    def __init__(self) -> None:
        self.shared_prefixes = KVCache()
        self.prompts = KVCache()
        self.pages: list[KVCache] = []


class SlotTable(NamedTuple):
    """Which rows read E entries of a cache, each entry in n slots (see ``Level``)."""

    entries: np.ndarray  # (E,) in rising order
    slots: np.ndarray  # (E, n) the row in each slot
    member_slots: np.ndarray  # (L,) the slot of each reading row, as an index in flattened slots
    visible: np.ndarray  # (E, 1 or n, length) whether a slot sees a token


class LiveBatch:
    """The running sequences and the KV caches that their rows read."""

    def __init__(self, caches: KVCaches, prefix_lengths: Sequence[int], device: torch.device):
        """Make an empty batch.

        Args:
            caches: the caches, which the batch grows; its shared prefixes are there already.
            prefix_lengths: tokens of each shared prefix, by its entry in the cache.
            device: the model's device.
        """
        self.caches = caches
        self.prefix_lengths = np.array([*prefix_lengths, 0])  # index -1, no prefix, gives 0
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

    def add(self, request: Request, prompts: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Add a sequence that the next pass starts.

        ``prompts``: for each of ``request.prompts`` its token ids, and the index of its shared
        prefix; -1: none.
        """
        rows = [Row(self._reserve_prompt(ids, prefix)) for ids, prefix in prompts]
        for row in rows:
            row.prompt.readers += 1
        if request.plain_prompt is not None:
            rows[request.plain_row].prompt.is_common = True
        self.sequences.append(LiveSequence(request, rows))

    def _reserve_prompt(self, ids: tuple[int, ...], prefix: int) -> Prompt:
        """Return the prompt with these token ids, and mark it as used last.

        A prompt that is not in the cache gets an entry there and is prefilled in the next pass.
        ``prefix``: index of its shared prefix; -1: none.
        """
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
        """Release the prompts and pages of a sequence's rows; the caller drops the sequence."""
        for row in sequence.rows:
            row.prompt.readers -= 1
            # a short text has fewer pages than the longest one, so fewer than there are allocators
            for allocator, entry in zip(self.page_entries, row.pages, strict=False):
                allocator.release(entry)

    def drop_unused_prompts(self) -> None:
        """Free the prompts that no row reads, those requested longest ago first.

        For later sequences some may stay: at most a quarter of the number of prompts in use.
        """
        # self.prompts is in the order of the last request
        unused = [ids for ids, prompt in self.prompts.items() if not prompt.readers]
        spare = (len(self.prompts) - len(unused)) // 4
        for ids in unused[: max(0, len(unused) - spare)]:
            self.prompt_entries.release(self.prompts.pop(ids).entry)

    def make_next_pass(self) -> Pass:
        """Return the next forward pass.

        Its rows are the newest token of every decoding row, in order, then the tokens of the
        prompts to prefill. It outputs the decoding rows and the last token of each of these
        prompts. Pages for the newest tokens are reserved.
        """
        # Collect the newest token of every row that decodes
        rows: list[Row] = []
        offsets: list[int] = []  # of the token in the generated text, from 0
        inputs: list[tuple[int, int, int]] = []  # token id, position, prefix
        for sequence in self.sequences:
            if not sequence.tokens:
                continue
            newest = sequence.tokens[-1]
            offset = len(sequence.tokens) - 1
            rows += sequence.rows
            offsets += [offset] * len(sequence.rows)
            for row in sequence.rows:
                position = row.prompt.prefix_length + len(row.prompt.tokens) + offset
                inputs.append((newest, position, row.prompt.prefix))

        # Append the tokens of the prompts to prefill
        output_rows = list(range(len(rows)))
        for prompt in self.prefill:
            inputs += [
                (token, position, prompt.prefix)
                for position, token in enumerate(prompt.tokens, prompt.prefix_length)
            ]
            output_rows.append(len(inputs) - 1)

        # Add what these rows write to the caches, and what they read from them
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
        """Let the rows of a pass read their shared prefixes.

        ``prefixes``: (M,) the index of each row's shared prefix; -1: none.
        """
        members = np.flatnonzero(prefixes >= 0)
        if len(members):
            cache = self.caches.shared_prefixes
            table = _make_slot_table(prefixes, members, self.prefix_lengths, PREFIX_SLOTS)
            index = self._make_index(members, len(prefixes))
            next_pass.levels.append(self._make_level(cache, table, index))

    def _add_prompt_levels(self, next_pass: Pass, rows: list[Row]) -> None:
        """Let the rows that decode read their prompts.

        The first PROMPT_SLOTS rows of every prompt are one level, their next PROMPT_SLOTS rows
        another one, and so on. All rows of common prompts together are one more level.
        """
        entries = np.array([row.prompt.entry for row in rows])
        lengths = np.zeros(self.prompt_entries.used, dtype=np.int64)
        lengths[entries] = [len(row.prompt.tokens) for row in rows]
        levels = _rank_in_groups(entries) // PROMPT_SLOTS  # number of each row's level
        levels[[row.prompt.is_common for row in rows]] = -1
        for level in np.unique(levels).tolist():
            members = np.flatnonzero(levels == level)
            width = PROMPT_SLOTS if level >= 0 else PREFIX_SLOTS
            table = _make_slot_table(entries, members, lengths, width)
            index = self._make_index(members, len(rows))
            next_pass.levels.append(self._make_level(self.caches.prompts, table, index))

    def _add_page_levels(self, next_pass: Pass, rows: list[Row], offsets: np.ndarray) -> None:
        """Write each row's newest token to its last page, and let the rows read their pages.

        The i-th pages of all rows are one level. ``offsets``: (rows,) position of the newest token
        in the generated text.
        """
        self._reserve_pages(rows, offsets)
        for page in range(int(offsets.max()) // KV_PAGE + 1):
            cache = self.caches.pages[page]
            members = np.flatnonzero(offsets >= page * KV_PAGE)
            entries = np.array([rows[row].pages[page] for row in members.tolist()])
            page_offsets = offsets[members] - page * KV_PAGE

            # Write the newest token of the rows whose last page this is
            is_last = page_offsets < KV_PAGE
            next_pass.writes.append(
                Write(
                    cache,
                    self._make_index(members[is_last], len(rows)),
                    self._to_tensor(entries[is_last]),
                    self._to_tensor(page_offsets[is_last]),
                )
            )

            # Each entry has one slot, for its row
            order = np.argsort(entries)
            visible = np.arange(KV_PAGE) <= page_offsets[order][:, None, None]
            slots = members[order][:, None]
            table = SlotTable(entries[order], slots, np.argsort(order), visible)
            index = self._make_index(members, len(rows))
            next_pass.levels.append(self._make_level(cache, table, index))

    def _reserve_pages(self, rows: list[Row], offsets: np.ndarray) -> None:
        """Allocate the pages that the rows lack for their newest tokens, and room in the caches.

        ``offsets``: (rows,) position of the newest token in the generated text.
        """
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            for page in range(len(row.pages), offset // KV_PAGE + 1):
                if page == len(self.page_entries):
                    self.page_entries.append(EntryAllocator())
                if page == len(self.caches.pages):
                    self.caches.pages.append(KVCache(0, KV_PAGE))
                row.pages.append(self.page_entries[page].allocate())
                self.caches.pages[page].reserve(self.page_entries[page].used, KV_PAGE)

    def _add_prefill_level(self, next_pass: Pass, first: int) -> None:
        """Write the tokens of the prompts to prefill; each sees itself and those before it.

        ``first``: index of the row of the first token of these prompts.
        """
        entries = np.array([prompt.entry for prompt in self.prefill])
        lengths = [len(prompt.tokens) for prompt in self.prefill]
        length = round_length(max(lengths))
        members = slice(first, first + sum(lengths))

        # Entry i has ``length`` slots, of which the tokens of prompt i take the first ones
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
        """Return a ``Level``: what some rows of the next pass read in one cache.

        Args:
            cache: the cache.
            table: the entries that are read, at least one, and the rows that read them.
            members: these rows, L of them, as an index of the rows of the pass.
            gather: read a copy of these entries alone, even where most entries are read.
        """
        # Copy the entries if they are few; else read all up to the last one, which needs no copy
        entries = None
        if gather or 2 * len(table.entries) <= int(table.entries[-1]):
            entries = self._to_tensor(table.entries)
        else:
            table = _spread_slots(table)

        # Move the table to the device, with an additive mask
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
        """Return an index that selects the rows ``members`` of a tensor.

        It is a slice if these are all rows below ``rows``: indexing with a slice copies nothing.
        ``members``: (L,) distinct row indices below ``rows``, in rising order.
        """
        return slice(0, rows) if len(members) == rows else self._to_tensor(members)

    def _to_tensor(self, values: np.ndarray) -> Tensor:
        contiguous = np.ascontiguousarray(values, dtype=np.int64)
        return torch.from_numpy(contiguous).to(self.device, non_blocking=True)


def _rank_in_groups(groups: np.ndarray) -> np.ndarray:
    """Return (L,): for each element of ``groups`` the number of equal elements before it."""
    _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    first_of_group = np.repeat(np.cumsum(sizes) - sizes, sizes)
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[np.argsort(numbers, kind="stable")] = np.arange(len(groups)) - first_of_group
    return ranks


def _spread_slots(table: SlotTable) -> SlotTable:
    """Return the table with all entries up to its last one; no row reads the added entries."""
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
    """Return the table of rows that each read one entry of a cache.

    Args:
        groups: (M,) the entry of each row of the pass.
        members: (L,) the rows that read.
        lengths: (entries,) tokens of every entry of the cache.
        least_slots: least slots of an entry; more if more rows read it.
    """
    entries, numbers = np.unique(groups[members], return_inverse=True)
    ranks = _rank_in_groups(groups[members])
    width = max(least_slots, int(ranks.max()) + 1)
    slots = np.zeros((len(entries), width), dtype=np.int64)
    slots[numbers, ranks] = members
    length = round_length(int(lengths[entries].max()))
    visible = np.arange(length) < lengths[entries][:, None, None]
    return SlotTable(entries, slots, numbers * width + ranks, visible)


# attributes of a layer of transformers' cache: dictionaries of state tensors (rows, ...)
STATES = ("conv_states", "recurrent_states")


class PlainBatch:
    """Rows of prompts and the tokens after them, each with its keys, values and states.

    Attributes:
        logits: (R, V) after the last token of every row.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]):
        """Read the prompts (token ids); row i is prompt i."""
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        self._cache_argument = find_cache_argument(model)

        # Read the prompts, group by group
        groups = _group_prompts(model, prompts)
        caches: list[DynamicCache] = []
        masks: list[Tensor] = []
        logits: list[Tensor] = []
        for numbers in groups:
            ids, mask = _pad_left([torch.as_tensor(prompts[number]) for number in numbers])
            caches.append(DynamicCache(config=model.config))
            masks.append(mask.to(self._device))
            logits.append(self._compute_logits(ids, masks[-1], caches[-1]))

        # Join the groups, and put the rows in order
        self._cache = _join_caches(caches)
        self._mask = torch.cat(_pad_to_longest(masks, dim=1))
        self.logits = torch.cat(logits)
        if len(groups) > 1:
            order = torch.tensor([number for numbers in groups for number in numbers])
            rows = order.argsort()
            self._select_rows(rows)
            self.logits = self.logits[rows.to(self._device)]

    def read_tokens(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Make ``rows`` the rows of the batch, read one token in each, and set ``logits``.

        Args:
            rows: indices of present rows. A row may be named several times, as for several texts
                of one prompt.
            tokens: the token id for each of ``rows``.
        """
        self._select_rows(torch.tensor(rows))
        self._mask = pad(self._mask, (0, 1), value=1)
        ids = torch.tensor(tokens)[:, None]
        self.logits = self._compute_logits(ids, self._mask, self._cache)

    def count_state_bytes(self) -> int:
        """Return the bytes of a row's recurrent states."""
        total = 0
        for layer in self._cache.layers:
            for name in STATES:
                for state in getattr(layer, name, {}).values():
                    if state is not None:
                        total += state[0].numel() * state.element_size()
        return total

    def _select_rows(self, rows: Tensor) -> None:
        """Keep these rows of the cache and the mask, in this order; ``logits`` are unchanged.

        ``rows``: (R,) indices of present rows, which may repeat.
        """
        rows = rows.to(self._device)
        cache: Any = self._cache
        cache.reorder_cache(rows)
        self._mask = self._mask[rows]

    def _compute_logits(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Read ``ids`` (R, n) into the cache; return the logits (R, V) after each row's last token.

        ``mask`` (R, all tokens so far) has zeros where rows are padded on the left.
        """
        # GPT-2 does not derive the positions of left-padded rows from the mask
        positions_so_far = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        positions = positions_so_far[:, -ids.shape[1] :]
        # without keys (Mamba) no mask: it would multiply the newest token by the first one's mask
        has_keys = any(hasattr(layer, "keys") for layer in cache.layers)
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=mask if has_keys else None,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        return output.logits[:, -1]


def has_states(model: Any) -> bool:
    """Return whether a layer of the model carries a state from token to token."""
    layers = DynamicCache(config=model.config).layers
    return any(hasattr(layer, name) for layer in layers for name in STATES)


def _group_prompts(model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of prompts that are read together: for each group the indices of its prompts.

    A model with states gets a group for each length, the longest last; any other model gets one
    group. ``prompts``: the token ids of each prompt.
    """
    if not has_states(model):
        return [list(range(len(prompts)))]
    groups = defaultdict[int, list[int]](list)
    for number, prompt in enumerate(prompts):
        groups[len(prompt)].append(number)
    return [groups[length] for length in sorted(groups)]


def find_cache_argument(model: Any) -> str:
    """Return the name of the model's argument for the cache.

    Mamba's name differs from the usual one, which Mamba ignores without an error.
    """
    arguments = inspect.signature(model.forward).parameters
    return "cache_params" if "cache_params" in arguments else "past_key_values"


def _pad_left(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the ids of rows (R, n), padded on the left, and their mask (R, n): 0 is padding.

    ``rows``: for each row its token ids (length of the row,).
    """
    ids = pad_sequence(rows, batch_first=True, padding_side="left")
    ones = [torch.ones_like(row) for row in rows]
    return ids, pad_sequence(ones, batch_first=True, padding_side="left")


def _join_caches(caches: list[DynamicCache]) -> DynamicCache:
    """Join the rows of all caches into the last one, which has the longest rows, and return it."""
    joined = caches[-1]
    if len(caches) == 1:
        return joined
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        target: Any = layers[-1]
        for name in ("keys", "values"):
            if getattr(target, name, None) is not None:
                tensors = [getattr(layer, name) for layer in layers]
                setattr(target, name, torch.cat(_pad_to_longest(tensors, dim=-2)))
        for name in STATES:
            target_states = getattr(target, name, {})
            for number, state in target_states.items():
                if state is not None:
                    tensors = [getattr(layer, name)[number] for layer in layers]
                    target_states[number] = torch.cat(tensors)
    return joined


def _pad_to_longest(tensors: list[Tensor], dim: int) -> list[Tensor]:
    """Return the tensors with zeros in front along ``dim``, so that all have one length."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    padded = []
    for tensor in tensors:
        # ``pad`` takes (before, after) of each dimension, the last dimension first
        zeros = [0, 0] * (tensor.dim() - 1 - dim % tensor.dim())
        padded.append(pad(tensor, (*zeros, longest - tensor.shape[dim], 0)))
    return padded

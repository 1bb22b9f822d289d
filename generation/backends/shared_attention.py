"""Attention over keys and values that many rows share: these are computed and stored once.

A *row* is one token of a forward pass: the newest token of a text, or one token of a prompt in its
prefill. A row sees several *levels*: the prefix that its prompt shares with others, the rest of its
prompt, and its text in pages. All rows of a level read it in one matrix product. The softmax over
all levels follows from each level's maximum and sums:

    m = max over levels of max(s)
    out = sum over levels of exp(s - m)·V / sum over levels of exp(s - m)·1

The ones are a column beside the values, so the denominator is summed as the values are. Tokens that
a row does not see add zeros. So a row's bits do not depend on the other rows, as long as the matrix
products do the same for every shape: MKL and oneDNN do from 16 rows on and for lengths that are
multiples of ``KV_ALIGN`` (docs/engine.md, tested).
"""

import math
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

SHARED_ATTENTION = "sts_dino_shared"  # its name in transformers
KV_ALIGN = 16  # lengths of KV caches and levels, in tokens, are multiples of it
ROW_ALIGN = 32  # the number of rows of a pass is a multiple of it
LOG2_E = math.log2(math.e)
# torch's attention for CPUs in one kernel; None: torch has none
FUSED: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
FUSED_TYPES = (torch.bfloat16, torch.float16) if FUSED else ()
# keyword arguments of transformers' attention that do not change this attention
HARMLESS = {
    "dropout",
    "sliding_window",
    "position_ids",
    "is_causal",
    "use_cache",
    "cache_position",
    "output_attentions",
}


def round_length(length: int) -> int:
    """Return ``length`` rounded up to a multiple of KV_ALIGN, at least one."""
    return max(KV_ALIGN, -(-length // KV_ALIGN) * KV_ALIGN)


class KVCache:
    """Keys and values of every layer: entries of up to ``length`` tokens, grown on demand.

    A layer's keys are (entries, key heads, length, size), its values (entries, key heads, length,
    size + KV_ALIGN): a one follows each value vector, then zeros. The tensors of a layer are
    created at its first write, on the device of the keys.
    """

    def __init__(self, entries: int = 0, length: int = KV_ALIGN):
        self.entries = entries
        self.length = length
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def grow(self, entries: int, length: int = 0) -> None:
        """Make room for at least this many entries and tokens of an entry; the content stays.

        A cache that is larger already is unchanged.
        """
        entries = max(entries, self.entries)
        length = max(round_length(length), self.length)
        if (entries, length) == (self.entries, self.length):
            return
        self.entries = entries
        self.length = length
        for layers in (self.keys, self.values):
            for layer, old in layers.items():
                layers[layer] = old.new_zeros(entries, old.shape[1], length, old.shape[3])
                layers[layer][: old.shape[0], :, : old.shape[2]] = old
        for values in self.values.values():
            values[..., -KV_ALIGN] = 1

    def reserve(self, entries: int, length: int) -> None:
        """Make room for this many entries, and tokens of an entry.

        Every growth copies the cache, so it should be rare: a growing cache gets room for an eighth
        and ``KV_ALIGN`` more entries than it needs.
        """
        if entries > self.entries or length > self.length:
            self.grow(max(self.entries, entries * 9 // 8 + KV_ALIGN), length)

    def write(
        self, layer: int, entries: Tensor, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Write the keys and values of N tokens to a layer.

        Args:
            layer: index of the layer.
            entries: (N,) the entry of each token.
            positions: (N,) its position there.
            keys, values: (N, key heads, size).
        """
        size = values.shape[2]
        if layer not in self.keys:
            shape = (self.entries, keys.shape[1], self.length)
            self.keys[layer] = keys.new_zeros(*shape, keys.shape[2])
            self.values[layer] = values.new_zeros(*shape, size + KV_ALIGN)
            self.values[layer][..., -KV_ALIGN] = 1
        self.keys[layer][entries, :, positions] = keys
        self.values[layer][entries, :, positions, :size] = values


@dataclass
class Level:
    """What L rows of a pass read in one cache.

    Each of E entries is read by n slots. A slot holds a row, or is empty.
    """

    cache: KVCache
    entries: Tensor | None  # (E,) indices of the entries that are read; None: the first E
    length: int  # tokens of an entry that are read, a multiple of KV_ALIGN
    slots: Tensor  # (E, n) the row in each slot; any row if the slot is empty
    member_slots: Tensor  # (L,) the slot of each reading row, as an index in flattened slots
    members: slice | Tensor  # the L rows that read this level
    # (E, 1 or n, length) additive mask: 0 where a slot sees the token, -inf elsewhere
    attn_bias: Tensor

    def read_keys(self, layer: int) -> Tensor:
        """Return the keys of a layer (E, key heads, length, size)."""
        return self._read(self.cache.keys[layer])

    def read_values(self, layer: int) -> Tensor:
        """Return the values of a layer (E, key heads, length, size + KV_ALIGN), with their ones."""
        return self._read(self.cache.values[layer])

    def _read(self, tensor: Tensor) -> Tensor:
        entries = slice(len(self.slots)) if self.entries is None else self.entries
        return tensor[entries, :, : self.length]

    def make_bias(self, queries: int) -> Tensor:
        """Return the additive mask (E, 1, 1 or queries, length).

        ``queries``: n · G, the queries of a key head of one entry.
        """
        bias = self.attn_bias
        if bias.shape[1] > 1:
            bias = bias.repeat_interleave(queries // bias.shape[1], dim=1)
        return bias[:, None]


@dataclass
class Write:
    """Where the keys and values of N rows of a pass are stored."""

    cache: KVCache
    rows: slice | Tensor  # the N rows
    entries: Tensor  # (N,) the entry of each row's token
    positions: Tensor  # (N,) the token's position in the entry


@dataclass
class Pass:
    """One forward pass over M rows: its inputs, the rows of its outputs, its writes and reads."""

    ids: np.ndarray  # (M,) token ids
    positions: np.ndarray  # (M,) the position of each token in its text, prompt included
    output_rows: np.ndarray  # (R,) indices of the rows whose outputs ``run_pass`` returns
    writes: list[Write] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)


CURRENT_PASS: ContextVar[Pass] = ContextVar("the pass that the model is computing")


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer in the current pass.

    This is a function of transformers' ``AttentionInterface``. It writes ``key`` and ``value`` to
    the caches of the pass (``Pass.writes``), and then reads the levels of the pass.

    Args:
        module: the attention layer; ``layer_idx`` is its index.
        query: (1, heads, rows, size).
        key: (1, key heads, rows, size).
        value: (1, key heads, rows, size).
        attention_mask: must be None.
        scaling: factor of the scores; None: 1 / sqrt(size).
        options: other settings of the model's attention.

    Returns:
        (1, rows, heads, size), and None for the attention weights.

    Raises:
        NotImplementedError: the model uses a mask or an option that is not supported (soft caps,
            sinks, biases).
    """
    used_options = {
        name for name, option in options.items() if option is not None and option is not False
    }
    unknown = used_options - HARMLESS
    if unknown or attention_mask is not None:
        raise NotImplementedError(f"attention with {sorted(unknown) or 'a mask'}")

    # Store the keys and values of this pass
    current_pass = CURRENT_PASS.get()
    layer = module.layer_idx
    keys = key[0].transpose(0, 1)
    values = value[0].transpose(0, 1)
    for write in current_pass.writes:
        write.cache.write(
            layer, write.entries, write.positions, keys[write.rows], values[write.rows]
        )

    # Read what the rows of the pass see
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    queries = query[0].transpose(0, 1)
    if query.device.type == "cpu" and query.dtype in FUSED_TYPES:
        output = read_fused(queries, current_pass.levels, layer, scaling)
    else:
        # scores are computed in float32: bfloat16 rounds a score of some hundreds by more than 1
        wide = torch.promote_types(query.dtype, torch.float32)
        queries = queries.to(wide) * (scaling * LOG2_E)
        output = read_levels(queries, current_pass.levels, layer)
    return output[None].to(query.dtype), None


def read_fused(queries: Tensor, levels: list[Level], layer: int, scaling: float) -> Tensor:
    """Compute what ``read_levels`` computes with torch's fused attention for CPUs, in float32.

    This is faster, because scores stay in the processor's cache. The last bits may depend on the
    number of rows, so models in float32 do not use it.

    Args:
        queries: (M, heads, size), not scaled, in a type of ``FUSED_TYPES``.
        levels: the levels of the pass.
        layer: index of the layer.
        scaling: factor of the scores.

    Returns:
        (M, heads, size), float32.
    """
    rows, heads, size = queries.shape
    output = queries.new_zeros(rows, heads, size, dtype=torch.float32)
    log_sums = queries.new_full((rows, heads), -torch.inf, dtype=torch.float32)
    for level in levels:
        # Compute the level's softmax-weighted values, and the logarithm of its sum of exponentials
        keys = level.read_keys(layer)
        values = level.read_values(layer)[..., :-KV_ALIGN]
        slot_queries = _gather_slots(queries, level, keys.shape[1])
        bias = level.make_bias(slot_queries.shape[2])
        results = FUSED(slot_queries, keys, values, attn_mask=bias, scale=scaling)
        level_output, level_log_sums = (_gather_rows(result, level) for result in results)

        # Merge it with the levels before it, each weighted by its share of the sum
        members = level.members
        merged = torch.logaddexp(log_sums[members], level_log_sums)
        weight = (log_sums[members] - merged).exp_()[..., None]
        level_weight = (level_log_sums - merged).exp_()[..., None]
        output[members] = output[members] * weight + level_output * level_weight
        log_sums[members] = merged
    return output


def read_levels(queries: Tensor, levels: list[Level], layer: int) -> Tensor:
    """Return the values of all levels of a row, weighted by the softmax over their scores.

    Args:
        queries: (M, heads, size), float32 or wider, scaled so that scores are logarithms to base 2:
            on a CPU torch's ``exp`` is ten times slower for -∞, ``exp2`` is not.
        levels: the levels of the pass.
        layer: index of the layer.

    Returns:
        (M, heads, value size), float32.
    """
    # Score every token that a row may see, and find each row's largest score
    rows, heads, _ = queries.shape
    peaks = queries.new_full((rows, heads), -torch.inf, dtype=torch.float32)
    scores = []
    for level in levels:
        keys = level.read_keys(layer)
        slot_queries = _gather_slots(queries, level, keys.shape[1])
        score = (slot_queries @ keys.to(queries.dtype).transpose(-1, -2)).float()
        score += level.make_bias(score.shape[2])
        scores.append(score)
        level_peaks = _gather_rows(score.amax(dim=-1), level)
        peaks[level.members] = torch.maximum(peaks[level.members], level_peaks)

    # Sum the weighted values, and the weights in the column of ones
    output: Tensor | None = None
    for level, score in zip(levels, scores, strict=True):
        values = level.read_values(layer)
        weights = score.sub_(_gather_slots(peaks, level, values.shape[1])).exp2_()
        level_output = _gather_rows((weights.to(values.dtype) @ values).float(), level)
        if output is None:
            output = level_output.new_zeros(rows, heads, level_output.shape[-1])
        output[level.members] += level_output
    assert output is not None

    # Padding rows of the pass have a sum of 0. 0 / 0 would be NaN, which kernels of half precision
    # spread to neighbouring rows.
    sums = output[..., -KV_ALIGN, None].clamp(min=torch.finfo(output.dtype).tiny)
    return output[..., :-KV_ALIGN] / sums


def _gather_slots(rows: Tensor, level: Level, key_heads: int) -> Tensor:
    """Return a tensor by row, (M, heads[, size]), as one by slot, (E, key heads, n·G, size).

    G is the number of heads of a key head. Without ``size``, that of the result is 1.
    """
    entries, slots = level.slots.shape
    group = rows.shape[1] // key_heads
    gathered = rows[level.slots.flatten()].view(entries, slots, key_heads, group, -1)
    return gathered.transpose(1, 2).flatten(2, 3)


def _gather_rows(slots: Tensor, level: Level) -> Tensor:
    """Return a tensor by slot, (E, key heads, n·G[, size]), by member: (L, heads[, size])."""
    count = level.slots.shape[1]
    by_slot = slots.unflatten(2, (count, -1)).transpose(1, 2)  # (E, n, key heads, G[, size])
    return by_slot.flatten(2, 3).flatten(0, 1)[level.member_slots]


def make_causal_mask(start: int, rows: int, length: int) -> Tensor:
    """Return an additive mask (1, rows, length) in which row i sees the tokens 0 to start + i."""
    return torch.full((rows, length), -torch.inf).triu(start + 1)[None]


def run_pass(model: Any, current_pass: Pass) -> Tensor:
    """Run a pass: write its caches, and return the outputs of its ``output_rows``.

    These are logits (output rows, V), or hidden states (output rows, H) of a model without its
    output layer (``output_layer.take_output_layer``). The model must use ``attend``. Padding rows
    fill the pass up to a multiple of ``ROW_ALIGN``, because torch prepares its kernels again for
    every new number of rows.
    """
    device = model.get_input_embeddings().weight.device
    token = CURRENT_PASS.set(current_pass)
    try:
        output = model(
            input_ids=_pad_rows(current_pass.ids)[None].to(device),
            position_ids=_pad_rows(current_pass.positions)[None].to(device),
            use_cache=False,
            logits_to_keep=_pad_rows(current_pass.output_rows).to(device),
        )
    finally:
        CURRENT_PASS.reset(token)
    return output.logits[0, : len(current_pass.output_rows)]


def _pad_rows(numbers: np.ndarray) -> Tensor:
    """Return the numbers as a tensor, filled with zeros to the next multiple of ROW_ALIGN."""
    return torch.from_numpy(np.pad(numbers, (0, -len(numbers) % ROW_ALIGN)))


AttentionInterface.register(SHARED_ATTENTION, attend)

"""Attention over keys and values that many rows share: each is computed and kept once for all readers.

A *row* is one token of a forward pass: the newest token of a text, or one token of a prompt in its prefill. A row sees
several *levels*: the prefix that its prompt shares with others, the rest of its prompt, and its text in pages. A level
is read in one matrix product for all its rows. The softmax over all levels follows from each level's maximum and sums:

    m = max over levels of max(s),  out = sum over levels of exp(s - m)·V / sum over levels of exp(s - m)·1

The ones are a column beside the values, so the denominator is summed as the values are. Tokens that a row does not see
add zeros. So a row's bits do not depend on the other rows, as long as the matrix products do the same for every shape:
MKL and oneDNN do from 16 rows on and for lengths that are multiples of ``KV_ALIGN`` (docs/engine.md, tested).
"""

import math
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "sts_dino_shared"
KV_ALIGN = 16  # tokens: lengths of KV caches and levels are multiples of it
ROW_ALIGN = 32  # rows of a pass come in multiples of it
LOG2_E = math.log2(math.e)
FUSED: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
FUSED_TYPES = (torch.bfloat16, torch.float16) if FUSED else ()


def rounded(length: int) -> int:
    """``length`` up to the next multiple of KV_ALIGN, at least one."""
    return max(KV_ALIGN, -(-length // KV_ALIGN) * KV_ALIGN)


class KVCache:
    """Keys and values of every layer: entries of up to ``length`` tokens, grown on demand.

    A layer's keys are (entries, key heads, length, size), its values (entries, key heads, length, size + KV_ALIGN):
    after the values stands a one, then zeros. They are made at the layer's first write, on that write's device.
    """

    def __init__(self, entries: int = 0, length: int = KV_ALIGN):
        self.entries, self.length = entries, length
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def grow(self, entries: int, length: int = 0) -> None:
        """Make room for so many entries of so many tokens; what is there stays."""
        entries, length = max(entries, self.entries), max(rounded(length), self.length)
        if (entries, length) != (self.entries, self.length):
            self.entries, self.length = entries, length
            for layers in (self.keys, self.values):
                for layer, old in layers.items():
                    layers[layer] = old.new_zeros(entries, old.shape[1], self.length, old.shape[3])
                    layers[layer][: old.shape[0], :, : old.shape[2]] = old
            for values in self.values.values():
                values[..., -KV_ALIGN] = 1

    def reserve(self, entries: int, length: int) -> None:
        """Grow if there is no room for so many entries of so many tokens: by an eighth more than that."""
        if entries > self.entries or length > self.length:
            self.grow(max(self.entries, entries * 9 // 8 + KV_ALIGN), length)

    def write(self, layer: int, entries: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values (N, key heads, size) at (entry, position), both (N,)."""
        if layer not in self.keys:
            heads, size = keys.shape[1:]
            self.keys[layer] = keys.new_zeros(self.entries, heads, self.length, size)
            self.values[layer] = values.new_zeros(self.entries, heads, self.length, values.shape[2] + KV_ALIGN)
            self.values[layer][..., -KV_ALIGN] = 1
        self.keys[layer][entries, :, positions] = keys
        self.values[layer][entries, :, positions, : values.shape[2]] = values


@dataclass
class Level:
    """What some rows of a pass read in one cache. E entries are read by n slots each; a slot is a row or empty."""

    cache: KVCache
    entries: Tensor | None  # (E,) numbers of the entries read; None: the first E
    length: int  # tokens of an entry that are read, a multiple of KV_ALIGN
    slots: Tensor  # (E, n) the row in each slot; any row where it is empty: nobody reads what comes of it
    place: Tensor  # (L,) where in the flattened slots each member is
    members: slice | Tensor  # the L rows that read this level
    attn_bias: Tensor  # (E, 1 or n, length) additive mask: 0 where a slot sees the token, -inf elsewhere

    def read(self, tensors: dict[int, Tensor], layer: int) -> Tensor:
        """(E, key heads, length, size) of a layer."""
        entries = slice(len(self.slots)) if self.entries is None else self.entries
        return tensors[layer][entries, :, : self.length]

    def bias(self, queries: int) -> Tensor:
        """``attn_bias`` for so many queries of each key head: (E, 1, 1 or queries, length)."""
        bias = self.attn_bias
        if bias.shape[1] > 1:
            bias = bias.repeat_interleave(queries // bias.shape[1], dim=1)
        return bias[:, None]


@dataclass
class Write:
    """Where the keys and values of some rows of a pass go."""

    cache: KVCache
    rows: slice | Tensor  # the N rows
    entries: Tensor  # (N,)
    positions: Tensor  # (N,)


@dataclass
class Pass:
    """One forward pass over M rows: its inputs, the rows whose logits are wanted, what it writes and what it reads."""

    ids: np.ndarray  # (M,) token ids
    positions: np.ndarray  # (M,)
    wanted: np.ndarray  # numbers of rows
    writes: list[Write] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)


CURRENT: ContextVar[Pass] = ContextVar("the pass that the model is computing")
HARMLESS = {  # arguments that change nothing here
    "dropout", "sliding_window", "position_ids", "is_causal", "use_cache", "cache_position", "output_attentions",
}  # fmt: skip


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of the current pass, in the form of transformers' ``AttentionInterface``.

    Args:
        query: (1, heads, rows, size); key and value: (1, key heads, rows, size).

    Returns:
        (1, rows, heads, size) and no weights.

    Raises:
        NotImplementedError: the model wants more of its attention than this (soft caps, sinks, biases).
    """
    unknown = {name for name, value in more.items() if value is not None and value is not False} - HARMLESS
    if unknown or attention_mask is not None:
        raise NotImplementedError(f"attention with {sorted(unknown) or 'a mask'}")
    now, layer = CURRENT.get(), module.layer_idx
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    for write in now.writes:
        write.cache.write(layer, write.entries, write.positions, keys[write.rows], values[write.rows])
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries = query[0].transpose(0, 1)
    if query.device.type == "cpu" and query.dtype in FUSED_TYPES:
        return read_fused(queries, now.levels, layer, scaling)[None].to(query.dtype), None
    wide = torch.promote_types(query.dtype, torch.float32)  # bfloat16 rounds scores of hundreds by more than 1
    return read_levels(queries.to(wide) * (scaling * LOG2_E), now.levels, layer)[None].to(query.dtype), None


def read_fused(queries: Tensor, levels: list[Level], layer: int, scaling: float) -> Tensor:
    """``read_levels`` by torch's fused attention for CPUs, whose scores are float32 and stay in the cache.

    It gives the values and the logarithm of the sum of each level, which are then put together. Its bits may depend on
    the number of rows, so float32 does not use it.
    """
    rows, heads, size = queries.shape
    out = queries.new_zeros(rows, heads, size, dtype=torch.float32)
    sums = queries.new_full((rows, heads), -torch.inf, dtype=torch.float32)
    for level in levels:
        keys, values = level.read(level.cache.keys, layer), level.read(level.cache.values, layer)[..., :-KV_ALIGN]
        asked = _by_slot(queries, level, keys.shape[1])
        found = FUSED(asked, keys, values, attn_mask=level.bias(asked.shape[2]), scale=scaling)
        read, of_level = (_by_row(part, level) for part in found)
        total = torch.logaddexp(sums[level.members], of_level)
        kept, added = (sums[level.members] - total).exp_(), (of_level - total).exp_()
        out[level.members] = out[level.members] * kept[..., None] + read * added[..., None]
        sums[level.members] = total
    return out


def read_levels(queries: Tensor, levels: list[Level], layer: int) -> Tensor:
    """The softmax-weighted values of all levels together.

    Args:
        queries: (M, heads, size), float32 or wider, scaled, so that scores are logarithms to base 2: torch's ``exp`` is
            ten times slower for -∞ on a CPU, ``exp2`` is not.

    Returns:
        (M, heads, value size), float32 or wider.
    """
    rows, heads, _ = queries.shape
    top = queries.new_full((rows, heads), -torch.inf, dtype=torch.float32)
    scores = []
    for level in levels:
        keys = level.read(level.cache.keys, layer)
        score = (_by_slot(queries, level, keys.shape[1]) @ keys.to(queries.dtype).transpose(-1, -2)).float()
        score += level.bias(score.shape[2])
        scores.append(score)
        top[level.members] = torch.maximum(top[level.members], _by_row(score.amax(dim=-1), level))
    out: Tensor | None = None
    for level, score in zip(levels, scores, strict=True):
        values = level.read(level.cache.values, layer)
        weights = score.sub_(_by_slot(top, level, values.shape[1])).exp2_()
        read = _by_row((weights.to(values.dtype) @ values).float(), level)
        if out is None:
            out = read.new_zeros(rows, heads, read.shape[-1])
        out[level.members] += read
    assert out is not None
    sums = out[..., -KV_ALIGN, None].clamp(min=torch.finfo(out.dtype).tiny)  # 0 in rows that fill the pass: 0 / 0 is
    return out[..., :-KV_ALIGN] / sums  # no number, and kernels of half precision let it into the rows beside


def _by_slot(rows: Tensor, level: Level, key_heads: int) -> Tensor:
    """(M, heads, size) by row → (E, key heads, n·G, size) by slot; a missing size counts as 1."""
    entries, slots = level.slots.shape
    taken = rows[level.slots.flatten()].view(entries, slots, key_heads, rows.shape[1] // key_heads, -1)
    return taken.transpose(1, 2).flatten(2, 3)


def _by_row(slots: Tensor, level: Level) -> Tensor:
    """(E, key heads, n·G[, size]) by slot → (L, heads[, size]) by member."""
    count = level.slots.shape[1]
    taken = slots.unflatten(2, (count, -1)).transpose(1, 2)  # (E, n, key heads, G[, size])
    return taken.flatten(2, 3).flatten(0, 1)[level.place]


def causal_mask(seen: int, rows: int, length: int) -> Tensor:
    """(1, rows, length) additive mask: row i sees the tokens 0 to ``seen`` + i."""
    return torch.full((rows, length), -torch.inf).triu(seen + 1)[None]


def run_pass(model: Any, now: Pass) -> Tensor:
    """Logits (rows wanted, V) of a pass.

    Padding rows fill the pass up to a multiple of ``ROW_ALIGN``: kernels are made anew for every number of rows.
    """
    device = model.get_input_embeddings().weight.device
    token = CURRENT.set(now)
    try:
        output = model(
            input_ids=torch.from_numpy(_filled(now.ids))[None].to(device),
            position_ids=torch.from_numpy(_filled(now.positions))[None].to(device),
            use_cache=False,
            logits_to_keep=torch.from_numpy(_filled(now.wanted)).to(device),
        )
    finally:
        CURRENT.reset(token)
    return output.logits[0, : len(now.wanted)]


def _filled(numbers: np.ndarray) -> np.ndarray:
    """Zeros up to the next multiple of ROW_ALIGN."""
    return np.pad(numbers, (0, -len(numbers) % ROW_ALIGN))


AttentionInterface.register(NAME, attend)

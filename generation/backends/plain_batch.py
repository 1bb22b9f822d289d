"""A batch of the plain loop: rows that the model reads with its own layers and cache.

Attention masks padding. A layer with a recurrent state (Gated DeltaNet, Mamba, a convolution) reads
padding as if it were text, and its last bits depend on it even where the model masks it. So such a
model reads prompts of one length together, without padding, and their caches are then joined: keys
and values are padded on the left, states are stacked. From there on every row adds one token a
step.
"""

import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

# tensors of a cache's layer, each a dictionary, with the states of one row after another
STATES = ("conv_states", "recurrent_states")


class PlainBatch:
    """Rows of prompts and the tokens after them, each with its keys, values and states.

    Attributes:
        logits: (R, V) after the last token of every row.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]):
        """Read the prompts; the rows have their order."""
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        self._cache_argument = _name_cache(model)

        # Read them, group by group
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
        """Keep these rows, any of them several times, and read one more token in each."""
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
        rows = rows.to(self._device)
        cache: Any = self._cache
        cache.reorder_cache(rows)
        self._mask = self._mask[rows]

    def _compute_logits(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Return (R, V) logits after the last tokens of ``ids`` (R, n).

        ``mask`` (R, all tokens so far) has zeros where rows are padded on the left.
        """
        # GPT-2 with left padding needs them
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        # Mamba would multiply the newest token by the mask of the first one
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
    """Return the numbers of the prompts that are read together, the longest prompts last."""
    if not has_states(model):
        return [list(range(len(prompts)))]
    groups = defaultdict[int, list[int]](list)
    for number, prompt in enumerate(prompts):
        groups[len(prompt)].append(number)
    return [groups[length] for length in sorted(groups)]


def _name_cache(model: Any) -> str:
    """Return the name of the cache among the arguments of the model, which Mamba calls its own."""
    arguments = inspect.signature(model.forward).parameters
    return "cache_params" if "cache_params" in arguments else "past_key_values"


def _pad_left(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the ids of rows (R, n), padded on the left, and their mask (R, n): 0 is padding."""
    ids = pad_sequence(rows, batch_first=True, padding_side="left")
    ones = [torch.ones_like(row) for row in rows]
    return ids, pad_sequence(ones, batch_first=True, padding_side="left")


def _join_caches(caches: list[DynamicCache]) -> DynamicCache:
    """Return one cache with the rows of all; the last one, of the longest rows, becomes it."""
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
    """Return the tensors with zeros before their first number along ``dim``, all of one length."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    padded = []
    for tensor in tensors:
        zeros = [0, 0] * (tensor.dim() - 1 - dim % tensor.dim())
        padded.append(pad(tensor, (*zeros, longest - tensor.shape[dim], 0)))
    return padded

"""The plain loop, for what cannot be read level by level: ALiBi, soft caps, texts longer than a model's window.

A batch is decoded in step; its distinct prompts are computed once, then every row has a cache of its own, and rows
leave the batch as their texts end. Same texts as ``generation.backends.engine``, more memory and time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from generation.backends.protocol import Request
from generation.backends.sampling import WholeLogits, choose, guided_rows
from generation.inputs.row_seeds import uniforms
from hub.contract.recipe import DecodingParameters

Ids = tuple[int, ...]


class PlainDecoding:
    """A model that reads every row with its own forward pass."""

    def __init__(self, model: Any):
        self.model = model

    @torch.inference_mode()
    def complete(
        self,
        prompts: Sequence[Sequence[Ids]],
        requests: Sequence[Request],
        settings: DecodingParameters,
        stops: np.ndarray,
        banned: list[int],
    ) -> list[tuple[list[int], np.ndarray]]:
        """Tokens of B texts, and their summed log-probabilities under each of a request's ``told_prompts``.

        ``prompts`` are those of each of the ``requests``, as tokens; ``stops`` (V,) says which tokens end a text,
        ``banned`` which ones are never drawn.
        """
        distinct = list(dict.fromkeys(ids for text in prompts for ids in text))
        place = {ids: number for number, ids in enumerate(distinct)}
        width = max(len(text) for text in prompts)
        rows = [[place[ids] for ids in text] for text in prompts]
        index = torch.tensor([row + row[:1] * (width - len(row)) for row in rows])
        logits, mask, cache = self._read(distinct)
        tokens: list[list[int]] = [[] for _ in prompts]
        sums = np.zeros((len(prompts), width))
        live, seeds = np.arange(len(prompts)), np.array([request.seed for request in requests], dtype=np.uint64)
        debiased = torch.tensor([request.debiased_by for request in requests])
        told = torch.tensor([len(request.told_prompts) for request in requests])
        plain = torch.tensor([request.plain_row for request in requests])
        decay_constants = torch.tensor([request.decay_constant_in(settings) for request in requests])
        guidance = torch.tensor([request.guidance_in(settings) for request in requests])
        for step in range(settings.max_new_tokens):
            device = logits.device
            numbers = torch.from_numpy(uniforms(seeds[live], step)).to(device)
            drawn, scored = (_first(index, counts[live]).to(device) for counts in (debiased, told))
            guided, decay = None, decay_constants[live].to(device)
            if guidance[live].any():
                away = index.gather(1, plain[live, None])[:, 0].to(device)
                logits, drawn, scored, guided = guided_rows(logits, drawn, scored, away, guidance[live].to(device))
            table = WholeLogits(logits, banned)
            chosen, log_probs = choose(table, drawn, settings, numbers, scored, guided, decay)
            sums[live, : log_probs.shape[1]] += log_probs.double().cpu().numpy()
            for text, token in zip(live.tolist(), chosen.tolist(), strict=True):
                tokens[text].append(token)
            keep = np.flatnonzero(~stops[chosen.cpu().numpy()])
            if step + 1 == settings.max_new_tokens or not len(keep):
                break
            live, next_ids = live[keep], chosen.cpu()[keep]
            rows_kept, index, ids = _kept_rows(index[keep], next_ids, first=step == 0)
            mask = mask[rows_kept.to(mask.device)]
            cache.batch_select_indices(rows_kept.to(mask.device))
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            logits = self._logits(ids[:, None].to(mask.device), mask, cache)
        return [(tokens[text], sums[text, :count]) for text, count in enumerate(told.tolist())]

    def _read(self, prompts: list[Ids]) -> tuple[Tensor, Tensor, DynamicCache]:
        longest = max(len(ids) for ids in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        device = self.model.get_input_embeddings().weight.device
        cache = DynamicCache(config=self.model.config)
        mask = mask.to(device)
        return self._logits(ids.to(device), mask, cache), mask, cache

    def _logits(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)[:, -ids.shape[1] :]  # GPT-2 with left padding needs them
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def _first(index: Tensor, counts: Tensor) -> Tensor:
    """The first ``counts`` (B,) rows of each text of ``index`` (B, W), its own one where it has fewer than others."""
    return torch.where(torch.arange(index.shape[1]) < counts[:, None], index, index[:, :1])[:, : int(counts.max())]


def _kept_rows(index: Tensor, tokens: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What goes on of the texts of ``index`` (B, W): numbers of their rows, their new index and the rows' tokens.

    After its ``first`` token every text gets rows of its own; until then, texts share those of their prompts.
    """
    if first:
        rows, place = index.flatten(), torch.arange(index.numel())
    else:
        rows, place = index.flatten().unique(return_inverse=True)
    index = place.view(index.shape)
    ids = torch.empty(len(rows), dtype=torch.long)
    ids[index] = tokens[:, None].expand(index.shape)
    return rows, index, ids

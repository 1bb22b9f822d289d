"""Batched self-debiased decoding with a KV cache. Knows prompts and counter-prompts, no labels, files or datasets.

The 1 + K rows of a request (its prompt and K counter-prompts) get the same token at every step. Each distinct prompt
of a batch is computed once; rows that are done leave the batch at that step. Text is a function of (model, request,
settings) in fp32; batch composition changes sums in the last bits, so callers who need equal bytes fix it.
"""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from generation.randomness import uniforms
from generation.self_debiasing import debias, draw, nucleus
from generation.writer import Completion, Request, Settings
from hub.errors import InputError
from hub.recipe import LanguageModel

QUOTE = '"'


@dataclass
class _Wave:
    """The live rows of a batch: B requests x (1 + K) model rows, and what each request has so far."""

    requests: list[int]  # (B,) position of each live request in the batch
    seeds: np.ndarray  # (B,) uint64
    mask: Tensor  # (B * (1 + K), T)
    cache: DynamicCache
    tokens: list[list[int]]  # of every request of the batch
    log_probs: Tensor  # (batch, 1 + K) sums


@dataclass
class _Prefix:
    """The distinct prompts of a batch, computed: cache, mask (P, T) and next-token logits (P, V)."""

    cache: DynamicCache
    mask: Tensor
    logits: Tensor

    def wave(self, rows: Tensor, batch: list[Request], width: int) -> tuple[Tensor, _Wave]:
        """First logits and live rows of a batch; ``rows`` (B * (1 + K),) says which prompt each row continues."""
        rows = rows.to(self.mask.device)
        cache = copy.deepcopy(self.cache)
        cache.batch_select_indices(rows)
        wave = _Wave(
            requests=list(range(len(batch))),
            seeds=np.array([request.seed for request in batch], dtype=np.uint64),
            mask=self.mask[rows],
            cache=cache,
            tokens=[[] for _ in batch],
            log_probs=torch.zeros(len(batch), width, dtype=torch.float64),
        )
        return self.logits[rows], wave


class Engine:
    """A causal language model and its tokenizer, ready to complete quoted texts."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model: Any = model.eval()
        self.tokenizer = tokenizer
        self.context = int(getattr(model.config, "max_position_embeddings", 0) or 0)
        self._closes, self._breaks = self._stop_tables(model.config.get_text_config().vocab_size)

    @classmethod
    def load(cls, name: str, revision: str | None, dtype: str, device: str) -> "Engine":
        """Load a Hub id or a local folder (safetensors only, no remote code). Raises InputError when it is unusable."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
            model = AutoModelForCausalLM.from_pretrained(
                name, revision=revision, dtype=getattr(torch, dtype), use_safetensors=True
            )
        except (OSError, ValueError) as error:
            first_line = str(error).strip().splitlines()[0]
            where = Path(name).resolve() if Path(name).exists() else name
            raise InputError(where, f"cannot be loaded as a causal language model: {first_line}") from error
        return cls(model.to(device), tokenizer)  # type: ignore[arg-type]  # its stub is wrong

    @classmethod
    def of(cls, model: LanguageModel) -> "Engine":
        """The engine of a recipe's section ``model``."""
        return cls.load(model.path or model.repo_id or "", model.revision, model.dtype, model.device)

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {"parameters": self.model.num_parameters()}

    def _stop_tables(self, vocabulary: int) -> tuple[Tensor, Tensor]:
        """For every token id: does its text hold a quotation mark; does it end a line or the document."""
        known = min(vocabulary, len(self.tokenizer))
        texts = [self.tokenizer.decode([token]) for token in range(known)] + [""] * (vocabulary - known)
        closes = torch.tensor([QUOTE in text for text in texts])
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}
        breaks = torch.tensor(["\n" in text or token in ends for token, text in enumerate(texts)])
        return closes, breaks & ~closes

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def stream(
        self, queue: deque[Request], settings: Settings, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``generation.writer.Writer.stream``."""
        while queue:
            batch = [queue.popleft() for _ in range(min(len(queue), max(1, (batch_size or 576) // 2)))]
            for request in batch:
                self._checked_length(request, settings)
            yield from zip(batch, self._complete(batch, settings), strict=True)

    def _checked_length(self, request: Request, settings: Settings) -> int:
        length = max(self.count_tokens(prompt) for prompt in (request.prompt, *request.counter_prompts))
        if self.context and length + settings.max_new_tokens > self.context:
            raise InputError(
                f"prompt {request.prompt[:60]!r}...",
                f"{length} tokens + {settings.max_new_tokens} to write exceed the model's context of {self.context}",
                hint="shorten the prompt or lower decoding.max_new_tokens",
            )
        return length

    @torch.inference_mode()
    def _complete(self, batch: list[Request], settings: Settings) -> list[Completion]:
        """Compute every distinct prompt of the batch once, then decode its requests, those of equal width together."""
        prompts = {prompt: None for request in batch for prompt in (request.prompt, *request.counter_prompts)}
        prefix = self._prefill(list(prompts))
        places = {prompt: place for place, prompt in enumerate(prompts)}
        done: dict[int, Completion] = {}
        for width in sorted({1 + len(request.counter_prompts) for request in batch}):
            members = [i for i, request in enumerate(batch) if 1 + len(request.counter_prompts) == width]
            chosen = [batch[i] for i in members]
            done.update(zip(members, self._decode(chosen, width, prefix, places, settings), strict=True))
        return [done[i] for i in range(len(batch))]

    def _decode(
        self, batch: list[Request], width: int, prefix: "_Prefix", places: dict[str, int], settings: Settings
    ) -> list[Completion]:
        rows = [places[prompt] for request in batch for prompt in (request.prompt, *request.counter_prompts)]
        logits, wave = prefix.wave(torch.tensor(rows), batch, width)
        for step in range(settings.max_new_tokens):
            tokens = self._choose(logits, wave, width, settings, step)
            if step + 1 == settings.max_new_tokens or not self._drop_finished(wave, tokens, width):
                break
            logits = self._forward(wave, width)
        return [self._finish(wave.tokens[i], wave.log_probs[i]) for i in range(len(batch))]

    def _prefill(self, prompts: list[str]) -> "_Prefix":
        ids, mask = self._pad([self.tokenizer(prompt).input_ids for prompt in prompts])
        cache = DynamicCache(config=self.model.config)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=_positions(mask),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return _Prefix(cache, mask, output.logits[:, -1])

    def _pad(self, sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
        longest = max(len(sequence) for sequence in sequences)
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, longest - len(sequence) :] = torch.tensor(sequence)
            mask[row, longest - len(sequence) :] = 1
        return ids.to(self.model.device), mask.to(self.model.device)

    def _choose(self, logits: Tensor, wave: _Wave, width: int, settings: Settings, step: int) -> Tensor:
        """One token for each live request; its log-probability is added up under every prompt."""
        log_probs = logits.float().view(len(wave.requests), width, -1).log_softmax(dim=-1)
        probs, ids = nucleus(debias(log_probs, settings.decay_constant, settings.floor), settings.top_k, settings.top_p)
        numbers = torch.from_numpy(uniforms(wave.seeds, step)).to(probs.device)
        tokens = draw(probs, ids, numbers)
        chosen = log_probs.gather(2, tokens[:, None, None].expand(-1, width, 1))[:, :, 0]
        wave.log_probs[wave.requests] += chosen.double().cpu()
        tokens = tokens.cpu()
        for request, token in zip(wave.requests, tokens.tolist(), strict=True):
            wave.tokens[request].append(token)
        return tokens

    def _drop_finished(self, wave: _Wave, tokens: Tensor, width: int) -> bool:
        """Take rows that closed their quotation mark or their line out of the batch; False when none is left."""
        live = (~(self._closes[tokens] | self._breaks[tokens])).nonzero()[:, 0]
        if len(live) < len(wave.requests):
            wave.requests = [wave.requests[i] for i in live.tolist()]
            wave.seeds = wave.seeds[live.numpy()]
            if len(live):
                keep = (live[:, None] * width + torch.arange(width)).flatten().to(wave.mask.device)
                wave.cache.batch_select_indices(keep)
                wave.mask = wave.mask[keep]
        return bool(len(live))

    def _forward(self, wave: _Wave, width: int) -> Tensor:
        last = torch.tensor([wave.tokens[request][-1] for request in wave.requests], device=wave.mask.device)
        wave.mask = torch.cat([wave.mask, wave.mask.new_ones(len(wave.mask), 1)], dim=1)
        output = self.model(
            input_ids=last.repeat_interleave(width)[:, None],
            attention_mask=wave.mask,
            position_ids=_positions(wave.mask)[:, -1:],
            past_key_values=wave.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _finish(self, tokens: list[int], log_probs: Tensor) -> Completion:
        closed = bool(self._closes[tokens[-1]])
        decoded = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        text = decoded.split(QUOTE)[0]
        means = (log_probs / len(tokens)).tolist()
        problem = "line_break" if "\n" in text else "not_closed" if not closed else None if text.strip() else "empty"
        margin = means[0] - max(means[1:]) if len(means) > 1 else None
        return Completion(text.split("\n")[0].strip(), problem, means[0], margin)


def _positions(mask: Tensor) -> Tensor:
    """Position ids (rows, T) of a left-padded batch: the first real token is at 0."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)

"""The baseline of the engine: transformers' ``generate()`` in batched calls.

The 1 + K rows of a text are tied by logits processors in ``generate()``'s documented list: self-debiasing, then the
library's own top-k and top-p, then one draw for all rows. The draw inverts the cumulative distribution at the same
per-row random numbers as the engine's, so that all variants write the same texts in fp32, as far as sums agree.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from generation.backends.protocol import Completion, Request
from generation.backends.self_debiasing import debias, draw
from generation.inputs.row_seeds import uniforms
from hub.contract.recipe import DecodingParameters

QUOTE = '"'


class SelfDebias(LogitsProcessor):
    """Rows in blocks (own prompts, first counter-prompts, ...) to the debiased distribution of each text."""

    def __init__(self, width: int, settings: DecodingParameters):
        self.width, self.settings = width, settings

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits (width x texts, V) to log-probabilities of the same shape."""
        log_probs = scores.log_softmax(-1).view(self.width, -1, scores.shape[-1]).transpose(0, 1)
        return debias(log_probs, self.settings.decay_constant, self.settings.epsilon).repeat(self.width, 1)


class TiedDraw(LogitsProcessor):
    """One token for all rows of a text; must come last."""

    def __init__(self, width: int, seeds: np.ndarray, top_k: int):
        self.width, self.seeds, self.top_k, self.step = width, seeds, top_k, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """All -inf but the drawn token."""
        own = scores[: len(self.seeds)]
        values, ids = own.topk(self.top_k or own.shape[-1], dim=-1)
        numbers = torch.from_numpy(uniforms(self.seeds, self.step)).to(scores.device)
        self.step += 1
        tokens = draw(values.softmax(-1), ids, numbers)
        return torch.full_like(scores, -math.inf).scatter_(1, tokens.repeat(self.width)[:, None], 0.0)


class Stopped(StoppingCriteria):
    """A row is done at a token whose text closes the quotation mark or ends the line."""

    eos_token_id = None  # generate() pads finished rows only when a criterion has this attribute

    def __init__(self, stops: Tensor):
        self.stops = stops

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """(rows,) of booleans."""
        return self.stops[input_ids[:, -1]]


class Generator:
    """A model under ``generate()``."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model.eval(), tokenizer
        listed = np.atleast_1d(model.generation_config.eos_token_id).tolist()  # that the engine never draws either
        model.generation_config.eos_token_id = None  # both ways decide themselves when a text is done
        size = model.config.get_text_config().vocab_size
        texts = [tokenizer.decode([token]) for token in range(min(size, len(tokenizer)))]
        self.closes = torch.tensor([QUOTE in text for text in texts] + [False] * (size - len(texts)))
        self.banned = sorted({tokenizer.eos_token_id, tokenizer.pad_token_id, *listed} - {None})  # as in the original
        breaks = torch.tensor(["\n" in text for text in texts])
        self.stops = self.closes.clone()
        self.stops[: len(texts)] |= breaks

    def batched(self, requests: Sequence[Request], settings: DecodingParameters, rows: int) -> list[Completion]:
        """Texts with equally many counter-prompts together, at most ``rows`` rows; a call ends when all are done."""
        done: dict[int, Completion] = {}
        for members in self._batches(requests, rows):
            batch = [requests[place] for place in members]
            done.update(zip(members, self._generate(batch, settings), strict=True))
        return [done[place] for place in range(len(requests))]

    def _batches(self, requests: Sequence[Request], rows: int) -> Iterator[list[int]]:
        """Places of the requests of each call; batches of one width are equally large, but for rounding."""
        for width in sorted({1 + len(request.counter_prompts) for request in requests}):
            members = [place for place, request in enumerate(requests) if 1 + len(request.counter_prompts) == width]
            calls = math.ceil(len(members) * width / rows)
            yield from (part.tolist() for part in np.array_split(np.array(members), calls))

    @torch.inference_mode()
    def _generate(self, batch: list[Request], settings: DecodingParameters) -> list[Completion]:
        width = 1 + len(batch[0].counter_prompts)
        prompts = [(request.prompt, *request.counter_prompts)[row] for row in range(width) for request in batch]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(self.model.device)
        seeds = np.array([request.seed for request in batch], dtype=np.uint64)
        warpers: list[LogitsProcessor] = [TopKLogitsWarper(settings.top_k)] if settings.top_k else []
        warpers += [TopPLogitsWarper(settings.top_p)] if settings.top_p < 1 else []
        last = TiedDraw(width, seeds, settings.top_k)
        processors: list[LogitsProcessor] = [SelfDebias(width, settings), *warpers, last]
        tokens = self.model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=settings.max_new_tokens,
            do_sample=False,  # decides nothing: one token is left
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=self.tokenizer.pad_token_id or 0,
            suppress_tokens=self.banned or None,
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList([Stopped(self.stops)]),
        )
        written = tokens[: len(batch), inputs.input_ids.shape[1] :].tolist()
        return [self._finish(row) for row in written]

    def _finish(self, tokens: list[int]) -> Completion:
        """The text up to its first stop, judged as the engine judges it."""
        last = next((place for place, token in enumerate(tokens) if self.stops[token]), len(tokens) - 1)
        closed = bool(self.closes[tokens[last]])
        decoded = self.tokenizer.decode(
            tokens[: last + 1], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        text = decoded.split(QUOTE)[0]
        problem = "line_break" if "\n" in text else "not_closed" if not closed else None if text.strip() else "empty"
        return Completion(text.split("\n")[0].strip(), problem, None, None)

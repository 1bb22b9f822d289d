"""The baseline of the engine: transformers' ``generate()`` in batched calls.

The 1 + K rows of a text are tied by logits processors in ``generate()``'s documented list:
self-debiasing, then the library's own top-k and top-p, then one draw for all rows. The draw inverts
the cumulative distribution at the same per-row random numbers as the engine's, so that all variants
write the same texts in fp32, as far as sums agree.
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

from sts_dino.generation.backends.protocol import Completion, Request
from sts_dino.generation.backends.self_debiasing import debias, draw
from sts_dino.generation.inputs.row_seeds import draw_uniforms
from sts_dino.hub.contract.recipe import DecodingParameters

QUOTE = '"'


class SelfDebias(LogitsProcessor):
    """Replace the logits of every row by the debiased distribution of its text.

    Rows stand in blocks: own prompts, first counter-prompts, and so on. ``width``: rows of a text,
    1 + K.
    """

    def __init__(self, width: int, settings: DecodingParameters):
        self.width = width
        self.settings = settings

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Convert logits (width x texts, V) to log-probabilities of the same shape."""
        blocks = scores.log_softmax(-1).view(self.width, -1, scores.shape[-1])
        log_probs = blocks.transpose(0, 1)
        debiased = debias(log_probs, self.settings.decay_constant, self.settings.epsilon)
        return debiased.repeat(self.width, 1)


class TiedDraw(LogitsProcessor):
    """Draw one token for all rows of a text; must come last.

    Args:
        width: rows of a text, 1 + K.
        seeds: (texts,) uint64, the seed of each text's random numbers.
        top_k: number of likeliest tokens to draw from; 0: all.
    """

    def __init__(self, width: int, seeds: np.ndarray, top_k: int):
        self.width = width
        self.seeds = seeds
        self.top_k = top_k
        self.step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (width x texts, V): 0 for the drawn token of each text, -inf for others.

        ``scores``: the debiased scores of the same shape, in the blocks of ``SelfDebias``. Its
        blocks are equal, so the first one is read.
        """
        text_scores = scores[: len(self.seeds)]
        values, ids = text_scores.topk(self.top_k or text_scores.shape[-1], dim=-1)
        uniforms = torch.from_numpy(draw_uniforms(self.seeds, self.step)).to(scores.device)
        self.step += 1
        tokens = draw(values.softmax(-1), ids, uniforms).repeat(self.width)
        return torch.full_like(scores, -math.inf).scatter_(1, tokens[:, None], 0.0)


class StopTokens(StoppingCriteria):
    """End a row at a token whose text closes the quotation mark or ends the line.

    ``stops``: whether each token of the vocabulary is such a token, booleans (V,).
    """

    eos_token_id = None  # generate() pads finished rows only when a criterion has this attribute

    def __init__(self, stops: Tensor):
        self.stops = stops

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Return whether each row is finished: booleans (rows,)."""
        return self.stops[input_ids[:, -1]]


class Generator:
    """A model under ``generate()``.

    The model is changed: the end tokens of its generation config are removed.
    """

    def __init__(self, model: Any, tokenizer: Any):
        self.model = model.eval()
        self.tokenizer = tokenizer

        # end tokens are never drawn, as in the engine: a text ends at its quotation mark
        listed = np.atleast_1d(model.generation_config.eos_token_id).tolist()
        self.banned = sorted({tokenizer.eos_token_id, tokenizer.pad_token_id, *listed} - {None})
        model.generation_config.eos_token_id = None

        # tokens that close the quotation mark or break the line
        size = model.config.get_text_config().vocab_size
        self.closes = torch.zeros(size, dtype=torch.bool)
        self.stops = torch.zeros(size, dtype=torch.bool)
        for token in range(min(size, len(tokenizer))):
            text = tokenizer.decode([token])
            self.closes[token] = QUOTE in text
            self.stops[token] = QUOTE in text or "\n" in text

    def generate(
        self, requests: Sequence[Request], settings: DecodingParameters, rows: int
    ) -> list[Completion]:
        """Return a completion of each request, in the order of the requests.

        Requests with equally many counter-prompts share a call of the model's ``generate()``. The
        call ends when all its texts are finished.

        Args:
            requests: the prompts with their counter-prompts and seeds.
            settings: the decoding parameters.
            rows: the largest number of model rows of a call, but for rounding (``_iter_batches``);
                a request has 1 + K rows.
        """
        completions: dict[int, Completion] = {}
        for members in self._iter_batches(requests, rows):
            batch = [requests[index] for index in members]
            completions.update(zip(members, self._generate_batch(batch, settings), strict=True))
        return [completions[index] for index in range(len(requests))]

    def _iter_batches(self, requests: Sequence[Request], rows: int) -> Iterator[list[int]]:
        """Yield the indices of the requests of each call of ``generate()``.

        Requests of a call have equally many counter-prompts. Requests with one number of
        counter-prompts are divided into calls of equal size, but for rounding. A call has about
        ``rows`` model rows at most: rounding may add a request.
        """
        by_width = dict[int, list[int]]()
        for index, request in enumerate(requests):
            by_width.setdefault(1 + len(request.counter_prompts), []).append(index)
        for width, members in sorted(by_width.items()):
            calls = math.ceil(len(members) * width / rows)
            for part in np.array_split(np.array(members), calls):
                yield part.tolist()

    @torch.inference_mode()
    def _generate_batch(
        self, batch: list[Request], settings: DecodingParameters
    ) -> list[Completion]:
        """Generate the texts of requests with equally many counter-prompts, in one call.

        Returns a completion of each request, in the order of ``batch``, which has at least one.
        """
        # rows in blocks: own prompts, first counter-prompts, and so on
        width = 1 + len(batch[0].counter_prompts)
        prompts = list[str]()
        for row in range(width):
            prompts += [request.prompts[row] for request in batch]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        inputs = inputs.to(self.model.device)

        # self-debiasing, the library's own top-k and top-p, one draw
        processors: list[LogitsProcessor] = [SelfDebias(width, settings)]
        if settings.top_k:
            processors.append(TopKLogitsWarper(settings.top_k))
        if settings.top_p < 1:
            processors.append(TopPLogitsWarper(settings.top_p))
        seeds = np.array([request.seed for request in batch], dtype=np.uint64)
        processors.append(TiedDraw(width, seeds, settings.top_k))

        tokens = self.model.generate(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            max_new_tokens=settings.max_new_tokens,
            do_sample=False,  # ``TiedDraw`` leaves one token, which either choice takes
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=self.tokenizer.pad_token_id or 0,
            suppress_tokens=self.banned or None,
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList([StopTokens(self.stops)]),
        )
        generated = tokens[: len(batch), inputs.input_ids.shape[1] :].tolist()
        return [self._make_completion(row) for row in generated]

    def _make_completion(self, tokens: list[int]) -> Completion:
        """Return the completion of generated tokens: text, and its problem as the engine names it.

        The text ends before its first quotation mark or line break. ``tokens``: at least one token
        id, with padding after the stop.
        """
        stops = [index for index, token in enumerate(tokens) if self.stops[token]]
        last = stops[0] if stops else len(tokens) - 1
        decoded = self.tokenizer.decode(
            tokens[: last + 1], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        text = decoded.split(QUOTE)[0]
        problem = None
        if "\n" in text:
            problem = "line_break"
        elif not self.closes[tokens[last]]:
            problem = "not_closed"
        elif not text.strip():
            problem = "empty"
        return Completion(text.split("\n")[0].strip(), problem, None, None)

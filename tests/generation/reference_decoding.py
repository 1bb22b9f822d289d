"""The slow reference for the engine: transformers' generate() with a self-debiasing and a row-tying
processor.

Guidance is transformers' own processor, which reads the plain prompt with a cache of its own.
"""

import math
import re

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper
from transformers.generation import UnbatchedClassifierFreeGuidanceLogitsProcessor

from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.inputs.row_seeds import draw_uniforms
from sts_dino.hub.contract.recipe import DecodingParameters


class SelfDebias(LogitsProcessor):
    def __init__(self, rows: int, settings: DecodingParameters, guidance=None):
        self.rows, self.settings, self.guidance = rows, settings, guidance

    def __call__(self, input_ids, scores):
        probs = scores.softmax(-1)
        drawn = scores[:1] if self.guidance is None else self.guidance(input_ids[:1], scores[:1])
        if self.rows == 1:
            return drawn.log_softmax(-1)
        delta = (probs[0] - probs[1:].max(0).values).clamp(max=0)
        alpha = torch.clamp(
            torch.exp(self.settings.decay_constant * delta), min=self.settings.epsilon
        )
        alpha = (
            torch.where(delta < 0, alpha, 1.0)
            if self.settings.decay_constant
            else torch.ones_like(alpha)
        )
        return (drawn[0].softmax(-1) * alpha).log().log_softmax(-1).repeat(self.rows, 1)


class TieRows(LogitsProcessor):
    """Draw one token for all rows, by inverse CDF over the tokens in falling order of probability."""

    def __init__(self, seed: int):
        self.seed, self.step = np.array([seed], dtype=np.uint64), 0

    def __call__(self, input_ids, scores):
        probs, order = scores[0].softmax(-1).sort(descending=True, stable=True)
        number = draw_uniforms(self.seed, self.step)[0]
        self.step += 1
        place = int(
            (probs.double().cumsum(0) <= number).sum().clamp(max=int((probs > 0).sum()) - 1)
        )
        return torch.full_like(scores, -math.inf).index_fill_(1, order[place], 0.0)


def reference(model, tokenizer, request: Request, settings: DecodingParameters) -> str:
    """Text up to the quotation mark or line end, one request at a time, without any of the engine's
    code.
    """
    prompts = [request.prompt, *request.counter_prompts]
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}
    # rows of a padded embedding
    banned = {*range(model.config.vocab_size)} - {*tokenizer.get_vocab().values()}
    banned |= ends if settings.text_end == "quotation_mark" else set()
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    guidance = None
    if settings.guidance:
        plain = tokenizer(request.plain_prompt, return_tensors="pt").input_ids
        guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(
            1 + settings.guidance, model, plain
        )
    debias = SelfDebias(len(prompts), settings, guidance)
    warpers = [TopKLogitsWarper(settings.top_k)] if settings.top_k else []
    warpers += [TopPLogitsWarper(settings.top_p)] if settings.top_p < 1 else []
    ids = model.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.eos_token_id,
        suppress_tokens=sorted(banned) or None,
        logits_processor=LogitsProcessorList([debias, *warpers, TieRows(request.seed)]),
    )
    written = tokenizer.decode(ids[0, batch.input_ids.shape[1] :], skip_special_tokens=True)
    if settings.text_end == "line":
        return re.sub(r'"\.?$', "", written.split("\n")[0].strip()).strip()
    return written.split('"')[0].split("\n")[0].strip()


INSTRUCTIONS = ("mean the same thing", "are somewhat similar", "are on completely different topics")


def prompt(number: int, text: str) -> str:
    return f'Task: Write two sentences that {INSTRUCTIONS[number]}.\nSentence 1: "{text}"\nSentence 2: "'


def requests(count: int) -> list[Request]:
    texts = [
        "A man is playing a flute.",
        "Two dogs.",
        "A woman cooks and sings in the old kitchen.",
    ]
    made = []
    for seed in range(count):
        text, label = texts[seed % 3], seed % 3
        counters = tuple(prompt(i, text) for i in range(label))
        made.append(Request(prompt(label, text), counters, seed * 7919))
    return made

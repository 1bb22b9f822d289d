"""The slow reference for the engine: transformers' generate(), one prompt in a batch of its own.

A logits processor reads the counter-prompts with the same text, each in a pass of its own without a
cache. So nothing is padded, and no row depends on another one. Guidance is transformers' own
processor.
"""

import math
import re
from typing import NamedTuple

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper
from transformers.generation import UnbatchedClassifierFreeGuidanceLogitsProcessor

from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.inputs.row_seeds import draw_uniforms
from sts_dino.hub.contract.recipe import DecodingParameters


class Reference(NamedTuple):
    """What generate() writes.

    ``log_prob`` is the mean log-probability of a token, ``margin`` its distance to the best
    counter-prompt's (None: no counter-prompt).
    """

    text: str
    tokens: list[int]
    log_prob: float
    margin: float | None


class SelfDebias(LogitsProcessor):
    """Self-debiasing; keeps the log-probabilities of every prompt and step before it."""

    def __init__(self, model, prompts, banned, settings: DecodingParameters, guidance=None):
        self.model, self.prompts, self.banned = model, prompts, banned
        self.settings, self.guidance = settings, guidance
        self.log_probs: list[torch.Tensor] = []  # (1 + K, V) of each step

    def __call__(self, input_ids, scores):
        written = input_ids[:, self.prompts[0].shape[1] :]
        rows = [scores[0]]
        for counter in self.prompts[1:]:
            ids = torch.cat([counter, written], dim=1)
            logits = self.model(input_ids=ids, use_cache=False).logits[0, -1].float()
            logits[self.banned] = -torch.inf
            rows.append(logits)
        self.log_probs.append(torch.stack(rows).log_softmax(-1))
        drawn = scores if self.guidance is None else self.guidance(input_ids, scores)
        if len(rows) == 1 or not self.settings.decay_constant:
            return drawn.log_softmax(-1)
        probs = self.log_probs[-1].exp()
        delta = probs[0] - probs[1:].max(0).values
        alpha = torch.exp(self.settings.decay_constant * delta.clamp(max=0))
        alpha = torch.where(delta < 0, alpha.clamp(min=self.settings.epsilon), 1.0)
        return (drawn[0].softmax(-1) * alpha).log().log_softmax(-1)[None]


class DrawToken(LogitsProcessor):
    """Draw a token by inverse CDF over the tokens in falling order of probability."""

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


@torch.inference_mode()
def decode(model, tokenizer, request: Request, settings: DecodingParameters) -> Reference:
    """Decode one request up to the token with the quotation mark or line break, without any of the
    engine's code.
    """
    prompts = [
        tokenizer(text, return_tensors="pt").input_ids
        for text in (request.prompt, *request.counter_prompts)
    ]
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}
    # rows of a padded embedding
    vocabulary = model.config.get_text_config().vocab_size
    unused = {*range(vocabulary)} - {*tokenizer.get_vocab().values()}
    banned = sorted(unused | (ends if settings.text_end == "quotation_mark" else set()))
    guidance = None
    if settings.guidance:
        plain = tokenizer(request.plain_prompt, return_tensors="pt").input_ids
        guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(
            1 + settings.guidance, model, plain, use_cache=False
        )
    debias = SelfDebias(model, prompts, banned, settings, guidance)
    warpers = [TopKLogitsWarper(settings.top_k)] if settings.top_k else []
    warpers += [TopPLogitsWarper(settings.top_p)] if settings.top_p < 1 else []
    ids = model.generate(
        input_ids=prompts[0],
        attention_mask=torch.ones_like(prompts[0]),
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.eos_token_id,
        suppress_tokens=banned or None,
        logits_processor=LogitsProcessorList([debias, *warpers, DrawToken(request.seed)]),
    )

    # The tokens up to the end of the text, and their log-probabilities
    marks = "\n" if settings.text_end == "line" else '"\n'
    tokens: list[int] = []
    for token in ids[0, prompts[0].shape[1] :].tolist():
        tokens.append(token)
        if token in ends or any(mark in tokenizer.decode([token]) for mark in marks):
            break
    steps = [step[:, token] for step, token in zip(debias.log_probs, tokens, strict=False)]
    means = torch.stack(steps).double().mean(0).tolist()
    margin = means[0] - max(means[1:]) if means[1:] else None

    text = tokenizer.decode(tokens, skip_special_tokens=True)
    if settings.text_end == "line":
        line = text.split("\n")[0].strip()
        unquoted = re.sub(r'"\.?$', "", line)
        text = line if unquoted.count('"') % 2 else unquoted.strip()
    else:
        text = text.split('"')[0].split("\n")[0].strip()
    return Reference(text, tokens, means[0], margin)


def reference(model, tokenizer, request: Request, settings: DecodingParameters) -> str:
    """Return the text of one request."""
    return decode(model, tokenizer, request, settings).text


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

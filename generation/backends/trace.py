"""One text, token by token, with every probability that led to it: the slow way, for ``sts-dino explain``.

Every prompt is read alone with transformers' own forward pass and cache, and each token is chosen over the whole
vocabulary: none of the engine's batching, sharing or bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from generation.backends.engine import Engine
from generation.backends.load_model import load_model
from generation.backends.protocol import Completion, Request, complete
from generation.backends.self_debiasing import debias, draw, guide, log_alpha, nucleus
from generation.inputs.row_seeds import uniforms
from hub.contract.recipe import DecodingParameters, LanguageModel


@dataclass(frozen=True)
class Step:
    """One token of a completion. ``counter``, ``delta``: None without counter-prompts; ``plain``, ``guided``: without
    guidance."""

    token: str
    token_id: int
    own: float  # p under the prompt
    counter: float | None  # p under the counter-prompt that gives it most
    delta: float | None  # own - counter (DINO's δ)
    plain: float | None  # p under the plain prompt
    guided: float | None  # p after guidance: own · (own / plain)^γ, renormalised
    alpha: float  # what debiasing multiplies p, or what guidance gives, by, before renormalisation
    debiased: float  # p after debiasing
    sampled: float  # p after top-k and top-p: what it was drawn with
    number: float  # the uniform random number of the draw


class Tracer:
    """The language model of a recipe, read the slow way and, to compare, through the engine."""

    def __init__(self, model: LanguageModel):
        """Raises InputError when the model cannot be loaded."""
        self._model, tokenizer = load_model(model)
        self._slow = Engine(self._model, tokenizer, chat=model.chat_template, shared=False)
        self._chat, self.shown_tokens = model.chat_template, self._slow.shown_tokens

    @torch.inference_mode()
    def trace(self, request: Request, settings: DecodingParameters) -> tuple[list[Step], str]:
        """The steps of a text and the text up to its end."""
        plain = () if request.plain_prompt is None else (request.plain_prompt,)
        prompts = (request.prompt, *request.counter_prompts, *plain)
        caches = [DynamicCache(config=self._model.config) for _ in prompts]
        read = [self._logits(self._slow.encode(prompt), cache) for prompt, cache in zip(prompts, caches, strict=True)]
        seed, steps = np.array([request.seed], dtype=np.uint64), list[Step]()
        for number in range(settings.max_new_tokens):
            logits = torch.stack(read).float()
            if plain:
                logits = torch.cat([logits, guide(logits[:1], logits[-1:], request.guidance_in(settings))])
            logits[:, self._slow.banned(settings)] = -torch.inf
            log_probs = logits.log_softmax(dim=-1)[None]
            step = self._step(log_probs, request, settings, float(uniforms(seed, number)[0]))
            steps.append(step)
            if self._slow.stops[settings.text_end][step.token_id]:
                break
            read = [self._logits([step.token_id], cache) for cache in caches]
        return steps, self._slow.text_of([step.token_id for step in steps], settings)[0]

    def regenerate(
        self, request: Request, settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str]
    ) -> Completion:
        """The completion as the engine writes it. The slow way cannot be asked after this."""
        engine = Engine(self._model, self._slow.tokenizer, chat=self._chat)
        return complete(engine, [request], settings, batch_size, prefixes)[0]

    def _step(self, every: Tensor, request: Request, settings: DecodingParameters, number: float) -> Step:
        """Draw a token from log-probabilities (1, 1 + K, V); with guidance plain and guided ones stand behind them."""
        compared, decay_constant = request.debiased_by, request.decay_constant_in(settings)
        log_probs, plain, guided = every[:, :compared], None, None
        if every.shape[1] > compared:
            plain, guided = every[:, compared], every[:, compared + 1]
        debiased = debias(log_probs, decay_constant, settings.epsilon, guided)
        probs, ids = nucleus(debiased, settings)
        token = int(draw(probs, ids, torch.tensor([number], dtype=torch.float64, device=probs.device)))
        own, counter, alpha = float(log_probs[0, 0, token].exp()), None, 1.0
        if log_probs.shape[1] > 1:
            counter = float(log_probs[0, 1:, token].amax().exp())
            factors = log_alpha(log_probs[:, 0], log_probs[:, 1:], decay_constant, settings.epsilon)
            alpha = float(factors[0, token].exp()) if decay_constant else 1.0
        return Step(
            token=self._slow.tokenizer.decode([token]),
            token_id=token,
            own=own,
            counter=counter,
            delta=None if counter is None else own - counter,
            plain=None if plain is None else float(plain[0, token].exp()),
            guided=None if guided is None else float(guided[0, token].exp()),
            alpha=alpha,
            debiased=float(debiased[0, token].exp()),
            sampled=float(probs[ids == token].sum()),
            number=number,
        )

    def _logits(self, tokens: Sequence[int], cache: DynamicCache) -> Tensor:
        ids = torch.tensor([tokens], device=self._model.get_input_embeddings().weight.device)
        return self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]

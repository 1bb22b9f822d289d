"""One text, token by token, with every probability that led to it, for ``sts-dino explain``.

The trace is slow: every prompt is read alone with transformers' own forward pass and cache, and
each token is chosen over the whole vocabulary. It uses neither the engine's batching nor its shared
prompts, so that it checks them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from sts_dino.generation.backends.batch import find_cache_argument
from sts_dino.generation.backends.engine import Engine
from sts_dino.generation.backends.load_model import load_model
from sts_dino.generation.backends.protocol import Completion, Request, complete
from sts_dino.generation.backends.self_debiasing import (
    compute_log_alpha,
    debias,
    draw,
    guide,
    select_nucleus,
)
from sts_dino.generation.inputs.row_seeds import draw_uniforms
from sts_dino.hub.contract.recipe import DecodingParameters, LanguageModel


@dataclass(frozen=True)
class Step:
    """One token of a completion, with its probabilities."""

    token: str
    token_id: int
    own: float  # p under the prompt
    # the highest p under a counter-prompt, and own - counter (DINO's δ); None without
    # counter-prompts
    counter: float | None
    delta: float | None
    # p under the plain prompt, and after guidance: own · (own / plain)^γ, renormalised; None
    # without guidance
    plain: float | None
    guided: float | None
    alpha: float  # debiasing multiplies own, or guided, by it, before renormalisation
    debiased: float  # p after debiasing
    sampled: float  # p after top-k and top-p: the token was drawn with it
    number: float  # the uniform random number of the draw


class Tracer:
    """The language model of a recipe, which traces a text and generates it with the engine."""

    def __init__(self, model: LanguageModel):
        """Load the model. Raises what ``load_model.load_model`` raises."""
        self._model, tokenizer = load_model(model)
        # this engine only encodes and decodes; with shared=True it would change the attention
        self._slow = Engine(self._model, tokenizer, chat=model.chat_template, shared=False)
        self._chat = model.chat_template
        self._cache_argument = find_cache_argument(self._model)
        self.format_tokens = self._slow.format_tokens

    @torch.inference_mode()
    def trace(self, request: Request, settings: DecodingParameters) -> tuple[list[Step], str]:
        """Generate a text; return a step for each token, and the text up to its end.

        The last step is the token that ends the text; without one there are ``max_new_tokens``
        steps. Raises what ``Engine.encode`` raises for an unusable prompt or chat template.
        """
        # Give every prompt its own cache; the first step reads the whole prompts
        prompts = [request.prompt, *request.counter_prompts]
        if request.plain_prompt is not None:
            prompts.append(request.plain_prompt)
        caches = [DynamicCache(config=self._model.config) for _ in prompts]
        newest: list[Sequence[int]] = [self._slow.encode(prompt) for prompt in prompts]
        positions = [0 for _ in prompts]  # position of the first token of each list in ``newest``

        # Draw token after token
        seed = np.array([request.seed], dtype=np.uint64)
        banned = self._slow.list_banned(settings)
        steps: list[Step] = []
        for number in range(settings.max_new_tokens):
            rows = [
                self._compute_logits(ids, position, cache)
                for ids, position, cache in zip(newest, positions, caches, strict=True)
            ]
            # (prompts, V): the prompt, then K counter-prompts, then the plain prompt if any
            logits = torch.stack(rows).float()
            if request.plain_prompt is not None:
                guided = guide(logits[:1], logits[-1:], request.get_guidance(settings))
                logits = torch.cat([logits, guided])
            logits[:, banned] = -torch.inf
            log_probs = logits.log_softmax(dim=-1)[None]
            step = self._draw_step(
                log_probs, request, settings, float(draw_uniforms(seed, number)[0])
            )
            steps.append(step)
            if self._slow.stops[settings.text_end][step.token_id]:
                break
            positions = [
                position + len(ids) for position, ids in zip(positions, newest, strict=True)
            ]
            newest = [[step.token_id] for _ in prompts]
        text, _ = self._slow.decode_text([step.token_id for step in steps], settings)
        return steps, text

    def regenerate(
        self,
        request: Request,
        settings: DecodingParameters,
        batch_size: int | None,
        prefixes: Sequence[str],
    ) -> Completion:
        """Return the completion that the engine generates, with its statistics.

        The arguments are those of ``Writer.stream``, whose errors are raised. ``trace`` cannot be
        called afterwards: the engine changes the model's attention.
        """
        engine = Engine(self._model, self._slow.tokenizer, chat=self._chat)
        return complete(engine, [request], settings, batch_size, prefixes)[0]

    def _draw_step(
        self, log_probs: Tensor, request: Request, settings: DecodingParameters, number: float
    ) -> Step:
        """Draw a token, and return it with the probabilities that led to it.

        Args:
            log_probs: (1, 1 + K, V) log-probabilities under the prompt and K counter-prompts; with
                guidance (1, 3 + K, V): those under the plain prompt and the guided ones follow.
            request: the request for the text.
            settings: decoding parameters.
            number: the uniform random number of the draw.
        """
        # Draw the token as the engine does
        decay_constant = request.get_decay_constant(settings)
        compared = log_probs[:, : request.compared_count]
        plain, guided = None, None
        if log_probs.shape[1] > request.compared_count:
            plain, guided = log_probs[:, request.compared_count :].unbind(dim=1)
        debiased = debias(compared, decay_constant, settings.epsilon, guided)
        probs, ids = select_nucleus(debiased, settings)
        uniform = torch.tensor([number], dtype=torch.float64, device=probs.device)
        token = int(draw(probs, ids, uniform))

        # Read the probabilities that led to it; α is 1 where debiasing changes nothing
        own = float(compared[0, 0, token].exp())
        counter = None
        alpha = 1.0
        if compared.shape[1] > 1:
            counter = float(compared[0, 1:, token].amax().exp())
            if decay_constant:
                log_alpha = compute_log_alpha(
                    compared[:, 0], compared[:, 1:], decay_constant, settings.epsilon
                )
                alpha = float(log_alpha[0, token].exp())
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

    def _compute_logits(self, tokens: Sequence[int], position: int, cache: DynamicCache) -> Tensor:
        """Return the logits (V,) after the last of the tokens, which are appended to a cache.

        ``position``: the first token's position in the text. Bamba does not derive positions from
        the cache.
        """
        ids = torch.tensor([tokens], device=self._model.get_input_embeddings().weight.device)
        output = self._model(
            input_ids=ids,
            position_ids=torch.arange(position, position + len(tokens), device=ids.device)[None],
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        return output.logits[0, -1]

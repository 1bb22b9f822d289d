"""The tokens and the price of a server's texts, estimated before the first of them is paid for."""

import json
import logging
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from sts_dino.generation.backends.dialects import make_body
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.rows.attempts import make_text_request
from sts_dino.hub.contract.recipe import Server

logger = logging.getLogger(__name__)

COST_LINE = "the server's texts: "
FEWEST_ANSWERS = 10  # to as many requests, whose mean number of tokens is taken
MOST_SAMPLED = 50  # source sentences whose prompts are measured
BYTES_PER_TOKEN = 4  # of English prompts, roughly; other languages have fewer
ANSWER_TOKENS_SHARE = 0.5  # of the longest answer, before there are answers


def report_cost(
    prompts: Prompts, sentences: Sequence[SourceSentence], total: int, usage: Mapping[str, Any]
) -> None:
    """Log the number of a run's requests to a server, their tokens and their price.

    Nothing is logged without a server. Requests for further attempts at rejected texts are not
    counted. A warning is logged if the budget is too small.

    Args:
        prompts: the prompts of the recipe.
        sentences: some source sentences of the run, whose prompts are measured.
        total: the number of all source sentences.
        usage: the counts of a server's stored answers; empty: none.
    """
    recipe = prompts.recipe
    server = recipe.model.server
    if server is None:
        return
    texts = total * len(recipe.variants) * recipe.texts_per_source_sentence
    texts_per_request = _get_answers_per_request(server, usage)
    if server.contrast is not None:
        texts_per_request = len(recipe.written_labels)
    requests = ceil(texts / texts_per_request)
    prompt_tokens, completion_tokens = _measure_tokens(prompts, sentences, usage)
    line = (
        f"{COST_LINE}about {requests:,} requests, {requests * prompt_tokens:,.0f} prompt and "
        f"{requests * completion_tokens:,.0f} generated tokens, rejected texts apart"
    )
    answered = usage.get("answers", 0)
    if answered:
        line += f"; {answered:,} are answered and not paid for again"
    if server.price_per_million is None:
        logger.info(f"{line}; the price is not known (--price-in, --price-out)")
        return

    prompt_price, completion_price = server.price_per_million
    price = prompt_tokens * prompt_price + completion_tokens * completion_price
    cost = requests * price / 1e6
    line += f"; about {cost:.4f} at the given prices"
    if server.budget is not None:
        line += f", budget {server.budget:g}"
    logger.info(line)
    if server.budget is not None and cost > server.budget:
        logger.warning(
            f"{COST_LINE}the budget {server.budget:g} is not enough: the run stops there, and the "
            "same command with a larger one resumes it"
        )


def _get_answers_per_request(server: Server, usage: Mapping[str, Any]) -> float:
    """Return the texts of a request: ``choices``, or fewer where the server gave fewer so far."""
    requests = usage.get("counted_requests", 0)
    if requests < FEWEST_ANSWERS:
        return server.choices
    return min(server.choices, usage["answers"] / requests)


def _measure_tokens(
    prompts: Prompts, sentences: Sequence[SourceSentence], usage: Mapping[str, Any]
) -> tuple[float, float]:
    """Return the mean number of prompt tokens and of generated tokens of a request.

    They are measured on ``FEWEST_ANSWERS`` or more stored requests. With fewer, they are estimated:
    prompt tokens from the bytes of the requests, generated tokens from the longest answer.
    """
    recipe = prompts.recipe
    server = recipe.model.server
    assert server is not None, "report_cost checks this"
    requests = usage.get("counted_requests", 0)
    if requests >= FEWEST_ANSWERS:
        counted_answers = usage["answers"] - usage["uncounted"]
        tokens_per_answer = usage["completion_tokens"] / max(1, counted_answers)
        completion_tokens = tokens_per_answer * _get_answers_per_request(server, usage)
        return usage["prompt_tokens"] / requests, completion_tokens

    # Too few answers: estimate from the requests themselves.
    lengths: list[int] = []
    most_tokens = recipe.decoding.max_new_tokens
    variant = recipe.variants[0]
    for sentence in sentences[:MOST_SAMPLED]:
        chosen = prompts.choose_variant(variant, sentence.text)
        for label in recipe.written_labels:
            request = make_text_request(prompts, label, sentence.text, chosen, seed=0)
            body = make_body(recipe.model, server, request, recipe.decoding)
            most_tokens = server.choices * body["max_tokens"]
            messages = body.get("messages") or body["prompt"]
            lengths.append(len(json.dumps(messages, ensure_ascii=False).encode()))
    mean_length = sum(lengths) / max(1, len(lengths))
    return mean_length / BYTES_PER_TOKEN, ANSWER_TOKENS_SHARE * most_tokens

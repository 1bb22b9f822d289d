"""Request fields and answers of each kind of OpenAI-compatible server (``model.server.dialect``). Pure.

The OpenAI API has no top-k. Its answer says "stop" both when a stop word was met and when the model ended the text
itself, without the stop word. A dialect declares what a server takes and reports beyond that.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field

from generation.backends.answers import Answer, Text, read_answer
from generation.backends.protocol import Request
from hub.contract.recipe import QUOTE, DecodingParameters, LanguageModel, Server
from hub.errors import InputError

Body = dict[str, Any]
COMPLETIONS, CHAT = "/completions", "/chat/completions"
_SMALL = "start it with more context (llama-server -c SLOTS×TOKENS -np SLOTS), or lower decoding.max_new_tokens"


@dataclass(frozen=True)
class Dialect:
    """One kind of server, declared once in ``DIALECTS``.

    ``sampling`` gives the fields of the draw. ``quotes_stop``: whether the closing quotation mark may be a stop word,
    given whether log-probabilities are requested; else its text could not be told from one that ended by itself.
    ``opens_turn``: whether a chat model's turn can begin with our quotation mark. ``text`` reads the generated text
    where the choice's own field lacks it.
    """

    sampling: Callable[[DecodingParameters], Body]
    quotes_stop: Callable[[bool], bool]
    opens_turn: bool
    text: Callable[[object, Server], str] | None = None


def endpoint(model: LanguageModel) -> str:
    """The path below ``base_url`` that prompts are sent to."""
    return CHAT if model.chat_template else COMPLETIONS


def opens_quotation(model: LanguageModel, server: Server) -> bool:
    """Whether an answer continues an open quotation: always, but for chat models whose turn cannot be begun."""
    return not model.chat_template or DIALECTS[server.dialect].opens_turn


def request_body(model: LanguageModel, server: Server, request: Request, settings: DecodingParameters) -> Body:
    """All JSON fields of one request. The row's seed keeps 31 bits: llama.cpp takes no more."""
    dialect = DIALECTS[server.dialect]
    shared = {"model": server.model, "max_tokens": settings.max_new_tokens, "seed": request.seed >> 33}
    quoted = dialect.quotes_stop(server.logprobs) and settings.text_end == "quotation_mark"
    stops = {"stop": [*((QUOTE,) if quoted else ()), "\n"]}
    logprobs = {"logprobs": model.chat_template or 1} if server.logprobs else {}
    return {
        **shared,
        **_prompt(model, server, request.prompt),
        **(stops if opens_quotation(model, server) else {}),
        **logprobs,
        **dialect.sampling(settings),
    }


def answer_of(payload: object, model: LanguageModel, server: Server, settings: DecodingParameters) -> Answer:
    """The answer in a server's JSON. Raises pydantic.ValidationError for another form, InputError as ``text``."""
    closes = opens_quotation(model, server) and settings.text_end == "quotation_mark"
    answer, text = read_answer(payload, closes), DIALECTS[server.dialect].text
    return replace(answer, text=text(payload, server)) if text else answer


def _prompt(model: LanguageModel, server: Server, prompt: str) -> Body:
    if not model.chat_template:
        return {"prompt": prompt}
    turns = [{"role": "user", "content": prompt.removesuffix(QUOTE)}]  # the answer opens the quotation
    if not opens_quotation(model, server):
        return {"messages": turns}
    begun = {"role": "assistant", "content": QUOTE}
    return {"messages": [*turns, begun], "add_generation_prompt": False, "continue_final_message": True}


def _openai_sampling(settings: DecodingParameters) -> Body:
    """``top_k`` is sent when the recipe asks for one, so that a server without top-k refuses it."""
    plain = {"temperature": 1.0, "top_p": settings.top_p}
    return {**plain, "top_k": settings.top_k} if settings.top_k else plain


def _vllm_sampling(settings: DecodingParameters) -> Body:
    """Every field that a model's generation_config.json could change; the stop word stays in the text."""
    fixed = {"min_p": 0.0, "repetition_penalty": 1.0, "include_stop_str_in_output": True}
    return {"temperature": 1.0, "top_p": settings.top_p, "top_k": settings.top_k or -1, **fixed}


def _transformers_sampling(settings: DecodingParameters) -> Body:
    """``transformers serve`` samples only when the field generation_config says so; the stop word stays."""
    config = {"temperature": 1.0, "top_p": settings.top_p, "do_sample": True}
    return {"generation_config": json.dumps({**config, "top_k": settings.top_k, "repetition_penalty": 1.0})}


def _llamacpp_sampling(settings: DecodingParameters) -> Body:
    """Top-k, then top-p, at temperature 1 (fields: tools/server/README.md of llama.cpp).

    Samplers that are not named are off (min_p is 0.05 otherwise). As in the engine, the end of text cannot be drawn
    where a quotation mark ends a text.
    """
    chain = {"samplers": ["top_k", "top_p", "temperature"], "dynatemp_range": 0.0, "mirostat": 0}
    return {
        "temperature": 1.0,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        **chain,
        "ignore_eos": settings.text_end == "quotation_mark",
        "verbose": True,  # the answer's field __verbose
    }


class _Verbose(BaseModel):
    content: Text  # the generated text; the choice of a chat repeats the beginning of the turn before it
    stopping_word: Text
    truncated: bool


class _Payload(BaseModel):
    verbose: _Verbose | None = Field(default=None, alias="__verbose")


def _llamacpp_text(payload: object, server: Server) -> str:
    """The generated text with the stop word that ended it, which the answer's ``text`` leaves out.

    Raises pydantic.ValidationError for another form; InputError when the server does not name the stop word, or when
    its context was full before the text ended.
    """
    verbose = _Payload.model_validate(payload).verbose
    if verbose is None:
        hint = "use llama.cpp's server of July 2026 or newer (or start it with -lv 10), or dialect: openai"
        raise InputError(f"server {server.base_url}", "does not report in __verbose what ended a text", hint=hint)
    if verbose.truncated:
        raise InputError(f"server {server.base_url}", "its context was full before the text ended", hint=_SMALL)
    return verbose.content + verbose.stopping_word


DIALECTS = {
    "openai": Dialect(_openai_sampling, quotes_stop=lambda _: False, opens_turn=False),
    "vllm": Dialect(_vllm_sampling, quotes_stop=lambda _: True, opens_turn=True),
    "transformers": Dialect(_transformers_sampling, quotes_stop=lambda _: True, opens_turn=False),
    # llama.cpp gives no log-probability for a stop word, so none is sent where those are requested
    "llamacpp": Dialect(
        _llamacpp_sampling, quotes_stop=lambda logprobs: not logprobs, opens_turn=True, text=_llamacpp_text
    ),
}

"""What llama.cpp's server takes and tells beyond OpenAI's API (``model.server.dialect: llamacpp``). Pure.

The fields are those of tools/server/README.md in llama.cpp's repository.
"""

from typing import Any

from pydantic import BaseModel, Field

from generation.servers.answers import Text
from hub.contract.recipe import DecodingParameters, Server
from hub.errors import InputError

_SMALL = "start it with more context (llama-server -c SLOTS×TOKENS -np SLOTS), or lower decoding.max_new_tokens"


class _Verbose(BaseModel):
    content: Text  # what was written; the choice of a chat repeats the beginning of the turn before it
    stopping_word: Text
    truncated: bool


class _Payload(BaseModel):
    verbose: _Verbose | None = Field(default=None, alias="__verbose")


def sampling(settings: DecodingParameters) -> dict[str, Any]:
    """The fields that decide the draw: top-k, then top-p, at temperature 1, whatever the server was started with.

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


def text_of(payload: object, server: Server) -> str:
    """What was written, with the stop word that ended it, which the answer's ``text`` leaves out.

    Raises pydantic.ValidationError for another form; InputError when the server does not name the stop word, or when
    its context was full before the text ended.
    """
    verbose = _Payload.model_validate(payload).verbose
    if verbose is None:
        hint = "take llama.cpp's server of July 2026 or newer (or start it with -lv 10), or dialect: openai"
        raise InputError(f"server {server.base_url}", "does not tell in __verbose what ended a text", hint=hint)
    if verbose.truncated:
        raise InputError(f"server {server.base_url}", "its context was full before the text ended", hint=_SMALL)
    return verbose.content + verbose.stopping_word

"""What OpenAI-compatible servers are sent and what they answer, for every ``model.server.dialect``.

The OpenAI API has no top-k. Its answer says "stop" both when a stop word was met and when the model
ended the text itself, without the stop word. A dialect declares which further fields a server takes
and reports.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from sts_dino.generation.backends.protocol import Request
from sts_dino.hub.contract.recipe import QUOTE, DecodingParameters, LanguageModel, Server
from sts_dino.hub.errors import InputError

Body = dict[str, Any]
_MORE_CONTEXT = (
    "start it with more context (llama-server -c SLOTS×TOKENS -np SLOTS), or lower "
    "decoding.max_new_tokens"
)


@dataclass(frozen=True)
class Dialect:
    """One kind of server, declared once in ``DIALECTS``.

    ``make_sampling`` returns the request's fields for sampling.
    ``can_stop_at_quote`` returns whether the closing quotation mark may be a stop word, given
    whether log-probabilities are requested; else its text would look like one that ended by itself.
    ``opens_turn``: a chat model's turn can begin with our quotation mark.
    ``read_text`` reads the generated text where the choice's own field lacks it.
    """

    make_sampling: Callable[[DecodingParameters, Server], Body]
    can_stop_at_quote: Callable[[bool], bool]
    opens_turn: bool
    read_text: Callable[[object, Server], str] | None = None


# Requests

JSON_TOKENS = 16  # of the braces and the key around a sentence
SENTENCE_KEY = "sentence"


def make_answer_format(keys: Sequence[str]) -> Body:
    """Return the field that asks for a JSON object with a text under each key.

    It is OpenAI's structured output; vLLM's and llama.cpp's servers take the same field.
    """
    schema = {
        "type": "object",
        "properties": {key: {"type": "string"} for key in keys},
        "required": list(keys),
        "additionalProperties": False,
    }
    json_schema = {"name": "answer", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": json_schema}


def list_answer_keys(server: Server) -> tuple[str, ...]:
    """Return the keys of the texts in a JSON answer."""
    return (SENTENCE_KEY,) if server.contrast is None else tuple(server.contrast.keys.values())


def get_token_limit(server: Server, settings: DecodingParameters) -> int:
    """Return the most tokens of an answer: of its texts, and of the JSON around them."""
    if not server.structured_output:
        return settings.max_new_tokens
    return len(list_answer_keys(server)) * (settings.max_new_tokens + JSON_TOKENS)


def continues_quotation(model: LanguageModel, server: Server) -> bool:
    """Return whether an answer continues the prompt's open quotation.

    Chat models answer otherwise whose turn cannot be begun, or whose answer is JSON.
    """
    can_open_turn = DIALECTS[server.dialect].opens_turn and not server.structured_output
    return not model.chat_template or can_open_turn


def make_body(
    model: LanguageModel, server: Server, request: Request, settings: DecodingParameters
) -> Body:
    """Return all JSON fields of one request."""
    dialect = DIALECTS[server.dialect]
    body: Body = {
        "model": server.model,
        "max_tokens": get_token_limit(server, settings),
        "seed": request.seed >> 33,  # 31 bits: llama.cpp takes no more
    }
    if request.choice is not None:
        body["seed"] = request.choice.seed >> 33
        body["n"] = request.choice.total
    body |= _make_prompt(model, server, request)
    if continues_quotation(model, server):
        body["stop"] = ["\n"]
        if settings.text_end == "quotation_mark" and dialect.can_stop_at_quote(server.logprobs):
            body["stop"] = [QUOTE, "\n"]
    if server.logprobs:
        body["logprobs"] = model.chat_template or 1
    if server.structured_output:
        body["response_format"] = make_answer_format(list_answer_keys(server))
    return body | dialect.make_sampling(settings, server)


def _make_prompt(model: LanguageModel, server: Server, request: Request) -> Body:
    """Return the fields of a request that hold the prompt, which ends with a quotation mark."""
    if not model.chat_template:
        return {"prompt": request.prompt}

    # Examples: the assistant answers in the form that is asked for.
    messages: list[dict[str, str]] = []
    for prompt, text in request.example_turns:
        answer = f"{QUOTE}{text}{QUOTE}"
        if server.contrast is not None:
            answer = text
        elif server.structured_output:
            answer = json.dumps({SENTENCE_KEY: text}, ensure_ascii=False)
        messages += [_make_user_turn(prompt), {"role": "assistant", "content": answer}]
    messages.append(_make_user_turn(request.prompt))

    # The assistant's turn opens the quotation: prefilled where the server can continue a turn.
    if not continues_quotation(model, server):
        return {"messages": messages}
    return {
        "messages": [*messages, {"role": "assistant", "content": QUOTE}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


def _make_user_turn(prompt: str) -> dict[str, str]:
    return {"role": "user", "content": prompt.removesuffix(QUOTE)}


def _make_openai_sampling(settings: DecodingParameters, server: Server) -> Body:
    """``top_k`` is sent when the recipe asks for one, so that a server without top-k refuses it."""
    sampling: Body = {"temperature": 1.0, "top_p": settings.top_p}
    if settings.top_k:
        sampling["top_k"] = settings.top_k
    return sampling


def _make_vllm_sampling(settings: DecodingParameters, server: Server) -> Body:
    """Every field that a model's generation_config.json could change.

    The text has its stop word.
    """
    return {
        "temperature": 1.0,
        "top_p": settings.top_p,
        "top_k": settings.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "include_stop_str_in_output": True,
    }


def _make_transformers_sampling(settings: DecodingParameters, server: Server) -> Body:
    """``transformers serve`` samples only when the field generation_config requests it.

    The text has its stop word.
    """
    config = {
        "temperature": 1.0,
        "top_p": settings.top_p,
        "do_sample": True,
        "top_k": settings.top_k,
        "repetition_penalty": 1.0,
    }
    return {"generation_config": json.dumps(config)}


def _make_llamacpp_sampling(settings: DecodingParameters, server: Server) -> Body:
    """Top-k, then top-p, at temperature 1 (fields: tools/server/README.md of llama.cpp).

    Samplers that are not named are off (min_p is 0.05 otherwise). As in the engine, the end of text
    cannot be drawn where a quotation mark ends a text. JSON ends with the end of text.
    """
    needs_quote = settings.text_end == "quotation_mark" and not server.structured_output
    return {
        "temperature": 1.0,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "samplers": ["top_k", "top_p", "temperature"],
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "ignore_eos": needs_quote,
        "verbose": True,  # the answer's field __verbose
    }


# Answers


# how servers call the end of a turn that the model ended itself
_END_REASONS = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "completed")


@dataclass(frozen=True)
class Answer:
    """One answer as it was paid for: its text, why it ended, its tokens, and its likelihood."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    log_prob: float | None  # mean nats per token, the closing mark included; None: not reported
    model: str | None = None  # the name of the model that answered

    def has_ended(self, max_new_tokens: int) -> bool:
        """Return whether the model ended its text.

        A server that gives no reason is believed unless the text has as many tokens as allowed.
        """
        if self.finish_reason is None:
            return self.completion_tokens is None or self.completion_tokens < max_new_tokens
        return self.finish_reason.lower() in _END_REASONS


# HTTP statuses for the words of error objects; the first match counts
_STATUS_OF_WORDS = (
    (429, re.compile(r"rate.?limit|too.?many|quota|throttl", re.IGNORECASE)),
    (401, re.compile(r"auth|api.?key|permission|forbidden", re.IGNORECASE)),
    (404, re.compile(r"not.?found|no such model|does not exist", re.IGNORECASE)),
    (400, re.compile(r"invalid|bad.?request|unsupported|context", re.IGNORECASE)),
)
_UNKNOWN_FAILURE = 500


def find_error_status(payload: object) -> int | None:
    """Return the HTTP status that an error object in a body names; None: the body has none.

    Some servers and gateways answer 200 with ``{"error": {"message", "type", "code"}}``.
    """
    error = payload.get("error") if isinstance(payload, dict) else None
    if not error or (isinstance(payload, dict) and payload.get("choices")):
        return None
    fields = error if isinstance(error, dict) else {"message": error}
    for name in ("code", "status", "status_code"):
        status = str(fields.get(name))
        if re.fullmatch("[45][0-9][0-9]", status):
            return int(status)
    words = " ".join(str(fields.get(name)) for name in ("code", "type", "status", "message"))
    for named_status, pattern in _STATUS_OF_WORDS:
        if pattern.search(words):
            return named_status
    return _UNKNOWN_FAILURE


def replace_half_characters(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(replace_half_characters)]
# Rounding may lift 0 a little. The lowest number of float32 is llama.cpp's for a likelihood of 0.
_LogProb = Annotated[
    float,
    Field(ge=-3.4028235e38, le=1e-4, strict=True),
    AfterValidator(lambda log_prob: min(log_prob, 0.0)),
]


class _Message(BaseModel):
    content: Text | None = None


class _Token(BaseModel):
    token: Text = ""
    logprob: _LogProb | None = None


class _LogProbs(BaseModel):
    """Both forms of the API: ``content`` of chats, or ``tokens`` and ``token_logprobs``."""

    content: list[_Token] | None = None
    tokens: list[Text] | None = None
    token_logprobs: list[_LogProb | None] | None = None


class _Choice(BaseModel):
    text: Text | None = None
    message: _Message | None = None
    finish_reason: Text | None = None
    logprobs: _LogProbs | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0, le=2**53)
    completion_tokens: int | None = Field(default=None, ge=0, le=2**53)


class _Verbose(BaseModel):
    """The generated text; the choice of a chat repeats the beginning of the turn before it."""

    content: Text
    stopping_word: Text
    truncated: bool


class _Payload(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
    model: object = None


class _LlamacppPayload(BaseModel):
    verbose: _Verbose | None = Field(default=None, alias="__verbose")


def read_answer(
    payload: object, model: LanguageModel, server: Server, settings: DecodingParameters
) -> Answer:
    """Return the answer in the JSON of /completions or /chat/completions.

    Raises:
        pydantic.ValidationError: the JSON has another form.
        InputError: it lacks a field of the dialect.
    """
    parsed = _Payload.model_validate(payload)
    choice = parsed.choices[0]
    usage = parsed.usage or _Usage()
    text = choice.text if choice.message is None else choice.message.content
    closes = continues_quotation(model, server) and settings.text_end == "quotation_mark"
    log_prob = _compute_mean_log_prob(choice.logprobs or _LogProbs(), text or "", closes)
    read_text = DIALECTS[server.dialect].read_text
    if read_text:
        generated = read_text(payload, server)
        # of JSON, llama.cpp's own reader removes what a chat template puts around it
        text = text if server.structured_output else generated
    return Answer(
        text or "",
        choice.finish_reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        log_prob,
        replace_half_characters(parsed.model) if isinstance(parsed.model, str) else None,
    )


def read_answers(
    payload: object,
    model: LanguageModel,
    server: Server,
    settings: DecodingParameters,
    count: int = 1,
) -> list[Answer]:
    """Return at most ``count`` answers: one for each choice, in the server's order.

    The first one has the tokens of all. llama.cpp counts the tokens of the first choice alone.
    Raises as ``read_answer``.
    """
    answers = [read_answer(payload, model, server, settings)]
    assert isinstance(payload, dict), "read_answer checks this"
    tokens = None if server.dialect == "llamacpp" else 0
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens}
    for choice in payload["choices"][1:count]:
        alone = {**payload, "choices": [choice], "usage": usage}
        answers.append(read_answer(alone, model, server, settings))
    return answers


def _compute_mean_log_prob(logprobs: _LogProbs, text: str, closes: bool) -> float | None:
    """Return the mean over the tokens up to the one that closes the quotation, or None."""
    if logprobs.content is not None:
        tokens = [token.token for token in logprobs.content]
        values = [token.logprob for token in logprobs.content]
    else:
        values = logprobs.token_logprobs or []
        tokens = (logprobs.tokens or [])[: len(values)]
        values = values[: len(tokens)]

    if closes:
        closing = next((index for index, token in enumerate(tokens) if QUOTE in token), None)
        if closing is not None:
            values = values[: closing + 1]
        elif QUOTE in text:
            # the mark came in one token with a stop word, which some servers leave out here
            return None
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def _read_llamacpp_text(payload: object, server: Server) -> str:
    """Return the generated text with the stop word that ended it; the field ``text`` lacks it.

    Raises:
        pydantic.ValidationError: the JSON has another form.
        InputError: the server does not name the stop word, or its context was full before the text
            ended.
    """
    place = f"server {server.base_url}"
    verbose = _LlamacppPayload.model_validate(payload).verbose
    if verbose is None:
        raise InputError(
            place,
            "does not report in __verbose what ended a text",
            hint="use llama.cpp's server of July 2026 or newer (or start it with -lv 10), or "
            "dialect: openai",
        )
    if verbose.truncated:
        raise InputError(place, "its context was full before the text ended", hint=_MORE_CONTEXT)
    return verbose.content + verbose.stopping_word


DIALECTS = {
    "openai": Dialect(_make_openai_sampling, lambda logprobs: False, opens_turn=False),
    "vllm": Dialect(_make_vllm_sampling, lambda logprobs: True, opens_turn=True),
    "transformers": Dialect(_make_transformers_sampling, lambda logprobs: True, opens_turn=False),
    # llama.cpp gives no log-probability for a stop word, so none is sent where those are requested
    "llamacpp": Dialect(
        _make_llamacpp_sampling,
        lambda logprobs: not logprobs,
        opens_turn=True,
        read_text=_read_llamacpp_text,
    ),
}

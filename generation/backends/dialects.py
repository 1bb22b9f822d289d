"""Requests to OpenAI-compatible servers and their answers, for every ``model.server.dialect``.

The OpenAI API has no top-k. Its answer says "stop" both when the text has reached a stop word and
when the model has ended the text itself. A dialect declares which further fields a server takes and
reports.
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
_MOST_COUNT = 2**53  # larger numbers of tokens are damage: JSON's numbers are exact up to here
_MORE_CONTEXT = (
    "start it with more context (llama-server -c SLOTS×TOKENS -np SLOTS), or lower "
    "decoding.max_new_tokens"
)


@dataclass(frozen=True)
class Dialect:
    """One kind of server, declared once in ``DIALECTS``.

    - ``make_sampling``: returns the request's fields for sampling.
    - ``can_stop_at_quote``: returns whether the closing quotation mark may be a stop word, given
      whether log-probabilities are requested. It may not if the answer then lacks the mark: such a
      text looks like one that the model ended without the mark.
    - ``opens_turn``: whether the request can begin the model's turn with a quotation mark.
    - ``read_text``: reads the whole generated text from an answer's JSON; None: the API's usual
      field has the whole text. It raises what ``read_answer`` raises.
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
    """Return the keys of the texts in a JSON answer: with ``contrast`` one for each label."""
    if server.contrast is None:
        return (SENTENCE_KEY,)
    return tuple(server.contrast.keys.values())


def get_token_limit(server: Server, settings: DecodingParameters) -> int:
    """Return the most tokens of one answer, including the JSON around its texts."""
    if not server.structured_output:
        return settings.max_new_tokens
    return len(list_answer_keys(server)) * (settings.max_new_tokens + JSON_TOKENS)


def continues_quotation(model: LanguageModel, server: Server) -> bool:
    """Return whether an answer continues the prompt's open quotation.

    It does not if a chat model's turn cannot begin with a quotation mark, or if its answer is JSON.
    """
    can_open_turn = DIALECTS[server.dialect].opens_turn and not server.structured_output
    return not model.chat_template or can_open_turn


def make_body(
    model: LanguageModel, server: Server, request: Request, settings: DecodingParameters
) -> Body:
    """Return all JSON fields of one request to /completions or, in a chat, /chat/completions."""
    # Name the model, the prompt and the number of texts
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

    # Say where a text ends, and what the answer reports
    if continues_quotation(model, server):
        body["stop"] = ["\n"]
        if settings.text_end == "quotation_mark" and dialect.can_stop_at_quote(server.logprobs):
            body["stop"] = [QUOTE, "\n"]
    if server.logprobs:
        # chats take a truth value, completions the number of alternatives for each token
        body["logprobs"] = True if model.chat_template else 1
    if server.structured_output:
        body["response_format"] = make_answer_format(list_answer_keys(server))
    return body | dialect.make_sampling(settings, server)


def _make_prompt(model: LanguageModel, server: Server, request: Request) -> Body:
    """Return the field ``prompt``, or the fields of a chat: examples, prompt, open quotation."""
    if not model.chat_template:
        return {"prompt": request.prompt}

    # Examples: the assistant answers in the requested format.
    messages: list[dict[str, str]] = []
    for prompt, text in request.example_turns:
        answer = f"{QUOTE}{text}{QUOTE}"
        if server.contrast is not None:
            answer = text
        elif server.structured_output:
            answer = json.dumps({SENTENCE_KEY: text}, ensure_ascii=False)
        messages += [_make_user_turn(prompt), {"role": "assistant", "content": answer}]
    messages.append(_make_user_turn(request.prompt))

    # Begin the assistant's turn with the quotation mark, if the server can continue a turn.
    if not continues_quotation(model, server):
        return {"messages": messages}
    return {
        "messages": [*messages, {"role": "assistant", "content": QUOTE}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


def _make_user_turn(prompt: str) -> dict[str, str]:
    """Return a user's turn with a prompt, without the quotation mark that opens the answer."""
    return {"role": "user", "content": prompt.removesuffix(QUOTE)}


def _make_openai_sampling(settings: DecodingParameters, server: Server) -> Body:
    """Return the fields of the OpenAI API, and ``top_k`` unless it is 0.

    A server without top-k should then refuse the request, instead of sampling otherwise.
    """
    sampling: Body = {"temperature": 1.0, "top_p": settings.top_p}
    if settings.top_k:
        sampling["top_k"] = settings.top_k
    return sampling


def _make_vllm_sampling(settings: DecodingParameters, server: Server) -> Body:
    """Return vLLM's sampling fields, all set.

    So no default of a model's generation_config.json applies. The value -1 turns ``top_k`` off. The
    last field keeps the stop word at the end of the answer's text.
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
    """Return the field ``generation_config`` of ``transformers serve``.

    Without ``do_sample`` it would not sample. The answer's text includes its stop word.
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
    """Return the fields for top-k, then top-p, at temperature 1 (tools/server/README.md).

    Samplers that are not named are off (the default of min_p is 0.05). As in the engine, the model
    cannot draw its end of text where a quotation mark ends a text; JSON ends with the end of text.
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


OPEN_REASONING = "<think>"  # opens the reasoning in a model's text
REFUSAL = "refusal"  # in place of ``finish_reason``, where the turn is a field ``refusal``
# ``finish_reason`` of a turn that the model or a stop word ended
_END_REASONS = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "completed")


@dataclass(frozen=True)
class Answer:
    """One answer of a server: its text, why it ended, its numbers of tokens, and its likelihood."""

    text: str
    finish_reason: str | None  # the server's word, or REFUSAL; None: not reported
    prompt_tokens: int | None  # None: not reported
    completion_tokens: int | None
    log_prob: float | None  # mean nats per token, the closing mark included; None: not reported
    model: str | None = None  # the name of the model that answered

    def has_ended(self, max_new_tokens: int) -> bool:
        """Return whether the model or a stop word ended the text, not the limit of its length.

        An answer without a reason counts as ended unless it has ``max_new_tokens`` tokens.
        """
        if self.finish_reason is None:
            return self.completion_tokens is None or self.completion_tokens < max_new_tokens
        return self.finish_reason.lower() in _END_REASONS


# HTTP status → words of an error object that mean it; the first match counts
_STATUS_OF_WORDS = (
    # first of all: the message of a server's own failure may have the words of another status
    (500, re.compile(r"server_error|internal.?server.?error", re.IGNORECASE)),
    # "Too many tokens, please wait" is a rate limit, "too many tokens" alone a prompt too long
    (
        429,
        re.compile(
            r"rate.?limit|too.?many.?(?:\w+ )?(?:requests|connections|tokens(?:[,.]? please| per))"
            r"|quota|throttl",
            re.IGNORECASE,
        ),
    ),
    # "authentication", "unauthorized"; not "author"
    (401, re.compile(r"auth(?!or(?!i[sz]))|api.?key|permission|forbidden", re.IGNORECASE)),
    (404, re.compile(r"not.?found|no such model|does not exist", re.IGNORECASE)),
    # Programs in Go word a timeout "context deadline exceeded" or "context canceled".
    (
        400,
        re.compile(
            r"invalid|bad.?request|unsupported|too.?many.?(?:\w+ )?tokens"
            r"|context(?! (?:deadline|cancel))",
            re.IGNORECASE,
        ),
    ),
)
_UNKNOWN_FAILURE = 500


def find_error_status(payload: object) -> int | None:
    """Return the HTTP status that the error object in a body means; None without an error object.

    Some servers and gateways answer 200 with ``{"error": {"message", "type", "code"}}``. An error
    without a known status or word counts as 500. A body with choices is an answer, in spite of a
    field ``error``.
    """
    # Find the error object
    if not isinstance(payload, dict) or payload.get("choices"):
        return None
    error = payload.get("error")
    if not error:
        return None
    fields = error if isinstance(error, dict) else {"message": error}

    # Take the status that it has, else the one that its words mean
    for name in ("code", "status", "status_code"):
        status = str(fields.get(name))
        if re.fullmatch("[45][0-9][0-9]", status):
            return int(status)
    error_text = " ".join(str(fields.get(name)) for name in ("code", "type", "status", "message"))
    for named_status, pattern in _STATUS_OF_WORDS:
        if pattern.search(error_text):
            return named_status
    return _UNKNOWN_FAILURE


def replace_half_characters(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, which no file can hold.

    Two surrogates that are a pair become their character.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(replace_half_characters)]
# Rounding may raise 0 a little. llama.cpp reports a likelihood of 0 as the lowest float32.
_LogProb = Annotated[
    float,
    Field(ge=-3.4028235e38, le=1e-4, strict=True),
    AfterValidator(lambda log_prob: min(log_prob, 0.0)),
]


class _Message(BaseModel):
    """A model's turn. A server may put reasoning and refusals into fields of their own.

    Without ``content``, reasoning is read as unclosed reasoning in the text.
    """

    content: Text | None = None
    refusal: object = None  # OpenAI: a text in place of the content
    reasoning: object = None  # Ollama, vLLM
    reasoning_content: object = None  # llama.cpp, and vLLM before 2026

    @property
    def is_refusal(self) -> bool:
        """Whether the turn is a refusal, in OpenAI's field for it."""
        return not self.content and isinstance(self.refusal, str)

    @property
    def text(self) -> str:
        """The content; without it the refusal, else the reasoning, else an empty text."""
        if self.content:
            return self.content
        if isinstance(self.refusal, str):
            return replace_half_characters(self.refusal)
        for reasoning in (self.reasoning, self.reasoning_content):
            if isinstance(reasoning, str) and reasoning:
                return replace_half_characters(f"{OPEN_REASONING}{reasoning}")
        return ""


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
    prompt_tokens: int | None = Field(default=None, ge=0, le=_MOST_COUNT)
    completion_tokens: int | None = Field(default=None, ge=0, le=_MOST_COUNT)


class _Verbose(BaseModel):
    """llama.cpp's generated text, and why it ended.

    In a chat, the text of the choice begins with the part of the turn that the request gave;
    ``content`` does not.
    """

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
    """Return the first choice in the JSON of /completions or /chat/completions.

    Raises:
        pydantic.ValidationError: the JSON has another form.
        InputError: it lacks a field of the dialect, or the server's context was too small.
    """
    # Read the usual fields
    parsed = _Payload.model_validate(payload)
    choice = parsed.choices[0]
    usage = parsed.usage or _Usage()
    message = choice.message or _Message(content=choice.text)
    text = message.text
    closes = continues_quotation(model, server) and settings.text_end == "quotation_mark"
    log_prob = _compute_mean_log_prob(choice.logprobs or _LogProbs(), text, closes)

    # Read the text from a field of the dialect, if it has one
    read_text = DIALECTS[server.dialect].read_text
    if read_text:
        generated = read_text(payload, server)  # raises where the context was too small
        # JSON is whole in the usual field, where llama.cpp has removed the template's tokens
        if not server.structured_output:
            text = generated
    return Answer(
        text,
        REFUSAL if message.is_refusal else choice.finish_reason,
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

    The first answer has the prompt's tokens, later answers have 0. Generated tokens are divided
    among the choices, since the server reports their sum. llama.cpp reports the tokens of the first
    choice alone, so its later answers have None for both. So do all answers of a server that
    reports no tokens. Raises what ``read_answer`` raises.
    """
    # Read the first choice, which proves the form of the JSON
    first = read_answer(payload, model, server, settings)
    assert isinstance(payload, dict), "read_answer checks this"
    choices = payload["choices"][:count]
    if len(choices) == 1:
        return [first]

    # Read each choice as if it were the only one, with its share of the tokens
    has_sum = server.dialect != "llamacpp"
    answers: list[Answer] = []
    for number, choice in enumerate(choices):
        usage: dict[str, int | None] = {
            "prompt_tokens": first.prompt_tokens,
            "completion_tokens": first.completion_tokens,
        }
        if number and first.prompt_tokens is not None:
            usage["prompt_tokens"] = 0 if has_sum else None
        if has_sum and first.completion_tokens is not None:
            share, remainder = divmod(first.completion_tokens, len(choices))
            usage["completion_tokens"] = share + (number < remainder)
        elif number:
            usage["completion_tokens"] = None
        alone = {**payload, "choices": [choice], "usage": usage}
        answers.append(read_answer(alone, model, server, settings))
    return answers


def _compute_mean_log_prob(logprobs: _LogProbs, text: str, closes: bool) -> float | None:
    """Return the mean log-probability of the tokens of a text in nats.

    Returns None without tokens, if a counted token has no log-probability, and if the closing
    quotation mark is in the text but in no token.

    Args:
        logprobs: the log-probabilities of the answer's tokens.
        text: the text of the answer.
        closes: a quotation mark ends the text; tokens after the first token with a mark do not
            count.
    """
    # Read both forms of the API
    if logprobs.content is not None:
        tokens = [token.token for token in logprobs.content]
        values = [token.logprob for token in logprobs.content]
    else:
        values = logprobs.token_logprobs or []
        tokens = (logprobs.tokens or [])[: len(values)]
        values = values[: len(tokens)]

    # Leave out the tokens after the closing quotation mark
    if closes:
        closing = next((index for index, token in enumerate(tokens) if QUOTE in token), None)
        if closing is not None:
            values = values[: closing + 1]
        elif QUOTE in text:
            # some servers report no log-probability for a token that has the mark and a stop word
            return None

    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    return sum(numbers) / len(numbers)


def _read_llamacpp_text(payload: object, server: Server) -> str:
    """Return the generated text with the stop word that ended it; the field ``text`` lacks it.

    ``payload``: the JSON of an answer. ``server``: the server's settings, for errors.

    Raises:
        pydantic.ValidationError: the JSON has another form.
        InputError: the server does not name the stop word, or its context was full before the text
            ended.
    """
    location = f"server {server.base_url}"
    verbose = _LlamacppPayload.model_validate(payload).verbose
    if verbose is None:
        raise InputError(
            location,
            "does not report in __verbose what ended a text",
            hint="use llama.cpp's server of July 2026 or newer (or start it with -lv 10), or "
            "dialect: openai",
        )
    if verbose.truncated:
        raise InputError(location, "its context was full before the text ended", hint=_MORE_CONTEXT)
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

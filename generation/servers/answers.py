"""From what a model said to a ``Completion``: the same words and the same problems as the engine's. Pure."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from generation.decoding.endings import cut
from generation.decoding.protocol import Completion
from hub.contract.recipe import QUOTE, TextEnd
from hub.contract.schema import EMPTY, NOT_CLOSED

_STRAIGHT = str.maketrans({"\u201c": QUOTE, "\u201d": QUOTE})
_LABEL = re.compile(r'(\w[\w ]*:)\s*"?$')  # what a prompt ends with before the opening mark, e.g. "Answer:"
_LEAD_LINE = re.compile(r'^[^"\n]*:\s*\n\s*')  # "Here is a sentence:" on a line of its own
_OPENED = re.compile(r'(?:[^"\n]*:\s*)?"(.*)', re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """One answer as it was paid for: its text, why it ended, what it cost, and how likely it was.

    ``log_prob`` is the mean in nats per token, the closing mark included; None where the server does not tell.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    log_prob: float | None


def _utf8(text: str) -> str:
    text.encode()  # half a character (a lone surrogate) is no text: UnicodeEncodeError, a ValueError
    return text


Text = Annotated[str, AfterValidator(_utf8)]


class _Message(BaseModel):
    content: Text | None = None


class _Choice(BaseModel):
    text: Text | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0, le=2**53)
    completion_tokens: int | None = Field(default=None, ge=0, le=2**53)


class _Payload(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def read_answer(payload: object, closes: bool) -> Answer:
    """The answer in the JSON of /completions or /chat/completions; ``closes``: a quotation mark ends its text.

    Raises pydantic.ValidationError when it has another form.
    """
    found = _Payload.model_validate(payload)
    choice, usage = found.choices[0], found.usage or _Usage()
    text = choice.text if choice.message is None else choice.message.content
    log_prob = _mean_log_prob(choice.logprobs or {}, text or "", closes)
    return Answer(text or "", choice.finish_reason, usage.prompt_tokens, usage.completion_tokens, log_prob)


def _mean_log_prob(logprobs: dict[str, Any], text: str, closes: bool) -> float | None:
    """Over the tokens up to the one that closes the quotation; both forms of the API are read."""
    if isinstance(content := logprobs.get("content"), list):
        pairs = [(token.get("token"), token.get("logprob")) for token in content]
    else:
        pairs = list(zip(logprobs.get("tokens") or [], logprobs.get("token_logprobs") or [], strict=False))
    if closes:
        closing = [place for place, (token, _) in enumerate(pairs) if QUOTE in str(token)]
        if QUOTE in text and not closing:
            return None  # the mark came in one token with a stop word, of which some servers tell nothing
        pairs = pairs[: closing[0] + 1] if closing else pairs
    values = [value for _, value in pairs if isinstance(value, (int, float))]
    return sum(values) / len(values) if values and len(values) == len(pairs) else None


def completed(
    text: str, log_prob: float | None, text_end: TextEnd = "quotation_mark", ended: bool = False
) -> Completion:
    """What follows an opening quotation mark: the text up to its end, and the engine's problems.

    ``ended``: the server says that the model stopped by itself, or at the end of the line.
    """
    return Completion(*cut(text, ended, text_end), log_prob, None)


def said(prompt: str, answer: Answer) -> Completion:
    """The text in a chat model's own turn, which no quotation mark of ours opens.

    A line that ends in a colon before the text, and the prompt's own last words (``Answer:``), are passed over. If a
    quotation follows, the text is what it holds; a mark at the end of the line alone closes a text that none opened.
    Otherwise it is the first line, provided that it holds no quotation mark and that the model ended it (by a line
    break or by ending its turn).
    """
    words = _LEAD_LINE.sub("", answer.text.translate(_STRAIGHT).strip())
    label = _LABEL.search(prompt)
    if label and words.lower().startswith(label[1].lower()):
        words = words[len(label[1]) :].lstrip()
    if opened := _OPENED.match(words):
        return completed(opened[1], answer.log_prob)
    line, more, _ = words.partition("\n")
    line = line.rstrip()
    if line.find(QUOTE) == len(line) - 1 >= 0:
        return completed(line, answer.log_prob)
    ended = QUOTE not in line and (more or answer.finish_reason == "stop")
    problem = EMPTY if not line else None if ended else NOT_CLOSED
    return Completion(line, problem.name if problem else None, answer.log_prob, None)

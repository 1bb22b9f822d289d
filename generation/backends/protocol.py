"""Writer protocol: the request for one text, its completion, and the class that completes it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from sts_dino.generation.inputs.prompts import TokenCounter
from sts_dino.hub.contract.recipe import QUOTE, DecodingParameters, TextEnd
from sts_dino.hub.contract.schema import EMPTY, LINE_BREAK, NOT_CLOSED


class Choice(NamedTuple):
    """One of the texts that a server gives in one answer."""

    number: int  # index of the text among them, from 0
    total: int  # number of texts of the answer
    seed: int  # seed of the HTTP request


@dataclass(frozen=True)
class Request:
    """A request for one text: a prompt that ends in an opening quotation mark, and a seed.

    Only the engine reads ``counter_prompts``, ``scored_prompts``, ``plain_prompt``,
    ``decay_constant`` and ``guidance``; only a server reads ``example_turns``, ``answer_key`` and
    ``choice``.
    """

    prompt: str
    counter_prompts: tuple[str, ...]
    seed: int
    key: Any = None  # the caller's identifier of the request
    # the text is scored under these prompts; they do not change it
    scored_prompts: tuple[str, ...] = ()
    plain_prompt: str | None = None  # guidance leads away from it
    decay_constant: float | None = None  # λ of this text; None: that of the settings
    guidance: float | None = None  # γ of this text; None: that of the settings
    # earlier turns of a chat: the prompt and the text of each example
    example_turns: tuple[tuple[str, str], ...] = ()
    # the key of the text in a JSON object with the texts of all labels; "": the text is alone
    answer_key: str = ""
    choice: Choice | None = None  # None: the answer has this text alone

    @property
    def compared_count(self) -> int:
        """Number of prompts that self-debiasing compares: the own prompt and the counter-prompts.

        ``reported_prompts`` begins with them.
        """
        return 1 + len(self.counter_prompts)

    def get_decay_constant(self, settings: DecodingParameters) -> float:
        """Return λ of the text: the request's, else the settings'."""
        if self.decay_constant is None:
            return settings.decay_constant
        return self.decay_constant

    def get_guidance(self, settings: DecodingParameters) -> float:
        """Return γ of the text: the request's, else the settings'; 0 without a plain prompt."""
        if self.plain_prompt is None:
            return 0.0
        return settings.guidance if self.guidance is None else self.guidance

    @property
    def reported_prompts(self) -> tuple[str, ...]:
        """Prompts under which a log-probability is reported.

        These are the own prompt, the counter-prompts, and then, once each, the scored prompts that
        are neither.
        """
        compared = (self.prompt, *self.counter_prompts)
        scored = dict.fromkeys(self.scored_prompts)
        return (*compared, *(prompt for prompt in scored if prompt not in compared))

    @property
    def prompts(self) -> tuple[str, ...]:
        """One prompt per model row of the text: ``reported_prompts``, then the plain prompt."""
        if self.plain_prompt is None:
            return self.reported_prompts
        return (*self.reported_prompts, self.plain_prompt)

    @property
    def plain_row(self) -> int:
        """Index of the plain prompt in ``prompts``; 0, the own prompt, if there is none."""
        return 0 if self.plain_prompt is None else len(self.reported_prompts)


@dataclass(frozen=True)
class Completion:
    """The generated text up to its end (``decoding.text_end``), and its statistics."""

    text: str
    problem: str | None  # one of sts_dino.hub.contract.schema.COMPLETION; None: a usable text
    # mean nats per token, the ending one included, under the own prompt; None: not reported
    log_prob: float | None
    # log_prob minus the highest such mean under a counter-prompt; None without counter-prompts
    margin: float | None
    # sum of the nats of all tokens, the ending one included, under each scored prompt
    log_likelihoods: tuple[float, ...] = ()


class Writer(TokenCounter, Protocol):
    """A language model that completes quoted texts: the engine or a server backend."""

    def stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        batch_size: int | None,
        prefixes: Sequence[str] = (),
    ) -> Iterator[tuple[Request, Completion]]:
        """Complete the requests of ``queue`` until it is empty; yield each when it is done.

        The caller may add requests between two yields, on the left if their prompts were used
        before.

        Args:
            queue: requests that wait; a request leaves it when its decoding starts.
            settings: decoding parameters of all requests.
            batch_size: model rows decoded together; None: as many as fit. It changes no text with
                shared attention in float32 on a CPU with one thread. A server ignores it.
            prefixes: texts that many prompts begin with; the model reads them once. They may change
                the last bits of probabilities. A server ignores them.

        Raises:
            InputError: a prompt and ``max_new_tokens`` do not fit the model's context, a chat
                template cannot be used, or the server refuses a request.
            RunError: memory is too small for one text, or the server fails.
        """

    def choose_queue_length(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """Return how many requests the queue needs to fill the batch; they may be of later shards.

        Returns 0 if a text may depend on the others in the queue. Each shard is then generated
        alone, so that it is reproducible.
        """

    def describe(self) -> dict[str, Any]:
        """Return facts about the model for the manifest and the card.

        One is ``parameters``, their number, or None if it is unknown.
        """


def complete(
    writer: Writer,
    requests: Sequence[Request],
    settings: DecodingParameters,
    batch_size: int | None = None,
    prefixes: Sequence[str] = (),
) -> list[Completion]:
    """Return the completions of ``requests`` in their order; ``Request.key`` plays no part.

    The other arguments are those of ``Writer.stream``, whose errors are raised.
    """
    queue = deque(replace(request, key=index) for index, request in enumerate(requests))
    completions: dict[int, Completion] = {}
    for request, completion in writer.stream(queue, settings, batch_size, prefixes):
        completions[request.key] = completion
    return [completions[index] for index in range(len(requests))]


def extract_text(generated: str, ended: bool, text_end: TextEnd) -> tuple[str, str | None]:
    """Return the text in what a model generated after an opening quotation mark, and its problem.

    Args:
        generated: everything that the model wrote after the opening quotation mark.
        ended: the model ended the text by itself. This ends a line; a quotation has to be closed.
        text_end: the recipe's ``decoding.text_end``.

    Returns:
        The text on the first line, without spaces around it; and EMPTY, LINE_BREAK or NOT_CLOSED of
        ``sts_dino.hub.contract.schema``, or None.
    """
    if text_end == "line":
        return _extract_line(generated, ended)
    inside, quote, _ = generated.partition(QUOTE)
    first_line, line_break, _ = inside.partition("\n")
    text = first_line.strip()
    if line_break:
        return text, LINE_BREAK
    if not quote:
        return text, NOT_CLOSED
    return text, None if text else EMPTY


def _extract_line(generated: str, ended: bool) -> tuple[str, str | None]:
    """Return the first line, without a quotation mark at its end, and its problem or None.

    A full stop after that mark is removed with it. A mark that closes a quotation inside the text
    stays. The problem is NOT_CLOSED for a line that neither a line break, a quotation mark nor the
    model ended, and EMPTY for any other line without text. ``ended``: the model ended the text by
    itself.
    """
    line, line_break, _ = generated.partition("\n")
    line = line.strip()
    last_mark = f"{QUOTE}." if line.endswith(".") else QUOTE
    unquoted = line.removesuffix(last_mark)
    if unquoted.count(QUOTE) % 2:  # the last mark closes a quotation inside the text
        unquoted = line
    text = unquoted.strip()
    if not (line_break or ended or unquoted != line):
        return text, NOT_CLOSED
    return text, None if text else EMPTY

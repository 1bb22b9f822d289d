"""Writer protocol: how the engine and the server backends are asked for texts, and what they answer."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from generation.inputs.prompts import TokenCounter
from hub.contract.recipe import QUOTE, DecodingParameters, TextEnd
from hub.contract.schema import EMPTY, LINE_BREAK, NOT_CLOSED


@dataclass(frozen=True)
class Request:
    """One text to write: a prompt that ends in an opening quotation mark, its counter-prompts and its seed."""

    prompt: str
    counter_prompts: tuple[str, ...]
    seed: int
    key: Any = None  # the caller's own, handed back with the completion
    scored_prompts: tuple[str, ...] = ()  # under which the text is scored; they do not change it (the engine alone)
    plain_prompt: str | None = None  # which guidance leads away from (the engine alone)
    decay_constant: float | None = None  # λ of this text; None: that of the settings (the engine alone)
    guidance: float | None = None  # γ of this text; None: that of the settings (the engine alone)

    @property
    def debiased_by(self) -> int:
        """How many of ``reported_prompts``, the first ones, self-debiasing compares: 1 + K."""
        return 1 + len(self.counter_prompts)

    def decay_constant_in(self, settings: DecodingParameters) -> float:
        """λ of the text."""
        return settings.decay_constant if self.decay_constant is None else self.decay_constant

    def guidance_in(self, settings: DecodingParameters) -> float:
        """γ of the text, 0 where it has no plain prompt."""
        chosen = settings.guidance if self.guidance is None else self.guidance
        return 0.0 if self.plain_prompt is None else chosen

    @property
    def reported_prompts(self) -> tuple[str, ...]:
        """The prompts whose log-probabilities are reported: own, counter-prompts, then those it is scored under."""
        drawn = (self.prompt, *self.counter_prompts)
        return (*drawn, *(prompt for prompt in dict.fromkeys(self.scored_prompts) if prompt not in drawn))

    @property
    def prompts(self) -> tuple[str, ...]:
        """One for each of the text's rows: the reported ones, then the plain one if there is any."""
        return self.reported_prompts if self.plain_prompt is None else (*self.reported_prompts, self.plain_prompt)

    @property
    def plain_row(self) -> int:
        """Which of ``prompts`` is the plain one; the text's own where there is none."""
        return 0 if self.plain_prompt is None else len(self.reported_prompts)


@dataclass(frozen=True)
class Completion:
    """The text up to its end (``decoding.endings``). ``problem``: one of ``hub.contract.schema.COMPLETION``."""

    text: str
    problem: str | None
    log_prob: float | None  # mean nats per token, the ending one included, under the own prompt; None: not reported
    margin: float | None  # log_prob minus the best counter-prompt's; None without counter-prompts
    log_likelihoods: tuple[float, ...] = ()  # nats of all tokens, the ending one included, under each scored prompt


class Writer(TokenCounter, Protocol):
    """A language model that completes quoted texts: ``generation.backends.engine.Engine`` or a backend."""

    def stream(
        self, queue: deque[Request], settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """Complete the requests of ``queue``, yielding each as it is done, until the queue is empty.

        The caller may add requests between two yields, on the left if their prompts were asked before. ``prefixes`` are
        shared by many prompts and computed once. Neither they nor ``batch_size`` change a text.

        Raises InputError when a prompt and the token budget do not fit the model's context.
        """

    def ahead(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """How many requests to keep in the queue, those of further shards among them, so that the batch stays full.

        0: a text may depend on the others in the queue, and a shard is to be generated alone to be reproducible.
        """

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest: ``parameters`` (None when not known) and whatever else the card should say."""


def complete(
    writer: Writer,
    requests: Sequence[Request],
    settings: DecodingParameters,
    batch_size: int | None = None,
    prefixes: Sequence[str] = (),
) -> list[Completion]:
    """The completions of ``requests``, in their order."""
    queue = deque(replace(request, key=place) for place, request in enumerate(requests))
    done = {request.key: completion for request, completion in writer.stream(queue, settings, batch_size, prefixes)}
    return [done[place] for place in range(len(requests))]


def cut(written: str, ended: bool, text_end: TextEnd) -> tuple[str, str | None]:
    """The text in a completion of an open quotation mark, and its problem.

    ``ended``: the model ended the text by itself. The problem: one of ``hub.contract.schema.COMPLETION``, or None.
    """
    if text_end == "line":
        line, broken, _ = written.partition("\n")
        line = line.strip()
        closing = next((mark for mark in (f"{QUOTE}.", QUOTE) if line.endswith(mark)), "")
        text = line.removesuffix(closing).strip()
        problem = NOT_CLOSED if not (broken or ended or closing) else None if text else EMPTY
    else:
        inner, closed, _ = written.partition(QUOTE)
        text = inner.split("\n")[0].strip()
        problem = LINE_BREAK if "\n" in inner else NOT_CLOSED if not closed else None if text else EMPTY
    return text, problem

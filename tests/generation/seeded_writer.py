"""A writer whose texts and likelihoods are a function of the request, as an engine's are; it ends
them in any order.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sts_dino.generation.backends.protocol import Completion, Request
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.rows.attempts import generate_shards
from sts_dino.hub.contract.recipe import DecodingParameters, Variant
from sts_dino.hub.contract.shards import read_shard

FIRSTS = [SourceSentence(f"{i:06d}", "word " * length) for i, length in enumerate((9, 1, 5, 2, 7))]


class SeededWriter:
    """``share`` of its texts are closed; ``choice``: its texts, each as often; None: never the same
    twice.
    """

    context = 0

    def __init__(self, order: int, share: float, choice: Sequence[str] | None = None):
        self.order, self.share, self.choice = random.Random(order), share, choice
        self.asked: list[Request] = []
        self.settings: DecodingParameters | None = None
        self.prefixes: tuple[str, ...] = ()

    def stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        batch_size: int | None,
        prefixes: Sequence[str] = (),
    ) -> Iterator[tuple[Request, Completion]]:
        self.settings, self.prefixes, live = settings, tuple(prefixes), list[Request]()
        while queue or live:
            while queue and len(live) < 7:
                live.append(queue.popleft())
                self.asked.append(live[-1])
            request = live.pop(self.order.randrange(len(live)))
            numbers = random.Random(request.seed)
            good = numbers.random() < self.share
            text = numbers.choice(self.choice) if self.choice else f"text {request.seed}"
            yield request, Completion(text, None if good else "not_closed", -1.0, None)

    def choose_queue_length(self, settings: DecodingParameters, batch_size: int | None) -> int:
        return 7

    def count_tokens(self, text: str) -> int:
        return len(text)

    def is_control(self, text: str) -> bool:
        return False

    def describe(self) -> dict[str, object]:
        return {}


class ScoringWriter(SeededWriter):
    """Gives likelihoods under the scored prompts, too."""

    def stream(self, queue, settings, batch_size, prefixes=()):
        for request, done in super().stream(queue, settings, batch_size, prefixes):
            numbers = np.random.default_rng(request.seed)
            yield (
                request,
                replace(
                    done, log_likelihoods=tuple(numbers.normal(-9, 4, len(request.scored_prompts)))
                ),
            )


def write_pairs(writer, prompts, recipe, firsts, tick, variant=Variant(None, 0)):  # noqa: B008 - frozen
    """Raw and rejected rows of one shard."""
    return next(generate_shards(writer, prompts, recipe, [firsts], tick, variant))


def rows_of(directory: Path, config: str) -> list[dict]:
    """The rows of a config of a run."""
    return [row for path in sorted(directory.glob(f"data/{config}/*")) for row in read_shard(path)]

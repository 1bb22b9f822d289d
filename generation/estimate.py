"""``--estimate``: how long a run will take and how much of it is kept, from a pilot of 64 first texts.

The pilot is a small run of the real one: 64 first texts spread over the source, all labels, samples and retries, the
real batch size, for each shot count a share of them; where the model writes the first texts, it writes up to 512 and 64
of them are used. 64 rows of the source and not 64 texts, because a keep rate of 0.8 is known to 15 % from 128 texts of
a label, and not from 21. It is written twice, and the second time counts: the first passes of each shape are slow.

A shard begins with an empty batch and ends with one that runs empty, so the pilot's plain rate is too low for a larger
shard. Its time is therefore told apart: until the queue is empty the batch is full, then it drains. A shard of n texts
takes ``full * (n - c) / (p - c) + drain``, with p the pilot's texts and c those in the batch when its queue ran empty.
A pilot that fits into the batch as a whole says nothing of a full one: then the time grows with n.
"""

import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from generation.backends.protocol import Completion, Request, Writer
from generation.backends.registry import load_writer, with_dtype
from generation.dry_run import NOT_YET, survey
from generation.inputs.prompts import ContextRoom, Prompts, load_prompts
from generation.inputs.sources import FirstText, is_generated
from generation.pipeline.directory import DatasetRun
from generation.pipeline.source_sentences import Scratch, prepare
from generation.pipeline.worker import LocalExecutor, Worker
from generation.rows.attempts import write_pairs
from generation.rows.filters import sifted
from hub.cli import say
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, DecodingParameters, Variant
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import Manifest

ROWS = 64  # first texts of the pilot
FIRSTS = 512  # first texts that the model writes to tell the time of all: fewer would not fill a batch
Clock = Callable[[], float]


class Watched:
    """A writer that notes when its queue ran empty and how many texts it had written by then."""

    def __init__(self, writer: Writer, clock: Clock):
        self.writer, self.clock, self.context = writer, clock, writer.context
        self.count_tokens, self.describe = writer.count_tokens, writer.describe
        self.prompt_tokens = writer.prompt_tokens
        self.full = self.seconds = 0.0
        self.full_texts = self.texts = 0

    def stream(
        self, queue: deque[Request], settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``Writer.stream``."""
        started, self.full, self.texts, self.full_texts = self.clock(), 0.0, 0, 0
        for answer in self.writer.stream(queue, settings, batch_size, prefixes):
            if queue:
                self.full, self.full_texts = self.clock() - started, self.texts
            self.texts += 1
            yield answer
        self.seconds = self.clock() - started


@dataclass(frozen=True)
class Pilot:
    """What one pilot shard took and gave."""

    firsts: int
    texts: int  # all that were asked for, retries included
    seconds: float
    full: float  # seconds until the queue was empty
    full_texts: int  # texts done by then
    raw: int  # rows accepted
    kept: Counter[str]  # by label, after sifting
    asked: Counter[str]

    def shard_seconds(self, firsts: int) -> float:
        """Predicted seconds of a shard of ``firsts`` first texts."""
        texts = self.texts * firsts / self.firsts
        held = self.texts - self.full_texts
        if not self.full_texts or texts <= held:
            return self.seconds * texts / self.texts
        return self.full * (texts - held) / self.full_texts + self.seconds - self.full


def pilot(
    writer: Writer, prompts: Prompts, recipe: DatasetRecipe, firsts: Sequence[FirstText], variant: Variant, clock: Clock
) -> Pilot:
    """Write the texts of some first texts as a shard of a run would, and throw them away."""
    watched = Watched(writer, clock)
    raw, failed = write_pairs(watched, prompts, recipe, firsts, lambda _: None, variant)
    kept, dropped = sifted(raw, recipe)
    return Pilot(
        firsts=len(firsts),
        texts=watched.texts,
        seconds=watched.seconds,
        full=watched.full,
        full_texts=watched.full_texts,
        raw=len(raw),
        kept=Counter(row["target"] for row in kept),
        asked=Counter(row["target"] for row in (*kept, *dropped, *failed)),
    )


@dataclass(frozen=True)
class Estimate:
    """What a run is predicted to take and give. ``rows`` are accepted texts (config raw)."""

    first_texts: int
    rows: int
    seconds: float
    keep_rate: dict[str, float]  # by label: kept of those asked for
    pilot_seconds: float

    def __str__(self) -> str:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        lines = [
            f"pilot of {ROWS} first texts: {self.pilot_seconds:.1f} s",
            f"rows/s: {self.rows / self.seconds:.3g}",
            f"time: {self.seconds / 3600:.3g} hours ({hours} h {minutes:02d} min), without loading the model",
            f"first texts: {self.first_texts}; raw rows: about {self.rows}",
        ]
        return "\n".join([*lines, *(f"keep rate of label {name}: {rate:.1%}" for name, rate in self.keep_rate.items())])


def estimate(recipe: DatasetRecipe, clock: Clock = time.monotonic) -> Estimate:
    """Run the pilot and predict the run. Writes nothing that stays. Raises InputError as the run would."""
    recipe = with_dtype(recipe)
    writer, prompts = load_writer(recipe.model), load_prompts(recipe)
    pilot(writer, prompts, recipe, [FirstText("warm-up", NOT_YET)], recipe.variants[0], clock)  # first calls are slow
    total, firsts, first_seconds = _first_texts(recipe, writer, prompts, clock)
    shots = list(dict.fromkeys(variant.shots for variant in recipe.variants))
    if recipe.model.facts.local:  # a server's texts are paid for; only the engine compiles kernels for its shapes
        pilot(writer, prompts, recipe, firsts, recipe.variants[0], clock)
    pilots = {}
    for number, count in enumerate(shots):
        say(f"pilot{f' with {count} examples' if count is not None else ''} ...")
        variant = next(variant for variant in recipe.variants if variant.shots == count)
        pilots[count] = pilot(writer, prompts, recipe, firsts[number :: len(shots)] or firsts[:1], variant, clock)
    return predict(recipe, total, pilots, first_seconds)


def predict(recipe: DatasetRecipe, total: int, pilots: dict[int | None, Pilot], first_seconds: float) -> Estimate:
    """The whole run from one pilot of each shot count.

    Args:
        total: first texts of the run.
        pilots: by shot count.
        first_seconds: predicted seconds until the first texts are there (0 where they are given).
    """
    whole, rest = divmod(total, recipe.shard_size)
    seconds, rows, kept, asked = first_seconds, 0.0, Counter[str](), Counter[str]()
    for variant in recipe.variants:
        found = pilots[variant.shots]
        seconds += whole * found.shard_seconds(recipe.shard_size) + (found.shard_seconds(rest) if rest else 0.0)
        rows += found.raw * total / found.firsts
        kept, asked = kept + found.kept, asked + found.asked
    rates = {label.name: kept[label.name] / asked[label.name] for label in recipe.written_labels}
    return Estimate(total, round(rows), seconds, rates, sum(found.seconds for found in pilots.values()))


def _first_texts(
    recipe: DatasetRecipe, writer: Writer, prompts: Prompts, clock: Clock
) -> tuple[int, list[FirstText], float]:
    """How many first texts the run has, those of the pilot, and the seconds that writing all of them will take."""
    if not is_generated(recipe.source):
        firsts = survey(recipe, writer.count_tokens, ContextRoom(prompts, writer).lack)
        step = max(1, len(firsts.sample) // ROWS)
        return firsts.total, list(firsts.sample[::step][:ROWS]), 0.0
    limit = recipe.source.limit or 0
    few = recipe.model_copy(update={"source": recipe.source.model_copy(update={"limit": min(FIRSTS, limit)})})
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "pilot")
        manifest = Manifest(kind="dataset", name=few.name, version=few.version, fingerprint="pilot")
        run = DatasetRun(directory, few, run_dir.begin(directory, manifest, resolved(few)))
        scratch, started = Scratch(directory, ""), clock()
        found = prepare(run, scratch, LocalExecutor(Worker(few, prompts, writer), directory), prompts)
        seconds = clock() - started
        firsts_written = [first for block in range(found.blocks) for first in found.block(block)]
    step = max(1, len(firsts_written) // ROWS)
    return limit, firsts_written[::step][:ROWS], seconds * limit / found.total

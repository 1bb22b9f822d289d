"""What a run would do (``--dry-run``) and how long it would take (``--estimate``). Neither writes anything.

The pilot of an estimate generates for 64 source sentences spread over the source, with the real settings; each shot
count gets a share of them. The pilot runs twice and the second time counts: the first passes of each shape are slow.

Until a shard's queue is empty the batch is full, then it drains. A shard of n texts takes
``full * (n - c) / (p - c) + drain``, with p the pilot's texts and c those in the batch when its queue ran empty. A
pilot that fits into the batch says nothing about a full one: then the time grows with n.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from generation.backends.protocol import Completion, Request, Writer
from generation.backends.registry import load_preview, load_writer, with_dtype
from generation.inputs.prompts import ContextRoom, Prompts, TokenCounter, load_prompts
from generation.inputs.row_seeds import fraction
from generation.inputs.sources import CountTokens, GivenTexts, Lack, SourceSentence
from generation.pipeline import tasks as layout
from generation.pipeline.directory import BaseRun
from generation.pipeline.tasks import WriteSourceSentences
from generation.pipeline.worker import Worker
from generation.rows.attempts import write_pairs
from generation.rows.filters import filtered
from hub.cli import say
from hub.contract.recipe import DatasetRecipe, DecodingParameters, Label, Variant, Verification
from hub.errors import InputError
from hub.untrusted import printable

RENDERED = 5  # prompts shown of each label and shot count
SAMPLE = 200  # source sentences whose prompts are counted
FILES, FILES_OF_FOLDER = 100_000, 10_000  # fewer are recommended: huggingface.co/docs/hub/storage-limits
BESIDE = 12  # files without data: manifest, recipe, card, plots
ROWS_OF_SHARD = 200_000  # of texts wanted: a worker holds them in memory
NOT_YET = "a sentence that the model will write first, here one of twelve words."
ROWS = 64  # source sentences of the pilot
FIRSTS = 512  # source sentences asked for to estimate the time of all: fewer would not fill a batch
Clock = Callable[[], float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Firsts:
    """The number of source sentences of a run, a sample of them, and the skipped ones by reason."""

    total: int
    sample: tuple[SourceSentence, ...]  # spread over the source, at most ``SAMPLE``
    skipped: dict[str, int]


def survey(
    recipe: DatasetRecipe, count_tokens: CountTokens, lack: Lack = lambda _: 0, base: BaseRun | None = None
) -> Firsts:
    """Read the source once. One sentence stands for those that the model has still to write.

    ``base``: the run whose source sentences are skipped, because rows are appended to it.
    """
    if recipe.source.facts.generated:
        total = (recipe.source.limit or 0) - (base.source_sentences if base else 0)
        lack(NOT_YET)
        return Firsts(total, (SourceSentence("000000", NOT_YET),), {})
    given, sample, total = GivenTexts(recipe, count_tokens, lack), list[tuple[float, int, SourceSentence]](), 0
    firsts = base.new_among(given, recipe.source.path or recipe.source.repo_id) if base else given
    for total, first in enumerate(firsts, start=1):
        sample.append((fraction("plan", first.source_id), total, first))
        if len(sample) > 20 * SAMPLE:
            sample = sorted(sample)[:SAMPLE]
    chosen = sorted(sorted(sample)[:SAMPLE], key=lambda entry: entry[1])
    return Firsts(total, tuple(first for _, _, first in chosen), dict(sorted(given.skipped.items())))


def plan(recipe: DatasetRecipe, directory: Path, base: BaseRun | None = None) -> str:
    """The plan of a run as text. Loads the model's config and tokenizer and reads the source; writes nothing.

    ``base``: the finished run that rows are appended to; the plan then covers the rows after its own.
    Raises InputError as a run would: an unusable source, example or model, or a prompt beyond the context.
    """
    recipe = with_dtype(recipe)
    (writer, facts), prompts = load_preview(recipe.model), load_prompts(recipe)
    found = Plan(recipe, prompts, writer, survey(recipe, writer.count_tokens, ContextRoom(prompts, writer).lack, base))
    lines = [f"{recipe.name} v{recipe.version} -> {directory}", *facts]
    if base is not None:
        files, version = len(base.manifest.files), base.manifest.version
        lines.append(f"appended to v{version}: its {base.source_sentences} source sentences and {files} files stay")
    publish = f"sts-dino publish {directory} --org ORG --yes"
    commits = f"commits: {publish} makes one, atomic, of all files, and the tag v{recipe.version}; "
    commits += "sts-dino release commits while the dataset grows"
    return printable("\n".join([*lines, *found.work(), *found.files(), commits, *found.prompt_lines()]))


@dataclass(frozen=True)
class Plan:
    """A recipe, its prompts, the model's token counter, and the source sentences."""

    recipe: DatasetRecipe
    prompts: Prompts
    writer: TokenCounter
    firsts: Firsts

    def work(self) -> Iterator[str]:
        """Source sentences, texts, labels' own settings, guidance, verification and shards."""
        recipe, total, labels = self.recipe, self.firsts.total, self.recipe.written_labels
        if recipe.source.facts.generated:
            yield f"source sentences: {total}, generated by the model after:"
            yield from (f"  {self.prompts.source_sentence_prefix(label)!r}" for label in labels)
        else:
            skipped = ", ".join(f"{count} {reason}" for reason, count in self.firsts.skipped.items()) or "none"
            yield f"source sentences: {total} (skipped: {skipped})"
        variants = len(recipe.variants)
        wanted = {label.name: total * recipe.texts_asked(label) * variants for label in labels}
        each = f"{wanted[labels[0].name]} of each label"
        if len(set(wanted.values())) > 1:
            each = ", ".join(f"{count} of label {name}" for name, count in wanted.items())
        attempts = total * recipe.decoding.max_attempts * variants * len(labels)
        yield f"texts: {sum(wanted.values())} wanted, {each}; at most {attempts} attempts"
        yield from self._own_settings()
        if recipe.verification:
            yield self._verification(recipe.verification)
        whole, last = divmod(total, recipe.shard_size)
        sizes = [f"{whole} of {recipe.shard_size}"] * bool(whole or not last) + [f"one of {last}"] * bool(last)
        of_variants = f", for each of {variants} variants" * (variants > 1)
        yield (
            f"shards: {(whole + (last > 0)) * variants} ({' and '.join(sizes)} source sentences{of_variants}; "
            f"{recipe.shard_size * recipe.texts_per_source_sentence} wanted texts in a whole one)"
        )

    def _own_settings(self) -> Iterator[str]:
        recipe = self.recipe
        for label in recipe.labels:
            if not label.written:
                yield f"label {label.name}: never written, its prompt is a counter-prompt"
            elif label.decay_constant is not None:
                own, usual = label.decay_constant, recipe.decoding.decay_constant
                yield f"label {label.name}: λ = {own:g} in place of {usual:g}"
        strengths = dict[float, list[Label]]()
        for label in recipe.guided_labels:
            strengths.setdefault(recipe.decoding_of(label).guidance, []).append(label)
        for strength, labels in strengths.items():
            plain = ", ".join(repr(prompt) for prompt in dict.fromkeys(label.plain_prompt for label in labels))
            whose = ", ".join(label.name for label in labels)
            only = "" if len(labels) == len(recipe.written_labels) else f" of label {whose}"
            yield f"guidance: γ = {strength:g} away from {plain} (one model row more a text{only})"

    def _verification(self, asked: Verification) -> str:
        """Prompts that a text is scored under, model rows they take, and what is made of the scores."""
        recipe, labels = self.recipe, self.recipe.written_labels
        samples = dict.fromkeys(str(recipe.decoding_of(label).samples) for label in labels)
        of = dict.fromkeys(str(recipe.texts_asked(label)) for label in labels)
        done = {
            f"the best {' or '.join(samples)} of {' or '.join(of)} texts stay": asked.best_of > 1,
            "texts that fit another label better are dropped": asked.drop,
            f"scores are soft (temperature {asked.temperature:g})": asked.scores == "soft",
            "labels are calibrated over each shard": asked.calibrated,
        }
        rows = f"{self._rows_a_text(labels):.3g} model rows a text, {self._rows_a_text():.3g} on average without it"
        line = f"verification: each text is scored under the prompts of {len(labels)} labels ({rows})"
        return "; ".join([line, *(words for words, is_so in done.items() if is_so)])

    def _rows_a_text(self, scored: Sequence[Label] = ()) -> float:
        """Mean model rows of a text; ``scored``: labels that it is scored under."""
        rows = 0
        for label in self.recipe.written_labels:
            prompts = {label.name, *label.counter_labels, *(one.name for one in scored)}
            rows += self.recipe.texts_asked(label) * (len(prompts) + (label in self.recipe.guided_labels))
        return rows / self.recipe.texts_per_source_sentence

    def files(self) -> Iterator[str]:
        """Files of the repository, config by config, and the Hub's advice for that many."""
        yield "files:"
        folders = layout.folders(self.recipe, self.firsts.total)
        for config, count in folders.items():
            if config.startswith(("raw", "rejected")):
                yield f"  data/{config}/: {count} shards, one when each is written"
            else:
                when = "before the shards" if config == "sources" else "at the end, train and validation"
                yield f"  data/{config}/: written {when}; {count} files at most"
        fullest = max(folders, key=lambda config: folders[config])
        whole = sum(folders.values()) + BESIDE
        yield f"  at most {whole} files in all, {folders[fullest]} in the fullest folder, data/{fullest}/"
        if not _few_enough(folders):
            limits = f"fewer than {FILES} files in a repository and {FILES_OF_FOLDER} in a folder"
            yield f"warning: the Hub recommends {limits}; {self._larger_shards()}"

    def _larger_shards(self) -> str:
        """The next larger shard size, by doubling, that gives few enough files."""
        size, per_first = 2 * self.recipe.shard_size, self.recipe.texts_per_source_sentence
        while size * per_first <= ROWS_OF_SHARD:
            if _few_enough(layout.folders(self.recipe.model_copy(update={"shard_size": size}), self.firsts.total)):
                return f"take shard_size: {size}"
            size *= 2
        return "divide the source among several recipes"

    def prompt_lines(self) -> Iterator[str]:
        """Token counts of all prompts of the sample, and some prompts in full, by label and shot count."""
        recipe, context = self.recipe, self.writer.context
        for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
            variants = [variant for variant in recipe.variants if variant.shots == shots]
            for label in recipe.written_labels:
                name = f"label {label.name}" + (f", {shots} examples" if shots is not None else "")
                shown = list[tuple[SourceSentence, Variant, str, tuple[str, ...]]]()
                for place, first in enumerate(self.firsts.sample):  # example sets take turns
                    variant = self.prompts.variant(variants[place % len(variants)], first.text)
                    shown.append((first, variant, *self.prompts.of(label, first.text, variant)))
                counts = sorted(self.writer.count_tokens(text) for *_, own, others in shown for text in (own, *others))
                room = f"; with {recipe.decoding.max_new_tokens} to write, context {context}" * bool(context)
                numbers = f"{counts[0]} / {median(counts):g} / {counts[-1]} prompt tokens"
                yield f"=== {name}: {numbers} (least / median / most of {len(counts)}{room})"
                for number, (first, variant, prompt, counters) in enumerate(_spread(shown, RENDERED)):
                    yield f"--- {first.source_id}" + (f", example set {variant.example_set}" if variant.shots else "")
                    yield prompt
                    if not number:
                        yield from (f"    not also: {counter!r}" for counter in counters)


def _few_enough(folders: dict[str, int]) -> bool:
    return max(folders.values()) < FILES_OF_FOLDER and sum(folders.values()) + BESIDE < FILES


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most ``count`` items, spread over all."""
    return list(items[:: max(1, len(items) // count)][:count])


@dataclass
class Pilot:
    """Time and rows of one pilot shard."""

    firsts: int
    texts: int = 0  # all requested texts, retries included
    seconds: float = 0.0
    full: float = 0.0  # seconds until the queue was empty
    full_texts: int = 0  # texts done by then
    raw: int = 0  # rows accepted
    kept: Counter[str] = field(default_factory=Counter)  # by label, after the filters
    asked: Counter[str] = field(default_factory=Counter)

    def shard_seconds(self, firsts: int) -> float:
        """Predicted seconds of a shard of ``firsts`` source sentences."""
        texts = self.texts * firsts / self.firsts
        held = self.texts - self.full_texts
        if not self.full_texts or texts <= held:
            return self.seconds * texts / self.texts
        return self.full * (texts - held) / self.full_texts + self.seconds - self.full


class Watched:
    """A writer that notes in a pilot when its queue ran empty, and how many texts were done by then."""

    def __init__(self, writer: Writer, clock: Clock, pilot: Pilot):
        self.writer, self.clock, self.pilot, self.context = writer, clock, pilot, writer.context
        self.count_tokens, self.describe = writer.count_tokens, writer.describe
        self.prompt_tokens = writer.prompt_tokens

    def stream(
        self, queue: deque[Request], settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``Writer.stream``."""
        started, pilot = self.clock(), self.pilot
        for answer in self.writer.stream(queue, settings, batch_size, prefixes):
            if queue:
                pilot.full, pilot.full_texts = self.clock() - started, pilot.texts
            pilot.texts += 1
            yield answer
        pilot.seconds = self.clock() - started


def pilot(
    writer: Writer,
    prompts: Prompts,
    recipe: DatasetRecipe,
    firsts: Sequence[SourceSentence],
    variant: Variant,
    clock: Clock,
) -> Pilot:
    """Generate the texts of some source sentences as a shard of a run would, and discard them."""
    found = Pilot(len(firsts))
    raw, failed = write_pairs(Watched(writer, clock, found), prompts, recipe, firsts, lambda _: None, variant)
    kept, dropped = filtered(raw, recipe)
    found.raw, found.kept = len(raw), Counter(row["target"] for row in kept)
    found.asked = Counter(row["target"] for row in (*kept, *dropped, *failed))
    return found


@dataclass(frozen=True)
class Estimate:
    """Predicted time and rows of a run. ``rows`` are accepted texts (config raw)."""

    source_sentences: int
    rows: int
    seconds: float
    keep_rate: dict[str, float]  # by label: kept of the requested ones
    pilot_seconds: float

    def __str__(self) -> str:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        lines = [
            f"pilot of {ROWS} source sentences: {self.pilot_seconds:.1f} s",
            f"rows/s: {self.rows / self.seconds:.3g}",
            f"time: {self.seconds / 3600:.3g} hours ({hours} h {minutes:02d} min), without loading the model",
            f"source sentences: {self.source_sentences}; raw rows: about {self.rows}",
        ]
        return "\n".join([*lines, *(f"keep rate of label {name}: {rate:.1%}" for name, rate in self.keep_rate.items())])


def estimate(recipe: DatasetRecipe, clock: Clock = time.monotonic) -> Estimate:
    """Run the pilot and predict the run. Leaves no file behind. Raises InputError as the run would."""
    recipe = with_dtype(recipe)
    writer, prompts = load_writer(recipe.model), load_prompts(recipe)
    warm_up = [SourceSentence("warm-up", NOT_YET)]  # first calls are slow
    pilot(writer, prompts, recipe, warm_up, recipe.variants[0], clock)
    total, firsts, first_seconds = _source_sentences(recipe, writer, prompts, clock)
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
    """A run of ``total`` source sentences, which take ``first_seconds`` to write, from ``pilots`` by shot count."""
    whole, rest = divmod(total, recipe.shard_size)
    seconds, rows, kept, asked = first_seconds, 0.0, Counter[str](), Counter[str]()
    for variant in recipe.variants:
        found = pilots[variant.shots]
        seconds += whole * found.shard_seconds(recipe.shard_size) + (found.shard_seconds(rest) if rest else 0.0)
        rows += found.raw * total / found.firsts
        kept, asked = kept + found.kept, asked + found.asked
    rates = {label.name: kept[label.name] / asked[label.name] for label in recipe.written_labels}
    return Estimate(total, round(rows), seconds, rates, sum(found.seconds for found in pilots.values()))


def _source_sentences(
    recipe: DatasetRecipe, writer: Writer, prompts: Prompts, clock: Clock
) -> tuple[int, list[SourceSentence], float]:
    """The number of source sentences of the run, those of the pilot, and the seconds to write all of them."""
    if not recipe.source.facts.generated:
        firsts = survey(recipe, writer.count_tokens, ContextRoom(prompts, writer).lack)
        return firsts.total, _spread(firsts.sample, ROWS), 0.0
    limit, started = recipe.source.limit or 0, clock()
    asked = range(min(FIRSTS, limit * recipe.decoding.max_attempts))
    answers = Worker(recipe, prompts, writer).do(WriteSourceSentences(asked), Path).facts
    firsts_written = [SourceSentence(row["source_id"], row["text"]) for row in answers if row["reason"] is None]
    if not firsts_written:
        raise InputError("source", "the model generated no usable source sentence")
    return limit, _spread(firsts_written, ROWS), (clock() - started) * limit / len(firsts_written)

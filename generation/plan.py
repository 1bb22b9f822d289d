"""The plan of a run (``--dry-run``), and an estimate of its time (``--estimate``).

A plan follows from the recipe, the source and the tokenizer; it writes nothing. An estimate comes
from pilots, which generate the texts of some source sentences as the run would, and keeps these
texts for the run (``pipeline.worker``).
"""

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from sts_dino.generation.backends.protocol import Writer, complete
from sts_dino.generation.backends.registry import (
    BACKENDS,
    load_preview,
    load_writer,
    resolve_model_dtype,
)
from sts_dino.generation.inputs.prompts import ContextRoom, Prompts, TokenCounter, load_prompts
from sts_dino.generation.inputs.row_seeds import draw_fraction
from sts_dino.generation.inputs.sources import (
    CountExcess,
    CountTokens,
    IsControl,
    SourceSentence,
    SourceStream,
    describe_source,
)
from sts_dino.generation.pipeline import tasks as layout
from sts_dino.generation.pipeline.code_digest import get_versions
from sts_dino.generation.pipeline.directory import BaseRun
from sts_dino.generation.pipeline.job import compute_run_key, hash_inputs
from sts_dino.generation.pipeline.reporting import report_cost
from sts_dino.generation.pipeline.tasks import WriteSourceSentences
from sts_dino.generation.pipeline.worker import (
    RecordingWriter,
    Worker,
    is_batch_independent,
)
from sts_dino.generation.rows.attempts import generate_shards, make_text_request
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.hub.contract.recipe import DatasetRecipe, Label, Variant
from sts_dino.hub.contract.recipe_file import compute_fingerprint
from sts_dino.hub.errors import InputError
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.process import measure_peak_rss_mb, measure_seconds_since_start
from sts_dino.hub.untrusted import strip_controls

logger = logging.getLogger(__name__)

SHOWN_PROMPTS = 5  # of each label and shot count, in full
SAMPLE_SIZE = 200  # source sentences whose prompt tokens are counted
# limits that huggingface.co/docs/hub/storage-limits recommends for a repository and a folder
MOST_FILES = 100_000
MOST_FILES_OF_FOLDER = 10_000
FILES_WITHOUT_ROWS = 12  # manifest, recipe, card, plots
PLACEHOLDER_SENTENCE = "a sentence that the model will write first, here one of twelve words."
# source sentences of the first, second and third pilot, at most
PILOT_SIZES = (4, 16, 64)
SERVER_PILOT_SIZES = (16,)  # behind a server, which may charge for every text
PILOT_SECONDS = 25.0  # the most seconds of all pilots of an estimate together
# source sentences requested to time their generation: first few; then enough to fill a batch, if
# these are expected to take at most SOURCE_PILOT_SECONDS
FIRST_REQUESTED_TEXTS = 32
REQUESTED_TEXTS = 512
SOURCE_PILOT_SECONDS = 5.0
Clock = Callable[[], float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class SourceSurvey:
    """The source of a run: the number of its source sentences, and some of them.

    Args:
        total: number of source sentences.
        sample: at most ``SAMPLE_SIZE`` of them, spread over the source.
        skipped: reason → number of skipped rows; empty if the model generates the source sentences.
        read: lines for people about a source that is read (``describe_source``), else empty.
        seconds: estimated seconds to generate all source sentences; 0 if they are read.
    """

    total: int
    sample: Sequence[SourceSentence]
    skipped: dict[str, int] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    seconds: float = 0.0


def survey_source(
    recipe: DatasetRecipe,
    count_tokens: CountTokens,
    count_excess: CountExcess = lambda _: 0,
    base: BaseRun | None = None,
    is_control: IsControl = lambda _: False,
) -> SourceSurvey:
    """Read the source once, count its usable sentences, and draw a sample of them.

    The sample of a source that the model will generate is a placeholder.

    Args:
        recipe: The recipe of the run.
        count_tokens: Tokens of a text, by the model's tokenizer.
        count_excess: Tokens by which a text is too long for the model's context.
        base: The run that rows are appended to; its source sentences are left out. None: no run.
        is_control: Whether a text holds a control token of the model.

    Raises InputError for an unusable source, or when the prompts exceed the model's context;
    RunError when the Hub does not answer or the disk fails.
    """
    base_sentences = base.source_sentences if base else 0
    if recipe.source.is_generated:
        count_excess(PLACEHOLDER_SENTENCE)  # raises InputError for prompts that never fit
        total = (recipe.source.limit or 0) - base_sentences
        return SourceSurvey(total, [SourceSentence("000000", PLACEHOLDER_SENTENCE)])

    # Choose the sentences with the smallest hashes as the sample, in the order of the source.
    # Each gets the next number, so that the number after the last one is the total.
    texts = SourceStream(recipe, count_tokens, count_excess, is_control)
    source_name = recipe.source.path or recipe.source.repo_id
    sentences = iter(base.select_new(texts, source_name) if base else texts)
    first_three = list(islice(sentences, 3))
    numbers = count()
    hashed = (
        (draw_fraction("plan", sentence.source_id), next(numbers), sentence)
        for sentence in chain(first_three, sentences)
    )
    smallest = heapq.nsmallest(SAMPLE_SIZE, hashed)
    smallest.sort(key=lambda entry: entry[1])  # by number
    sample = [sentence for _, _, sentence in smallest]
    total = next(numbers)

    # Describe what was read.
    skipped = dict(sorted(texts.skipped.items()))
    columns = recipe.source.columns
    first_sentences = tuple(sentence.text for sentence in first_three)
    source_lines = describe_source(
        source_name, columns, total + base_sentences, skipped, first_sentences
    )
    return SourceSurvey(total, sample, skipped, source_lines)


def count_rejected_texts(recipe: DatasetRecipe, texts: Iterable[str]) -> dict[str, int]:
    """Return reason → number of the texts that a run would skip for it; repetition is not counted.

    This loads the model's tokenizer, not its weights. ``texts``: without blanks around them. Raises
    InputError for a text beyond the model's context, unless the recipe rejects ``too_long``; also
    what ``load_preview`` and ``load_prompts`` raise.
    """
    writer, _ = load_preview(recipe.model)
    count_excess = ContextRoom(load_prompts(recipe), writer).count_excess
    source = SourceStream(recipe, writer.count_tokens, count_excess, writer.is_control)
    counts = Counter[str]()
    for text in texts:
        reason = source.find_reason(text)
        if reason:
            counts[reason] += 1
    return dict(sorted(counts.items()))


def describe_plan(
    recipe: DatasetRecipe,
    directory: Path,
    base: BaseRun | None = None,
    prompts_per_label: int = SHOWN_PROMPTS,
) -> str:
    """Return the plan of a run as text. This tries the model and reads the source once.

    Args:
        recipe: The recipe of the run.
        directory: The run directory, which the plan names.
        base: The finished run that rows are appended to; the plan then covers only the new rows.
            None: a new run.
        prompts_per_label: The most prompts to show of each label and shot count, at least 1.

    Raises InputError and RunError as a run would: for an unusable source, example or model, a
    prompt beyond the context, too little memory, or a Hub that fails.
    """
    # Load the tokenizer, read the source, and try the model if it is local.
    recipe = resolve_model_dtype(recipe)
    writer, model_facts = load_preview(recipe.model)
    prompts = load_prompts(recipe)
    count_excess = ContextRoom(prompts, writer).count_excess
    survey = survey_source(recipe, writer.count_tokens, count_excess, base, writer.is_control)
    model_facts += BACKENDS[recipe.model.backend].prove(recipe.model)
    for line in survey.read:
        logger.info(line)

    # Describe the run, part by part.
    lines = [f"{recipe.name} v{recipe.version} -> {directory}", *model_facts]
    if base is not None:
        files = len(base.manifest.files)
        lines.append(
            f"appended to v{base.manifest.version}: its {base.source_sentences} source sentences "
            f"and {files} files stay"
        )
    plan = Plan(recipe, prompts, writer, survey)
    lines += plan.describe_source()
    lines += plan.describe_work()
    lines += plan.describe_label_settings()
    lines += plan.describe_files()
    lines += plan.describe_prompts(prompts_per_label)
    return strip_controls("\n".join(lines))


class SamplePrompt(NamedTuple):
    """The prompts of one source sentence of the sample under one label."""

    sentence: SourceSentence
    variant: Variant
    prompt: str
    counter_prompts: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A recipe, its prompts, the model's token counter, and the source sentences."""

    recipe: DatasetRecipe
    prompts: Prompts
    writer: TokenCounter
    survey: SourceSurvey

    def describe_source(self) -> Iterator[str]:
        """Yield lines about the source sentences: how many are skipped, or the prompts that
        generate them.
        """
        total = self.survey.total
        if self.recipe.source.is_generated:
            yield f"source sentences: {total}, generated by the model after:"
            for label in self.recipe.written_labels:
                yield f"  {self.prompts.get_source_prefix(label)!r}"
            return
        skipped = ", ".join(f"{rows} {reason}" for reason, rows in self.survey.skipped.items())
        yield f"source sentences: {total} (skipped: {skipped or 'none'})"

    def describe_work(self) -> Iterator[str]:
        """Yield lines about the number of texts, attempts and shards."""
        recipe = self.recipe
        prompt_count = self.survey.total * len(recipe.variants)  # of one label
        total = 0
        by_label = list[str]()
        for label in recipe.written_labels:
            texts = prompt_count * recipe.count_texts_asked(label)
            total += texts
            by_label.append(f"{texts} of label {label.name}")
        attempts = prompt_count * len(recipe.written_labels) * recipe.decoding.max_attempts
        yield f"texts: {total} wanted, {', '.join(by_label)}; at most {attempts} attempts"

        blocks = ceil(self.survey.total / recipe.shard_size)
        texts = recipe.shard_size * recipe.texts_per_source_sentence
        yield (
            f"shards: {blocks * len(recipe.variants)} of at most {recipe.shard_size} "
            f"source sentences and {texts} wanted texts"
        )

    def describe_label_settings(self) -> Iterator[str]:
        """Yield lines about the decoding settings of single labels, guidance and verification."""
        # settings that differ from those of the recipe
        recipe = self.recipe
        for label in recipe.labels:
            keys = {"decay_constant", "guidance", "samples"}
            settings = label.model_dump(include=keys, exclude_none=True)
            if settings:
                yield f"label {label.name}: {list_settings(settings)}"

        # guidance
        guided = recipe.guided_labels
        if guided:
            plain_prompts = ", ".join(dict.fromkeys(repr(label.plain_prompt) for label in guided))
            strengths = [
                f"{label.name} (γ = {recipe.get_decoding(label).guidance:g})" for label in guided
            ]
            yield (
                f"guidance: away from {plain_prompts}, in texts of label {', '.join(strengths)}: "
                "one model row more a text"
            )

        # verification
        if recipe.verification:
            options = list_settings(recipe.verification.model_dump(exclude_defaults=True))
            yield (
                "verification: texts are scored under the prompts of "
                f"{len(recipe.written_labels)} labels; {options or 'scores alone'}"
            )

    def describe_files(self) -> Iterator[str]:
        """Yield lines about the number of files of each config; warn if the Hub advises fewer."""
        # count the files of each folder, data/CONFIG
        yield "files:"
        folders = layout.count_files(self.recipe, self.survey.total)
        for config, files in folders.items():
            yield f"  data/{config}/: at most {files}"

        # compare them with the Hub's limits
        fullest = max(folders, key=lambda config: folders[config])
        total = sum(folders.values()) + FILES_WITHOUT_ROWS
        yield (
            f"  at most {total} files in all, {folders[fullest]} in the fullest folder, "
            f"data/{fullest}/"
        )
        if folders[fullest] >= MOST_FILES_OF_FOLDER or total >= MOST_FILES:
            yield (
                f"warning: the Hub recommends fewer than {MOST_FILES} files in a repository and "
                f"{MOST_FILES_OF_FOLDER} in a folder; raise shard_size, or divide the source "
                "among several recipes"
            )

    def describe_prompts(self, prompts_per_label: int) -> Iterator[str]:
        """Yield lines about the prompts of each label and shot count: token counts, and some
        prompts in full.
        """
        for shots, variants in layout.group_variants(self.recipe).items():
            for label in self.recipe.written_labels:
                prompts = self._sample_prompts(label, variants)
                name = f"label {label.name}"
                if shots is not None:
                    name += f", {shots} examples"
                yield f"=== {name}: {self._count_prompt_tokens(prompts)}"
                for number, prompt in enumerate(spread(prompts, prompts_per_label)):
                    yield from self._show_prompt(prompt, with_counters=number == 0)

    def _sample_prompts(self, label: Label, variants: Sequence[Variant]) -> list[SamplePrompt]:
        """Return a label's prompts for the sampled source sentences; the variants take turns."""
        prompts = list[SamplePrompt]()
        for number, sentence in enumerate(self.survey.sample):
            variant = self.prompts.choose_variant(variants[number % len(variants)], sentence.text)
            prompt, counter_prompts = self.prompts.make_prompts(label, sentence.text, variant)
            prompts.append(SamplePrompt(sentence, variant, prompt, counter_prompts))
        return prompts

    def _count_prompt_tokens(self, prompts: Sequence[SamplePrompt]) -> str:
        """Return the least, median and most tokens of these prompts, and the context, as text.

        Counter-prompts count, too; special tokens and those of a chat template do not. For a server
        without a tokenizer the text has only the number of prompts.
        """
        model = self.recipe.model
        if model.server is not None and not (model.path or model.repo_id):
            return f"{len(prompts)} prompts; their tokens are not known without a tokenizer"
        counts = list[int]()
        for prompt in prompts:
            counts.append(self.writer.count_tokens(prompt.prompt))
            counts += [self.writer.count_tokens(counter) for counter in prompt.counter_prompts]
        text = (
            f"{min(counts)} / {median(counts):g} / {max(counts)} prompt tokens "
            f"(least / median / most of {len(counts)}"
        )
        if self.writer.context:
            new_tokens = self.recipe.decoding.max_new_tokens
            text += f"; with {new_tokens} to write, context {self.writer.context}"
        return text + ")"

    def _show_prompt(self, prompt: SamplePrompt, with_counters: bool) -> Iterator[str]:
        """Yield the lines of a prompt in full; ``with_counters``: also of its tokens and
        counter-prompts.
        """
        head = f"--- {prompt.sentence.source_id}"
        if prompt.variant.shots:
            head += f", example set {prompt.variant.example_set}"
        yield head
        yield prompt.prompt
        if with_counters:
            tokens = self.writer.format_tokens(prompt.prompt)
            if tokens:
                yield f"    as tokens: {tokens}"
            for counter_prompt in prompt.counter_prompts:
                yield f"    not also: {counter_prompt!r}"


def list_settings(settings: dict[str, Any]) -> str:
    """Return settings as text: ``NAME VALUE, NAME VALUE``."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most ``count`` items at equal distances, the first item included.

    ``count``: at least 1.
    """
    step = max(1, len(items) // count)
    return list(items[::step][:count])


@dataclass(frozen=True)
class Pilot:
    """The seconds of a pilot, and the numbers of its texts by label.

    Args:
        source_sentences: number of source sentences.
        seconds: seconds until all texts were generated.
        raw: label → number of accepted texts.
        kept: label → number of accepted texts that the filters keep.
        generated: label → number of all texts, rejected texts included.
    """

    source_sentences: int
    seconds: float
    raw: Counter[str]
    kept: Counter[str]
    generated: Counter[str]


@dataclass(frozen=True)
class Pilots:
    """The pilots of one shot count, from the smallest to the largest."""

    pilots: Sequence[Pilot]
    prefix_seconds: float  # that the model took to read the prompts' shared prefixes

    @property
    def largest(self) -> Pilot:
        """The pilot with the most source sentences."""
        return self.pilots[-1]

    def extrapolate_seconds(self, total: int) -> float:
        """Estimate the seconds of a run of ``total`` source sentences from the pilots' seconds.

        Beyond the largest pilot, each source sentence takes that pilot's average seconds, or the
        growth between the two largest pilots if that is less. The growth is the difference of their
        seconds divided by the difference of their sizes: the seconds to fill and to drain the batch
        cancel out. It counts only if it is positive, and if the largest pilot has at least
        twice ``PILOT_SIZES[-2]`` source sentences: fewer do not fill a batch.
        """
        largest = self.largest
        per_sentence = largest.seconds / largest.source_sentences
        # A server has no pilot of this size.
        if largest.source_sentences >= 2 * PILOT_SIZES[-2]:
            smaller = self.pilots[-2]
            more_sentences = largest.source_sentences - smaller.source_sentences
            growth = (largest.seconds - smaller.seconds) / more_sentences
            if growth > 0:
                per_sentence = min(per_sentence, growth)
        return largest.seconds + per_sentence * (total - largest.source_sentences)

    def extrapolate_rows(self, total: int) -> float:
        """Estimate the raw rows of a run of ``total`` source sentences."""
        return self.largest.raw.total() * total / self.largest.source_sentences


@dataclass(frozen=True)
class Estimate:
    """Estimated time, rows and memory of a run."""

    source_sentences: int
    rows: int  # accepted texts (config raw)
    seconds: float  # of generation with one worker
    keep_rate: dict[str, float]  # by label: the share, 0 to 1, of ``texts`` that the filters keep
    pilot_seconds: float  # of the largest pilot of each shot count, together
    # by label: number of texts in these pilots, rejected texts included
    texts: dict[str, int] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)  # lines about the source (``describe_source``)
    start_seconds: float = 0.0  # from the process's start until the model generates
    memory_mb: float = 0.0  # peak of the pilots' resident memory, in MiB
    disk: list[str] = field(default_factory=list)  # lines about weights prepared for faster loads

    def __str__(self) -> str:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        lines = [
            f"pilot of {sum(self.texts.values())} texts: {self.pilot_seconds:.1f} s",
            f"rows/s: {self.rows / self.seconds:.3g}",
            f"time: {self.seconds / 3600:.3g} hours ({hours} h {minutes:02d} min) with one worker, "
            f"and {self.start_seconds:.0f} s to load the model and read what prompts share",
            f"source sentences: {self.source_sentences}; raw rows: about {self.rows}",
            f"memory: about {self.memory_mb / 1024:.1f} GiB, the pilot's peak",
            *self.disk,
        ]
        for name, rate in self.keep_rate.items():
            lines.append(f"keep rate of label {name}: {rate:.1%} of {self.texts[name]} texts")
        return "\n".join(lines)


def estimate_run(
    recipe: DatasetRecipe, directory: Path | None = None, clock: Clock = time.monotonic
) -> Estimate:
    """Run pilots and estimate the seconds, rows, keep rates and memory of the run.

    Args:
        recipe: The recipe of the run.
        directory: The run directory. The pilots' texts are stored beside it for the run, if they
            change no byte of it; so are all answers of a server. None stores nothing.
        clock: Returns seconds.

    Raises InputError and RunError as the run would, and InputError when the model generates no
    usable source sentence.
    """
    # Load the model, read its prompts' shared prefixes, and find the pilots' source sentences.
    recipe = resolve_model_dtype(recipe)
    # A server's answers are stored for the run, which does not pay for them again.
    loaded_writer = load_writer(recipe.model, directory)
    writer: Any = RecordingWriter(loaded_writer, {})  # records the pilots' texts, not the prefixes
    prompts = load_prompts(recipe)
    prefix_seconds = read_prefixes(loaded_writer, prompts, recipe.variants[0], clock)
    start_seconds = measure_seconds_since_start()
    source = prepare_pilot_source(recipe, writer, prompts, clock)
    report_cost(prompts, source.sample, source.total, getattr(loaded_writer, "usage", {}))

    # Run the pilots of each shot count on its share of the source sentences.
    variants_by_shots = layout.group_variants(recipe)
    by_shots = dict[int | None, Pilots]()
    for number, (shots, (variant, *_)) in enumerate(variants_by_shots.items()):
        if number:
            prefix_seconds = read_prefixes(loaded_writer, prompts, variant, clock)
        # ``run_pilots`` needs a sentence, even if there are fewer sentences than shot counts
        sentences = source.sample[number :: len(variants_by_shots)] or source.sample[:1]
        most_seconds = PILOT_SECONDS / len(variants_by_shots)
        pilots = run_pilots(writer, prompts, variant, sentences, most_seconds, clock)
        by_shots[shots] = Pilots(pilots, prefix_seconds)

    # Store the texts for the run.
    if directory is not None and is_batch_independent(recipe):
        fingerprint = compute_fingerprint(recipe, hash_inputs(recipe))
        writer.store(directory, compute_run_key(fingerprint, get_versions(recipe)))

    # Add up the variants of the run. The largest pilots give texts, keep rates and pilot seconds.
    seconds, rows = _add_up_variants(recipe, by_shots, source)
    largest = [pilots_of_shots.largest for pilots_of_shots in by_shots.values()]
    texts = sum((pilot.generated for pilot in largest), Counter[str]())
    kept_texts = sum((pilot.kept for pilot in largest), Counter[str]())
    return Estimate(
        source_sentences=source.total,
        rows=round(rows),
        seconds=seconds,
        keep_rate={name: kept_texts[name] / count for name, count in texts.items()},
        pilot_seconds=sum(pilot.seconds for pilot in largest),
        texts=dict(texts),
        read=source.read,
        start_seconds=start_seconds,
        memory_mb=measure_peak_rss_mb(),
        disk=BACKENDS[recipe.model.backend].describe_disk(recipe.model),
    )


def read_prefixes(writer: Writer, prompts: Prompts, variant: Variant, clock: Clock) -> float:
    """Have the model read the shared prefixes of a variant's prompts; return the seconds it takes.

    A server gets no request, since it may charge for one: the result is 0. ``clock`` returns
    seconds. Raises what ``Writer.stream`` raises.
    """
    recipe = prompts.recipe
    if not recipe.model.is_local:
        return 0.0
    # request one token of each label's prompt
    variant_of_text = prompts.choose_variant(variant, PLACEHOLDER_SENTENCE)
    requests = [
        make_text_request(prompts, label, PLACEHOLDER_SENTENCE, variant_of_text, seed=0)
        for label in recipe.written_labels
    ]
    one_token = recipe.decoding.model_copy(update={"max_new_tokens": 1})
    started = clock()
    complete(
        writer, requests, one_token, recipe.decoding.batch_size, prompts.list_prefixes(variant)
    )
    return clock() - started


def run_pilots(
    writer: Writer,
    prompts: Prompts,
    variant: Variant,
    sentences: Sequence[SourceSentence],
    most_seconds: float,
    clock: Clock,
) -> list[Pilot]:
    """Run pilots of growing size, and return them in this order, at least one.

    The last one has all ``sentences``, has the largest size, or leaves too little time for another.
    A pilot is expected to take as many seconds for a source sentence as the pilot before it. If it
    would take longer than the remaining time, it gets fewer source sentences.

    Args:
        writer: The model, which has read the prompts' shared prefixes.
        prompts: The prompts of the recipe.
        variant: Shot count and example set of the prompts.
        sentences: Source sentences of the largest pilot, at least one.
        most_seconds: Seconds of all pilots together; the first pilot runs in any case.
        clock: Returns seconds.

    Raises what ``generate_shards`` and ``Writer.stream`` raise.
    """
    pilots = list[Pilot]()
    remaining = most_seconds
    sizes = PILOT_SIZES if prompts.recipe.model.is_local else SERVER_PILOT_SIZES
    for most_sentences in sizes:
        # Choose the size by the seconds of the pilot before.
        size = min(most_sentences, len(sentences))
        expected = ""
        if pilots:
            smaller = pilots[-1]
            seconds_per_sentence = smaller.seconds / smaller.source_sentences
            if size * seconds_per_sentence > remaining:
                size = int(remaining / seconds_per_sentence)
            if size <= smaller.source_sentences:
                break
            expected = f", at most about {size * seconds_per_sentence:.0f} s"

        # Run the pilot.
        examples = f", {variant.shots} examples" if variant.shots is not None else ""
        logger.info(f"pilot of {size} source sentences{examples}{expected} ...")
        pilots.append(run_pilot(writer, prompts, variant, spread(sentences, size), clock))
        remaining = max(0.0, remaining - pilots[-1].seconds)
    return pilots


def run_pilot(
    writer: Writer,
    prompts: Prompts,
    variant: Variant,
    sentences: Sequence[SourceSentence],
    clock: Clock,
) -> Pilot:
    """Generate the texts of some source sentences as a run would; time and count them.

    ``clock`` returns seconds. Raises what ``generate_shards`` and ``Writer.stream`` raise.
    """
    recipe = prompts.recipe
    started = clock()
    total = len(sentences) * recipe.texts_per_source_sentence
    with ProgressBar(total=total, desc="this pilot", unit="text", delay=1) as bar:
        shards = generate_shards(writer, prompts, recipe, [sentences], bar.update, variant)
        ((raw, failed),) = shards  # the sentences are one shard
    seconds = clock() - started
    kept, dropped = filter_rows(raw, recipe)
    return Pilot(
        len(sentences),
        seconds,
        raw=Counter(row["target"] for row in raw),
        kept=Counter(row["target"] for row in kept),
        generated=Counter(row["target"] for row in [*kept, *dropped, *failed]),
    )


def _add_up_variants(
    recipe: DatasetRecipe, by_shots: Mapping[int | None, Pilots], source: SourceSurvey
) -> tuple[float, float]:
    """Return the seconds and the raw rows of a run, which generates one variant after the other.

    Args:
        recipe: the recipe of the run.
        by_shots: the pilots of each shot count.
        source: the source sentences; the model may need seconds to generate them.
    """
    seconds = source.seconds
    rows = 0.0
    for number, variant in enumerate(recipe.variants):
        pilots = by_shots[variant.shots]
        seconds += pilots.extrapolate_seconds(source.total)
        rows += pilots.extrapolate_rows(source.total)
        if number:
            seconds += pilots.prefix_seconds
    return seconds, rows


def prepare_pilot_source(
    recipe: DatasetRecipe, writer: Writer, prompts: Prompts, clock: Clock
) -> SourceSurvey:
    """Return the source of a run, whose sample is the source sentences of the pilots.

    These are at most ``PILOT_SIZES[-1]``, read from the source or generated by the model.

    Args:
        recipe: The recipe of the run.
        writer: The loaded model.
        prompts: The prompts of the recipe.
        clock: Returns seconds.

    Raises InputError when the model generates no usable source sentence; also what
    ``survey_source`` and ``Writer.stream`` raise.
    """
    size = PILOT_SIZES[-1]
    if not recipe.source.is_generated:
        count_excess = ContextRoom(prompts, writer).count_excess
        survey = survey_source(
            recipe, writer.count_tokens, count_excess, is_control=writer.is_control
        )
        return replace(survey, sample=spread(survey.sample, size))

    # Generate some sentences, and enough to fill a batch where that is quick.
    limit = recipe.source.limit or 0
    total = min(REQUESTED_TEXTS, limit * recipe.decoding.max_attempts)
    first_numbers = range(min(FIRST_REQUESTED_TEXTS, total))
    worker = Worker(recipe, prompts, writer)
    logger.info("pilot of source sentences that the model generates ...")
    started = clock()
    # ``Path`` replaces the function that finds the files of a task: these tasks read no files
    rows = worker.do_task(WriteSourceSentences(first_numbers), Path).facts
    seconds = clock() - started
    if seconds * total / len(first_numbers) <= SOURCE_PILOT_SECONDS:
        rows += worker.do_task(WriteSourceSentences(range(first_numbers.stop, total)), Path).facts
        seconds = clock() - started

    # Scale their time to all source sentences of the run.
    usable = [SourceSentence(row["source_id"], row["text"]) for row in rows if not row["reason"]]
    if not usable:
        raise InputError("source", "the model generated no usable source sentence")
    sentences = spread(usable, min(size, limit))
    return SourceSurvey(limit, sentences, seconds=seconds * limit / len(usable))

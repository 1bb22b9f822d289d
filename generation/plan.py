"""What a run would do (``--dry-run``) and how long it would take (``--estimate``). Neither writes anything.

The pilot of an estimate generates for 64 source sentences spread over the source, with the real settings; each shot
count gets a share of them. A slow model's pilot keeps a small batch full and ends early.

The batch is full until the queue is empty, then it drains: repeated attempts follow one another.
"""

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from generation.backends.protocol import Completion, Request, complete
from generation.backends.registry import BACKENDS, load_preview, load_writer, with_dtype
from generation.inputs.prompts import ContextRoom, Prompts, TokenCounter, load_prompts
from generation.inputs.row_seeds import fraction
from generation.inputs.sources import CountTokens, GivenTexts, IsControl, Lack, SourceSentence, what_was_read
from generation.pipeline import tasks as layout
from generation.pipeline.directory import BaseRun
from generation.pipeline.tasks import WriteSourceSentences
from generation.pipeline.worker import Worker
from generation.rows.attempts import text_request, write_shards
from generation.rows.filters import filtered
from hub.cli import say
from hub.contract.recipe import DatasetRecipe, DecodingParameters, Label, Variant
from hub.errors import InputError
from hub.process import peak_rss_mb, seconds_since_start
from hub.untrusted import printable

RENDERED = 5  # prompts shown of each label and shot count
SAMPLE = 200  # source sentences whose prompts are counted
FILES, FILES_OF_FOLDER = 100_000, 10_000  # fewer are recommended: huggingface.co/docs/hub/storage-limits
BESIDE = 12  # files without data: manifest, recipe, card, plots
NOT_YET = "a sentence that the model will write first, here one of twelve words."
ROWS = 64  # source sentences of the pilot
FULL = 512  # rows of a full batch on a CPU (generation.backends.load_model)
SLOW = 0.1  # seconds of a pass of few rows: 0.2 with half a billion parameters on one thread
BATCH, SECONDS, FEW = 64, 20.0, 40  # rows of a slow model's pilot; it ends after so many seconds and texts
FIRST = 12  # tokens of a few texts at the start, which tell how slow a pass is
MARGIN = 1.1  # on memory: a run of the 1.5B model took 1.03 times the prediction of its pilot
FIRSTS = 512  # source sentences asked for to estimate the time of all: fewer would not fill a batch
Clock = Callable[[], float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Firsts:
    """The number of source sentences of a run, a sample of them, and the skipped ones by reason."""

    total: int
    sample: tuple[SourceSentence, ...]  # spread over the source, at most ``SAMPLE``
    skipped: dict[str, int]
    read: list[str] = field(default_factory=list)  # ``what_was_read``


def survey(
    recipe: DatasetRecipe,
    count_tokens: CountTokens,
    lack: Lack = lambda _: 0,
    base: BaseRun | None = None,
    is_control: IsControl = lambda _: False,
) -> Firsts:
    """Read the source once. One sentence stands for those that the model has still to write.

    ``base``: the run whose source sentences are skipped, because rows are appended to it.
    """
    if recipe.source.facts.generated:
        total = (recipe.source.limit or 0) - (base.source_sentences if base else 0)
        lack(NOT_YET)
        return Firsts(total, (SourceSentence("000000", NOT_YET),), {})
    given, places = GivenTexts(recipe, count_tokens, lack, is_control), count()
    place = recipe.source.path or recipe.source.repo_id
    firsts = iter(base.new_among(given, place) if base else given)
    shown = list(islice(firsts, 3))
    placed = ((fraction("plan", first.source_id), next(places), first) for first in chain(shown, firsts))
    chosen = sorted(heapq.nsmallest(SAMPLE, placed), key=lambda entry: entry[1])
    total, skipped = next(places), dict(sorted(given.skipped.items()))
    given_before = base.source_sentences if base else 0
    texts = tuple(first.text for first in shown)
    read = what_was_read(place, recipe.source.columns, total + given_before, skipped, texts)
    return Firsts(total, tuple(first for *_, first in chosen), skipped, read)


def rejected_texts(recipe: DatasetRecipe, texts: Iterable[str]) -> dict[str, int]:
    """How many texts a run would pass over, by reason: in tokens of the model, whose weights are not read."""
    writer, _ = load_preview(recipe.model)
    lack = ContextRoom(load_prompts(recipe), writer).lack
    reason = GivenTexts(recipe, writer.count_tokens, lack, writer.is_control).reason
    return dict(sorted(Counter(filter(None, map(reason, texts))).items()))


def plan(recipe: DatasetRecipe, directory: Path, base: BaseRun | None = None) -> str:
    """The plan of a run as text. Tries the model where its weights lie here, and reads the source; writes nothing.

    ``base``: the finished run that rows are appended to; the plan then covers the rows after its own.
    Raises InputError as a run would: an unusable source, example or model, or a prompt beyond the context.
    """
    recipe = with_dtype(recipe)
    (writer, facts), prompts = load_preview(recipe.model), load_prompts(recipe)
    lack = ContextRoom(prompts, writer).lack
    found = Plan(recipe, prompts, writer, survey(recipe, writer.count_tokens, lack, base, writer.is_control))
    facts += BACKENDS[recipe.model.backend].proof(recipe.model)
    for line in found.firsts.read:
        say(line)
    lines = [f"{recipe.name} v{recipe.version} -> {directory}", *facts]
    if base is not None:
        files, version = len(base.manifest.files), base.manifest.version
        lines.append(f"appended to v{version}: its {base.source_sentences} source sentences and {files} files stay")
    return printable("\n".join([*lines, *found.work(), *found.files(), *found.prompt_lines()]))


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
            skipped = ", ".join(f"{rows} {reason}" for reason, rows in self.firsts.skipped.items()) or "none"
            yield f"source sentences: {total} (skipped: {skipped})"
        variants = len(recipe.variants)
        wanted = {label.name: total * recipe.texts_asked(label) * variants for label in labels}
        each = ", ".join(f"{texts} of label {name}" for name, texts in wanted.items())
        attempts = total * recipe.decoding.max_attempts * variants * len(labels)
        yield f"texts: {sum(wanted.values())} wanted, {each}; at most {attempts} attempts"
        yield from self._own_settings()
        shards = -(-total // recipe.shard_size) * variants
        texts = recipe.shard_size * recipe.texts_per_source_sentence
        yield f"shards: {shards} of at most {recipe.shard_size} source sentences and {texts} wanted texts"

    def _own_settings(self) -> Iterator[str]:
        """Keys that labels set for themselves, guidance, verification."""
        recipe = self.recipe
        for label in recipe.labels:
            if own := label.model_dump(include={"decay_constant", "guidance", "samples"}, exclude_none=True):
                yield f"label {label.name}: {_listed(own)}"
        if guided := recipe.guided_labels:
            plain = ", ".join(dict.fromkeys(repr(label.plain_prompt) for label in guided))
            names = ", ".join(f"{label.name} (γ = {recipe.decoding_of(label).guidance:g})" for label in guided)
            yield f"guidance: away from {plain}, in texts of label {names}: one model row more a text"
        if asked := recipe.verification:
            options = _listed(asked.model_dump(exclude_defaults=True)) or "scores alone"
            yield f"verification: texts are scored under the prompts of {len(recipe.written_labels)} labels; {options}"

    def files(self) -> Iterator[str]:
        """Files of the repository, config by config, and the Hub's advice for that many."""
        yield "files:"
        folders = layout.folders(self.recipe, self.firsts.total)
        yield from (f"  data/{config}/: at most {files}" for config, files in folders.items())
        fullest = max(folders, key=lambda config: folders[config])
        whole = sum(folders.values()) + BESIDE
        yield f"  at most {whole} files in all, {folders[fullest]} in the fullest folder, data/{fullest}/"
        if folders[fullest] >= FILES_OF_FOLDER or whole >= FILES:
            limits = f"fewer than {FILES} files in a repository and {FILES_OF_FOLDER} in a folder"
            yield f"warning: the Hub recommends {limits}; raise shard_size, or divide the source among several recipes"

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
                        yield from (f"    as tokens: {read}" for read in [self.writer.shown_tokens(prompt)] if read)
                        yield from (f"    not also: {counter!r}" for counter in counters)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most ``count`` items, spread over all."""
    return list(items[:: max(1, len(items) // count)][:count])


@dataclass
class Pilot:
    """What a pilot on ``firsts`` source sentences measured. ``begun``: the one of few rows that came before it.

    A text is known by its model rows and by the tokens of each of them.
    """

    firsts: int
    begun: "Pilot | None" = None
    seconds: float = 0.0
    raw: Counter[str] = field(default_factory=Counter)  # texts accepted, by label
    kept: Counter[str] = field(default_factory=Counter)  # those that the filters keep
    asked: Counter[str] = field(default_factory=Counter)  # all texts, rejected ones included
    texts: list[tuple[int, int]] = field(default_factory=list)
    unfinished: list[tuple[int, int]] = field(default_factory=list)  # when a slow model's pilot ended early
    rows: int = 0  # in the batch at most
    work: tuple[int, int] = (0, 0)  # passes of the model and their tokens; a server tells none
    longest: int = 0  # tokens of the longest text
    prefixes: float = 0.0  # seconds until the shared prefixes are read

    def texts_of(self, label: Label, recipe: DatasetRecipe) -> float:
        """Texts of a label for each source sentence, rejected ones included."""
        if not self.unfinished:
            return self.asked[label.name] / self.firsts
        wanted, accepted = recipe.texts_asked(label), (self.raw[label.name] + 1) / (self.asked[label.name] + 1.5)
        return wanted * (1 - (1 - accepted) ** (recipe.decoding.max_attempts / wanted)) / accepted

    def run_rows(self, firsts: int, recipe: DatasetRecipe) -> float:
        """Predicted rows of a run of ``firsts`` source sentences, before filters."""
        labels = [label for label in recipe.written_labels if self.asked[label.name]]
        share = {label.name: self.raw[label.name] / self.asked[label.name] for label in labels}
        return firsts * sum(share[label.name] * self.texts_of(label, recipe) for label in labels)

    def run_seconds(self, firsts: int, recipe: DatasetRecipe) -> float:
        """Predicted seconds of a run of ``firsts`` source sentences.

        A pass takes seconds for itself and for each of its tokens. At the end few rows wait for the longest text's last
        attempt: the one that is likely among so many source sentences.
        """
        from scipy.optimize import nnls

        texts = firsts * sum(self.texts_of(label, recipe) for label in recipe.written_labels)
        if not self.begun or not self.work[0]:
            return self.seconds * texts / len(self.texts)
        per_pass, per_token = nnls([self.begun.work, self.work], [self.begun.seconds, self.seconds])[0]
        mean, begun = mean_tokens(self.texts, self.unfinished), [*self.texts, *self.unfinished]
        tokens = texts * (self.work[1] + sum(rows * (mean - tokens) for rows, tokens in begun)) / len(begun)
        full = recipe.decoding.batch_size or FULL
        drain = self.work[0] - self.work[1] / full
        if self.unfinished:
            rejected = max(1 - self.raw[label] / asked for label, asked in self.asked.items())
            attempts = 1 - log(max(1, firsts)) / log(min(max(rejected, 0.01), 0.99))
            drain = self.longest * min(attempts, recipe.decoding.max_attempts)
        return float(per_pass * (tokens / full + drain) + per_token * tokens)

    def memory_mb(self, loaded: float, peak: float, firsts: int, recipe: DatasetRecipe) -> float:
        """Predicted most memory of a run of ``firsts``, from that of the loaded model and of this pilot."""
        texts = firsts * recipe.texts_per_source_sentence
        batch = min(FULL, texts * fmean(rows for rows, _ in [*self.texts, *self.unfinished]))
        return MARGIN * (loaded + (peak - loaded) * max(1.0, batch / max(1, self.rows)))


def mean_tokens(texts: Sequence[tuple[int, int]], unfinished: Sequence[tuple[int, int]]) -> float:
    """The mean tokens of a row, by the estimate of Kaplan and Meier: unfinished texts are longer than they are now."""
    begun, mean, going = [*texts, *unfinished], 0.0, 1.0
    for length in range(max(tokens for _, tokens in begun)):
        mean += going
        ended = sum(rows for rows, tokens in texts if tokens == length + 1)
        going *= 1 - ended / sum(rows for rows, tokens in begun if tokens > length)
    return mean


class Watched:
    """A writer that measures pilots. In a slow model's it keeps a small batch full, and stops early."""

    def __init__(self, writer: Any, clock: Clock):
        self.writer, self.clock, self.context = writer, clock, writer.context
        self.count_tokens, self.prompt_tokens = writer.count_tokens, writer.prompt_tokens
        self.is_control, self.shown_tokens = writer.is_control, writer.shown_tokens
        self.describe, self.pilot, self.slow = writer.describe, Pilot(0), False

    def ahead(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """See ``Writer.ahead``."""
        return BATCH if self.slow else self.writer.ahead(settings, batch_size)

    def stream(
        self, queue: deque[Request], settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``Writer.stream``."""
        pilot, started, (passes, tokens) = self.pilot, self.clock(), self._work()
        pilot.rows = min(FULL, sum(len(request.prompts) for request in queue))
        if self.slow:
            batch_size = pilot.rows = min(batch_size or BATCH, BATCH)
        for request, completion in self.writer.stream(queue, settings, batch_size, prefixes):
            length = self.count_tokens(completion.text) + 1 if any(self._work()) else 1  # a server counts none
            pilot.texts.append((len(request.prompts), length))
            yield request, completion
            if self.slow and self.clock() - started > SECONDS and len(pilot.texts) >= FEW:
                pilot.unfinished = self.writer.unfinished()
                break
        pilot.seconds, now = self.clock() - started, self._work()
        pilot.work = now[0] - passes, now[1] - tokens

    def _work(self) -> tuple[int, int]:
        return getattr(self.writer, "passes", 0), getattr(self.writer, "tokens_computed", 0)

    def warm_up(self, prompts: Prompts, variant: Variant) -> Pilot:
        """Read the shared prefixes, then begin a text of each label: first calls are slow."""
        one, settings = prompts.variant(variant, NOT_YET), prompts.recipe.decoding
        asked = [text_request(prompts, label, NOT_YET, one, 0) for label in prompts.recipe.written_labels]
        for tokens in (1, min(FIRST, settings.max_new_tokens)):
            read, self.pilot = self.pilot, Pilot(1)
            short = settings.model_copy(update={"max_new_tokens": tokens})
            complete(self, asked, short, settings.batch_size, prompts.prefixes(variant))
        begun, self.pilot = replace(self.pilot, prefixes=read.seconds), Pilot(0)
        return begun

    def shard(self, prompts: Prompts, firsts: Sequence[SourceSentence], variant: Variant, begun: Pilot) -> Pilot:
        """Generate the texts of some source sentences as a run would, and discard them."""
        found, recipe, shards = Pilot(len(firsts), begun), prompts.recipe, [firsts]
        self.pilot, self.slow = found, begun.seconds > SLOW * begun.work[0] > 0
        if self.slow:  # whenever it ends, it has had source sentences of all lengths
            by_length = sorted(firsts, key=lambda first: len(first.text))
            shards = [[by_length[place]] for place in sorted(range(len(firsts)), key=lambda place: place * 0.618 % 1)]
        written = write_shards(self, prompts, recipe, shards, lambda _: None, variant, stops_early=True)
        raw, failed = ([*chain.from_iterable(rows)] for rows in zip(*written, strict=True))
        kept, dropped = filtered(raw, recipe)
        found.raw, found.kept = (Counter(row["target"] for row in rows) for rows in (raw, kept))
        found.asked = Counter(row["target"] for row in (*kept, *dropped, *failed))
        lengths = [self.count_tokens(first.text) for first in firsts if found.unfinished]
        most = max([tokens for _, tokens in found.texts] + lengths)
        found.longest, self.slow = min(recipe.decoding.max_new_tokens, most), False
        return found


@dataclass(frozen=True)
class Estimate:
    """Predicted time and rows of a run. ``rows`` are accepted texts (config raw)."""

    source_sentences: int
    rows: int
    seconds: float
    keep_rate: dict[str, float]  # by label: kept of the requested ones
    pilot_seconds: float
    texts: dict[str, int] = field(default_factory=dict)  # by label, of the pilots
    read: list[str] = field(default_factory=list)  # ``what_was_read``
    start_seconds: float = 0.0  # until the model generates
    memory_mb: float = 0.0  # most, with a full batch

    def __str__(self) -> str:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        lines = [
            f"pilot of {sum(self.texts.values())} texts: {self.pilot_seconds:.1f} s",
            f"rows/s: {self.rows / self.seconds:.3g}",
            f"time: {self.seconds / 3600:.3g} hours ({hours} h {minutes:02d} min) with one worker, "
            f"and {self.start_seconds:.0f} s to load the model and read what prompts share",
            f"source sentences: {self.source_sentences}; raw rows: about {self.rows}",
            f"memory: about {self.memory_mb / 1024:.1f} GiB",
        ]
        rates = [
            f"keep rate of label {name}: {rate:.1%} of {self.texts[name]} texts"
            for name, rate in self.keep_rate.items()
        ]
        return "\n".join([*lines, *rates])


def estimate(recipe: DatasetRecipe, clock: Clock = time.monotonic) -> Estimate:
    """Run the pilot and predict the run. Leaves no file behind. Raises InputError as the run would."""
    recipe = with_dtype(recipe)
    writer, prompts = Watched(load_writer(recipe.model), clock), load_prompts(recipe)
    begun = writer.warm_up(prompts, recipe.variants[0])
    loaded, start = peak_rss_mb(), seconds_since_start()
    total, firsts, first_seconds, read = _source_sentences(recipe, writer, prompts)
    shots = list(dict.fromkeys(variant.shots for variant in recipe.variants))
    pilots = dict[int | None, Pilot]()
    for number, shown in enumerate(shots):
        say(f"pilot{f' with {shown} examples' if shown is not None else ''} ...")
        variant = next(variant for variant in recipe.variants if variant.shots == shown)
        begun = writer.warm_up(prompts, variant) if number else begun
        pilots[shown] = writer.shard(prompts, firsts[number :: len(shots)] or firsts[:1], variant, begun)
    found = predict(recipe, total, pilots, first_seconds)
    most = max(one.memory_mb(loaded, peak_rss_mb(), total, recipe) for one in pilots.values())
    return replace(found, read=read, start_seconds=start, memory_mb=most)


def predict(recipe: DatasetRecipe, total: int, pilots: dict[int | None, Pilot], first_seconds: float) -> Estimate:
    """A run of ``total`` source sentences, which take ``first_seconds`` to write, from ``pilots`` by shot count."""
    seconds, rows, kept, asked = first_seconds, 0.0, Counter[str](), Counter[str]()
    for number, variant in enumerate(recipe.variants):
        found = pilots[variant.shots]
        seconds += found.run_seconds(total, recipe)
        seconds += found.begun.prefixes if number and found.begun else 0.0
        rows += found.run_rows(total, recipe)
        kept, asked = kept + found.kept, asked + found.asked
    rates = {name: kept[name] / texts for name, texts in asked.items()}
    return Estimate(total, round(rows), seconds, rates, sum(found.seconds for found in pilots.values()), dict(asked))


def _source_sentences(
    recipe: DatasetRecipe, writer: Watched, prompts: Prompts
) -> tuple[int, list[SourceSentence], float, list[str]]:
    """The number of source sentences, those of the pilot, the seconds to write all, and ``what_was_read``."""
    if not recipe.source.facts.generated:
        lack = ContextRoom(prompts, writer).lack
        firsts = survey(recipe, writer.count_tokens, lack, is_control=writer.is_control)
        return firsts.total, _spread(firsts.sample, ROWS), 0.0, firsts.read
    limit, started = recipe.source.limit or 0, writer.clock()
    asked = range(min(FIRSTS, limit * recipe.decoding.max_attempts))
    answers = Worker(recipe, prompts, writer).do(WriteSourceSentences(asked), Path).facts
    firsts_written = [SourceSentence(row["source_id"], row["text"]) for row in answers if row["reason"] is None]
    if not firsts_written:
        raise InputError("source", "the model generated no usable source sentence")
    return limit, _spread(firsts_written, ROWS), (writer.clock() - started) * limit / len(firsts_written), []

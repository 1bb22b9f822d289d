"""One encoder on many tasks: its texts encoded in one pass, then task by task measured, recorded and told."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import Encoder, load_encoder
from eval.runs.job import EvaluationJob, find_entries
from eval.runs.records import BASE, CONTROL, RESULTS, Record, Records, other_major, why_stale, with_interval
from eval.scoring.measure import measure
from eval.statistics.paired import Difference, Measurement, gains, resampled
from eval.statistics.scores import EvaluationSettings, NewScore, task_score
from eval.tasks.registry import MTEB, TASKS, averages
from eval.tasks.sources import Entry, Source, TaskData
from eval.tasks.task import Task
from hub.cli import say
from hub.contract.results import Gain, Results, TaskScore, write_results
from hub.contract.run_dir import locked
from hub.errors import InputError, RunError, StsDinoError

LIBRARIES = ("torch", "transformers", "sentence-transformers", "numpy")


@dataclass(frozen=True)
class ScoredEncoder:
    """One encoder, its records' folder, the records that count, in the order asked for, and why tasks have none."""

    encoder: Encoder
    place: Records
    records: list[Record] = field(default_factory=list)
    failures: list[RunError] = field(default_factory=list)


def versions(of_mteb: bool = False) -> dict[str, str]:
    """The libraries that a score may depend on; mteb for its own tasks alone."""
    libraries = (*LIBRARIES, "mteb") if of_mteb else LIBRARIES
    return {"python": sys.version.split()[0], **{library: version(library) for library in libraries}}


def evaluate(
    entries: Sequence[Entry],
    data: TaskData,
    encoder: Encoder,
    records: Records,
    settings: EvaluationSettings,
    cache: Path | None,
) -> ScoredEncoder:
    """Score every entry, or take over its record where it still holds (``eval.runs.records``).

    A task that cannot be scored (undefined, its data not to be had, too few rows under a limit) is told and has no
    record; the others go on. Call it with the records' folder locked. Raises InputError when the encoder gives no
    usable embeddings.
    """
    run = _Run(data, encoder, records, settings)
    held = {entry: record for entry in entries if (record := run.held(entry))}
    pending = [entry for entry in entries if entry not in held]
    for record in held.values():
        _say_score(record.score, "kept")
    scored = ScoredEncoder(encoder, records)
    if not pending:
        return replace(scored, records=list(held.values()))
    with Embeddings(encoder, cache) as embeddings:
        costs = _encode([entry for entry in pending if not entry.task.is_of_mteb], data, embeddings)
        for entry in entries:
            if entry in held:
                scored.records.append(held[entry])
                continue
            for found in run.measure(entry, embeddings, costs.get(entry)):
                if isinstance(found, Record):
                    scored.records.append(found)
                    continue
                failure = RunError(f"{entry}, {encoder.name}", f"not scored: {found}")
                say(f"error: {failure}")
                if not entry.task.is_of_mteb:
                    records.remove(entry.task.name, entry.split)
                scored.failures.append(failure)
    return scored


@dataclass(frozen=True)
class _Run:
    """What stays the same from task to task."""

    data: TaskData
    encoder: Encoder
    records: Records
    settings: EvaluationSettings

    def held(self, entry: Entry) -> Record | None:
        """The record of an entry if it holds; None for a name of MTEB's, which stands for several."""
        if entry.task.is_of_mteb:
            return None
        return self.kept(entry.task, entry.split, (self.data.sha256(entry), None))

    def kept(self, task: Task, split: str, data: tuple[str | None, str | None]) -> Record | None:
        """The record of a task if it holds for these data, with the interval asked for; else why not is told."""
        record = self.records.find(task.name, split)
        if record is None:
            if self.records.has(task.name, split):
                say(f"{task.name} {split}: measured anew, for its record is damaged or of another form")
            return None
        stale = why_stale(record, self.encoder, self.settings, self.settings.protocol(task), data)
        stale = stale or other_major(record, versions(task.is_of_mteb))
        if stale is None:
            return with_interval(record, self.records, self.settings)
        say(f"{task.name} {split}: measured anew, for {stale}")
        return None

    def measure(self, entry: Entry, embeddings: Embeddings, cost: float | None) -> Iterator[Record | StsDinoError]:
        """Measure an entry and write it down: one record, or those of everything that a name of MTEB stands for.

        What cannot be scored gives the error instead.
        """
        began = time.perf_counter()
        try:
            for found in self._scores(entry, embeddings, cost):
                if isinstance(found, NewScore):
                    yield self._write(found)
                    _say_score(found.score, f"{time.perf_counter() - began:.1f} s")
                    began = time.perf_counter()
                    continue
                yield found
                if isinstance(found, Record):
                    _say_score(found.score, "kept")
        except (InputError, RunError) as error:
            if error.place == self.encoder.name:
                raise
            yield error

    def _scores(
        self, entry: Entry, embeddings: Embeddings, cost: float | None
    ) -> Iterator[NewScore | Record | RunError]:
        if entry.task.is_of_mteb:
            from eval.mteb_bridge.run import measure_mteb  # importing mteb costs seconds

            yield from measure_mteb(entry.task.dataset, embeddings, self.data.source, self.settings, self.kept)
            return
        measured = measure(entry.task, entry.split, self.data.rows(entry), embeddings, self.settings.probe_seeds)
        seconds = {} if cost is None else {"encoding": cost}
        score = task_score(entry.task, entry.split, measured, self.data.sha256(entry), self.settings, seconds)
        yield NewScore(entry.task, score, measured.outcomes)

    def _write(self, new: NewScore) -> Record:
        record = Record(
            score=new.score,
            revision=self.encoder.revision,
            encoder=self.encoder.settings,
            settings=self.settings,
            versions=versions(new.task.is_of_mteb),
            metric=new.task.metric if new.outcomes is not None else None,
            aggregation=new.task.aggregation,
        )
        return self.records.write(record, new.outcomes)


def _encode(entries: Sequence[Entry], data: TaskData, embeddings: Embeddings) -> dict[Entry, float]:
    """Encode all texts of all entries; the seconds that each one's distinct texts took, shared out by characters.

    None are told when a cache had some of the texts. Entries share texts, so costs add up to more than the run's.
    """
    if not entries:
        return {}
    for entry in entries:
        for texts in data.texts(entry):
            embeddings.add(texts)
    embeddings.encode()
    if embeddings.reused or not embeddings.encoded:
        return {}
    distinct = {entry: {text for texts in data.texts(entry) for text in texts} for entry in entries}
    total = sum(map(len, set().union(*distinct.values())))
    return {entry: embeddings.seconds * sum(map(len, texts)) / max(total, 1) for entry, texts in distinct.items()}


def _say_score(score: TaskScore, word: str) -> None:
    around = score.interval()
    shown = f" [{around[0]:.2f}, {around[1]:.2f}]" if around else ""
    say(f"{score.task} {score.split}: {score.main_score:.2f}{shown}, {score.n} {score.unit} ({word})")


def everything(side: ScoredEncoder, settings: EvaluationSettings) -> ScoredEncoder:
    """What this run scored, and whatever earlier runs left of it that still holds. What does not is told, and why."""
    named = {record.key for record in side.records}
    others = [(record, _stale(record, side, settings)) for record in side.place.all() if record.key not in named]
    told = [(" ".join(record.key), stale) for record, stale in others if stale is not None]
    told += [(name, "it is damaged or of another form") for name in side.place.unreadable()]
    for name, stale in told:
        say(f"not in {side.place.folder / RESULTS}: {name}, for {stale}")
    earlier = [with_interval(record, side.place, settings) for record, stale in others if stale is None]
    order = {name: place for place, name in enumerate(TASKS)}
    earlier.sort(key=lambda record: (order.get(record.score.task, len(order)), *record.key))
    return replace(side, records=[*side.records, *earlier])


def summarise(
    model: ScoredEncoder,
    base: ScoredEncoder | None,
    settings: EvaluationSettings,
    control: ScoredEncoder | None = None,
) -> Results:
    """Results of a model and, where there are any, of its base and control on the same tasks.

    Part of the data makes no average.
    """
    now = versions(any(record.score.task.startswith(MTEB) for record in model.records))
    scores = tuple(_with_versions(record, now) for record in model.records)
    base_scores, base_gains = _against(model, base, "base", settings, now)
    control_scores, over_control = _against(model, control, "control", settings, now)
    return Results(
        model=model.encoder.name,
        revision=model.encoder.revision,
        fingerprint=model.encoder.fingerprint,
        bootstrap_samples=settings.bootstrap_samples,
        interval=settings.interval,
        seed=settings.seed,
        versions=now,
        scores=scores,
        averages=averages(scores) if settings.limit is None else (),
        base_scores=base_scores,
        gains=base_gains,
        control_scores=control_scores,
        over_control=over_control,
    )


def _against(
    model: ScoredEncoder,
    other: ScoredEncoder | None,
    which: str,
    settings: EvaluationSettings,
    now: Mapping[str, str],
) -> tuple[tuple[TaskScore, ...], tuple[Gain, ...]]:
    """Scores of another encoder on the model's tasks, and what the model gains over it; nothing where there is none."""
    if other is None:
        return (), ()
    pairs = list(_pairs(model, other, which))
    found = [_difference(model, other, after, before, settings) for after, before in pairs]
    scores = tuple(_with_versions(before, now) for _, before in pairs)
    return scores, gains([one for one in found if one is not None])


def _pairs(model: ScoredEncoder, base: ScoredEncoder, which: str) -> Iterator[tuple[Record, Record]]:
    """The records of both on one measurement. A run killed between the two may leave unlike versions: no gain."""
    measured = {Measurement.of(record.score): record for record in reversed(base.records)}
    for after in model.records:
        before = measured.get(Measurement.of(after.score))
        told = other_major(before, after.versions) if before else None
        if told:
            say(f"no gain on {' '.join(after.key)}, for the {which}'s score: {told}; name the task again to score both")
        elif before:
            yield after, before


def only(results: Results, keys: Sequence[tuple[str, str]]) -> Results:
    """The part of results that is of these tasks and splits: same numbers, same verdicts, as many averages."""
    scores = tuple(score for score in results.scores if (score.task, score.split) in keys)
    named = {average.name for average in averages(scores)}
    return results.model_copy(
        update={
            "scores": scores,
            "averages": tuple(average for average in results.averages if average.name in named),
            "base_scores": tuple(one for one in results.base_scores if (one.task, one.split) in keys),
            **{
                name: tuple(one for one in getattr(results, name) if (one.task, one.split) in keys)
                for name in ("gains", "control_scores", "over_control")
            },
        }
    )


def _stale(record: Record, side: ScoredEncoder, settings: EvaluationSettings) -> str | None:
    """Why a record that nobody asked for does not hold: its data are not read again."""
    task = TASKS.get(record.score.task)
    return why_stale(record, side.encoder, settings, settings.protocol(task) if task else None)


def _with_versions(record: Record, now: Mapping[str, str]) -> TaskScore:
    """The score with the versions it was made with, where they are not those of ``now``."""
    others = {library: version for library, version in record.versions.items() if now.get(library) != version}
    return record.score.model_copy(update={"versions": others})


def _difference(
    model: ScoredEncoder, base: ScoredEncoder, after: Record, before: Record, settings: EvaluationSettings
) -> tuple[TaskScore, Difference] | None:
    """The score after and its difference to the one before; None where no outcomes of rows were kept."""
    rows = model.place.outcomes(*after.key), base.place.outcomes(*before.key)
    if rows[0] is None or rows[1] is None or after.metric is None:
        return None
    both = resampled((rows[0], rows[1]), after.metric, after.aggregation, settings.resampling)
    return after.score, both.difference(0, 1, (after.score, before.score))


def score_encoder(
    encoder: Encoder | str,
    tasks: Sequence[str],
    source: Source | None = None,
    settings: EvaluationSettings | None = None,
    out: Path | None = None,
    cache: Path | None = None,
) -> Results:
    """The scores of an encoder on tasks and groups, each with its interval: what a notebook calls.

    encoder: a folder, a Hub id ``ORG/NAME[@REVISION]``, or a function in ``eval.encoders.load.wrap``. ``source`` is
    where data are read (the STS Benchmark ships with the project), ``out`` keeps records as ``python -m eval.run``
    does, ``cache`` the embeddings; without them nothing is kept. Raises InputError for unknown tasks, data that are not
    there and encoders that give no usable embeddings, RunError when a task cannot be scored.
    """
    source, settings = source or Source(), settings or EvaluationSettings()
    data = TaskData(source, settings.limit, settings.seed)
    loaded = load_encoder(encoder) if isinstance(encoder, str) else encoder
    with TemporaryDirectory() as temporary:
        records = Records(out or Path(temporary))
        with locked(records.folder):
            entries, absent = find_entries(tasks, source)
            if absent:
                say(f"left out, because no source of their data is given: {', '.join(task.name for task in absent)}")
            scored = evaluate(entries, data, loaded, records, settings, cache)
            if scored.failures:
                raise scored.failures[0]
            results = summarise(scored, None, settings)
            write_results(records.folder / RESULTS, results)
    return results


def score(job: EvaluationJob, data: TaskData) -> tuple[Results, list[RunError]]:
    """Score the job's encoders and write the results; those asked for, and what could not be scored."""
    model = load_encoder(job.model)
    others = {name: load_encoder(place) for name, place in ((BASE, job.base), (CONTROL, job.control)) if place}
    folder, settings = job.records.folder, job.settings
    with locked(folder):
        job.records.clear_leftovers()
        scored = evaluate(job.entries, data, model, job.records, settings, job.cache)
        failures, whole = list(scored.failures), everything(scored, settings)
        sides = dict[str, ScoredEncoder]()
        for name, encoder in others.items():
            found = evaluate(job.entries, data, encoder, Records(folder / name), settings, job.cache)
            failures += found.failures
            sides[name] = everything(found, settings)
        written = summarise(whole, sides.get(BASE), settings, sides.get(CONTROL))
        _write(folder / RESULTS, written)
        for name, side in sides.items():
            write_results(folder / name / RESULTS, summarise(side, None, settings))
        if job.results is not None:
            _write(job.results, written)
    return only(written, [record.key for record in scored.records]), failures


def _write(path: Path, results: Results) -> None:
    write_results(path, results)
    say(f"written: {path}")

"""One encoder on many tasks: its texts encoded in one pass, then task by task measured, recorded and told."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import Encoder
from eval.runs.records import Record, Records
from eval.runs.validity import other_major, why_stale, with_interval
from eval.scoring.dispatch import measure
from eval.statistics.scores import EvaluationSettings, NewScore, task_score
from eval.tasks.task import Task
from eval.tasks.task_data import Entry, TaskData
from hub.cli import say
from hub.contract.results import TaskScore
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
    """Score every entry, or take over its record where it still holds (``eval.runs.validity``).

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

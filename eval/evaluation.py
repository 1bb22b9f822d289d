"""One encoder on many tasks: its texts encoded in one pass, then task by task measured, recorded and told."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from eval.embeddings import Embeddings
from eval.encoders import Encoder
from eval.measures import measure
from eval.outcomes import Outcomes
from eval.records import Record, Records
from eval.registry import Task
from eval.scores import Settings, task_score
from eval.task_data import Entry, TaskData
from eval.validity import other_major, why_stale, with_interval
from hub.cli import say
from hub.errors import InputError, RunError, StsDinoError
from hub.results import TaskScore

LIBRARIES = ("torch", "transformers", "sentence-transformers", "numpy")


@dataclass(frozen=True)
class Scored:
    """What came of evaluating one encoder: the records, in the order asked for, and why tasks have none."""

    records: list[Record] = field(default_factory=list)
    failures: list[RunError] = field(default_factory=list)


def versions(of_mteb: bool = False) -> dict[str, str]:
    """The libraries that a score may depend on; mteb for its own tasks alone."""
    libraries = (*LIBRARIES, "mteb") if of_mteb else LIBRARIES
    return {"python": sys.version.split()[0], **{library: version(library) for library in libraries}}


def evaluate(
    entries: Sequence[Entry], data: TaskData, encoder: Encoder, records: Records, settings: Settings, cache: Path | None
) -> Scored:
    """Score every entry, or take over its record where it still holds (``eval.validity``).

    A task that cannot be scored (undefined, its data not to be had, too few rows under a limit) is told and has no
    record; the others go on. Call it with the records' folder locked. Raises InputError when the encoder gives no
    usable embeddings.
    """
    run = _Run(data, encoder, records, settings)
    held = {entry: record for entry in entries if (record := run.held(entry))}
    pending = [entry for entry in entries if entry not in held]
    for record in held.values():
        _tell(record.score, "kept")
    scored = Scored()
    if not pending:
        return Scored(list(held.values()))
    with Embeddings(encoder, cache) as embeddings:
        costs = _encode([entry for entry in pending if entry.task.kind != "mteb"], data, embeddings)
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
                if entry.task.kind != "mteb":
                    records.remove(entry.task.name, entry.split)
                scored.failures.append(failure)
    return scored


@dataclass(frozen=True)
class _Run:
    """What stays the same from task to task."""

    data: TaskData
    encoder: Encoder
    records: Records
    settings: Settings

    def held(self, entry: Entry) -> Record | None:
        """The record of an entry if it holds; None for a name of MTEB's, which stands for several."""
        if entry.task.kind == "mteb":
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
        stale = stale or other_major(record, versions(task.kind == "mteb"))
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
                if not isinstance(found, tuple):
                    yield found
                    if isinstance(found, Record):
                        _tell(found.score, "kept")
                    continue
                task, score, outcomes = found
                yield self._write(task, score, outcomes)
                _tell(score, f"{time.perf_counter() - began:.1f} s")
                began = time.perf_counter()
        except (InputError, RunError) as error:
            if error.place == self.encoder.name:
                raise
            yield error

    def _scores(
        self, entry: Entry, embeddings: Embeddings, cost: float | None
    ) -> Iterator[tuple[Task, TaskScore, Outcomes | None] | Record | RunError]:
        if entry.task.kind == "mteb":
            from eval.mteb_suite import MtebScore, measure_mteb  # importing mteb costs seconds

            scores = measure_mteb(entry.task.dataset, embeddings, self.data.source, self.settings, self.kept)
            for found in scores:
                yield (found.task, found.score, found.outcomes) if isinstance(found, MtebScore) else found
            return
        measured = measure(entry.task, entry.split, self.data.rows(entry), embeddings, self.settings.probe_seeds)
        seconds = {} if cost is None else {"encoding": cost}
        score = task_score(entry.task, entry.split, measured, self.data.sha256(entry), self.settings, seconds)
        yield entry.task, score, measured.outcomes

    def _write(self, task: Task, score: TaskScore, outcomes: Outcomes | None) -> Record:
        record = Record(
            score=score,
            revision=self.encoder.revision,
            encoder=self.encoder.settings,
            settings=self.settings,
            versions=versions(task.kind == "mteb"),
            metric=task.metric if outcomes is not None else None,
            aggregation=task.aggregation,
        )
        return self.records.write(record, outcomes)


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


def _tell(score: TaskScore, word: str) -> None:
    around = score.interval()
    shown = f" [{around[0]:.2f}, {around[1]:.2f}]" if around else ""
    say(f"{score.task} {score.split}: {score.main_score:.2f}{shown}, {score.n} {score.unit} ({word})")

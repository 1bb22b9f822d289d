"""Score an encoder, its untrained base and its baseline on many tasks, task by task, and write results.json.

The texts of all tasks are encoded in one pass. A task's record is written as soon as it is scored; a later run takes it
over where it still holds (``eval.runs.records``).
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import Encoder, load_encoder
from eval.runs.job import EvaluationJob, find_entries, own_entries
from eval.runs.records import BASE, COMPARED, CONTROL, RESULTS, Data, Record, Records, why_stale, with_interval
from eval.scoring.outcomes import Measured
from eval.statistics.bootstrap import EvaluationSettings, NewScore, task_score
from eval.statistics.paired import Difference, Measurement, gains, resampled
from eval.tasks.own import OWN
from eval.tasks.registry import MTEB, TASKS, averages
from eval.tasks.rows import Rows
from eval.tasks.sources import Entry, Source, TaskData
from eval.tasks.task import Family, Task
from hub import scores as shown
from hub.cli import say
from hub.contract.results import Gain, Results, TaskScore, write_results
from hub.contract.run_dir import locked
from hub.errors import InputError, RunError

LIBRARIES = ("torch", "transformers", "sentence-transformers", "numpy")
MEASURES: dict[Family, tuple[str, str]] = {
    "sts": ("eval.scoring.sts", "measure_sts"),
    "transfer": ("eval.scoring.transfer", "measure_transfer"),
    "probing": ("eval.scoring.transfer", "measure_transfer"),
    "relatedness": ("eval.scoring.transfer", "measure_regression"),
    "search": ("eval.scoring.search", "measure_search"),
}
"""Family → module and function, imported when a task needs it; MTEB measures its own tasks."""


@dataclass(frozen=True)
class ScoredEncoder:
    """One encoder, its records' folder, its valid records in the order asked for, and why other tasks have none."""

    encoder: Encoder
    place: Records
    records: list[Record] = field(default_factory=list)
    failures: list[RunError] = field(default_factory=list)


def score_encoder(
    encoder: Encoder | str,
    tasks: Sequence[str],
    source: Source | None = None,
    settings: EvaluationSettings | None = None,
    out: Path | None = None,
    cache: Path | None = None,
) -> Results:
    """The scores of an encoder on tasks and groups, each with its interval: one call for notebooks.

    encoder: a folder, a Hub id ``ORG/NAME[@REVISION]``, or a function in ``eval.encoders.load.wrap``. ``source`` is
    where data are read (the STS Benchmark ships with the project), ``out`` keeps records as ``sts-dino score`` does,
    ``cache`` the embeddings; without them nothing is kept. Raises InputError for unknown tasks, missing data and
    encoders that give no usable embeddings, RunError when a task cannot be scored.
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
            scored = evaluate((*entries, *own_entries(source)), data, loaded, records, settings, cache)
            if scored.failures:
                raise scored.failures[0]
            results = summarise(scored, None, settings)
            write_results(records.folder / RESULTS, results)
    return results


def score(job: EvaluationJob, data: TaskData) -> tuple[Results, list[RunError]]:
    """Score the job's encoders and write the results; those asked for, and what could not be scored."""
    encoders = {"": load_encoder(job.model)}
    others = {BASE: job.base, CONTROL: job.control, COMPARED: job.compared}
    encoders |= {name: load_encoder(place) for name, place in others.items() if place}
    folder, settings = job.records.folder, job.settings
    with locked(folder):
        job.records.clear_leftovers()
        sides, failures, asked = dict[str, ScoredEncoder](), list[RunError](), list[tuple[str, str]]()
        for name, encoder in encoders.items():
            found = evaluate(job.entries, data, encoder, Records(folder / name), settings, job.cache)
            failures += found.failures
            sides[name] = with_earlier(found, settings)
            asked = asked or [record.key for record in found.records]
        written = summarise(sides[""], sides.get(BASE), settings, sides.get(CONTROL))
        for path in filter(None, (folder / RESULTS, job.results)):
            write_results(path, written)
            say(f"written: {path}")
        for name in sides.keys() - {""}:
            write_results(folder / name / RESULTS, summarise(sides[name], None, settings))
    return _only(written, asked), failures


def evaluate(
    entries: Sequence[Entry],
    data: TaskData,
    encoder: Encoder,
    records: Records,
    settings: EvaluationSettings,
    cache: Path | None,
) -> ScoredEncoder:
    """Score every entry, or take over its record where it still holds.

    A task that cannot be scored (undefined, its data not to be had, too few rows under a limit) is printed and has no
    record; the others follow. Call it with the records' folder locked. Raises InputError when the encoder gives no
    usable embeddings.
    """
    scored = ScoredEncoder(encoder, records)
    kept = partial(_kept, scored, settings)
    own = [entry for entry in entries if not entry.task.is_of_mteb]
    held = {entry: record for entry in own if (record := kept(entry.task, entry.split, (data.sha256(entry), None)))}
    for record in held.values():
        _say_score(record.score, "kept")
    if len(held) == len(entries):
        scored.records.extend(held.values())
        return scored

    def measured(entry: Entry) -> Iterator[NewScore | Record | RunError]:
        if entry.task.is_of_mteb:
            from eval.mteb_bridge.run import measure_mteb  # importing mteb costs seconds

            results = records.folder / "mteb"
            yield from measure_mteb(entry.task.dataset, embeddings, data.source, settings, kept, results)
            return
        found = measure(entry.task, data.rows(entry), embeddings, settings.probe_seeds)
        one = task_score(entry.task, entry.split, found, data.sha256(entry), settings)
        yield NewScore(entry.task, one, found.outcomes)

    prompts = encoder.model.prompts if encoder.model and not encoder.settings["prompt"] else {}
    unused = ", ".join(name for name, prompt in prompts.items() if prompt)
    if unused and any(entry.task.group == OWN and not entry.task.sides for entry in entries):
        hint = "call the columns query and passage to use them"
        say(f"{encoder.name}: pairs of one kind are encoded without its prompts ({unused}); {hint}")
    with Embeddings(encoder, cache) as embeddings:
        asked = [entry for entry in own if entry not in held and not entry.task.sides]
        embeddings.add([text for entry in asked for texts in data.texts(entry) for text in texts])
        embeddings.encode()
        for entry in entries:
            if entry in held:
                scored.records.append(held[entry])
                continue
            began = time.perf_counter()
            try:
                for found in measured(entry):
                    if isinstance(found, RunError):
                        _fail(scored, entry, found)
                    elif isinstance(found, NewScore):
                        scored.records.append(_write(scored, found, settings))
                        _say_score(found.score, f"{time.perf_counter() - began:.1f} s")
                    else:
                        scored.records.append(found)
                        _say_score(found.score, "kept")
                    began = time.perf_counter()
            except (InputError, RunError) as error:
                if error.place == encoder.name:
                    raise
                _fail(scored, entry, error)
    return scored


def measure(task: Task, data: Mapping[str, Rows], embeddings: Embeddings, seeds: Sequence[int]) -> Measured:
    """The task's score with the rows behind it. ``data``: split → rows. Raises RunError when it is undefined."""
    module, function = MEASURES[task.family]
    return cast(Measured, getattr(import_module(module), function)(task, data, embeddings.rows, seeds))


def _kept(scored: ScoredEncoder, settings: EvaluationSettings, task: Task, split: str, data: Data) -> Record | None:
    """The record of a task if it holds for these data, with its interval; else say why not."""
    records = scored.place
    record = records.find(task.name, split)
    if record is not None:
        stale = why_stale(record, scored.encoder, settings, versions(task.is_of_mteb), settings.protocol(task), data)
        if stale is None:
            return with_interval(record, records, settings)
        say(f"{task.name} {split}: measured anew, for {stale}")
    elif records.has(task.name, split):
        say(f"{task.name} {split}: measured anew, for its record is damaged or of another form")
    return None


def _write(scored: ScoredEncoder, new: NewScore, settings: EvaluationSettings) -> Record:
    record = Record(
        score=new.score,
        revision=scored.encoder.revision,
        encoder=scored.encoder.settings,
        settings=settings,
        versions=versions(new.task.is_of_mteb),
        metric=new.task.metric if new.outcomes is not None else None,
        aggregation=new.task.aggregation,
    )
    return scored.place.write(record, new.outcomes)


def _fail(scored: ScoredEncoder, entry: Entry, error: Exception) -> None:
    """Print and keep why an entry has no score; its earlier record no longer holds."""
    failure = RunError(f"{entry}, {scored.encoder.name}", f"not scored: {error}")
    say(f"error: {failure}")
    if not entry.task.is_of_mteb:
        scored.place.remove(entry.task.name, entry.split)
    scored.failures.append(failure)


def versions(of_mteb: bool = False) -> dict[str, str]:
    """The libraries that a score may depend on; mteb for its own tasks alone."""
    libraries = (*LIBRARIES, "mteb") if of_mteb else LIBRARIES
    return {"python": sys.version.split()[0], **{library: version(library) for library in libraries}}


def _say_score(one: TaskScore, word: str) -> None:
    ends = one.interval()
    around = f" {shown.interval(*ends)}" if ends else ""
    say(f"{one.task} {one.split}: {shown.number(one.main_score)}{around}, {one.n} {one.unit} ({word})")


def with_earlier(side: ScoredEncoder, settings: EvaluationSettings) -> ScoredEncoder:
    """The records of this run and the earlier ones that still hold; print which do not, and why."""
    named, earlier = {record.key for record in side.records}, list[Record]()
    for name, record in side.place.files():
        if record is not None and record.key in named:
            continue
        stale: str | None = "it is damaged or of another form"
        if record is not None:
            task = TASKS.get(record.score.task)  # its data are not read again
            protocol = settings.protocol(task) if task else None
            libraries = versions(record.score.task.startswith(MTEB))
            stale = why_stale(record, side.encoder, settings, libraries, protocol)
        if record is not None and stale is None:
            earlier.append(with_interval(record, side.place, settings))
        else:
            what = " ".join(record.key) if record else name
            say(f"not in {side.place.folder / RESULTS}: {what}, for {stale}")
    order = {name: place for place, name in enumerate(TASKS)}
    earlier.sort(key=lambda record: (order.get(record.score.task, len(order)), *record.key))
    return replace(side, records=[*side.records, *earlier])


def summarise(
    model: ScoredEncoder,
    base: ScoredEncoder | None,
    settings: EvaluationSettings,
    control: ScoredEncoder | None = None,
) -> Results:
    """Results of a model and, where there are any, of its base and baseline on the same tasks.

    Part of the data makes no average.
    """
    now = versions(any(record.score.task.startswith(MTEB) for record in model.records))
    scores = tuple(_with_versions(record, now) for record in model.records)
    base_scores, base_gains = _against(model, base, settings, now)
    control_scores, over_control = _against(model, control, settings, now)
    return Results(
        model=model.encoder.name,
        revision=model.encoder.revision,
        fingerprint=model.encoder.fingerprint,
        bootstrap_samples=settings.bootstrap_samples,
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
    model: ScoredEncoder, other: ScoredEncoder | None, settings: EvaluationSettings, now: Mapping[str, str]
) -> tuple[tuple[TaskScore, ...], tuple[Gain, ...]]:
    """Scores of another encoder on the model's tasks, and the model's gains over it."""
    if other is None:
        return (), ()
    scores, found = list[TaskScore](), list[tuple[TaskScore, Difference]]()
    measured = {Measurement.of(record.score): record for record in reversed(other.records)}
    for after in model.records:
        before = measured.get(Measurement.of(after.score))
        if before is None:
            continue
        scores.append(_with_versions(before, now))
        rows = model.place.outcomes(*after.key), other.place.outcomes(*before.key)
        if rows[0] is not None and rows[1] is not None and after.metric is not None:
            both = resampled((rows[0], rows[1]), after.metric, after.aggregation, settings)
            found.append((after.score, both.difference(0, 1, (after.score, before.score))))
    return tuple(scores), gains(found)


def _with_versions(record: Record, now: Mapping[str, str]) -> TaskScore:
    """The score with the versions it was made with, where they are not those of ``now``."""
    others = {library: made for library, made in record.versions.items() if now.get(library) != made}
    return record.score.model_copy(update={"versions": others})


def _only(results: Results, keys: Sequence[tuple[str, str]]) -> Results:
    """The part of results that is of these tasks and splits: same numbers, same verdicts, as many averages."""
    lists = ("scores", "base_scores", "gains", "control_scores", "over_control")
    kept = {name: tuple(one for one in getattr(results, name) if (one.task, one.split) in keys) for name in lists}
    named = {average.name for average in averages(kept["scores"])}
    means = tuple(average for average in results.averages if average.name in named)
    return results.model_copy(update={**kept, "averages": means})

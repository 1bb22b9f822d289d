"""Score an encoder, its untrained base and its baseline on many tasks, and write results.json.

The texts of all tasks are encoded in one pass, except for those of MTEB's tasks and those that need
the prompt of one side of a search. The record of a task is written as soon as the task is scored. A
later run keeps the records that still hold (``sts_dino.eval.runs.records``).
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from sts_dino.eval.encoders.embeddings import Embeddings
from sts_dino.eval.encoders.load import Encoder, load_encoder
from sts_dino.eval.runs.job import EvaluationJob, find_entries, list_own_entries
from sts_dino.eval.runs.records import (
    BASE_FOLDER,
    COMPARED_FOLDER,
    CONTROL_FOLDER,
    RESULTS_FILE,
    DataVersion,
    Record,
    Records,
    find_change,
    update_interval,
)
from sts_dino.eval.scoring.bootstrap import EvaluationSettings, NewScore, make_task_score
from sts_dino.eval.scoring.paired import Measurement, Verdict, adjust_verdicts, resample_together
from sts_dino.eval.tasks.own import CORPUS, OWN_GROUP, SPLIT
from sts_dino.eval.tasks.registry import MTEB, TASKS, compute_averages
from sts_dino.eval.tasks.sources import Entry, Source, TaskData, TaskReader
from sts_dino.eval.tasks.task import Family, Measured, Task
from sts_dino.hub.contract.results import Gain, Results, TaskScore, write_results
from sts_dino.hub.contract.run_dir import lock_run
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.scores import format_score
from sts_dino.hub.untrusted import warn_of_cut_texts

logger = logging.getLogger(__name__)

RECORDED_LIBRARIES = ("torch", "transformers", "sentence-transformers", "numpy")
MEASURE_OF_FAMILY: dict[Family, tuple[str, str]] = {
    "sts": ("sts_dino.eval.scoring.cosines", "measure_sts"),
    "transfer": ("sts_dino.eval.scoring.transfer", "measure_transfer"),
    "probing": ("sts_dino.eval.scoring.transfer", "measure_transfer"),
    "relatedness": ("sts_dino.eval.scoring.transfer", "measure_transfer"),
    "search": ("sts_dino.eval.scoring.cosines", "measure_search"),
}
"""Family of tasks → module and function that score it, imported when a task needs them."""


@dataclass(frozen=True)
class ScoredEncoder:
    """An encoder with the records of its scores, in the order of the tasks.

    ``store`` reads and writes the files of the records. ``failures`` are the reasons why tasks have
    no record. The lists ``records`` and ``failures`` grow while tasks are scored.
    """

    encoder: Encoder
    store: Records
    settings: EvaluationSettings
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
    """Score an encoder on tasks and groups, each with its interval: one call for notebooks.

    Args:
        encoder: a folder or a Hub id ``ORG/NAME[@REVISION]`` as text, or an encoder that
            ``sts_dino.eval.encoders.load.wrap`` makes of a function.
        tasks: names of tasks and groups.
        source: the source of the data; None: the STS Benchmark, which ships with the project.
        settings: bootstrap, probes, limit of rows and seed; None: the defaults.
        out: the folder for the files that ``sts-dino score`` writes; None: no files are kept.
        cache: the folder that keeps embeddings; None: embeddings are not kept.

    Tasks of a group without a source of data are left out, with a message. Raises InputError when
    no task is left, and for unknown tasks, unreadable data, reversed scores in a user's own files,
    and encoders that cannot be loaded or give no usable embeddings. Raises RunError when the Hub
    cannot be read, when another process scores in ``out``, and when a task cannot be scored: the
    records of all scored tasks then stay in ``out``.
    """
    # Choose the tasks, then load the encoder
    source = source or Source()
    settings = settings or EvaluationSettings()
    data = TaskReader(source, settings.limit, settings.seed)
    entries, absent = find_entries(tasks, source)
    if absent:
        names = ", ".join(task.name for task in absent)
        logger.info(f"left out, because no source of their data is given: {names}")
    all_entries = (*entries, *list_own_entries(source))
    if not all_entries:
        hint = "e.g. stsb/cosine; a Source names the places of other data"
        raise InputError("tasks", "name no task whose data are given", hint=hint)
    loaded = load_encoder(encoder) if isinstance(encoder, str) else encoder

    # Score the tasks; without ``out`` a temporary folder keeps the records until the end
    with TemporaryDirectory() as temporary:
        records = Records(out or Path(temporary))
        with lock_run(records.folder):
            scored = score_tasks(all_entries, data, loaded, records, settings, cache)
            if scored.failures:
                raise scored.failures[0]
            require_rising_scores([scored], all_entries, [scored])
            results = make_results(scored)
            write_results(records.folder / RESULTS_FILE, results)
    return results


def score_job(job: EvaluationJob, data: TaskReader) -> tuple[Results, list[RunError]]:
    """Score the encoders of a job on its tasks, and write records and results.

    Returns the results of the job's tasks, and the errors of tasks that could not be scored, of all
    encoders. Raises InputError for an encoder that cannot be loaded or gives no usable embeddings,
    for unreadable data, and for a user's own scores that fall as similarity rises; RunError when
    the Hub cannot be read, when an encoder that is a function raises, and when another process
    scores in the same folder.
    """
    folder = job.records.folder
    encoders = {"": load_encoder(job.model)}
    for name, location in (
        (BASE_FOLDER, job.base),
        (CONTROL_FOLDER, job.control),
        (COMPARED_FOLDER, job.compared),
    ):
        if location:
            encoders[name] = load_encoder(location)
    with lock_run(folder):
        # Score every encoder, and add records of earlier runs
        scored_encoders: dict[str, ScoredEncoder] = {}
        failures: list[RunError] = []
        keys: list[tuple[str, str]] = []
        for name, encoder in encoders.items():
            records = Records(folder / name)
            records.clear_leftovers()
            scored = score_tasks(job.entries, data, encoder, records, job.settings, job.cache)
            failures += scored.failures
            if name == "":
                keys = [record.key for record in scored.records]
            scored_encoders[name] = add_earlier_records(scored)
        model = scored_encoders[""]
        base = scored_encoders.get(BASE_FOLDER)

        # Refuse reversed scores of a user: they would reverse every verdict. The model itself may
        # have learned from such scores, so it judges only without a base and a compared encoder.
        others = (scored_encoders.get(COMPARED_FOLDER), base)
        starts = [other for other in others if other is not None]
        require_rising_scores(starts or [model], job.entries, scored_encoders.values())

        # Write the results of the model with base and baseline, and of each other encoder
        results = make_results(model, base, scored_encoders.get(CONTROL_FOLDER))
        for path in (folder / RESULTS_FILE, job.results):
            if path:
                write_results(path, results)
                logger.info(f"written: {path}")
        for name, scored in scored_encoders.items():
            if name:
                write_results(folder / name / RESULTS_FILE, make_results(scored))
    return _select_tasks(results, keys), failures


def score_tasks(
    entries: Sequence[Entry],
    data: TaskReader,
    encoder: Encoder,
    records: Records,
    settings: EvaluationSettings,
    cache: Path | None,
) -> ScoredEncoder:
    """Score task splits, except for those whose record of an earlier run still holds.

    Returns the encoder with the new and the earlier records of the task splits. A task that cannot
    be scored (undefined score, too few rows under a limit, MTEB's data that cannot be downloaded)
    is logged and has no record; the other tasks follow. The caller has locked the records' folder.

    Args:
        entries: the task splits.
        data: reader of the rows of the task splits.
        encoder: the encoder.
        records: the folder of records to read and write.
        settings: settings of the bootstrap, the probes and the limit.
        cache: the folder that keeps embeddings; None: embeddings are not kept.

    Raises InputError for missing or altered data, and when the encoder gives no usable embeddings;
    RunError when the encoder is a function and raises, when the Hub cannot be read, and when
    ``cache`` cannot be read or written.
    """
    scored = ScoredEncoder(encoder, records, settings)

    # Keep the records that still hold
    kept: dict[Entry, Record] = {}
    unscored: list[Entry] = []
    for entry in entries:
        if entry.task.is_of_mteb:
            continue
        sha256 = data.read(entry).sha256
        record = _find_valid_record(scored, entry.task, entry.split, DataVersion(sha256))
        if record is None:
            unscored.append(entry)
        else:
            kept[entry] = record
            _log_score(record.score, "kept")
    if len(kept) == len(entries):  # nothing to encode
        scored.records.extend(kept.values())
        return scored

    # Encode the texts of all unscored tasks together, then score the tasks
    _log_unused_prompts(encoder, entries)
    own_entries = [entry for entry in unscored if entry.task.group == OWN_GROUP]
    _warn_of_cut_texts(encoder, own_entries, data)
    with Embeddings(encoder, cache) as embeddings:
        for entry in unscored:
            # Texts of a search need the prompt of their side: measuring the task encodes them
            if not entry.task.sides:
                embeddings.declare(list(data.read(entry).iter_texts()))
        embeddings.encode_declared()
        for entry in entries:
            if entry in kept:
                scored.records.append(kept[entry])
            else:
                _score_entry(scored, entry, data, embeddings)
    return scored


def _log_unused_prompts(encoder: Encoder, entries: Sequence[Entry]) -> None:
    """Log the names of the model's prompts that are not used for a user's own pairs.

    Pairs are encoded with prompts only if their columns are a query and a passage. Nothing is
    logged for a function, and for a model with a default prompt, which every text gets.
    """
    if encoder.model is None or encoder.settings["prompt"]:
        return
    unused = ", ".join(name for name, prompt in encoder.model.prompts.items() if prompt)
    own_tasks = [entry.task for entry in entries if entry.task.group == OWN_GROUP]
    if unused and not all(task.sides for task in own_tasks):
        logger.info(
            f"{encoder.name}: pairs of one kind are encoded without its prompts ({unused}); "
            "call the columns query and passage to use them"
        )


def _warn_of_cut_texts(encoder: Encoder, entries: Sequence[Entry], data: TaskReader) -> None:
    """Warn of the number of texts in each data set that are longer than the encoder reads.

    ``entries``: the task splits of a user's own files. A function, which has no known length, gets
    no warning.
    """
    if encoder.model is None:
        return
    # Several tasks may read one data set
    entry_of_dataset = {entry.task.dataset: entry for entry in entries}
    for entry in entry_of_dataset.values():
        rows = data.read(entry).rows
        if CORPUS in rows:
            warn_of_cut_texts(encoder.model, rows[SPLIT].second, encoder.name, "queries")
            warn_of_cut_texts(encoder.model, rows[CORPUS].second, encoder.name, "documents")
        else:
            texts = list(dict.fromkeys(rows[entry.split].texts))
            warn_of_cut_texts(encoder.model, texts, encoder.name, f"texts of {entry.task.dataset}")


def _score_entry(
    scored: ScoredEncoder, entry: Entry, data: TaskReader, embeddings: Embeddings
) -> None:
    """Score a task split and write its records, or log why it has no score.

    The records and failures are added to ``scored``. Raises the InputErrors and RunErrors that name
    the encoder: it would fail on the other tasks, too.
    """
    start = time.perf_counter()
    try:
        for outcome in _measure_entry(scored, entry, data, embeddings):
            if isinstance(outcome, RunError):  # of one task of MTEB; the next task follows
                _register_failure(scored, entry, outcome)
            elif isinstance(outcome, NewScore):
                scored.records.append(_write_record(scored, outcome))
                _log_score(outcome.score, f"{time.perf_counter() - start:.1f} s")
            else:  # a record of an earlier run
                scored.records.append(outcome)
                _log_score(outcome.score, "kept")
            start = time.perf_counter()
    except (InputError, RunError) as error:
        if error.place == scored.encoder.name:
            raise
        _register_failure(scored, entry, error)


def _measure_entry(
    scored: ScoredEncoder, entry: Entry, data: TaskReader, embeddings: Embeddings
) -> Iterator[NewScore | Record | RunError]:
    """Yield the score of a task split.

    An entry of MTEB may have several tasks and splits: it yields their new scores, their records of
    an earlier run that still hold, and the errors of tasks without a score. Raises the errors of
    ``measure_rows`` and ``measure_mteb``.
    """
    task = entry.task
    settings = scored.settings
    if task.is_of_mteb:
        from sts_dino.eval.runs.mteb_bridge import measure_mteb  # importing mteb takes seconds

        find_record = partial(_find_valid_record, scored)
        results_folder = scored.store.folder / "mteb"
        yield from measure_mteb(
            task.dataset, embeddings, data.source, settings, find_record, results_folder
        )
        return
    task_data = data.read(entry)
    measured = measure_rows(task_data, embeddings, settings.probe_seeds)
    score = make_task_score(task, entry.split, measured, task_data.sha256, settings)
    yield NewScore(task, score, measured.outcomes)


def measure_rows(data: TaskData, embeddings: Embeddings, seeds: Sequence[int]) -> Measured:
    """Return the score of a task with the rows behind it.

    Args:
        data: the task and its rows.
        embeddings: the embeddings of the encoder.
        seeds: seeds of the probes.

    Raises RunError when the score is undefined, InputError for rows that the protocol refuses, and
    the errors of ``Embeddings.embed``.
    """
    module, function = MEASURE_OF_FAMILY[data.task.family]
    measure = getattr(import_module(module), function)
    return cast(Measured, measure(data, embeddings.embed, seeds))


def _find_valid_record(
    scored: ScoredEncoder, task: Task, split: str, data: DataVersion
) -> Record | None:
    """Return the record of a task if it still holds for ``data``, with a current interval.

    An interval that changed is written to the record. Returns None when there is no complete
    record, and when it no longer holds. The log has the reason, unless there is no file at all.
    """
    record = scored.store.find(task.name, split)
    if record is None:
        if scored.store.has(task.name, split):
            problem = "its record is damaged or of another format"
            logger.info(f"{task.name} {split}: measured again, because {problem}")
        return None
    libraries = list_versions(task.is_of_mteb)
    protocol = scored.settings.describe_protocol(task)
    change = find_change(record, scored.encoder, scored.settings, libraries, protocol, data)
    if change is None:
        return update_interval(record, scored.store, scored.settings)
    logger.info(f"{task.name} {split}: measured again, because {change}")
    return None


def _write_record(scored: ScoredEncoder, new: NewScore) -> Record:
    """Write the outcomes and the record of a new score, and return the record."""
    record = Record(
        score=new.score,
        revision=scored.encoder.revision,
        encoder=scored.encoder.settings,
        settings=scored.settings,
        versions=list_versions(new.task.is_of_mteb),
        metric=None if new.outcomes is None else new.task.metric,
        aggregation=new.task.aggregation,
    )
    return scored.store.write(record, new.outcomes)


def _register_failure(scored: ScoredEncoder, entry: Entry, error: Exception) -> None:
    """Log a failure, add it to ``scored``, and remove the earlier record of the task split.

    An entry of MTEB's tasks may have several tasks; their records stay.
    """
    failure = RunError(f"{entry}, {scored.encoder.name}", f"not scored: {error}")
    logger.info(f"error: {failure}")
    if not entry.task.is_of_mteb:
        scored.store.remove(entry.task.name, entry.split)
    scored.failures.append(failure)


def list_versions(of_mteb: bool = False) -> dict[str, str]:
    """Return name → version of Python and of the libraries that a score depends on.

    ``of_mteb``: whether the library mteb is one of them.
    """
    libraries = (*RECORDED_LIBRARIES, "mteb") if of_mteb else RECORDED_LIBRARIES
    versions = {"python": sys.version.split()[0]}
    return versions | {library: version(library) for library in libraries}


def _log_score(score: TaskScore, note: str) -> None:
    """Log a score x 100 with its interval and rows, and a note in parentheses."""
    rows = f"{score.n} {score.unit}"
    logger.info(f"{score.task} {score.split}: {format_score(score)}, {rows} ({note})")


def add_earlier_records(scored: ScoredEncoder) -> ScoredEncoder:
    """Return an encoder with its records of this run, then those of earlier runs that still hold.

    Earlier records of other tasks follow in the order of ``TASKS``, then those of unlisted tasks by
    name. Their intervals are updated on disk, too (``update_interval``). The log has the reason why
    a record does not hold.
    """
    # Collect the earlier records of other tasks that still hold
    keys = {record.key for record in scored.records}
    earlier: list[Record] = []
    for file_name, record in scored.store.read_files():
        if record is None:
            _log_left_out(scored, file_name, "it is damaged or of another format")
        elif record.key not in keys:
            task = TASKS.get(record.score.task)  # the data of the task are not read again
            protocol = scored.settings.describe_protocol(task) if task else None
            libraries = list_versions(record.score.task.startswith(MTEB))
            change = find_change(record, scored.encoder, scored.settings, libraries, protocol)
            if change is None:
                earlier.append(update_interval(record, scored.store, scored.settings))
            else:
                _log_left_out(scored, " ".join(record.key), change)

    # Sort them; tasks of MTEB and of a user's files come last
    order = {name: position for position, name in enumerate(TASKS)}

    def make_sort_key(record: Record) -> tuple[int, str, str]:
        return order.get(record.score.task, len(order)), *record.key

    earlier.sort(key=make_sort_key)
    return replace(scored, records=[*scored.records, *earlier])


def _log_left_out(scored: ScoredEncoder, name: str, reason: str) -> None:
    """Log why an earlier record is not among the results; ``name``: its file, or task and split."""
    logger.info(f"not in {scored.store.folder / RESULTS_FILE}: {name}, because {reason}")


def require_rising_scores(
    starts: Sequence[ScoredEncoder], entries: Sequence[Entry], encoders: Iterable[ScoredEncoder]
) -> None:
    """Raise InputError when a user's own scores fall as the cosines of all start encoders rise.

    Scores that count differences (0 for entailment, a distance) have a Spearman correlation whose
    interval lies below 0. A verdict on them would call the worse encoder better. One encoder alone
    proves nothing: an untrained one may fail on pairs that share words and differ in meaning.

    Args:
        starts: the encoders with which the model is compared, else the model; at least one. A start
            encoder without a record of the pairs does not have falling scores.
        entries: the task splits; only a user's own pairs are checked.
        encoders: all encoders of the evaluation, whose records of refused pairs are removed.
    """
    for entry in entries:
        if entry.task.group != OWN_GROUP or entry.task.metric != "spearman":
            continue
        falling: list[Record] = []
        for start in starts:
            falling += _find_falling(start, entry)
        if len(falling) < len(starts):
            continue

        # Remove the misleading scores of all encoders
        for encoder in encoders:
            encoder.store.remove(entry.task.name, entry.split)
        score = falling[0].score
        raise InputError(
            score.task.removesuffix("/cosine"),
            "its scores fall where texts are more alike: Spearman x 100 of "
            f"{format_score(score)} by {starts[0].encoder.name}",
            allowed="scores where higher means more alike",
            hint="reverse the column of scores (e.g. 5 - score), then run the command again",
        )


def _find_falling(start: ScoredEncoder, entry: Entry) -> list[Record]:
    """Return the encoder's record of a task split if its interval lies below 0, else no record."""
    falling = []
    for record in start.records:
        interval = record.score.interval()
        if record.key == (entry.task.name, entry.split) and interval and interval[1] < 0:
            falling.append(record)
    return falling


def make_results(
    model: ScoredEncoder,
    base: ScoredEncoder | None = None,
    control: ScoredEncoder | None = None,
) -> Results:
    """Return the results of a model, and of its base and SimCSE baseline on the same tasks.

    ``base``, ``control`` (the SimCSE baseline): None leaves their scores and gains empty. Scores on
    a limited part of the data give no averages.
    """
    settings = model.settings
    has_mteb = any(record.score.task.startswith(MTEB) for record in model.records)
    versions = list_versions(has_mteb)
    scores = tuple(_add_versions(record, versions) for record in model.records)
    base_scores, base_gains = _compare_with(model, base, versions)
    control_scores, control_gains = _compare_with(model, control, versions)
    return Results(
        model=model.encoder.name,
        revision=model.encoder.revision,
        fingerprint=model.encoder.fingerprint,
        bootstrap_samples=settings.bootstrap_samples,
        seed=settings.seed,
        versions=versions,
        scores=scores,
        averages=compute_averages(scores) if settings.limit is None else (),
        base_scores=base_scores,
        gains=base_gains,
        control_scores=control_scores,
        over_control=control_gains,
    )


def _compare_with(
    model: ScoredEncoder, baseline: ScoredEncoder | None, versions: Mapping[str, str]
) -> tuple[tuple[TaskScore, ...], tuple[Gain, ...]]:
    """Return the scores of a baseline on the model's tasks, and the model's gains over it.

    Scores and gains are empty without a baseline. A gain needs the scored rows of both encoders.
    ``versions``: those of the results file; a score names only library versions that differ.
    """
    if baseline is None:
        return (), ()
    scores: list[TaskScore] = []
    verdicts: list[Verdict] = []
    # Of two records of one measurement the first counts, so the dictionary gets it last
    baseline_records = {
        Measurement.from_score(record.score): record for record in reversed(baseline.records)
    }
    for record in model.records:
        measurement = Measurement.from_score(record.score)
        baseline_record = baseline_records.get(measurement)
        if baseline_record is None:
            continue
        scores.append(_add_versions(baseline_record, versions))

        # Test the difference where the scored rows of both encoders were kept
        outcomes = model.store.read_outcomes(*record.key)
        baseline_outcomes = baseline.store.read_outcomes(*baseline_record.key)
        if outcomes is None or baseline_outcomes is None or record.metric is None:
            continue
        both = (outcomes, baseline_outcomes)
        systems = resample_together(both, record.metric, record.aggregation, model.settings)
        difference = systems.compare(0, 1, (record.score, baseline_record.score))
        verdicts.append(Verdict(model.encoder.name, baseline.encoder.name, measurement, difference))
    return tuple(scores), tuple(verdict.gain for verdict in adjust_verdicts(verdicts))


def _add_versions(record: Record, versions: Mapping[str, str]) -> TaskScore:
    """Return a record's score, with only those library versions that differ from ``versions``."""
    different = {
        name: version for name, version in record.versions.items() if versions.get(name) != version
    }
    return record.score.model_copy(update={"versions": different})


def _select_tasks(results: Results, keys: Sequence[tuple[str, str]]) -> Results:
    """Return the results restricted to the (task, split) pairs of ``keys``.

    Averages stay if all their tasks do. The numbers do not change: p-values remain adjusted over
    all tasks of ``results``.
    """
    selected = {}
    for name in ("scores", "base_scores", "gains", "control_scores", "over_control"):
        items = getattr(results, name)
        selected[name] = tuple(item for item in items if (item.task, item.split) in keys)
    names = {average.name for average in compute_averages(selected["scores"])}
    selected["averages"] = tuple(item for item in results.averages if item.name in names)
    return results.model_copy(update=selected)

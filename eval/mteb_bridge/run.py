"""MTEB: any of its text tasks, benchmarks and task types, on any encoder of ours (names: eval/mteb_bridge/names.py).

MTEB scores. Ours is to name model and data so that no kept result is taken for another, to give it the rows that are at
hand, and to read back what a result says. An interval needs the outcome of every row, which MTEB tells for STS alone.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import mteb
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import constants
from mteb.abstasks import AbsTask, AbsTaskSTS
from mteb.results import TaskResult

from eval.encoders.embeddings import Embeddings
from eval.mteb_bridge.encoder import MtebEncoder
from eval.mteb_bridge.names import (
    LOCAL_COPIES,
    PREFIX,
    find_mteb,
    give_rows,
    is_published,
    local_rows,
    parts_of,
    task_name,
)
from eval.mteb_bridge.scores import data_revision, described, has_outcomes, read_score, sts_outcomes
from eval.statistics.scores import EvaluationSettings, NewScore
from eval.tasks.data.example_types import ScoredPairs
from eval.tasks.sources import Source
from eval.tasks.task import Task
from hub.client.failures import hub_errors
from hub.errors import InputError, RunError

PREDICTIONS = "predictions"
Record = TypeVar("Record")
Earlier = Callable[[Task, str, tuple[str | None, str | None]], Record | None]
"""Task, split and data (rows' SHA-256, revision) → the record of an earlier run, where it holds."""


def measure_mteb(
    name: str,
    embeddings: Embeddings,
    source: Source,
    settings: EvaluationSettings,
    earlier: Earlier[Record] | None = None,
) -> Iterator[NewScore | Record | RunError]:
    """The scores of a task, benchmark or task type (a name without ``mteb/``), every split as soon as it is there.

    A task whose data cannot be downloaded or whose score is undefined gives the RunError, and the next one goes on. A
    task all of whose splits have an ``earlier`` record gives those. MTEB's own results are kept where the embeddings
    are, by its version, the encoder's key and the data, and not measured again.

    Raises InputError for unknown names, tasks of more than text and ``settings.limit``.
    """
    if settings.limit is not None:
        raise InputError(f"{PREFIX}{name}", "--limit does not reach MTEB's tasks", hint="leave it out, or the task")
    model = MtebEncoder(embeddings)
    with closing(model), _quiet():
        # apart for every version of MTEB and all that decides embeddings
        kept = embeddings.folder.parent / "mteb" / version("mteb") / embeddings.encoder.key[:16]
        for task in find_mteb(name):
            try:
                rows = local_rows(task, source)
                if rows is not None:
                    give_rows(task, rows)
                found = _earlier(task, rows, earlier) if earlier else None
                yield from measure_task(task, model, rows, settings, kept) if found is None else found
            except RunError as error:
                if error.place == embeddings.encoder.name:
                    raise
                yield error


def _earlier(task: AbsTask, rows: ScoredPairs | None, earlier: Earlier[Record]) -> list[Record] | None:
    data = rows.sha256 if rows else None, data_revision(task)
    found = [earlier(described(task, split, has_outcomes(task)), split, data) for split in task.eval_splits]
    return [record for record in found if record is not None] if all(found) else None


def measure_task(
    task: AbsTask, model: MtebEncoder, rows: ScoredPairs | None, settings: EvaluationSettings, kept: Path
) -> Iterator[NewScore]:
    """The scores of one task, split by split, with MTEB's results in ``kept``. Raises RunError when it has none.

    ``rows`` are those that the task was given, None for its own.
    """
    folder = kept / ("published" if is_published(task) else task.metadata.revision)
    before = model.seconds
    result = _result(task, model, folder)
    seconds = {"encoding": model.seconds - before, "mteb": result.evaluation_time or 0.0}
    for split in task.eval_splits:
        outcomes = sts_outcomes(task, split, folder / PREDICTIONS)
        ours = described(task, split, outcomes is not None)
        score = read_score(ours, task, split, result, rows, outcomes, settings, seconds)
        yield NewScore(ours, score, outcomes)
        seconds = {}  # told once
    for part in parts_of(task):
        if part.data_loaded:
            part.unload_data()


def _result(task: AbsTask, model: MtebEncoder, folder: Path) -> TaskResult:
    """What MTEB finds, or found before."""
    _discard_damaged(folder)
    cache, predictions = mteb.ResultCache(folder), None
    known = cache.load_task_result(task.metadata.name, model.meta)
    is_known = known is not None and not known.get_missing_evaluations(task)
    if isinstance(task, AbsTaskSTS):
        predictions = folder / PREDICTIONS
        is_known = is_known and _has_predictions(task, predictions)
    if not is_known or predictions is not None:
        _load(task)
    found = mteb.evaluate(
        model,  # type: ignore[arg-type]  # its protocol has an __init__ for the command line of mteb
        task,
        co2_tracker=False,
        encode_kwargs={"batch_size": 512, "show_progress_bar": False},
        cache=cache,
        overwrite_strategy="only-missing" if is_known or predictions is None else "always",
        prediction_folder=predictions,
        show_progress_bar=False,
        public_only=False,
    )
    return found.task_results[0]


def _discard_damaged(folder: Path) -> None:
    """Remove files that a killed process left half-written: MTEB writes in place, and would fail on reading them."""
    for path in [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]:
        text = path.read_text(encoding="utf-8")
        try:
            for document in text.splitlines() if path.suffix == ".jsonl" else [text]:
                json.loads(document)
        except json.JSONDecodeError:
            path.unlink()


def _has_predictions(task: AbsTask, folder: Path) -> bool:
    path = folder / task.prediction_file_name
    if not path.is_file():
        return False
    told = json.loads(path.read_text(encoding="utf-8"))
    return all(split in told.get(subset, {}) for subset in task.hf_subsets for split in task.eval_splits)


def _load(task: AbsTask) -> None:
    """Download a task's data. Raises RunError when they are not to be had: the Hub's client tried five times."""
    for part in parts_of(task):
        if part.data_loaded:
            continue
        place = f"{task_name(task)}: {part.metadata.dataset['path']} at {constants.ENDPOINT}"
        with hub_errors(f"read {place}"):
            try:
                part.load_data()
            except DatasetNotFoundError:
                raise RunError(
                    place, "is gated, private or gone", hint="ask for access on its page, set HF_TOKEN"
                ) from None
            except ConnectionError:
                at_hand = f"give --senteval-data or --sts-data: {', '.join(LOCAL_COPIES)} are read there"
                hint = at_hand if part.metadata.name in LOCAL_COPIES else "run the same command again with a network"
                raise RunError(place, "cannot be reached, and its data are not in the cache", hint=hint) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """No advice to take a newer version of a task: which one is scored is the caller's choice."""
    log = logging.getLogger("mteb")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(superseded|in beta)", category=UserWarning)
            yield
    finally:
        log.setLevel(level)

"""MTEB's tasks by name, and their data where they are at hand.

``NAME`` is a task, ``NAME[subset+subset]`` some of its subsets, ``benchmark:NAME`` all tasks of a benchmark as it cuts
them, ``type:NAME`` (or ``type:NAME:LANGUAGE``, a three-letter code) all tasks of a type. Importing mteb takes seconds.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskType
from mteb.get_tasks import TASK_LIST

from eval.tasks.rows import ScoredPairs, published
from eval.tasks.sources import Source
from hub.errors import InputError, did_you_mean

PREFIX = "mteb/"
BENCHMARK, TYPE = "benchmark:", "type:"
LOCAL = "local"  # in place of a Hub dataset's name
LONGEST = 60  # characters of a list of subsets in a name


@dataclass(frozen=True)
class LocalCopy:
    """Our data set that is an MTEB task's, row for row, and the revision of MTEB's for which that was found.

    ``spaced``: rows whose first text ends in a space there; SentEval's form, read as tokens, has none.
    """

    dataset: str
    revision: str
    spaced: tuple[int, ...] = ()


LOCAL_COPIES = {
    "STS12": LocalCopy("sts12", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "STS13": LocalCopy("sts13", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "STS14": LocalCopy("sts14", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", spaced=(3720,)),
    "STS15": LocalCopy("sts15", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "STS16": LocalCopy("sts16", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "STSBenchmark": LocalCopy("stsb", "b0fddb56ed78048fa8b90373c8a3cfc37b684831"),
    "SICK-R": LocalCopy("sick-r-full", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
}
"""Found equal in number of pairs, lengths, distinct texts and pairs, and scores: all that mteb tells of its data."""


def find_mteb(name: str) -> tuple[AbsTask, ...]:
    """The tasks that a name without ``mteb/`` stands for, text alone, none that newer ones supersede in a type.

    Raises InputError with the nearest names when there is none, or when a task needs more than text.
    """
    if name.startswith(BENCHMARK):
        tasks = _benchmark(name.removeprefix(BENCHMARK))
    elif name.startswith(TYPE):
        tasks = _type(name.removeprefix(TYPE))
    else:
        tasks = (_task(name),)
    for task in tasks:
        if set(task.modalities) != {"text"}:
            raise InputError(
                f"{PREFIX}{name}", f"{task.metadata.name} needs {', '.join(task.modalities)}", allowed="text"
            )
    return tasks


def task_name(task: AbsTask) -> str:
    """The name that results of a task are written under: with its subsets and splits where they are not all."""
    name = f"{PREFIX}{task.metadata.name}"
    cuts = []
    if not task.is_aggregate and set(task.hf_subsets) != set(task.metadata.hf_subsets):
        cuts.append(_short(task.hf_subsets))
    if set(task.eval_splits) != set(task.metadata.eval_splits):
        cuts.append(_short(task.eval_splits))
    return f"{name}[{';'.join(cuts)}]" if cuts else name


def parts_of(task: AbsTask) -> Sequence[AbsTask]:
    """The tasks with data: those that an aggregate averages, else the task itself."""
    return task.metadata.tasks if isinstance(task, AbsTaskAggregate) else (task,)


def _short(names: Iterable[str]) -> str:
    """Names joined; where they are many, their number and a hash, so that the result can name a file."""
    joined = "+".join(sorted(names))
    if len(joined) <= LONGEST:
        return joined
    return f"{joined.count('+') + 1}-{hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def _task(name: str) -> AbsTask:
    plain, cut, subsets = name.removesuffix("]").partition("[")
    known = [task.metadata.name for task in TASK_LIST]
    if plain not in known:
        raise _unknown(name, plain, known, (f"{PREFIX}{BENCHMARK}NAME", f"{PREFIX}{TYPE}NAME"))
    task = mteb.get_task(plain)
    if cut:
        wanted, has = subsets.split("+"), task.metadata.hf_subsets
        if not set(wanted) <= set(has):
            raise InputError(f"{PREFIX}{name}", f"{plain} has no such subsets", allowed=", ".join(has))
        task.hf_subsets = wanted
    return task


def _benchmark(name: str) -> tuple[AbsTask, ...]:
    known = {benchmark.name for benchmark in mteb.get_benchmarks()}
    known |= {alias for benchmark in mteb.get_benchmarks() for alias in benchmark.aliases or ()}
    if name not in known:
        raise _unknown(f"{BENCHMARK}{name}", name, known, ())
    return tuple(deepcopy(task) for task in mteb.get_benchmark(name).tasks)  # each draws from a state of its own


def _type(name: str) -> tuple[AbsTask, ...]:
    kind, _, language = name.partition(":")
    known = get_args(TaskType)
    if kind not in known:
        raise _unknown(f"{TYPE}{name}", kind, known, known)
    if language and not re.fullmatch(r"[a-z]{3}", language):
        raise InputError(f"{PREFIX}{TYPE}{name}", f"unknown language {language!r}", allowed="a code like eng")
    wanted: Any = {"task_types": [kind], "modalities": ["text"], "exclusive_modality_filter": True}
    tasks = tuple(mteb.get_tasks(**wanted, languages=[language] if language else None))
    if not tasks:
        raise InputError(f"{PREFIX}{TYPE}{name}", "has no text task", hint="leave the language out")
    return tasks


def _unknown(name: str, word: str, known: Collection[str], allowed: Iterable[str]) -> InputError:
    kind = "benchmark" if name.startswith(BENCHMARK) else "task type" if name.startswith(TYPE) else "task"
    problem = f"mteb {mteb.__version__} has no such {kind}"
    return InputError(f"{PREFIX}{name}", problem, allowed=", ".join(allowed) or None, hint=did_you_mean(word, known))


def local_rows(task: AbsTask, source: Source) -> ScoredPairs | None:
    """The rows of a task's local copy, when the source has a place for them. Raises InputError when not whole."""
    local_copy = LOCAL_COPIES.get(task.metadata.name)
    if local_copy is None or not source.has(local_copy.dataset, "test"):
        return None
    rows = source.load(local_copy.dataset, ["test"])["test"]
    assert isinstance(rows, ScoredPairs)
    return rows


def is_official(task: AbsTask, rows: ScoredPairs) -> bool:
    """Whether rows are those of the task's own revision: by their checksum, for the revision that was compared."""
    local_copy = LOCAL_COPIES[task.metadata.name]
    return (
        task.metadata.revision == local_copy.revision
        and rows.sha256 == published().rows[local_copy.dataset]["test"].sha256
    )


def give_rows(task: AbsTask, rows: ScoredPairs) -> None:
    """Let a task score rows from here. Rows that are not its own revision's get another name in its results."""
    is_theirs, first = is_official(task, rows), list(rows.first)
    for row in LOCAL_COPIES[task.metadata.name].spaced if is_theirs else ():
        first[row] += " "
    columns = {"sentence1": first, "sentence2": list(rows.second), "score": rows.gold.tolist()}
    task.dataset = DatasetDict(test=Dataset.from_dict(columns))
    task.data_loaded = True
    if not is_theirs:
        local = {"path": LOCAL, "revision": f"sha256-{rows.sha256}"}
        task.metadata = task.metadata.model_copy(update={"dataset": local})


def is_published(task: AbsTask) -> bool:
    """Whether a task scores the rows of MTEB's own revision, as far as is known."""
    return task.is_aggregate or task.metadata.dataset["path"] != LOCAL

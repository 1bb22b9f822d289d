"""Evaluation tasks and data sets by name. A name is ``<data set>/<protocol>``; groups stand for their tasks."""

from collections.abc import Iterable

from eval.tasks.data.file_layouts import DataSet
from eval.tasks.sts import ORIGINALS, REGRESSIONS, SENTEVAL_DATA
from eval.tasks.sts import TASKS as STS_TASKS
from eval.tasks.task import Task
from eval.tasks.transfer import COCO, COCO_DATA, MODES, PROBING, TRANSFER
from hub.errors import InputError, did_you_mean

_DECLARED = (
    *STS_TASKS,
    *(one.task(mode) for mode in MODES for one in TRANSFER),
    *REGRESSIONS,
    *(one.task(mode) for mode in MODES for one in PROBING),
    COCO,
    *(one.validation_task(mode) for mode in MODES for one in (*TRANSFER, *PROBING)),
)
_DATA = (*(one.dataset for one in (*TRANSFER, *PROBING)), COCO_DATA, *SENTEVAL_DATA, *ORIGINALS)
TASKS: dict[str, Task] = {task.name: task for task in _DECLARED}
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _DATA}
MTEB = "mteb/"
_PAPERS = ("sts", "sts-original", "transfer", "probing", "retrieval")
GROUPS: dict[str, tuple[Task, ...]] = {
    group: tuple(task for task in _DECLARED if task.group == group)
    for group in dict.fromkeys(task.group for task in _DECLARED)
} | {"papers": tuple(task for task in _DECLARED if task.group in _PAPERS and "-original/" not in task.name)}


def find_dataset(name: str) -> DataSet:
    """The data set called ``name``. Raises InputError with the nearest known name."""
    if name in DATASETS:
        return DATASETS[name]
    hint = did_you_mean(name, DATASETS)
    raise InputError("data set", f"unknown name {name!r}", allowed=", ".join(DATASETS), hint=hint)


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """The tasks of ``names`` in order, each once; a group stands for its tasks. Raises InputError as ``find_task``."""
    found = [task for name in names for task in GROUPS.get(name) or (find_task(name),)]
    return tuple(dict.fromkeys(found))


def find_task(name: str) -> Task:
    """The task called ``name``; ``mteb/NAME`` is any task, benchmark or task type that mteb knows by that name.

    Raises InputError with the nearest known names.
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith(MTEB) and name != MTEB:
        of_mteb = name.removeprefix(MTEB)
        return Task(name, of_mteb, "mteb", "mteb", f"{of_mteb} as MTEB defines it, its main score x 100", None)
    same = [task for task in TASKS if task.startswith(f"{name.partition('/')[0]}/")]
    allowed = same or [*GROUPS, "or a task of these", f"{MTEB}NAME"]
    hint = did_you_mean(name, same or (*GROUPS, *TASKS))
    raise InputError("evaluation.task", f"unknown task {name!r}", allowed=", ".join(allowed), hint=hint)

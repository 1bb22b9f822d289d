"""Evaluation tasks and datasets by name, ``<dataset>/<protocol>``; groups stand for their tasks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from sts_dino.eval.tasks.papers import (
    MODES,
    ORIGINALS,
    PROBING,
    REGRESSIONS,
    SENTEVAL_DATA,
    STS_TASKS,
    TRANSFER,
    VALIDATION,
    YEARS,
)
from sts_dino.eval.tasks.task import DataSet, Task
from sts_dino.hub.contract.results import Average, TaskScore
from sts_dino.hub.errors import InputError, suggest_choice

MTEB = "mteb/"
_CLASSIFICATIONS = (*TRANSFER, *PROBING)
_PAPERS = ("sts", "sts-original", "transfer", "probing")


_DECLARED = (
    *STS_TASKS,
    *(classification.make_task(mode) for mode, classification in product(MODES, TRANSFER)),
    *REGRESSIONS,
    *(classification.make_task(mode) for mode, classification in product(MODES, PROBING)),
    *(
        classification.make_validation_task(mode)
        for mode, classification in product(MODES, _CLASSIFICATIONS)
    ),
)
_DATASETS = (
    *(classification.dataset for classification in _CLASSIFICATIONS),
    *SENTEVAL_DATA,
    *ORIGINALS,
)
TASKS: dict[str, Task] = {task.name: task for task in _DECLARED}
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _DATASETS}


def _group_tasks() -> dict[str, tuple[Task, ...]]:
    """Map each group to its tasks; the group ``papers`` has the tasks of the papers' tables."""
    groups: dict[str, list[Task]] = {}
    for task in _DECLARED:
        groups.setdefault(task.group, []).append(task)

    # The papers score STS12-16 in SentEval's text form only
    groups["papers"] = [
        task for task in _DECLARED if task.group in _PAPERS and "-original/" not in task.name
    ]
    return {name: tuple(tasks) for name, tasks in groups.items()}


GROUPS = _group_tasks()


def find_dataset(name: str) -> DataSet:
    """Return the dataset of a name.

    Raises InputError, with the nearest known name, for an unknown name.
    """
    if name in DATASETS:
        return DATASETS[name]
    hint = suggest_choice(name, DATASETS)
    raise InputError("data set", f"unknown name {name!r}", allowed=", ".join(DATASETS), hint=hint)


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """Return the tasks of ``names`` in order, without repeats; a group's name gives its tasks.

    Raises InputError for an unknown name, as ``find_task`` does.
    """
    tasks: list[Task] = []
    for name in names:
        if name in GROUPS:
            tasks += GROUPS[name]
        else:
            tasks.append(find_task(name))
    return tuple(dict.fromkeys(tasks))


def find_task(name: str) -> Task:
    """Return the task of a name, or make one for ``mteb/NAME``.

    NAME is a task, benchmark or task type of the library mteb; this function does not check it.
    Raises InputError, with the nearest known name, for an unknown name.
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith(MTEB) and name != MTEB:
        mteb_name = name.removeprefix(MTEB)
        return Task(
            name=name,
            dataset=mteb_name,
            group="mteb",
            family="mteb",
            protocol=f"{mteb_name} as MTEB defines it, its main score x 100",
            metric=None,
        )

    # Suggest the dataset's own tasks, else any group or task
    dataset = name.partition("/")[0]
    choices = [task for task in TASKS if task.startswith(f"{dataset}/")]
    allowed = choices
    if not choices:
        choices = [*GROUPS, *TASKS]
        allowed = [*GROUPS, "or a task of these", f"{MTEB}NAME"]
    hint = suggest_choice(name, choices)
    raise InputError("task", f"unknown name {name!r}", allowed=", ".join(allowed), hint=hint)


@dataclass(frozen=True)
class Definition:
    """The definition of an average: the mean over the main scores of ``tasks``."""

    name: str
    words: str
    tasks: tuple[str, ...]

    def compute(self, scores: Mapping[str, TaskScore]) -> Average | None:
        """Average ``scores`` (task → score); None unless every task has a score."""
        if not scores.keys() >= set(self.tasks):
            return None
        mean = sum(scores[task].main_score for task in self.tasks) / len(self.tasks)
        return Average(name=self.name, definition=self.words, score=mean, tasks=self.tasks)


def _name_tasks(datasets: Iterable[str], protocol: str) -> tuple[str, ...]:
    """Return the names of the datasets' tasks with one protocol."""
    return tuple(f"{dataset}/{protocol}" for dataset in datasets)


def _define_validation(name: str, words: str, datasets: Iterable[str]) -> list[Definition]:
    """Define ``NAME-MODE`` for each probe mode: the mean over the datasets' validation tasks."""
    definitions = []
    for mode in MODES:
        tasks = _name_tasks(datasets, f"{mode}{VALIDATION}")
        definitions.append(Definition(f"{name}-{mode}", words, tasks))
    return definitions


_SENTEVAL = ("mr", "cr", "subj", "mpqa", "sst2", "sst5", "trec", "sick-e", "mrpc")
_PROBING = tuple(classification.name for classification in PROBING)
DEFINITIONS = (
    Definition(
        "declutr-probing",
        "mean accuracy over SentEval's ten probing tasks "
        "(Giorgi et al. 2021, appendix C.2, table 3)",
        _name_tasks(_PROBING, "senteval"),
    ),
    *_define_validation(
        "validation",
        "mean accuracy on what SentEval's classification tasks choose their regularisation by, "
        "SNLI left out: for choices between encoders, without test rows",
        _SENTEVAL,
    ),
    *_define_validation("validation-probing", "the same of SentEval's ten probing tasks", _PROBING),
    Definition(
        "auto-nli-sts",
        "mean Spearman correlation over STS12-16 (all), STS-B and SICK-R by cosine, in SentEval's "
        "text form, as SimCSE's toolkit scores them (Sato et al. 2024, table 2)",
        (*_name_tasks(YEARS, "all"), "stsb-tokenised/cosine", "sick-r-tokenised/cosine"),
    ),
    Definition(
        "auto-nli-transfer",
        "mean accuracy over MR, CR, SUBJ, MPQA, SST2, TREC and MRPC (Sato et al. 2024, appendix C)",
        _name_tasks(("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"), "senteval"),
    ),
    Definition(
        "dino-sts",
        "mean Spearman correlation over STS12-16 (all), STSb and SICK by cosine, the last two in "
        "their original text form (Schick & Schütze 2021, table 1)",
        (*_name_tasks(YEARS, "all"), "stsb/cosine", "sick-r/cosine"),
    ),
    Definition(
        "dino-sts12-16-mean",
        "mean over STS12-16 of the mean Spearman correlation over subsets "
        "(Schick & Schütze 2021, table 5)",
        _name_tasks(YEARS, "mean"),
    ),
)


def is_averaged(task: str, split: str) -> bool:
    """Return whether averages use the score of a task on a split.

    They use scores on the splits ``test`` and ``all``, and every score of a validation task.
    """
    return split in ("test", "all") or VALIDATION in task


def compute_averages(scores: Iterable[TaskScore]) -> tuple[Average, ...]:
    """Compute every declared average whose tasks all have a score that ``is_averaged`` allows."""
    by_task = {score.task: score for score in scores if is_averaged(score.task, score.split)}
    averages = [definition.compute(by_task) for definition in DEFINITIONS]
    return tuple(average for average in averages if average is not None)

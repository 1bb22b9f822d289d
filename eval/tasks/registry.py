"""Evaluation tasks and data sets by name. A name is ``<data set>/<protocol>``; groups stand for their tasks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eval.tasks.sts import ORIGINALS, REGRESSIONS, SENTEVAL_DATA, YEARS
from eval.tasks.sts import TASKS as STS_TASKS
from eval.tasks.task import DataSet, Task
from eval.tasks.transfer import MODES, PROBING, TRANSFER, VALIDATION
from hub.contract.results import Average, TaskScore
from hub.errors import InputError, did_you_mean

_DECLARED = (
    *STS_TASKS,
    *(one.task(mode) for mode in MODES for one in TRANSFER),
    *REGRESSIONS,
    *(one.task(mode) for mode in MODES for one in PROBING),
    *(one.validation_task(mode) for mode in MODES for one in (*TRANSFER, *PROBING)),
)
_DATA = (*(one.dataset for one in (*TRANSFER, *PROBING)), *SENTEVAL_DATA, *ORIGINALS)
TASKS: dict[str, Task] = {task.name: task for task in _DECLARED}
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _DATA}
MTEB = "mteb/"
_PAPERS = ("sts", "sts-original", "transfer", "probing")
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


CLASSIFICATION = ("mr", "cr", "subj", "mpqa", "sst2", "sst5", "trec", "sick-e")


@dataclass(frozen=True)
class Definition:
    """An average by name: the mean over the main scores of ``tasks``."""

    name: str
    words: str
    tasks: tuple[str, ...]

    def of(self, scores: Mapping[str, TaskScore]) -> Average | None:
        """The average of scores by task name; None unless all tasks are there."""
        if not scores.keys() >= set(self.tasks):
            return None
        mean = sum(scores[task].main_score for task in self.tasks) / len(self.tasks)
        return Average(name=self.name, definition=self.words, score=mean, tasks=self.tasks)


def _named(names: Iterable[str], protocol: str) -> tuple[str, ...]:
    return tuple(f"{name}/{protocol}" for name in names)


_SENTEVAL = (*CLASSIFICATION, "mrpc")
_PROBING = tuple(one.name for one in PROBING)
_WITHOUT_TEST_ROWS = (
    "mean accuracy on what SentEval's classification tasks choose their regularisation by, SNLI left out: for choices "
    "between encoders, without test rows"
)
DEFINITIONS = (
    Definition(
        "declutr-probing",
        "mean accuracy over SentEval's ten probing tasks (Giorgi et al. 2021, appendix C.2, table 3)",
        _named(_PROBING, "senteval"),
    ),
    *(
        Definition(f"validation-{kind}{mode}", words, _named(names, f"{mode}{VALIDATION}"))
        for kind, words, names in (
            ("", _WITHOUT_TEST_ROWS, _SENTEVAL),
            ("probing-", "the same of SentEval's ten probing tasks", _PROBING),
        )
        for mode in MODES
    ),
    Definition(
        "auto-nli-sts",
        "mean Spearman correlation over STS12-16 (all), STS-B and SICK-R by cosine, in SentEval's text form, as "
        "SimCSE's toolkit scores them (Sato et al. 2024, table 2)",
        (*_named(YEARS, "all"), "stsb-tokenised/cosine", "sick-r-tokenised/cosine"),
    ),
    Definition(
        "auto-nli-transfer",
        "mean accuracy over MR, CR, SUBJ, MPQA, SST2, TREC and MRPC (Sato et al. 2024, appendix C)",
        _named(("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"), "senteval"),
    ),
    Definition(
        "dino-sts",
        "mean Spearman correlation over STS12-16 (all), STSb and SICK by cosine, the last two in their original text "
        "form (Schick & Schütze 2021, table 1)",
        (*_named(YEARS, "all"), "stsb/cosine", "sick-r/cosine"),
    ),
    Definition(
        "dino-sts12-16-mean",
        "mean over STS12-16 of the mean Spearman correlation over subsets (Schick & Schütze 2021, table 5)",
        _named(YEARS, "mean"),
    ),
)


def averages(scores: Iterable[TaskScore]) -> tuple[Average, ...]:
    """Every average whose tasks are all there: of test (all rows, where folds are cut), or of tasks on validation."""
    named = {score.task: score for score in scores if score.split in ("test", "all") or VALIDATION in score.task}
    found = (definition.of(named) for definition in DEFINITIONS)
    return tuple(average for average in found if average is not None)

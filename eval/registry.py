"""Evaluation tasks: name → protocol, main metric and the exact data files a score may be read from.

A task name states its protocol and its data are pinned by SHA-256, so a score under one name is always the same
measurement.
"""

from dataclasses import dataclass

from hub.errors import InputError, nearest


@dataclass(frozen=True)
class DataFile:
    """One split's file: how many sentence pairs it holds, and its bytes."""

    pairs: int
    sha256: str


@dataclass(frozen=True)
class Task:
    """A declared evaluation. Columns are 0-based positions in the tab-separated file; scores run from 0 to
    ``scale``.
    """

    name: str
    protocol: str
    main_metric: str
    score_column: int
    sentence_columns: tuple[int, int]
    scale: float
    files: dict[str, DataFile]  # split → file


STSB_COSINE = Task(
    name="stsb/cosine",
    protocol="STS benchmark (SemEval 2017 task 1): correlation x 100 between the cosine of two sentence embeddings and "
    "the mean human score, over all pairs of the split; no model is fitted on top",
    main_metric="spearman",
    score_column=4,
    sentence_columns=(5, 6),
    scale=5.0,
    files={
        "validation": DataFile(1500, "5d7e944d8b02734b07bfdb5df67db3420c64bed153fcaa1ba47ad03480cf4234"),
        "test": DataFile(1379, "affe45928a66ee5a708531233c95b7dacbbdc57f974f002a3d32ea0180cf816a"),
    },
)

TASKS = {task.name: task for task in (STSB_COSINE,)}


def find_task(name: str) -> Task:
    """The task called ``name``. Raises InputError with the nearest known name."""
    if name in TASKS:
        return TASKS[name]
    guess = nearest(name, TASKS)
    hint = f"did you mean {guess!r}?" if guess else None
    raise InputError("evaluation.task", f"unknown task {name!r}", allowed=sorted(TASKS), hint=hint)

"""One task, measured: the function for each family of tasks, imported when a task needs it."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import cast

from eval.encoders.embeddings import Embeddings
from eval.scoring.outcomes import Measured
from eval.tasks.rows import Rows
from eval.tasks.task import Family, Task

MEASURES: dict[Family, tuple[str, str]] = {
    "sts": ("eval.scoring.sts", "measure_sts"),
    "transfer": ("eval.scoring.transfer", "measure_transfer"),
    "probing": ("eval.scoring.transfer", "measure_transfer"),
    "relatedness": ("eval.scoring.transfer", "measure_regression"),
    "retrieval": ("eval.scoring.retrieval", "measure_retrieval"),
}
"""Family → module and function; MTEB measures its own tasks (``eval.mteb_bridge.run``)."""


def measure(task: Task, data: Mapping[str, Rows], embeddings: Embeddings, seeds: Sequence[int]) -> Measured:
    """The task's score with the rows behind it. ``data``: split → rows. Raises RunError when it is undefined."""
    module, function = MEASURES[task.family]
    return cast(Measured, getattr(import_module(module), function)(task, data, embeddings.rows, seeds))

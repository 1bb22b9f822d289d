"""One task, measured: which module measures which family. The heavier ones are imported when a task needs them."""

from collections.abc import Mapping, Sequence
from typing import cast

from eval.encoders.embeddings import Embeddings
from eval.scoring.outcomes import Measured
from eval.scoring.sts import measure_sts
from eval.tasks.rows import Rows, ScoredPairs
from eval.tasks.task import Task
from hub.errors import InputError


def measure(task: Task, split: str, data: Mapping[str, Rows], embeddings: Embeddings, seeds: Sequence[int]) -> Measured:
    """The task's score with the rows behind it. ``data`` is split → rows. Raises RunError when it is undefined."""
    if task.is_of_mteb:
        raise InputError(task.name, "MTEB measures it: eval.mteb_bridge.run")
    if task.family == "sts":
        return measure_sts(task, cast(ScoredPairs, data[split]), embeddings.rows)
    if task.family == "relatedness":
        from eval.scoring.transfer import measure_regression as measured
    elif task.family == "retrieval":
        from eval.scoring.retrieval import measure_retrieval as measured
    else:
        from eval.scoring.transfer import measure_transfer as measured
    return measured(task, data, embeddings.rows, seeds)

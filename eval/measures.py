"""One task, measured: which module measures which kind. The heavier ones are imported when a task needs them."""

from collections.abc import Mapping, Sequence
from typing import cast

from eval.data.forms import Rows, ScoredPairs
from eval.embeddings import Embeddings
from eval.outcomes import Measured
from eval.registry import Task
from eval.sts import measure_sts
from hub.errors import InputError


def measure(task: Task, split: str, data: Mapping[str, Rows], embeddings: Embeddings, seeds: Sequence[int]) -> Measured:
    """The task's score with the rows behind it. ``data`` is split → rows. Raises RunError when it is undefined."""
    rows = dict(data)
    if task.kind == "sts":
        return measure_sts(task, cast(ScoredPairs, rows[split]), embeddings.rows)
    if task.kind == "transfer":
        from eval.transfer import measure_transfer

        assert task.mode is not None, task.name
        return measure_transfer(task, rows, embeddings.rows, task.mode, seeds)
    if task.kind == "relatedness":
        from eval.relatedness import measure_relatedness

        assert task.mode is not None, task.name
        return measure_relatedness(task, rows, embeddings.rows, task.mode, seeds)
    if task.kind == "retrieval":
        from eval.retrieval import measure_retrieval

        return measure_retrieval(task, rows, embeddings.rows, seeds)
    raise InputError(task.name, "MTEB measures it: eval.mteb_suite")

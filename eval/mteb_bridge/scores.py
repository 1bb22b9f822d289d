"""An MTEB result as a score of ours: main score x 100, parts, further metrics, data and, for STS, the interval."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mteb.abstasks import AbsTask, AbsTaskSTS
from mteb.results import TaskResult

from eval.mteb_bridge.names import is_published, parts_of, task_name
from eval.scoring.outcomes import Measured, Outcomes
from eval.statistics.scores import EvaluationSettings, task_score
from eval.tasks.data.example_types import ScoredPairs
from eval.tasks.task import Metric, Task, Unit
from hub.contract.results import Part, TaskScore
from hub.errors import RunError

METRICS: dict[str, Metric] = {"cosine_spearman": "spearman", "cosine_pearson": "pearson"}  # of STS → ours
DIGITS = 6  # that MTEB keeps of a score; rounded at once, so that a kept result is the same as a new one
ERRORS = ("mae", "mse", "rmse")  # metrics that are no shares or correlations
UNITS: dict[str, Unit] = {"STS": "pairs", "PairClassification": "pairs", "BitextMining": "pairs"}
QUERIES = ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")


def described(task: AbsTask, split: str, with_outcomes: bool) -> Task:
    """The task as ours: without a metric where single rows have no outcomes, so that it cannot be resampled."""
    name, main = task.metadata.name, task.metadata.main_score
    subsets = "" if len(task.hf_subsets) == 1 else f", unweighted mean over {len(task.hf_subsets)} subsets"
    known = "" if with_outcomes else "; no interval: MTEB tells no outcome of single rows"
    return Task(
        name=task_name(task),
        dataset=name,
        group="mteb",
        family="mteb",
        protocol=f"MTEB's {name} ({task.metadata.type}), with the model's prompts as MTEB chooses them: {main} x 100"
        f"{subsets}{known}",
        metric=METRICS[main] if with_outcomes else None,
        aggregation="all" if len(task.hf_subsets) == 1 else "mean",
        unit=UNITS.get(task.metadata.type, "queries" if task.metadata.type in QUERIES else "documents"),
        splits=(split,),
    )


def read_score(
    ours: Task,
    task: AbsTask,
    split: str,
    result: TaskResult,
    rows: ScoredPairs | None,
    outcomes: Outcomes | None,
    settings: EvaluationSettings,
    seconds: Mapping[str, float],
) -> TaskScore:
    """The score of a split of ``result``. Raises RunError when it is undefined.

    ``rows`` are the ones that were given to the task; others are named by the revision of MTEB's dataset.
    """
    found = subset_scores(task, split, result)
    main = {subset: 100 * round(float(scores["main_score"]), DIGITS) for subset, scores in found.items()}
    score = float(np.mean(list(main.values())))
    if not math.isfinite(score):
        raise RunError(ours.name, "the score is undefined", hint="do all embeddings coincide?")
    sizes = {subset: size(task, subset, split) for subset in found}
    parts = {subset: (main[subset], sizes[subset]) for subset in found} if len(found) > 1 else {}
    other = further(task.metadata.main_score, found)
    sha256, revision = rows.sha256 if rows else None, data_revision(task)
    if outcomes is not None:
        measured = Measured(outcomes, score, other, parts)
        whole = task_score(ours, split, measured, sha256 or "", settings, seconds)
        named = {"main_metric": task.metadata.main_score, "data_sha256": sha256, "data_revision": revision}
        return whole.model_copy(update=named)
    return TaskScore(
        task=ours.name,
        protocol=ours.protocol,
        split=split,
        main_metric=task.metadata.main_score,
        main_score=score,
        n=sum(sizes.values()),
        unit=ours.unit,
        family=ours.family,
        other=other,
        parts={subset: Part(score=value, n=n) for subset, (value, n) in parts.items()},
        seconds=dict(seconds),
        data_sha256=sha256,
        data_revision=revision,
    )


def subset_scores(task: AbsTask, split: str, result: TaskResult) -> dict[str, Mapping[str, Any]]:
    """MTEB's metrics of every subset of the task; a kept result may hold further ones, which are left out."""
    wanted = ("default",) if task.is_aggregate else task.hf_subsets
    return {scores["hf_subset"]: scores for scores in result.scores[split] if scores["hf_subset"] in wanted}


def further(main: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Every other metric that all subsets have a finite value of, its mean over them; x 100 unless it is an error."""
    metrics = {}
    for name in next(iter(found.values())):
        values = [scores.get(name) for scores in found.values()]
        numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
        if len(numbers) == len(values) and name not in (main, "main_score") and "nauc" not in name:
            metrics[name] = round(float(np.mean(numbers)), DIGITS) * (1 if name in ERRORS else 100)
    return metrics


def has_outcomes(task: AbsTask) -> bool:
    """Whether MTEB tells the outcomes of a task's single rows."""
    return isinstance(task, AbsTaskSTS) and task.metadata.main_score in METRICS


def sts_outcomes(task: AbsTask, split: str, predictions: Path) -> Outcomes | None:
    """Gold and predicted similarities of an STS task's pairs, from the file that MTEB wrote; None for other tasks."""
    if not has_outcomes(task):
        return None
    told = json.loads((predictions / task.prediction_file_name).read_text(encoding="utf-8"))
    gold = {subset: np.asarray(rows_of(task, subset, split)["score"], dtype=np.float64) for subset in task.hf_subsets}
    predicted = [np.asarray(told[subset][split]["cosine_scores"]) for subset in gold]
    part = tuple(subset for subset, scores in gold.items() for _ in scores) if len(gold) > 1 else ()
    return Outcomes(np.concatenate(list(gold.values())), np.concatenate(predicted), part)


def rows_of(task: AbsTask, subset: str, split: str) -> Any:
    """The loaded rows of a subset's split, in the form that the task has."""
    assert task.dataset is not None
    return task.dataset[subset][split] if subset in task.dataset else task.dataset[split]


def size(task: AbsTask, subset: str, split: str) -> int:
    """How many rows, or queries, were scored: of the loaded data, else as mteb tells of its revision."""
    if task.is_aggregate:
        return sum(size(part, name, split) for part in parts_of(task) for name in part.hf_subsets)
    if task.data_loaded:
        rows = rows_of(task, subset, split)
        return len(rows["queries"]) if isinstance(rows, Mapping) and "queries" in rows else len(rows)
    told: Any = (task.metadata.descriptive_stats or {})[split]
    told = told.get("hf_subset_descriptive_stats", {}).get(subset, told)
    return int(told.get("num_queries") or told["num_samples"])


def data_revision(task: AbsTask) -> str | None:
    """``ORG/NAME@REVISION`` of the data that a result speaks of; None where they are rows from elsewhere."""
    if task.is_aggregate:
        return ", ".join(str(data_revision(part)) for part in parts_of(task))
    return f"{task.metadata.dataset['path']}@{task.metadata.revision}" if is_published(task) else None

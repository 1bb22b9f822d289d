"""Scores in the Hub's two forms: ``model-index`` in the front matter and ``.eval_results/*.yaml`` beside the card.

Only scores on a task's whole test set become an entry of ``.eval_results``: the Hub ranks those against other models.
"""

from dataclasses import dataclass
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml
from huggingface_hub.repocard_data import eval_results_to_model_index

from hub.results import Results, TaskScore

FOLDER = ".eval_results"


@dataclass(frozen=True)
class Benchmark:
    """A task as the Hub knows it."""

    dataset_id: str
    task_id: str
    name: str
    test_pairs: int


BENCHMARKS = {"stsb": Benchmark("mteb/stsbenchmark-sts", "STSBenchmark", "STS Benchmark", 1379)}


def benchmark(score: TaskScore) -> Benchmark | None:
    """The Hub's benchmark for a score; a task is named ``<benchmark>/<protocol>``."""
    return BENCHMARKS.get(score.task.partition("/")[0])


def model_index(name: str, results: Results) -> list[dict[str, Any]]:
    """The scores after training as ``model-index`` data."""
    entries = [_entry(score) for score in results.scores]
    return _without_none(eval_results_to_model_index(name, entries)) if entries else []


def _entry(score: TaskScore) -> EvalResult:
    known = benchmark(score)
    return EvalResult(
        task_type="sentence-similarity",
        task_name="Semantic textual similarity",
        dataset_type=known.dataset_id if known else score.task,
        dataset_name=f"{known.name if known else score.task} ({score.split})",
        dataset_split=score.split,
        metric_type=score.main_metric,
        metric_name=f"{score.main_metric} x 100",
        metric_value=round(score.main_score, 2),
    )


def eval_result_files(results: Results) -> dict[str, str]:
    """``.eval_results/<benchmark>.yaml`` for every known benchmark with a score on its whole test set."""
    files = {}
    for score in results.scores:
        known = benchmark(score)
        if known and score.split == "test" and score.n == known.test_pairs:
            entry = EvalResultEntry(
                dataset_id=known.dataset_id,
                task_id=known.task_id,
                value=round(score.main_score, 2),
                notes=f"{score.main_metric} x 100; data file SHA-256 {score.data_sha256}",
            )
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=120)
            files[f"{FOLDER}/{score.task.partition('/')[0]}.yaml"] = text
    return files


def _without_none(value: Any) -> Any:
    """``value`` without keys that say nothing."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value

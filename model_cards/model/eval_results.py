"""Scores in the Hub's two forms: ``model-index`` in the front matter and ``.eval_results/*.yaml`` beside the card.

Only scores on a task's whole test set become an entry of ``.eval_results``: the Hub ranks those against other models.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hub.contract.results import Results, TaskScore

if TYPE_CHECKING:
    from huggingface_hub import EvalResult  # which takes half a second to import

FOLDER = ".eval_results"


@dataclass(frozen=True)
class Benchmark:
    """A task as the Hub knows it: MTEB's dataset, its task and its test pairs, and the file of the entry."""

    dataset_id: str
    task_id: str
    name: str
    test_pairs: int
    file: str


_KNOWN = {
    task: Benchmark(**keys)
    for task, keys in yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8")).items()
}
BENCHMARKS = _KNOWN | {f"mteb/{known.task_id}": known for known in _KNOWN.values()}
"""Task name → benchmark: our tasks that are MTEB's, protocol and rows, and MTEB's own. ``sts12/mean`` is none."""

SIMILARITY = ("sentence-similarity", "Semantic textual similarity")
OTHER = ("other", "Evaluation of sentence embeddings")
TASK_TYPES = {  # by main metric; of the Hub's, with a name
    **dict.fromkeys(("spearman", "pearson", "cosine_spearman"), SIMILARITY),
    "accuracy": ("text-classification", "Classification of texts or pairs by a probe on the embeddings"),
    "recall": ("text-retrieval", "Retrieval"),
}


def benchmark(score: TaskScore) -> Benchmark | None:
    """The Hub's benchmark for a score; its task states the benchmark's protocol."""
    return BENCHMARKS.get(score.task)


def model_index(name: str, results: Results) -> list[dict[str, Any]]:
    """The scores after training as ``model-index`` data."""
    from huggingface_hub.repocard_data import eval_results_to_model_index

    entries = [_entry(score) for score in results.scores]
    return _without_none(eval_results_to_model_index(name, entries)) if entries else []


def _entry(score: TaskScore) -> "EvalResult":
    from huggingface_hub import EvalResult

    known = benchmark(score)
    task_type, task_name = TASK_TYPES.get(score.main_metric, OTHER)
    return EvalResult(
        task_type=task_type,
        task_name=task_name,
        dataset_type=known.dataset_id if known else score.task,
        dataset_name=f"{known.name if known else score.task} ({score.split})",
        dataset_split=score.split,
        dataset_revision=_revision(score, known),
        metric_type=score.main_metric,
        metric_name=f"{score.main_metric} x 100",
        metric_value=round(score.main_score, 2),
    )


def _revision(score: TaskScore, known: Benchmark | None) -> str | None:
    """The commit of the Hub's dataset that was scored, where the score says it."""
    repo_id, _, commit = (score.data_revision or "").partition("@")
    return commit if known and repo_id == known.dataset_id else None


def eval_result_files(results: Results) -> dict[str, str]:
    """``.eval_results/<benchmark>.yaml`` for every known benchmark with a score on its whole test set.

    Where both our task and MTEB's were run, which agree but for rounding, the one that names the dataset's revision.
    """
    found: dict[str, TaskScore] = {}
    for score in results.scores:
        known = benchmark(score)
        if known and score.split == "test" and score.n == known.test_pairs:
            told = found.get(known.file)
            if told is None or _revision(told, known) is None:
                found[known.file] = score
    return {f"{FOLDER}/{name}.yaml": _file(score) for name, score in found.items()}


def _file(score: TaskScore) -> str:
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    known = BENCHMARKS[score.task]
    data = f"rows with SHA-256 {score.data_sha256}" if score.data_sha256 else score.data_revision
    entry = EvalResultEntry(
        dataset_id=known.dataset_id,
        task_id=known.task_id,
        value=round(score.main_score, 2),
        dataset_revision=_revision(score, known),
        notes=f"{score.main_metric} x 100; {data}",
    )
    return yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=120)


def _without_none(value: Any) -> Any:
    """``value`` without keys that say nothing."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value

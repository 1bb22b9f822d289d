"""SentEval's transfer tasks as an ``EvaluationSuite`` of the ``evaluate`` library; run it from the repository's root.

    suite = evaluate.EvaluationSuite.load("eval/suites/transfer.py")
    results = suite.run("ORG/NAME", senteval_data="DIR")      # or a folder, or a function from n texts to (n, d)

The suite's own loop cannot express a probe: it knows the task names of transformers' pipelines alone and maps each text
to a label with a finished model, while a probe is trained on all folds' embeddings. So ``run`` hands every sub-task to
an evaluator of ours; ``SubTask``, ``Evaluator`` and the metric are the library's. ``python -m eval.run`` has more:
intervals of a kind, resumption, comparison.
"""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import evaluate
from evaluate.evaluation_suite import SubTask

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import load_encoder, wrap
from eval.scoring.transfer import measure_transfer
from eval.tasks.registry import GROUPS, find_task
from eval.tasks.rows import Rows
from eval.tasks.sources import Source

TASK_TYPE = "sentence-probe"
SEEDS = (1111,)  # SentEval's


class ProbeEvaluator(evaluate.Evaluator):
    """Embeds texts, trains SentEval's probe on them and scores its classes with ``eval/metrics/probe_accuracy``."""

    def __init__(self) -> None:
        super().__init__(TASK_TYPE, default_metric_name=str(files("eval") / "metrics" / "probe_accuracy"))

    def predictions_processor(self, predictions: Any, label_mapping: Any = None) -> dict[str, list[int]]:
        """The metric's input."""
        return {"predictions": predictions.astype(int).tolist()}

    def compute(
        self, model_or_pipeline: Embeddings, data: dict[str, Rows], task: str, **settings: Any
    ) -> dict[str, float]:
        """Accuracy (0 to 1, over rows; F1 for two classes) with intervals, SentEval's own figure (x 100), and time."""
        started = perf_counter()
        declared = find_task(task)
        measured = measure_transfer(declared, data, model_or_pipeline.rows, SEEDS)
        inputs = {"references": measured.outcomes.gold.astype(int).tolist()}
        inputs |= self.predictions_processor(measured.outcomes.predicted)
        scores = self.prepare_metric(None).compute(**inputs)
        told = {"senteval_accuracy": measured.score, "total_time_in_seconds": perf_counter() - started}
        return scores | told


class Suite(evaluate.EvaluationSuite):
    """The transfer tasks in SentEval's mode. ``suite.suite`` may be shortened before ``run``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.suite = [
            SubTask(TASK_TYPE, data=task.dataset, split=task.default_split, args_for_task={"task": task.name})
            for task in GROUPS["transfer"]
            if task.mode == "senteval" and task.metric == "accuracy"
        ]

    def run(
        self,
        model_or_pipeline: str | Callable[[list[str]], Any],
        senteval_data: Source | str | Path | None = None,
    ) -> list[dict[str, Any]]:
        """Results of all sub-tasks in order. ``senteval_data``: a directory in SentEval's layout, or another source.

        Raises hub.errors.InputError for data that are not there or not whole, and for an encoder that gives no usable
        embeddings.
        """
        self.assert_suite_nonempty()
        model, place = model_or_pipeline, senteval_data
        encoder = load_encoder(model) if isinstance(model, str) else wrap(model, "function")
        source = place if isinstance(place, Source) else Source(Path(place) if place else None)
        evaluator, results = ProbeEvaluator(), []
        with Embeddings(encoder) as embeddings:
            for subtask in self.suite:
                task = find_task(subtask.args_for_task["task"])
                rows = source.load(subtask.data, task.reads(subtask.split))
                scores = evaluator.compute(embeddings, rows, **subtask.args_for_task)
                results.append({"task_name": task.name, "data_preprocessor": None, **scores})
        return results

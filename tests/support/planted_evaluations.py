"""Evaluations as ``sts-dino score`` leaves them, of made-up systems whose quality is planted."""

from pathlib import Path

import numpy as np

from sts_dino.eval.runs.records import Record, Records
from sts_dino.eval.scoring.bootstrap import (
    EvaluationSettings,
    compute_interval,
    compute_score,
    resample,
)
from sts_dino.eval.tasks.registry import compute_averages, find_task
from sts_dino.eval.tasks.task import Outcomes
from sts_dino.hub.contract.results import Results, TaskScore, write_results

SETTINGS = EvaluationSettings(bootstrap_samples=100)
VERSIONS = {"python": "3.11"}


def similarity(quality: float, rows: int, seed: int, parts: tuple[str, ...] = ()) -> Outcomes:
    """Similarities that follow the gold by ``quality`` (0-1), with noise that systems mostly share."""
    generator = np.random.default_rng(seed)
    gold, shared = generator.normal(size=(2, rows))
    own = np.random.default_rng([seed, int(1e6 * quality)]).normal(size=rows)
    noise = 0.95 * shared + 0.3 * own
    part = tuple(parts[row * len(parts) // rows] for row in range(rows)) if parts else ()
    return Outcomes(np.round(gold, 1), quality * gold + np.sqrt(1 - quality**2) * noise, part)


def classes(quality: float, rows: int, seed: int) -> Outcomes:
    """Classes of two, right with probability ``quality``."""
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 2, rows).astype(float)
    return Outcomes(gold, np.where(generator.random(rows) < quality, gold, 1 - gold))


def planted(task: str, quality: float, rows: int = 400, seed: int = 1) -> Outcomes:
    """Scored rows of a task for a system of a given quality."""
    found = find_task(task)
    if found.metric == "accuracy":
        return classes(quality, rows, seed)
    return similarity(
        quality, rows, seed, ("a", "b", "c") if found.dataset.startswith("sts1") else ()
    )


def measured(
    task: str, outcomes: Outcomes, split: str | None = None, settings: EvaluationSettings = SETTINGS
) -> TaskScore:
    """The score of planted rows, with its interval."""
    found = find_task(task)
    assert found.metric is not None
    around = compute_interval(
        resample([outcomes], found.metric, found.aggregation, settings.bootstrap_samples, 1)[0]
    )
    return TaskScore(
        task=task,
        protocol=settings.describe_protocol(found),
        split=split or found.default_split,
        main_metric=found.metric,
        main_score=compute_score(outcomes, found.metric, found.aggregation),
        low=around.low,
        high=around.high,
        n=len(outcomes),
        data_sha256=f"{len(outcomes):064x}",
        limit=settings.data_limit,
    )


def evaluation(
    folder: Path,
    model: str,
    rows: dict[str, Outcomes],
    settings: EvaluationSettings = SETTINGS,
    more: tuple[TaskScore, ...] = (),
    split: str | None = None,
) -> Path:
    """Write an evaluation of ``model``, task → scored rows (and ``more`` scores without rows); its
    folder.
    """
    records = Records(folder)
    scores = []
    for task, outcomes in rows.items():
        one = measured(task, outcomes, split, settings)
        found = find_task(task)
        record = Record(
            score=one,
            revision="r" * 40,
            encoder={},
            settings=settings,
            versions=VERSIONS,
            metric=found.metric,
            aggregation=found.aggregation,
        )
        records.write(record, outcomes)
        scores.append(one)
    every = (*scores, *more)
    results = Results(
        model=model,
        revision="r" * 40,
        bootstrap_samples=settings.bootstrap_samples,
        seed=1,
        versions=VERSIONS,
        scores=every,
        averages=compute_averages(every),
    )
    write_results(folder / "results.json", results)
    return folder

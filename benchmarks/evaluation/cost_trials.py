"""What benchmarks.evaluation.cost measures, each in a process of its own: a suite of tasks, MTEB, ways of encoding."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import BATCH, Encoder, load_encoder
from eval.tasks.registry import find_task, find_tasks
from eval.tasks.sources import Entry, Source, TaskData
from hub.memory import peak_rss_mb

SEED = 1111  # of the probes
SHARED = {  # MTEB's name → ours
    "STS12": "sts12/all",
    "STS13": "sts13/all",
    "STS14": "sts14/all",
    "STS15": "sts15/all",
    "STS16": "sts16/all",
    "STSBenchmark": "stsb/cosine",
    "SICK-R": "sick-r-full/cosine",
}


@dataclass(frozen=True)
class Work:
    """Which encoder reads which data, on how many threads; ``rows`` of each split, None for all."""

    model: str
    senteval: Path | None
    originals: Path | None
    tasks: tuple[str, ...]
    skip: tuple[str, ...]
    rows: int | None
    threads: int

    @property
    def source(self) -> Source:
        """Where the rows are read from."""
        return Source(senteval=self.senteval, originals=self.originals)

    def entries(self) -> list[Entry]:
        """The tasks whose data are there, each with the split that counts."""
        left_out, source = find_tasks(self.skip), self.source
        tasks = [task for task in find_tasks(self.tasks) if task not in left_out]
        there = [task for task in tasks if all(source.has(task.dataset, s) for s in task.reads(task.default_split))]
        return [Entry(task, task.default_split) for task in there]


@dataclass(frozen=True)
class Cost:
    """Seconds of the wall clock and of all threads, and the highest memory of the process until then."""

    wall_s: float
    cpu_s: float
    peak_rss_mb: float


def timed(function: Callable[[], Any]) -> tuple[Any, Cost]:
    """A function's result and what it cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    return found, Cost(time.perf_counter() - wall, time.process_time() - cpu, peak_rss_mb())


def started(work: Work) -> Encoder:
    """The encoder, loaded on ``work.threads`` threads and warmed up, so that no trial pays for the first call."""
    import torch

    torch.set_num_threads(work.threads)
    encoder = load_encoder(work.model)
    encoder.embed(["A first sentence, a little longer than others.", "Another one."] * BATCH)
    return encoder


def suite(work: Work) -> dict[str, Any]:
    """All tasks as ``eval.run`` measures them: the texts of all encoded in one pass, then one task after another."""
    from eval.scoring.measure import measure

    encoder, entries = started(work), work.entries()
    data = TaskData(work.source, work.rows)
    found: dict[str, Any] = {"loaded_mb": peak_rss_mb()}
    texts, found["reading"] = timed(lambda: [text for entry in entries for part in data.texts(entry) for text in part])
    found["texts"] = len(texts)
    with Embeddings(encoder, None) as embeddings:
        embeddings.add(texts)
        _, found["encoding"] = timed(embeddings.encode)
        found["distinct"] = embeddings.encoded
        found["tasks"] = []
        for entry in entries:
            scoring = partial(measure, entry.task, entry.split, data.rows(entry), embeddings, [SEED])
            measured, cost = timed(scoring)
            row = {
                "task": entry.task.name,
                "split": entry.split,
                "score": measured.score,
                "rows": len(measured.outcomes),
            }
            found["tasks"].append(row | {"cost": cost})
    return found


def ours(work: Work) -> dict[str, Any]:
    """The tasks that MTEB has, by this project."""
    found = suite(work)
    scores = {row["task"]: row["score"] for row in found["tasks"]}
    costs = [found["encoding"], *(row["cost"] for row in found["tasks"])]
    total = Cost(sum(c.wall_s for c in costs), sum(c.cpu_s for c in costs), max(c.peak_rss_mb for c in costs))
    return {"scores": {name: scores[task] for name, task in SHARED.items() if task in scores}, "cost": total}


def by_mteb(work: Work) -> dict[str, Any]:
    """The same tasks on the same rows by ``mteb.evaluate``, with its own wrapper around the same model."""
    import mteb
    from datasets import Dataset, DatasetDict

    encoder, data = started(work), TaskData(work.source, work.rows)
    tasks: list[Any] = []
    for name, ours in SHARED.items():
        if ours in work.tasks:
            rows: Any = data.rows(Entry(find_task(ours), "test"))["test"]
            tasks.append(mteb.get_task(name))
            columns = {"sentence1": list(rows.first), "sentence2": list(rows.second), "score": rows.gold.tolist()}
            tasks[-1].dataset, tasks[-1].data_loaded = DatasetDict(test=Dataset.from_dict(columns)), True
    model: Any = encoder.model
    settings: dict[str, Any] = {"encode_kwargs": {"batch_size": BATCH, "show_progress_bar": False}, "cache": None}
    settings |= {"co2_tracker": False, "show_progress_bar": False, "overwrite_strategy": "always"}
    result, cost = timed(lambda: mteb.evaluate(model, tasks, **settings))
    return {"scores": {found.task_name: 100 * found.get_score() for found in result.task_results}, "cost": cost}


def encode_once(work: Work) -> Cost:
    """Every distinct text once, sorted over all tasks, to disk and back."""
    return _embedded(work, None)


def encode_again(work: Work) -> Cost:
    """The same, found on disk."""
    with tempfile.TemporaryDirectory() as folder:
        _embedded(work, Path(folder))
        return _embedded(work, Path(folder))


def encode_each_task(work: Work) -> Cost:
    """Every text of every task with ``encode``, which sorts within a call."""
    return _by_calls(work, lambda parts: parts)


def encode_unsorted(work: Work) -> Cost:
    """Every distinct text once, in the order of the data, a batch a call."""

    def batches(parts: list[list[str]]) -> list[list[str]]:
        texts = list(dict.fromkeys(text for part in parts for text in part))
        return [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]

    return _by_calls(work, batches)


WAYS = {way.__name__: way for way in (encode_once, encode_again, encode_each_task, encode_unsorted)}


def _parts(work: Work) -> list[list[str]]:
    data = TaskData(work.source, work.rows)
    return [list(part) for entry in work.entries() for part in data.texts(entry)]


def _embedded(work: Work, cache: Path | None) -> Cost:
    encoder, parts = started(work), _parts(work)

    def embed() -> None:
        with Embeddings(encoder, cache) as embeddings:
            for part in parts:
                embeddings.add(part)
            embeddings.encode()
            for part in parts:
                embeddings.rows(part)

    return timed(embed)[1]


def _by_calls(work: Work, calls: Callable[[list[list[str]]], Sequence[list[str]]]) -> Cost:
    encoder, parts = started(work), _parts(work)
    return timed(lambda: [encoder.embed(call) for call in calls(parts)])[1]

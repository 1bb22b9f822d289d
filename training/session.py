"""A job's trainer: its rows, losses and callbacks put together around a student."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import PrinterCallback, TrainerCallback

from hub.model_sections import Spans
from training.data import TrainingSet
from training.distributed import is_main, process_count
from training.job import Job
from training.losses import build_loss
from training.progress import Progress
from training.reporters import TENSORBOARD, tensorboard
from training.span_rows import SpanCollator, span_rows
from training.streams import endless
from training.trainer import Checks, StudentTrainer


@dataclass(frozen=True)
class Rows:
    """What a trainer reads of a dataset, and what it takes for that.

    ``passed_over``: rows that are not trained on (None: streamed, and so not counted).
    """

    rows: Dataset | IterableDataset
    collator: Any = None  # None: the trainer's own, for texts
    callbacks: list[TrainerCallback] = field(default_factory=list)
    passed_over: int | None = 0


@dataclass(frozen=True)
class Trained:
    """What a training run hands on: the trainer holding the chosen weights, what it read, and what this process took.

    ``first_step``: where this process began; a resumed run did the steps before. ``seconds``: of its training.
    """

    trainer: StudentTrainer
    rows: Mapping[str, Rows]
    first_step: int
    seconds: float


def read_rows(item: TrainingSet, student: SentenceTransformer, job: Job) -> Rows:
    """A dataset's rows: texts as they are, documents as spans of ids. Raises InputError when no document will do."""
    if item.spec.form == "documents":
        limit = job.recipe.base.max_seq_length
        cut = span_rows(item.train, student.tokenizer, item.spec.spans or Spans(), job.recipe.seed, limit)
        return Rows(cut.rows, SpanCollator(student.tokenizer), [cut.callback], cut.passed_over)
    if isinstance(item.train, IterableDataset):
        return Rows(endless(item.train, item.name), passed_over=None)
    return Rows(item.train)


def make_trainer(
    job: Job, student: SentenceTransformer, rows: Mapping[str, Rows], fingerprint: str, first_step: int
) -> StudentTrainer:
    """A trainer over all datasets, each with its own loss; ``first_step`` is where a resumed run goes on (0: new)."""
    losses: dict[str, nn.Module] = {
        item.name: build_loss(item.spec, student, job.base, process_count()) for item in job.sets
    }
    first = next(iter(rows.values()))
    read = {name: found.rows for name, found in rows.items()}
    trainer = StudentTrainer(
        model=student,
        args=job.arguments,
        train_dataset=first.rows if isinstance(first.rows, IterableDataset) else DatasetDict(read),
        losses=losses,
        slanted=job.recipe.slanted_triangular,
        evaluator=job.evaluator,
        data_collator=first.collator,
        callbacks=[Checks(fingerprint), *first.callbacks, *(_watchers(job, first_step) if is_main() else ())],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _watchers(job: Job, first_step: int) -> list[TrainerCallback]:
    """Progress on stderr and, when it was asked for, TensorBoard's event files."""
    watchers: list[TrainerCallback] = [Progress(job.evaluator.metric if job.evaluator else "")]
    if TENSORBOARD in job.reporters:
        watchers.append(tensorboard(job.logs, first_step))
    return watchers

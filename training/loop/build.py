"""Builds the trainer of a job: rows, losses and callbacks around an encoder."""

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass

from datasets import DatasetDict, IterableDataset
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import PrinterCallback, TrainerCallback

from hub.contract.sections.model import Spans
from training.data.example_types import DOCUMENTS, EXAMPLE_TYPES
from training.data.span_rows import TrainerRows, span_rows
from training.data.streams import endless
from training.data.token_dropout import TokenDropout
from training.data.training_sets import TrainingSet
from training.loop.arguments import TENSORBOARD
from training.loop.distributed import is_main, process_count
from training.loop.job import TrainingJob
from training.loop.reporting import ProgressReporter, tensorboard
from training.loop.trainer import Checks, EncoderTrainer, TextCollator
from training.losses.losses import LOSSES, build_loss
from training.model.encoder import build_encoder


@dataclass(frozen=True)
class Trained:
    """A finished training: the trainer with the selected weights, its rows, and the time of this process.

    ``first_step``: where this process began; a resumed run did the steps before. ``seconds``: of its training.
    """

    trainer: EncoderTrainer
    rows: Mapping[str, TrainerRows]
    first_step: int
    seconds: float


def read_rows(item: TrainingSet, encoder: SentenceTransformer, job: TrainingJob) -> TrainerRows:
    """A dataset's rows: texts as they are, documents as spans of ids. Raises InputError when no document will do."""
    if EXAMPLE_TYPES[item.spec.example_type] == DOCUMENTS:
        limit = job.recipe.base.max_seq_length
        return span_rows(item.train, encoder.tokenizer, item.spec.spans or Spans(), job.recipe.seed, limit)
    if isinstance(item.train, IterableDataset):
        return TrainerRows(endless(item.train, item.name), passed_over=None)
    return TrainerRows(item.train, passed_over=item.passed_over)


def make_trainer(
    job: TrainingJob, encoder: SentenceTransformer, rows: Mapping[str, TrainerRows], fingerprint: str, first_step: int
) -> EncoderTrainer:
    """A trainer over all datasets, each with its own loss; ``first_step`` is where a resumed run goes on (0: new)."""
    losses: dict[str, nn.Module] = {
        item.name: build_loss(item.spec, encoder, job.base, process_count(), _guide(index, encoder, job))
        for index, item in enumerate(job.sets)
    }
    first = next(iter(rows.values()))
    read = {name: found.rows for name, found in rows.items()}
    checks = Checks(fingerprint, job.arguments.save_total_limit)
    arguments = copy(job.arguments)
    arguments.save_total_limit = None  # upstream would remove old checkpoints before the new one is marked
    trainer = EncoderTrainer(
        model=encoder,
        args=arguments,
        train_dataset=first.rows if isinstance(first.rows, IterableDataset) else DatasetDict(read),
        losses=losses,
        slanted=job.recipe.slanted_triangular,
        evaluator=job.evaluator,
        data_collator=first.collator or TextCollator(encoder.preprocess, token_dropout=_token_dropout(encoder, job)),
        callbacks=[checks, *first.callbacks, *(_watchers(job, first_step) if is_main() else ())],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _token_dropout(encoder: SentenceTransformer, job: TrainingJob) -> TokenDropout | None:
    """The recipe's noise on tokens, if it has any; static encoders, whose texts are never padded, have no pad token."""
    if not job.recipe.token_dropout:
        return None
    pad = getattr(encoder.tokenizer, "pad_token_id", None) or 0
    return TokenDropout(encoder.preprocess, job.recipe.token_dropout, job.recipe.seed, pad)


def _guide(index: int, encoder: SentenceTransformer, job: TrainingJob) -> SentenceTransformer | None:
    """The guide of a dataset's loss, if it takes one: the encoder that it names, else a copy of the untrained one."""
    spec = job.sets[index].spec
    if not LOSSES[spec.loss].guided:
        return None
    if spec.guide is None:
        return deepcopy(encoder)
    return build_encoder(spec.guide, job.guides[index], key=f"datasets.{index}.guide")


def _watchers(job: TrainingJob, first_step: int) -> list[TrainerCallback]:
    """Progress on stderr and, when it was asked for, TensorBoard's event files."""
    watchers: list[TrainerCallback] = [ProgressReporter(job.evaluator.metric if job.evaluator else "")]
    if TENSORBOARD in job.reporters:
        watchers.append(tensorboard(job.logs, first_step))
    return watchers

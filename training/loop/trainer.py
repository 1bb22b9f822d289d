"""SentenceTransformerTrainer with a global batch, NaN checks, resumable loss parameters, best-checkpoint selection."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from datasets import IterableDataset
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.data_collator import DEFAULT_LABEL_COLUMNS
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from hub.contract.sections.model import SlantedTriangular
from hub.errors import InputError, RunError
from training.data.example_types import WEIGHT
from training.data.token_dropout import TokenDropout
from training.loop.batches import SharedBatches, shared_loader
from training.loop.checkpoints import (
    ENCODER,
    LOSS,
    load_weights,
    mark_whole,
    own_parameters,
    remove_old,
    save_weights,
    trained,
)
from training.loop.distributed import is_main, process_count, process_index, wait_for_all
from training.loop.schedules import slanted_triangular_schedule

DIVERGED = (
    "lower arguments.learning_rate, or give it a longer warm-up; this run's directory and checkpoints are of no use"
)


@dataclass
class TextCollator(SentenceTransformerDataCollator):
    """Upstream's, without its guess from their names that columns are out of order: the schema orders them.

    Labels of rows with weights are (rows, 2), scores and weights; of rows without scores (rows,), the weights.
    """

    valid_label_columns: list[str] = field(  # what a sampler does not take for texts
        default_factory=lambda: [*DEFAULT_LABEL_COLUMNS, WEIGHT]
    )
    token_dropout: TokenDropout | None = None

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of token ids by column, some of them left out with ``token_dropout``, and the labels."""
        batch = self._whole(features)
        return batch if self.token_dropout is None else self.token_dropout(batch)

    def _whole(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        if not features or WEIGHT not in features[0]:
            return super().__call__(features)
        weights = torch.tensor([row[WEIGHT] for row in features])
        batch = super().__call__([{name: row[name] for name in row if name != WEIGHT} for row in features])
        batch["label"] = torch.stack([batch["label"], weights], dim=1) if "label" in batch else weights
        return batch

    def maybe_warn_about_column_order(self, column_names: list[str]) -> None:
        """Nothing: NLI's (premise, hypothesis) would be told to put the hypothesis first."""


class EncoderTrainer(SentenceTransformerTrainer):
    """SentenceTransformerTrainer over one global batch, whose checkpoints hold the losses' own parameters too.

    ``losses``: dataset name → loss. ``slanted``: the learning rate's schedule, instead of the arguments'.
    """

    data_collator_class = TextCollator

    def __init__(self, *, losses: Mapping[str, nn.Module], slanted: SlantedTriangular | None, **kwargs: Any):
        self.slanted = slanted
        streamed = isinstance(kwargs["train_dataset"], IterableDataset)
        super().__init__(loss=next(iter(losses.values())) if streamed else dict(losses), **kwargs)
        self.encoder_parameters = trained(self.model)
        self.loss_parameters = own_parameters(losses, self.model)

    def get_train_dataloader(self) -> Any:
        """Batches of the recipe's size, of which this process takes its share (see ``training.loop.batches``)."""
        size = self.args.per_device_train_batch_size * process_count()
        if not isinstance(self.train_dataset, IterableDataset):
            size *= self.args.gradient_accumulation_steps
        loader = self._build_dataloader(self.train_dataset, size, dataset_kind="train")
        if not isinstance(self.train_dataset, IterableDataset) and len(loader) == 0:
            found = f"drops all rows: there are fewer than a batch of {size}"
            raise InputError("arguments.dataloader_drop_last", found, hint="lower batch_size, or leave it out")
        self._train_dataloader = shared_loader(loader, self.args.device, process_index(), process_count())
        return self._train_dataloader

    def get_multi_dataset_batch_sampler(self, dataset: Any, batch_samplers: Any, *args: Any, **kwargs: Any) -> Any:
        """The recipe's batches as this process's shares of them."""
        whole = super().get_multi_dataset_batch_sampler(dataset, batch_samplers, *args, **kwargs)
        return SharedBatches(whole, process_index(), process_count(), self.args.gradient_accumulation_steps)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The slanted triangle, if the recipe has one; else the arguments' schedule."""
        if self.slanted is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            shape = (num_training_steps, self.slanted.cut_fraction, self.slanted.ratio)
            self.lr_scheduler = slanted_triangular_schedule(optimizer or self.optimizer, *shape)  # type: ignore[arg-type]
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip over all that is trained, the losses' own parameters included; returns the norm before."""
        self._average_own_gradients()
        parameters = [*model.parameters(), *self.loss_parameters.values()]
        return self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is None:  # nothing was clipped
            self._average_own_gradients()
        return super()._get_grad_norm(model, grad_norm)

    def _average_own_gradients(self) -> None:
        """The mean over processes, which the wrapped encoder's gradients are already: losses are not wrapped."""
        for parameter in self.loss_parameters.values() if process_count() > 1 else ():
            if parameter.grad is None:  # of a dataset that this step is not on
                continue
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= process_count()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log. Raises RunError when the loss since the last log, or its gradient, is NaN or infinite.

        The sum of the losses keeps a NaN of any of its steps, so nothing needs to be asked of the GPU at every step.
        """
        numbers = {"loss": logs.get("loss", 0.0)}
        if not self.args.fp16:  # its scaler meets infinite gradients on purpose and skips their steps
            numbers["norm of the gradient"] = logs.get("grad_norm", 0.0)
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise RunError(f"training, step {self.state.global_step}", f"the {name} is {value}", hint=DIVERGED)
        super().log(logs, start_time)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """None: it would collect training sentences for a card, which is another stage's work."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """What is trained, by the main process. Raises RunError on all of them when it is not finite."""
        parameters = [*self.encoder_parameters.values(), *self.loss_parameters.values()]
        require_finite(parameters, f"training, step {self.state.global_step}")
        if is_main():
            checkpoint = Path(output_dir or str(self.args.output_dir))
            save_weights(checkpoint, self.encoder_parameters, ENCODER)
            save_weights(checkpoint, self.loss_parameters, LOSS)
        wait_for_all()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(Path(resume_from_checkpoint), self.encoder_parameters, ENCODER)
        load_weights(Path(resume_from_checkpoint), self.loss_parameters, LOSS)

    def _load_best_model(self) -> None:
        """Upstream only logs it when this fails."""
        if self.state.best_model_checkpoint is not None:
            self._load_from_checkpoint(self.state.best_model_checkpoint)


def require_finite(parameters: list[nn.Parameter], place: str) -> None:
    """Raise RunError when a weight is NaN or infinite."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise RunError(place, "the weights are no longer finite", hint=DIVERGED)


class Checks(TrainerCallback):
    """Callback: evaluates the last step too, refuses a NaN score, logs before and marks after every checkpoint.

    When one is marked, all but the newest ``keep`` and the best are removed.

    Upstream loses the loss summed up since the last log when a run is resumed, so the curve of a resumed run would
    differ from that of an uninterrupted one.
    """

    def __init__(self, fingerprint: str, keep: int | None):
        self.fingerprint = fingerprint
        self.keep = keep

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Evaluate the last step, which upstream saves; log at every step that is evaluated or saved."""
        if state.global_step >= state.max_steps and args.eval_strategy == IntervalStrategy.STEPS:
            control.should_evaluate = True
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log what is evaluated or saved."""
        control.should_log = control.should_log or control.should_save or control.should_evaluate

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Raise RunError when the validation score is NaN: every checkpoint would pass for the best."""
        score = (metrics or {}).get("eval_sequential_score")
        if score is not None and math.isnan(score):
            place = f"training, step {state.global_step}"
            raise RunError(place, "the validation score is NaN: all embeddings coincide or are NaN", hint=DIVERGED)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the checkpoint just written, when every process has written its part."""
        wait_for_all()
        if is_main():
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            mark_whole(checkpoint, self.fingerprint, process_count())
            if self.keep is not None:
                remove_old(checkpoint.parent, self.keep)
        wait_for_all()

"""SentenceTransformerTrainer over one global batch: NaN checks, loss parameters, token dropout, checkpoint choice.

Every process draws the same sequence of whole batches and takes its share of each. Accelerate would hand whole batches
to processes in turn: a step would mix datasets, no batch sampler would see the whole batch (``no_duplicates``), and the
order of the rows would depend on the number of processes.

Token dropout leaves out a share of each text's tokens at random. It tells a text from itself in unsupervised SimCSE
where an encoder has no dropout: static embeddings, Gemma, Llama. Deleted words are among the noises of Gao et al. 2021
(table 2) and TSDAE (Wang et al. 2021).
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from accelerate.data_loader import prepare_data_loader
from datasets import DatasetDict, IterableDataset
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import BatchSampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from hub.contract.recipe import SlantedTriangular
from hub.errors import InputError, RunError
from training.data.rows import distinct_rows
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


class SharedBatches(BatchSampler):
    """Batch sampler of one process: its share of every global batch, one for each of ``accumulated`` backward passes.

    Shares have one size, so means over them are means over the batch. A smaller last batch loses its remainder; one
    with fewer rows than shares is whole in each, since all processes take part in every step.
    """

    def __init__(self, batch_sampler: Any, process: int, processes: int, accumulated: int = 1):
        self.batch_sampler = batch_sampler
        self.shares = processes * accumulated
        self.own = range(process, self.shares, processes)
        self.batch_size = batch_sampler.batch_size // self.shares
        self.drop_last = batch_sampler.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batch_sampler:
            size = len(batch) // self.shares
            for share in self.own:
                yield batch[share * size : (share + 1) * size] if size else batch

    def __len__(self) -> int:
        return len(self.batch_sampler) * len(self.own)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on: the order of the rows depends on it."""
        self.batch_sampler.set_epoch(epoch)

    def seen(self, steps: int, rows: int) -> set[int]:
        """The numbers of the rows in the first ``steps`` whole batches; ends early when these are all ``rows``."""
        found, left = set[int](), steps
        for epoch in range(steps):  # each has at least one batch
            if not left or len(found) == rows:
                break
            self.set_epoch(epoch)
            drawn = list(itertools.islice(self.batch_sampler, left))
            left -= len(drawn)
            for batch in drawn:
                found.update(batch[: len(batch) // self.shares * self.shares] or batch)
        return found


def slanted_triangular(step: int, steps: int, cut_fraction: float = 0.1, ratio: float = 32.0) -> float:
    """The share of the peak rate at ``step`` (from 0) of ``steps``: up to 1 at the cut, then down to 1 / ``ratio``.

    Howard and Ruder 2018, equation 3, with cut = floor(steps * cut_fraction). Their fall has the length
    cut * (1 / cut_fraction - 1), which passes zero where steps * cut_fraction is not whole: it is steps - cut here.
    A cut of 0 (few steps) leaves only the fall.
    """
    cut = math.floor(steps * cut_fraction)
    rise = step / cut if step < cut else max(0.0, 1 - (step - cut) / (steps - cut))
    return (1 + rise * (ratio - 1)) / ratio


IDS = "_input_ids"
PROBES = ("Dogs", "A man is playing a flute", "3.5 apples", "we, too")  # they share neither first nor last token


class TokenDropout:
    """Leaves each token of a batch's texts out with probability ``rate``, but never all of a text's.

    Special tokens and the prompt are never left out. The draw is a function of ``seed`` and the whole batch: a resumed
    run draws as an uninterrupted one. Columns are drawn in turn, so those with the same text differ.
    """

    def __init__(self, preprocess: Callable[[list[str]], dict[str, Any]], rate: float, seed: int, pad: int = 0):
        self.rate, self.seed, self.pad = rate, seed, pad
        probes = [_texts(preprocess([probe]))[0] for probe in PROBES]
        self.before = _common(probes)
        self.after = _common([ids[::-1] for ids in probes])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch of a collator (``COLUMN_input_ids`` and what belongs to them) with fewer tokens."""
        columns = [key.removesuffix(IDS) for key in batch if key.endswith(IDS)]
        digest = hashlib.sha256(str(self.seed).encode())
        for column in columns:
            digest.update(batch[column + IDS].numpy().tobytes())
        generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:8], "little", signed=True))
        batch = dict(batch)
        for column in columns:
            thin = self._ragged if f"{column}_offsets" in batch else self._padded
            thin(batch, column, generator)
        return batch

    def _ragged(self, batch: dict[str, Any], column: str, generator: torch.Generator) -> None:
        """Texts one after another, each from its offset on: what an embedding bag reads."""
        ids, offsets = batch[column + IDS], batch[f"{column}_offsets"]
        lengths = torch.diff(offsets, append=torch.tensor([len(ids)]))
        kept = self._kept(lengths, generator)
        left = torch.zeros_like(lengths).index_add_(0, _rows(lengths), kept.long())
        batch[column + IDS], batch[f"{column}_offsets"] = ids[kept], left.cumsum(0) - left

    def _padded(self, batch: dict[str, Any], column: str, generator: torch.Generator) -> None:
        """One row a text, padding behind it."""
        seen = batch[f"{column}_attention_mask"].bool()
        kept = torch.zeros_like(seen)
        kept[seen] = self._kept(seen.sum(1), generator)
        lengths = kept.sum(1)
        width = int(lengths.max())
        order = kept.logical_not().long().argsort(dim=1, stable=True)[:, :width]  # what is kept moves to the front
        padding = torch.arange(width) >= lengths[:, None]
        shape = batch[column + IDS].shape
        for name, values in batch.items():
            if name.startswith(f"{column}_") and isinstance(values, torch.Tensor) and values.shape == shape:
                empty = self.pad if name == column + IDS else 0
                batch[name] = values.gather(1, order).masked_fill(padding, empty)

    def _kept(self, lengths: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """For the tokens of texts of these lengths, one text after another: which are kept."""
        rows = _rows(lengths)
        places = torch.arange(len(rows)) - (lengths.cumsum(0) - lengths)[rows]
        around = (places < self.before) | (places >= lengths[rows] - self.after)
        draws = torch.rand(len(rows), generator=generator).masked_fill(around, -1.0)
        highest = torch.full((len(lengths),), -1.0).scatter_reduce(0, rows, draws, "amax")
        return around | (draws >= self.rate) | (draws == highest[rows])


def _rows(lengths: torch.Tensor) -> torch.Tensor:
    """The number of the text that each token is of."""
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def _texts(features: dict[str, Any]) -> list[list[int]]:
    ids = features["input_ids"].tolist()
    return [ids] if "offsets" in features else ids


def _common(ids: Sequence[Sequence[int]]) -> int:
    """How many tokens all of these begin with."""
    return next((i for i, found in enumerate(zip(*ids, strict=False)) if len(set(found)) > 1), min(map(len, ids)))


DIVERGED = (
    "lower arguments.learning_rate, or give it a longer warm-up; this run's directory and checkpoints are of no use"
)


@dataclass
class TextCollator(SentenceTransformerDataCollator):
    """Upstream's, without its guess from their names that columns are out of order: the schema orders them."""

    token_dropout: TokenDropout | None = None

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of token ids by column, some of them left out with ``token_dropout``, and the labels."""
        batch: dict[str, Any] = super().__call__(features)
        return batch if self.token_dropout is None else self.token_dropout(batch)

    def maybe_warn_about_column_order(self, column_names: list[str]) -> None:
        """Nothing: upstream would advise to put NLI's hypothesis first."""


class EncoderTrainer(SentenceTransformerTrainer):
    """SentenceTransformerTrainer over one global batch, whose checkpoints hold the losses' own parameters too.

    ``losses``: dataset name → loss. ``slanted``: the learning rate's schedule, instead of the arguments'.
    """

    data_collator_class = TextCollator

    def __init__(self, *, losses: Mapping[str, nn.Module], slanted: SlantedTriangular | None, **kwargs: Any):
        self.slanted = slanted
        streamed = isinstance(kwargs["train_dataset"], IterableDataset)
        super().__init__(loss=next(iter(losses.values())) if streamed else dict(losses), **kwargs)
        self.passed_over: dict[str, int] = {}  # dataset → rows that no example can be made of
        self.first_step, self.seconds = 0, 0.0  # where a resumed run stands; of this process's training
        self.encoder_parameters = trained(self.model)
        self.loss_parameters = own_parameters(losses, self.model)

    def get_train_dataloader(self) -> Any:
        """Batches of the recipe's size, of which this process takes its share (see ``training.loop.trainer``)."""
        size = self.args.per_device_train_batch_size * process_count()
        if not isinstance(self.train_dataset, IterableDataset):
            size *= self.args.gradient_accumulation_steps
        loader = self._build_dataloader(self.train_dataset, size, dataset_kind="train")
        if not isinstance(self.train_dataset, IterableDataset) and len(loader) == 0:
            found = f"drops all rows: there are fewer than a batch of {size}"
            raise InputError("arguments.dataloader_drop_last", found, hint="lower batch_size, or leave it out")
        # restartable at any batch; of a stream, which has no ``SharedBatches``, every process keeps its rows
        streamed = isinstance(loader.dataset, IterableDataset)
        parts = (process_count(), process_index()) if streamed else (1, 0)
        self._train_dataloader = prepare_data_loader(
            loader, self.args.device, *parts, split_batches=True, put_on_device=True, dispatch_batches=False
        )
        return self._train_dataloader

    def get_multi_dataset_batch_sampler(self, dataset: Any, batch_samplers: Any, *args: Any, **kwargs: Any) -> Any:
        """The recipe's batches as this process's shares of them."""
        whole = super().get_multi_dataset_batch_sampler(dataset, batch_samplers, *args, **kwargs)
        self.batches = SharedBatches(whole, process_index(), process_count(), self.args.gradient_accumulation_steps)
        return self.batches

    def rows_seen(self) -> int | None:
        """Distinct rows in the batches of the steps so far, over all datasets; None for a stream, which ends never."""
        if not isinstance(self.train_dataset, DatasetDict):
            return None
        parts, first, count = self.train_dataset.values(), 0, 0
        seen = self.batches.seen(self.state.global_step, sum(map(len, parts)))
        for rows in parts:
            count += distinct_rows(rows, (number - first for number in seen if first <= number < first + len(rows)))
            first += len(rows)
        return count

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The slanted triangle, if the recipe has one; else the arguments' schedule."""
        if self.slanted is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            share = partial(slanted_triangular, steps=num_training_steps, **self.slanted.model_dump())
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, share)  # type: ignore[arg-type]
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
        """Log. Raises RunError when the sum of losses since the last log, or its gradient, is NaN or infinite."""
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

    When one is marked, all but the newest ``keep`` and the best are removed. Upstream loses the loss summed up since
    the last log when a run is resumed; with a log at every checkpoint the curves are those of an uninterrupted run.
    """

    def __init__(self, fingerprint: str, keep: int | None):
        self.fingerprint, self.keep = fingerprint, keep

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

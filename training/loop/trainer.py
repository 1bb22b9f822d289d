"""SentenceTransformerTrainer over one global batch: NaN checks, loss parameters, token dropout,
checkpoint choice.

Every process draws the same sequence of whole batches and takes its share of each. Accelerate would
hand whole batches to processes in turn: a step would mix datasets, no batch sampler would see the
whole batch (``no_duplicates``), and the order of the rows would depend on the number of processes.

Token dropout leaves out a share of each text's tokens at random. It tells a text from itself in
unsupervised SimCSE where an encoder has no dropout: static embeddings, Gemma, Llama. Deleted words
are among the noises of Gao et al. 2021 (table 2) and TSDAE (Wang et al. 2021).
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

from sts_dino.hub.contract.recipe import SlantedTriangular
from sts_dino.hub.errors import InputError, RunError
from sts_dino.training.data.rows import count_distinct_rows
from sts_dino.training.data.training_sets import TrainingSet
from sts_dino.training.loop.distributed import (
    get_process_count,
    get_process_index,
    is_main,
    wait_for_all,
)
from sts_dino.training.loop.files import (
    ENCODER_FILE,
    LOSS_FILE,
    collect_loss_parameters,
    collect_trained,
    load_weights,
    mark_complete,
    remove_old_checkpoints,
    save_weights,
)

DIVERGED_HINT = (
    "lower arguments.learning_rate, or give it a longer warm-up; "
    "this run's directory and checkpoints are of no use"
)
IDS_SUFFIX = "_input_ids"  # of a collator's keys: COLUMN_input_ids
# texts that share neither their first nor their last token, so that common tokens of their ids are
# special tokens or the prompt's
PROBES = ("Dogs", "A man is playing a flute", "3.5 apples", "we, too")


class SharedBatches(BatchSampler):
    """Batch sampler of one process: its share of every global batch, one per backward pass.

    A step of P processes with A ``accumulated`` backward passes divides its batch into P * A shares
    of one size, so the mean of their losses is the mean over the batch. A smaller last batch loses
    the rows that do not divide. If it has fewer rows than shares, every share is the whole batch,
    because all processes take part in every step.
    """

    def __init__(self, batch_sampler: Any, process: int, processes: int, accumulated: int = 1):
        self.batch_sampler = batch_sampler
        self.share_count = processes * accumulated
        self.own_shares = range(process, self.share_count, processes)
        self.batch_size = batch_sampler.batch_size // self.share_count
        self.drop_last = batch_sampler.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the row numbers of this process's shares."""
        for batch in self.batch_sampler:
            size = len(batch) // self.share_count
            for share in self.own_shares:
                yield batch[share * size : (share + 1) * size] if size else batch

    def __len__(self) -> int:
        """Return the number of backward passes of this process in an epoch."""
        return len(self.batch_sampler) * len(self.own_shares)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the batches: the order of the rows depends on it."""
        self.batch_sampler.set_epoch(epoch)

    def collect_seen(self, steps: int, row_count: int) -> set[int]:
        """Return the numbers of the rows in the first ``steps`` batches, those of all processes.

        It draws the batches again, epoch by epoch, and stops when all ``row_count`` rows were seen.
        It leaves another epoch set than before, so call it after the training.
        """
        numbers: set[int] = set()
        remaining = steps
        for epoch in range(steps):  # an epoch has at least one batch
            if not remaining or len(numbers) == row_count:
                break
            self.set_epoch(epoch)
            batches = list(itertools.islice(self.batch_sampler, remaining))
            remaining -= len(batches)
            for batch in batches:
                size = len(batch) // self.share_count
                numbers.update(batch[: size * self.share_count] if size else batch)
        return numbers


def compute_slanted_triangle(
    step: int, steps: int, cut_fraction: float = 0.1, ratio: float = 32.0
) -> float:
    """Return the learning rate at ``step`` (from 0) as a share of the peak rate.

    It rises from 1 / ``ratio`` to 1 at step cut = floor(steps * cut_fraction), then falls to
    1 / ``ratio`` (Howard and Ruder 2018, equation 3). Their fall has the length
    cut * (1 / cut_fraction - 1), and passes zero when steps * cut_fraction is not an integer. Here
    the fall has steps - cut steps, and the rate stays at its end after ``steps``. A cut of 0 (few
    steps) leaves only the fall.
    """
    cut = math.floor(steps * cut_fraction)
    # The height is 0 at the rate's ends and 1 at its peak.
    height = step / cut if step < cut else max(0.0, 1 - (step - cut) / (steps - cut))
    return (1 + height * (ratio - 1)) / ratio


class TokenDropout:
    """Leave out each token of a batch's texts with probability ``rate``, but never a whole text.

    Special tokens and the prompt are never left out. The draw is a function of ``seed`` and the
    whole batch: a resumed run draws as an uninterrupted one. Columns are drawn in turn, so those
    with the same text differ.

    Args:
        preprocess: texts → features with ``input_ids``; called once, with ``PROBES``.
        rate: the probability, 0 to 1.
        seed: the run's seed.
        pad: the id that fills a shortened text up.
    """

    def __init__(
        self,
        preprocess: Callable[[list[str]], dict[str, Any]],
        rate: float,
        seed: int,
        pad: int = 0,
    ):
        self.rate = rate
        self.seed = seed
        self.pad = pad
        # Special tokens and prompt are the tokens that all texts begin and end with.
        probe_ids = [_get_text_ids(preprocess([probe])) for probe in PROBES]
        self.prefix_length = _count_common_start(probe_ids)
        self.suffix_length = _count_common_start([ids[::-1] for ids in probe_ids])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a collator's batch with fewer tokens; its tensors are on the CPU.

        A batch has ``COLUMN_input_ids`` of each column: (texts, tokens) with
        ``COLUMN_attention_mask``, or (tokens,) of all texts with ``COLUMN_offsets``.
        """
        # A generator that depends on the seed and all ids.
        columns = [key.removesuffix(IDS_SUFFIX) for key in batch if key.endswith(IDS_SUFFIX)]
        digest = hashlib.sha256(str(self.seed).encode())
        for column in columns:
            digest.update(batch[column + IDS_SUFFIX].numpy().tobytes())
        seed = int.from_bytes(digest.digest()[:8], "little", signed=True)
        generator = torch.Generator().manual_seed(seed)

        # Drop tokens column by column.
        shortened = dict(batch)
        for column in columns:
            if f"{column}_offsets" in batch:
                self._drop_from_bags(shortened, column, generator)
            else:
                self._drop_from_rows(shortened, column, generator)
        return shortened

    def _drop_from_bags(
        self, batch: dict[str, Any], column: str, generator: torch.Generator
    ) -> None:
        """Drop tokens of a static encoder's column, in place: ids (tokens,) and offsets (texts,).

        The texts lie one after another, each from its offset on.
        """
        ids = batch[column + IDS_SUFFIX]
        offsets = batch[f"{column}_offsets"]
        lengths = torch.diff(offsets, append=torch.tensor([len(ids)]))
        keep = self._draw_mask(lengths, generator)
        new_lengths = torch.zeros_like(lengths).index_add_(
            0, _get_text_numbers(lengths), keep.long()
        )
        batch[column + IDS_SUFFIX] = ids[keep]
        batch[f"{column}_offsets"] = new_lengths.cumsum(0) - new_lengths

    def _drop_from_rows(
        self, batch: dict[str, Any], column: str, generator: torch.Generator
    ) -> None:
        """Drop tokens of a transformer's column, in place: tensors (texts, tokens), padded right.

        All tensors of the column with that shape are shortened: ids, mask, token types.
        """
        is_token = batch[f"{column}_attention_mask"].bool()
        keep = torch.zeros_like(is_token)
        keep[is_token] = self._draw_mask(is_token.sum(1), generator)

        # Move the tokens that stay to the front: a stable sort keeps their order.
        lengths = keep.sum(1)
        width = int(lengths.max())
        order = keep.logical_not().long().argsort(dim=1, stable=True)[:, :width]
        is_padding = torch.arange(width) >= lengths[:, None]
        shape = batch[column + IDS_SUFFIX].shape
        for name, values in batch.items():
            is_of_column = name.startswith(f"{column}_") and isinstance(values, torch.Tensor)
            if is_of_column and values.shape == shape:
                empty = self.pad if name == column + IDS_SUFFIX else 0
                batch[name] = values.gather(1, order).masked_fill(is_padding, empty)

    def _draw_mask(self, lengths: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return a Boolean mask (tokens,) of the tokens to keep.

        Each token is left out with probability ``rate``, except the prefix and suffix of its text.
        The token with the highest draw stays, so that no text loses all others.

        Args:
            lengths: (texts,) tokens of each text; the texts lie one after another.
            generator: the source of the draws, one for each token.
        """
        # The position of each token in its text.
        texts = _get_text_numbers(lengths)
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(len(texts)) - starts[texts]
        is_fixed = positions < self.prefix_length
        is_fixed |= positions >= lengths[texts] - self.suffix_length

        # Fixed tokens get -1, below all draws.
        draws = torch.rand(len(texts), generator=generator).masked_fill(is_fixed, -1.0)
        highest = torch.full((len(lengths),), -1.0).scatter_reduce(0, texts, draws, "amax")
        return is_fixed | (draws >= self.rate) | (draws == highest[texts])


def _get_text_numbers(lengths: torch.Tensor) -> torch.Tensor:
    """Return the number of each token's text, (tokens,), for texts of ``lengths`` (texts,).

    Lengths 2 and 3 give 0, 0, 1, 1, 1.
    """
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def _get_text_ids(features: dict[str, Any]) -> list[int]:
    """Return the token ids of the only text in a batch, of a static encoder or a transformer."""
    ids = features["input_ids"]
    return list((ids if "offsets" in features else ids[0]).tolist())


def _count_common_start(texts: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all texts begin with."""
    count = 0
    for tokens in zip(*texts, strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


@dataclass
class TextCollator(SentenceTransformerDataCollator):
    """Collator of sentence-transformers, with token dropout.

    It does not warn about the order of columns: the schema orders them.
    """

    token_dropout: TokenDropout | None = None

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch of token ids by column, some of them left out, and the labels."""
        batch: dict[str, Any] = super().__call__(features)
        return batch if self.token_dropout is None else self.token_dropout(batch)

    def maybe_warn_about_column_order(self, column_names: list[str]) -> None:
        """Do nothing; upstream would advise to put NLI's hypothesis first."""


class EncoderTrainer(SentenceTransformerTrainer):
    """SentenceTransformerTrainer over one global batch; checkpoints hold losses' parameters too.

    Args:
        sets: the training data.
        losses: dataset name → loss.
        slanted: the learning rate's schedule; None: the schedule of the trainer's arguments.
        first_step: the step of the checkpoint that the run resumes from; 0: a new run.
    """

    data_collator_class = TextCollator

    def __init__(
        self,
        *,
        sets: Sequence[TrainingSet],
        losses: Mapping[str, nn.Module],
        slanted: SlantedTriangular | None,
        first_step: int,
        **kwargs: Any,
    ):
        self.slanted = slanted
        self.first_step = first_step
        self.seconds = 0.0  # of this process's training
        # dataset name → number of source sentences or documents that gave no row
        self.passed_over = {item.name: item.passed_over for item in sets if item.passed_over}
        rows: Any = sets[0].train
        loss: Any = losses[sets[0].name]
        self.is_streamed = isinstance(rows, IterableDataset)  # a stream is trained on alone
        if not self.is_streamed:
            rows = DatasetDict({item.name: item.train for item in sets})
            loss = dict(losses)
        super().__init__(train_dataset=rows, loss=loss, **kwargs)
        self.encoder_parameters = collect_trained(self.model)
        self.loss_parameters = collect_loss_parameters(losses, self.model)

    def get_train_dataloader(self) -> Any:
        """Return the loader of this process's shares of batches of the recipe's size.

        Raises InputError when ``dataloader_drop_last`` drops every batch.
        """
        # ``SharedBatches`` divides the batches of indexed rows. A stream has no batch sampler, so
        # accelerate divides its batches.
        size = self.args.per_device_train_batch_size * get_process_count()
        process_count = get_process_count()
        process_index = get_process_index()
        if not self.is_streamed:
            size *= self.args.gradient_accumulation_steps
            process_count = 1
            process_index = 0
        loader = self._build_dataloader(self.train_dataset, size, dataset_kind="train")
        if not self.is_streamed and len(loader) == 0:
            raise InputError(
                "arguments.dataloader_drop_last",
                f"drops all rows: there are fewer than a batch of {size}",
                hint="lower batch_size, or leave it out",
            )
        # accelerate's loader can resume at any batch.
        self._train_dataloader = prepare_data_loader(
            loader,
            self.args.device,
            process_count,
            process_index,
            split_batches=True,
            put_on_device=True,
            dispatch_batches=False,
        )
        return self._train_dataloader

    def get_multi_dataset_batch_sampler(
        self, dataset: Any, batch_samplers: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Return a sampler of this process's shares of upstream's batches."""
        batches = super().get_multi_dataset_batch_sampler(dataset, batch_samplers, *args, **kwargs)
        accumulated = self.args.gradient_accumulation_steps
        self.batches = SharedBatches(batches, get_process_index(), get_process_count(), accumulated)
        return self.batches

    def count_seen_rows(self) -> int | None:
        """Count the distinct rows of the steps so far, over all datasets; None for a stream."""
        if not isinstance(self.train_dataset, DatasetDict):
            return None
        sizes = [len(rows) for rows in self.train_dataset.values()]
        all_numbers = self.batches.collect_seen(self.state.global_step, sum(sizes))

        # Row numbers run through all datasets; ``first`` is the number of a dataset's first row.
        first = 0
        count = 0
        for rows in self.train_dataset.values():
            end = first + len(rows)
            numbers = [number - first for number in all_numbers if first <= number < end]
            count += count_distinct_rows(rows, numbers)
            first = end
        return count

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the learning rate's schedule once: the slanted triangle, else the arguments'."""
        if self.slanted is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            settings = self.slanted.model_dump()
            share = partial(compute_slanted_triangle, steps=num_training_steps, **settings)
            scheduled: Any = optimizer or self.optimizer
            self.lr_scheduler = LambdaLR(scheduled, share)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip the gradient of all trained parameters, the losses' included.

        Returns the norm before the clipping.
        """
        self._average_loss_gradients()
        parameters = [*model.parameters(), *self.loss_parameters.values()]
        return self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of the gradient; average the losses' gradients unless clipping did.

        ``grad_norm``: the norm that the clipping returned; None: nothing was clipped.
        """
        if grad_norm is None:
            self._average_loss_gradients()
        return super()._get_grad_norm(model, grad_norm)

    def _average_loss_gradients(self) -> None:
        """Average the gradients of the losses' own parameters over all processes, in place.

        DistributedDataParallel does that for the encoder alone, which it wraps.
        """
        if get_process_count() == 1:
            return
        for parameter in self.loss_parameters.values():
            if parameter.grad is not None:  # the step's batch is of this loss's dataset
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= get_process_count()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; first raise RunError for a loss or a gradient norm that is NaN or infinite.

        The loss is the mean since the last log, so no step in between is missed.
        """
        numbers = {"loss": logs.get("loss", 0.0)}
        # The scaler of fp16 tries scales with infinite gradients, and skips their steps.
        if not self.args.fp16:
            numbers["norm of the gradient"] = logs.get("grad_norm", 0.0)
        for name, value in numbers.items():
            if not math.isfinite(value):
                where = f"training, step {self.state.global_step}"
                raise RunError(where, f"the {name} is {value}", hint=DIVERGED_HINT)
        super().log(logs, start_time)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Do nothing; upstream would collect training sentences for a card of its own."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the trained parameters of encoder and losses to the checkpoint ``output_dir``.

        Every process calls this method; the main one writes, and all wait for it. Raises RunError
        for weights that are not finite.
        """
        parameters = [*self.encoder_parameters.values(), *self.loss_parameters.values()]
        require_finite(parameters, f"training, step {self.state.global_step}")
        if is_main():
            checkpoint = Path(output_dir or str(self.args.output_dir))
            save_weights(checkpoint, self.encoder_parameters, ENCODER_FILE)
            save_weights(checkpoint, self.loss_parameters, LOSS_FILE)
        wait_for_all()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the trained parameters of encoder and losses from a checkpoint.

        ``model`` is upstream's argument. Raises RunError when the checkpoint has other parameters.
        """
        load_weights(Path(resume_from_checkpoint), self.encoder_parameters, ENCODER_FILE)
        load_weights(Path(resume_from_checkpoint), self.loss_parameters, LOSS_FILE)

    def _load_best_model(self) -> None:
        """Load the best checkpoint, if there is one; upstream only warns when this fails.

        It lies beside the others, also when the run was moved since it was written.
        """
        if self.state.best_global_step:
            best = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.best_global_step}"
            self._load_from_checkpoint(str(best))


def require_finite(parameters: list[nn.Parameter], where: str) -> None:
    """Raise RunError naming ``where`` when a weight is NaN or infinite."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise RunError(where, "the weights are no longer finite", hint=DIVERGED_HINT)


class CheckpointCallback(TrainerCallback):
    """Callback that marks complete checkpoints, removes old ones, and evaluates the last step.

    All but the newest ``keep`` checkpoints, and the best ones that these name, are removed; None
    keeps all. ``fingerprint``: the run's, which marks a checkpoint. It logs at every checkpoint: a
    resumed run loses the loss summed up since the last log, so without that its curves would differ
    from those of an uninterrupted run.
    """

    def __init__(self, fingerprint: str, keep: int | None):
        self.fingerprint = fingerprint
        self.keep = keep

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Evaluate the last step, which upstream only saves; log evaluations and checkpoints."""
        if state.global_step >= state.max_steps and args.eval_strategy == IntervalStrategy.STEPS:
            control.should_evaluate = True
        self.on_epoch_end(args, state, control)  # the same rule for logs

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log evaluations and checkpoints."""
        control.should_log = control.should_log or control.should_save or control.should_evaluate

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Raise RunError for a NaN as validation score: it cannot choose a checkpoint."""
        score = (metrics or {}).get("eval_sequential_score")
        if score is not None and math.isnan(score):
            where = f"training, step {state.global_step}"
            raise RunError(
                where,
                "the validation score is NaN: all embeddings coincide or are NaN",
                hint=DIVERGED_HINT,
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the checkpoint just written, when every process has written its part.

        Then remove old checkpoints.
        """
        wait_for_all()
        if is_main():
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            mark_complete(checkpoint, self.fingerprint, get_process_count())
            if self.keep is not None:
                remove_old_checkpoints(checkpoint.parent, self.keep)
        wait_for_all()

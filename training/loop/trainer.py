"""SentenceTransformerTrainer over one global batch: NaN checks, loss parameters, token dropout,
checkpoint choice.

A global batch has the rows of one optimiser step, over all processes. Every process draws the same
sequence of global batches and takes its share of each. Accelerate would give whole batches to the
processes in turn. Then a step would mix datasets, no batch sampler (``no_duplicates``) would see
the global batch, and the order of the rows would depend on the number of processes.

Token dropout leaves out a share of each text's tokens at random. In unsupervised SimCSE it makes
the two embeddings of a text differ where an encoder has no dropout: static embeddings, Gemma,
Llama. Deleted words are among the noises of Gao et al. 2021 (table 2) and TSDAE (Wang et al. 2021).
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

    A step of P processes with A backward passes each divides its batch into P * A shares of equal
    size, so the mean of their losses is the mean over the batch. A smaller last batch loses the
    rows that are left over. If it has fewer rows than shares, every share is the whole batch,
    because all processes take part in every step.

    Args:
        batch_sampler: yields each global batch, a list of row indices.
        process: the rank of this process.
        processes: P.
        accumulated: A.
    """

    def __init__(self, batch_sampler: Any, process: int, processes: int, accumulated: int = 1):
        self.batch_sampler = batch_sampler
        self.share_count = processes * accumulated
        self.own_shares = range(process, self.share_count, processes)
        self.batch_size = batch_sampler.batch_size // self.share_count
        self.drop_last = batch_sampler.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the row indices of each share of this process, batch by batch."""
        for batch in self.batch_sampler:
            size = len(batch) // self.share_count
            for share in self.own_shares:
                yield batch[share * size : (share + 1) * size] if size else batch

    def __len__(self) -> int:
        """Return the number of backward passes of this process in an epoch."""
        return len(self.batch_sampler) * len(self.own_shares)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch (from 0), on which the order of the rows depends."""
        self.batch_sampler.set_epoch(epoch)

    def collect_seen(self, steps: int, row_count: int) -> set[int]:
        """Return the indices of the rows that the first ``steps`` steps take, over all processes.

        The batches are drawn again, epoch by epoch, until all ``row_count`` rows of the datasets
        were seen. This changes the epoch that is set, so call this method after the training.
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
    """Return the learning rate at ``step`` (from 0) of ``steps`` as a share of the peak rate.

    The share rises from 1 / ``ratio`` to 1 at step cut = floor(steps * cut_fraction), then falls to
    1 / ``ratio`` (Howard and Ruder 2018, equation 3). In the paper the fall has
    cut * (1 / cut_fraction - 1) steps, so the rate ends below 1 / ``ratio`` when
    steps * cut_fraction is not an integer. Here the fall has steps - cut steps. After ``steps`` the
    share stays at 1 / ``ratio``. With cut = 0 (few steps) the share only falls.
    """
    cut = math.floor(steps * cut_fraction)
    # The height is 0 at the rate's ends and 1 at its peak.
    height = step / cut if step < cut else max(0.0, 1 - (step - cut) / (steps - cut))
    return (1 + height * (ratio - 1)) / ratio


class TokenDropout:
    """Leave out each token of a batch's texts with probability ``rate``, but never a whole text.

    Special tokens and the prompt are never left out. The draw is a function of ``seed`` and the
    token ids of the batch, so a resumed run draws as an uninterrupted one. Each column has its own
    draw, so two columns with the same text differ.

    Args:
        preprocess: texts → features with ``input_ids``; called at construction with ``PROBES``.
        rate: the probability, 0 to 1.
        seed: the run's seed.
        pad: the id of padding tokens.
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
        # The probes share only special tokens and the prompt, at their beginning and end.
        probe_ids = [_get_text_ids(preprocess([probe])) for probe in PROBES]
        self.prefix_length = _count_common_start(probe_ids)
        self.suffix_length = _count_common_start([ids[::-1] for ids in probe_ids])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a collator's batch with fewer tokens.

        The batch has ``COLUMN_input_ids`` for each column; all tensors are on the CPU. The ids of a
        transformer are (texts, tokens), beside ``COLUMN_attention_mask``. The ids of a static
        encoder are (tokens,) for all texts together, beside ``COLUMN_offsets``.
        """
        # Make a generator that depends on the seed and all ids.
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
        """Shorten the ids (tokens,) of a static encoder's column in ``batch``; adapt its offsets.

        The texts lie one after another in the ids. Offsets (texts,): the index of each text's first
        token. New tensors replace both in the dict ``batch``.
        """
        ids = batch[column + IDS_SUFFIX]
        offsets = batch[f"{column}_offsets"]
        lengths = torch.diff(offsets, append=torch.tensor([len(ids)]))
        keep = self._draw_mask(lengths, generator)
        new_lengths = torch.zeros_like(lengths).index_add_(
            0, _get_text_indices(lengths), keep.long()
        )
        batch[column + IDS_SUFFIX] = ids[keep]
        batch[f"{column}_offsets"] = new_lengths.cumsum(0) - new_lengths

    def _drop_from_rows(
        self, batch: dict[str, Any], column: str, generator: torch.Generator
    ) -> None:
        """Shorten the tensors (texts, tokens) of a transformer's column in ``batch``.

        They are the ids, the mask and perhaps token types, padded on the right before and after.
        New tensors replace them in the dict ``batch``.
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

        Each token is left out with probability ``rate``, except the prefix and suffix of its text
        (special tokens and prompt). Of the other tokens of a text, the one with the highest draw
        always stays.

        Args:
            lengths: (texts,), the number of tokens of each text; the texts lie one after another.
            generator: the source of the draws, one for each token.
        """
        # For each token, (tokens,): the index of its text, and its position there.
        texts = _get_text_indices(lengths)
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(len(texts)) - starts[texts]
        is_fixed = positions < self.prefix_length
        is_fixed |= positions >= lengths[texts] - self.suffix_length

        # Draws are 0 to 1, fixed tokens get -1; ``highest`` (texts,) is the maximum of each text.
        draws = torch.rand(len(texts), generator=generator).masked_fill(is_fixed, -1.0)
        highest = torch.full((len(lengths),), -1.0).scatter_reduce(0, texts, draws, "amax")
        return is_fixed | (draws >= self.rate) | (draws == highest[texts])


def _get_text_indices(lengths: torch.Tensor) -> torch.Tensor:
    """Return the index of the text that each token belongs to, (tokens,).

    ``lengths``: (texts,), the number of tokens of each text. Lengths 2 and 3 give 0, 0, 1, 1, 1.
    """
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def _get_text_ids(features: dict[str, Any]) -> list[int]:
    """Return the token ids of the only text in ``features``, the result of ``preprocess``."""
    ids = features["input_ids"]
    return list((ids if "offsets" in features else ids[0]).tolist())


def _count_common_start(texts: Sequence[Sequence[int]]) -> int:
    """Count the token ids that all texts begin with; a text is its token ids."""
    count = 0
    for tokens in zip(*texts, strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


@dataclass
class TextCollator(SentenceTransformerDataCollator):
    """Collator of sentence-transformers, with token dropout.

    ``token_dropout`` None: no token is left out. The collator does not warn about the order of
    columns, because the example type orders them.
    """

    token_dropout: TokenDropout | None = None

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch of the rows ``features``: each column's token ids, and the labels."""
        batch: dict[str, Any] = super().__call__(features)
        return batch if self.token_dropout is None else self.token_dropout(batch)

    def maybe_warn_about_column_order(self, column_names: list[str]) -> None:
        """Do nothing; upstream would advise to put NLI's hypothesis first."""


class EncoderTrainer(SentenceTransformerTrainer):
    """SentenceTransformerTrainer over one global batch; checkpoints also hold losses' parameters.

    Args:
        sets: the training data; a stream is the only one.
        losses: dataset name → loss.
        slanted: the learning rate's schedule; None: the schedule of the trainer's arguments.
        first_step: the step of the checkpoint that the run resumes from; 0: a new run.
        kwargs: upstream's arguments, e.g. ``model`` and ``args``.
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
        """Return the loader of this process: its shares of batches of the recipe's size.

        Raises InputError when ``dataloader_drop_last`` drops every batch; a stream is not checked.
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
        """Return a sampler of this process's shares of upstream's batches.

        The arguments are upstream's: all rows, and a batch sampler for each dataset.
        """
        batches = super().get_multi_dataset_batch_sampler(dataset, batch_samplers, *args, **kwargs)
        accumulated = self.args.gradient_accumulation_steps
        self.batches = SharedBatches(batches, get_process_index(), get_process_count(), accumulated)
        return self.batches

    def count_seen_rows(self) -> int | None:
        """Count the distinct rows of the steps so far in each dataset; return the sum.

        Returns None for a stream. Call it after the training, because it changes the sampler's
        epoch.
        """
        if not isinstance(self.train_dataset, DatasetDict):
            return None
        sizes = [len(rows) for rows in self.train_dataset.values()]
        all_numbers = self.batches.collect_seen(self.state.global_step, sum(sizes))

        # The sampler's indices run through all datasets; ``first`` is the index of a first row.
        first = 0
        count = 0
        for rows in self.train_dataset.values():
            end = first + len(rows)
            numbers = [number - first for number in all_numbers if first <= number < end]
            count += count_distinct_rows(rows, numbers)
            first = end
        return count

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the learning rate's schedule; make it at the first call.

        It is the recipe's slanted triangle, else the schedule of the trainer's arguments.
        ``optimizer`` None: the trainer's.
        """
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
        """Clip the norm of the gradient of encoder and losses to ``max_grad_norm``, in place.

        Averages the losses' gradients over all processes first. Returns the norm before the
        clipping.
        """
        self._average_loss_gradients()
        parameters = [*model.parameters(), *self.loss_parameters.values()]
        return self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of the gradient, as upstream does.

        ``grad_norm``: the norm that ``_clip_grad_norm`` returned; None: it was not called, so the
        losses' gradients are averaged over all processes here.
        """
        if grad_norm is None:
            self._average_loss_gradients()
        return super()._get_grad_norm(model, grad_norm)

    def _average_loss_gradients(self) -> None:
        """Average the gradients of the losses' own parameters over all processes, in place.

        DistributedDataParallel averages those of the encoder alone, which it wraps.
        """
        if get_process_count() == 1:
            return
        for parameter in self.loss_parameters.values():
            if parameter.grad is not None:  # the step's batch is of this loss's dataset
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= get_process_count()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log ``logs``; raise RunError instead if the loss or gradient norm is NaN or infinite.

        The loss is the mean over the steps since the last log, so it shows a NaN of any of them.
        With fp16 the norm is not checked. ``start_time`` is upstream's argument.
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
        """Do nothing; upstream would collect training sentences for its own model card."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the trained parameters of encoder and losses to the checkpoint ``output_dir``.

        Every process calls this method; the main one writes, and all wait for it. ``output_dir``
        None: the trainer's output folder. ``state_dict`` is upstream's argument and not used.
        Raises RunError for weights that are not finite.
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

        ``model`` is upstream's argument and not used. Raises RunError when the checkpoint has other
        parameters.
        """
        load_weights(Path(resume_from_checkpoint), self.encoder_parameters, ENCODER_FILE)
        load_weights(Path(resume_from_checkpoint), self.loss_parameters, LOSS_FILE)

    def _load_best_model(self) -> None:
        """Load the checkpoint with the best validation score; do nothing without one.

        The checkpoint is found by its step, also in a run that was moved. Raises RunError when it
        has other parameters, where upstream only warns.
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

    The newest ``keep`` checkpoints stay, and the best checkpoints that their states name; ``keep``
    None: all stay. ``fingerprint``: the run's fingerprint, which marks a checkpoint. The callback
    makes the trainer log at every checkpoint. A resumed run loses the losses summed since the last
    log; with a log at the checkpoint its curves equal those of an uninterrupted run.
    """

    def __init__(self, fingerprint: str, keep: int | None):
        self.fingerprint = fingerprint
        self.keep = keep

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the trainer log at evaluations and checkpoints.

        Make it evaluate the last step, too, if it evaluates by steps: upstream only saves there.
        """
        if state.global_step >= state.max_steps and args.eval_strategy == IntervalStrategy.STEPS:
            control.should_evaluate = True
        self.on_epoch_end(args, state, control)  # logs follow one rule after steps and epochs

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the trainer log at evaluations and checkpoints."""
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
        """Mark the checkpoint of this step as complete, then remove old checkpoints.

        Before that all processes wait until each has written its part; afterwards they wait until
        the main process has finished.
        """
        wait_for_all()
        if is_main():
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            mark_complete(checkpoint, self.fingerprint, get_process_count())
            if self.keep is not None:
                remove_old_checkpoints(checkpoint.parent, self.keep)
        wait_for_all()

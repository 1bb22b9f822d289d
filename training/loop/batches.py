"""The recipe's batch over several processes: every step is one batch of the recipe, cut evenly.

Accelerate would hand whole batches to processes in turn. With several datasets the processes of one step would then be
on different ones, so a loss that gathers in-batch negatives would mix them; no batch sampler would see the whole batch
(``no_duplicates`` would not hold in it); and the order of the rows would depend on the number of processes. Here every
process draws the same sequence of whole batches and takes its share of each. So it is with gradient accumulation.
"""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from datasets import IterableDataset
from torch.utils.data import BatchSampler, DataLoader


class SharedBatches(BatchSampler):
    """Batch sampler of one process: its share of every global batch, one for each of ``accumulated`` backward passes.

    Shares are of one size, so that means over them are means over the batch and all processes take part in every step.
    From a last, smaller batch up to ``processes`` * ``accumulated`` - 1 rows are left out; one with fewer rows than
    shares is whole in each, since no process may stay away.
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


def shared_loader(loader: DataLoader[Any], device: torch.device, process: int, processes: int) -> DataLoader[Any]:
    """``loader`` on ``device``, restartable at any batch. Batches of a stream are cut here: every process reads it all
    and keeps its rows; others come as shares from ``SharedBatches`` already.
    """
    streamed = isinstance(loader.dataset, IterableDataset)
    parts = (processes, process) if streamed else (1, 0)
    return prepare_data_loader(loader, device, *parts, split_batches=True, put_on_device=True, dispatch_batches=False)

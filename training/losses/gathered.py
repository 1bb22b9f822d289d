"""Losses that compare every two rows of a batch, over the batch of all processes; upstream compares those of one.

Every process computes the loss of the whole batch, of which it has a share of one size. Gradients of the gathered
embeddings are summed over processes on their way back, and the trainer averages those of the weights, which makes the
gradient of one process on the batch.
"""

from typing import Any

import torch
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad


class _Gathered:
    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: Any) -> Any:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and (rows,) scores."""
        gathered = [all_gather_with_grad(side) for side in embeddings]
        return super().compute_loss_from_embeddings(gathered, all_gather(labels))  # type: ignore[misc]


class GatheredCoSENTLoss(_Gathered, losses.CoSENTLoss):
    """CoSENT over the batch of all processes."""


class GatheredAnglELoss(_Gathered, losses.AnglELoss):
    """AnglE over the batch of all processes."""

"""Losses that compare every two rows of a batch, over the batch of all processes; upstream compares those of one.

Every process computes the loss of the whole batch, of which it has a share of one size. Gradients of the gathered
embeddings are summed over processes on their way back, and the trainer averages those of the weights, which makes the
gradient of one process on the batch.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad

from training.losses.weighted import WeightedCoSENTLoss


class _Gathered:
    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: Any) -> Any:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and its scores (and weights)."""
        gathered = [all_gather_with_grad(side) for side in embeddings]
        return super().compute_loss_from_embeddings(gathered, all_gather(labels))  # type: ignore[misc]


class GatheredCoSENTLoss(_Gathered, losses.CoSENTLoss):
    """CoSENT over the batch of all processes."""


class GatheredAnglELoss(_Gathered, losses.AnglELoss):
    """AnglE over the batch of all processes."""


class GatheredWeightedCoSENTLoss(_Gathered, WeightedCoSENTLoss):
    """CoSENT with weights over the batch of all processes."""


class GatheredCachedGISTEmbedLoss(losses.CachedGISTEmbedLoss):
    """Cached GISTEmbed over the batch of all processes; upstream compares anchors with those of their own process."""

    def calculate_loss(
        self, reps: list[list[torch.Tensor]], reps_guided: list[list[torch.Tensor]], *, with_backward: bool = False
    ) -> torch.Tensor:
        """The loss, a scalar, of this process's embeddings and the guide's, in mini-batches of every column."""
        gathered = [[all_gather_with_grad(torch.cat(part))] for part in reps]
        guided = [[all_gather(torch.cat(part))] for part in reps_guided]
        return super().calculate_loss(gathered, guided, with_backward=with_backward)


class GatheredGISTEmbedLoss(GatheredCachedGISTEmbedLoss):
    """GISTEmbed over the batch of all processes: the cached loss, whose mini-batch is the whole share of a process.

    Upstream's own has its objective and its reading of texts in one function, so nothing can be gathered between them.
    """

    def __init__(self, model: SentenceTransformer, guide: SentenceTransformer, **arguments: Any):
        super().__init__(model, guide, mini_batch_size=1 << 30, **arguments)

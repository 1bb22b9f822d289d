"""CoSENT and AnglE over the pairs of all processes: upstream compares the pairs of one process only.

Every process computes the loss of the whole batch. Gradients of the gathered embeddings are summed over processes on
their way back, and the trainer averages those of the weights, which makes the gradient of one process on the batch.
"""

import torch
from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad


class GatheredCoSENTLoss(CoSENTLoss):
    """CoSENT's comparison of every two pairs in the batch of all processes, whose shares are of one size."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and (rows,) scores."""
        return super().compute_loss_from_embeddings(*_everyones(embeddings, labels))


class GatheredAnglELoss(AnglELoss):
    """AnglE's comparison of every two pairs in the batch of all processes, whose shares are of one size."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: torch.Tensor | None) -> torch.Tensor:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and (rows,) scores."""
        assert labels is not None  # the sts form has scores
        return super().compute_loss_from_embeddings(*_everyones(embeddings, labels))


def _everyones(embeddings: list[torch.Tensor], labels: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [all_gather_with_grad(side) for side in embeddings], all_gather(labels)

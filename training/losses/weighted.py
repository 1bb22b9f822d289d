"""Losses with a weight for every row, whose mean over the dataset is 1 (``training.data.made_rows.weighted``).

Each is a mean or a sum over rows, which the weights multiply. They are divided by the mean of the dataset, not of a
batch: so batches may be cut for processes and accumulated steps in any way, and equal weights change nothing.
"""

from typing import Any

import torch
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import cos_sim
from sentence_transformers.util.distributed import all_gather_with_grad, get_rank
from torch import Tensor
from torch.nn import functional


class WeightedCosineSimilarityLoss(losses.CosineSimilarityLoss):
    """The mean of weight · (cosine - score)²."""

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """The loss, a scalar, of two (rows, dimensions) embeddings and of (rows, 2) scores and weights."""
        scores, weights = labels.unbind(1)
        return (weights * (torch.cosine_similarity(embeddings[0], embeddings[1]) - scores).square()).mean()


class WeightedCoSENTLoss(losses.CoSENTLoss):
    """log(1 + Σ w_i · w_j · exp(scale · (cos_j - cos_i))) over all rows i, j with score_i > score_j.

    CoSENT has a term for every two rows (Huang et al. 2024), so a term counts as much as both of them.
    """

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """The loss, a scalar, of two (rows, dimensions) embeddings and of (rows, 2) scores and weights."""
        scores, weights = labels.unbind(1)
        cosines = self.similarity_fct(*embeddings)
        cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32)) * self.scale
        both = weights[:, None] * weights[None, :]
        counted = (scores[:, None] > scores[None, :]) & (both > 0)
        terms = (cosines[None, :] - cosines[:, None])[counted] + both[counted].log()
        return torch.cat([terms.new_zeros(1), terms]).logsumexp(0)


def weighted_info_nce(queries: Tensor, documents: Tensor, own: Tensor, weights: Tensor, scale: float) -> Tensor:
    """Σ weight · -log softmax(scale · cosine) of the own document, over queries; a scalar.

    queries: (rows, dimensions). documents: (all, dimensions). own: (rows,) indices into documents. weights: (rows,).
    """
    scores = cos_sim(queries, documents) * scale
    return (weights * functional.cross_entropy(scores, own, reduction="none")).sum()


class WeightedMultipleNegativesRankingLoss(losses.MultipleNegativesRankingLoss):
    """InfoNCE's mean over anchors, each times its weight; all rows are negatives of the others, whatever they weigh."""

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """The loss, a scalar, of two or more (rows, dimensions) embeddings, anchors first, and (rows,) weights."""
        queries, documents, own = _compared(embeddings, self.gather_across_devices)
        return weighted_info_nce(queries, documents, own, labels, self.scale) / len(queries)


class WeightedCachedMultipleNegativesRankingLoss(losses.CachedMultipleNegativesRankingLoss):
    """The same with cached gradients (Gao et al. 2021)."""

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of embeddings in mini-batches, gone back through for ``mini_batch_size`` anchors at a time."""
        assert labels is not None
        queries, documents, own = _compared([torch.cat(part) for part in reps], self.gather_across_devices)
        total: Any = 0.0
        for rows in torch.arange(len(queries), device=queries.device).split(self.mini_batch_size):
            part = weighted_info_nce(queries[rows], documents, own[rows], labels[rows], self.scale) / len(queries)
            if with_backward:
                part.backward()
            total = total + part.detach() if with_backward else total + part
        return total


def _compared(embeddings: list[Tensor], gathered: bool) -> tuple[Tensor, Tensor, Tensor]:
    """This process's anchors, the positives and negatives of all processes, and which of them is each anchor's own."""
    queries, documents = embeddings[0], embeddings[1:]
    if gathered:
        documents = [all_gather_with_grad(side) for side in documents]
    own = torch.arange(len(queries), device=queries.device) + (get_rank() * len(queries) if gathered else 0)
    return queries, torch.cat(documents), own

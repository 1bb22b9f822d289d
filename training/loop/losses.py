"""Losses around an encoder: upstream's, DeCLUTR's, and those over the batch of all processes.

DeCLUTR (Giorgi et al. 2021, sections 3.1 and 3.3) is NT-Xent over spans and masked language
modelling.

In-batch losses compare every two rows; upstream's compare those of one process. Here every process
computes the loss of the whole batch. Gradients of gathered embeddings are summed over processes,
and the trainer averages those of the weights: the gradient of one process on the batch.
"""

from typing import Any

import torch
import torch.distributed
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad, get_world_size
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from sts_dino.hub.contract.schema import NLI_LABELS
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import NO_PICKLES, convert_model_errors
from sts_dino.training.data.objectives import LOSSES
from sts_dino.training.encoder.bases import Base

NOT_MASKED = -100  # transformers' target of a token that the model is not asked for


def build_loss(
    name: str,
    arguments: dict[str, Any],
    encoder: SentenceTransformer,
    base: Base,
    processes: int = 1,
    guide: SentenceTransformer | None = None,
) -> nn.Module:
    """Build a loss around ``encoder``; its own parameters are drawn from torch's generator.

    Args:
        name: one of ``LOSSES``.
        arguments: those of the recipe, typed.
        base: the encoder's; DeCLUTR's masked language head is read from it.
        processes: how many share a batch.
        guide: the second encoder of a guided loss, which is frozen.

    Raises InputError when the loss and the encoder, or the arguments, do not go together.
    """
    loss = LOSSES[name]
    arguments = dict(arguments)
    if name == "SoftmaxLoss":
        arguments["embedding_dimension"] = encoder.get_embedding_dimension()
        arguments["num_labels"] = len(NLI_LABELS)
    if name == "DeclutrLoss":
        arguments["head"] = load_head(base)
    if guide is not None:
        arguments["guide"] = guide.requires_grad_(False).eval()
    if processes > 1 and not loss.gathered and "gather_across_devices" in loss.parameters:
        arguments["gather_across_devices"] = True
    try:
        return loss.import_class(processes)(encoder, **arguments)
    except ValueError as error:
        raise InputError(f"datasets: {name}", str(error)) from error


def compute_nt_xent(anchors: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent of anchors (B, D) and positives (B, D): the mean of section 3.1's ℓ.

    Each point is asked for its partner among the 2B - 1 others, by cosine / ``temperature``. The
    paper writes a sum; a mean keeps the balance with the masked language loss.
    """
    points = functional.normalize(torch.cat([anchors, positives]).float(), dim=-1)
    similarity = points @ points.T / temperature
    itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    partner = torch.arange(len(points), device=points.device).roll(len(anchors))
    return functional.cross_entropy(similarity.masked_fill(itself, -torch.inf), partner)


class _UnchangedStates(nn.Module):
    """The module in an encoder's place: it returns its input embeddings as hidden states."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        """Return ``inputs_embeds`` unchanged."""
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class MaskedLanguageHead(nn.Module):
    """Hidden states (M, H) → logits (M, V): any masked language model without its encoder."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        setattr(model, model.base_model_prefix, _UnchangedStates())
        self.model = model

    def share_weights(self, embeddings: nn.Module) -> None:
        """Make the decoder's weights the encoder's input embeddings, if the checkpoint ties them.

        Frozen ones (under an adapter, and of half precision at times) are not shared: the
        decoder's stay frozen, too.
        """
        if not self.model.config.tie_word_embeddings:
            return
        decoder = self.model.get_output_embeddings()
        weight = embeddings.weight
        if isinstance(weight, nn.Parameter) and weight.requires_grad:
            decoder.weight = weight
        else:
            decoder.weight.requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        """Return the architecture's own logits of the states, in float32."""
        return self.model(inputs_embeds=states[None].float()).logits[0]


def load_head(base: Base) -> MaskedLanguageHead:
    """Load the masked language head in the base's own checkpoint, float32.

    Raises InputError when the base has none: random weights would take the encoder along.
    """
    where = f"base: {base.folder}"
    allowed = "a base published with its masked language head, such as distilroberta-base"
    with convert_model_errors(where, "no masked language model can be loaded", allowed=allowed):
        model, loading = AutoModelForMaskedLM.from_pretrained(
            str(base.folder), dtype=torch.float32, output_loading_info=True, **NO_PICKLES
        )
    prefix = f"{model.base_model_prefix}."
    missing = [name for name in loading["missing_keys"] if not name.startswith(prefix)]
    if missing:
        raise InputError(
            where, f"its weights lack the masked language head ({min(missing)})", allowed=allowed
        )
    return MaskedLanguageHead(model)


class DeclutrLoss(nn.Module):
    """Contrastive and masked language loss over ``SpanCollator``'s features, as a dict of parts.

    The anchors are masked and read once; their states give both the embeddings and the masked
    tokens' logits, as in the authors' code. Positives are read whole, and the mean of an anchor's
    positives is its partner. Masks come from torch's CPU generator, whose state a checkpoint holds,
    so a resumed run draws the same.

    ``contrastive_weight`` multiplies NT-Xent. The paper sums the two parts. The authors' code
    gathers the points of W GPUs and, with the paper's ``scale_fix: false``, leaves the gradient at
    1/W of the whole batch's: a weight of 1/W. With ``contrastive_weight`` 0 no positive is read,
    with ``mlm_probability`` 0 anchors are read whole (figure 3).

    With ``gather_across_devices`` the points of all processes are each other's negatives and all
    masked tokens weigh the same. The trainer's mean of gradients (the head's, too) is then that of
    one process on the joined batch. Processes need equally many documents.
    """

    def __init__(
        self,
        encoder: SentenceTransformer,
        head: MaskedLanguageHead,
        temperature: float = 0.05,
        mlm_probability: float = 0.15,
        contrastive_weight: float = 1.0,
        gather_across_devices: bool = False,
    ):
        super().__init__()
        transformer = encoder.transformers_model
        if transformer is None:
            raise InputError(
                "DeclutrLoss",
                "the encoder has no transformer layers",
                allowed="base.modules: transformer",
            )
        if encoder.tokenizer.mask_token is None:
            raise InputError(
                "DeclutrLoss",
                "the encoder's tokenizer has no mask token",
                allowed="a masked language model",
            )
        self.model = encoder  # the trainer puts its wrapped encoder here
        self.head = head
        self.temperature = temperature
        self.contrastive_weight = contrastive_weight
        self.gather_across_devices = gather_across_devices
        self.masker = DataCollatorForLanguageModeling(
            encoder.tokenizer, mlm_probability=mlm_probability
        )
        head.share_weights(transformer.get_input_embeddings())

    def forward(
        self, features: list[dict[str, Tensor]], labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return both parts for anchors (N, A, tokens) and positives (N, A * P, tokens)."""
        anchors, positives = (
            {name: value.flatten(0, 1) for name, value in spans.items()} for spans in features
        )
        ids, targets = self.mask_tokens(anchors["input_ids"], anchors["attention_mask"])
        return self.compute_parts({**anchors, "input_ids": ids}, targets, positives)

    def mask_tokens(self, ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return masked ids and targets, (B, tokens): 80 % masks, 10 % random, 10 % unchanged.

        Padding and special tokens are never chosen (Devlin et al. 2019). It is done in main memory,
        where transformers draws its numbers.
        """
        device = ids.device
        ids = ids.cpu()
        special = torch.isin(ids, torch.tensor(self.masker.tokenizer.all_special_ids))
        special |= attention_mask.cpu() == 0
        masked, targets = self.masker.torch_mask_tokens(ids.clone(), special_tokens_mask=special)
        return masked.to(device), targets.to(device)

    def compute_parts(
        self, anchors: dict[str, Tensor], targets: Tensor, positives: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return both parts for masked anchors (B, tokens), targets, positives (B * P, tokens)."""
        features = self.model(anchors)
        embeddings = features["sentence_embedding"]
        mlm = self._compute_masked_loss(features["token_embeddings"], targets)
        if not self.contrastive_weight:
            return {"mlm": mlm}
        count, size = embeddings.shape
        partners = self.model(positives)["sentence_embedding"].view(count, -1, size).mean(1)
        if self.gather_across_devices:
            embeddings = all_gather_with_grad(embeddings)
            partners = all_gather_with_grad(partners)
        nt_xent = compute_nt_xent(embeddings, partners, self.temperature)
        return {"contrastive": self.contrastive_weight * nt_xent, "mlm": mlm}

    def _compute_masked_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of masked tokens; no other token's logits are computed."""
        chosen = targets != NOT_MASKED
        logits = self.head(states[chosen])
        total = functional.cross_entropy(logits, targets[chosen], reduction="sum")
        count = chosen.sum()
        if self.gather_across_devices and get_world_size() > 1:
            torch.distributed.all_reduce(count)
            total = total * get_world_size()  # the trainer takes the mean over processes
        return total / count.clamp(min=1)  # short spans may have no masked token


class _Gathered:
    """Over the batch of all processes."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: Any) -> Any:
        """Return the loss, a scalar, of this process's (rows, dimensions) embeddings and scores."""
        gathered = [all_gather_with_grad(side) for side in embeddings]
        gathered_labels = all_gather(labels)
        return super().compute_loss_from_embeddings(gathered, gathered_labels)  # type: ignore[misc]


class CorrelationLoss(nn.Module):
    """1 - Pearson's correlation of a batch's cosines and scores.

    The scores are a teacher's cosines. Their scale and zero do not matter, as the encoder keeps its
    own. A batch whose scores or cosines are all equal has the loss 1. Dropout is off: it would only
    be noise in the cosines.
    """

    def __init__(self, encoder: SentenceTransformer):
        super().__init__()
        self.model = encoder

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of pairs, two columns of (B, tokens), with scores ``labels`` (B,)."""
        was_training = self.model.training
        self.model.eval()
        embeddings = [self.model(column)["sentence_embedding"] for column in features]
        self.model.train(was_training)
        return self.compute_loss_from_embeddings(embeddings, labels)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of two sides (B, D) and scores (B,)."""
        first, second = embeddings
        cosines = functional.cosine_similarity(first, second)
        scores = labels.to(cosines.dtype)
        centred = cosines - cosines.mean()
        centred_scores = scores - scores.mean()
        return 1 - functional.cosine_similarity(centred, centred_scores, dim=0)


class GatheredCorrelationLoss(_Gathered, CorrelationLoss):
    """The correlation over the batch of all processes."""


class GatheredCoSENTLoss(_Gathered, losses.CoSENTLoss):
    """CoSENT over the batch of all processes."""


class GatheredAnglELoss(_Gathered, losses.AnglELoss):
    """AnglE over the batch of all processes."""


class GatheredCachedGISTEmbedLoss(losses.CachedGISTEmbedLoss):
    """Cached GISTEmbed over the batch of all processes.

    Upstream compares anchors with those of their own process.
    """

    def calculate_loss(
        self,
        reps: list[list[torch.Tensor]],
        reps_guided: list[list[torch.Tensor]],
        *,
        with_backward: bool = False,
    ) -> torch.Tensor:
        """Return the loss of embeddings and the guide's, in mini-batches of each column."""
        gathered = [[all_gather_with_grad(torch.cat(column))] for column in reps]
        guided = [[all_gather(torch.cat(column))] for column in reps_guided]
        return super().calculate_loss(gathered, guided, with_backward=with_backward)


class GatheredGISTEmbedLoss(GatheredCachedGISTEmbedLoss):
    """GISTEmbed over the batch of all processes: the cached loss with one mini-batch."""

    def __init__(self, model: SentenceTransformer, guide: SentenceTransformer, **arguments: Any):
        super().__init__(model, guide, mini_batch_size=1 << 30, **arguments)

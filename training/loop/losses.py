"""Losses around an encoder: upstream's, DeCLUTR's, and those over the batch of all processes.

DeCLUTR (Giorgi et al. 2021, sections 3.1 and 3.3) is NT-Xent over spans and masked language
modelling.

In-batch losses compare every two rows of a batch; upstream's classes compare the rows of one
process. Here every process computes the loss of the whole batch. Gradients of gathered embeddings
are summed over processes, and the trainer averages the gradients of the weights. The result is the
gradient that one process would compute on the whole batch.

Shapes: B rows or spans, N documents, D dimensions of an embedding, H dimensions of a hidden state,
V ids of the vocabulary.
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

NOT_MASKED = -100  # transformers' target of a token that the model does not predict


def build_loss(
    name: str,
    arguments: dict[str, Any],
    encoder: SentenceTransformer,
    base: Base,
    processes: int = 1,
    guide: SentenceTransformer | None = None,
) -> nn.Module:
    """Build a loss around ``encoder``; the loss's own parameters are drawn from torch's generator.

    Args:
        name: one of ``LOSSES``.
        arguments: the recipe's ``loss_arguments``, name → typed value.
        encoder: the encoder that is trained.
        base: the encoder's base; DeCLUTR's masked language head is read from it.
        processes: the number of processes that share a batch.
        guide: the second encoder of a guided loss, frozen in place; None: the loss has no guide.

    Raises InputError when the loss does not fit the encoder, its base or the arguments.
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
    # Without a ``Gathered`` class, an option of the loss's class gathers the batch.
    if processes > 1 and not loss.gathered and "gather_across_devices" in loss.parameters:
        arguments["gather_across_devices"] = True
    try:
        return loss.import_class(processes)(encoder, **arguments)
    except ValueError as error:
        raise InputError(f"datasets: {name}", str(error)) from error


def compute_nt_xent(anchors: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent of anchors (B, D) and positives (B, D), a scalar: the mean of section 3.1's ℓ.

    Row i of the positives is the partner of anchor i. NT-Xent is the mean cross-entropy of each of
    the 2B points' partner among the other 2B - 1 points, with cosine / ``temperature`` as logits.
    The paper writes a sum; a mean keeps the balance with the masked language loss.
    """
    points = functional.normalize(torch.cat([anchors, positives]).float(), dim=-1)
    logits = points @ points.T / temperature
    is_itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    partners = torch.arange(len(points), device=points.device).roll(len(anchors))
    return functional.cross_entropy(logits.masked_fill(is_itself, -torch.inf), partners)


class _UnchangedStates(nn.Module):
    """Replaces the layers of a masked language model: returns its input as hidden states."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        """Return ``inputs_embeds`` unchanged."""
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class MaskedLanguageHead(nn.Module):
    """The head of any masked language model: hidden states of M tokens (M, H) → logits (M, V)."""

    def __init__(self, model: PreTrainedModel):
        """Take the head of ``model``, and remove the layers below it from ``model`` itself."""
        super().__init__()
        setattr(model, model.base_model_prefix, _UnchangedStates())
        self.model = model

    def share_weights(self, embeddings: nn.Module) -> None:
        """Tie the output layer to the encoder's input embeddings, if the checkpoint ties them.

        Frozen embeddings (under an adapter, sometimes in half precision) are not shared; the output
        layer is frozen instead. ``embeddings``: the encoder's input embedding layer.
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
        """Return the logits (M, V) of hidden states (M, H), computed in float32."""
        return self.model(inputs_embeds=states[None].float()).logits[0]


def load_head(base: Base) -> MaskedLanguageHead:
    """Load the masked language head of the base's own checkpoint, in float32.

    Raises InputError when the checkpoint cannot be loaded as a masked language model, or lacks
    weights of the head: training a random head would damage the encoder.
    """
    where = f"base: {base.folder}"
    allowed = "a base published with its masked language head, such as distilroberta-base"
    with convert_model_errors(where, "no masked language model can be loaded", allowed=allowed):
        model, loading = AutoModelForMaskedLM.from_pretrained(
            str(base.folder), dtype=torch.float32, output_loading_info=True, **NO_PICKLES
        )
    # Layers below the head may be missing: ``MaskedLanguageHead`` removes them.
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
    tokens' logits, as in the authors' code. Positives are read without masks, and the mean of an
    anchor's positives is its partner. Masks come from torch's CPU generator, whose state a
    checkpoint holds, so a resumed run draws the same masks.

    ``contrastive_weight`` multiplies NT-Xent. The paper sums the two parts. The authors' code
    gathers the points of W GPUs. With the paper's ``scale_fix: false`` the gradient is 1/W of the
    whole batch's, which is a weight of 1/W here. With ``contrastive_weight`` 0 no positive is read.
    With ``mlm_probability`` 0 anchors are read without masks (figure 3).

    With ``gather_across_devices`` the points of all processes are each other's negatives, and all
    masked tokens weigh the same. The trainer's mean of gradients (the head's, too) is then that of
    one process on the joined batch. Every process needs the same number of documents.

    The encoder has transformer layers. Raises InputError when its tokenizer has no mask token.
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
        if encoder.tokenizer.mask_token is None:
            raise InputError(
                "DeclutrLoss",
                "the encoder's tokenizer has no mask token",
                allowed="a masked language model",
            )
        transformer: Any = encoder.transformers_model
        self.model = encoder  # the trainer replaces it by the encoder that it wraps
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
        """Return part → loss, a scalar; the parts are those of ``compute_parts``.

        ``features``: the features of anchors (N, A, tokens), then of positives (N, A * P, tokens):
        A anchors of each document, P positives of each anchor. The anchors are masked here.
        ``labels``: upstream's argument; spans have none.
        """
        # Flatten the documents: N * A anchors, N * A * P positives.
        flat_features = []
        for spans in features:
            flat_features.append({name: value.flatten(0, 1) for name, value in spans.items()})
        anchors, positives = flat_features
        ids, targets = self.mask_tokens(anchors["input_ids"], anchors["attention_mask"])
        return self.compute_parts({**anchors, "input_ids": ids}, targets, positives)

    def mask_tokens(self, ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Choose ids (B, tokens) to predict; return the ids with masks and the targets (B, tokens).

        Of the chosen ids 80 % become the mask, 10 % a random id, 10 % stay (Devlin et al. 2019).
        Padding and special tokens are never chosen. The target of an id that is not chosen is
        ``NOT_MASKED``. The draw is on the CPU, because a checkpoint holds its generator's state.
        """
        cpu_ids = ids.cpu()
        is_special = torch.isin(cpu_ids, torch.tensor(self.masker.tokenizer.all_special_ids))
        is_special |= attention_mask.cpu() == 0
        masked, targets = self.masker.torch_mask_tokens(
            cpu_ids.clone(), special_tokens_mask=is_special
        )
        return masked.to(ids.device), targets.to(ids.device)

    def compute_parts(
        self, anchors: dict[str, Tensor], targets: Tensor, positives: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return part → loss, a scalar: mlm and, unless ``contrastive_weight`` is 0, contrastive.

        Args:
            anchors: the features of masked anchors, (B, tokens).
            targets: the ids to predict, (B, tokens), as ``mask_tokens`` returns them.
            positives: the features of the positives, (B * P, tokens), P of each anchor in turn.
        """
        features = self.model(anchors)
        embeddings = features["sentence_embedding"]
        mlm = self._compute_masked_loss(features["token_embeddings"], targets)
        if not self.contrastive_weight:
            return {"mlm": mlm}
        # The partner of an anchor is the mean of its positives, (B, D).
        anchor_count, dimensions = embeddings.shape
        positive_embeddings = self.model(positives)["sentence_embedding"]
        partners = positive_embeddings.view(anchor_count, -1, dimensions).mean(1)
        if self.gather_across_devices:
            embeddings = all_gather_with_grad(embeddings)
            partners = all_gather_with_grad(partners)
        nt_xent = compute_nt_xent(embeddings, partners, self.temperature)
        return {"contrastive": self.contrastive_weight * nt_xent, "mlm": mlm}

    def _compute_masked_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of this process's masked tokens, a scalar; 0 without any.

        With ``gather_across_devices`` the value is scaled: its mean over processes is the mean over
        the masked tokens of all processes. ``states``: (B, tokens, H), ``targets``: (B, tokens).
        Only the logits of masked tokens are computed.
        """
        is_masked = targets != NOT_MASKED
        logits = self.head(states[is_masked])
        total = functional.cross_entropy(logits, targets[is_masked], reduction="sum")
        count = is_masked.sum()
        if self.gather_across_devices and get_world_size() > 1:
            torch.distributed.all_reduce(count)
            total = total * get_world_size()  # the trainer takes the mean over processes
        return total / count.clamp(min=1)  # short spans may have no masked token


class _Gathered:
    """Mixin that computes a loss of scored pairs over the batch of all processes."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: Any) -> Any:
        """Return the loss over the batch of all processes, a scalar.

        ``embeddings``: both sentences' embeddings of this process's rows, each (B, D). ``labels``:
        their scores (B,).
        """
        gathered = [all_gather_with_grad(side) for side in embeddings]
        gathered_labels = all_gather(labels)
        return super().compute_loss_from_embeddings(gathered, gathered_labels)  # type: ignore[misc]


class CorrelationLoss(nn.Module):
    """1 - Pearson's correlation of a batch's cosines and scores.

    The scores are a teacher's cosines. The loss does not depend on their scale and offset, so the
    encoder keeps its own range of cosines. A batch whose scores or cosines are all equal has
    the loss 1. Dropout is off, because it would only add noise to the cosines.
    """

    def __init__(self, encoder: SentenceTransformer):
        super().__init__()
        self.model = encoder

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of B pairs, a scalar.

        ``features``: the features of both sentences, each (B, tokens). ``labels``: scores (B,).
        """
        was_training = self.model.training
        self.model.eval()  # no dropout, yet with gradients
        embeddings = [self.model(column)["sentence_embedding"] for column in features]
        self.model.train(was_training)
        return self.compute_loss_from_embeddings(embeddings, labels)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of two embeddings (B, D) of B pairs and their scores (B,), a scalar."""
        first, second = embeddings
        cosines = functional.cosine_similarity(first, second)
        scores = labels.to(cosines.dtype)
        # Pearson's correlation is the cosine of the centred values.
        centred_cosines = cosines - cosines.mean()
        centred_scores = scores - scores.mean()
        return 1 - functional.cosine_similarity(centred_cosines, centred_scores, dim=0)


class GatheredCorrelationLoss(_Gathered, CorrelationLoss):
    """The correlation over the batch of all processes."""


class GatheredCoSENTLoss(_Gathered, losses.CoSENTLoss):
    """CoSENT over the batch of all processes."""


class GatheredAnglELoss(_Gathered, losses.AnglELoss):
    """AnglE over the batch of all processes."""


class GatheredCachedGISTEmbedLoss(losses.CachedGISTEmbedLoss):
    """Cached GISTEmbed over the batch of all processes.

    Upstream compares an anchor with the anchors of its own process alone.
    """

    def calculate_loss(
        self,
        reps: list[list[torch.Tensor]],
        reps_guided: list[list[torch.Tensor]],
        *,
        with_backward: bool = False,
    ) -> torch.Tensor:
        """Return the loss over the batch of all processes, a scalar.

        ``reps``: the encoder's embeddings of this process's rows: for each column, a list of
        mini-batches (rows, D). ``reps_guided``: the guide's embeddings in the same layout.
        ``with_backward``: whether upstream computes gradients mini-batch by mini-batch.
        """
        gathered = [[all_gather_with_grad(torch.cat(column))] for column in reps]
        guided = [[all_gather(torch.cat(column))] for column in reps_guided]
        return super().calculate_loss(gathered, guided, with_backward=with_backward)


class GatheredGISTEmbedLoss(GatheredCachedGISTEmbedLoss):
    """GISTEmbed over the batch of all processes: the cached loss with one mini-batch."""

    def __init__(self, model: SentenceTransformer, guide: SentenceTransformer, **arguments: Any):
        """Build the loss with a mini-batch that is larger than any batch."""
        super().__init__(model, guide, mini_batch_size=1 << 30, **arguments)

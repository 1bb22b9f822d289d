"""Losses of our own: DeCLUTR's objective, and in-batch losses over the batch of all processes.

DeCLUTR (Giorgi et al. 2021, sections 3.1 and 3.3) is NT-Xent over spans and masked language modelling.

In-batch losses compare every two rows; upstream's compare those of one process. Here every process computes the loss of
the whole batch. Gradients of gathered embeddings are summed over processes, and the trainer averages those of the
weights: the gradient of one process on the batch.
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

from hub.errors import InputError
from hub.untrusted import NO_PICKLES, reading_model
from training.encoder.bases import Base

NOT_MASKED = -100  # transformers' target of a token that the model is not asked for


def nt_xent(anchors: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """NT-Xent of anchors (B, D) and their positives (B, D): section 3.1's ℓ, averaged over all 2B points.

    Each point is asked for its partner among the 2B - 1 others, by cosine / ``temperature``. The paper writes a sum; a
    mean keeps the balance with the masked language loss.
    """
    points = functional.normalize(torch.cat([anchors, positives]).float(), dim=-1)
    similarity = points @ points.T / temperature
    itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    partner = torch.arange(len(points), device=points.device).roll(len(anchors))
    return functional.cross_entropy(similarity.masked_fill(itself, -torch.inf), partner)


class _GivenStates(nn.Module):
    """Stands in an encoder's place and hands through the states that it is given as input embeddings."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class MaskedLanguageHead(nn.Module):
    """Hidden states (M, H) → logits (M, V): a masked language model of any architecture without its encoder."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        setattr(model, model.base_model_prefix, _GivenStates())
        self.model = model

    def tie(self, embeddings: nn.Module) -> None:
        """Make the decoder's weights those of the encoder's input embeddings, where the checkpoint has them tied.

        Frozen ones (under an adapter, and of half precision at times) are not shared: the decoder's stay frozen, too.
        """
        if not self.model.config.tie_word_embeddings:
            return
        decoder, weight = self.model.get_output_embeddings(), embeddings.weight
        if isinstance(weight, nn.Parameter) and weight.requires_grad:
            decoder.weight = weight
        else:
            decoder.weight.requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        """The architecture's own computation, in float32."""
        return self.model(inputs_embeds=states[None].float()).logits[0]


def load_head(base: Base) -> MaskedLanguageHead:
    """The masked language head in the base's own checkpoint, float32.

    Raises InputError when the base has none: random weights would take the encoder along.
    """
    place = f"base: {base.folder}"
    allowed = "a base published with its masked language head, such as distilroberta-base"
    with reading_model(place, "no masked language model can be loaded", allowed=allowed):
        model, loading = AutoModelForMaskedLM.from_pretrained(
            str(base.folder), dtype=torch.float32, output_loading_info=True, **NO_PICKLES
        )
    missing = [name for name in loading["missing_keys"] if not name.startswith(f"{model.base_model_prefix}.")]
    if missing:
        raise InputError(place, f"its weights lack the masked language head ({min(missing)})", allowed=allowed)
    return MaskedLanguageHead(model)


class DeclutrLoss(nn.Module):
    """L = contrastive + masked language loss over the features of ``SpanCollator``, returned as a dict of its parts.

    The anchors are masked and read once; their states give both the embeddings and the masked tokens' logits, as in the
    authors' code. Positives are read whole, and the mean of an anchor's positives is its partner. Masks come from
    torch's CPU generator, whose state a checkpoint holds, so a resumed run draws the same.

    ``contrastive_weight`` multiplies NT-Xent. The paper sums the two parts. The authors' code gathers the points of W
    GPUs and, with the paper's ``scale_fix: false``, leaves the gradient at 1/W of the whole batch's: a weight of 1/W.
    With ``contrastive_weight`` 0 no positive is read, with ``mlm_probability`` 0 anchors are read whole (figure 3).

    With ``gather_across_devices`` the points of all processes are each other's negatives and all masked tokens weigh
    the same. The trainer's mean of gradients (the head's, too) is then that of one process on the joined batch.
    Processes need equally many documents.
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
        place = "DeclutrLoss"
        transformer = encoder.transformers_model
        if transformer is None:
            raise InputError(place, "the encoder has no transformer layers", allowed="base.modules: transformer")
        if encoder.tokenizer.mask_token is None:
            raise InputError(place, "the encoder's tokenizer has no mask token", allowed="a masked language model")
        self.model = encoder  # the trainer puts its wrapped encoder here
        self.head = head
        self.temperature = temperature
        self.contrastive_weight = contrastive_weight
        self.gather_across_devices = gather_across_devices
        self.masker = DataCollatorForLanguageModeling(encoder.tokenizer, mlm_probability=mlm_probability)
        head.tie(transformer.get_input_embeddings())

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor | None = None) -> dict[str, Tensor]:
        """Both parts for anchors (N, A, tokens) and positives (N, A * P, tokens); ``labels`` are not used."""
        anchors, positives = ({name: value.flatten(0, 1) for name, value in spans.items()} for spans in features)
        ids, targets = self.mask(anchors["input_ids"], anchors["attention_mask"])
        return self.parts({**anchors, "input_ids": ids}, targets, positives)

    def mask(self, ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Masked ids and targets, (B, tokens): 80 % masks, 10 % random tokens, 10 % as they are (Devlin et al. 2019).

        Padding and special tokens are never chosen. It is done in main memory, where transformers draws its numbers.
        """
        device, ids = ids.device, ids.cpu()
        special = torch.isin(ids, torch.tensor(self.masker.tokenizer.all_special_ids)) | (attention_mask.cpu() == 0)
        masked, targets = self.masker.torch_mask_tokens(ids.clone(), special_tokens_mask=special)
        return masked.to(device), targets.to(device)

    def parts(self, anchors: dict[str, Tensor], targets: Tensor, positives: dict[str, Tensor]) -> dict[str, Tensor]:
        """Both parts for masked anchors (B, tokens), their targets, and positives (B * P, tokens)."""
        read = self.model(anchors)
        mlm = self._masked_language_loss(read["token_embeddings"], targets)
        if not self.contrastive_weight:
            return {"mlm": mlm}
        count, size = read["sentence_embedding"].shape
        partners = self.model(positives)["sentence_embedding"].view(count, -1, size).mean(1)
        points = [read["sentence_embedding"], partners]
        if self.gather_across_devices:
            points = [all_gather_with_grad(part) for part in points]
        return {"contrastive": self.contrastive_weight * nt_xent(points[0], points[1], self.temperature), "mlm": mlm}

    def _masked_language_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, the mean over masked tokens; logits of the others are not computed, being most of the cost."""
        chosen = targets != NOT_MASKED
        total = functional.cross_entropy(self.head(states[chosen]), targets[chosen], reduction="sum")
        count = chosen.sum()
        if self.gather_across_devices and get_world_size() > 1:
            torch.distributed.all_reduce(count)
            total = total * get_world_size()  # the trainer takes the mean over processes
        return total / count.clamp(min=1)  # short spans may have no masked token


class _Gathered:
    """Over the batch of all processes."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: Any) -> Any:
        """The loss, a scalar, of this process's (rows, dimensions) embeddings and its scores."""
        gathered = [all_gather_with_grad(side) for side in embeddings]
        return super().compute_loss_from_embeddings(gathered, all_gather(labels))  # type: ignore[misc]


class GatheredCoSENTLoss(_Gathered, losses.CoSENTLoss):
    """CoSENT over the batch of all processes."""


class GatheredAnglELoss(_Gathered, losses.AnglELoss):
    """AnglE over the batch of all processes."""


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
    """GISTEmbed over the batch of all processes: the cached loss, whose mini-batch is the whole share of a process."""

    def __init__(self, model: SentenceTransformer, guide: SentenceTransformer, **arguments: Any):
        super().__init__(model, guide, mini_batch_size=1 << 30, **arguments)

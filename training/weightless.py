"""The student as its architecture alone: built from the base's config, its parameters without numbers."""

from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from hub.model_folder import NO_CODE, reading_model
from hub.recipe import ModelRecipe
from training.adapters import attach
from training.bases import Base
from training.declutr import MaskedLanguageHead
from training.models import without_pooler


class Weightless(nn.Module):
    """Texts of one length → sentence embeddings, as the student of a recipe computes them.

    ``head``: DeCLUTR's masked-language-model head over hidden states, if one is trained.
    """

    def __init__(self, layers: nn.Module, pooling: str, head: MaskedLanguageHead | None = None):
        super().__init__()
        self.transformers_model: Any = layers  # the name that sentence-transformers has for it
        self.dimensions = int(layers.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.pooling = Pooling(self.dimensions, pooling)
        self.head = head

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (rows, length) → embeddings (rows, dimensions), hidden states (rows, length, dimensions)."""
        mask = torch.ones_like(ids)
        hidden = self.transformers_model(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.pooling({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"], hidden


class WeightlessStatic(nn.Module):
    """The mean of token embeddings: modules ``static``."""

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self.embedding = embedding
        self.dimensions = embedding.embedding_dim
        self.head = None

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (rows, length) → embeddings (rows, dimensions), twice: there are no other hidden states."""
        embeddings = functional.embedding_bag(ids, self.embedding.weight, mode="mean")
        return embeddings, embeddings


def build_weightless(
    recipe: ModelRecipe, base: Base, arguments: SentenceTransformerTrainingArguments
) -> Weightless | WeightlessStatic:
    """The student of ``recipe`` on the meta device, in training mode, its adapter and checkpointing in place.

    A quantized base stands in the dtype that its layers compute in. Raises InputError for a config that transformers
    does not know (or not as a masked language model, for documents), or layers that the base does not have.
    """
    with torch.device("meta"):
        if recipe.base.modules == "static":
            return WeightlessStatic(_architecture(recipe, base)[0].get_input_embeddings())
        layers, head = _architecture(recipe, base)
        student = Weightless(layers, recipe.base.pooling, head)
        if recipe.base.quantization:
            _widen_small_parameters(layers)
        if recipe.lora is not None:
            attach(cast(Any, student), recipe.lora)
        if arguments.activation_checkpointing:  # behind the adapter: its inputs are asked for gradients then
            layers.activation_checkpointing_enable(**_checkpointing(arguments))
    return student.train()


def _architecture(recipe: ModelRecipe, base: Base) -> tuple[Any, MaskedLanguageHead | None]:
    """The transformer without a pooler layer and, for documents, the head that is trained beside it."""
    settings: dict[str, Any] = {"dtype": getattr(torch, recipe.base.dtype)}
    place = f"base: {recipe.base.repo_id or recipe.base.path}"
    with reading_model(place, "its architecture cannot be built"):
        config = AutoConfig.from_pretrained(base.folder, **NO_CODE)
        if any(item.form == "documents" for item in recipe.datasets):
            return _with_head(AutoModelForMaskedLM.from_config(config, **settings, **NO_CODE))
        return AutoModel.from_config(config, **without_pooler(config), **settings, **NO_CODE), None


def _with_head(whole: Any) -> tuple[Any, MaskedLanguageHead]:
    layers = whole.base_model
    head = MaskedLanguageHead(whole)
    head.tie(layers.get_input_embeddings())
    return layers, head


def _checkpointing(arguments: SentenceTransformerTrainingArguments) -> dict[str, Any]:
    """The trainer's arguments as those of ``activation_checkpointing_enable``."""
    given: dict[str, Any] = {**(cast(dict[str, Any] | None, arguments.activation_checkpointing_kwargs) or {})}
    chosen = {key: given.pop(key) for key in tuple(given) if key in ("every_n_layers", "offload")}
    return {**chosen, "activation_checkpointing_kwargs": given or None}


def _widen_small_parameters(model: nn.Module) -> None:
    """What is not rounded is trained beside in float32 (peft's prepare_model_for_kbit_training)."""
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    for parameter in model.parameters():
        if id(parameter) not in linear:
            parameter.data = parameter.data.float()

"""Meta encoder: the encoder of a recipe as its architecture, built from the base's config; no weight is read."""

from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from hub.contract.recipe import ModelRecipe
from hub.model_folder import NO_CODE, reading_model
from training.data.example_types import DOCUMENTS
from training.losses.declutr import MaskedLanguageHead
from training.model.adapters import attach
from training.model.bases import Base
from training.model.encoder import build_encoder, first_layers, without_pooler


class MetaEncoder(nn.Module):
    """Texts of one length → sentence embeddings: a transformer under ``pooling``, or the mean of token embeddings.

    ``head``: DeCLUTR's masked language model head over hidden states, if one is trained.
    """

    def __init__(self, layers: Any, pooling: str | None, head: MaskedLanguageHead | None = None):
        super().__init__()
        self.transformers_model = layers  # the name that sentence-transformers has for it
        self.dimensions = int(layers.config.hidden_size if pooling else layers.embedding_dim)
        self.pooling = Pooling(self.dimensions, pooling) if pooling else None
        self.head = head

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (rows, length) → embeddings (rows, dimensions), hidden states (rows, length, dimensions)."""
        if self.pooling is None:
            embeddings = functional.embedding_bag(ids, self.transformers_model.weight, mode="mean")
            return embeddings, embeddings
        mask = torch.ones_like(ids)
        hidden = self.transformers_model(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.pooling({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"], hidden


def build_meta_encoder(recipe: ModelRecipe, base: Base, arguments: SentenceTransformerTrainingArguments) -> MetaEncoder:
    """The encoder on the meta device, in training mode, its adapter and checkpointing in place.

    A quantized base stands in the dtype that its layers compute in. Raises InputError for a config that transformers
    does not know (or not as a masked language model, for documents), or layers that the base does not have.
    """
    if recipe.base.vocabulary is not None:  # how many tokens a corpus has is known when they are counted
        static: Any = build_encoder(recipe.base, base)[0]
        return MetaEncoder(nn.Embedding(static.num_embeddings, static.embedding_dim, device="meta"), None)
    with torch.device("meta"):
        layers, head = _architecture(recipe, base)
        if recipe.base.modules == "static":
            return MetaEncoder(layers.get_input_embeddings(), None)
        encoder = MetaEncoder(layers, recipe.base.pooling, head)
        if recipe.base.quantization:
            _widen_small_parameters(layers)
        if recipe.lora is not None:
            attach(cast(Any, encoder), recipe.lora)
        if arguments.activation_checkpointing:  # behind the adapter: its inputs are asked for gradients then
            given = {**(cast(dict[str, Any] | None, arguments.activation_checkpointing_kwargs) or {})}
            chosen = {key: given.pop(key) for key in tuple(given) if key in ("every_n_layers", "offload")}
            layers.activation_checkpointing_enable(**chosen, activation_checkpointing_kwargs=given or None)
    return encoder.train()


def _architecture(recipe: ModelRecipe, base: Base) -> tuple[Any, MaskedLanguageHead | None]:
    """The transformer without a pooler layer and, for documents, the head that is trained beside it."""
    dtype = getattr(torch, recipe.base.dtype)
    with reading_model(f"base: {recipe.base.repo_id or recipe.base.path}", "its architecture cannot be built"):
        config = AutoConfig.from_pretrained(base.folder, **NO_CODE)
        for name, value in first_layers(config, recipe.base.layers, "base").items():
            setattr(config, name, value)
        if all(item.example_type != DOCUMENTS.name for item in recipe.datasets):
            return AutoModel.from_config(config, **without_pooler(config), dtype=dtype, **NO_CODE), None
        whole = AutoModelForMaskedLM.from_config(config, dtype=dtype, **NO_CODE)
    layers, head = whole.base_model, MaskedLanguageHead(whole)
    head.tie(layers.get_input_embeddings())
    return layers, head


def _widen_small_parameters(model: nn.Module) -> None:
    """What is not rounded is trained beside in float32 (peft's prepare_model_for_kbit_training)."""
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    for parameter in model.parameters():
        if id(parameter) not in linear:
            parameter.data = parameter.data.float()


def fill_with_fakes(encoder: nn.Module) -> None:
    """Replace meta tensors by tensors of the fake mode and device that are active; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in encoder.modules():
        for name, old in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(old) not in made:
                empty = torch.empty(old.shape, dtype=old.dtype)
                made[id(old)] = nn.Parameter(empty, old.requires_grad) if isinstance(old, nn.Parameter) else empty
            setattr(module, name, made[id(old)])

"""Memory estimate of a training step on one device, from fake tensors: no weight is loaded and nothing is computed.

``MetaEncoder`` is the recipe's encoder as its architecture. One optimiser step runs on the largest batch: every text
has ``max_seq_length`` tokens. Each operation on fake tensors reports its allocation. Not counted: libraries and the
CUDA context (hundreds of MiB), the allocator's waste, kernels' workspaces, data loading, the loss's matrices of batch x
batch scores, and a second encoder that guides the loss.
"""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, Trainer

from hub.contract.recipe import ModelRecipe, Spans, TrainingData, quantization_values
from hub.untrusted import NO_CODE, reading_model
from training.data.example_types import DOCUMENTS, EXAMPLE_TYPES
from training.encoder.bases import Base
from training.encoder.encoder import attach, build_encoder, first_layers, without_pooler
from training.losses.losses import LOSSES, loss_arguments
from training.losses.modules import MaskedLanguageHead


class MetaEncoder(nn.Module):
    """Texts of one length → sentence embeddings: a transformer under ``pooling``, or a mean; ``head`` of DeCLUTR."""

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

    A quantized base has the dtype that its layers compute in. Raises InputError for an architecture that transformers
    does not know (for documents: as a masked language model), or layers that the base does not have.
    """
    first: Any = None
    if recipe.base.vocabulary is not None or recipe.base.modules == "sentence-transformer":
        # how many tokens a corpus has is known when they are counted; a finished encoder has its own modules
        first = build_encoder(recipe.base, base)[0]
        if isinstance(first, StaticEmbedding):
            return MetaEncoder(nn.Embedding(first.num_embeddings, first.embedding_dim, device="meta"), None)
    with torch.device("meta"):
        layers, head = _architecture(recipe, base) if first is None else (first.model.to("meta"), None)
        if recipe.base.modules == "static":
            return MetaEncoder(layers.get_input_embeddings(), None)
        encoder = MetaEncoder(layers, recipe.base.pooling, head)
        if recipe.base.quantization:  # all other parameters are float32 (peft's prepare_model_for_kbit_training)
            linear = {id(module.weight) for module in layers.modules() if isinstance(module, nn.Linear)}
            for parameter in layers.parameters():
                parameter.data = parameter.data if id(parameter) in linear else parameter.data.float()
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


def fill_with_fakes(encoder: nn.Module) -> None:
    """Replace meta tensors by tensors of the fake mode and device that are active; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in encoder.modules():
        for name, old in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(old) not in made:
                empty = torch.empty(old.shape, dtype=old.dtype)
                made[id(old)] = nn.Parameter(empty, old.requires_grad) if isinstance(old, nn.Parameter) else empty
            setattr(module, name, made[id(old)])


PLAYED = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")  # optimisers that take fakes
ADAM_8_BIT = 2 + 2 * 4 / 256  # bytes per parameter: two moments, each with an fp32 scale for 256 values
ROUNDED = {"load_in_4bit": 0.5 + 4 / 64, "load_in_8bit": 1.0}  # bytes per weight; 4 bit: an fp32 scale for 64 weights
DOUBLE_ROUNDED = 0.5 + 1 / 64 + 4 / (64 * 256)  # the scales in 8 bit, an fp32 scale for 256 of them (Dettmers 2023)


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors alive (``now``) and at most (``peak``) that operations made while the mode is active.

    Gradients and saved activations count; ``known`` tensors (parameters) and kernels' workspaces do not. The same on
    real and on fake tensors (enter it inside the ``FakeTensorMode``).
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()):
        super().__init__()
        self.now = self.peak = 0
        storages = [tensor.untyped_storage() for tensor in known]  # kept, so that no new storage gets their place
        self._seen: dict[int, object] = {storage._cdata: storage for storage in storages}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count its results."""
        result = func(*args, **(kwargs or {}))
        for storage in [leaf.untyped_storage() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]:
            key, size = storage._cdata, storage.nbytes()
            if key not in self._seen:
                self.now += size
                self.peak = max(self.peak, self.now)
                self._seen[key] = weakref.ref(storage, partial(self._drop, key, size))
        return result

    def _drop(self, key: int, size: int, _: object) -> None:
        self.now -= size
        del self._seen[key]


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak bytes of training on one device: of a step in all, and of its parts, which peak at different moments."""

    parameters: int  # how many, an adapter's and a head's included
    trainable: int
    weights: int
    gradients: int  # under DistributedDataParallel with its buckets, which hold them a second time
    optimizer: int
    activations: int  # the most that forward and backward pass hold besides; cached embeddings with their gradients
    total: int


@dataclass(frozen=True)
class BackwardPass:
    """The batches of one backward pass: token ids of these shapes (texts, tokens), embedded one after another."""

    shapes: tuple[tuple[int, int], ...]
    masked: int = 0  # tokens of the first shape whose logits the masked language head computes
    cached: int = 0  # embeddings that wait for their turn, each with its gradient
    adds_up: bool = False  # whether gradients of an earlier pass are there already


def memory_estimate(
    recipe: ModelRecipe, base: Base, per_device_batch: int, arguments: SentenceTransformerTrainingArguments
) -> MemoryEstimate:
    """The memory of training ``recipe`` on batches of ``per_device_batch`` rows; of several datasets the costliest.

    Raises InputError as ``build_meta_encoder`` does.
    """
    passes = [_pass(spec, recipe.base.max_seq_length, per_device_batch) for spec in recipe.datasets]
    if arguments.gradient_accumulation_steps > 1:
        passes = [replace(item, adds_up=True) for item in passes]
    found = [_measured(recipe, base, item, arguments) for item in dict.fromkeys(passes)]
    return max(found, key=lambda memory: memory.total)


def _pass(spec: TrainingData, length: int, batch: int) -> BackwardPass:
    """The backward pass of one batch; of a mini-batch if the loss caches gradients (Gao et al. 2021)."""
    examples = EXAMPLE_TYPES[spec.example_type]
    if examples == DOCUMENTS:
        spans = spec.spans or Spans()
        anchors, longest = batch * spans.anchors, min(length, spans.max_length + 2)
        masked = math.ceil(anchors * longest * float(spec.loss_arguments.get("mlm_probability", 0.15)))
        return BackwardPass(((anchors, longest), (anchors * spans.positives, longest)), masked)
    texts, signature = len(examples.texts), LOSSES[spec.loss].parameters
    if "mini_batch_size" not in signature:
        return BackwardPass(((batch, length), ((texts - 1) * batch, length)))
    given = loss_arguments(spec, "datasets")
    rows: int = given.get("mini_batch_size", signature["mini_batch_size"].default)
    tokens: int | None = given.get("mini_batch_num_tokens")
    rows = min(batch, rows if tokens is None else max(1, tokens // length))
    return BackwardPass(((rows, length),), cached=texts * batch, adds_up=texts * batch > rows)


def _measured(
    recipe: ModelRecipe, base: Base, item: BackwardPass, arguments: SentenceTransformerTrainingArguments
) -> MemoryEstimate:
    """The memory of one optimiser step on fake tensors."""
    encoder = build_meta_encoder(recipe, base, arguments)
    with FakeTensorMode(), torch.device(arguments.device.type):
        fill_with_fakes(encoder)
        trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
        gradients = sum(map(_bytes, trained))
        weights, unpacking = _weights(encoder, quantization_values(recipe.base.quantization))
        activations, passing = _backward(encoder, item, arguments)
        states, stepping = _step(trained, arguments)
    buckets = gradients if arguments.world_size > 1 else 0
    return MemoryEstimate(
        parameters=sum(parameter.numel() for parameter in encoder.parameters()),
        trainable=sum(parameter.numel() for parameter in trained),
        weights=weights,
        gradients=gradients + buckets,
        optimizer=states,
        activations=activations + unpacking,
        total=weights + buckets + states + max(passing + unpacking, gradients + stepping),
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _weights(encoder: nn.Module, quantization: dict[str, Any]) -> tuple[int, int]:
    """Bytes of all parameters and buffers; bytes of the largest layer when it is unpacked from its rounded form."""
    whole = sum(map(_bytes, [*encoder.parameters(), *encoder.buffers()]))
    share = next((size for key, size in ROUNDED.items() if quantization.get(key)), None)
    if share is None:
        return whole, 0
    if share < 1 and quantization.get("bnb_4bit_use_double_quant"):
        share = DOUBLE_ROUNDED
    layers = [module.weight for module in encoder.modules() if isinstance(module, nn.Linear)]
    rounded = [weight for weight in layers if not weight.requires_grad]  # the adapter's layers are trained
    packed = sum(int(weight.numel() * share) - _bytes(weight) for weight in rounded)
    return whole + packed, max(map(_bytes, rounded))


def _backward(
    encoder: MetaEncoder, item: BackwardPass, arguments: SentenceTransformerTrainingArguments
) -> tuple[int, int]:
    """The most that a forward and backward pass hold besides weights: without gradients, and with them."""
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    gradients = sum(map(_bytes, trained))
    cached = 2 * item.cached * encoder.dimensions * torch.float32.itemsize
    if item.adds_up:
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
    half = torch.bfloat16 if arguments.bf16 else torch.float16
    there = [*encoder.parameters(), *encoder.buffers(), *(p.grad for p in trained if p.grad is not None)]
    with LiveBytes(there) as live:
        with torch.autocast(arguments.device.type, half, enabled=arguments.bf16 or arguments.fp16):
            objective = _objective(encoder, item)
        forward = live.peak
        objective.backward()
        del objective
    if item.adds_up:
        return live.peak + cached, gradients + live.peak + cached
    return max(forward, live.peak - gradients) + cached, live.peak + cached


def _objective(encoder: MetaEncoder, item: BackwardPass) -> torch.Tensor:
    """A scalar of all embeddings and logits; hidden states are held until the end, as in losses."""
    read = [encoder(torch.ones(shape, dtype=torch.long)) for shape in item.shapes]
    parts = [embeddings.float().square().sum() for embeddings, _ in read]
    if encoder.head is not None:
        chosen = torch.ones(item.masked, dtype=torch.long)
        logits = encoder.head(read[0][1].flatten(0, 1)[chosen]).float()
        parts.append(functional.cross_entropy(logits, chosen, reduction="sum"))
    return torch.stack(parts).sum()


def _step(trained: list[nn.Parameter], arguments: SentenceTransformerTrainingArguments) -> tuple[int, int]:
    """Bytes of the optimiser's states, and of what its step allocates besides them."""
    name = str(getattr(arguments.optim, "value", arguments.optim))
    if name not in PLAYED:
        size = ADAM_8_BIT if "8bit" in name else 2 * torch.float32.itemsize
        return int(sum(parameter.numel() for parameter in trained) * size), 0
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(arguments)
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    with LiveBytes([*trained, *(p.grad for p in trained if p.grad is not None)]) as live:
        optimizer = kind(trained, **settings)
        optimizer.step()
        states = live.now
    return states, live.peak - states

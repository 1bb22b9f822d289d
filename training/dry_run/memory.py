"""Memory estimate of a training step on one device, from fake tensors: no weight is loaded and nothing computed.

The base is built from its config, with fake tensors of the device that would train, and one optimiser step is taken on
the largest batch that can come up: every text at ``max_seq_length``. Fake tensors have no numbers: every operation says
what it would allocate there. Not counted: libraries and the CUDA context (hundreds of MiB), the allocator's waste,
kernels' workspaces, data loading, the loss's own matrices of batch x batch scores, and a second encoder that guides it.
"""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Trainer

from hub.contract.recipe import ModelRecipe
from hub.contract.sections.dataset import quantization_values
from hub.contract.sections.model import Spans, TrainingData
from training.data.example_types import DOCUMENTS, EXAMPLE_TYPES
from training.dry_run.meta_encoder import MetaEncoder, build_meta_encoder, fill_with_fakes
from training.losses.losses import LOSSES, check_arguments
from training.model.bases import Base

PLAYED = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")  # optimisers that take fakes
ADAM_8_BIT = 2 + 2 * 4 / 256  # bytes per parameter: two moments, each with an fp32 scale for 256 values
ROUNDED = {"load_in_4bit": 0.5 + 4 / 64, "load_in_8bit": 1.0}  # bytes per weight; 4 bit: an fp32 scale for 64 weights
DOUBLE_ROUNDED = 0.5 + 1 / 64 + 4 / (64 * 256)  # the scales in 8 bit, an fp32 scale for 256 of them (Dettmers 2023)


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors alive (``now``) and at most (``peak``) that operations made while the mode is active.

    What autograd keeps and gradients count; ``known`` tensors (parameters) and kernels' workspaces do not. The same on
    real and on fake tensors (enter it inside the ``FakeTensorMode``).
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()):
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known = [tensor.untyped_storage() for tensor in known]  # kept, so that no new storage gets their place
        self._seen: dict[int, object] = {storage._cdata: storage for storage in self._known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self.now += size
        self.peak = max(self.peak, self.now)
        self._seen[key] = weakref.ref(storage, lambda _: self._drop(key, size))

    def _drop(self, key: int, size: int) -> None:
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

    ``arguments`` decide the device, autocast, checkpointing, optimiser and accumulation. Raises what
    ``build_meta_encoder`` raises.
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
    texts = len(examples.texts)
    rows = mini_batch(spec, length, batch)
    if rows is None:
        return BackwardPass(((batch, length), ((texts - 1) * batch, length)))
    return BackwardPass(((rows, length),), cached=texts * batch, adds_up=texts * batch > rows)


def mini_batch(spec: TrainingData, length: int, batch: int) -> int | None:
    """Texts that a loss with cached gradients embeds at a time; None when the loss caches none."""
    signature = LOSSES[spec.loss].parameters
    if "mini_batch_size" not in signature:
        return None
    given = check_arguments(spec, "datasets")
    rows: int = given.get("mini_batch_size", signature["mini_batch_size"].default)
    tokens: int | None = given.get("mini_batch_num_tokens")
    return min(batch, rows if tokens is None else max(1, tokens // length))


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
    """A scalar that depends on all that the loss depends on; hidden states are held until then, as losses do."""
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

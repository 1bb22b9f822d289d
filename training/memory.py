"""How much memory training takes on one device, told without loading weights or computing anything.

The base is built from its config on torch's meta device, its parameters are replaced by fake tensors of the device that
would train, and one optimiser step is taken on the largest batch that can come up: every text at ``max_seq_length``.
Fake tensors have shapes, types and a device, and no numbers: every operation says what it would allocate, so the count
is that of the kernels which torch takes on this kind of device. Not counted: libraries and the CUDA context (hundreds
of MiB), the allocator's waste, kernels' workspaces, data loading, and the loss's own matrices of batch x batch scores.
"""

import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from transformers import Trainer

from hub.model_sections import Spans, TrainingData
from hub.quantization import quantization_values
from hub.recipe import ModelRecipe
from training.bases import Base
from training.live_bytes import LiveBytes
from training.losses import LOSSES, check_arguments
from training.weightless import Weightless, WeightlessStatic, build_weightless

TEXTS = {"sts": 2, "pair-class": 2, "triplet": 3}  # per row
PLAYED = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")  # optimisers that take fakes
ADAM_8_BIT = 2 + 2 * 4 / 256  # bytes per parameter: two moments, each with an fp32 scale for 256 values
ROUNDED = {"load_in_4bit": 0.5 + 4 / 64, "load_in_8bit": 1.0}  # bytes per weight; 4 bit: an fp32 scale for 64 weights
DOUBLE_ROUNDED = 0.5 + 1 / 64 + 4 / (64 * 256)  # the scales in 8 bit, an fp32 scale for 256 of them (Dettmers 2023)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device. The parts do not all reach their most at the same moment: ``total`` is the peak of a step,
    which is at most their sum.
    """

    parameters: int  # how many, an adapter's and a head's included
    trainable: int
    weights: int
    gradients: int  # under DistributedDataParallel with its buckets, which hold them a second time
    optimizer: int
    activations: int  # the most that forward and backward pass hold besides; cached embeddings with their gradients
    total: int


@dataclass(frozen=True)
class Pass:
    """What one backward pass goes back over: token ids of these shapes (texts, tokens), read one after another."""

    shapes: tuple[tuple[int, int], ...]
    masked: int = 0  # tokens of the first shape whose logits the masked language head computes
    cached: int = 0  # embeddings that wait for their turn, each with its gradient
    adds_up: bool = False  # whether gradients of an earlier pass are there already


def memory_estimate(
    recipe: ModelRecipe, base: Base, per_device_batch: int, arguments: SentenceTransformerTrainingArguments
) -> Memory:
    """The memory of training ``recipe`` on batches of ``per_device_batch`` rows; of several datasets the costliest.

    ``arguments`` decide the device, autocast, checkpointing, optimiser and accumulation. Raises what
    ``build_weightless`` raises.
    """
    passes = [_pass(spec, recipe.base.max_seq_length, per_device_batch) for spec in recipe.datasets]
    if arguments.gradient_accumulation_steps > 1:
        passes = [replace(item, adds_up=True) for item in passes]
    found = [_measured(recipe, base, item, arguments) for item in dict.fromkeys(passes)]
    return max(found, key=lambda memory: memory.total)


def _pass(spec: TrainingData, length: int, batch: int) -> Pass:
    """The backward pass of one batch; of a mini-batch if the loss caches gradients (Gao et al. 2021)."""
    if spec.form == "documents":
        spans = spec.spans or Spans()
        anchors, longest = batch * spans.anchors, min(length, spans.max_length + 2)
        masked = math.ceil(anchors * longest * float(spec.loss_arguments.get("mlm_probability", 0.15)))
        return Pass(((anchors, longest), (anchors * spans.positives, longest)), masked)
    texts = TEXTS[spec.form]
    rows = mini_batch(spec, length, batch)
    if rows is None:
        return Pass(((batch, length), ((texts - 1) * batch, length)))  # the first column, then the others as one
    return Pass(((rows, length),), cached=texts * batch, adds_up=texts * batch > rows)


def mini_batch(spec: TrainingData, length: int, batch: int) -> int | None:
    """Texts that a loss with cached gradients embeds at a time; None when the loss caches none."""
    signature = inspect.signature(LOSSES[spec.loss].make).parameters
    if "mini_batch_size" not in signature:
        return None
    given = check_arguments(spec, "datasets")
    rows: int = given.get("mini_batch_size", signature["mini_batch_size"].default)
    tokens: int | None = given.get("mini_batch_num_tokens")
    return min(batch, rows if tokens is None else max(1, tokens // length))


def _measured(recipe: ModelRecipe, base: Base, item: Pass, arguments: SentenceTransformerTrainingArguments) -> Memory:
    """One step on fake tensors."""
    student = build_weightless(recipe, base, arguments)
    with FakeTensorMode(), torch.device(arguments.device.type):
        _fill_with_fakes(student)
        trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
        gradients = sum(map(_bytes, trained))
        weights, unpacking = _weights(student, quantization_values(recipe.base.quantization))
        activations, passing = _backward(student, item, arguments)
        states, stepping = _step(trained, arguments)
    buckets = gradients if arguments.world_size > 1 else 0
    return Memory(
        parameters=sum(parameter.numel() for parameter in student.parameters()),
        trainable=sum(parameter.numel() for parameter in trained),
        weights=weights,
        gradients=gradients + buckets,
        optimizer=states,
        activations=activations + unpacking,
        total=weights + buckets + states + max(passing + unpacking, gradients + stepping),
    )


def _fill_with_fakes(student: nn.Module) -> None:
    """Replace meta tensors by tensors of the fake mode and device that are active; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in student.modules():
        for name, old in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(old) not in made:
                empty = torch.empty(old.shape, dtype=old.dtype)
                made[id(old)] = nn.Parameter(empty, old.requires_grad) if isinstance(old, nn.Parameter) else empty
            setattr(module, name, made[id(old)])


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _weights(student: nn.Module, quantization: dict[str, Any]) -> tuple[int, int]:
    """Bytes of all parameters and buffers; bytes of the largest layer when it is unpacked from its rounded form."""
    whole = sum(map(_bytes, [*student.parameters(), *student.buffers()]))
    share = next((size for key, size in ROUNDED.items() if quantization.get(key)), None)
    if share is None:
        return whole, 0
    if share < 1 and quantization.get("bnb_4bit_use_double_quant"):
        share = DOUBLE_ROUNDED
    layers = [module.weight for module in student.modules() if isinstance(module, nn.Linear)]
    rounded = [weight for weight in layers if not weight.requires_grad]  # the adapter's layers are trained
    packed = sum(int(weight.numel() * share) - _bytes(weight) for weight in rounded)
    return whole + packed, max(map(_bytes, rounded))


def _backward(
    student: Weightless | WeightlessStatic, item: Pass, arguments: SentenceTransformerTrainingArguments
) -> tuple[int, int]:
    """The most that a forward and backward pass hold besides weights: without gradients, and with them."""
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    gradients = sum(map(_bytes, trained))
    cached = 2 * item.cached * student.dimensions * torch.float32.itemsize
    if item.adds_up:
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
    half = torch.bfloat16 if arguments.bf16 else torch.float16
    there = [*student.parameters(), *student.buffers(), *(p.grad for p in trained if p.grad is not None)]
    with LiveBytes(there) as live:
        with torch.autocast(arguments.device.type, half, enabled=arguments.bf16 or arguments.fp16):
            objective = _objective(student, item)
        forward = live.peak
        objective.backward()
        del objective
    if item.adds_up:
        return live.peak + cached, gradients + live.peak + cached
    return max(forward, live.peak - gradients) + cached, live.peak + cached


def _objective(student: Weightless | WeightlessStatic, item: Pass) -> torch.Tensor:
    """A scalar that depends on all that the loss depends on; hidden states are held until then, as losses do."""
    read = [student(torch.ones(shape, dtype=torch.long)) for shape in item.shapes]
    parts = [embeddings.float().square().sum() for embeddings, _ in read]
    if student.head is not None:
        chosen = torch.ones(item.masked, dtype=torch.long)
        logits = student.head(read[0][1].flatten(0, 1)[chosen]).float()
        parts.append(functional.cross_entropy(logits, chosen, reduction="sum"))
    return torch.stack(parts).sum()


def _step(trained: list[nn.Parameter], arguments: SentenceTransformerTrainingArguments) -> tuple[int, int]:
    """The optimiser's states, and the most that its step makes besides them; bytes."""
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

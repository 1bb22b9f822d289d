"""What ``benchmarks.training.training_throughput`` measures on a kind of machine: shapes, tasks, ways. Pure."""

from dataclasses import dataclass, field, replace
from typing import Any

PROMPT = 'This sentence : "[X]" means in one word:"'  # PromptEOL's
LORA = {"r": "64", "alpha": "16", "dropout": "0.05"}
IN_BATCH = "MultipleNegativesRankingLoss"
LAST = {"pooling": "lasttoken"}
SAVING = {"save_strategy": "steps", "save_steps": "20"}


@dataclass(frozen=True)
class Task:
    """What is trained: ``shape`` are the keywords of the base's config, ``encoder`` and ``loss`` of the recipe's."""

    shape: dict[str, Any]
    example_type: str
    loss: str
    batch: int
    steps: int  # that are timed
    length: int = 32  # tokens of every text
    encoder: dict[str, str] = field(default_factory=dict)
    lora: dict[str, str] | None = None
    loss_arguments: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    warm_up: int = 2  # steps before them


@dataclass(frozen=True)
class Trial:
    """One way to do a task: ``runner`` (this project's trainer) or ``plain`` (sentence-transformers' as it comes)."""

    task: Task
    way: str
    device: str
    seed: int  # of its texts


@dataclass(frozen=True)
class Result:
    """What ``steps`` steps took; None: they ran out of memory. ``peak_mb``: on a GPU what torch allocated at most, else
    how far the process's resident memory grew from before the student was made (None: not measured).
    """

    steps: int
    cpu_s: float | None
    wall_s: float | None
    peak_mb: float | None = None


@dataclass(frozen=True)
class Case:
    """Variants that are compared: name → task and way. The first one is what ratios are over.

    ``turn``: all run in one process and take turns of so many steps; None: each one in a process of its own.
    """

    name: str
    variants: dict[str, tuple[Task, str]]
    rounds: int
    turn: int | None = None


@dataclass(frozen=True)
class Preset:
    """Cases for a device."""

    device: str
    cases: tuple[Case, ...]


def roberta(layers: int, width: int) -> dict[str, Any]:
    """A RoBERTa's config."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    rest = {"num_attention_heads": max(2, width // 64), "max_position_embeddings": 514, "type_vocab_size": 1}
    return {"model_type": "roberta", "vocab_size": 50_265, **sizes, **rest}


def llama(layers: int, width: int, inner: int) -> dict[str, Any]:
    """A Llama's config."""
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return {"model_type": "llama", "vocab_size": 32_000, **sizes, "num_attention_heads": max(2, width // 128)}


def _both(name: str, task: Task, rounds: int, turn: int) -> Case:
    return Case(name, {"plain": (task, "plain"), "runner": (task, "runner")}, rounds, turn)


def _cached(task: Task, mini_batch: int) -> Task:
    """The same under gradient caching, ``mini_batch`` texts at a time."""
    arguments = {"mini_batch_size": str(mini_batch)}
    return replace(task, loss="CachedMultipleNegativesRankingLoss", loss_arguments=arguments)


def _prompteol(whole: Task, mini_batches: tuple[int, ...], rounds: int) -> Case:
    """The step of 256 triplets in one piece, in one piece with checkpointed activations, and in mini-batches."""
    again = replace(whole, arguments=whole.arguments | {"activation_checkpointing": "true"})
    variants = {"whole": (whole, "runner"), "whole, checkpointed": (again, "runner")}
    for size in mini_batches:
        variants[f"cached, {size} texts"] = (_cached(whole, size), "runner")
        variants[f"cached, {size} texts, checkpointed"] = (_cached(again, size), "runner")
    return Case("PromptEOL, 256 triplets", variants, rounds)


def _cpu() -> Preset:
    """Small models, so that a step is as short as one on a GPU: what the runner adds to it would show."""
    pairs = Task(roberta(4, 128), "sts", "CosineSimilarityLoss", 32, 80)
    triplets = Task(llama(2, 128, 352), "triplet", IN_BATCH, 32, 20, encoder=LAST, lora=LORA)
    prompted = Task(
        llama(2, 64, 176), "triplet", IN_BATCH, 256, 1, 64, LAST | {"prompt": PROMPT}, LORA | {"r": "16"}, warm_up=1
    )
    return Preset(
        "cpu",
        (
            _both("RoBERTa, CosineSimilarityLoss", pairs, 2, 5),
            _both("RoBERTa, a checkpoint every 20 steps", replace(pairs, arguments=SAVING), 1, 20),
            _both("Llama, LoRA, cached in-batch loss", _cached(triplets, 16), 2, 2),
            _prompteol(prompted, (32,), 3),
        ),
    )


def _h200() -> Preset:
    """The papers' shapes, in bfloat16."""
    half, seven = {"bf16": "true"}, llama(32, 4096, 11_008)
    encoder = LAST | {"dtype": "bfloat16"}
    pairs = Task(roberta(12, 768), "sts", "CosineSimilarityLoss", 32, 200, 64, arguments=half, warm_up=20)
    triplets = Task(seven, "triplet", IN_BATCH, 64, 10, 64, encoder, LORA, arguments=half)
    prompted = replace(triplets, batch=256, steps=3, encoder=encoder | {"prompt": PROMPT}, warm_up=1)
    return Preset(
        "cuda",
        (
            _both("RoBERTa-base, CosineSimilarityLoss", pairs, 2, 20),
            _both("RoBERTa-base, a checkpoint every 20 steps", replace(pairs, arguments=half | SAVING), 1, 20),
            _both("Llama-2-7B, LoRA, cached in-batch loss", _cached(triplets, 32), 1, 1),
            _prompteol(prompted, (32, 128), 2),
        ),
    )


PRESETS = {"cpu": _cpu(), "h200": _h200()}


def small(task: Task) -> Task:
    """The same on a tiny shape, two steps of few rows."""
    shape = roberta(2, 32) if task.shape["model_type"] == "roberta" else llama(2, 32, 64)
    adapter = task.lora and task.lora | {"r": "4"}
    return replace(task, shape=shape | {"vocab_size": 300}, batch=8, steps=2, lora=adapter, warm_up=1)


def tiny(preset: Preset, device: str) -> Preset:
    """The same cases on tiny shapes, one round each. Shows that they run, and no more."""
    cases = []
    for case in preset.cases:
        variants = {name: (small(task), way) for name, (task, way) in case.variants.items()}
        cases.append(Case(case.name, variants, rounds=1, turn=case.turn and 1))
    return Preset(device, tuple(cases))

"""What runs in processes of their own for ``benchmarks.training.training_throughput``: one training run, measured once.

The student is random: its layers are made from their config on the device that trains them, in seconds for 7B
parameters too, under the tokenizer and the prompt of a tiny base on disk. Every text fills ``max_seq_length``.
"""

import ctypes
import ctypes.util
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (
    AutoConfig,
    AutoModel,
    PrinterCallback,
    TrainerCallback,
    TrainerState,
)

from benchmarks.generation.generation_memory import make_model
from benchmarks.training.training_presets import Result, Task, Trial, small
from benchmarks.training.training_turns import now, play
from benchmarks.trials import single_thread
from hub.contract.recipe import ModelRecipe
from hub.memory import peak_rss_mb
from hub.model_folder import NO_CODE
from training.data.training_sets import TrainingSet
from training.encoder.bases import Base
from training.encoder.encoder import attach, build_encoder
from training.loop.arguments import trainer_arguments, typed_arguments
from training.loop.job import TrainingJob, quiet_libraries
from training.loop.train import make_trainer
from training.losses.losses import build_loss
from training.memory import memory_estimate

COLUMNS = {"sts": ("sentence1", "sentence2"), "triplet": ("anchor", "positive", "negative")}
WORDS = ("a", "man", "is", "playing", "the", "flute", "two", "young", "women", "cook", "beans", "on", "old", "cars")


class Clock(TrainerCallback):
    """Times the steps after the first ``warm_up`` of a training loop, checkpoints and logs in it included."""

    def __init__(self, warm_up: int):
        self.warm_up = warm_up
        self.started = self.stopped = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start before the first step that counts."""
        if state.global_step == self.warm_up:
            self.started = now()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Stop behind the last one."""
        self.stopped = now()


def give_freed_memory_back() -> None:
    """Let glibc map every tensor of 64 KiB and more by itself: then resident memory is what is alive, not what a heap
    once held. For trials whose memory counts, since mapping pages costs time.
    """
    if sys.platform == "linux":
        ctypes.CDLL(ctypes.util.find_library("c")).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD


def recipe_of(task: Task, device: str) -> ModelRecipe:
    """The task as a model recipe."""
    data = {"path": "made-up", "config": "c", "example_type": task.example_type, "loss": task.loss}
    base = {"repo_id": "made/up", "revision": "main", "max_seq_length": str(task.length), "license": "mit"}
    steps = {"max_steps": str(task.warm_up + task.steps), "logging_steps": "10", "save_strategy": "no"}
    on = {"report_to": "none", "use_cpu": str(device == "cpu").lower()}
    return ModelRecipe.model_validate(
        {
            "kind": "model",
            "name": "benchmark",
            "version": "0.1.0",
            "pretty_name": "Benchmark",
            "license": "mit",
            "base": {**base, **task.encoder},
            "lora": task.lora,
            "datasets": [{**data, "loss_arguments": task.loss_arguments}],
            "batch_size": str(task.batch),
            "arguments": {**steps, **on, **task.arguments},
        }
    )


def rows_of(task: Task, seed: int) -> Dataset:
    """As many rows as the steps take, of texts longer than ``length`` tokens of bytes."""
    generator = random.Random(seed)
    count = task.batch * (task.warm_up + task.steps)

    def text() -> str:
        return " ".join(generator.choice(WORDS) for _ in range(task.length))

    columns: dict[str, list[Any]] = {name: [text() for _ in range(count)] for name in COLUMNS[task.example_type]}
    if task.example_type == "sts":
        columns["score"] = [generator.random() for _ in range(count)]
    return Dataset.from_dict(columns)


def make_job(trial: Trial, folder: Path) -> TrainingJob:
    """The job that the runner would have prepared from a recipe file; nothing is on a Hub."""
    recipe = recipe_of(trial.task, trial.device)
    given = typed_arguments(recipe.arguments, "arguments")
    arguments, reporters = trainer_arguments(recipe, given, folder / "checkpoints", 1, False, "arguments")
    rows = TrainingSet("made-up", recipe.datasets[0], rows_of(trial.task, trial.seed), None, None, "", None)
    shape = folder / "shape"
    _config(trial.task).save_pretrained(shape)
    return TrainingJob(recipe, folder / "run", [rows], Base(shape, None, ""), None, arguments, reporters)


def _config(task: Task) -> Any:
    return AutoConfig.for_model(**task.shape)


def make_student(job: TrainingJob, task: Task, device: str, tiny: Path) -> SentenceTransformer:
    """A random student of the task's shape."""
    encoder = job.recipe.base
    small = build_encoder(encoder.model_copy(update={"path": str(tiny), "dtype": "float32"}), Base(tiny, None, ""))
    transformers.set_seed(job.recipe.seed)
    config = _config(task)
    pooler = {"add_pooling_layer": False} if config.model_type == "roberta" else {}
    with torch.device(device):
        layers = AutoModel.from_config(config, dtype=getattr(torch, encoder.dtype), **pooler, **NO_CODE)
    small[0].model = layers
    pooling = Pooling(config.hidden_size, encoder.pooling)
    student = SentenceTransformer(modules=[small[0], pooling], similarity_fn_name="cosine", device=device)
    if job.recipe.lora is not None:
        attach(student, job.recipe.lora)
    return student


def estimate(trial: Trial, folder: str) -> dict[str, int]:
    """What ``--dry-run`` would say of the task's memory, in bytes."""
    _quiet()
    job = make_job(trial, Path(folder))
    found = memory_estimate(job.recipe, job.base, job.arguments.per_device_train_batch_size, job.arguments)
    return dict(vars(found))


def measure(trial: Trial, folder: str, memory: bool) -> Result:
    """Train, timed; with ``memory`` so that resident memory tells what was alive (times then mean nothing on a CPU)."""
    _quiet()
    on_gpu = trial.device != "cpu"
    if memory and not on_gpu:
        give_freed_memory_back()
    job, tiny = make_job(trial, Path(folder)), make_model(Path(folder) / "tiny")
    if memory:  # once in small, for what libraries load when they are first used
        first = replace(trial, task=small(trial.task))
        make_loop(first, make_job(first, Path(folder) / "small"), tiny).train()
    before = psutil.Process().memory_info().rss / 2**20
    clock = Clock(trial.task.warm_up)
    try:
        trainer = make_loop(trial, job, tiny)
        trainer.add_callback(clock)
        trainer.train()
    except torch.OutOfMemoryError:
        return Result(trial.task.steps, None, None)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else peak_rss_mb() - before
    cpu, wall = (after - start for start, after in zip(clock.started, clock.stopped, strict=True))
    return Result(trial.task.steps, cpu, wall, peak)


def measure_in_turns(trials: dict[str, Trial], folder: str, steps: int) -> dict[str, list[Result]]:
    """Train all of them at once, ``steps`` steps each in turn; every turn's result."""
    _quiet()
    tiny = make_model(Path(folder) / "tiny")
    loops = {name: make_loop(trial, make_job(trial, Path(folder) / name), tiny) for name, trial in trials.items()}
    taken = play(loops, next(iter(trials.values())).task.warm_up, steps)
    return {name: [Result(steps, turn.cpu_s, turn.wall_s) for turn in turns] for name, turns in taken.items()}


def make_loop(trial: Trial, job: TrainingJob, tiny: Path) -> SentenceTransformerTrainer:
    """The trial's way around a new student."""
    student = make_student(job, trial.task, trial.device, tiny)
    return plain_trainer(job, student) if trial.way == "plain" else runner_trainer(job, student)


def _quiet() -> None:
    single_thread()
    quiet_libraries()


def runner_trainer(job: TrainingJob, student: SentenceTransformer) -> SentenceTransformerTrainer:
    """What ``training.run`` trains with."""
    return make_trainer(job, student, "benchmark")


def plain_trainer(job: TrainingJob, student: SentenceTransformer) -> SentenceTransformerTrainer:
    """What sentence-transformers' documentation says: the same rows, loss and arguments."""
    loss = build_loss(job.sets[0].spec, student, job.base)
    trainer = SentenceTransformerTrainer(model=student, args=job.arguments, train_dataset=job.sets[0].train, loss=loss)
    trainer.remove_callback(PrinterCallback)  # its lines would stand between the benchmark's
    return trainer

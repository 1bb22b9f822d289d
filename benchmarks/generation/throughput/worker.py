"""What runs in processes of their own: making a model, measuring the roofline, measuring one variant once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.generation.throughput import workloads
from benchmarks.trials import single_thread
from generation.decoding.protocol import Completion, complete
from generation.pipeline.writers import load_writer
from hub.contract.recipe import LanguageModel
from hub.memory import peak_rss_mb
from hub.model_folder import NO_CODE, NO_PICKLES

WORK = {"sts-x2": workloads.sts_work, "auto-nli-20shot": workloads.few_shot_work}
DEMO_LM = Path("assets/demo-lm")
Write = Callable[[workloads.Work], list[Completion]]
Count = Callable[[str], int]


@dataclass(frozen=True)
class Trial:
    """One variant on one piece of work: ``count`` first texts from place ``start`` on."""

    work: str
    model: str  # folder
    random_words: bool  # the model writes words of ``models``, one token each
    variant: str  # original, batched, engine
    dtype: str
    device: str
    rows: int  # of a call of batched generate()
    count: int
    start: int


@dataclass(frozen=True)
class Result:
    """What one trial took and gave."""

    asked: int
    accepted: int
    cpu_s: float
    wall_s: float
    useful_gflop: float
    peak_rss_mb: float
    peak_gpu_mb: float | None
    texts: list[str]


def trained_lengths(work: str, count: int) -> list[int]:
    """Tokens of each text of the demo model (the closing one included), above the budget when it did not close."""
    single_thread()
    writer = load_writer(LanguageModel(path=str(DEMO_LM), license="see its card"))
    few_shot = work == "auto-nli-20shot"  # its examples do not fit into the demo model's context
    job = workloads.few_shot_work(count, shots=0) if few_shot else workloads.sts_work(count)
    texts = complete(writer, job.requests, job.settings)
    limit = job.settings.max_new_tokens
    return [writer.count_tokens(text.text) + 1 if text.problem is None else limit + 1 for text in texts]


def make_model(shape: str, directory: Path, lengths: Sequence[int]) -> None:
    """A random model that stops as those lengths say, in ``directory``."""
    from benchmarks.generation.throughput import models

    single_thread()
    limit = workloads.sts_work(1).settings.max_new_tokens
    models.write_model(shape, directory, workloads.corpus(), models.hazards(lengths, limit))


def measure_roofline(device: str, widths: tuple[int, ...], rows: tuple[int, ...]) -> dict[str, Any]:
    """See ``roofline.measure``."""
    from benchmarks.generation.throughput import roofline

    single_thread()
    return roofline.measure(device, widths, rows)


def describe_model(folder: Path) -> dict[str, Any]:
    """Name, kind and size of a model."""
    model = _shape(folder)
    return {"name": folder.name, "type": model.config.model_type, "parameters": model.num_parameters()}


def measure(trial: Trial) -> Result:
    """Load the model, warm up on other first texts, then do the work once under the clock."""
    import torch

    single_thread()
    job = WORK[trial.work](trial.count, trial.start)
    warm_up = WORK[trial.work](1, trial.start + trial.count)
    write, count_tokens = (_engine if trial.variant == "engine" else _generate)(trial)
    write(warm_up)
    cpu, wall = time.process_time(), time.perf_counter()
    completions = write(job)
    if trial.device != "cpu":
        torch.cuda.synchronize()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    words = (lambda text: len(text.split())) if trial.random_words else count_tokens
    return Result(
        asked=len(job.requests),
        accepted=sum(completion.problem is None for completion in completions),
        cpu_s=cpu,
        wall_s=wall,
        useful_gflop=workloads.useful_flops(job, completions, _shape(Path(trial.model)), count_tokens, words) / 1e9,
        peak_rss_mb=peak_rss_mb(),
        peak_gpu_mb=round(torch.cuda.max_memory_allocated() / 2**20, 1) if trial.device != "cpu" else None,
        texts=[completion.text for completion in completions],
    )


def _shape(folder: Path) -> Any:
    """The model without weights, to count them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, **NO_CODE), **NO_CODE)


def _engine(trial: Trial) -> tuple[Write, Count]:
    """The engine as a run loads it, at the batch size it finds itself."""
    fields = {"path": trial.model, "dtype": trial.dtype, "device": trial.device, "license": "none"}
    writer = load_writer(LanguageModel.model_validate(fields))
    return lambda job: complete(writer, job.requests, job.settings, None, job.prefixes), writer.count_tokens


def _generate(trial: Trial) -> tuple[Write, Count]:
    """``generate()`` around the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.generation.throughput.baselines import Generator

    tokenizer = AutoTokenizer.from_pretrained(trial.model, **NO_CODE)
    model: Any = AutoModelForCausalLM.from_pretrained(trial.model, dtype=getattr(torch, trial.dtype), **NO_PICKLES)
    generator = Generator(model.to(trial.device), tokenizer)

    def write(job: workloads.Work) -> list[Completion]:
        if trial.variant == "original":
            return generator.one_by_one(job.requests, job.settings)
        return generator.batched(job.requests, job.settings, trial.rows)

    return write, lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)

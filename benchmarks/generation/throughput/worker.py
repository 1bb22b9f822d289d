"""What runs in processes of their own: making a model, measuring the roofline, measuring one variant once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.generation.throughput import workloads
from benchmarks.generation.throughput.cases import DEMO_LM
from benchmarks.generation.throughput.ways import Trial, loaded
from benchmarks.trials import single_thread
from generation.backends.protocol import complete
from generation.backends.registry import load_writer
from hub.contract.recipe import LanguageModel
from hub.untrusted import NO_CODE


@dataclass(frozen=True)
class Result:
    """What one trial took and gave. Memory is resident memory in MiB, of the process that computes."""

    asked: int
    accepted: int
    tokens: int  # of all texts, without those that close them
    rows: int  # of a batch, at most
    cpu_s: float
    client_cpu_s: float | None  # of asking, where a server computes
    wall_s: float
    useful_gflop: float
    loading_peak_mb: float  # until the first text was begun
    loaded_rss_mb: float  # after one text of two tokens: the model, the libraries, little else
    peak_rss_mb: float  # while writing
    peak_gpu_mb: float | None
    facts: dict[str, Any]  # what the engine says of itself
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
    """Load the model, begin one other text, then do the work once under the clock, shared beginnings included."""
    import torch

    single_thread()
    on_gpu = trial.device != "cpu"
    job = workloads.KINDS[trial.work](trial.count, trial.start)
    with loaded(trial, job) as way:
        loading_peak = way.cost.peak_mb()
        way.write(_first_words(trial))
        rss = way.cost.rss_mb()
        way.cost.forget_peak()
        cost, own, wall = way.cost.cpu_s(), time.process_time(), time.perf_counter()
        completions = way.write(job)
        if on_gpu:
            torch.cuda.synchronize()
        cost, own, wall = way.cost.cpu_s() - cost, time.process_time() - own, time.perf_counter() - wall
        peak = way.cost.peak_mb()
    words = (lambda text: len(text.split())) if trial.random_words else way.count_tokens
    model = _shape(Path(trial.model))
    return Result(
        asked=len(job.requests),
        accepted=sum(completion.problem is None for completion in completions),
        tokens=sum(words(completion.text) for completion in completions),
        rows=way.rows(),
        cpu_s=cost,
        client_cpu_s=own if trial.way == "llama.cpp" else None,
        wall_s=wall,
        useful_gflop=workloads.useful_flops(job, completions, model, way.count_tokens, words) / 1e9,
        loading_peak_mb=loading_peak,
        loaded_rss_mb=rss,
        peak_rss_mb=peak,
        peak_gpu_mb=round(torch.cuda.max_memory_allocated() / 2**20, 1) if on_gpu else None,
        facts=way.facts,
        texts=[completion.text for completion in completions],
    )


def _first_words(trial: Trial) -> workloads.Work:
    """Two tokens of a text that is not measured: what libraries do at their first call stays out of the clock."""
    whole = workloads.KINDS[trial.work](1, trial.start + trial.count)
    settings = whole.settings.model_copy(update={"max_new_tokens": 2})
    return replace(whole, requests=whole.requests[-1:], prefixes=(), settings=settings)


def _shape(folder: Path) -> Any:
    """The model without weights, to count them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, **NO_CODE), **NO_CODE)

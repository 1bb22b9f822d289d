"""The ways to do a piece of work: the engine, transformers' ``generate()`` around the same weights, llama.cpp's server.

Each is loaded as its users load it and handed out ready to write.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.generation.throughput.process_cost import ProcessCost
from benchmarks.generation.throughput.workloads import Work
from generation.backends.protocol import Completion, complete
from generation.backends.registry import load_writer
from hub.contract.recipe import LanguageModel
from hub.untrusted import NO_CODE, NO_PICKLES


@dataclass(frozen=True)
class Trial:
    """One variant on one piece of work: ``count`` first texts from place ``start`` on."""

    work: str  # of ``workloads.KINDS``
    model: str  # folder
    random_words: bool  # the model writes words of ``models``, one token each
    way: str  # of ``cases.Variant``
    dtype: str
    device: str
    rows: int | None  # of a batch; None: as many as the engine finds to fit
    count: int
    start: int
    keys: tuple[tuple[str, Any], ...] = ()  # more of the recipe's section ``model``
    gguf: str = ""  # llama.cpp's file of the same model


@dataclass(frozen=True)
class Way:
    """A loaded way. ``rows``: model rows of the largest batch so far; ``cost``: of the process that computes."""

    write: Callable[[Work], list[Completion]]
    count_tokens: Callable[[str], int]
    rows: Callable[[], int]
    cost: ProcessCost = field(default_factory=ProcessCost)
    facts: dict[str, Any] = field(default_factory=dict)  # what the engine says of itself


@contextmanager
def loaded(trial: Trial, work: Work) -> Iterator[Way]:
    """The way of a trial, for as long as it is needed. ``work`` is looked at for its settings."""
    if trial.way == "llama.cpp":
        with _llama_cpp(trial) as way:
            yield way
    else:
        yield _engine(trial, work) if trial.way == "engine" else _generate(trial)


def _engine(trial: Trial, work: Work) -> Way:
    """The engine as a run loads it."""
    fields = {"path": trial.model, "dtype": trial.dtype, "device": trial.device, "license": "none", **dict(trial.keys)}
    writer: Any = load_writer(LanguageModel.model_validate(fields))
    rows = writer.rows(work.settings, trial.rows or None)

    def write(job: Work) -> list[Completion]:
        return complete(writer, job.requests, job.settings, rows, job.prefixes)

    return Way(write, writer.count_tokens, lambda: rows, facts=writer.describe())


def _generate(trial: Trial) -> Way:
    """``generate()`` around the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.generation.throughput.baselines import Generator

    tokenizer = AutoTokenizer.from_pretrained(trial.model, **NO_CODE)
    model: Any = AutoModelForCausalLM.from_pretrained(trial.model, dtype=getattr(torch, trial.dtype), **NO_PICKLES)
    generator = Generator(model.to(trial.device), tokenizer, warp_copies=trial.way != "own-rows")

    def write(job: Work) -> list[Completion]:
        if trial.way == "original":
            return generator.one_by_one(job.requests, job.settings)
        return generator.batched(job.requests, job.settings, trial.rows or 96)

    return Way(
        write, lambda text: len(tokenizer(text, add_special_tokens=False).input_ids), lambda: generator.most_rows
    )


@contextmanager
def _llama_cpp(trial: Trial) -> Iterator[Way]:
    """llama.cpp's server with ``rows`` slots, asked through the writer for OpenAI-compatible servers.

    The cost is the server's; what this process spends on asking is told apart.
    """
    from benchmarks.generation.throughput.llamacpp_server import CONTEXT, SLOTS, serve

    slots = trial.rows or SLOTS
    with serve(Path(trial.gguf), slots, CONTEXT) as serving:
        server = {"base_url": serving.base_url, "model": "gguf", "dialect": "llamacpp", "concurrency": slots}
        fields = {"backend": "openai", "path": trial.model, "server": server, "license": "none"}
        writer = load_writer(LanguageModel.model_validate(fields))

        def write(job: Work) -> list[Completion]:
            return complete(writer, job.requests, job.settings)

        yield Way(write, writer.count_tokens, lambda: slots, ProcessCost((serving.process.pid,)))

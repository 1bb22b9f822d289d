"""The harness of the benchmarks: interleaved trials in fresh processes, medians with ranges, result files."""

import json
import multiprocessing
import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from hub.cli import say
from hub.durable import write_text

_CPU_INFO = Path("/proc/cpuinfo")
Result = TypeVar("Result")


class FreshProcesses:
    """Calls functions one at a time, each in a fresh process that has the modules ``preload`` imported already."""

    def __init__(self, preload: list[str]):
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, or its exception."""
        with ProcessPoolExecutor(1, mp_context=self._context, max_tasks_per_child=1) as pool:
            return pool.submit(function, *arguments).result()


def interleaved(ways: Sequence[str], rounds: int, trial: Callable[[str, int], Result]) -> dict[str, list[Result]]:
    """The results of ``trial(way, round)``: every way once in each round, each round begins with another way."""
    found: dict[str, list[Result]] = {way: [] for way in ways}
    for number in range(rounds):
        first = number % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            found[way].append(trial(way, number))
            say(f"round {number + 1} of {rounds}, {way}: {found[way][-1]}")
    return found


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median and range, over rounds, of the ratio within a round."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest, in four digits."""
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], names: int = 1) -> str:
    """A Markdown table whose first ``names`` columns are text and whose others are numbers."""
    marks = ["---" if place < names else "---:" for place in range(len(columns))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (columns, marks, *rows))


def write_results(out: Path, results: dict[str, Any], libraries: Iterable[str], device: str = "cpu") -> None:
    """Write a JSON file: the results with hardware, Python and library versions."""
    facts = {"hardware": hardware(device), "python": platform.python_version()}
    facts["versions"] = {library: version(library) for library in libraries}
    write_text(out, json.dumps(results | facts, indent=2, ensure_ascii=False, default=asdict) + "\n")
    say(f"wrote {out}")


def hardware(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores and, where used, the GPU."""
    import torch

    known = _CPU_INFO.read_text(encoding="utf-8") if _CPU_INFO.is_file() else ""
    found = re.search(r"model name\s*:\s*(.+)", known)
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": found[1] if found else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "amx": "amx_bf16" in known,
        "cores": os.cpu_count(),
        "threads": 1,
    }
    if device != "cpu":
        gpu = torch.cuda.get_device_properties(0)
        facts |= {"gpu": gpu.name, "gpu_memory_gb": round(gpu.total_memory / 2**30, 1), "cuda": torch.version.cuda}
    return facts


def has_gpu() -> bool:
    """Whether torch finds a CUDA GPU."""
    import torch

    return torch.cuda.is_available()


def single_thread() -> None:
    """One torch thread and no messages: call this first in every process."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()

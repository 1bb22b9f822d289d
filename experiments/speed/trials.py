"""The harness of the benchmarks: interleaved trials in fresh processes, and result files."""

import json
import logging
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

from sts_dino.eval.audit.command import silence_transformers
from sts_dino.hub.durable import write_text

logger = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")
Result = TypeVar("Result")


class FreshProcesses:
    """Calls functions one at a time, each in a fresh process with the modules ``preload``."""

    def __init__(self, preload: list[str]):
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a fresh process, and return its result or raise its exception.

        Function, arguments and result must be picklable. Raises BrokenProcessPool when the process
        is killed.
        """
        with ProcessPoolExecutor(1, mp_context=self._context, max_tasks_per_child=1) as pool:
            return pool.submit(function, *arguments).result()


def run_interleaved(
    ways: Sequence[str], rounds: int, trial: Callable[[str, int], Result]
) -> dict[str, list[Result]]:
    """Return way → the results of ``trial(way, round)``, one for each round, counted from 0.

    Each round begins with another way. ``ways`` has at least one way.
    """
    results: dict[str, list[Result]] = {way: [] for way in ways}
    for number in range(rounds):
        first = number % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            result = trial(way, number)
            results[way].append(result)
            logger.info(f"round {number + 1} of {rounds}, {way}: {result}")
    return results


def compute_ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the spread of the ratios ours / theirs, one for each round (``compute_spread``).

    Both sequences have a number for each round.
    """
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return compute_spread(ratios)


def compute_spread(values: Sequence[float]) -> dict[str, float]:
    """Return ``median``, ``low`` (lowest) and ``high`` (highest), in four significant digits."""
    spread = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in spread.items()}


def format_table(columns: Sequence[str], rows: Iterable[Sequence[object]], names: int = 1) -> str:
    """Format a Markdown table: the first ``names`` columns are text, the others numbers."""
    marks = ["---" if number < names else "---:" for number in range(len(columns))]
    lines = []
    for row in (columns, marks, *rows):
        cells = " | ".join(str(cell) for cell in row)
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def write_results(
    out: Path, results: dict[str, Any], libraries: Iterable[str], device: str = "cpu"
) -> None:
    """Write a JSON file: the results with hardware, Python and library versions.

    Args:
        out: the file, which is replaced.
        results: JSON values and dataclasses, which become mappings of their fields.
        libraries: names of the packages whose versions are recorded.
        device: "cpu", or another name to record the GPU, too.
    """
    facts = {"hardware": describe_hardware(device), "python": platform.python_version()}
    facts["versions"] = {library: version(library) for library in libraries}
    text = json.dumps(results | facts, indent=2, ensure_ascii=False, default=asdict)
    write_text(out, text + "\n")
    logger.info(f"wrote {out}")


def describe_hardware(device: str = "cpu") -> dict[str, Any]:
    """Return facts of this machine: processor, its features and cores.

    For another ``device`` than "cpu" the facts of the first CUDA GPU are among them.
    """
    import torch

    cpu_info = _CPU_INFO.read_text(encoding="utf-8") if _CPU_INFO.is_file() else ""
    model_name = re.search(r"model name\s*:\s*(.+)", cpu_info)
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": model_name[1] if model_name else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "amx": "amx_bf16" in cpu_info,
        "cores": os.cpu_count(),
    }
    if device != "cpu":
        gpu = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": gpu.name,
            "gpu_memory_gb": round(gpu.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return facts


def has_gpu() -> bool:
    """Return whether torch finds a CUDA GPU."""
    import torch

    return torch.cuda.is_available()


def use_one_thread() -> None:
    """Set one torch thread and silence transformers; call this first in every process."""
    import torch

    torch.set_num_threads(1)
    silence_transformers()

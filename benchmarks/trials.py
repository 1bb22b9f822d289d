"""What the benchmarks share: trials in fresh processes, medians with ranges, tables, result files with hardware."""

import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hub.cli import say
from hub.durable import write_text
from hub.errors import RunError

_CPU_INFO = Path("/proc/cpuinfo")


class FreshProcesses:
    """Calls functions one at a time, each in a fresh process that has the modules ``preload`` imported already."""

    def __init__(self, preload: list[str]):
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, or its exception."""
        with ProcessPoolExecutor(1, mp_context=self._context, max_tasks_per_child=1) as pool:
            return pool.submit(function, *arguments).result()


def said_by(module: str, *options: object, code: int = 0) -> Any:
    """The last line of ``python -m module``, as JSON. Raises RunError when it ends with another exit code."""
    command = [sys.executable, "-m", module, *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own module
    if done.returncode != code:
        raise RunError(" ".join(command[2:]), f"ended with exit code {done.returncode}, not {code}")
    return json.loads(done.stdout.splitlines()[-1])


def turned(ways: Iterable[str], number: int) -> list[str]:
    """The ways in the order of this round: another one begins each."""
    order = list(ways)
    return order[number % len(order) :] + order[: number % len(order)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest, in four digits."""
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], names: int = 1) -> str:
    """A Markdown table whose first ``names`` columns are text and whose others are numbers."""
    marks = ["---" if place < names else "---:" for place in range(len(columns))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (columns, marks, *rows))


def write_results(out: Path, results: dict[str, Any], libraries: Iterable[str], device: str = "cpu") -> None:
    """Write a JSON file: the results, and the machine, the Python and the libraries that they come from."""
    told = {"hardware": hardware(device), "python": platform.python_version()}
    told["versions"] = {library: version(library) for library in libraries}
    write_text(out, json.dumps(results | told, indent=2, ensure_ascii=False, default=asdict) + "\n")
    say(f"wrote {out}")


def hardware(device: str = "cpu") -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    known = _CPU_INFO.read_text() if _CPU_INFO.is_file() else ""
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


def quiet() -> None:
    """No talk and no progress bars of transformers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def single_thread() -> None:
    """One torch thread, no talk: called first in every process."""
    import torch

    torch.set_num_threads(1)
    quiet()

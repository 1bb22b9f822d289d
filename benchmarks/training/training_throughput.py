"""What training costs: python -m benchmarks.training.training_throughput

The runner against sentence-transformers' plain trainer; gradient caching and activation checkpointing in PromptEOL's
step of 256 triplets; the memory estimate of ``--dry-run`` against what is used. How: benchmarks/README.md.
``--preset h200`` has RoBERTa-base's and Llama-2-7B's real shapes, in bf16 on a GPU. ``--tiny`` puts tiny shapes in
their place, on a CPU if there is no GPU: a check that it runs, without meaning.
"""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import trials
from benchmarks.training.training_presets import PRESETS, Case, Result, Trial, tiny
from hub.cli import new_app, run, say
from hub.errors import InputError

app = new_app(__doc__)
MIB = 2**20
COUNTS = ("parameters", "trainable")
in_fresh_process = trials.FreshProcesses(
    [
        "benchmarks.training.training_trials",
        *(f"transformers.models.{kind}.modeling_{kind}" for kind in ("llama", "roberta")),
    ]
)
LIBRARIES = ("torch", "transformers", "sentence-transformers", "peft", "accelerate")


@app.command(no_args_is_help=False)
def main(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}")] = "cpu",
    is_tiny: Annotated[bool, typer.Option("--tiny", help="Tiny shapes: does it run?")] = False,
    only: Annotated[list[str], typer.Option(help="Cases whose name contains this; repeatable")] = [],  # noqa: B006
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds [default: the case's]")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file [default: benchmarks/results/...]")] = None,
) -> None:
    """Measure, print a table, write a JSON file with every round."""
    if preset not in PRESETS:
        raise InputError(f"--preset {preset}", "unknown", allowed=", ".join(PRESETS))
    gpu = in_fresh_process(trials.has_gpu)
    chosen = PRESETS[preset]
    if is_tiny:
        chosen = tiny(chosen, chosen.device if gpu else "cpu")
    if chosen.device != "cpu" and not gpu:
        raise InputError(f"--preset {preset}", "torch finds no CUDA GPU here", hint="use --preset cpu, or --tiny")
    cases = [case for case in chosen.cases if not only or any(part in case.name for part in only)]
    if not cases:
        raise InputError("--only", f"no case of {preset} matches {only}", allowed=[case.name for case in chosen.cases])
    result = {
        "preset": preset + (", tiny" if is_tiny else ""),
        "clock": "CPU time of one thread" if chosen.device == "cpu" else "wall clock",
        "cases": {case.name: measured(case, chosen.device, rounds or case.rounds) for case in cases},
    }
    print(table(result))
    default = "training_throughput.json" if preset == "cpu" else f"training_throughput_{preset}.json"
    path = out or Path("benchmarks/results") / default
    if is_tiny and out is None:
        return
    trials.write_results(path, result, LIBRARIES, chosen.device)


def measured(case: Case, device: str, rounds: int) -> dict[str, Any]:
    """Every round of every variant of a case in changing order, then each one's memory, measured and estimated."""
    from benchmarks.training.training_trials import estimate, measure

    runs: dict[str, list[Result]] = {name: [] for name in case.variants}
    for number in range(rounds):
        for name, results in _round(case, device, number).items():
            runs[name] += results
            say(f"{case.name}, round {number + 1}, {name}: {_told(results)}")
    memory = {}
    for name, (task, way) in case.variants.items():
        trial = Trial(replace(task, steps=2, warm_up=1), way, device, 0)
        memory[name] = (in_folder(measure, trial, True).peak_mb, in_folder(estimate, trial))
        say(f"{case.name}, {name}: peak {memory[name][0]} MiB, estimated {memory[name][1]['total'] / MIB:.0f}")
    return summary(case, runs, memory, on_cpu=device == "cpu")


def _round(case: Case, device: str, number: int) -> dict[str, list[Result]]:
    """Every variant once, on texts of this round's own: in turns, or one after another in changing order."""
    from benchmarks.training.training_trials import measure, measure_in_turns

    runs = {name: Trial(task, way, device, number) for name, (task, way) in case.variants.items()}
    order = list(runs)[:: -1 if number % 2 else 1]
    if case.turn is None:
        return {name: [in_folder(measure, runs[name], False)] for name in order}
    found: dict[str, list[Result]] = in_folder(measure_in_turns, {name: runs[name] for name in order}, case.turn)
    return found


def in_folder(function: Callable[..., Any], work: Any, *arguments: Any) -> Any:
    """The function's result in a fresh process and an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        return in_fresh_process(function, work, folder, *arguments)


def _told(results: list[Result]) -> str:
    taken = [result.wall_s / result.steps for result in results if result.wall_s is not None]
    return f"{statistics.median(taken):.3f} s a step" if taken else "out of memory"


def summary(
    case: Case, runs: dict[str, list[Result]], memory: dict[str, tuple[float | None, dict[str, int]]], on_cpu: bool
) -> dict[str, Any]:
    """A case as it is published: per variant the median step with its spread, memory, and ratios of equal rounds."""
    seconds: dict[str, list[float]] = {}
    for name, results in runs.items():
        taken = [(result.cpu_s if on_cpu else result.wall_s, result.steps) for result in results]
        seconds[name] = [value / steps for value, steps in taken if value is not None]
    first = next(iter(seconds))
    variants = {}
    for name, (task, way) in case.variants.items():
        peak, estimated = memory[name]
        variants[name] = {
            "task": asdict(task),
            "way": way,
            "seconds_a_step": _middle(seconds[name]),
            "samples_per_second": _middle([task.batch / value for value in seconds[name]]),
            f"time_over_{first}": _middle([a / b for a, b in zip(seconds[name], seconds[first], strict=False)]),
            "peak_mb": peak and round(peak, 1),
            "estimated_mb": {key: round(size / MIB, 1) for key, size in estimated.items() if key not in COUNTS},
            "estimated_over_peak": peak and round(estimated["total"] / MIB / peak, 3),
            "parameters": {key: estimated[key] for key in COUNTS},
            "rounds": [asdict(result) for result in runs[name]],
        }
    return {"variants": variants, "over": first}


def _middle(values: list[float]) -> dict[str, float] | None:
    """Median and quartiles, in four digits; None when nothing was measured."""
    if not values:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {name: float(f"{value:.4g}") for name, value in (("median", middle), ("from", low), ("to", high))}


def table(result: dict[str, Any]) -> str:
    """A Markdown table of all cases."""
    rows = []
    for name, case in result["cases"].items():
        for variant, row in case["variants"].items():
            rate, step, over = (
                row[key] for key in ("samples_per_second", "seconds_a_step", f"time_over_{case['over']}")
            )
            memory = [_shown(row["peak_mb"], ".0f"), _shown(row["estimated_over_peak"], ".2f")]
            rows.append([name, variant, _shown(rate and rate["median"], ".4g"), _spread(step), _spread(over), *memory])
    columns = "case | variant | samples/s | seconds a step | time over the first | peak MiB | estimate / peak"
    return trials.table(columns.split(" | "), rows, names=2)


def _shown(value: float | None, form: str) -> str:
    return "out of memory" if value is None else format(value, form)


def _spread(values: dict[str, float] | None) -> str:
    return "" if values is None else f"{values['median']:.4g} ({values['from']:.4g} to {values['to']:.4g})"


if __name__ == "__main__":
    run(app)

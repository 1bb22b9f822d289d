"""Rounds of trials to medians, spreads, ratios and a table. Pure."""

import statistics
from typing import Any

from benchmarks import trials

Runs = dict[str, list[dict[str, Any]]]


def summary(case: dict[str, Any], best_gflops: dict[str, float], on_cpu: bool) -> dict[str, Any]:
    """A case as it is published: per variant the median rate, its spread and every round; ratios of equal rounds."""
    runs: Runs = case["runs"]
    clock = "cpu_s" if on_cpu else "wall_s"
    rates = {name: [run["accepted"] / run[clock] for run in rounds] for name, rounds in runs.items()}
    variants = {
        name: {
            "rate": _number(statistics.median(rates[name])),
            "spread": [_number(min(rates[name])), _number(max(rates[name]))],
            "roofline_fraction": round(
                statistics.median(run["useful_gflop"] / run[clock] for run in rounds) / best_gflops[name.split()[1]], 4
            ),
            "peak_rss_mb": max(run["peak_rss_mb"] for run in rounds),
            "peak_gpu_mb": rounds[0]["peak_gpu_mb"] and max(run["peak_gpu_mb"] for run in rounds),
            "same_texts": same_texts(runs, name),
            "rounds": [{key: _number(value) for key, value in run.items() if key != "texts"} for run in rounds],
        }
        for name, rounds in runs.items()
    }
    facts = {key: value for key, value in case.items() if key != "runs"}
    return {**facts, "variants": variants, "ratios": _ratios(rates)}


def same_texts(runs: Runs, name: str) -> float | None:
    """Share of a variant's texts that the slowest variant wrote too, over the first texts both were given."""
    reference = next(iter(runs))
    if name == reference:
        return None
    pairs = [
        first == second
        for ours, theirs in zip(runs[name], runs[reference], strict=True)
        for first, second in zip(ours["texts"], theirs["texts"], strict=False)
    ]
    return round(sum(pairs) / len(pairs), 4)


def _ratios(rates: dict[str, list[float]]) -> dict[str, float]:
    """Median over the rounds of every engine variant's rate over every other way's."""
    return {
        f"{ours} / {theirs}": _number(
            statistics.median(a / b for a, b in zip(rates[ours], rates[theirs], strict=True) if b)
        )
        for ours in rates
        for theirs in rates
        if ours.startswith("engine") and not theirs.startswith("engine") and any(rates[theirs])
    }


def _number(value: Any) -> Any:
    """Four significant digits of a float."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


COLUMNS = "spread | of roofline | peak MiB | same texts | over original | over batched"


def table(result: dict[str, Any]) -> str:
    """A Markdown table of all cases."""
    rows = []
    for name, case in result["cases"].items():
        for variant, row in case["variants"].items():
            over = [_over(case["ratios"], variant, way) for way in ("original", "batched")]
            same = "" if row["same_texts"] is None else f"{row['same_texts']:.1%}"
            memory = row["peak_gpu_mb"] or row["peak_rss_mb"]
            spread = "–".join(f"{value:g}" for value in row["spread"])
            cells = [name, variant, f"{row['rate']:g}", spread, f"{row['roofline_fraction']:.1%}", f"{memory:.0f}"]
            rows.append([*cells, same, *over])
    return trials.table(["case", "variant", result["unit"], *COLUMNS.split(" | ")], rows, names=2)


def _over(ratios: dict[str, float], variant: str, way: str) -> str:
    found = [value for key, value in ratios.items() if key.startswith(f"{variant} / {way} ")]
    return f"{found[0]:g}x" if found else ""

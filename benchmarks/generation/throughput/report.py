"""Rounds of trials to medians, spreads, ratios and a table. Pure."""

import statistics
from typing import Any

from benchmarks import trials

Runs = dict[str, list[dict[str, Any]]]
REFERENCES = ("batched float32", "original float32", "batched bfloat16")  # whose texts the others' are compared with


def summary(case: dict[str, Any], best_gflops: dict[str, float], on_cpu: bool) -> dict[str, Any]:
    """A case as it is published: per variant medians and spreads and every round; ratios of equal rounds.

    A variant's name begins with its way and its dtype. Rates count the texts that ``case["counted"]`` names.
    """
    runs: Runs = case["runs"]
    clock, counted = ("cpu_s" if on_cpu else "wall_s"), case["counted"]
    rates = {name: [run[counted] / run[clock] for run in rounds] for name, rounds in runs.items()}
    facts = {key: value for key, value in case.items() if key != "runs"}
    return {
        **facts,
        "variants": {name: _variant(runs, name, rates[name], clock, best_gflops) for name in runs},
        "ratios": _ratios(rates),
        "memory_ratios": _memory_ratios(runs),
    }


def _variant(runs: Runs, name: str, rates: list[float], clock: str, best_gflops: dict[str, float]) -> dict[str, Any]:
    rounds = runs[name]
    best = best_gflops.get(name.split()[1])  # llama.cpp's dtypes have no roofline
    speed = statistics.median(run["useful_gflop"] / run[clock] for run in rounds)
    asked = sum(run["asked"] for run in rounds)
    return {
        "rate": _number(statistics.median(rates)),
        "spread": [_number(min(rates)), _number(max(rates))],
        "roofline_fraction": round(speed / best, 4) if best else None,
        "rows": rounds[0]["rows"],
        "tokens_per_text": round(sum(run["tokens"] for run in rounds) / asked, 2),
        "accepted_share": round(sum(run["accepted"] for run in rounds) / asked, 4),
        "loaded_rss_mb": max(run["loaded_rss_mb"] for run in rounds),
        "peak_rss_mb": max(run["peak_rss_mb"] for run in rounds),
        "writing_mb": round(max(map(_writing_mb, rounds)), 1),
        "peak_gpu_mb": rounds[0]["peak_gpu_mb"] and max(run["peak_gpu_mb"] for run in rounds),
        **same_texts(runs, name),
        "facts": rounds[0]["facts"],
        "rounds": [{key: _number(run[key]) for key in run if key not in ("texts", "facts")} for run in rounds],
    }


def _writing_mb(run: dict[str, Any]) -> float:
    """What writing takes beside the loaded model."""
    return float(run["peak_rss_mb"] - run["loaded_rss_mb"])


def same_texts(runs: Runs, name: str) -> dict[str, Any]:
    """Share of a variant's texts that ``generate()`` wrote too, and how many were compared: those both were given."""
    reference = next((way for way in REFERENCES if way in runs), name)
    if name == reference:
        return {"same_texts": None, "texts_compared": 0}
    pairs = [
        first == second
        for ours, theirs in zip(runs[name], runs[reference], strict=False)
        for first, second in zip(ours["texts"], theirs["texts"], strict=False)
    ]
    return {"same_texts": round(sum(pairs) / len(pairs), 4), "texts_compared": len(pairs)}


def _ratios(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Of every engine variant's rate over every other way's: the median over the rounds both have, and the range."""
    return {
        f"{ours} / {theirs}": trials.spread([a / b for a, b in zip(rates[ours], rates[theirs], strict=False) if b])
        for ours in rates
        for theirs in rates
        if ours.startswith("engine") and not theirs.startswith("engine") and any(rates[theirs])
    }


def _memory_ratios(runs: Runs) -> dict[str, dict[str, float]]:
    """The engine's memory over batched ``generate()`` of the same dtype and as many rows: all of it, and writing's."""
    return {
        f"{ours} / {theirs}": {
            "peak": _number(_most(runs[ours], "peak_rss_mb") / _most(runs[theirs], "peak_rss_mb")),
            "writing": _number(max(map(_writing_mb, runs[ours])) / max(1.0, *map(_writing_mb, runs[theirs]))),
        }
        for ours in runs
        for theirs in runs
        if ours.startswith("engine") and theirs.startswith("batched") and _alike(runs, ours, theirs)
    }


def _alike(runs: Runs, ours: str, theirs: str) -> bool:
    return ours.split()[1] == theirs.split()[1] and runs[ours][0]["rows"] == runs[theirs][0]["rows"]


def _most(rounds: list[dict[str, Any]], key: str) -> float:
    return float(max(run[key] for run in rounds))


def _number(value: Any) -> Any:
    """Four significant digits of a float."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


COLUMNS = "rate | spread | of roofline | rows | tokens | accepted | peak MiB | writing MiB | same texts"
OVER = ("batched", "batched float32", "own-rows", "original", "llama.cpp")  # a way alone: of the same dtype first


def table(result: dict[str, Any]) -> str:
    """A Markdown table of all cases: rates and memory, then the engine's rate over each other way's."""
    rows = []
    for name, case in result["cases"].items():
        for variant, row in case["variants"].items():
            roofline = "–" if row["roofline_fraction"] is None else f"{row['roofline_fraction']:.1%}"
            same = f"{row['same_texts']:.1%} of {row['texts_compared']}" if row["texts_compared"] else ""
            cells = [
                f"{row['rate']:g}",
                "–".join(f"{value:g}" for value in row["spread"]),
                roofline,
                row["rows"],
                f"{row['tokens_per_text']:g}",
                f"{row['accepted_share']:.0%}",
                f"{row['peak_gpu_mb'] or row['peak_rss_mb']:.0f}",
                f"{row['writing_mb']:.0f}",
                same,
            ]
            rows.append([name, variant, *cells, *(_over(case["ratios"], variant, other) for other in OVER)])
    columns = ["case", "variant", *COLUMNS.split(" | "), *(f"over {other}" for other in OVER)]
    memory = [
        f"{name}, {pair}: peak {found['peak']:g}x, beside the loaded model {found['writing']:g}x"
        for name, case in result["cases"].items()
        for pair, found in case["memory_ratios"].items()
    ]
    skipped = [f"left out: {name}: {reason}" for name, reason in result["skipped"].items()]
    return "\n".join([trials.table(columns, rows, names=2), *memory, *skipped])


def _over(ratios: dict[str, dict[str, float]], variant: str, other: str) -> str:
    """The ratio over a named variant, or over a way: with the variant's own dtype where that was measured."""
    found = {key.partition(" / ")[2]: value for key, value in ratios.items() if key.partition(" / ")[0] == variant}
    same = f"{other} {variant.split()[1]}"
    chosen = found.get(other) or found.get(same)
    if chosen is None and other in ("original", "llama.cpp"):
        chosen = next((value for key, value in found.items() if key.startswith(f"{other} ")), None)
    return f"{chosen['median']:g}x" if chosen else ""

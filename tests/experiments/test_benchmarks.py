"""Benchmarks: the harness interleaves trials; every benchmark runs on tiny work."""

from pathlib import Path

from sts_dino.experiments.speed import throughput
from sts_dino.experiments.speed.trials import compute_ratios, compute_spread, run_interleaved


def test_rounds_begin_with_another_way_and_ratios_are_within_a_round(capsys):
    order = []
    runs = run_interleaved(
        ["a", "b"],
        3,
        lambda way, number: order.append(way) or (number + 1) * (2 if way == "a" else 1),
    )
    assert order == ["a", "b", "b", "a", "a", "b"] and runs == {"a": [2, 4, 6], "b": [1, 2, 3]}
    assert compute_ratios(runs["a"], runs["b"]) == {"median": 2, "low": 2, "high": 2}
    assert compute_spread([1.23456, 3, 2]) == {"median": 2, "low": 1.235, "high": 3}


def test_all_ways_generate_the_same_texts_in_float32():
    """``generate()`` in batches is the slow reference of the engine."""
    case = throughput.CASES["demo-lm"]

    def texts(way, count=12):
        trial = throughput.Trial(
            case, way, "float32", 2, 5, throughput.DEMO_LM, Path("none"), "cpu"
        )
        result = throughput.measure(trial)
        assert result.usage.wall_s > 0 and result.accepted <= len(result.texts) >= count
        return result.texts

    assert texts("batched") == texts("engine") == texts("workers-2") and len(texts("engine")) == 12
    assert sorted(texts("shards-1")) == sorted(texts("shards-600")), (
        "rejected texts, generated again, included"
    )
    assert texts("products-2", 4) == [""] * 4

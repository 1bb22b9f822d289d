"""Benchmarks: the harness interleaves and takes ratios within a round; every benchmark runs on tiny work."""

from pathlib import Path

from benchmarks import throughput
from benchmarks.trials import interleaved, ratios, spread


def test_rounds_begin_with_another_way_and_ratios_are_within_a_round(capsys):
    order = []
    runs = interleaved(["a", "b"], 3, lambda way, number: order.append(way) or (number + 1) * (2 if way == "a" else 1))
    assert order == ["a", "b", "b", "a", "a", "b"] and runs == {"a": [2, 4, 6], "b": [1, 2, 3]}
    assert ratios(runs["a"], runs["b"]) == {"median": 2, "low": 2, "high": 2}
    assert spread([1.23456, 3, 2]) == {"median": 2, "low": 1.235, "high": 3}


def test_all_ways_generate_the_same_texts_in_float32():
    """``generate()`` in batches is the slow reference of the engine."""
    case = throughput.CASES["demo-lm"]

    def texts(way, count=12):
        trial = throughput.Trial(case, way, "float32", 2, 5, throughput.DEMO_LM, Path("none"), "cpu")
        found = throughput.measure(trial)
        assert found.wall_s > 0 and found.accepted <= len(found.texts) >= count
        return found.texts

    assert texts("batched") == texts("engine") == texts("workers-2") and len(texts("engine")) == 12
    assert sorted(texts("shards-1")) == sorted(texts("shards-600")), "rejected texts, generated again, included"
    assert texts("products-2", 4) == [""] * 4

"""Benchmarks: the harness interleaves trials; every benchmark runs on tiny work."""

from collections import defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sts_dino.experiments.speed import throughput
from sts_dino.experiments.speed.trials import compute_ratios, compute_spread, run_interleaved
from sts_dino.hub.errors import InputError


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


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.5])
def test_no_round_repeats_a_source_sentence_of_another(scale):
    trials = []

    def collect(_, trial):
        trials.append(trial)
        return throughput.Result(1, ["a text"], throughput.Usage(1.0, 1.0, 1.0, 1.0))

    case = throughput.Case("demo-lm", {"batched float32": 3, "engine float32": 10})
    throughput.run_case(case, throughput.DEMO_LM, Path("none"), "cpu", 3, scale, collect)
    numbers_by_round = defaultdict(set)
    for trial in trials:
        numbers_by_round[trial.start].update(range(trial.start, trial.start + trial.count))
    rounds = list(numbers_by_round.values())
    assert len(rounds) == 3 and max(map(len, rounds)) == max(1, round(scale * 10))
    assert sum(map(len, rounds)) == len(set().union(*rounds))


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


def test_a_load_without_a_gguf_file_is_left_out(tmp_path, caplog):
    (tmp_path / "config.json").write_text("{}")
    words = ["throughput", "--only", "load of a GGUF", "--lm", str(tmp_path)]
    with caplog.at_level("INFO"):
        result = CliRunner().invoke(throughput.app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "left out: load of a GGUF" in caplog.text


def test_a_named_gguf_file_must_be_there(tmp_path):
    words = ["throughput", "--gguf", str(tmp_path / "typo.gguf")]
    result = CliRunner().invoke(throughput.app, words)
    assert str(result.exception).startswith(f"--gguf {words[-1]}: no such file")


def test_each_name_of_a_case_chooses_or_is_refused():
    assert list(throughput.choose_cases(["demo-lm", "products"])) == ["demo-lm", "lm, products"]
    with pytest.raises(InputError, match="no case contains 'typo'"):
        throughput.choose_cases(["demo-lm", "typo"])

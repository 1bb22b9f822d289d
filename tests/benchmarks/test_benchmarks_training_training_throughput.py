import json
import threading

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.training import training_throughput
from benchmarks.training.training_presets import PRESETS, Case, Result, Trial, small
from benchmarks.training.training_trials import estimate, measure
from benchmarks.training.training_turns import play
from hub.errors import InputError


class Loop:
    """A training loop of ``steps`` steps that writes down who moved."""

    def __init__(self, name: str, steps: int, seen: list[str], fails_at: int | None = None):
        self.name, self.steps, self.seen, self.fails_at = name, steps, seen, fails_at

    def add_callback(self, callback) -> None:
        self.callback = callback

    def train(self) -> None:
        for step in range(self.steps):
            state = type("State", (), {"global_step": step})
            self.callback.on_step_begin(None, state, None)
            if step == self.fails_at:
                raise ValueError("broken")
            self.seen.append(self.name)
        self.callback.on_train_end(None, None, None)


def test_loops_take_turns_after_the_warm_up():
    seen: list[str] = []
    taken = play({name: Loop(name, 1 + 6, seen) for name in "ab"}, warm_up=1, steps=2)
    assert sorted(seen[:2]) == ["a", "b"]
    assert seen[2:] == list("aabbaabbaabb")
    assert {name: len(turns) for name, turns in taken.items()} == {"a": 3, "b": 3}


def test_a_loop_that_fails_ends_the_other():
    loops = {"a": Loop("a", 7, []), "b": Loop("b", 7, [], fails_at=3)}
    with pytest.raises(ValueError, match="broken"):
        play(loops, warm_up=1, steps=2)
    assert threading.active_count() < 10


def test_the_summary_has_medians_and_ratios_of_equal_turns():
    task = PRESETS["cpu"].cases[0].variants["plain"][0]
    case = Case("x", {"plain": (task, "plain"), "runner": (task, "runner")}, 1, 2)
    runs = {
        "plain": [Result(2, cpu, 9.0) for cpu in (2.0, 4.0, 6.0)],
        "runner": [Result(2, cpu, 9.0) for cpu in (3.0, 4.0, 3.0)],
    }
    mib = 2**20
    memory = {
        name: (200.0, {"total": 150 * mib, "weights": 50 * mib, "parameters": 7, "trainable": 3}) for name in runs
    }
    found = training_throughput.summary(case, runs, memory, on_cpu=True)["variants"]
    assert found["plain"]["seconds_a_step"] == {"median": 2.0, "from": 1.5, "to": 2.5}
    assert found["runner"]["time_over_plain"] == {"median": 1.0, "from": 0.75, "to": 1.25}
    assert found["runner"]["samples_per_second"]["median"] == pytest.approx(32 / 1.5, rel=1e-3)
    assert (found["plain"]["estimated_over_peak"], found["plain"]["parameters"]["trainable"]) == (0.75, 3)
    memory["runner"] = (None, memory["runner"][1])
    runs["runner"] = [Result(2, None, None)]
    result = {"cases": {"x": training_throughput.summary(case, runs, memory, on_cpu=False)}}
    assert "| x | runner | out of memory |" in training_throughput.table(result)


@pytest.mark.slow("runs a benchmark")
def test_the_command_measures_a_case_of_the_gpu_preset_in_tiny_form(tmp_path):
    out = tmp_path / "results.json"
    options = ["--preset", "h200", "--tiny", "--only", "RoBERTa-base, Cos", "--out", str(out)]
    result = CliRunner().invoke(training_throughput.app, options, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(out.read_text())["cases"]
    duel = found["RoBERTa-base, CosineSimilarityLoss"]["variants"]
    assert [len(row["rounds"]) for row in duel.values()] == [2, 2]
    assert duel["runner"]["time_over_plain"]["median"] > 0
    assert "| RoBERTa-base, CosineSimilarityLoss | runner |" in result.stdout


@pytest.mark.slow("runs a benchmark")
def test_prompteols_step_runs_with_and_without_caching_and_is_estimated(tmp_path):
    (case,) = (case for case in PRESETS["h200"].cases if case.name.startswith("PromptEOL"))
    assert len(case.variants) == 6
    activations = {}
    for name in ("whole", "cached, 32 texts, checkpointed"):
        task, way = case.variants[name]
        trial = Trial(small(task), way, "cpu", 0)
        result = measure(trial, str(tmp_path / name), False)
        assert result.steps == 2
        assert result.cpu_s > 0
        activations[name] = estimate(trial, str(tmp_path / name))["activations"]
    assert activations["cached, 32 texts, checkpointed"] < 0.5 * activations["whole"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_preset_says_that_there_is_no_gpu():
    result = CliRunner().invoke(training_throughput.app, ["--preset", "h200"])
    assert isinstance(result.exception, InputError)
    assert "no CUDA GPU" in str(result.exception)

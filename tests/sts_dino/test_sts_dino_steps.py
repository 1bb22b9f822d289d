"""Stages in a row: what is finished is not done again, a failure says why and leaves the rest to the next call."""

from pathlib import Path

import psutil
import pytest

from hub.errors import RunError
from sts_dino.steps import LOG, Journal, Step, progress, run_steps

STAGE = """
import sys
from pathlib import Path
product, mode = sys.argv[1:]
print("Loading weights: 100%|#####", end="\\r", file=sys.stderr)
for percent in (10, 60, 100):
    print(f"pairs: {percent:3}%|#####", end="\\r", file=sys.stderr, flush=True)
print("warning: a text of 9,000 words", file=sys.stderr)
if mode == "fail":
    print("error: the disk is full", file=sys.stderr)
    sys.exit(1)
path = Path(product)
path.write_text(path.read_text() + "x" if path.exists() else "x")
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    (tmp_path / "stage_for_steps.py").write_text(STAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def step(name, mode="", recipes=()):
        words = str(tmp_path / name), mode
        return Step(name, "stage_for_steps", words, 10.0, tmp_path / name, recipes)

    return step


def test_finished_steps_are_not_done_again_until_what_decides_them_changes(stage, tmp_path, capfd):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1")
    steps = [stage("first", recipes=(recipe,)), stage("second")]
    for _ in range(2):
        run_steps(steps, tmp_path)
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["x", "x"]
    assert "warning: a text of 9,000 words" in capfd.readouterr().err
    recipe.write_text("seed: 2")
    run_steps(steps, tmp_path)
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["xx", "x"]
    (tmp_path / "second").unlink()  # a product that is gone is made again
    run_steps(steps, tmp_path)
    assert (tmp_path / "second").read_text() == "x"


def test_a_failed_step_says_its_error_and_keeps_what_was_done_before(stage, tmp_path):
    with pytest.raises(RunError, match=r"second: the disk is full; all it said stands in .*steps\.log; run the same"):
        run_steps([stage("first"), stage("second", "fail"), stage("third")], tmp_path)
    assert Journal(tmp_path).has(stage("first")) and not Journal(tmp_path).has(stage("second", "fail"))
    assert not (tmp_path / "third").exists()
    assert "error: the disk is full" in (tmp_path / LOG).read_text()


def test_how_far_a_step_is_follows_its_own_bar_and_not_those_of_libraries(stage, tmp_path):
    parts = list(progress(stage("first"), tmp_path / LOG))
    assert parts[0] < 0.1 and max(parts) == 1.0 and 0.6 in parts


def test_an_interrupted_step_is_ended(tmp_path, monkeypatch):
    (tmp_path / "endless_stage.py").write_text(
        "import sys, time\nprint('begun', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    going = progress(Step("endless", "endless_stage", (), 10.0, tmp_path / "none"), tmp_path / LOG)
    next(going)
    (child,) = (one for one in psutil.Process().children() if "endless_stage" in one.cmdline())
    going.close()  # as an interruption does
    assert not child.is_running()


def test_what_a_failed_step_says_of_going_on_is_said_once(stage, tmp_path, monkeypatch):
    said = "the disk is full; free some and run the same command again"
    (tmp_path / "stage_for_steps.py").write_text(STAGE.replace("the disk is full", said))
    with pytest.raises(RunError) as failed:
        run_steps([stage("first", "fail")], tmp_path)
    assert str(failed.value).count("run the same command again") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_log_on_a_full_disk_is_named(stage, tmp_path):
    (tmp_path / LOG).symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path / LOG}'"):
        list(progress(stage("first"), tmp_path / LOG))

"""The runner of child processes: finished steps are skipped, failures are one line, nothing
outlives its parent.
"""

import subprocess
import sys
import threading
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import psutil
import pytest
import typer

from sts_dino.hub.errors import InputError, RunError
from sts_dino.release import stages
from sts_dino.release.stages import (
    Step,
    follow_step,
    name_failure,
    read_answer,
    run_parallel,
    run_stage,
    run_steps,
)

STAGE = """
import json, os, signal, sys, time
from pathlib import Path
mode, product = sys.argv[1:]
if mode == "killed":
    print("encoding 500 sentences", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "endless":
    print("begun", file=sys.stderr, flush=True)
    time.sleep(600)
print("Loading weights: 100%|#####", end="\\r", file=sys.stderr)
for percent in (10, 60, 100):
    print(f"pairs: {percent:3}%|#####", end="\\r", file=sys.stderr, flush=True)
print("warning: a text of 9,000 words", file=sys.stderr)
if mode != "make":
    print(f"error: {mode}", file=sys.stderr)
    sys.exit(2 if mode == "bad input" else 1)
path = Path(product)
path.write_text(path.read_text() + "x" if path.exists() else "x")
print("table")
print(json.dumps({"made": product}))
"""


@pytest.fixture(autouse=True)
def stage_script(tmp_path, monkeypatch) -> Path:
    """Every command is a script that makes a file, fails or never ends."""
    script = tmp_path / "stage.py"
    script.write_text(STAGE)
    monkeypatch.setattr(
        stages, "build_command_line", lambda *words: [sys.executable, str(script), *words]
    )
    return tmp_path


def step(folder: Path, name: str, mode: str = "make") -> Step:
    return Step(name, mode, (str(folder / name),), 10.0, (folder / name).exists)


def test_finished_steps_are_not_run_again(tmp_path, capfd):
    steps = [step(tmp_path, "first"), step(tmp_path, "second")]
    for _ in range(2):
        run_steps(steps, tmp_path / "log")
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["x", "x"]
    assert "warning: a text of 9,000 words" in capfd.readouterr().err
    (tmp_path / "second").unlink()
    run_steps(steps, tmp_path / "log")
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["x", "x"]


def test_a_failed_step_is_named_with_its_error_and_later_steps_do_not_run(tmp_path):
    problem = "the disk is full; free some and run the same command again"
    steps = [step(tmp_path, "first"), step(tmp_path, "second", problem), step(tmp_path, "third")]
    with pytest.raises(
        RunError, match=r"second: the disk is full.*; all messages are in .*log"
    ) as failed:
        run_steps(steps, tmp_path / "log")
    assert str(failed.value).count("run the same command again") == 1
    assert (tmp_path / "first").exists() and not (tmp_path / "third").exists()
    assert f"error: {problem}" in (tmp_path / "log").read_text()


def test_the_memory_of_a_step_is_the_most_that_was_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "measure_tree_rss_mb", chain([5, 9], repeat(1)).__next__)
    monkeypatch.setattr(stages, "TICK_SECONDS", 0.001)
    found = list(follow_step(step(tmp_path, "first"), tmp_path / "log"))
    assert found[-1].memory_mb == 9 and "%|" not in (tmp_path / "log").read_text()


def test_the_bar_shows_the_predicted_seconds_of_all_steps_and_each_result_is_handed_on(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    steps, seen = [step(tmp_path, "first"), step(tmp_path, "second")], list[tuple[str, bool]]()
    (tmp_path / "second").touch()
    run_steps(
        steps, tmp_path / "log", lambda one, taken: seen.append((one.name, taken is not None))
    )
    assert seen == [("first", True), ("second", False)]
    shown = capfd.readouterr().err
    assert "00:00<?" in shown and "first:" in shown and "00:20]" not in shown


def test_an_interrupted_step_is_ended(tmp_path):
    going = follow_step(step(tmp_path, "none", "endless"), tmp_path / "log")
    next(going)
    (child,) = (one for one in psutil.Process().children() if "endless" in one.cmdline())
    going.close()  # as an interruption does
    assert not child.is_running()
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(KeyboardInterrupt):
        run_stage("endless", "none", stop=stop)  # of a thread
    assert not [one for one in psutil.Process().children() if "endless" in one.cmdline()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_log_on_a_full_disk_is_named(tmp_path):
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path / 'log'}'"):
        list(follow_step(step(tmp_path, "first"), tmp_path / "log"))


def test_parallel_calls_are_ordered_and_a_failure_ends_the_others():
    both = threading.Barrier(2, timeout=30)
    assert run_parallel([lambda _: both.wait() >= 0, lambda _: both.wait() >= 0], 2) == [True, True]
    ended = []

    def waits(name: str, stop: threading.Event) -> None:
        assert stop.wait(30)
        ended.append(name)

    def fails(_: threading.Event) -> None:
        raise RunError("here", "failed")

    with pytest.raises(RunError):
        run_parallel(
            [fails, partial(waits, "beside"), partial(waits, "later"), partial(waits, "last")], 2
        )
    assert "beside" in ended and "last" not in ended

    # The failure of a later call ends the earlier ones as well
    ended.clear()
    with pytest.raises(RunError):
        run_parallel([partial(waits, "beside"), fails, *repeat(partial(waits, "last"), 3)], 2)
    assert ended[0] in ("beside", "last") and len(ended) < 4


def test_an_answer_is_the_last_line_and_a_failure_is_of_its_kind(tmp_path):
    assert read_answer("make", str(tmp_path / "a")) == {"made": str(tmp_path / "a")}
    with pytest.raises(InputError, match="sts-dino bad input: bad input"):
        read_answer("bad input", "none")
    with pytest.raises(RunError, match="sts-dino no room: no room"):
        read_answer("no room", "none")


def test_a_killed_stage_names_the_signal_and_not_its_last_message(tmp_path):
    with pytest.raises(RunError, match=r"sts-dino killed: was killed \(SIGKILL\)$"):
        read_answer("killed", "none")
    with pytest.raises(RunError, match=r"first: was killed \(SIGKILL\); all messages are in .*log"):
        list(follow_step(step(tmp_path, "first", "killed"), tmp_path / "log"))


@pytest.mark.parametrize(("code", "kind"), [(1, RunError), (2, InputError), (130, typer.Exit)])
def test_one_of_many_stages_that_fails_is_named_and_an_interruption_passes(code, kind, tmp_path):
    with pytest.raises(kind), name_failure("seed 1: train", tmp_path, "run the same command again"):
        raise typer.Exit(code)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_stage_is_killed_with_its_parent():
    code = (
        "import subprocess, sys; from sts_dino.release.stages import die_with_parent\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], preexec_fn=die_with_parent)\n"
        "print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    child.wait(30)

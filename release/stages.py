"""Stages as child processes: ``sts-dino COMMAND WORDS``, each of which ends with this process.

``run_stage`` runs one stage; ``run_steps`` runs a chain with one progress bar and a log, and skips what is done;
``run_parallel`` runs independent calls in threads; ``answer_of`` returns the JSON that a stage prints.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import IO, Any, TypeVar

import typer
from tqdm import tqdm

from hub import cli
from hub.errors import InputError, RunError
from hub.process import INTERRUPTED, tree_rss_mb

Result = TypeVar("Result")

POLL = 0.1  # seconds between two looks at a stage that a thread waits for
SHOWN = 3  # last lines of a failed stage that are searched for its error
AGAIN = "run the same command again"
TICK = 1.0  # seconds between two looks at a step
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # opened before any fork
_SET_PARENT_DEATH_SIGNAL = 1
_BAR = re.compile(r"\d%\|")  # a line of tqdm's


def command_line(command: str, *words: str) -> list[str]:
    """The words that start ``sts-dino command words`` with this Python."""
    return [sys.executable, "-m", "sts_dino", command, *words]


class StageProcess:
    """A started stage. Its results (stdout) are not shown, its messages (stderr) are, unless ``streams`` are given.

    As a context manager it ends with its block, however that ends: only Linux ends it when this process is killed.
    """

    def __init__(self, command: str, *words: str, environment: Mapping[str, str] | None = None, **streams: Any):
        self.name = f"sts-dino {command} {' '.join(words)}"
        if streams.get("stderr") is None:
            cli.say(f"== {self.name}")
        options: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, **streams}
        end = die_with_parent if sys.platform == "linux" else None
        self._process = subprocess.Popen(command_line(command, *words), preexec_fn=end, **options)  # noqa: S603 - ours

    def __enter__(self) -> "StageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self.stop()

    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait for the end. Raises typer.Exit with the stage's code when it failed, RunError when it was killed."""
        code = self._process.wait()
        if code < 0:
            hint = f"is the memory enough? {AGAIN} to resume"
            raise RunError(self.name, f"was killed ({signal.Signals(-code).name})", hint=hint)
        if code:
            raise typer.Exit(code)

    def stop(self) -> None:
        """Terminate the process and wait for its end."""
        self._process.terminate()
        self._process.wait()


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent is killed, so that no orphan holds a run directory (prctl(2))."""
    assert _LIBC is not None
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def run_stage(command: str, *words: str, stop: Event | None = None, **options: Any) -> None:
    """Run a stage to its end. In a thread, end it and raise KeyboardInterrupt when ``stop`` is set.

    options: those of ``StageProcess``. Raises what ``StageProcess.wait`` does.
    """
    with StageProcess(command, *words, **options) as stage:
        while stop is not None and stage.running():
            if stop.wait(POLL):
                raise KeyboardInterrupt
        stage.wait()


@contextmanager
def named(what: str, place: Path, hint: str) -> Iterator[None]:
    """Turn the failure of one of many stages into InputError or RunError at ``place``; an interruption passes."""
    try:
        yield
    except typer.Exit as end:
        if end.exit_code == INTERRUPTED:
            raise
        kind = InputError if end.exit_code == InputError.exit_code else RunError
        raise kind(place, f"{what} failed; its error is above", hint=hint) from None


def run_parallel(calls: Sequence[Callable[[Event], Result]], workers: int) -> list[Result]:
    """Results of ``calls`` in order, ``workers`` at a time in threads.

    Each call gets an event. After the first failure, waiting calls are dropped and the event is set for running ones.
    """
    stop, pool = Event(), ThreadPoolExecutor(workers)
    try:
        return [one.result() for one in [pool.submit(call, stop) for call in calls]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        stop.set()
        pool.shutdown()


def answer_of(command: str, *words: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a stage whose words make it print JSON, and return its answer.

    Raises InputError or RunError, as the stage ended, with the last line of its messages.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with StageProcess(command, *words, environment=environment, **pipes) as stage:
        printed, messages = (stream.decode("utf-8", "replace") for stream in stage._process.communicate())
        code = stage._process.returncode
    if code:
        lines = [line for line in messages.splitlines() if line.strip()]
        problem = lines[-1].removeprefix("error: ") if lines else f"failed (exit code {code})"
        kind = InputError if code == InputError.exit_code else RunError
        raise kind(f"sts-dino {command}", problem)
    return json.loads(printed.splitlines()[-1])


@dataclass(frozen=True)
class Step:
    """A stage of a chain: its command line, the seconds that it is expected to take, and whether it is done already."""

    name: str
    command: str
    words: tuple[str, ...]
    seconds: float
    is_done: Callable[[], bool]


@dataclass(frozen=True)
class Taken:
    """What a step took: seconds, and the most resident memory of this process and its children together, in MiB."""

    seconds: float
    memory_mb: float


def run_steps(
    steps: Sequence[Step],
    log: Path,
    after: Callable[[Step, Taken | None], object] | None = None,
    said: Sequence[str] = (),
) -> None:
    """Run the steps that are not done, in order, under one progress bar in seconds; their messages go to ``log``.

    The bar's total is what the steps are expected to take; it changes where a step takes longer, ends early or is done.
    after: called after every step; None: the step was done. said: warnings that are not shown again. Raises RunError
    for the first step that fails, with its error. Results stay, so the next call resumes there.
    """
    started, left = time.monotonic(), sum(step.seconds for step in steps)
    bar = tqdm(total=left, unit="s", file=sys.stderr, bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}")
    with bar:
        for step in steps:
            bar.set_description_str(step.name)
            before, left = time.monotonic() - started, left - step.seconds
            taken: Taken | None = None
            if not step.is_done():
                for taken in progress(step, log, said):
                    bar.total = before + max(step.seconds, taken.seconds) + left
                    bar.update(before + taken.seconds - bar.n)
            bar.total = time.monotonic() - started + left
            if after is not None:
                bar.clear()
                after(step, taken)
            bar.refresh()


def progress(step: Step, log: Path, said: Sequence[str] = ()) -> Iterator[Taken]:
    """Run a step and yield, every second, what it has taken. Raises RunError when the stage fails."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    started, last, memory, looked = time.monotonic(), list[str](), 0.0, 0.0
    with log.open("ab", buffering=0) as kept:
        _keep(kept, f"== {step.name}: sts-dino {step.command} {' '.join(step.words)}")
        with StageProcess(step.command, *step.words, environment=environment, stderr=subprocess.PIPE) as child:
            for line in _lines(child._process.stderr):
                elapsed = time.monotonic() - started
                if line.strip() and not _BAR.search(line):
                    _keep(kept, line)
                    last = [*last, line][-SHOWN:]
                    if line.startswith("warning:") and line.strip() not in said:
                        cli.say(line)
                if elapsed >= looked:
                    memory, looked = max(memory, tree_rss_mb()), elapsed + TICK
                yield Taken(elapsed, memory)
            code = child._process.wait()
    if code:
        errors = [line.removeprefix("error: ") for line in last if line.startswith("error: ")]
        problem = errors[-1] if errors else f"failed (exit code {code})"
        again = "" if AGAIN in problem else f"; {AGAIN} to resume"
        raise RunError(step.name, problem, hint=f"all messages are in {log}{again}")


def _keep(log: IO[bytes], line: str) -> None:
    """Append a message. Raises OSError that names the log, so that a full disk is reported with its file."""
    try:
        log.write(f"{line}\n".encode())
    except OSError as error:
        error.filename = log.name
        raise


def _lines(stream: Any) -> Iterator[str]:
    """Lines as they come, also those that a progress bar overwrites (ended by a carriage return); "" after a second."""
    lines = Queue[str | None]()

    def read() -> None:
        held = b""
        while block := stream.read1(65536):
            *whole, held = re.split(rb"[\r\n]", held + block)
            for line in whole:
                lines.put(line.decode("utf-8", "replace"))
        lines.put(held.decode("utf-8", "replace"))
        lines.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TICK)
        except Empty:
            line = ""
        if line is None:
            return
        yield line

"""Stages as child processes: ``sts-dino COMMAND WORDS``, each of which ends with this process.

``run_stage`` runs one stage; ``run_steps`` runs a chain with one progress bar and a log, and skips
what is done; ``run_parallel`` runs independent calls in threads; ``read_answer`` returns the
JSON that a stage prints.
"""

import ctypes
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import IO, Any, TypeVar

import typer

from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.process import EXIT_INTERRUPTED, measure_tree_rss_mb
from sts_dino.hub.progress import ProgressBar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STOP_CHECK_SECONDS = 0.1  # between two looks at a stage that a thread waits for
SEARCHED_LINES = 3  # the last of a failed step, which have its error
RERUN_HINT = "run the same command again"
TICK_SECONDS = 1.0  # between two looks at a step
READ_BYTES = 65536  # the most of a stage's messages that are read at a time
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # opened before any fork
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_PROGRESS_BAR = re.compile(r"\d%\|")  # a line of tqdm


def build_command_line(command: str, *words: str) -> list[str]:
    """Return the words that start ``sts-dino COMMAND WORDS`` with this Python."""
    return [sys.executable, "-m", "sts_dino", command, *words]


class StageProcess:
    """A started stage, ``sts-dino COMMAND WORDS``, as a child process.

    The terminal shows its messages (stderr) and not its results (stdout). As a context manager the
    stage ends with its block. When this process is killed, Linux ends the stage, too.

    Args:
        command: the command of ``sts-dino``.
        words: its arguments and options.
        environment: of the stage (default: this process's).
        streams: ``stdout`` and ``stderr`` of subprocess.Popen, instead of the above.
    """

    def __init__(
        self,
        command: str,
        *words: str,
        environment: Mapping[str, str] | None = None,
        **streams: Any,
    ):
        self.name = f"sts-dino {command} {' '.join(words)}"
        if streams.get("stderr") is None:
            logger.info(f"== {self.name}")
        options: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, **streams}
        end = die_with_parent if sys.platform == "linux" else None
        line = build_command_line(command, *words)
        self._process = subprocess.Popen(line, preexec_fn=end, **options)  # noqa: S603 - ours

    def __enter__(self) -> "StageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running():
            self.stop()

    def is_running(self) -> bool:
        """Return whether the process is still running."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the stage ends.

        Raises typer.Exit with the stage's code when it failed, RunError when it was killed.
        """
        code = self._process.wait()
        if code < 0:
            hint = f"is the memory enough? {RERUN_HINT} to resume"
            raise RunError(self.name, f"was killed ({signal.Signals(-code).name})", hint=hint)
        if code:
            raise typer.Exit(code)

    def stop(self) -> None:
        """Terminate the process and wait for its end."""
        self._process.terminate()
        self._process.wait()


def die_with_parent() -> None:
    """Ask Linux to kill this process with its parent (prctl(2)): no orphan keeps a lock."""
    assert _LIBC is not None
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def run_stage(command: str, *words: str, stop: Event | None = None, **options: Any) -> None:
    """Run a stage to its end.

    Args:
        command: the command of ``sts-dino``.
        words: its arguments and options.
        stop: an event that another thread sets to end the stage; None: the stage is not ended.
        options: environment and streams of ``StageProcess``.

    Raises KeyboardInterrupt once ``stop`` is set, typer.Exit with the stage's code when the stage
    failed, and RunError when it was killed.
    """
    with StageProcess(command, *words, **options) as stage:
        while stop is not None and stage.is_running():
            if stop.wait(STOP_CHECK_SECONDS):
                raise KeyboardInterrupt
        stage.wait()


@contextmanager
def name_failure(what: str, place: Path, hint: str) -> Iterator[None]:
    """Turn the failure of a stage in this block into an error that names it.

    Args:
        what: the stage, in words.
        place: the folder or file that the error names.
        hint: what the user can do.

    Raises InputError when the stage ended with the exit code of bad input, RunError for another
    code. An interruption (typer.Exit with ``EXIT_INTERRUPTED``) passes unchanged.
    """
    try:
        yield
    except typer.Exit as end:
        if end.exit_code == EXIT_INTERRUPTED:
            raise
        kind = InputError if end.exit_code == InputError.exit_code else RunError
        raise kind(place, f"{what} failed; its error is above", hint=hint) from None


def run_parallel(calls: Sequence[Callable[[Event], Result]], workers: int) -> list[Result]:
    """Run ``calls`` in threads, ``workers`` at a time, and return their results in order.

    All calls get the same event. After the first failure the event is set, so that running calls
    end early; waiting calls do not start, and the failure is raised.
    """
    stop = Event()
    pool = ThreadPoolExecutor(workers)
    try:
        futures = [pool.submit(call, stop) for call in calls]
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        stop.set()
        pool.shutdown()


def read_answer(
    command: str,
    *words: str,
    environment: Mapping[str, str] | None = None,
    shown_prefix: str | tuple[str, ...] | None = None,
) -> Any:
    """Run a stage that prints JSON, and return the parsed last line of its output.

    Args:
        command: the command of ``sts-dino``.
        words: its arguments and options.
        environment: of the stage (default: this process's).
        shown_prefix: messages of the stage that begin with this text, or with one of several, are
            shown as they come; None shows none.

    Raises InputError when the stage ended with the exit code of bad input, RunError when it failed
    otherwise, both with the last line of its messages.
    """
    lines = list[str]()

    def read_messages() -> None:
        """Collect the messages of the stage, and show those that begin with the prefix."""
        for line in _read_lines(stage._process.stderr):
            if line.strip():
                lines.append(line)
            if shown_prefix is not None and line.startswith(shown_prefix):
                logger.info(line)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with StageProcess(command, *words, environment=environment, **pipes) as stage:
        reader = Thread(target=read_messages, daemon=True)
        reader.start()
        assert stage._process.stdout is not None
        stdout = stage._process.stdout.read()
        code = stage._process.wait()
        reader.join()
    if code:
        problem = lines[-1].removeprefix("error: ") if lines else f"failed (exit code {code})"
        kind = InputError if code == InputError.exit_code else RunError
        raise kind(f"sts-dino {command}", problem)
    return json.loads(stdout.decode("utf-8", "replace").splitlines()[-1])


@dataclass(frozen=True)
class Step:
    """A stage of a chain.

    ``seconds`` is the expected duration; ``is_done`` tells whether the step's results exist.
    """

    name: str
    command: str
    words: tuple[str, ...]
    seconds: float
    is_done: Callable[[], bool]


@dataclass(frozen=True)
class StepUsage:
    """What a step used: seconds, and the peak memory of this process and its children in MiB."""

    seconds: float
    memory_mb: float


def run_steps(
    steps: Sequence[Step],
    log: Path,
    after: Callable[[Step, StepUsage | None], object] | None = None,
    known_warnings: Sequence[str] = (),
) -> None:
    """Run the steps that are not done, in order, under one progress bar in seconds.

    The bar's total is the sum of the expected seconds; it changes when a step takes longer, ends
    early or is done already. The results of finished steps stay, so the next call resumes there.

    Args:
        steps: the chain.
        log: the file that the steps' messages are appended to.
        after: called after every step with the step and its usage; the usage is None when the step
            was done already.
        known_warnings: lines of warnings that are not shown again.

    Raises RunError for the first step that fails, with the error of that step.
    """
    started = time.monotonic()
    remaining = sum(step.seconds for step in steps)
    bar = ProgressBar(
        total=remaining,
        unit="s",
        bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}",
        line_format="{desc}: {percentage:.0f} % of all steps, {remaining} left",
    )
    with bar:
        for step in steps:
            bar.set_description_str(step.name)
            step_start = time.monotonic() - started
            remaining -= step.seconds
            usage: StepUsage | None = None
            if not step.is_done():
                for usage in follow_step(step, log, known_warnings):
                    bar.total = step_start + max(step.seconds, usage.seconds) + remaining
                    bar.update(step_start + usage.seconds - bar.n)
            bar.total = time.monotonic() - started + remaining
            if after is not None:
                bar.clear()
                after(step, usage)
            bar.refresh()


def follow_step(step: Step, log: Path, known_warnings: Sequence[str] = ()) -> Iterator[StepUsage]:
    """Run a step and yield its usage so far, once for each message and at least every second.

    Args:
        step: the step to run.
        log: the file that its messages are appended to, without progress bars.
        known_warnings: lines of warnings that are not shown again.

    Raises RunError with the step's error when it fails.
    """
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    last_lines: deque[str] = deque(maxlen=SEARCHED_LINES)
    memory_mb = 0.0
    next_look = 0.0
    with log.open("ab", buffering=0) as log_file:
        _append_line(log_file, f"== {step.name}: sts-dino {step.command} {' '.join(step.words)}")
        with StageProcess(
            step.command, *step.words, environment=environment, stderr=subprocess.PIPE
        ) as child:
            for line in _read_lines(child._process.stderr):
                if line.strip() and not _PROGRESS_BAR.search(line):
                    _append_line(log_file, line)
                    last_lines.append(line)
                    if line.startswith("warning:") and line.strip() not in known_warnings:
                        logger.info(line)
                elapsed = time.monotonic() - started
                if elapsed >= next_look:
                    memory_mb = max(memory_mb, measure_tree_rss_mb())
                    next_look = elapsed + TICK_SECONDS
                yield StepUsage(elapsed, memory_mb)
            code = child._process.wait()
    if code:
        problem = f"failed (exit code {code})"
        for line in last_lines:
            if line.startswith("error: "):
                problem = line.removeprefix("error: ")
        again = "" if RERUN_HINT in problem else f"; {RERUN_HINT} to resume"
        raise RunError(step.name, problem, hint=f"all messages are in {log}{again}")


def _append_line(log: IO[bytes], line: str) -> None:
    """Append a line to the log. An OSError, e.g. of a full disk, names the log as its file."""
    try:
        log.write(f"{line}\n".encode())
    except OSError as error:
        error.filename = log.name
        raise


def _read_lines(stream: Any) -> Iterator[str]:
    """Yield the lines of a stream as they come, and "" after a second without a line.

    A carriage return ends a line, too: a progress bar overwrites its line with the next one.
    """
    lines = Queue[str | None]()

    def read_stream() -> None:
        """Put the lines of the stream into the queue, and None at its end."""
        unfinished = b""
        while block := stream.read1(READ_BYTES):
            *finished, unfinished = re.split(rb"[\r\n]", unfinished + block)
            for line in finished:
                lines.put(line.decode("utf-8", "replace"))
        lines.put(unfinished.decode("utf-8", "replace"))
        lines.put(None)

    Thread(target=read_stream, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TICK_SECONDS)
        except Empty:
            line = ""
        if line is None:
            return
        yield line

"""Stages as child processes: ``sts-dino COMMAND WORDS``. A stage ends when this process ends.

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
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import Any, TypeVar

import typer

from sts_dino.hub.durable import name_in_errors
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.process import EXIT_INTERRUPTED, measure_tree_rss_mb

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STOP_CHECK_SECONDS = 0.1  # between two checks whether a stage should stop or has ended
SEARCHED_LINES = 3  # last messages of a failed step; one of them has its error
RERUN_HINT = "run the same command again"
TICK_SECONDS = 1.0  # between two measurements of a step's memory
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # opened before any fork
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_PROGRESS_BAR = re.compile(r"\d%\|")  # a line of tqdm


def build_command_line(command: str, *words: str) -> list[str]:
    """Return the words that start ``sts-dino COMMAND WORDS`` with this Python."""
    return [sys.executable, "-m", "sts_dino", command, *words]


class StageProcess:
    """A started stage, ``sts-dino COMMAND WORDS``, as a child process.

    The terminal shows its messages (stderr) and not its results (stdout). As a context manager, the
    object stops the stage at the end of its block. When this process is killed, Linux kills the
    stage, too.

    Args:
        command: the command of ``sts-dino``.
        words: the command's arguments and options.
        environment: environment variables of the stage; None: those of this process.
        streams: ``stdout`` and ``stderr`` of subprocess.Popen, which replace the defaults above.
    """

    def __init__(
        self,
        command: str,
        *words: str,
        environment: Mapping[str, str] | None = None,
        **streams: Any,
    ):
        self.name = f"sts-dino {command} {' '.join(words)}"
        # Announce the stage, unless the caller takes its messages and decides what is shown
        if streams.get("stderr") is None:
            logger.info(f"== {self.name}")
        options: dict[str, Any] = {
            "env": environment,
            "encoding": "utf-8",
            "errors": "replace",
            "stdout": subprocess.DEVNULL,
            **streams,
        }
        if sys.platform == "linux":
            options["preexec_fn"] = die_with_parent
        command_line = build_command_line(command, *words)
        self.process = subprocess.Popen(command_line, **options)  # noqa: S603 - ours

    def __enter__(self) -> "StageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running():
            self.process.terminate()
            self.process.wait()

    def is_running(self) -> bool:
        """Return whether the process is still running."""
        return self.process.poll() is None

    def wait(self) -> None:
        """Wait until the stage ends.

        Raises typer.Exit with the stage's code when it failed, RunError when it was killed.
        """
        code = self.process.wait()
        if code < 0:  # the negative number of the signal
            hint = f"is the memory enough? {RERUN_HINT} to resume"
            raise RunError(self.name, describe_exit(code), hint=hint)
        if code:
            raise typer.Exit(code)


def describe_exit(code: int) -> str:
    """Describe how a failed process ended: by exit code ``code``, or by signal -``code``."""
    if code < 0:
        names = {item.value: item.name for item in signal.Signals}  # real-time signals have none
        return f"was killed ({names.get(-code, f'signal {-code}')})"
    return f"failed (exit code {code})"


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies (prctl(2)), so that no lock stays."""
    assert _LIBC is not None
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def run_stage(command: str, *words: str, stop: Event | None = None, **options: Any) -> None:
    """Run a stage to its end.

    Args:
        command: the command of ``sts-dino``.
        words: the command's arguments and options.
        stop: an event that another thread sets to end the stage; None: the stage runs to its end.
        options: ``environment`` and streams of ``StageProcess``.

    Raises KeyboardInterrupt once ``stop`` is set, typer.Exit with the stage's code when the stage
    failed, and RunError when it was killed.
    """
    with StageProcess(command, *words, **options) as stage:
        while stop is not None and stage.is_running():
            if stop.wait(STOP_CHECK_SECONDS):
                raise KeyboardInterrupt
        stage.wait()


@contextmanager
def name_failure(stage: str, place: Path, hint: str) -> Iterator[None]:
    """Turn the failure of a stage in this block into an error that names the stage.

    Args:
        stage: the stage, in words.
        place: the folder or file that the error names.
        hint: what the user can do.

    Raises InputError when the stage ended with the exit code of bad input, RunError for another
    code. An interruption (typer.Exit with ``EXIT_INTERRUPTED``) and all other exceptions pass
    unchanged, so the RunError of a killed stage names its command.
    """
    try:
        yield
    except typer.Exit as end:
        if end.exit_code == EXIT_INTERRUPTED:
            raise
        kind = InputError if end.exit_code == InputError.exit_code else RunError
        raise kind(place, f"{stage} failed; its error is above", hint=hint) from None


def run_parallel(calls: Sequence[Callable[[Event], Result]], workers: int) -> list[Result]:
    """Run ``calls`` in threads, ``workers`` at a time; return the results in the order of calls.

    All calls get the same event. As soon as a call fails, the event is set, so that running calls
    end early, and waiting calls are cancelled. The failure is raised once all running calls have
    ended.
    """
    stop = Event()
    pool = ThreadPoolExecutor(workers)
    try:
        futures = [pool.submit(call, stop) for call in calls]
        ended = wait(futures, return_when=FIRST_EXCEPTION).done
        # ``result`` raises the failure; without one, all calls have ended.
        return [future.result() for future in futures if future in ended]
    finally:
        # After a failure: start no waiting call, ask the running calls to end, and wait for that.
        # After a success no call is left.
        pool.shutdown(wait=False, cancel_futures=True)
        stop.set()
        pool.shutdown()


def read_answer(
    command: str,
    *words: str,
    environment: Mapping[str, str] | None = None,
    shown_prefix: str | tuple[str, ...] = (),
) -> Any:
    """Run a stage that prints JSON, and return the parsed last line of its output.

    Args:
        command: the command of ``sts-dino``.
        words: the command's arguments and options.
        environment: environment variables of the stage; None: those of this process.
        shown_prefix: messages of the stage that begin with this text, or with one of several, are
            shown as they come; (): none is shown.

    Raises InputError when the stage ended with the exit code of bad input, RunError when it failed
    otherwise or was killed. The error of a failure has the last line of the stage's messages, or
    without one the exit code; that of a kill has the signal.
    """
    # The answer goes to a file: a full pipe would stop the stage
    problem = ""
    with TemporaryFile() as answer:
        with StageProcess(
            command, *words, environment=environment, stdout=answer, stderr=subprocess.PIPE
        ) as stage:
            for line in _read_lines(stage.process.stderr):
                if line.strip():
                    problem = line.removeprefix("error: ")
                if line.startswith(shown_prefix):
                    logger.info(line)
            code = stage.process.wait()
        answer.seek(0)
        stdout = answer.read().decode("utf-8", "replace")

    # Raise the stage's error, or parse its answer
    if code:
        kind = InputError if code == InputError.exit_code else RunError
        if code < 0 or not problem:  # the last message of a killed stage is no error
            problem = describe_exit(code)
        raise kind(f"sts-dino {command}", problem)
    return json.loads(stdout.splitlines()[-1])


@dataclass(frozen=True)
class Step:
    """A stage of a chain.

    ``seconds`` is the expected duration; ``is_done`` returns whether the step's results exist.
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
        after: called after every step that did not fail, with the step and its usage; the usage is
            None when the step was done already.
        known_warnings: lines of warnings (``warning: …``) that are not shown again.

    Raises RunError for the first step that fails, with the error of that step, and OSError when the
    log cannot be written. The errors of ``after`` pass.
    """
    started = time.monotonic()
    remaining = sum(step.seconds for step in steps)  # expected seconds of the steps to come
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

            # Run the step; its share of the bar grows when it takes longer than expected
            if not step.is_done():
                # The usage of the last message is that of the whole step
                for usage in follow_step(step, log, known_warnings):
                    bar.total = step_start + max(step.seconds, usage.seconds) + remaining
                    bar.update(step_start + usage.seconds - bar.n)

            # The step may have ended early, or was done already
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

    Raises RunError with the step's error when it fails, OSError when the log cannot be written.
    """
    # Messages come at once, and without the tokenizers' warning about forks
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    last_lines: deque[str] = deque(maxlen=SEARCHED_LINES)
    memory_mb = 0.0
    next_measurement = 0.0  # seconds after the start

    # Log the messages, and measure the memory, until the step ends
    with log.open("ab", buffering=0) as log_file:

        def append_line(line: str) -> None:
            """Append a line to the log; an error, e.g. of a full disk, names the log."""
            with name_in_errors(log):
                log_file.write(f"{line}\n".encode())

        append_line(f"== {step.name}: sts-dino {step.command} {' '.join(step.words)}")
        with StageProcess(
            step.command, *step.words, environment=environment, stderr=subprocess.PIPE
        ) as child:
            for line in _read_lines(child.process.stderr):
                if line.strip() and not _PROGRESS_BAR.search(line):
                    append_line(line)
                    last_lines.append(line)
                    if line.startswith("warning:") and line.strip() not in known_warnings:
                        logger.info(line)
                elapsed = time.monotonic() - started
                if elapsed >= next_measurement:
                    memory_mb = max(memory_mb, measure_tree_rss_mb())
                    next_measurement = elapsed + TICK_SECONDS
                yield StepUsage(elapsed, memory_mb)
            code = child.process.wait()

    # Raise the error among the last messages
    if code:
        problem = describe_exit(code)
        for line in last_lines:
            if line.startswith("error: "):
                problem = line.removeprefix("error: ")
        hint = f"all messages are in {log}"
        if RERUN_HINT not in problem:
            hint += f"; {RERUN_HINT} to resume"
        raise RunError(step.name, problem, hint=hint)


def _read_lines(stream: Any) -> Iterator[str]:
    """Yield the lines of a text stream as they come, and "" after each second without a line.

    The "" lets the caller act while a stage is silent. A carriage return ends a line, too: a
    progress bar overwrites its line with the next one.
    """
    lines = Queue[str | None]()

    def read_stream() -> None:
        """Put the lines of the stream into the queue, and None at its end."""
        for line in stream:
            lines.put(line.removesuffix("\n"))
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

"""Stages in a row, each a child process: finished ones are not done again, one bar shows how far all of them are.

A stage's talk goes to a log; of it, warnings are shown, and how far its own bar is. ``steps.json`` beside the log keeps
what was finished, by what decides it: a step is done again when its recipe or its words have changed.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from hub import cli
from hub.durable import write_text
from hub.errors import RunError
from release.child_process import die_with_parent

JOURNAL, LOG = "steps.json", "steps.log"
SHOWN = 3  # last lines of a failed stage
AGAIN = "run the same command again"
LEAST = 0.1  # of a step that passes while it loads and has no bar yet
_BAR = re.compile(r"^(?P<name>[^:|%]*):? *(?P<percent>\d{1,3})%\|")
_OF_LIBRARIES = re.compile(r"Loading|Generating|Map|Filter|Saving|Fetching|Writing model", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """A stage's command: what it is called, its name for ``sts-dino``, its words, and how long it is expected to take.

    recipes: files that decide what it makes, beside its words. product: what is there when it is done.
    """

    name: str
    command_name: str
    words: tuple[str, ...]
    seconds: float
    product: Path
    recipes: tuple[Path, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command line that runs it."""
        return [sys.executable, "-m", "sts_dino", self.command_name, *self.words]

    @property
    def key(self) -> str:
        """Hash of all that decides what the step makes."""
        parts = [self.command_name, *self.words, *(path.read_text(encoding="utf-8") for path in self.recipes)]
        return sha256("\0".join(parts).encode()).hexdigest()


class Journal:
    """Which steps are finished, and how long each took."""

    def __init__(self, folder: Path):
        self.path = folder / JOURNAL
        self._done: dict[str, dict[str, Any]] = (
            json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        )

    def has(self, step: Step) -> bool:
        """Whether a step was finished as it stands, and its product is still there."""
        return self._done.get(step.name, {}).get("key") == step.key and step.product.exists()

    def add(self, step: Step, seconds: float) -> None:
        """Note a finished step."""
        self._done[step.name] = {"key": step.key, "seconds": round(seconds, 1)}
        write_text(self.path, json.dumps(self._done, indent=2) + "\n")

    def seconds(self, step: Step) -> float:
        """How long a finished step took."""
        return float(self._done[step.name]["seconds"])


def run_steps(steps: Sequence[Step], folder: Path) -> Journal:
    """Run the steps that are not finished, in order.

    Raises RunError for one that fails, with its last words; what it has made stays, and the next call goes on there.
    """
    journal = Journal(folder)
    done = [journal.has(step) for step in steps]
    total = sum(step.seconds for step in steps)
    bar = tqdm(total=round(total), unit="s", file=sys.stderr, bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}")
    with bar:
        before = 0.0
        for step, finished in zip(steps, done, strict=True):
            bar.set_description_str(step.name)
            if not finished:
                started = time.monotonic()
                for part in progress(step, folder / LOG):
                    bar.update(round(before + part * step.seconds) - bar.n)
                journal.add(step, time.monotonic() - started)
            before += step.seconds
            bar.update(round(before) - bar.n)
    return journal


def progress(step: Step, log: Path) -> Iterator[float]:
    """Run a step; while it runs, what part of it is done, by its own bar or else by the time that it took.

    Raises RunError when it fails.
    """
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    started, last, own = time.monotonic(), list[str](), 0.0
    with log.open("ab", buffering=0) as kept:  # nothing is left to be written when it is closed
        _keep(kept, f"== {step.name}: sts-dino {step.command_name} {' '.join(step.words)}")
        child = subprocess.Popen(  # noqa: S603 - our own modules
            step.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        assert child.stderr is not None
        try:
            for line in _lines(child.stderr):
                found = _BAR.match(line)
                if found and not _OF_LIBRARIES.search(found["name"]):
                    own = max(own, min(int(found["percent"]), 100) / 100)
                elif not found and line.strip():
                    _keep(kept, line)
                    last = [*last, line][-SHOWN:]
                    if line.startswith("warning:"):
                        cli.say(line)
                by_time = min((time.monotonic() - started) / max(step.seconds, 1e-9), LEAST)
                yield max(own, by_time)
            code = child.wait()
        finally:
            if child.poll() is None:  # interrupted
                child.terminate()
                child.wait()
    if code:
        said = next((line.removeprefix("error: ") for line in reversed(last) if line.startswith("error: ")), None)
        problem = said or f"failed (exit code {code})"
        again = "" if AGAIN in problem else f"; {AGAIN} to go on"
        raise RunError(step.name, problem, hint=f"all it said stands in {log}{again}")


def _keep(log: IO[bytes], line: str) -> None:
    """Write a line of talk. Raises OSError that names the log: a full disk is told by its file."""
    try:
        log.write(f"{line}\n".encode())
    except OSError as error:
        error.filename = log.name
        raise


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines as they come, also those that a bar overwrites (ended by a carriage return)."""
    held = b""
    while block := stream.read1(65536):  # type: ignore[attr-defined]  # a pipe is a BufferedReader
        *whole, held = re.split(rb"[\r\n]", held + block)
        yield from (line.decode("utf-8", "replace") for line in whole)
    if held:
        yield held.decode("utf-8", "replace")

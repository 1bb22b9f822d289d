"""Steps of an experiment: child processes that are done once, found by what decides them, with their CPU seconds."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import typer

from hub import cli
from hub.durable import make_folder, write_text
from hub.errors import RunError
from release.child_process import die_with_parent, named

POLL = 0.1  # seconds between two looks at a child
NOTE = 5.0  # seconds after which its CPU time is noted: as much of it is lost by a kill
HINT = "what is finished is kept: the same command goes on"


@dataclass(frozen=True)
class Step:
    """A finished step: its CPU seconds, those of interrupted attempts included, and what it found."""

    seconds: float
    result: Any


def digest(*parts: Any) -> str:
    """Twelve hexadecimal digits of the SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


class NotDone(Exception):
    """A step is not finished, and was not to be done now."""


class Steps:
    """The steps below ``folder``, each noted in ``steps/KIND-KEY.json``. May be used by several threads.

    ``finished_only``: none is done, and one that is not finished raises NotDone.
    """

    def __init__(self, folder: Path, finished_only: bool = False):
        self.folder, self.finished_only = folder, finished_only
        self.stop = threading.Event()  # set: every running child is ended
        self._locks = defaultdict[str, threading.Lock](threading.Lock)
        self._guard = threading.Lock()

    def lock(self, name: str) -> threading.Lock:
        """The lock of that name, which only one step holds at a time."""
        with self._guard:
            return self._locks[name]

    def once(
        self, kind: str, key: str, words: list[str], what: str, out: Path, found: Callable[[float], Any] | None = None
    ) -> Step:
        """The step of this key, done now unless it is finished and ``out`` is there: ``python -m WORDS``.

        ``found``: gives its result, from the time when it was begun. ``what`` names it in messages. Raises InputError
        or RunError when the command fails.
        """
        with self.lock(f"{kind}-{key}"):
            notes = self._notes(kind, key)
            if "result" in notes and out.exists():
                return Step(sum(notes["seconds"]), notes["result"])
            if self.finished_only:
                raise NotDone(kind)
            if "result" in notes:  # somebody removed what it had made
                notes = {}
            before: list[float] = notes.get("seconds", [])
            told: dict[str, Any] = {"command": ["python", "-m", *words], "began": notes.get("began", time.time())}

            def note(seconds: float, more: Mapping[str, Any] | None = None) -> None:
                whole = {**told, "seconds": [*before, round(seconds, 2)], **(more or {})}
                write_text(self._path(kind, key), json.dumps(whole, indent=1, ensure_ascii=False) + "\n")

            make_folder(self._path(kind, key).parent)
            cli.say(f"{what}: {kind}")
            with named(f"{what}: {words[0]}", self._path(kind, key), HINT):
                spent = self._run(words, note)
            result = found(told["began"]) if found else None
            note(spent, {"result": result})
            cli.say(f"{what}: {kind} took {sum([*before, spent]):,.0f} CPU seconds")
            return Step(sum([*before, spent]), result)

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / "steps" / f"{kind}-{key}.json"

    def _notes(self, kind: str, key: str) -> dict[str, Any]:
        try:
            notes: dict[str, Any] = json.loads(self._path(kind, key).read_bytes())
        except FileNotFoundError:
            return {}
        return notes

    def _run(self, words: list[str], note: Callable[[float], None]) -> float:
        """Run a command to its end, with one thread. Gives its CPU seconds and those of its children."""
        command = f"python -m {' '.join(words)}"
        cli.say(f"== {command}")
        process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", *words],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        noted = time.monotonic()
        try:
            while True:
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    break
                if self.stop.is_set():
                    raise KeyboardInterrupt
                if time.monotonic() - noted > NOTE:
                    note(_seconds_so_far(process.pid))
                    noted = time.monotonic()
                time.sleep(POLL)
        finally:
            if process.returncode is None:  # an interruption, an error, or another thread's stop
                process.terminate()
                process.wait()
        spent = usage.ru_utime + usage.ru_stime
        if process.returncode:
            note(spent)
        if process.returncode < 0:
            raise RunError(command, f"was killed (signal {-process.returncode})", hint=f"is the memory enough? {HINT}")
        if process.returncode:
            raise typer.Exit(process.returncode)
        return spent


def _seconds_so_far(pid: int) -> float:
    """CPU seconds of a running process, its children, and those of them that ended."""
    try:
        parent = psutil.Process(pid)
        own = parent.cpu_times()
        living = [child.cpu_times() for child in parent.children(recursive=True)]
    except psutil.NoSuchProcess:  # it ended between the two looks
        return 0.0
    return sum(one.user + one.system + one.children_user + one.children_system for one in (own, *living))

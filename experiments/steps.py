"""Steps of an experiment: commands of sts-dino in child processes, each run once, with a journal and CPU seconds."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import typer

from hub import cli
from hub.durable import make_folder, write_text
from hub.errors import RunError
from release.stages import die_with_parent, named

POLL = 0.1  # seconds between two looks at a child
NOTE = 5.0  # seconds between two notes of its CPU time: a kill loses at most this much of it
HINT = "finished steps are kept: run the same command again to resume"


def digest(*parts: Any) -> str:
    """Twelve hexadecimal digits of the SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


class Steps:
    """The steps in ``folder``, each recorded in ``steps/KIND-KEY.json``."""

    def __init__(self, folder: Path):
        self.folder = folder

    def once(self, kind: str, key: str, words: list[str], what: str, out: Path) -> float:
        """Run ``sts-dino WORDS`` unless its step is finished and ``out`` exists. Return its CPU seconds.

        Interrupted attempts count. ``what`` names the step in messages. Raises InputError or RunError when the command
        fails.
        """
        path = self.folder / "steps" / f"{kind}-{key}.json"
        notes: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        if notes.get("finished") and out.exists():
            return float(sum(notes["seconds"]))
        before: list[float] = [] if notes.get("finished") else notes.get("seconds", [])  # else its output was removed

        def note(seconds: float, finished: bool = False) -> None:
            facts = {"command": ["sts-dino", *words], "seconds": [*before, round(seconds, 2)], "finished": finished}
            write_text(path, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")

        make_folder(path.parent)
        cli.say(f"{what}: {kind}")
        with named(f"{what}: {words[0]}", path, HINT):
            seconds = self._run(words, note)
        note(seconds, finished=True)
        cli.say(f"{what}: {kind} took {sum([*before, seconds]):,.0f} CPU seconds")
        return sum([*before, seconds])

    def _run(self, words: list[str], note: Callable[[float], None]) -> float:
        """Run a command to its end, with one thread. Return its CPU seconds and those of its children."""
        command = f"sts-dino {' '.join(words)}"
        cli.say(f"== {command}")
        process = subprocess.Popen(  # noqa: S603 - our own commands
            [sys.executable, "-m", "sts_dino", *words],
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
                if time.monotonic() - noted > NOTE:
                    note(_seconds_so_far(process.pid))
                    noted = time.monotonic()
                time.sleep(POLL)
        finally:
            if process.returncode is None:  # an interruption or an error
                process.terminate()
                process.wait()
        seconds = usage.ru_utime + usage.ru_stime
        if process.returncode:
            note(seconds)
        if process.returncode < 0:
            raise RunError(command, f"was killed (signal {-process.returncode})", hint=f"out of memory? {HINT}")
        if process.returncode:
            raise typer.Exit(process.returncode)
        return seconds


def _seconds_so_far(pid: int) -> float:
    """CPU seconds of a running process, of its children, and of children that ended."""
    try:
        parent = psutil.Process(pid)
        own = parent.cpu_times()
        living = [child.cpu_times() for child in parent.children(recursive=True)]
    except psutil.NoSuchProcess:  # it ended between the two looks
        return 0.0
    return sum(one.user + one.system + one.children_user + one.children_system for one in (own, *living))

"""Steps of an experiment: commands of sts-dino in child processes, each run once, with a journal and CPU seconds."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hub import cli
from hub.durable import make_folder, write_text
from release.stages import StageProcess, named

POLL = 0.1  # seconds between two looks at a child
NOTE = 5.0  # seconds between two notes of its CPU time: a kill loses at most this much of it
HINT = "finished steps are kept: run the same command again to resume"


def digest(*parts: Any) -> str:
    """Twelve hexadecimal digits of the SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Made:
    """A file or folder that steps made, and the CPU seconds that they took, with those of its inputs."""

    path: Path
    seconds: float


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
        with named(f"{what}: {words[0]}", path, HINT):
            seconds = self._run(words, note)
        note(seconds, finished=True)
        cli.say(f"{what}: {kind} took {sum([*before, seconds]):,.0f} CPU seconds")
        return sum([*before, seconds])

    def _run(self, words: list[str], note: Callable[[float], None]) -> float:
        """Run a command to its end, with one thread. Return the CPU seconds of it and its children."""
        os.environ["OMP_NUM_THREADS"] = "1"
        before, noted = _ended(), time.monotonic()
        with StageProcess(*words) as stage:
            while stage.running():
                time.sleep(POLL)
                if time.monotonic() - noted > NOTE:
                    note(_ended() - before + _running())
                    noted = time.monotonic()
            note(_ended() - before)
            stage.wait()
        return _ended() - before


def _ended() -> float:
    """CPU seconds of the children that ended."""
    usage = os.times()
    return usage.children_user + usage.children_system


def _running() -> float:
    """CPU seconds of the children that run, and of theirs."""
    seconds = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds

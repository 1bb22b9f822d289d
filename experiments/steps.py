"""Steps of an experiment: commands of sts-dino in child processes, each run once, with a journal and CPU seconds."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub import cli
from hub.durable import make_folder, write_text
from release.stages import named, run_stage

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

        ``what`` names the step in messages. Raises InputError or RunError when the command fails.
        """
        path = self.folder / "steps" / f"{kind}-{key}.json"
        notes: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        if notes.get("finished") and out.exists():
            return float(sum(notes["seconds"]))
        make_folder(path.parent)
        with named(f"{what}: {words[0]}", path, HINT):
            seconds = self._run(words)
        facts = {"command": ["sts-dino", *words], "seconds": [round(seconds, 2)], "finished": True}
        write_text(path, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        cli.say(f"{what}: {kind} took {seconds:,.0f} CPU seconds")
        return seconds

    def _run(self, words: list[str]) -> float:
        """Run a command to its end, with one thread. Return the CPU seconds of it and its children."""
        os.environ["OMP_NUM_THREADS"] = "1"
        before = os.times()
        run_stage(*words)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

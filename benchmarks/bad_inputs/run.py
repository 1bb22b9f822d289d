"""Runs a case as a user would: a child process in a folder of its own."""

import ctypes
import os
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bad_inputs.case import LM, Box, Case

ROOT = Path(__file__).resolve().parents[2]
CPU_SECONDS = 2.0  # of a refusal for which no model has to be loaded
SECONDS = 120  # then it hangs
_LIBC = ctypes.CDLL(None)
_DROP, _OF_ROOT = 24, (1, 2)  # PR_CAPBSET_DROP; reading and writing what permissions forbid: a user has not that
HOME = "/home/me"  # what results call a case's folder
CLOSED = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Refusal:
    """How a case ended: exit code, what stood on stderr and stdout, CPU and wall seconds; and what is wrong with it."""

    code: int
    told: str
    printed: str
    cpu_s: float
    wall_s: float

    @property
    def message(self) -> str:
        """The line of its error."""
        return next((line for line in self.told.splitlines() if line.startswith("error: ")), "")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a case: no Hub, no token, caches of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE"))}
    own = {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "home"), "HF_ENDPOINT": CLOSED, "COLUMNS": "200"}
    return {**kept, **own, **more}


def refused(case: Case, box: Box) -> Refusal:
    """Make the case's input in its folder and run its command line there."""
    case.make(box)
    with case.during(box) as given:
        words = shlex.split(case.words.format(lm=LM, **given))
        return called(words, box.folder, environment(box.folder, **case.environment, **given), case.file_limit)


def called(words: list[str], folder: Path, variables: dict[str, str], file_limit: int | None = None) -> Refusal:
    """``sts-dino`` with these words, in a child process."""

    def limited() -> None:
        for capability in _OF_ROOT:
            _LIBC.prctl(_DROP, capability)
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "sts_dino", *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        preexec_fn=limited,
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Refusal(done.returncode, done.stderr, done.stdout, round(cpu, 2), round(wall, 2))


def faults(case: Case, found: Refusal) -> list[str]:
    """What is not as it should be: the exit code, the number of lines, what the line does not say, the CPU time."""
    errors = [line for line in found.told.splitlines() if line.startswith("error: ")]
    wrong = [] if found.code == case.code else [f"exit code {found.code}, not {case.code}"]
    wrong += [] if len(errors) == 1 else [f"{len(errors)} lines of error"]
    wrong += [f"its line does not say {said!r}" for said in case.said if said not in found.message]
    wrong += ["a traceback"] if "Traceback" in found.told else []
    after = found.told.splitlines()[-1:] if errors else []
    wrong += ["something after its error"] if after and after[0] not in errors else []
    slow = found.cpu_s > CPU_SECONDS and not case.model
    return [*wrong, f"{found.cpu_s} CPU-seconds"] if slow else wrong


def row(case: Case, found: Refusal, folder: Path) -> dict[str, Any]:
    """A case and how it ended, as it is kept: without the places of this machine."""
    message = found.message.removeprefix("error: ")
    for place, shown in ((folder, HOME), (folder.parent, HOME), (ROOT, "sts-dino")):
        message = message.replace(str(place), shown)
    seconds = {"cpu_s": found.cpu_s, "wall_s": found.wall_s}
    return {"did": case.did, "command": f"sts-dino {case.words}", "message": message, "code": found.code, **seconds}

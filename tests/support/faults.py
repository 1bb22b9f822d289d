"""A Hub with faults on purpose, and processes that publish to it and may be killed at any moment."""

import contextlib
import importlib
import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import forked_python

sys.path.append(str(Path(__file__).parents[2] / "hub_server" / "tests"))  # of a forked process

from fault_injection import FaultyLocalHub, name_request

from sts_dino.cli import COMMANDS
from sts_dino.hub.contract.run_dir import read_manifest

# of every wait in a publishing process: what is left, and seconds at most
WAITS, LONGEST_WAIT = 0.01, 0.03
TIMEOUT = 0.5  # seconds that it waits for an answer
STARTED = "generator-started"  # a file beside the run directories
PRELOADED = ("sts_dino.release.run",)


class FaultyHub:
    """A local Hub in a process of its own whose faults are switched on and off while it runs."""

    def __init__(self, root: Path, part_bytes: int = 256 << 20, **settings: Any):
        self._plan = root / "faults.json"
        self.plan(share=0.0)
        options = ["--verbose", "--part-bytes", str(part_bytes)]
        self.hub = FaultyLocalHub(self._plan, root / "hub", options=options, **settings).start()
        self._read = self._lines = 0  # of the log

    def plan(self, **fields: Any) -> None:
        """Replace the plan of faults; the next request obeys it."""
        partial = self._plan.with_suffix(".new")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(fields))
        partial.replace(self._plan)

    def answered(self) -> Counter[str]:
        """Kind of request → how often it was handled."""
        found = re.findall(r"hub_server ([A-Z]+) (\S+) \d{3} ", self.hub.log_file.read_text())
        return Counter(
            name_request({"method": method, "raw_path": path.encode()}) for method, path in found
        )

    def traffic(self) -> int:
        """How many lines the log holds: requests answered and faults."""
        with self.hub.log_file.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read, self._lines = self._read + len(new), self._lines + new.count(b"\n")
        return self._lines

    def injected(self) -> Counter[tuple[str, str, str]]:
        """Kind of request, fault and "before" or "after" → how often."""
        found = re.findall(
            r"hub_server\.faults fault (\S+) (.+) (before|after)$",
            self.hub.log_file.read_text(),
            re.M,
        )
        return Counter(found)


class Running:
    """A process that a ``Launcher`` forked."""

    def __init__(self, pid: int, answers: Any, said: Path):
        self.pid, self._answers, self._said, self._code = pid, answers, said, None

    def alive(self) -> bool:
        return self._code is None and not select.select([self._answers], [], [], 0)[0]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def code(self) -> int:
        """Wait for its end; the exit code, or minus the signal."""
        self._code = int(self._answers.readline()) if self._code is None else self._code
        return self._code

    def said(self) -> str:
        """All it has written to stdout and stderr."""
        return self._said.read_text() if self._said.is_file() else ""


class Launcher:
    """Forks processes from one that has imported modules (``forked_python``); use it as a context
    manager.
    """

    script = Path(__file__).resolve()  # whose functions it calls

    def __init__(self, environment: dict[str, str], folder: Path, *preloaded: str):
        self._folder, self._count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        root = str(Path(__file__).resolve().parents[2])
        self._environment = environment | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        # short, as paths of sockets are
        self._place = Path(tempfile.mkdtemp(prefix="launcher-")) / "socket"
        server = self._environment, self._place, sys.executable
        self._server = forked_python.started(*server, *(preloaded or PRELOADED))

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=60)
        shutil.rmtree(self._place.parent)

    def start(self, function: str, *arguments: Any) -> Running:
        """Call a function of the script in a process of its own."""
        self._count += 1
        said = self._folder / f"{self._count:04d}-{function}.txt"
        words = [str(self.script), function, json.dumps(arguments)]
        with said.open("ab") as written, Path(os.devnull).open("rb") as silence:
            streams = [silence.fileno(), written.fileno(), written.fileno()]
            return Running(
                *forked_python.asked(str(self._place), words, self._environment, streams), said
            )


# What follows runs in the forked processes.


class LaidRun:
    """Stands for the generator: the test lays out the shards, this says that it is at work until
    they are complete.
    """

    def __init__(self, _module: str, *arguments: str):
        self.directory = Path(arguments[arguments.index("--out") + 1])
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        (self.directory.parent / STARTED).touch()

    def __enter__(self) -> "LaidRun":
        return self

    def __exit__(self, *_: object) -> None:
        """There is no process to end."""

    def is_running(self) -> bool:
        manifest = read_manifest(self.directory)
        return manifest is None or not manifest.complete

    def wait(self) -> None:
        while self.is_running():
            time.sleep(1)


def command(name: str, arguments: list[str]) -> None:
    """A command of the project with short waits, an hour of one second, and a generator that the
    test plays.
    """
    import httpx2

    from sts_dino.hub import cli
    from sts_dino.hub.client import connection as client
    from sts_dino.hub.client import retry as budget
    from sts_dino.release import run

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds * WAITS, LONGEST_WAIT))
    budget.HOUR = timedelta(seconds=1)
    client.CLIENT_TIMEOUT = httpx2.Timeout(TIMEOUT)
    run.StageProcess = LaidRun
    cli.run_app(lambda: importlib.import_module(COMMANDS[name].module).app(arguments))


def talkative(token: str, broken: list[str], command_name: str, arguments: list[str]) -> None:
    """A command with this token, every logger at work, and functions that fail in a way nobody
    expects.
    """
    from huggingface_hub.utils import logging as client_logging

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("on purpose")

    os.environ |= {"HF_TOKEN": token, "STS_DINO_DEBUG": "1" if broken else ""}
    logging.basicConfig(level=logging.DEBUG)
    client_logging.set_verbosity_debug()
    for name in broken:
        holder, _, function = name.rpartition(".")
        setattr(importlib.import_module(holder), function, fail)
    command(command_name, arguments)


if __name__ == "__main__":
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))

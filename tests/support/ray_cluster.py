"""A Ray cluster of several nodes on this machine, for tests that kill parts of it. Nodes are
processes on loopback addresses of their own; the cluster's services run in a process of its own and
end with the one that started it.

Real Ray throughout: ``ray.cluster_utils``, raylets, GCS. Only the import of torch in every worker
is saved (``forked_workers``). Ray listens on all interfaces, so everything asks for a token that
this cluster alone knows.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import forked_workers

from sts_dino.release import stages

MODULES = (
    "sts_dino.generation.run",
    "sts_dino.generation.executors.ray_workers",
    "sts_dino.generation.backends.engine",
    "transformers.models.llama.modeling_llama",
)
STORE_BYTES = 80 << 20  # of each node's object store
QUICK = {  # a dead node is noticed within two seconds; with Ray's defaults after up to 25
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


class Process(NamedTuple):
    """A worker process of a node; ``name``: its actor's class, or IDLE."""

    pid: int
    node: str
    name: str


class RayCluster:
    """A cluster of three nodes with one CPU each. Drivers on it need its ``environment``. A context
    manager.

    The first node is the head, which drivers join; ``kill_node`` takes the others.
    """

    def __init__(self) -> None:
        line = self._start()
        if not line:
            # Ray waits 15 seconds for each node's agents, and a busy machine may take longer
            self._log.close()
            self._log_file.unlink()
            shutil.rmtree(self.folder, ignore_errors=True)
            line = self._start()
        assert line, self._log_file.read_text()
        self.address: str = json.loads(line)

    def _start(self) -> str:
        """Start the cluster in a folder of its own; the line with its address, or "" if it died."""
        # short: the paths of Unix sockets have 107 characters
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self.environment = {
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            forked_workers.SOCKET: str(self.folder / "workers"),
        }
        here = Path(__file__).resolve()
        own = {"PYTHONPATH": str(here.parents[2]), "OMP_NUM_THREADS": "1"}
        environment = os.environ | self.environment | own
        self._log_file = self.folder.with_suffix(".log")  # the cluster's process removes the folder
        self._log = self._log_file.open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(here)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            # Ctrl-C is for the tests; the end of this process is the end of stdin
            start_new_session=True,
        )
        return self._process.stdout.readline()

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *_: object) -> None:
        died = self._process.poll()
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._log.close()
            said = self._log_file.read_text()
            self._log_file.unlink()
            shutil.rmtree(self.folder, ignore_errors=True)
        assert died is None and self._process.returncode == 0, (
            f"{died}, {self._process.returncode}: {said}"
        )

    def nodes(self) -> list[str]:
        """The nodes that were started and not killed, the head first."""
        return self._ask("nodes")

    def workers(self) -> list[Process]:
        """The worker processes of the living nodes."""
        return [Process(*found) for found in self._ask("workers")]

    def kill_worker(self, process: Process) -> bool:
        """``kill -9``; whether it was still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            return True
        return False

    def kill_node(self, name: str) -> None:
        """``kill -9`` for a node's raylet, agents and workers, all at once."""
        self._ask("kill_node", name)

    def add_node(self) -> str:
        """Start one more node; its name."""
        return self._ask("add_node", False)

    def _ask(self, command: str, *arguments: Any) -> Any:
        print(json.dumps([command, *arguments]), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        assert line, self._log_file.read_text()
        return json.loads(line)


# What follows runs in the cluster's own process.


class Services:
    """Ray's processes, node by node."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster, self._count = Cluster(), 0
        self._nodes = dict[str, Any]()
        for _ in range(3):
            self.add_node(wait=True)
        self.address = self._cluster.address

    def add_node(self, wait: bool) -> str:
        self._count += 1
        name, head = f"node{self._count}", not self._nodes
        options = (
            {"include_dashboard": False, "no_monitor": True, "_system_config": QUICK}
            if head
            else {}
        )
        self._nodes[name] = self._cluster.add_node(
            wait=wait,
            num_cpus=1,
            node_name=name,
            # 127.0.0.1 is replaced by an address of the machine
            node_ip_address=f"127.0.0.{self._count + 1}",
            object_store_memory=STORE_BYTES,
            include_log_monitor=False,
            setup_worker_path=str(Path(forked_workers.__file__).resolve()),
            **options,
        )
        return name

    def nodes(self) -> list[str]:
        return list(self._nodes)

    def workers(self) -> list[Process]:
        names = {node.node_id: name for name, node in self._nodes.items()}
        found = forked_workers.asked(forked_workers.WORKERS)
        return [Process(pid, names[node], title(pid)) for pid, node in found if node in names]

    def kill_node(self, name: str) -> None:
        import psutil

        workers = [worker for worker in self.workers() if worker.node == name]
        node = self._nodes.pop(name)
        raylets = [
            psutil.Process(info.process.pid)
            for infos in node.all_processes.values()
            for info in infos
        ]
        agents = [child for raylet in raylets for child in raylet.children(recursive=True)]
        for pid in (one.pid for one in (*workers, *agents, *raylets)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        for name in self.nodes()[::-1]:
            self.kill_node(name)


def title(pid: int) -> str:
    """What a Ray worker calls itself: the class of its actor, or IDLE."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return words.removeprefix("ray::").split(".")[0].strip() if words.startswith("ray::") else ""


def main() -> None:
    answers, parent = os.fdopen(os.dup(1), "w", buffering=1), os.getppid()
    os.dup2(2, 1)  # Ray prints
    command = [sys.executable, str(Path(forked_workers.__file__).resolve()), "serve", *MODULES]
    forking = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, preexec_fn=stages.die_with_parent
    )
    # Its imports come first: beside them a node's agents start more slowly
    assert forking.stdout.readline() == b"ready\n"
    services = Services()
    try:
        print(json.dumps(services.address), file=answers)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(services, name)(*arguments)), file=answers)
    finally:
        services.close()
        forking.kill()
        forking.wait()
        folder = Path(os.environ["RAY_TMPDIR"])
        shutil.rmtree(folder, ignore_errors=True)
        if os.getppid() != parent:  # it was killed: nobody reads this any more
            folder.with_suffix(".log").unlink(missing_ok=True)


if __name__ == "__main__":
    main()

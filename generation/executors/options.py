"""The options that choose and shape a run's executor, and the connection to Ray.

Ray is an instance of this machine that no other user can reach, or a cluster by its address.
"""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.errors import InputError, RunError
from hub.untrusted import first_line, reading_model

ANY_CLUSTER = "auto"  # as Ray says it: the cluster that this machine belongs to
ANSWER_SECONDS = 25  # for a cluster's first answer
PROCESS = 12 * 10**8  # bytes of a worker without its model: libraries, activations
IN_USE = 1.65  # bytes of a worker for a byte of its weights: the packed output layer, keys and values of a full batch
_SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_OBJECT_STORE = 256 * 2**20  # bytes of a local instance: it holds the few shards that are under way
_LOOPBACK = ("localhost", "127.0.0.1")
_GB = 10**9
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ClusterOptions:
    """Ray options of a run. ``address``: None is this machine, ``auto`` its cluster, or ``HOST:PORT``.

    ``workers``: how many; on a cluster at most. ``cpus``, ``gpus``: of one worker.
    """

    address: cli.RayOption = None
    workers: cli.WorkersOption = None
    store: cli.StoreOption = None
    cpus: cli.CpusOption = None
    gpus: cli.GpusOption = None

    @property
    def remote(self) -> bool:
        """Whether the workers are on machines that may have other versions and files, and that come and go."""
        return self.address is not None

    def on_ray(self, recipe: DatasetRecipe) -> bool:
        """Whether processes on Ray do the tasks, and not threads of this one, which share a model on a CPU.

        Where a text depends on its batch and that has a fixed size, a shard is generated alone, by one thread.
        """
        model = recipe.model
        alone = recipe.decoding.batch_size and model.dtype != "float32"
        apart = self.store is not None or self.cpus or self.gpus or model.device != "cpu" or model.device_map or alone
        return self.remote or (self.workers is not None and bool(apart))


def check(options: ClusterOptions, recipe: DatasetRecipe) -> None:
    """Raise InputError for options that do not go together, or not with the recipe."""
    given = {"--store": options.store, "--cpus-per-worker": options.cpus, "--gpus-per-worker": options.gpus}
    if options.workers is None and not options.remote:
        if alone := [name for name, value in given.items() if value is not None]:
            raise InputError(", ".join(alone), "is for several workers", hint="add --workers N or --ray")
        return
    if options.gpus and options.gpus > 1 and not options.gpus.is_integer():
        raise InputError("--gpus-per-worker", f"is {options.gpus:g}", allowed="a whole number, or a part of one GPU")
    if not recipe.model.facts.local:
        hint = "raise model.server.concurrency: one process keeps a server busy"
        raise InputError("--ray, --workers", f"are not for backend {recipe.model.backend}", hint=hint)
    if options.on_ray(recipe) and find_spec("ray") is None:  # not imported: the environment has to be set before
        raise InputError("--ray, --workers", "Ray is not installed", hint="pip install .[ray]")


@dataclass(frozen=True)
class WorkerResources:
    """Resources that one worker reserves on a node; ``memory`` in bytes."""

    cpus: float = 1
    gpus: float = 0
    memory: float = 0

    @property
    def asked(self) -> dict[str, float]:
        """The amounts by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}

    def room(self, resources: Mapping[str, float]) -> int:
        """How many workers a node with these resources (by Ray's names) has room for."""
        return min(int(resources.get(name, 0) / amount + _ROUNDING) for name, amount in self.asked.items() if amount)

    def lacking(self, resources: Mapping[str, float]) -> str:
        """Why a node has no room at all."""
        has = {name: resources.get(name, 0) for name in self.asked}
        asked = f"{self.cpus:g} CPU, {self.gpus:g} GPU, {self.memory / _GB:.1f} GB of memory"
        return f"a worker takes {asked}, it has {has['CPU']:g}, {has['GPU']:g}, {has['memory'] / _GB:.1f} GB"


def worker_resources(recipe: DatasetRecipe, options: ClusterOptions) -> WorkerResources:
    """Resources of one worker: its threads' CPUs, the memory of a model on a CPU, the GPU of one on a GPU."""
    model = recipe.model
    on_gpu = model.device.startswith("cuda") or model.device_map is not None
    here = max(1, (os.cpu_count() or 1) // (options.workers or 1)) if not options.remote else 1
    weights = weight_bytes(model.path, model.gguf_file, model.dtype) if model.path and not on_gpu else 0
    memory = IN_USE * weights + PROCESS if weights else 0
    return WorkerResources(options.cpus or model.threads or here, options.gpus or int(on_gpu), memory)


def weight_bytes(path: str, gguf_file: str | None, dtype: str) -> int:
    """Bytes of a local model's weights in memory; ``auto`` may be float32. Raises InputError for a damaged file."""
    if not gguf_file:
        return sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
    from generation.backends.gguf_file import read_header  # torch

    with reading_model(f"{path}/{gguf_file}", hint="is the file whole?"):
        tensors = read_header(f"{path}/{gguf_file}")[1]
    return sum(prod(shape) for _, shape, *_ in tensors) * (2 if "16" in dtype else 4)


def withheld_secrets(recipe: DatasetRecipe, store: str | None) -> tuple[str, ...]:
    """Environment variables with tokens that local workers do not need: a model or a store on the Hub takes one."""
    of_the_hub = recipe.model.repo_id is not None or (store or "").startswith("hf://")
    return _SECRETS[:1] if of_the_hub else _SECRETS


@contextmanager
def local_instance(cpus: float, gpus: float | None, withheld: Sequence[str] = ()) -> Iterator[Any]:
    """Ray on this machine, for this process alone; its processes end with this one, however it ends.

    It listens on the loopback device, asks for a token that only this process and its workers have, and keeps its files
    in a folder of this user. ``gpus``: None is all; ``withheld``: environment variables that the workers do not get.
    Raises RunError when it cannot be started.
    """
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)  # Ray reads it once in a process
    _set_environment({"RAY_AUTH_TOKEN": token})
    os.environ.pop("RAY_AUTH_MODE", None)  # a new instance then asks for the token
    _stay_on_loopback()
    import ray

    options = {"num_cpus": cpus, "num_gpus": gpus, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) <= 30 else "/tmp"  # noqa: S108 - sockets' paths have 107
    with tempfile.TemporaryDirectory(prefix="sts-dino-ray-", dir=short, ignore_cleanup_errors=True) as home:
        kept = {name: os.environ.pop(name) for name in withheld if name in os.environ}
        try:
            _join(ray, "local", **options, _temp_dir=f"{home}/ray")  # Ray opens that to everyone; home stays closed
        except Exception as error:  # Ray raises that itself, errors of its own and Python's
            raise RunError("Ray", f"cannot be started on this machine: {first_line(error)}") from error
        finally:
            os.environ |= kept
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """The cluster at ``HOST:PORT``, or the one that this machine belongs to (``auto``).

    Raises InputError when nobody answers there in time, when this machine is not one of its nodes, when it asks for
    another token, or when its version of Ray or Python is another one.
    """
    place = f"--ray {address}"
    _set_environment({"RAY_gcs_server_request_timeout_seconds": str(ANSWER_SECONDS)})
    _require_answer(place, address)
    import ray

    try:
        _join(ray, address)
    except Exception as error:  # Ray raises that itself, errors of its own and Python's
        raise _refusal(place, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _set_environment(more: dict[str, str]) -> None:
    """What Ray reads when it is imported, and what its processes inherit."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **more}


def _stay_on_loopback() -> None:
    """Have Ray use 127.0.0.1 as this machine's address, as it does on macOS; on Linux it is otherwise another one."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # where Ray was imported before


def _require_answer(place: str, address: str) -> None:
    """Ask the cluster whether it is there, in a process that can be ended: Ray itself waits for minutes."""
    if address != ANY_CLUSTER:
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdigit():  # ray:// is Ray Client's
            raise InputError(place, "is not an address", allowed="auto or HOST:PORT, e.g. 10.0.0.1:6379")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(place, f"does not answer ({first_line(error)})", hint=_HEAD) from error
        if host in _LOOPBACK:
            _stay_on_loopback()  # else Ray asks at this machine's other address
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    command += [] if address == ANY_CLUSTER else ["--address", address]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=ANSWER_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise InputError(place, f"no Ray cluster answers there within {ANSWER_SECONDS} seconds", hint=_HEAD) from error
    except subprocess.CalledProcessError as error:
        raise _refusal(place, error) from error


_HEAD = "give the address that `ray start --head` printed on the head node"
_REFUSALS = (  # pattern in Ray's long answer (2.60), problem with the pattern's groups, hint
    (
        r"(?i)AuthToken|Unauthenticated|token authentication",
        "asks for another token than this process has",
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as on its nodes",
    ),
    (
        r"(?s)Version mismatch.*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)",
        "has Ray {}, Python {}; this process Ray {}, Python {}",
        "install the same on every node",
    ),
    (
        r"No node info found|node_to_connect",
        "this machine is not a node of the cluster",
        "run the command on one of them, or join it with `ray start --address`",
    ),
    (r"any running Ray instance|Could not find any", "no cluster was started on this machine", _HEAD),
)


def _refusal(place: str, error: BaseException) -> InputError:
    """Ray's long answers as an InputError."""
    said = "\n".join(str(part) for part in (error, error.__cause__, getattr(error, "stderr", "")) if part).strip()
    for pattern, problem, hint in _REFUSALS:
        if found := re.search(pattern, said):
            return InputError(place, problem.format(*found.groups()), hint=hint)
    return InputError(
        place, f"cannot be joined: {said.splitlines()[-1].strip() if said else 'no reason given'}", hint=_HEAD
    )


def _join(ray: Any, address: str, **options: Any) -> None:
    """``ray.init``, less the handler of SIGTERM that it puts in place of the command's own."""
    own = signal.getsignal(signal.SIGTERM)
    ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    if callable(own) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, own)

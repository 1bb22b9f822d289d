"""Options that spread a run over workers, the resources of a worker, and the connection to Ray.

Ray is an instance of this machine that no other user can reach, or a cluster by its address.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from generation.executors.ray_workers import WorkerResources
from hub import cli
from hub.cli import ANY_CLUSTER
from hub.contract.recipe import DatasetRecipe
from hub.errors import InputError, RunError
from hub.untrusted import first_line

ANSWER_SECONDS = 25  # for a cluster's first answer
_OBJECT_STORE = 256 * 2**20  # bytes of a local instance: it holds the few shards that are under way
_HOME = "sts-dino-ray-"  # of a local instance's folder
_LONGEST = 30  # characters of the folder for temporary files: the paths of Unix sockets below it have 107 at most
_LOOPBACK = ("localhost", "127.0.0.1")


def require_ray() -> None:
    """Raise InputError when Ray is not installed. It is not imported: the environment has to be set before."""
    if find_spec("ray") is None:
        raise InputError("--ray, --workers", "Ray is not installed", hint="pip install .[ray]")


@contextmanager
def local_instance(cpus: float, gpus: float | None, withheld: Sequence[str] = ()) -> Iterator[Any]:
    """Ray on this machine, for this process alone; its processes end with this one, however it ends.

    It listens on the loopback device only, asks everyone for a token that only this process and its workers have, and
    keeps its files in a folder that only this user can enter. ``gpus``: None is all that are there; ``withheld``:
    environment variables that the workers do not get. Raises RunError when it cannot be started.
    """
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)  # Ray reads it once in a process
    _set_environment({"RAY_AUTH_TOKEN": token})
    os.environ.pop("RAY_AUTH_MODE", None)  # a new instance then asks for the token
    _stay_on_loopback()
    import ray

    options = {"num_cpus": cpus, "num_gpus": gpus, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    with _home() as home:
        try:
            with _without(withheld):
                _join(ray, "local", **options, _temp_dir=str(home))
        except Exception as error:  # Ray raises that itself, errors of its own and Python's
            raise RunError("Ray", f"cannot be started on this machine: {first_line(error)}") from error
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
    if "://" in address:
        hint = "run the command on a node of the cluster, and give HOST:PORT of its head, or --ray alone"
        raise InputError(place, "is an address for other programs than this (ray:// is Ray Client's)", hint=hint)
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
        if not host or not port.isdigit():
            raise InputError(place, "is no address", allowed="auto or HOST:PORT, e.g. 10.0.0.1:6379")
        _require_port(place, host.strip("[]"), int(port))
        if host in _LOOPBACK:
            _stay_on_loopback()  # else Ray asks at this machine's other address
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    command += [] if address == ANY_CLUSTER else ["--address", address]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=ANSWER_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise _no_answer(place, f"no Ray cluster answers there within {ANSWER_SECONDS} seconds") from error
    except subprocess.CalledProcessError as error:
        raise _refusal(place, error) from error


def _require_port(place: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(place, f"does not answer ({first_line(error)})") from error


def _no_answer(place: str, problem: str) -> InputError:
    return InputError(place, problem, hint="give the address that `ray start --head` printed on the head node")


def _refusal(place: str, error: BaseException) -> InputError:
    """Ray's long answers as an InputError. Ray has a type for the token alone; its words are those of 2.60."""
    said = "\n".join(str(part) for part in (error, error.__cause__, getattr(error, "stderr", "")) if part)
    if "AuthToken" in said or "Unauthenticated" in said or "token authentication" in said.lower():
        hint = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as on its nodes"
        return InputError(place, "asks for another token than this process has", hint=hint)
    sides = re.findall(r"Ray: (\S+)\s+Python: (\S+)", said)
    if "Version mismatch" in said and len(sides) > 1:
        cluster, here = sides[:2]
        found = f"has Ray {cluster[0]}, Python {cluster[1]}; this process Ray {here[0]}, Python {here[1]}"
        return InputError(place, found, hint="install the same on every node")
    if "No node info found" in said or "node_to_connect" in said:
        hint = "run the command on one of them, or join it with `ray start --address`"
        return InputError(place, "this machine is not a node of the cluster", hint=hint)
    if "multiple active Ray instances" in said:
        found = ", ".join(sorted(set(re.findall(r"'([^']+:\d+)'", said))))
        return InputError(place, f"several clusters run on this machine ({found})", hint="give one: --ray HOST:PORT")
    if "any running Ray instance" in said or "Could not find any" in said:
        return _no_answer(place, "no cluster was started on this machine")
    return _no_answer(
        place, f"cannot be joined: {said.strip().splitlines()[-1] if said.strip() else 'no reason given'}"
    )


@contextmanager
def _home() -> Iterator[Path]:
    """A folder for a local instance; those that killed runs left are removed."""
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= _LONGEST else Path("/tmp")  # noqa: S108 - mkdtemp's folder is nobody else's
    for old in base.glob(f"{_HOME}*"):
        _remove_if_left(old)
    home = Path(tempfile.mkdtemp(prefix=_HOME, dir=base))
    lock = FileLock(home / "new")
    with lock:
        (home / "new").rename(home / "lock")  # appears locked
        try:
            yield home / "ray"  # Ray opens its folder to everyone; the one above stays closed
        finally:
            shutil.rmtree(home, ignore_errors=True)


def _remove_if_left(home: Path) -> None:
    try:
        if home.stat().st_uid == os.getuid() and (home / "lock").is_file():
            with FileLock(home / "lock", timeout=0):
                shutil.rmtree(home, ignore_errors=True)
    except (Timeout, FileNotFoundError):
        return  # in use, or removed by another run just now


def _join(ray: Any, address: str, **options: Any) -> None:
    """``ray.init``, less the handler of SIGTERM that it puts in place of the command's own."""
    own = signal.getsignal(signal.SIGTERM)
    ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    if callable(own) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, own)


@contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ |= kept


PROCESS = 5 * 10**8  # bytes of a worker without its model
UNPACKED = 7  # bytes of float32 for a byte of a GGUF file, mostly of 4-bit weights
_SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True)
class ClusterOptions:
    """Ray options of a run. ``address``: None is this machine, ``auto`` its cluster, or ``HOST:PORT``.

    ``workers``: how many; on a cluster at most. ``cpus``, ``gpus``: of one worker.
    """

    address: str | None = None
    workers: int | None = None
    store: str | None = None
    cpus: float | None = None
    gpus: float | None = None

    @property
    def spread(self) -> bool:
        """Whether several workers are asked for at all."""
        return self.address is not None or self.workers is not None


def check(options: ClusterOptions, recipe: DatasetRecipe) -> None:
    """Raise InputError for options that do not go together, or not with the recipe."""
    given = {"--store": options.store, "--cpus-per-worker": options.cpus, "--gpus-per-worker": options.gpus}
    if not options.spread:
        alone = [name for name, value in given.items() if value is not None]
        if alone:
            raise InputError(", ".join(alone), "is for several workers", hint="add --workers N or --ray")
        return
    if options.gpus and options.gpus > 1 and not options.gpus.is_integer():
        raise InputError("--gpus-per-worker", f"is {options.gpus:g}", allowed="a whole number, or a part of one GPU")
    if not recipe.model.facts.local:
        hint = "raise model.server.concurrency: one process keeps a server busy"
        raise InputError("--ray, --workers", f"are not for backend {recipe.model.backend}", hint=hint)
    require_ray()


def warn_of_threads(recipe: DatasetRecipe) -> None:
    """Say that a recipe leaves the threads of a worker open, where they decide bytes."""
    model = recipe.model
    if model.facts.local and model.device == "cpu" and not model.threads:
        cli.say(
            "warning: the recipe does not fix model.threads, and sums depend on it: other workers or machines may "
            "write other texts; --set model.threads=1 writes the same everywhere"
        )


def worker_resources(recipe: DatasetRecipe, options: ClusterOptions) -> WorkerResources:
    """Resources of one worker: its threads' CPUs, the memory of a model on a CPU, the GPU of one on a GPU."""
    model = recipe.model
    on_gpu = model.device.startswith("cuda") or model.device_map is not None
    here = max(1, (os.cpu_count() or 1) // (options.workers or 1)) if options.address is None else 1
    weights = 0 if on_gpu or not model.path else _weights(Path(model.path), model.gguf_file)
    gpus = options.gpus or int(on_gpu)
    return WorkerResources(options.cpus or model.threads or here, gpus, weights + PROCESS if weights else 0)


def _weights(folder: Path, gguf_file: str | None) -> int:
    """Bytes of a local model's weights in memory."""
    if gguf_file:
        return UNPACKED * (folder / gguf_file).stat().st_size
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def withheld_secrets(recipe: DatasetRecipe, store: str | None) -> tuple[str, ...]:
    """Environment variables with tokens that local workers do not need: a model or a store on the Hub takes one."""
    of_the_hub = recipe.model.repo_id is not None or (store or "").startswith("hf://")
    return _SECRETS[:1] if of_the_hub else _SECRETS

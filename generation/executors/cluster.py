"""The cluster of a run: the command-line options for its workers, and the connection to Ray.

Ray is an instance of this machine, which no other user can reach, or a cluster by its address.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from sts_dino.hub import cli
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.untrusted import get_first_line

ANY_CLUSTER = "auto"  # Ray's word for the cluster that this machine belongs to
ANSWER_SECONDS = 25  # for a cluster's first answer
_SECRET_VARIABLES = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# The object store of a local instance holds the results of the few shards that are sent.
_OBJECT_STORE_BYTES = 256 * 2**20
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1")
# A socket's path has at most 107 characters, and Ray adds to the folder's.
_MOST_FOLDER_CHARACTERS = 30
_HEAD_HINT = "give the address that `ray start --head` printed on the head node"


@dataclass(frozen=True)
class ClusterOptions:
    """The command-line options of the workers of a run.

    Args:
        address: ``HOST:PORT`` of a Ray cluster, ``auto`` for the cluster of this machine, or None
            for this machine alone.
        workers: number of workers, on a cluster the most; None: one on this machine, and on a
            cluster as many as there is room for.
        store: path or URL where workers leave their results; None: they send them.
        cpus: CPUs of one worker; None: see ``ray_workers.compute_worker_resources``.
        gpus: GPUs of one worker, a share of one included; None: as for ``cpus``.
    """

    address: cli.RayOption = None
    workers: cli.WorkersOption = None
    store: cli.StoreOption = None
    cpus: cli.CpusOption = None
    gpus: cli.GpusOption = None

    @property
    def is_remote(self) -> bool:
        """Whether the workers' machines come and go, with versions and files of their own."""
        return self.address is not None

    def needs_ray(self, recipe: DatasetRecipe) -> bool:
        """Return whether processes on Ray generate the texts of this recipe.

        Otherwise threads of this process generate them, with one copy of the model on a CPU.
        """
        if self.is_remote:
            return True
        if self.workers is None:
            return False
        model = recipe.model
        if model.device != "cpu" or model.device_map:
            return True
        if self.store is not None or self.cpus or self.gpus:
            return True
        # Where a text depends on its batch, a process generates each shard alone, in one thread.
        return bool(recipe.decoding.batch_size) and model.dtype != "float32"


def check_options(options: ClusterOptions, recipe: DatasetRecipe) -> None:
    """Raise InputError for options that contradict each other or the recipe.

    Also raises InputError when the options need Ray and Ray is not installed.
    """
    # refuse options of several workers for one worker
    if options.workers is None and not options.is_remote:
        worker_options = {
            "--store": options.store,
            "--cpus-per-worker": options.cpus,
            "--gpus-per-worker": options.gpus,
        }
        given_options = [name for name, value in worker_options.items() if value is not None]
        if given_options:
            raise InputError(
                ", ".join(given_options), "is for several workers", hint="add --workers N or --ray"
            )
        return

    # refuse impossible workers
    if options.gpus and options.gpus > 1 and not options.gpus.is_integer():
        raise InputError(
            "--gpus-per-worker",
            f"is {options.gpus:g}",
            allowed="a whole number, or a part of one GPU",
        )
    if not recipe.model.is_local:
        raise InputError(
            "--ray, --workers",
            f"are not for backend {recipe.model.backend}",
            hint="raise model.server.concurrency: one process keeps a server busy",
        )
    # Ray is not imported here: its environment variables have to be set before that.
    if options.needs_ray(recipe) and find_spec("ray") is None:
        raise InputError("--ray, --workers", "Ray is not installed", hint="pip install .[ray]")


def list_withheld_secrets(recipe: DatasetRecipe, store: str | None) -> tuple[str, ...]:
    """Return the environment variables with tokens that workers of this machine do not need.

    Workers keep the Hub's token if the model or the store is on the Hub. ``store``: path or URL of
    the result store; None: there is no store.
    """
    if recipe.model.repo_id is not None or (store or "").startswith("hf://"):
        return _SECRET_VARIABLES[:1]
    return _SECRET_VARIABLES


@contextmanager
def start_local_ray(cpus: float, gpus: float | None, withheld: Sequence[str] = ()) -> Iterator[Any]:
    """Start Ray on this machine for this process alone; its processes end with the block.

    It listens on the loopback device, asks for a token that only this process and its workers have,
    and keeps its files in a folder of this user. Yields the module ``ray``.

    Args:
        cpus: number of CPUs that Ray may use.
        gpus: number of GPUs that Ray may use; None: all.
        withheld: environment variables that the workers do not get.

    Raises RunError when Ray cannot be started.
    """
    # Set what Ray reads when it is imported. It reads a token once in a process.
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
    set_environment({"RAY_AUTH_TOKEN": token})
    os.environ.pop("RAY_AUTH_MODE", None)  # a new instance then asks for the token
    stay_on_loopback()
    import ray

    # Start it without the secrets, in a folder that only this user can open.
    parent = tempfile.gettempdir()
    if len(parent) > _MOST_FOLDER_CHARACTERS:
        parent = "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(
        prefix="sts-dino-ray-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        removed = {name: os.environ.pop(name) for name in withheld if name in os.environ}
        try:
            join_ray(
                ray,
                "local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=f"{folder}/ray",  # Ray opens it to everyone; its parent stays closed
            )
        except Exception as error:  # Ray has no common class for its failures
            raise RunError(
                "Ray", f"cannot be started on this machine: {get_first_line(error)}"
            ) from error
        finally:
            os.environ |= removed
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def join_cluster(address: str) -> Iterator[Any]:
    """Join the cluster at ``HOST:PORT``, or the one that this machine belongs to (``auto``).

    Yields the module ``ray``, and disconnects from the cluster at the end of the block. Raises
    InputError for a malformed address, when no cluster answers within ``ANSWER_SECONDS``, and when
    Ray refuses the connection. Ray refuses it if this machine is not a node of the cluster, if the
    token is wrong, or if the versions of Ray or Python differ.
    """
    option = f"--ray {address}"
    set_environment({"RAY_gcs_server_request_timeout_seconds": str(ANSWER_SECONDS)})
    require_answer(option, address)
    import ray

    try:
        join_ray(ray, address)
    except Exception as error:  # Ray has no common class for its refusals
        raise convert_ray_refusal(option, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def set_environment(variables: dict[str, str]) -> None:
    """Set environment variables that Ray reads when it is imported, and its processes inherit.

    Besides ``variables``, two are always set. They turn usage statistics off, and keep Ray from
    changing CUDA_VISIBLE_DEVICES for a worker without GPUs.
    """
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **variables,
    }


def stay_on_loopback() -> None:
    """Have Ray use 127.0.0.1 as this machine's address, as it does on macOS.

    On Linux it would use an address that other machines can reach.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray may have been imported before


def join_ray(ray: Any, address: str, **options: Any) -> None:
    """Call ``ray.init``, and restore the command's own handler of SIGTERM, which Ray replaces.

    A handler can be restored in the main thread alone. Errors of ``ray.init`` pass unchanged.
    """
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def require_answer(option: str, address: str) -> None:
    """Raise InputError unless a cluster answers at ``address`` within ``ANSWER_SECONDS``.

    A child process asks the cluster, because Ray itself would wait for minutes. Raises InputError
    for a malformed address, too.

    Args:
        option: the command-line option with the address, for errors.
        address: ``HOST:PORT``, or ``auto`` for the cluster of this machine.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    if address != ANY_CLUSTER:
        require_open_port(option, address)
        command += ["--address", address]
    try:
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            option, f"no Ray cluster answers there within {ANSWER_SECONDS} seconds", hint=_HEAD_HINT
        ) from error
    except subprocess.CalledProcessError as error:
        raise convert_ray_refusal(option, error) from error


def require_open_port(option: str, address: str) -> None:
    """Raise InputError unless ``address`` is ``HOST:PORT`` and something listens there.

    For a loopback host, Ray is also made to use 127.0.0.1 (``stay_on_loopback``). ``option``: the
    command-line option with the address, for errors.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():  # ray:// is Ray Client's
        raise InputError(
            option, "is not an address", allowed="auto or HOST:PORT, e.g. 10.0.0.1:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:  # a port or host name beyond its limits
        raise InputError(
            option, f"does not answer ({get_first_line(error)})", hint=_HEAD_HINT
        ) from error
    if host in _LOOPBACK_HOSTS:
        stay_on_loopback()  # else Ray looks for the cluster at this machine's other address


class RayRefusal(NamedTuple):
    """A reason why a cluster cannot be joined, and how to find it in Ray's long error messages."""

    pattern: str  # regular expression, for the messages of Ray 2.60
    problem: str  # a format string for the groups of the pattern
    hint: str


REFUSALS = (
    RayRefusal(
        r"(?i)AuthToken|Unauthenticated|token authentication",
        "asks for another token than this process has",
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as on its nodes",
    ),
    RayRefusal(
        r"(?s)Version mismatch.*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)",
        "has Ray {}, Python {}; this process Ray {}, Python {}",
        "install the same on every node",
    ),
    RayRefusal(
        r"No node info found|node_to_connect",
        "this machine is not a node of the cluster",
        "run the command on one of them, or join it with `ray start --address`",
    ),
    RayRefusal(
        r"any running Ray instance|Could not find any",
        "no cluster was started on this machine",
        _HEAD_HINT,
    ),
)


def convert_ray_refusal(option: str, error: BaseException) -> InputError:
    """Return the InputError of one line for an error of Ray's health check or ``ray.init``.

    A refusal in ``REFUSALS`` gets the text given there, any other error the last line of its
    message. ``option``: the command-line option with the address, which the error names.
    """
    parts = (error, error.__cause__, getattr(error, "stderr", ""))
    text = "\n".join(str(part) for part in parts if part).strip()
    for refusal in REFUSALS:
        match = re.search(refusal.pattern, text)
        if match:
            return InputError(option, refusal.problem.format(*match.groups()), hint=refusal.hint)
    reason = text.splitlines()[-1].strip() if text else "no reason given"
    return InputError(option, f"cannot be joined: {reason}", hint=_HEAD_HINT)

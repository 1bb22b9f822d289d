"""``sts-dino write`` and ``sts-dino train`` in processes of their own, training as a group, too;
and real kills.
"""

import multiprocessing
import os
import shutil
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sts_dino.generation import run as writing
from sts_dino.generation.pipeline import source_sentences
from sts_dino.hub import cli
from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.training import run as training

# one server imports the libraries, once for all commands
_CONTEXT = multiprocessing.get_context("forkserver")
_LIBRARIES = [
    "sts_dino.generation.backends.engine",
    "sts_dino.training.loop.train",
    "transformers.models.llama.modeling_llama",
]
_CONTEXT.set_forkserver_preload(["killing", *_LIBRARIES])
_SECONDS = 240


def killed(
    arguments: list[str], reached: Callable[[], bool], round_size: int | None = None
) -> None:
    """Start ``sts-dino write`` and kill -9 it as soon as it has ``reached`` its mark; fails if it
    ends before.

    ``round_size`` is that of source sentences.
    """
    log = Path(arguments[arguments.index("--out") + 1])
    process = _CONTEXT.Process(target=_write, args=(arguments, round_size, log))
    process.start()
    assert _kill([process], reached), log.with_suffix(".err").read_text()


def _kill(group: list[BaseProcess], reached: Callable[[], bool]) -> bool:
    """Wait for the mark, then kill; whether that was the end of all of them."""
    deadline = time.monotonic() + _SECONDS
    while (
        all(process.is_alive() for process in group)
        and not reached()
        and time.monotonic() < deadline
    ):
        time.sleep(0.002)
    for process in group:
        process.kill()
    for process in group:
        process.join()
    return reached() and all(process.exitcode == -9 for process in group)


def _started(arguments: list[str], processes: int, log: Path) -> list[BaseProcess]:
    """A group that trains; its stdout goes to ``log``.out, its stderr to ``log``.err."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = (processes, port, log)
    group = [
        _CONTEXT.Process(target=_train, args=(arguments, rank, *given)) for rank in range(processes)
    ]
    for process in group:
        process.start()
    return group


def trained(arguments: list[str], processes: int, log: Path) -> list[int | None]:
    """Run a group to its end, as a launcher does (the others are ended when one fails); returns the
    exit codes.
    """
    group, deadline = _started(arguments, processes, log), time.monotonic() + _SECONDS
    while any(process.is_alive() for process in group) and time.monotonic() < deadline:
        if any(process.exitcode not in (None, 0) for process in group):
            for process in group:
                process.terminate()
        time.sleep(0.02)
    ended = [process.is_alive() for process in group]
    for process in group:
        process.kill()
        process.join()
    assert not any(ended), "the group hangs"
    return [process.exitcode for process in group]


def launched(arguments: list[str], processes: int, log: Path) -> int | None:
    """Run a group as ``torchrun`` starts it, by its launcher; returns the launcher's exit code."""
    process = _CONTEXT.Process(target=_launch, args=(arguments, processes, log))
    process.start()
    process.join(_SECONDS)
    process.kill()
    return process.exitcode


def killed_training(
    arguments: list[str], processes: int, log: Path, reached: Callable[[], bool], out: Path
) -> None:
    """Start a group and kill -9 all of it as soon as it has ``reached`` its mark.

    On a busy machine the model may be in ``out`` by then: that is not a kill, and all begins anew,
    up to five times.
    """
    for _ in range(5):
        ended = _kill(_started(arguments, processes, log), reached)
        if not (manifest := read_manifest(out)) or not manifest.complete:
            assert ended, log.with_suffix(".err").read_text()
            return
        shutil.rmtree(out)
        shutil.rmtree(f"{out}.checkpoints", ignore_errors=True)
    raise AssertionError("each kill came too late")


def _write(arguments: list[str], round_size: int | None, log: Path) -> None:
    _write_to(log)
    if round_size:
        source_sentences.choose_round_size = lambda limit: round_size
    cli.run_app(lambda: writing.app(arguments))


def _train(arguments: list[str], rank: int, processes: int, port: int, log: Path) -> None:
    if processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        os.environ |= {
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    _write_to(log)
    cli.run_app(lambda: training.app(arguments))


def _launch(arguments: list[str], processes: int, log: Path) -> None:
    _write_to(log)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        local_addr="127.0.0.1",  # else the workers look up this machine's name
    )
    elastic_launch(config, _worker)(arguments)


def _worker(arguments: list[str]) -> None:
    cli.route_messages(cli.TerminalHandler())  # as the command line does
    training.app(arguments, standalone_mode=False)


def _write_to(log: Path) -> None:
    for stream, ending in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(log.with_suffix(ending), os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)

"""Processes that are forked from one that imported the libraries once: 0.1 s each to start in place
of 6 s.

``python_in(environment)`` is the path of an executable that takes the place of ``sys.executable``:
``PATH -m MODULE WORDS`` runs in a fork, with the caller's arguments, environment, folder and
standard streams, and so do the stages that the fork starts. What libraries read from the
environment when they are imported is that of the server, so each environment of the Hub's and
torch's variables has one of its own. A process is killed with its caller, a moment later.
``started`` and ``asked`` are for callers without an executable (``faults.Launcher``): a fork runs a
script for them.
"""
# ruff: noqa: PTH109, PTH120 (every caller imports this: little is imported here)

import json
import os
import signal
import socket
import sys

IMPORTED = (  # what stages need
    "sts_dino.generation.run",
    "sts_dino.generation.backends.engine",
    "transformers.models.llama.modeling_llama",
    "sentence_transformers",
    "sts_dino.training.run",
    "sts_dino.training.loop.train",
    "sts_dino.eval.run",
    "sts_dino.eval.runs.score",
    "sts_dino.release.run",
)
READ_AT_IMPORT = ("HF_", "OMP_", "TORCH", "TOKENIZERS_", "NO_PROXY")
_servers: dict[tuple[tuple[str, str], ...], str] = {}


def python_in(environment: dict[str, str]) -> str:
    """The executable for processes of this environment; its server is started the first time."""
    import atexit
    import tempfile
    from pathlib import Path

    key = tuple(
        sorted(
            (name, value) for name, value in environment.items() if name.startswith(READ_AT_IMPORT)
        )
    )
    if key not in _servers:
        folder = Path(tempfile.mkdtemp(prefix="forked-python-"))
        stub = folder / "python"
        call = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import forked_python"
        )
        stub.write_text(
            f"#!{sys.executable} -IS\n{call}; forked_python.call({str(folder / 'socket')!r})\n"
        )
        stub.chmod(0o700)
        atexit.register(started(environment, folder / "socket", str(stub), *IMPORTED).kill)
        _servers[key] = str(stub)
    return _servers[key]


def started(environment, place, executable: str, *modules: str):
    """A server at the socket ``place`` that has imported modules; its forks' ``sys.executable``.
    Close its stdin.
    """
    import subprocess

    words, pipes = (
        [sys.executable, __file__, str(place), executable, *modules],
        dict.fromkeys(("stdin", "stdout"), -1),
    )
    server = subprocess.Popen(words, env=environment, start_new_session=True, **pipes)
    assert server.stdout is not None and server.stdout.readline() == b"ready\n", (
        "it could not import the modules"
    )
    return server


def asked(place: str, words: list[str], environment: dict[str, str], streams: list[int]):
    """Ask for a fork that runs a module or script with words: its id, and the file that its exit
    code comes from.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    question = {"words": words, "environment": environment, "folder": os.getcwd()}
    socket.send_fds(connection, [json.dumps(question).encode() + b"\n"], streams)
    answers = connection.makefile("rb", buffering=0)
    return int(answers.readline()), answers


def call(place: str) -> None:
    """The caller's side: ask for a fork, pass signals on to it, and end as it ends."""
    if sys.argv[1] != "-m":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    child, answers = asked(place, sys.argv[2:], dict(os.environ), [0, 1, 2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(place: str, executable: str, *modules: str) -> None:
    """The server's side: import the libraries, then fork for each question until its caller is
    gone.
    """
    import importlib
    import select
    from pathlib import Path

    # the folder of this file has folders of our packages' names
    sys.path[0] = str(Path(sys.path[0]).parent)
    for module in modules:
        importlib.import_module(module)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    print("ready", flush=True)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            _watch(connection, executable)
        connection.close()
    os.killpg(0, signal.SIGKILL)


def _watch(connection: socket.socket, executable: str) -> None:
    """Fork the command, report its id and its end; kill it when its caller is gone."""
    import select

    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    child = os.fork()
    if not child:
        connection.close()
        _become(json.loads(text), streams, executable)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{child}\n".encode())
    if connection in select.select([os.pidfd_open(child), connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.sendall(f"{status}\n".encode())
    finally:
        os._exit(0)


def _become(question: dict, streams: list[int], executable: str) -> None:
    """Make this fork what the caller would have been, and run its module as ``python -m`` does, or
    its script.
    """
    import atexit
    import runpy
    import threading
    import traceback
    import warnings

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ |= question["environment"]
    os.chdir(question["folder"])
    name, *sys.argv[1:] = question["words"]
    script = name.endswith(".py")
    sys.path[0], sys.executable = (
        os.path.dirname(name) if script else question["folder"],
        executable,
    )
    warnings.filterwarnings(
        "ignore", ".*found in sys.modules after import of package", RuntimeWarning
    )
    code: object = 0
    try:
        runpy.run_path(name, run_name="__main__") if script else runpy.run_module(
            name, None, "__main__", True
        )
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # taking all that was imported apart takes a second and a half
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve(*sys.argv[1:])

"""A python whose processes are forked from one that imported the libraries once: 0.1 s each to start in place of 6 s.

``python_in(environment)`` is the path of an executable that takes the place of ``sys.executable``: ``PATH -m MODULE
WORDS`` runs in a fork, with the caller's arguments, environment, folder and standard streams, and so do the stages that
the fork starts. What libraries read from the environment when they are imported is that of the server, so each
environment of the Hub's and torch's variables has one of its own. A process is killed with its caller, a moment later.
"""
# ruff: noqa: PTH109 (every caller imports this: little is imported here)

import json
import os
import signal
import socket
import sys

IMPORTED = (  # what stages need
    "generation.run",
    "generation.backends.engine",
    "transformers.models.llama.modeling_llama",
    "sentence_transformers",
    "training.run",
    "training.loop.train",
    "eval.run",
    "eval.runs.score",
    "release.run",
)
READ_AT_IMPORT = ("HF_", "OMP_", "TORCH", "TOKENIZERS_", "NO_PROXY")
MODULE = ""  # of this fork
_servers: dict[tuple[tuple[str, str], ...], str] = {}


def python_in(environment: dict[str, str]) -> str:
    """The executable for processes of this environment; its server is started the first time."""
    import atexit
    import subprocess
    import tempfile
    from pathlib import Path

    key = tuple(sorted((name, value) for name, value in environment.items() if name.startswith(READ_AT_IMPORT)))
    if key not in _servers:
        folder = Path(tempfile.mkdtemp(prefix="forked-python-"))
        stub = folder / "python"
        call = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import forked_python"
        stub.write_text(f"#!{sys.executable} -IS\n{call}; forked_python.call({str(folder / 'socket')!r})\n")
        stub.chmod(0o700)
        words = [sys.executable, __file__, str(folder / "socket"), str(stub)]
        server = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        atexit.register(server.kill)
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        _servers[key] = str(stub)
    return _servers[key]


def call(place: str) -> None:
    """The caller's side: ask for a fork, pass signals on to it, and end as it ends."""
    if sys.argv[1] != "-m":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    question = {"words": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
    socket.send_fds(connection, [json.dumps(question).encode() + b"\n"], [0, 1, 2])
    answers = connection.makefile()
    child = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(place: str, stub: str) -> None:
    """The server's side: fork for each question. Returns in the forks alone, which then run a module."""
    import importlib
    import selectors
    from pathlib import Path

    sys.path[0] = str(Path(sys.path[0]).parent)  # the folder of this file has folders of our packages' names
    for module in IMPORTED:
        importlib.import_module(module)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(64)
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = dict[int, socket.socket]()
    wait = selectors.DefaultSelector()
    for file in (listening, ended, sys.stdin):
        wait.register(file, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in wait.select():
            if key.fileobj is sys.stdin:  # whoever started it is gone
                for child in children:
                    os.kill(child, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listening:
                connection, _ = listening.accept()
                question, streams = _asked(connection)
                child = os.fork()
                if not child:
                    wait.close()
                    for file in (listening, connection, *children.values()):
                        file.close()
                    _become(question, streams, stub)
                    return
                for stream in streams:
                    os.close(stream)
                connection.sendall(f"{child}\n".encode())
                children[child] = connection
                wait.register(connection, selectors.EVENT_READ)
            elif key.fileobj == ended:
                os.read(ended, 4096)
                _tell_ends(children, wait)
            else:  # a caller is gone
                child = next(one for one, connection in children.items() if connection is key.fileobj)
                wait.unregister(key.fileobj)
                os.kill(child, signal.SIGKILL)


def _asked(connection: socket.socket) -> tuple[dict, list[int]]:
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    return json.loads(text), streams


def _tell_ends(children: dict, wait: object) -> None:
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        connection = children.pop(child)
        try:
            wait.unregister(connection)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except (KeyError, OSError):  # the caller was gone before
            pass
        connection.close()


def _become(question: dict, streams: list[int], stub: str) -> None:
    """Make this fork what the caller would have been."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ |= question["environment"]
    os.chdir(question["folder"])
    sys.argv = ["", *question["words"][1:]]
    sys.path[0] = question["folder"]
    sys.executable = stub
    sys.modules["__main__"].MODULE = question["words"][0]  # type: ignore[attr-defined]


def _run(module: str) -> int:
    """Run a module as ``python -m`` does; its exit code."""
    import runpy
    import traceback
    import warnings

    warnings.filterwarnings("ignore", ".*found in sys.modules after import of package", RuntimeWarning)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    import atexit
    import threading

    serve(*sys.argv[1:])
    code = _run(MODULE)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking all that was imported apart takes a second and a half

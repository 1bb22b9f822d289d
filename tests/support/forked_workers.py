"""Ray workers that are forked from one process which imported torch and our modules once: 0.2 s
each instead of 5 s.

A raylet starts its workers with ``python SETUP_WORKER worker.py arguments``; this file is
SETUP_WORKER. It hands the command to the forking process (``serve``) and ends; the forked child
runs Ray's own worker script. The process that starts the raylets sets ``SOCKET``. The forking
process answers, too, which workers there are.
"""
# ruff: noqa: PTH109, PTH110, PTH120 (every worker would wait for the import of pathlib)

import json
import os
import socket
import sys

# the environment variable that names the forking process's socket
SOCKET = "STS_DINO_FORKED_WORKERS"
WORKERS = "workers"  # ask for them


def asked(question: object) -> object:
    """The forking process's answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        connection.sendall(json.dumps(question).encode() + b"\n")
        return json.loads(connection.makefile().readline())


def serve(modules: list[str]) -> None:
    """Import ``modules``, then fork a worker for each command that a raylet starts."""
    import importlib
    import signal

    for module in modules:
        importlib.import_module(module)
    assert "ray" not in sys.modules, (
        "ray takes its settings from the environment when it is imported"
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    nodes = dict[int, str]()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.environ[SOCKET])
        listening.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            with connection:
                question = json.loads(connection.makefile().readline())
                if question == WORKERS:
                    nodes = {
                        pid: node for pid, node in nodes.items() if os.path.exists(f"/proc/{pid}")
                    }
                    answer: object = list(nodes.items())
                else:
                    answer = os.fork()
                    if not answer:
                        listening.close()
                        connection.close()
                        _work(**question)
                    nodes[answer] = _argument(question["arguments"], "--node-id")
                connection.sendall(json.dumps(answer).encode() + b"\n")


def _argument(arguments: list[str], name: str) -> str:
    return next((word.partition("=")[2] for word in arguments if word.startswith(f"{name}=")), "")


def _work(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be a worker: what ``ray/_private/workers/setup_worker.py`` and the interpreter would have set
    up.
    """
    import ctypes
    import runpy
    import signal

    # the end of the forking process is the end of its workers
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgrp()  # a raylet that ends kills its workers' process groups
    context = json.loads(_argument(arguments, "--serialized-runtime-env-context") or "{}")
    os.environ.clear()
    os.environ.update(environment | context.get("env_vars", {}))
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    os.dup2(0, 2)
    passed = ("--serialized-runtime-env-context", "--language")
    sys.argv = [word for word in arguments if not word.startswith(passed)]
    sys.path[0] = os.path.dirname(sys.argv[0])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    asked({"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()})

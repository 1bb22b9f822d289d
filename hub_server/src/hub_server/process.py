"""A local Hub as a child process.

``with LocalHub(tmp_path) as hub: HfApi(endpoint=hub.endpoint, token=hub.token)``
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hub_server.storage.errors import CommandError

_START_SECONDS = 60
_STOP_SECONDS = 15
_CODE_ROOT = Path(__file__).resolve().parents[1]  # where ``python -m`` finds this package


class LocalHub:
    """A Hub in a child process that ends with its parent.

    ``start`` launches the child, and so does ``with``, which also stops the child.

    Args:
        root: the folder of the Hub's data.
        port: the port on 127.0.0.1; 0 takes a free port.
        user: the account of the token.
        orgs: the organisations that the account may write to.
        options: further options of ``hub-server serve``.
        home: the cache of clients (HF_HOME); None: ``client_home`` below ``root``.

    ``program``: the arguments with which Python runs the command ``hub-server``.
    """

    program: tuple[str, ...] = ("-m", "hub_server.server")

    def __init__(
        self,
        root: Path | str,
        port: int = 0,
        *,
        user: str = "demo",
        orgs: Sequence[str] = (),
        options: Sequence[str] = (),
        home: Path | str | None = None,
    ):
        self.root = Path(root).absolute()
        self.home = Path(home).absolute() if home else self.root / "client_home"
        self.log_file = self.root / "server.log"
        self.token_file = self.root / "token"
        self.endpoint = ""
        self.process: subprocess.Popen[str] | None = None
        self._options = ["--root", str(self.root), "--port", str(port), "--user", user, *options]
        for org in orgs:
            self._options += ["--org", org]

    @property
    def token(self) -> str:
        """The content of the file with the write token."""
        return self.token_file.read_text(encoding="utf-8").strip()

    def start(self) -> "LocalHub":
        """Launch the server, wait until it listens, and return this object.

        Raises CommandError when the server ends or does not listen within ``_START_SECONDS``.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, *self.program, "serve", *self._options, "--stop-with-stdin"]
        with self.log_file.open("ab") as log:
            log_start = log.tell()
            self.process = subprocess.Popen(  # noqa: S603 (our own module)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                cwd=_CODE_ROOT,
            )

        # The server prints its endpoint when it listens.
        watchdog = threading.Timer(_START_SECONDS, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        first_line = self.process.stdout.readline().strip()  # empty when the child has ended
        label, _, self.endpoint = first_line.partition(" ")
        was_too_slow = watchdog.finished.is_set()  # the timer has killed the child
        watchdog.cancel()
        if label != "endpoint":
            self.kill()
            log_text = self.log_file.read_bytes()[log_start:].decode(errors="replace")
            reason = (log_text.strip() or "no output").splitlines()[-1]
            if was_too_slow:
                reason = f"no answer within {_START_SECONDS} seconds"
            raise CommandError(f"local Hub on {self.root}: did not start: {reason}", exit_code=1)
        return self

    def stop(self) -> None:
        """Send SIGTERM to the server; kill the server if it runs after ``_STOP_SECONDS``."""
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_SECONDS)
            self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait for its end; nothing happens when none runs."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def __enter__(self) -> "LocalHub":
        if self.process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client_environment(self, home: Path | str | None = None) -> dict[str, str]:
        """Return this process's environment variables, changed so that clients use this Hub.

        Clients read the variables when they are imported. Two Hubs must not share a cache, because
        its keys are repo ids.

        home: the cache of the client (HF_HOME); None: ``self.home``.
        """
        hub_settings = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_CACHE")
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(hub_settings)
        }
        return environment | {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN_PATH": str(self.token_file),
            "HF_HOME": str(home or self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

"""This process: its signals, its memory, and the environment variables that its libraries read.

``sts-dino`` sets signal handlers first, then imports a command's libraries for seconds, and then
calls ``sts_dino.hub.cli.run_app``. During the imports, Ctrl-C and SIGTERM end the process at once,
with one line and an exit code: the process has no resource to release yet. This module imports
little, so that the handlers are set early.

A command that needs an environment variable refuses its bad value in one line.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from sts_dino.hub.errors import InputError

# Exit codes of a process that a signal ended: 128 and the signal's number
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_MESSAGES = {
    EXIT_INTERRUPTED: "interrupted; run the same command again to go on",
    EXIT_TERMINATED: "ended by SIGTERM; run the same command again to go on",
}
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss's unit
_MIB = 2**20
# This variable holds the error over a removed variable, so that child processes inherit the error.
_REMOVED_VARIABLE_ERROR = "STS_DINO_SET_ASIDE"
# huggingface_hub raises on import when one of these has a bad value.
_VARIABLES_THAT_BREAK_IMPORTS = ("HF_ENDPOINT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")
_HUB_VARIABLES = (*_VARIABLES_THAT_BREAK_IMPORTS, "HF_TOKEN")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# tqdm and datasets read these on import and raise over other text than a number.
_NUMBER_VARIABLES = (
    "HF_DATASETS_IN_MEMORY_MAX_SIZE",
    "TQDM_MININTERVAL",
    "TQDM_MAXINTERVAL",
    "TQDM_MINITERS",
    "TQDM_NCOLS",
    "TQDM_NROWS",
    "TQDM_SMOOTHING",
    "TQDM_INITIAL",
    "TQDM_POSITION",
    "TQDM_DELAY",
)

_handling_process = 0  # the id of the process that set the handlers; forked workers inherit these


def set_signal_handlers(on_interrupt: Any, on_terminate: Any) -> None:
    """Set the handlers of SIGINT (Ctrl-C) and SIGTERM, as ``signal.signal`` takes them.

    A handler of another library stays, and so does an ignored signal: a shell ignores SIGINT for
    a command that it starts with ``&``.
    """
    global _handling_process
    _handling_process = os.getpid()
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end_at_once):
        signal.signal(signal.SIGINT, on_interrupt)
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, end_at_once):
        signal.signal(signal.SIGTERM, on_terminate)


def end_at_once(number: int, _: object) -> None:
    """Print the signal's message on stderr and exit, without Python's own shutdown.

    A signal handler; ``number`` is SIGINT or SIGTERM, and the exit code is 128 + ``number``. A
    forked worker dies of the signal without a message: its parent prints the message.
    """
    if os.getpid() != _handling_process:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # it ends the process here
    exit_code = 128 + number
    os.write(2, f"{EXIT_MESSAGES[exit_code]}\n".encode())
    os._exit(exit_code)  # the module that is being imported might catch an exception


def measure_peak_rss_mb(children: bool = False) -> float:
    """Return the peak resident memory of this process in MiB.

    Args:
        children: whether to return instead the peak of the largest child process that has ended.
            Windows does not record this peak; the result is 0.0 there.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        import psutil

        if children:
            return 0.0
        usage = psutil.Process().memory_info()
        return round(getattr(usage, "peak_wset", usage.rss) / _MIB, 1)
    usage_of = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return round(resource.getrusage(usage_of).ru_maxrss * _RSS_UNIT / _MIB, 1)


def measure_seconds_since_start() -> float:
    """Return the seconds since the operating system started this process."""
    import psutil

    return time.time() - psutil.Process().create_time()


def measure_tree_rss_mb() -> float:
    """Return the sum of the resident memory of this process and all its descendants in MiB.

    A page of memory that several processes share counts once for each process.
    """
    import psutil

    this_process = psutil.Process()
    total = 0
    for process in [this_process, *this_process.children(recursive=True)]:
        with suppress(psutil.Error):  # the process has ended
            total += process.memory_info().rss
    return total / _MIB


def remove_unusable_values() -> list[str]:
    """Remove environment variables whose values would break the import of a library.

    Call this function before a command imports its libraries. ``require_usable`` raises the error
    over a removed variable of the Hub, in the commands that need the Hub. A removed HF_ENDPOINT is
    replaced by an address that no machine has. No command needs ``_NUMBER_VARIABLES``.

    Returns:
        A line of warning for each variable of ``_NUMBER_VARIABLES`` that was removed.
    """
    # variables of the Hub, whose error is kept for ``require_usable``
    for name in _VARIABLES_THAT_BREAK_IMPORTS:
        try:
            _require_usable_value(name)
        except InputError as problem:
            os.environ[_REMOVED_VARIABLE_ERROR] = str(problem)
            os.environ.pop(name)
            if name == "HF_ENDPOINT":
                # Without a value the client would take huggingface.co.
                os.environ[name] = "https://hub.invalid"

    # variables of progress bars and of datasets
    warnings = []
    for name in _NUMBER_VARIABLES:
        try:
            float(os.environ.get(name, "0"))
        except ValueError:
            value = os.environ.pop(name)
            warnings.append(f"{name}: is ignored, it is not a number ({value!a})")
    return warnings


def require_usable(of_hub: bool = False) -> None:
    """Raise InputError for an environment variable that an HTTP client cannot use.

    It checks the variables of proxies and certificates.

    Args:
        of_hub: whether to check the variables of the Hub's client, too, and to raise the error that
            ``remove_unusable_values`` kept.
    """
    if of_hub and os.environ.get(_REMOVED_VARIABLE_ERROR):
        raise InputError(os.environ[_REMOVED_VARIABLE_ERROR])
    names = [name for name in os.environ if name.upper() in _PROXY_VARIABLES]
    names.append("SSL_CERT_FILE")
    if of_hub:
        names = [*_HUB_VARIABLES, *names]
    for name in names:
        _require_usable_value(name)


def _require_usable_value(name: str) -> None:
    """Raise InputError for a bad value of an environment variable.

    An unset or empty variable passes. Variables other than SSL_CERT_FILE, HF_TOKEN and
    ``*_TIMEOUT`` are checked as URLs. The error never shows a token or a URL, because both may
    hold a secret.
    """
    value = os.environ.get(name)
    if not value:
        return
    if name == "SSL_CERT_FILE":
        _require_certificates(name, value)
    elif name == "HF_TOKEN":
        token = value.strip()
        if not (token.isascii() and token.isprintable()):
            problem = "holds a line break, a control character or a letter beyond ASCII"
            raise InputError(name, problem, allowed="a token of the Hub (hf_...)")
    elif not name.endswith("_TIMEOUT"):
        _require_url(name, value)
    elif not value.strip().isdecimal():
        raise InputError(name, f"is not a whole number ({value!a})", allowed="seconds")


def _require_certificates(name: str, value: str) -> None:
    """Raise InputError for a file of certificates that Python cannot load."""
    import ssl  # most commands need none

    try:
        ssl.create_default_context(cafile=value)
    except OSError as error:  # an SSLError, too, whose strerror names the reason
        raise InputError(
            name, f"cannot be read ({value!a}: {error.strerror})", allowed="a file of certificates"
        ) from error


def _require_url(name: str, value: str) -> None:
    """Raise InputError for the URL of a Hub or a proxy that cannot be used.

    HF_ENDPOINT needs a scheme and takes no user; a proxy may have a user and lack a scheme. A SOCKS
    proxy needs the package socksio. ``name``: the variable that has the URL ``value``.
    """
    schemes = ["http", "https"]
    if name != "HF_ENDPOINT":
        schemes += ["socks5", "socks5h"]
        value = value if "://" in value else f"http://{value}"
    not_a_url = InputError(
        name, "is not a URL", allowed=f"{'://, '.join(schemes)}://, a host and a port up to 65535"
    )
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise not_a_url from None
    # urlsplit accepts spaces and unprintable characters.
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        raise not_a_url
    if " " in value or not value.isprintable():
        raise not_a_url

    if name == "HF_ENDPOINT" and "@" in parts.netloc:
        raise InputError(
            name,
            "holds a user or a password",
            hint="take them out; a Hub reads the token in HF_TOKEN",
        )
    if parts.scheme.startswith("socks") and not find_spec("socksio"):
        raise InputError(
            name,
            "names a SOCKS proxy, which needs socksio",
            hint="pip install socksio, or unset it",
        )

"""Environment variables that libraries read: a bad one is named in one line, by the commands that need it."""

import os
import sys
from importlib.util import find_spec
from urllib.parse import urlsplit

from hub.errors import InputError

_SET_ASIDE = "STS_DINO_SET_ASIDE"  # the error over a variable that was set aside; inherited by child processes
_OF_HUB = ("HF_ENDPOINT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_TOKEN")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_BARS = {"MININTERVAL", "MAXINTERVAL", "MINITERS", "NCOLS", "NROWS", "SMOOTHING", "INITIAL", "POSITION", "DELAY"}
_IGNORED = {"HF_DATASETS_IN_MEMORY_MAX_SIZE", *(f"TQDM_{name}" for name in _BARS)}


def set_aside() -> None:
    """Take values that stop a library's import out of the environment, before a command imports it.

    ``require_usable`` refuses those of the Hub. No command needs the others: a warning names them.
    """
    for name in _OF_HUB[:3]:
        if problem := _problem(name):
            os.environ[_SET_ASIDE] = str(problem)
            os.environ.pop(name)
            if name == "HF_ENDPOINT":
                os.environ[name] = "https://hub.invalid"  # left out, it would be huggingface.co
    for name in _IGNORED & os.environ.keys():
        try:
            float(os.environ[name])
        except ValueError:
            print(f"warning: {name}: is ignored, it is not a number ({os.environ.pop(name)!a})", file=sys.stderr)


def require_usable(of_hub: bool = False) -> None:
    """Raise InputError for a variable that an HTTP client, or the Hub's, could not use."""
    if of_hub and (problem := os.environ.get(_SET_ASIDE)):
        raise InputError(problem)
    proxies = (name for name in os.environ if name.upper() in _PROXIES)
    for name in (*(_OF_HUB if of_hub else ()), *proxies, "SSL_CERT_FILE"):
        if found := _problem(name):
            raise found


def _problem(name: str) -> InputError | None:
    """The error over a variable's value, which may hold a password: it is shown where it is a number's or a path's."""
    value = os.environ.get(name)
    if not value:
        return None
    if name.endswith("_TIMEOUT"):
        bad = not value.strip().isdecimal()
        return InputError(name, f"is not a whole number ({value!a})", allowed="seconds") if bad else None
    if name == "HF_TOKEN":
        bad = not (value.strip().isascii() and value.strip().isprintable())
        return InputError(name, "holds letters beyond ASCII", allowed="a token of the Hub (hf_...)") if bad else None
    if name == "SSL_CERT_FILE":
        import ssl

        try:
            ssl.create_default_context(cafile=value)
        except OSError as error:
            return InputError(name, f"cannot be read ({value!a}: {error.strerror})", allowed="a file of certificates")
        return None
    schemes = ("http", "https") if name == "HF_ENDPOINT" else ("http", "https", "socks5", "socks5h")
    try:
        parts = urlsplit(value if "://" in value or name == "HF_ENDPOINT" else f"http://{value}")
        bad = parts.scheme not in schemes or not parts.hostname or parts.port == 0 or not value.isprintable()
    except ValueError:
        bad = True
    if bad or " " in value:
        return InputError(name, "is not a URL", allowed=f"{'://, '.join(schemes)}://, a host and a port up to 65535")
    if name == "HF_ENDPOINT" and "@" in parts.netloc:
        return InputError(name, "holds a user or a password", hint="take them out; a Hub reads the token in HF_TOKEN")
    if parts.scheme.startswith("socks") and not find_spec("socksio"):
        return InputError(name, "names a SOCKS proxy, which needs socksio", hint="pip install socksio, or unset it")
    return None

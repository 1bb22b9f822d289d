"""Environment variables that libraries read.

A command that needs a variable refuses its bad value in one line.
"""

import os
import ssl
from importlib.util import find_spec
from urllib.parse import urlsplit

from sts_dino.hub.errors import InputError

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


def remove_unusable_values() -> list[str]:
    """Remove environment variables whose values would break the import of a library.

    Call this function before a command imports its libraries. ``require_usable`` raises the error
    over a removed variable of the Hub, in the commands that need the Hub. A removed HF_ENDPOINT is
    replaced by an address that no machine has.

    Returns:
        One warning for each other removed variable; no command needs these.
    """
    # variables of the Hub, whose error is kept for ``require_usable``
    for name in _VARIABLES_THAT_BREAK_IMPORTS:
        problem = _find_problem(name)
        if problem:
            os.environ[_REMOVED_VARIABLE_ERROR] = str(problem)
            os.environ.pop(name)
            if name == "HF_ENDPOINT":
                # Without a value the client would take huggingface.co.
                os.environ[name] = "https://hub.invalid"

    # variables of bars and of datasets, which only get a warning
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

    Args:
        of_hub: whether to check the variables of the Hub's client, too.
    """
    if of_hub and os.environ.get(_REMOVED_VARIABLE_ERROR):
        raise InputError(os.environ[_REMOVED_VARIABLE_ERROR])
    names = [name for name in os.environ if name.upper() in _PROXY_VARIABLES]
    names.append("SSL_CERT_FILE")
    if of_hub:
        names = [*_HUB_VARIABLES, *names]
    for name in names:
        problem = _find_problem(name)
        if problem:
            raise problem


def _find_problem(name: str) -> InputError | None:
    """Return the error over the value of an environment variable; None without a problem.

    An unset or empty variable has no problem. Variables other than SSL_CERT_FILE, HF_TOKEN and
    ``*_TIMEOUT`` are checked as URLs. The error never shows a token or a URL, because both may
    hold a secret.
    """
    value = os.environ.get(name)
    if not value:
        return None
    if name == "SSL_CERT_FILE":
        return _check_certificates(name, value)
    if name == "HF_TOKEN":
        token = value.strip()
        if token.isascii() and token.isprintable():
            return None
        problem = "holds letters beyond ASCII"
        if token.isascii():
            problem = "holds a line break or another control character"
        return InputError(name, problem, allowed="a token of the Hub (hf_...)")
    if name.endswith("_TIMEOUT"):
        if value.strip().isdecimal():
            return None
        return InputError(name, f"is not a whole number ({value!a})", allowed="seconds")
    return _check_url(name, value)


def _check_certificates(name: str, value: str) -> InputError | None:
    """Return the error over a file of certificates that Python cannot load, else None."""
    try:
        ssl.create_default_context(cafile=value)
    except ssl.SSLError:
        problem = f"holds no certificate in PEM form ({value!a})"
        return InputError(name, problem, allowed="a file of certificates")
    except OSError as error:
        return InputError(
            name, f"cannot be read ({value!a}: {error.strerror})", allowed="a file of certificates"
        )
    return None


def _check_url(name: str, value: str) -> InputError | None:
    """Return the error over the URL of a Hub or a proxy, else None.

    HF_ENDPOINT needs a scheme and takes no user; a proxy may have a user and lack a scheme.
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
        return not_a_url
    # urlsplit accepts spaces and unprintable characters.
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        return not_a_url
    if " " in value or not value.isprintable():
        return not_a_url

    if name == "HF_ENDPOINT" and "@" in parts.netloc:
        return InputError(
            name,
            "holds a user or a password",
            hint="take them out; a Hub reads the token in HF_TOKEN",
        )
    if parts.scheme.startswith("socks") and not find_spec("socksio"):
        return InputError(
            name,
            "names a SOCKS proxy, which needs socksio",
            hint="pip install socksio, or unset it",
        )
    return None

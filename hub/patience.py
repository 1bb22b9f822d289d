"""Which failures of a Hub pass, how long to wait for them, and the waiting itself: with a countdown, ended by Ctrl-C.

The client library tries a request again a few times by itself when the Hub errs or the line drops. What is still
failing then comes here, where the whole step is planned anew: a commit whose answer was lost is found to be there. A
429 comes here at once, because the client would sleep through the hour that a quota may ask for without a word.
"""

import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import hf_raise_for_status, parse_ratelimit_headers
from huggingface_hub.utils._http import default_client_factory
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential_jitter

from hub import cli

# Others are permanent: the same request would be refused again. 409 and 412: somebody else committed meanwhile.
PASSING = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
LONGEST_SECONDS = 3900.0  # an hourly quota, and some minutes for clocks that differ
TIMEOUT = httpx2.Timeout(60, read=300)  # the client's own default waits for ever

Result = TypeVar("Result")


@dataclass
class Patience:
    """How long a step may fail before it is given up. ``scale`` shortens every wait (for tests)."""

    longest: float = LONGEST_SECONDS
    scale: float = 1.0
    _why: str = field(default="", init=False)  # the last failure
    reached: bool = field(default=False, init=False)  # one that never answered is a wrong address

    def until_done(self, what: str, attempt: Callable[[], Result]) -> Result:
        """The result of ``attempt``, which is called again after every passing failure until it succeeds.

        Raises the last failure when it does not pass, or when waiting on would take longer than ``longest`` seconds.
        """
        retrying = Retrying(
            retry=retry_if_exception(self.passes),
            wait=self._wait,
            stop=stop_before_delay(self.longest * self.scale),
            sleep=lambda seconds: countdown(f"{what}: {self._why}", seconds),
            reraise=True,
        )
        result = retrying(attempt)
        self.reached = True
        return result

    def passes(self, error: BaseException) -> bool:
        """Whether the same step may succeed later."""
        if isinstance(error, HfHubHTTPError):
            self.reached = True
            return error.response.status_code in PASSING
        if isinstance(error, httpx2.ConnectError):
            return self.reached
        dropped = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, ConnectionError)
        return isinstance(error, dropped) and not isinstance(error, OfflineModeIsEnabled)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        self._why = _reason(error)
        asked = asked_wait(error) if isinstance(error, HfHubHTTPError) else None
        return self.scale * (
            asked if asked is not None else wait_exponential_jitter(initial=1, max=300, jitter=1)(state)
        )


def asked_wait(error: HfHubHTTPError) -> float | None:
    """Seconds that the Hub asks to wait, by its rate limit or ``Retry-After`` headers; None when it does not say."""
    headers = error.response.headers
    limit = parse_ratelimit_headers(headers)
    if error.response.status_code == 429 and limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds + 1.0
    asked = headers.get("retry-after", "")
    return float(asked) + 1 if asked.isdigit() else None


def _reason(error: BaseException | None) -> str:
    if isinstance(error, HfHubHTTPError):
        return f"the Hub answered {error.response.status_code}"
    return f"the connection failed ({type(error).__name__})"


def countdown(why: str, seconds: float) -> None:
    """Wait, and tell how long. Ctrl-C ends it like any other work: whatever is published is whole."""
    if not sys.stderr.isatty():
        if seconds >= 1:
            cli.say(f"{why}, going on in {_clock(seconds)}")
        time.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        print(f"\r{why}, going on in {_clock(left)} ", end="", file=sys.stderr, flush=True)
        time.sleep(min(1, left))
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def use_patient_client(patience: Patience) -> None:
    """Give the client library of this process a time limit, let a 429 through at once, and tell of every answer."""

    def heard(response: httpx2.Response) -> None:
        patience.reached = True
        if response.status_code == 429:
            response.read()
            hf_raise_for_status(response)

    def client() -> httpx2.Client:
        made = default_client_factory()
        made.timeout = TIMEOUT
        made.event_hooks = {**made.event_hooks, "response": [*made.event_hooks["response"], heard]}
        return made

    set_client_factory(client)
    logging.getLogger("huggingface_hub.utils._http").addFilter(without_queries)


def without_queries(record: logging.LogRecord) -> bool:
    """Cut the query from addresses in the client's warnings: those of uploads are signed, and good for hours."""
    record.msg, record.args = re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]+", r"\1", record.getMessage()), ()
    return True

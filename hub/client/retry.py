"""Retry policy of the project: which failures pass, how long to wait, and how many commits an hour may hold.

The client library retries a request a few times by itself. A failure that remains comes here, and the whole step is
planned anew: a commit whose answer was lost is found on the Hub. A 429 comes here at once, because the client would
sleep through the hour that a quota may ask for without a word.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

import httpx2
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay

from hub import cli
from hub.client import connection as client

# Others are permanent: the same request would be refused again. 409 and 412: somebody else committed meanwhile.
PASSING = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
LONGEST_SECONDS = 3900.0  # an hourly quota, and some minutes for clocks that differ
SAME_CONFLICTS = 5  # the very same request refused with 409 so often in a row (half a minute) is refused for good

Result = TypeVar("Result")


@dataclass
class RetryPolicy:
    """Retry policy of requests to a Hub: seconds until a failing step is given up; ``scale`` shortens waits (tests)."""

    longest: float = LONGEST_SECONDS
    scale: float = 1.0
    reached: bool = field(default=False, init=False)  # one that never answered is a wrong address
    _why: str = field(default="", init=False)  # the last failure
    _answered: bool = field(default=False, init=False)  # a whole step was done: what answers is a Hub
    _conflicts: list[object] = field(default_factory=list, init=False)  # the same 409 in a row

    def until_done(self, what: str, attempt: Callable[[], Result]) -> Result:
        """The result of ``attempt``, which is called again after every passing failure until it succeeds.

        Raises the last failure when it does not pass, or when waiting on would take longer than ``longest`` seconds.
        """
        retrying = Retrying(
            retry=retry_if_exception(self.passes),
            wait=self._wait,
            stop=stop_before_delay(self.longest * self.scale),
            sleep=lambda seconds: wait(f"{what}: {self._why}", seconds),
            reraise=True,
        )
        result = retrying(attempt)
        self.done()
        return result

    def done(self) -> None:
        """Take note that a step went well."""
        self.reached = self._answered = True
        self._conflicts.clear()

    def passes(self, error: BaseException) -> bool:
        """Whether the same step may succeed later. Call it once for each failure, in their order."""
        if isinstance(error, HfHubHTTPError):
            self.reached = True
            return error.response.status_code in PASSING and not self._for_good(error)
        if isinstance(error, httpx2.ConnectError):
            return self.reached
        if client.is_wrong(error):
            return self._answered
        dropped = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, ConnectionError)
        return isinstance(error, dropped) and not isinstance(error, OfflineModeIsEnabled)

    def _for_good(self, error: HfHubHTTPError) -> bool:
        """Whether a conflict is none with somebody who commits, such as a name in the way: the head does not move.

        A commit names its parent, so that the same request means the same head.
        """
        if error.response.status_code != 409:
            self._conflicts.clear()
            return False
        request = error.response.request
        sent = request.read() if isinstance(request.stream, httpx2.ByteStream) else None
        conflict: object = (request.method, str(request.url), sent, client.reason(error))
        self._conflicts = [past for past in self._conflicts if past == conflict] + [conflict]
        return len(self._conflicts) >= SAME_CONFLICTS

    def pause(self, error: BaseException | None, number: int) -> float:
        """Seconds to wait after the ``number``-th failure in a row: as long as the Hub asks, or longer and longer."""
        asked = asked_wait(error) if isinstance(error, HfHubHTTPError) else None
        growing = min(300.0, 2.0 ** min(number - 1, 20) + random.uniform(0, 1))
        return self.scale * (growing if asked is None else asked)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        self._why = client.reason(error) if error else ""
        return self.pause(error, state.attempt_number)


def asked_wait(error: HfHubHTTPError) -> float | None:
    """Seconds that the Hub asks to wait, by its rate limit or ``Retry-After`` headers; None when it does not say."""
    from huggingface_hub.utils import parse_ratelimit_headers

    headers = error.response.headers
    try:
        limit = parse_ratelimit_headers(headers)
    except ValueError:  # a number of thousands of digits
        limit = None
    if error.response.status_code == 429 and limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds + 1.0 if limit.reset_in_seconds <= client.LONGEST_ASKED else None
    seconds = client.asked_seconds(headers)
    return None if seconds is None else seconds + 1.0


def wait(why: str, seconds: float) -> None:
    """Print how long the wait takes, and wait. Ctrl-C ends it: whatever is published is whole."""
    if seconds >= 1:
        cli.say(f"{why}; the next attempt is in {timedelta(seconds=round(seconds))}")
    time.sleep(seconds)


def use_patient_client(patience: RetryPolicy) -> None:
    """Our client for this process, which hands on what asks to wait, so that a line reports it."""
    from huggingface_hub.utils import hf_raise_for_status

    def heard(response: httpx2.Response) -> None:
        patience.reached = True
        if response.status_code == 429 or (response.status_code >= 500 and "retry-after" in response.headers):
            response.read()
            hf_raise_for_status(response)

    client.use(heard)


HOUR = timedelta(hours=1)
PER_HOUR = 100
RESERVED = 3  # of the hour's commits, for the release: main, the branch `script`, and one that met another


class CommitBudget:
    """Spreads commits evenly over the hour and never spends more than the hour's number, less those reserved."""

    def __init__(self, per_hour: int = PER_HOUR, spent: Iterable[datetime] = ()):
        self.per_hour, self._spent = per_hour, sorted(spent)

    def next_time(self, at: datetime) -> datetime:
        """The earliest time, from ``at`` on, for the next commit of a growing repository."""
        allowed = max(1, self.per_hour - RESERVED)
        after_last = [time + HOUR / self.per_hour for time in self._spent[-1:]]
        return max(
            [at, *after_last, *(time + HOUR for time in self._spent[-allowed:][:1] if len(self._spent) >= allowed)]
        )

    def spend(self, at: datetime) -> None:
        """Count a commit; those of more than an hour ago are forgotten."""
        self._spent = [time for time in self._spent if time > at - HOUR] + [at]

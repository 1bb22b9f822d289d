"""Retry policy of the project: temporary failures, waits, and a budget of commits per hour.

The client library retries a request a few times by itself. When it gives up, this module repeats
the whole step, which plans anew and so finds a commit whose answer was lost. An answer with the
status 429 is raised at once: the library would wait in silence for the hour that a quota may ask.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

import httpx2
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay

from sts_dino.hub.client import connection

logger = logging.getLogger(__name__)

# Statuses of temporary failures. 409 and 412 mean that another process committed meanwhile.
TEMPORARY_STATUSES = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
LONGEST_OUTAGE_SECONDS = 3900.0  # an hour's quota, and five minutes for differing clocks
# After this many equal 409s in a row, which take half a minute, a conflict is permanent.
MOST_EQUAL_CONFLICTS = 5
HOUR = timedelta(hours=1)
COMMITS_PER_HOUR = 100  # the Hub allows 128
# Commits of an hour that growth leaves to the release: on main, on `script`, and one repetition
RESERVED_COMMITS = 3
LONGEST_PAUSE_SECONDS = 300.0  # between two attempts, unless the Hub asks for a longer wait
MOST_DOUBLINGS = 20  # of a pause, so that the power stays a small number

Result = TypeVar("Result")


@dataclass
class RetryPolicy:
    """Retry policy of requests to a Hub.

    Attributes:
        longest: seconds after which a failing step is given up.
        scale: factor of ``longest`` and of all waits; tests use a small factor.
        reached: whether the Hub has answered a request. A refused connection is temporary only
            then; an address that never answered is wrong.
    """

    longest: float = LONGEST_OUTAGE_SECONDS
    scale: float = 1.0
    reached: bool = field(default=False, init=False)
    _last_failure: str = field(default="", init=False)  # a phrase for the log
    # Whether a step succeeded: from then on, a wrong answer comes from a proxy and is temporary.
    _has_succeeded: bool = field(default=False, init=False)
    _conflicts: list[object] = field(default_factory=list, init=False)  # equal 409s in a row

    def call_until_done(self, action: str, attempt: Callable[[], Result]) -> Result:
        """Call ``attempt`` again after every temporary failure, and return its result.

        Args:
            action: the step's name for the log, e.g. ``publish org/name``.
            attempt: the step, called without arguments.

        Raises:
            Exception: the last failure, when it is permanent, or when the next wait would end more
                than ``longest`` (times ``scale``) seconds after the first attempt.
        """
        retrying = Retrying(
            retry=retry_if_exception(self.should_retry),
            wait=self._wait,
            stop=stop_before_delay(self.longest * self.scale),
            sleep=lambda seconds: wait(f"{action}: {self._last_failure}", seconds),
            reraise=True,
        )
        result = retrying(attempt)
        self.record_success()
        return result

    def record_success(self) -> None:
        """Record that a step succeeded, so the server is a Hub and no conflict lasts."""
        self.reached = True
        self._has_succeeded = True
        self._conflicts.clear()

    def should_retry(self, error: BaseException) -> bool:
        """Return whether a failure is temporary, and record the failure.

        Temporary are lost connections, timeouts, and ``TEMPORARY_STATUSES`` except for a permanent
        conflict. A connection that cannot be opened, or not in time, is temporary once the Hub has
        answered, and a wrong answer once a step has succeeded. The caller passes each failure once,
        in the order in which the failures happened.
        """
        if isinstance(error, HfHubHTTPError):
            self.reached = True
            is_temporary = error.response.status_code in TEMPORARY_STATUSES
            return is_temporary and not self._is_repeated_conflict(error)
        if isinstance(error, OfflineModeIsEnabled):
            return False
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return self.reached
        if connection.is_wrong_answer(error):
            return self._has_succeeded
        dropped = httpx2.TimeoutException | httpx2.NetworkError | httpx2.RemoteProtocolError
        return isinstance(error, dropped | ConnectionError)

    def _is_repeated_conflict(self, error: HfHubHTTPError) -> bool:
        """Count a refusal; return whether it is the ``MOST_EQUAL_CONFLICTS``-th equal 409 in a row.

        Another status, request or message begins the count again. A repeated conflict is permanent,
        for instance with another reference's name. A commit request names its parent, so equal
        requests mean that nobody committed between them.
        """
        if error.response.status_code != 409:
            self._conflicts.clear()
            return False
        request = error.response.request
        body = request.read() if isinstance(request.stream, httpx2.ByteStream) else None
        reason = connection.describe_failure(error)
        conflict: object = (request.method, str(request.url), body, reason)
        if conflict not in self._conflicts:
            self._conflicts.clear()
        self._conflicts.append(conflict)
        return len(self._conflicts) >= MOST_EQUAL_CONFLICTS

    def compute_pause(self, error: BaseException | None, number: int) -> float:
        """Return the seconds to wait after a failure.

        The wait is that of ``parse_asked_wait`` if the answer has one. Otherwise it is one second,
        doubled with each further failure, plus up to one random second; at most
        ``LONGEST_PAUSE_SECONDS``. ``scale`` multiplies both.

        Args:
            error: the failure, None if unknown.
            number: the failure's number in a row of failures, from 1.
        """
        seconds = None
        if isinstance(error, HfHubHTTPError):
            seconds = parse_asked_wait(error)
        if seconds is None:
            backoff = 2.0 ** min(number - 1, MOST_DOUBLINGS) + random.uniform(0, 1)
            seconds = min(LONGEST_PAUSE_SECONDS, backoff)
        return self.scale * seconds

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        self._last_failure = connection.describe_failure(error) if error else ""
        return self.compute_pause(error, state.attempt_number)


def parse_asked_wait(error: HfHubHTTPError) -> float | None:
    """Return the seconds that an answer asks to wait, plus one; None without a usable header.

    The headers are ``RateLimit``, for an answer 429 over a used-up quota, and ``Retry-After``. A
    wait of more than ``LONGEST_REQUESTED_WAIT_SECONDS`` is ignored.
    """
    from huggingface_hub.utils import parse_ratelimit_headers

    headers = error.response.headers
    seconds: float | None = connection.parse_retry_after(headers)
    try:
        limit = parse_ratelimit_headers(headers)
    except ValueError:  # Python refuses to parse a number of thousands of digits
        limit = None
    if error.response.status_code == 429 and limit is not None and limit.remaining == 0:
        seconds = limit.reset_in_seconds
    if seconds is None or seconds > connection.LONGEST_REQUESTED_WAIT_SECONDS:
        return None
    return seconds + 1.0


def wait(why: str, seconds: float) -> None:
    """Sleep for ``seconds``; log a wait of a second or more with its reason ``why``.

    Ctrl-C may interrupt the sleep without harm, because every commit is complete.
    """
    if seconds >= 1:
        logger.info(f"{why}; the next attempt is in {timedelta(seconds=round(seconds))}")
    time.sleep(seconds)


def install_patient_client(patience: RetryPolicy) -> None:
    """Install the project's HTTP client with a hook that raises answers which ask for a wait.

    The hook raises HfHubHTTPError for the status 429, and for server errors with the header
    ``Retry-After``. The client library would wait in silence; ``patience`` logs the wait. Every
    answer sets ``patience.reached``.
    """
    from huggingface_hub.utils import hf_raise_for_status

    def raise_asked_wait(response: httpx2.Response) -> None:
        patience.reached = True
        is_server_error = response.status_code >= 500
        if response.status_code == 429 or (is_server_error and "retry-after" in response.headers):
            response.read()
            hf_raise_for_status(response)

    connection.install_client(raise_asked_wait)


class CommitBudget:
    """Budget of a growing repository's commits: spaced evenly, ``RESERVED_COMMITS`` stay unused.

    Args:
        per_hour: the number of commits that an hour may hold.
        spent: the times of earlier commits, in any order.
    """

    def __init__(self, per_hour: int = COMMITS_PER_HOUR, spent: Iterable[datetime] = ()):
        self.per_hour = per_hour
        self._times = sorted(spent)

    def compute_next_time(self, at: datetime) -> datetime:
        """Return the earliest time for the next commit, not before ``at``.

        Commits are at least an hour / ``per_hour`` apart. Any hour holds at most ``per_hour`` minus
        ``RESERVED_COMMITS`` of them, but at least one.
        """
        earliest = at
        if self._times:
            earliest = max(earliest, self._times[-1] + HOUR / self.per_hour)
        allowed = max(1, self.per_hour - RESERVED_COMMITS)
        if len(self._times) >= allowed:
            earliest = max(earliest, self._times[-allowed] + HOUR)
        return earliest

    def count_commit(self, at: datetime) -> None:
        """Record a commit at the time ``at``, and forget commits older than an hour."""
        self._times = [earlier for earlier in self._times if earlier > at - HOUR] + [at]

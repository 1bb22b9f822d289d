"""Retry policy: which failures pass, how long a wait takes, what it prints, Ctrl-C, and the commits
of an hour.
"""

import time
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from huggingface_hub import HfApi, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils._http import default_client_factory

from sts_dino.hub.client import retry as patience
from sts_dino.hub.client.retry import (
    MOST_EQUAL_CONFLICTS,
    RESERVED_COMMITS,
    CommitBudget,
    RetryPolicy,
    install_patient_client,
    parse_asked_wait,
)

pytest_plugins = ["local_hub"]


def answer(status: int, **headers: str) -> HfHubHTTPError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = httpx2.Request("POST", "http://127.0.0.1/api")
    return HfHubHTTPError(
        "refused", response=httpx2.Response(status, headers=named, request=request)
    )


class Attempts:
    """Fails with each error in turn, then succeeds."""

    def __init__(self, *errors: Exception):
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


QUICK = 0.0001


DROPPED = (httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("cut"), ConnectionResetError())
LASTING = (ValueError("bad"), OfflineModeIsEnabled("offline"), FileNotFoundError("gone"))


@pytest.mark.parametrize("error", [*map(answer, (409, 429, 503)), *DROPPED], ids=repr)
def test_a_failure_that_passes_is_tried_again(error):
    attempt = Attempts(error, error)
    assert (
        RetryPolicy(scale=QUICK).call_until_done("publish", attempt) == "done"
        and attempt.calls == 3
    )


@pytest.mark.parametrize("error", [*map(answer, (401, 422, 507)), *LASTING], ids=repr)
def test_a_lasting_failure_stops_at_once(error):
    attempt = Attempts(error)
    with pytest.raises(type(error)):
        RetryPolicy(scale=QUICK).call_until_done("publish", attempt)
    assert attempt.calls == 1


def test_a_hub_that_never_answered_is_a_wrong_address_and_one_that_did_is_waited_for():
    for error in (httpx2.ConnectError("refused"), httpx2.ConnectTimeout("no answer")):
        with pytest.raises(type(error)):
            RetryPolicy(scale=QUICK).call_until_done("publish", Attempts(error))
        known = RetryPolicy(scale=QUICK)
        known.call_until_done("look", Attempts())
        assert known.call_until_done("publish", Attempts(error)) == "done"


def test_an_answer_within_a_step_that_fails_is_one(local_hub):
    patience = RetryPolicy(scale=QUICK)
    install_patient_client(patience)
    try:
        assert (
            HfApi(endpoint=local_hub.endpoint, token=local_hub.token).whoami()["name"] == "demo"
            and patience.reached
        )
        assert (
            patience.call_until_done("publish", Attempts(httpx2.ConnectError("gone since")))
            == "done"
        )
    finally:
        set_client_factory(default_client_factory)


QUOTA = '"api";r={};t={}'
NO_WAITS = [
    "²",
    "-5",
    "NaN",
    "inf",
    "1e3",
    "9" * 5000,
    "9999999",
    "",
    "tomorrow",
    "٣٠",
    "Wed, 21 Oct 2026",
]


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "120"}, 121),
        (503, {"Retry-After": "7"}, 8),
        (429, {"RateLimit": QUOTA.format(0, 3300), "Retry-After": "5"}, 3301),
        (429, {"RateLimit": QUOTA.format(3, 3300)}, None),
        (429, {}, None),
        *((503, {"Retry-After": asked}, None) for asked in NO_WAITS),
        # no float, no int
        *((429, {"RateLimit": QUOTA.format(0, "9" * digits)}, None) for digits in (9, 400, 5000)),
    ],
)
def test_the_hub_says_how_long_and_a_wait_that_is_none_is_not_waited_for(status, headers, seconds):
    refused = answer(status)
    refused.response.headers = httpx2.Headers(
        [(name, value.encode()) for name, value in headers.items()]
    )
    assert parse_asked_wait(refused) == seconds
    if seconds is None:
        assert RetryPolicy(scale=QUICK).call_until_done("publish", Attempts(refused)) == "done"


def test_an_hour_is_waited_for_and_more_is_not(monkeypatch):
    waits = list[float]()
    monkeypatch.setattr(patience, "wait", lambda what, seconds: waits.append(seconds))
    assert (
        RetryPolicy().call_until_done("publish", Attempts(answer(429, retry_after="3600")))
        == "done"
    )
    assert waits == [3601]
    with pytest.raises(HfHubHTTPError):
        RetryPolicy().call_until_done("publish", Attempts(answer(429, retry_after="7200")))
    assert waits == [3601]


def test_waits_without_advice_grow_and_end(monkeypatch):
    now, waits = [0.0], list[float]()

    def sleep(what: str, seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(patience, "wait", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(HfHubHTTPError):
        RetryPolicy().call_until_done("publish", Attempts(*[answer(503)] * 1000))
    assert (
        1 <= waits[0] <= 2
        and max(waits) <= 300
        and 3000 < sum(waits) <= patience.LONGEST_OUTAGE_SECONDS
    )


def test_a_wait_is_announced_and_ctrl_c_ends_it(monkeypatch, capsys):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        RetryPolicy().call_until_done(
            "publish acme/pairs", Attempts(answer(429, retry_after="3300"))
        )
    said = capsys.readouterr().err
    assert (
        said.startswith("publish acme/pairs: the Hub answered 429: ")
        and "the next attempt is in 0:55:01" in said
    )


def conflict(words: str, body: bytes = b"", path: str = "/api/tag") -> HfHubHTTPError:
    request = httpx2.Request("POST", f"http://127.0.0.1{path}", content=body)
    return HfHubHTTPError(
        "refused", response=httpx2.Response(409, request=request), server_message=words
    )


def test_the_same_conflict_again_and_again_is_none_that_passes(monkeypatch):
    said = list[str]()
    monkeypatch.setattr(patience, "wait", lambda what, seconds: said.append(what))
    attempts = Attempts(*[conflict("refs/tags/v0.1.0/x is in the way\x1b]0;owned\x07")] * 1000)
    with pytest.raises(HfHubHTTPError):
        RetryPolicy().call_until_done("publish acme/pairs", attempts)
    assert attempts.calls == MOST_EQUAL_CONFLICTS
    assert said[0] == "publish acme/pairs: the Hub answered 409: refs/tags/v0.1.0/x is in the way"


def test_conflicts_with_others_who_commit_pass():
    """The head moves, so that the next request names another parent; or they are about something
    else each time.
    """
    moving = [
        conflict("busy", b'{"parentCommit": "%d"}' % number)
        for number in range(3 * MOST_EQUAL_CONFLICTS)
    ]
    assert RetryPolicy(scale=QUICK).call_until_done("publish", Attempts(*moving)) == "done"
    mixed = [
        conflict("busy"),
        conflict("busy"),
        answer(503),
        conflict("busy"),
        conflict("busy"),
    ] * 2
    assert RetryPolicy(scale=QUICK).call_until_done("publish", Attempts(*mixed)) == "done"


START = datetime(2026, 1, 1, tzinfo=UTC)


def test_no_hour_has_more_commits_than_allowed():
    budget, at, made = CommitBudget(20), START, []
    for _ in range(200):
        at = budget.compute_next_time(at)
        budget.count_commit(at)
        made.append(at)
    for first in made:
        assert (
            sum(first <= time < first + timedelta(hours=1) for time in made)
            <= 20 - RESERVED_COMMITS
        )

"""The commit budget: spread over the hour, never more than allowed, with room for the release."""

from datetime import UTC, datetime, timedelta

from hub.client.retry import RESERVED, CommitBudget

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_first_commit_is_free_and_the_next_waits_its_share_of_the_hour():
    budget = CommitBudget(100)
    assert budget.next_time(START) == START
    budget.spend(START)
    assert budget.next_time(START) == START + timedelta(seconds=36)


def test_no_hour_has_more_commits_than_allowed():
    budget, at, made = CommitBudget(20), START, []
    for _ in range(200):
        at = budget.next_time(at)
        budget.spend(at)
        made.append(at)
    for first in made:
        assert sum(first <= time < first + timedelta(hours=1) for time in made) <= 20 - RESERVED


def test_commits_of_earlier_starts_count():
    spent = [START + timedelta(seconds=second) for second in range(97)]
    budget = CommitBudget(100, spent)
    at = START + timedelta(minutes=5)
    assert budget.next_time(at) == START + timedelta(hours=1)
    assert CommitBudget(100, [START - timedelta(hours=2)]).next_time(at) == at

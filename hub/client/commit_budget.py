"""Rate limiter for the commits of a growing repository: at most so many an hour, evenly spread.

The Hub allows 128 commits an hour to a repository. The commits themselves are the account, read from the repository at
the start: it holds across restarts, across machines, and on an empty disk.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
PER_HOUR = 100
RESERVED = 3  # of the hour's commits, for the release: main, the branch `script`, and one that met another


def now() -> datetime:
    """The time in UTC."""
    return datetime.now(UTC)


class CommitBudget:
    """Spreads commits evenly over the hour and never spends more than the hour's number, less those reserved."""

    def __init__(self, per_hour: int = PER_HOUR, spent: Iterable[datetime] = ()):
        self.per_hour, self._spent = per_hour, sorted(spent)

    def next_time(self, at: datetime) -> datetime:
        """The earliest time, from ``at`` on, for the next commit of a growing repository."""
        allowed = max(1, self.per_hour - RESERVED)
        earliest = at
        if self._spent:
            earliest = max(earliest, self._spent[-1] + HOUR / self.per_hour)
        if len(self._spent) >= allowed:
            earliest = max(earliest, self._spent[-allowed] + HOUR)
        return earliest

    def spend(self, at: datetime) -> None:
        """Count a commit; those of more than an hour ago are forgotten."""
        self._spent = [time for time in self._spent if time > at - HOUR] + [at]

"""A dataset run that is killed at random moments after its first shard goes on, and ends in the same bytes."""

import pytest
from generation_kills import series

pytestmark = pytest.mark.slow("kills a run at random moments")


def test_killed_after_its_first_shard_a_run_goes_on_where_it_was(tmp_path):
    found = series(tmp_path, kills=4, seed=1)
    assert found["kills"] == 4 and len(set(found["shards_entered_when_killed"])) > 1

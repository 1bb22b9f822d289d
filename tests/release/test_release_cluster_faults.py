"""A release on three nodes while workers, a node and the driver are killed and the Hub fails: it ends as if nothing had
been.
"""

from collections.abc import Iterator

import pytest
from disturbed_release import KINDS, Disturbed, World

pytestmark = pytest.mark.slow("kills releases on a cluster of three nodes while the Hub fails")

RUNS = {0: ("worker", "node"), 1: ("release", "worker"), 2: ("generator", "worker", "node")}  # seed → what is killed


@pytest.fixture(scope="module")
def kills(tmp_path_factory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("kills")) as made:
        made.undisturbed()
        yield made


@pytest.mark.parametrize("seed", RUNS)
def test_killed_among_faults_a_release_ends_as_if_nothing_had_been(seed, kills):
    outcome = Disturbed(kills, seed, RUNS[seed]).run()
    assert all(outcome.hits[kind] for kind in RUNS[seed]), outcome.line()
    assert outcome.commits > 2 and outcome.hub_faults, outcome.line()


def test_all_kinds_of_kills_are_among_them():
    assert {kind for kinds in RUNS.values() for kind in kinds} == set(KINDS)

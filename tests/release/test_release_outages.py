"""Wrong answers of a Hub to every command that speaks to one."""

import pytest
from fault_injection import WRONG
from hostile import MODULES, Hostile

pytestmark = pytest.mark.slow("commands in processes of their own, and a Hub that answers wrongly")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    with Hostile(tmp_path_factory.mktemp("hostile")) as world:
        yield world
        assert not world.elsewhere.tokens, "a token went to another host"


@pytest.mark.parametrize("number", range(len(MODULES) + 1))
def test_a_wrong_answer_is_one_line_and_an_exit_code(number, hostile):
    """Every request, then two of those that the command makes; every wrong answer at some. The full
    run has all.
    """
    command = list(hostile.commands)[number]
    hostile.unpublish()
    requests = sorted(hostile.asked(command))
    chosen = ["", requests[number % len(requests)], requests[(number + 1) % len(requests)]]
    for turn, request in enumerate(chosen, start=number * len(chosen)):
        hostile.unpublish()
        ended = hostile.run(command, WRONG[turn % len(WRONG)], request)
        assert ended.met and ended.complaint(hostile.hub.token) is None, ended


def test_after_all_that_the_same_command_publishes(hostile):
    assert hostile.run("publish").code == 0
    assert "no file changes" in hostile.run("release").said

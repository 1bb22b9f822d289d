"""Who is given which task, in a cluster: pure, with tasks of one first text."""

import pytest

from generation.cluster_ledger import LEAST, TRIES, UNKNOWN, Held, Ledger, second_copy
from generation.tasks import WriteFirstTexts
from hub.errors import RunError


def tasks(count: int) -> list[WriteFirstTexts]:
    return [WriteFirstTexts(range(number, number + 1)) for number in range(count)]


def test_tasks_are_read_as_they_are_given():
    given = iter(tasks(9))
    ledger = Ledger(given)
    first = [ledger.next("a"), ledger.next("b")]
    assert first == tasks(2) and next(given) == tasks(3)[2] and not ledger.finished


def test_a_lost_workers_task_is_given_to_another_node_and_a_waiting_one_to_anyone():
    ledger = Ledger(tasks(2))
    at_work, waiting = ledger.next("a"), ledger.next("a")
    ledger.failed(at_work, "a", "killed")
    ledger.give_back(waiting)
    assert ledger.next("a", ["a", "b"]) == waiting
    assert ledger.next("a", ["a", "b"]) is None
    assert ledger.next("b", ["a", "b"]) == at_work


def test_a_task_that_failed_everywhere_is_tried_again_anywhere():
    ledger = Ledger(tasks(1))
    task = ledger.next("a")
    ledger.failed(task, "a", "killed")
    assert ledger.next("a", ["a"]) == task


def test_a_task_that_fails_time_and_again_stops_the_run_and_names_the_nodes():
    ledger = Ledger(tasks(1))
    task = ledger.next("a")
    for node in "abc"[: TRIES - 1]:
        ledger.failed(task, node, "killed")
    with pytest.raises(RunError, match=r"task first-texts-0-1: failed 3 times, on a, b, c; the last time: out of luck"):
        ledger.failed(task, "c", "out of luck")


def test_a_task_counts_once_and_what_nobody_waits_for_is_no_failure():
    ledger = Ledger(tasks(1))
    task = ledger.next("a")
    ledger.give_back(task)
    ledger.give_back(task)
    ledger.done(task, 1.0)
    for _ in range(TRIES + 1):
        ledger.failed(task, "a", "killed")
    assert ledger.next("b") is None and ledger.finished


def test_an_idle_worker_takes_what_waits_then_the_slowest_if_it_is_slow():
    ledger = Ledger(tasks(20))
    slow, slower, waiting = (ledger.next("a") for _ in range(3))
    assert second_copy([Held(slow, UNKNOWN)], ledger) is None  # nothing to compare with yet
    assert second_copy([Held(slow, UNKNOWN + 1)], ledger) == slow
    for _ in range(9):
        ledger.done(ledger.next("a"), 5.0)
    held = [Held(slow, 30.0), Held(slower, 40.0), Held(waiting, None)]
    assert second_copy(held, ledger) == waiting
    assert second_copy(held[:2], ledger) == slower
    assert second_copy([held[0], Held(slower, 40.0, copies=2)], ledger) == slow
    assert second_copy([Held(slow, 9.0)], ledger) is None
    assert second_copy([Held(tasks(9)[8], 90.0)], ledger) is None  # given up before


def test_tasks_of_a_moment_are_never_slow():
    ledger = Ledger(tasks(2))
    ledger.done(ledger.next("a"), 0.001)
    assert not ledger.is_slow(LEAST) and ledger.is_slow(LEAST + 0.1)

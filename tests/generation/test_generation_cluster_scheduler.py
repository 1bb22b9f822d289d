"""Who is given which task, in a cluster: pure, with tasks of one first text."""

import pytest

from generation.executors.ray_executor import LEAST, TRIES, UNKNOWN, AssignedTask, TaskQueue, speculative_copy
from generation.pipeline.tasks import WriteFirstTexts
from hub.errors import RunError


def tasks(count: int) -> list[WriteFirstTexts]:
    return [WriteFirstTexts(range(number, number + 1)) for number in range(count)]


def test_tasks_are_read_as_they_are_given():
    given = iter(tasks(9))
    queue = TaskQueue(given)
    first = [queue.next("a"), queue.next("b")]
    assert first == tasks(2) and next(given) == tasks(3)[2] and not queue.finished


def test_a_lost_workers_task_is_given_to_another_node_and_a_waiting_one_to_anyone():
    queue = TaskQueue(tasks(2))
    at_work, waiting = queue.next("a"), queue.next("a")
    queue.failed(at_work, "a", "killed")
    queue.requeue(waiting)
    assert queue.next("a", ["a", "b"]) == waiting
    assert queue.next("a", ["a", "b"]) is None
    assert queue.next("b", ["a", "b"]) == at_work


def test_a_task_that_failed_everywhere_is_tried_again_anywhere():
    queue = TaskQueue(tasks(1))
    task = queue.next("a")
    queue.failed(task, "a", "killed")
    assert queue.next("a", ["a"]) == task


def test_a_task_that_fails_time_and_again_stops_the_run_and_names_the_nodes():
    queue = TaskQueue(tasks(1))
    task = queue.next("a")
    for node in "abc"[: TRIES - 1]:
        queue.failed(task, node, "killed")
    with pytest.raises(RunError, match=r"task first-texts-0-1: failed 3 times, on a, b, c; the last time: out of luck"):
        queue.failed(task, "c", "out of luck")


def test_a_task_counts_once_and_what_nobody_waits_for_is_no_failure():
    queue = TaskQueue(tasks(1))
    task = queue.next("a")
    queue.requeue(task)
    queue.requeue(task)
    queue.done(task, 1.0)
    for _ in range(TRIES + 1):
        queue.failed(task, "a", "killed")
    assert queue.next("b") is None and queue.finished


def test_an_idle_worker_takes_what_waits_then_the_slowest_if_it_is_slow():
    queue = TaskQueue(tasks(20))
    slow, slower, waiting = (queue.next("a") for _ in range(3))
    assert speculative_copy([AssignedTask(slow, UNKNOWN)], queue) is None  # nothing to compare with yet
    assert speculative_copy([AssignedTask(slow, UNKNOWN + 1)], queue) == slow
    for _ in range(9):
        queue.done(queue.next("a"), 5.0)
    held = [AssignedTask(slow, 30.0), AssignedTask(slower, 40.0), AssignedTask(waiting, None)]
    assert speculative_copy(held, queue) == waiting
    assert speculative_copy(held[:2], queue) == slower
    assert speculative_copy([held[0], AssignedTask(slower, 40.0, copies=2)], queue) == slow
    assert speculative_copy([AssignedTask(slow, 9.0)], queue) is None
    assert speculative_copy([AssignedTask(tasks(9)[8], 90.0)], queue) is None  # given up before


def test_tasks_of_a_moment_are_never_slow():
    queue = TaskQueue(tasks(2))
    queue.done(queue.next("a"), 0.001)
    assert not queue.is_slow(LEAST) and queue.is_slow(LEAST + 0.1)

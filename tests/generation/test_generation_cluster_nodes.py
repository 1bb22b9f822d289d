"""Where workers are started, and which nodes are left out: by what Ray says of its nodes."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from generation.executors.ray_workers import Node, Nodes, WorkerHandle, WorkerPool, WorkerResources


def entry(number: int, alive: bool = True, name: str = "", host: str = "box", **resources: float) -> dict[str, object]:
    address = f"10.0.0.{number}"
    resources = {"CPU": 2.0, "memory": 8e9, **resources}
    names = {"NodeName": name or address, "NodeManagerHostname": host, "NodeManagerAddress": address}
    return {"NodeID": f"{number:056x}", "Alive": alive, "Resources": resources, **names}


def seen(*entries: dict[str, object], share: WorkerResources = WorkerResources()) -> Nodes:  # noqa: B008 - frozen
    nodes = Nodes(share)
    nodes.update(entries)
    return nodes


class RuntimeContext:
    def get_node_id(self) -> str:
        return "here"


JOB = SimpleNamespace(directory=Path("run"), versions={})


def names(nodes: Nodes) -> list[str]:
    return [node.name for node in nodes.seen.values()]


def test_nodes_are_called_as_people_know_them():
    assert sorted(names(seen(entry(1), entry(2, host="other"), entry(3, name="big")))) == ["big", "box", "other"]
    nodes = seen(entry(1))
    nodes.update([entry(1), entry(2)])
    assert names(nodes) == ["box", "box (10.0.0.2)"]


def test_workers_go_to_the_emptiest_nodes_and_no_more_than_asked_for():
    nodes = seen(entry(1), entry(2, CPU=4.0))
    first, second = nodes.seen
    assert Counter(node.id for node in nodes.placements({}, None)) == {first: 2, second: 4}
    assert Counter(node.id for node in nodes.placements({}, 4)) == {first: 2, second: 2}
    assert [node.id for node in nodes.placements({first: 1}, 2)] == [second]
    assert nodes.placements({first: 2, second: 4}, None) == [] == nodes.placements({first: 2, second: 3}, 5)


def test_nodes_come_and_go_and_a_left_out_one_stays_out():
    nodes = seen(entry(1), entry(2))
    one, two = nodes.seen.values()
    nodes.update([entry(1), entry(2, alive=False)])
    assert nodes.usable() == [one] and not two.alive
    one.problem = "its disk is full"
    nodes.update([entry(1), entry(3)])
    assert [node.id for node in nodes.usable()] == [entry(3)["NodeID"]]
    nodes.update([entry(1)])
    assert not nodes.usable() and not nodes.hopeless()  # those that are gone may come back
    said = str(nodes.none_left())
    assert "box: its disk is full" in said and "box (10.0.0.2): it is gone" in said


@pytest.mark.parametrize(
    ("share", "resources", "room"),
    [
        (WorkerResources(), {"CPU": 8.0}, 8),
        (WorkerResources(cpus=3), {"CPU": 8.0}, 2),
        (WorkerResources(cpus=1, gpus=2), {"CPU": 8.0, "GPU": 8.0}, 4),
        (WorkerResources(gpus=1), {"CPU": 8.0}, 0),
        (WorkerResources(cpus=0.1), {"CPU": 0.3}, 3),
        (WorkerResources(memory=4e9), {"CPU": 8.0, "memory": 13e9}, 3),
    ],
)
def test_room_for_workers(share, resources, room):
    assert share.room(resources) == room


def test_a_node_without_memory_for_a_worker_is_left_out_by_name():
    nodes = seen(
        entry(1), entry(2, host="small", memory=1e9), entry(3, host="head", CPU=0), share=WorkerResources(memory=4e9)
    )
    assert list(nodes.problems()) == ["small"] and len(nodes.usable()) == 1
    assert "4.0 GB of memory, it has 2, 0, 1.0 GB" in nodes.problems()["small"]
    assert not nodes.hopeless()
    nodes.usable()[0].problem = "its disk is full"
    assert nodes.hopeless() and nodes.hopeless(growing=True)


def test_nodes_that_are_too_small_mean_nothing_where_larger_ones_were_asked_for():
    nodes = seen(entry(1, memory=1e9), share=WorkerResources(memory=4e9))
    assert nodes.hopeless() and not nodes.hopeless(growing=True)


def test_a_node_that_found_too_little_memory_gets_one_worker_less_than_it_had():
    node, gone = Node("1", "box", room=16), []
    pool = WorkerPool(
        SimpleNamespace(put=id, kill=gone.append, get_runtime_context=RuntimeContext),
        JOB,
        Nodes(WorkerResources()),
        2,
        0,
        False,
    )
    for left in (1, 0):
        pool.workers = [WorkerHandle(node, actor, None) for actor in range(left + 1)]
        pool.out_of_memory(pool.workers[0], "killed")
        assert (node.room, len(pool.workers), node.losses) == (left, left, 0)
    assert gone == [0, 0] and node.problem == "it has too little memory for a worker: killed"

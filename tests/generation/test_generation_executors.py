"""Executors on Ray: causes of errors, scheduling, nodes, options, and a local instance with two
workers.
"""

import _socket
import errno
import http.server
import os
import pickle
import re
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from small_runs import small_recipe

from sts_dino.generation.executors.cluster import (
    ClusterOptions,
    check_options,
    convert_ray_refusal,
    join_cluster,
    list_withheld_secrets,
    start_local_ray,
)
from sts_dino.generation.executors.ray_executor import (
    MOST_TASK_FAILURES,
    Cause,
    Node,
    Nodes,
    RayExecutor,
    TaskQueue,
    WorkerHandle,
    classify_error,
)
from sts_dino.generation.executors.ray_workers import (
    WorkerResources,
    convert_memory_errors,
    require_files,
)
from sts_dino.generation.executors.store import LostResult
from sts_dino.generation.pipeline.tasks import Shard, TaskResult, WriteShard, WriteSourceSentences
from sts_dino.hub.contract.recipe import DatasetRecipe, Variant
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError, OutOfMemory, RunError


def tasks(count: int) -> list[WriteSourceSentences]:
    return [WriteSourceSentences(range(number, number + 1)) for number in range(count)]


def test_a_lost_workers_task_goes_to_another_node_and_tasks_are_read_lazily():
    given = iter(tasks(9))
    queue = TaskQueue(given)
    at_work, waiting = queue.take_next("a"), queue.take_next("a")
    assert [at_work, waiting] == tasks(2) and not queue.is_finished
    queue.record_failure(at_work, "a", "killed")
    queue.requeue(waiting)
    assert queue.take_next("a", ["a", "b"]) == waiting
    assert queue.take_next("a", ["a", "b"]) == tasks(3)[2] and next(given) == tasks(4)[3]
    assert queue.take_next("b", ["a", "b"]) == at_work
    alone = TaskQueue(tasks(1))
    alone.record_failure(alone.take_next("a"), "a", "killed")
    assert alone.take_next("a", ["a"]) == tasks(1)[0], "it failed on every node there is"


def test_a_task_counts_once_and_one_that_fails_time_and_again_stops_the_run_and_names_the_nodes():
    queue = TaskQueue(tasks(2))
    task, other = queue.take_next("a"), queue.take_next("a")
    for node in "abc"[: MOST_TASK_FAILURES - 1]:
        queue.record_failure(task, node, "killed")
    with pytest.raises(
        RunError,
        match=r"task source-sentences-0-1: failed 3 times, on a, b, c; the last time: out of luck",
    ):
        queue.record_failure(task, "c", "out of luck")
    for one in (task, other):
        queue.requeue(one)
        queue.mark_done(one)
    for _ in range(MOST_TASK_FAILURES + 1):
        queue.record_failure(other, "a", "killed")
    assert queue.take_next("b") is None and queue.is_finished


def entry(
    number: int, alive: bool = True, name: str = "", host: str = "box", **resources: float
) -> dict[str, object]:
    address = f"10.0.0.{number}"
    resources = {"CPU": 2.0, "memory": 8e9, **resources}
    names = {
        "NodeName": name or address,
        "NodeManagerHostname": host,
        "NodeManagerAddress": address,
    }
    return {"NodeID": f"{number:056x}", "Alive": alive, "Resources": resources, **names}


def seen(*entries: dict[str, object], share: WorkerResources = WorkerResources()) -> Nodes:  # noqa: B008 - frozen
    nodes = Nodes(share)
    nodes.update(entries)
    return nodes


def test_workers_go_to_the_emptiest_nodes_and_no_more_than_asked_for():
    nodes = seen(entry(1), entry(2, CPU=4.0))
    first, second = nodes.by_id
    assert Counter(node.id for node in nodes.choose_placements({}, None)) == {first: 2, second: 4}
    assert Counter(node.id for node in nodes.choose_placements({}, 4)) == {first: 2, second: 2}
    assert [node.id for node in nodes.choose_placements({first: 1}, 2)] == [second]
    assert (
        nodes.choose_placements({first: 2, second: 4}, None)
        == []
        == nodes.choose_placements({first: 2, second: 3}, 5)
    )


def test_nodes_come_and_go_and_a_left_out_one_stays_out():
    nodes = seen(entry(1), entry(2))
    one, two = nodes.by_id.values()
    nodes.update([entry(1), entry(2, alive=False)])
    assert nodes.list_usable() == [one] and not two.alive
    one.problem = "its disk is full"
    nodes.update([entry(1)])
    assert not nodes.list_usable() and not nodes.is_hopeless()  # the one that is gone may come back
    said = str(nodes.make_error())
    assert "box (10.0.0.1): its disk is full" in said and "box (10.0.0.2): it is gone" in said


def test_a_node_without_room_or_memory_for_a_worker_is_left_out_by_name():
    assert (
        WorkerResources(gpus=2, memory=4e9).count_workers({"CPU": 8.0, "GPU": 8.0, "memory": 13e9})
        == 3
    )
    assert (
        WorkerResources(cpus=0.1).count_workers({"CPU": 0.3}) == 3
        and WorkerResources(gpus=1).count_workers({"CPU": 8.0}) == 0
    )
    nodes = seen(
        entry(1),
        entry(2, name="small", memory=1e9),
        entry(3, name="head", CPU=0),
        share=WorkerResources(memory=4e9),
    )
    problems = {node.name: node.problem for node in nodes.by_id.values() if node.problem}
    assert list(problems) == ["small"] and len(nodes.list_usable()) == 1
    assert "4.0 GB of memory, it has 2, 0, 1.0 GB" in problems["small"]
    assert not nodes.is_hopeless()
    nodes.list_usable()[0].problem = "its disk is full"
    assert nodes.is_hopeless()


X2 = Path("recipes/demo/sts-dino-x2.yaml")


def of(changes: dict[str, object] | None = None, **model: object) -> DatasetRecipe:
    described = {"repo_id": "org/lm", "revision": "a" * 40, "license": "mit"} | model
    return small_recipe("sts", model=described, **changes or {})


def test_workers_of_a_model_on_a_cpu_are_threads_and_others_are_on_ray(monkeypatch):
    cpu, gpu, two = of(), of(device="cuda"), ClusterOptions(workers=2)
    assert (
        not two.needs_ray(cpu)
        and two.needs_ray(gpu)
        and two.needs_ray(of(device="mps"))
        and ClusterOptions("auto").needs_ray(cpu)
    )
    assert all(
        replace(two, **more).needs_ray(cpu)
        for more in ({"store": "/x"}, {"cpus": 1.0}, {"gpus": 1.0})
    )
    fixed = {"decoding": {"batch_size": 24}}
    assert two.needs_ray(of(fixed, dtype="bfloat16")) and not two.needs_ray(
        of(fixed, dtype="float32")
    )
    monkeypatch.setattr("sts_dino.generation.executors.cluster.find_spec", lambda _: None)
    check_options(two, cpu)
    with pytest.raises(InputError, match="Ray is not installed"):
        check_options(two, gpu)


def test_tokens_stay_with_the_driver_unless_workers_need_them():
    local = of(repo_id=None, path="lm")
    assert "OPENAI_API_KEY" in list_withheld_secrets(
        of(), None
    ) and "HF_TOKEN" not in list_withheld_secrets(of(), None)
    assert "HF_TOKEN" in list_withheld_secrets(local, None) and "HF_TOKEN" in list_withheld_secrets(
        local, "/shared"
    )
    assert "HF_TOKEN" not in list_withheld_secrets(local, "hf://buckets/org/name")


def test_an_address_where_something_else_answers_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("sts_dino.generation.executors.cluster.ANSWER_SECONDS", 3)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with (
            pytest.raises(InputError, match=r"within 3 seconds"),
            join_cluster(f"127.0.0.1:{server.server_port}"),
        ):
            pass
    finally:
        server.shutdown()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("10.0.0.1:²", "is not an address"),  # a digit, but no number
        ("head..node:6379", "does not answer"),  # a host name with an empty label
        (f"10.0.0.1:{'9' * 5000}", "does not answer"),  # more digits than int() reads
    ],
)
def test_an_impossible_address_is_one_line(monkeypatch, address, words):
    # the system's own function refuses such a name before it asks any machine
    monkeypatch.setattr(socket, "getaddrinfo", _socket.getaddrinfo)
    with pytest.raises(InputError, match=words), join_cluster(address):
        pass


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Version mismatch: The cluster was started with:\n"
            "    Ray: 2.60.0\n    Python: 3.11.7\n"
            "This process on node 10.0.0.1 was started with:\n"
            "    Ray: 2.61.0\n    Python: 3.12.1\n",
            "has Ray 2.60.0, Python 3.11.7; this process Ray 2.61.0, Python 3.12.1; "
            "install the same on every node",
        ),
        ("Traceback ...\n  the last line", "cannot be joined: the last line; give the address"),
    ],
)
def test_rays_long_answers_are_one_line(said, words):
    found = str(convert_ray_refusal("--ray auto", RuntimeError(said)))
    assert re.search(words, found) and "\n" not in found


def test_a_run_imports_neither_ray_nor_a_model_before_it_needs_them():
    heavy = "{'ray', 'torch', 'transformers'} & set(sys.modules)"
    modules = "sts_dino.generation.pipeline.job, sts_dino.generation.executors.ray_executor"
    code = f"import sys, {modules}; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)


PLANTED = "sk-planted-9c1e"


def test_whose_fault_an_error_is():
    from ray.exceptions import ActorDiedError, OutOfDiskError, OutOfMemoryError, RayTaskError

    full = classify_error(OSError(28, "No space left on device", "/data/x"), starting=False)
    assert full == (Cause.NODE, "no space is left on its disk (/data/x)")
    other, lacking = (
        InputError("versions", "are not the driver's"),
        ModuleNotFoundError("No module named 'generation'"),
    )
    assert classify_error(other, starting=True) == (Cause.NODE, "versions: are not the driver's")
    assert classify_error(other, starting=False)[0] is Cause.TASK
    assert (
        classify_error(lacking, starting=True)[0]
        is classify_error(OutOfDiskError(""), starting=False)[0]
        is Cause.NODE
    )
    for error in (
        ActorDiedError(),
        ValueError("x"),
        OSError(5, "io"),
        RuntimeError("out of memory, says a text"),
    ):
        assert classify_error(error, starting=False)[0] is Cause.WORKER
    for error in (OutOfMemoryError("killed"), OutOfMemory("memory", "is too small")):
        assert (
            classify_error(error, starting=True)[0]
            is classify_error(error, starting=False)[0]
            is Cause.MEMORY
        )
    wrapped = RayTaskError(
        "do", "Traceback", OutOfMemory("memory", "is too small for one text at a time")
    )
    # from process to process
    passed = pickle.loads(pickle.dumps(wrapped)).as_instanceof_cause().cause
    assert classify_error(passed, starting=False) == (Cause.MEMORY, f"OutOfMemory: {passed}")


def driver(**parts: object) -> RayExecutor:
    """An executor on a Ray that is not there."""
    ray = SimpleNamespace(put=lambda spec: spec, kill=lambda actor: None, nodes=list)
    spec = SimpleNamespace(resources=WorkerResources(), **parts)
    executor = RayExecutor(ray, spec, ClusterOptions("auto"), None)
    executor._update_workers = lambda at_once=False: None
    return executor


def test_a_worker_whose_memory_ran_out_costs_its_node_one_worker_and_its_task_no_try(capsys):
    node, executor, queue = Node("id", "small", room=2), driver(), TaskQueue(tasks(1))
    members = [WorkerHandle(node, None, None), WorkerHandle(node, None, None)]
    executor.workers = list(members)
    for lost in members:
        lost.task = queue.take_next("other")
        executor._handle_failure(
            queue, lost, OutOfMemory("memory", "is too small for one text at a time")
        )
        if node.problem is None:
            assert (
                node.room == 1
                and "warning: node small has memory for 1 workers" in capsys.readouterr().err
            )
            assert not queue._failed_on, "the node had too many workers; the task is not to blame"
    assert (
        "it has too little memory for a worker: OutOfMemory: memory: is too small" in node.problem
    )


def test_a_worker_without_memory_names_options_that_the_command_has():
    hint = "too small for the model; .* raise --cpus-per-worker or --gpus-per-worker"
    with pytest.raises(OutOfMemory, match=hint), convert_memory_errors("for the model"):
        raise MemoryError


def test_workers_get_shards_to_begin_ahead_and_one_that_waits_takes_over_the_last():
    variant, node, executor = Variant(None, 0), Node("id", "node", room=2), driver()
    shards = [WriteShard(Shard(variant, block, 7), ()) for block in range(7)]
    queue, calls = TaskQueue(shards), []
    executor.workers = workers = [WorkerHandle(node, Mock(), None, ready=True) for _ in range(2)]
    for worker in workers:
        worker.actor.do.remote = lambda task, files, ahead: calls.append((task, [*ahead])) or task
    executor._assign_tasks(queue)
    assert calls == [
        (shards[0], [shards[2], shards[4], shards[6]]),
        (shards[1], [shards[3], shards[5]]),
    ]
    for done in (1, 3):
        workers[1].call = None
        queue.mark_done(shards[done])
        executor._assign_tasks(queue)
    workers[1].call = None
    queue.mark_done(shards[5])
    executor._assign_tasks(queue)
    assert [task for task, _ in calls[2:]] == [
        shards[3],
        shards[5],
        shards[6],
    ] and not queue.is_finished
    executor._handle_failure(queue, workers[0], OSError(5, "io"))
    again = TaskQueue(shards)
    again.record_failure(again.take_new(), "other", "killed")
    executor.workers, calls[:] = [WorkerHandle(node, workers[0].actor, None, ready=True)], []
    executor._assign_tasks(again)
    assert calls == [(shards[0], [])], "alone, so that another shard is not to blame"
    assert [queue.take_next("other") for _ in range(3)] == [shards[2], shards[4], shards[0]]


def test_a_nodes_problem_ends_its_workers_and_a_tasks_stops_the_run():
    node, executor, queue = Node("id", "full", room=2), driver(), TaskQueue(tasks(3))
    members = [
        WorkerHandle(node, None, None, queue.take_next("full"), ready=True) for _ in range(2)
    ]
    executor.workers = list(members)
    with pytest.raises(InputError, match="prompt"):
        executor._handle_failure(queue, members[0], InputError("prompt", "is too long"))
    executor._handle_failure(queue, members[0], OSError(errno.ENOSPC, "No space left", "/data"))
    assert node.problem == "no space is left on its disk (/data)" and not executor.workers
    assert [queue.take_next("full", ["other"]) for _ in range(3)] == tasks(3), "no task is to blame"


def test_a_file_that_is_lost_in_the_store_is_made_again_and_a_store_that_is_gone_ends_the_run(
    tmp_path,
):
    executor, queue = driver(directory=tmp_path), TaskQueue(tasks(1))
    task = queue.take_next("node")
    for error in (
        LostResult("store", "is not what was kept"),
        RunError("store", "no answer for 65 minutes"),
    ):
        executor._store = SimpleNamespace(fetch=Mock(side_effect=error))
        worker = WorkerHandle(Node("id", "node", room=1), None, "call", task, ready=True)
        if isinstance(error, LostResult):
            assert (
                executor._accept_answer(queue, worker, TaskResult(key=task.key)) is None
                and queue.take_next("other") is task
            )
        else:
            with pytest.raises(RunError, match="65 minutes"):
                executor._accept_answer(queue, worker, TaskResult(key=task.key))


def test_model_files_have_to_be_the_drivers(tmp_path):
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"weights")
    inputs = {str(model): hash_file(model)}
    require_files(inputs)
    model.write_bytes(b"Weights")
    with pytest.raises(InputError, match=r"model\.safetensors: differs from the driver's"):
        require_files(inputs)
    model.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors: is not there"):
        require_files(inputs)


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    os.environ["OPENAI_API_KEY"] = PLANTED
    with start_local_ray(2, 0, ("OPENAI_API_KEY",)) as instance:
        yield instance
    del os.environ["OPENAI_API_KEY"]


def processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.mark.slow("starts Ray on this machine")
def test_a_local_instance_is_nobody_elses(ray):
    listening = [
        at.laddr.ip for one in processes() for at in one.net_connections() if at.status == "LISTEN"
    ]
    assert listening and {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    folder = Path(ray._private.worker._global_node.get_temp_dir_path()).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [one for one in processes() if "OPENAI_API_KEY" in one.environ()]
    assert os.environ["OPENAI_API_KEY"] == PLANTED and os.environ["RAY_AUTH_MODE"] == "token"
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert (
        kept and PLANTED.encode() not in kept and os.environ["RAY_AUTH_TOKEN"].encode() not in kept
    )

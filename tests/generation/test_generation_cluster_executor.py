"""Work on Ray: whose fault an error is, what a node has to have, and a local instance with two workers."""

import errno
import os
import pickle
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from tiny_lm import make_lm
from typer.testing import CliRunner

from generation import run
from generation.backends import batch as live_batch
from generation.backends.registry import load_writer
from generation.cluster import executor as cluster
from generation.cluster import store_files
from generation.cluster.actor import FileServer, RemoteWorker, is_here, require_files, require_versions
from generation.cluster.connect import _home, local_instance
from generation.cluster.executor import RayExecutor, ray_executor
from generation.cluster.failures import Cause, classify
from generation.cluster.nodes import Node
from generation.cluster.options import ClusterOptions
from generation.cluster.pool import InFlightTask, WorkerHandle, WorkerPool
from generation.cluster.result_store import LostResult, ResultStore
from generation.cluster.scheduler import TaskQueue
from generation.inputs.prompts import Prompts
from generation.inputs.sources import FirstText
from generation.pipeline.executor import local_executor
from generation.pipeline.job import generate
from generation.pipeline.worker import Worker
from generation.run_state import layout
from generation.run_state.tasks import TaskResult, WriteFirstTexts, WriteShard
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.durable import sha256_file
from hub.errors import InputError, OutOfMemory, RunError

X2 = Path("recipes/demo/sts-dino-x2.yaml")
PLANTED = "sk-planted-9c1e"
SMALL = ["source.limit=24", "decoding.max_new_tokens=6", "shard_size=4", "decoding.max_attempts=3"]


# Whose fault it is.


def test_whose_fault_an_error_is():
    from ray.exceptions import ActorDiedError, OutOfDiskError, OutOfMemoryError

    full = classify(OSError(28, "No space left on device", "/data/x"), starting=False)
    assert full == (Cause.NODE, "no space is left on its disk (/data/x)")
    other = InputError("versions", "are not the driver's")
    assert classify(other, starting=True) == (Cause.NODE, "versions: are not the driver's")
    assert classify(other, starting=False).cause is Cause.TASK
    lacking = classify(ModuleNotFoundError("No module named 'generation'"), starting=True)
    assert lacking.cause is Cause.NODE and "not installed" in lacking.reason
    assert "disk" in classify(OutOfDiskError("full"), starting=False).reason
    for error in (ActorDiedError(), ValueError("x"), OSError(5, "io"), RuntimeError("out of memory, says a text")):
        assert classify(error, starting=False).cause is Cause.WORKER
    for error in (OutOfMemoryError("killed"), OutOfMemory("memory", "is too small")):
        assert classify(error, starting=True).cause is classify(error, starting=False).cause is Cause.MEMORY


def test_memory_that_ran_out_on_a_worker_is_known_by_its_type(monkeypatch, tmp_path):
    """The engine's own error for one text alone, and numpy's, as Ray hands them to the driver: pickled and wrapped."""
    from ray.exceptions import RayTaskError

    recipe = load_recipe(X2, DatasetRecipe, [f"model.path={make_lm(tmp_path / 'lm')}", *SMALL])
    monkeypatch.setattr(cli, "listeners", [])  # a worker takes them over
    worker, errors = RemoteWorker(), [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("640 KiB")]
    worker._store, worker._directory, worker._sees = None, tmp_path, True
    prompts = Prompts(recipe, {})
    worker._worker = Worker(recipe, prompts, load_writer(recipe.model))
    task = WriteShard(layout.shards(recipe, 1)[0], (FirstText(source_id="0", text="A dog."),))
    for cause in (*errors, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")):

        def fails(_, cause=cause):
            raise cause

        monkeypatch.setattr(live_batch.LiveBatch, "next_pass", fails)
        with pytest.raises(OutOfMemory) as raised:
            worker.do(task, "node", None)
        wrapped = pickle.loads(pickle.dumps(RayTaskError("do", "Traceback", raised.value))).as_instanceof_cause()
        cause, reason = classify(wrapped.cause, starting=False)
        assert cause is Cause.MEMORY and "too small for one text at a time" in reason
    other = RayTaskError("do", "Traceback", RunError("disk", "out of memory")).cause
    assert classify(other, starting=False).cause is Cause.WORKER


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_memory_that_runs_out_on_the_way_to_a_store_is_a_workers_too(error, tmp_path, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr(cli, "listeners", [])
    monkeypatch.setattr(store_files, "write_bytes", fails)
    worker, task = RemoteWorker(), WriteFirstTexts(range(4))
    worker._store, worker._directory, worker._sees = ResultStore(str(tmp_path), "run", proven=True), tmp_path, True
    worker._worker = SimpleNamespace(do=lambda *_: TaskResult(task))
    with pytest.raises(OutOfMemory, match=r"memory: is too small for .*start fewer workers"):
        worker.do(task, "node", None)


def test_a_worker_whose_memory_ran_out_costs_its_node_one_worker_and_its_task_no_try(capsys):
    node = Node("id", "small", room=2)
    members = [WorkerHandle(node, None, None), WorkerHandle(node, None, None)]
    executor, queue = RayExecutor.__new__(RayExecutor), TaskQueue([WriteFirstTexts(range(4))])
    executor._pool = pool = WorkerPool.__new__(WorkerPool)
    pool.workers, pool._told, pool._ray = members, set(), SimpleNamespace(kill=lambda actor: None)
    pool.reconcile = lambda now=False: None
    for lost in list(members):
        task = queue.next("other")
        lost.in_flight.append(InFlightTask(None, task, since=0.0))
        executor._failed(queue, lost, lost.in_flight[0], OutOfMemory("memory", "is too small for one text at a time"))
        if node.problem is None:
            assert node.room == 1 and "warning: node small has memory for 1 workers" in capsys.readouterr().err
            assert not queue._tried, "the node had too many workers; the task is not to blame"
    assert "it has too little memory for a worker: OutOfMemory: memory: is too small" in node.problem


def test_a_file_that_is_lost_in_the_store_is_made_again_and_a_store_that_is_gone_ends_the_run(tmp_path):
    executor, queue = RayExecutor.__new__(RayExecutor), TaskQueue([WriteFirstTexts(range(4))])
    task, worker = queue.next("node"), WorkerHandle(Node("id", "node", room=1), None, None)
    executor._spec = SimpleNamespace(directory=tmp_path)
    for error in (LostResult("store", "is not what was kept"), RunError("store", "no answer for 65 minutes")):

        def fetch(*_, error=error):
            raise error

        executor._store = SimpleNamespace(fetch=fetch)
        if isinstance(error, LostResult):
            assert executor._accept(queue, worker, task, TaskResult(task)) is None and queue.next("other") is task
        else:
            with pytest.raises(RunError, match="65 minutes"):
                executor._accept(queue, worker, task, TaskResult(task))


def test_versions_that_differ_are_named_with_both_sides():
    require_versions({"torch": "2.6", "code": "a"}, {"code": "a", "torch": "2.6"})
    with pytest.raises(InputError, match=r"code None, on the driver a, torch 2\.5, on the driver 2\.6"):
        require_versions({"torch": "2.6", "code": "a"}, {"torch": "2.5"})


def test_model_files_have_to_be_the_drivers(tmp_path):
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"weights")
    inputs = {str(model): sha256_file(model)}
    require_files(inputs)
    model.write_bytes(b"Weights")
    with pytest.raises(InputError, match=r"model\.safetensors: is another than on the driver"):
        require_files(inputs)
    model.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors: is not there"):
        require_files(inputs)


def test_the_library_lends_nothing_from_outside(tmp_path):
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "run" / "data" / "file").write_bytes(b"rows")
    (tmp_path / "secret").write_bytes(b"no")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "secret")
    library = FileServer(tmp_path / "run")
    assert library.read("data/file") == b"rows"
    for path in ("../secret", str(tmp_path / "secret"), "data/../../secret", "link"):
        with pytest.raises(InputError, match="leads out of the run directory"):
            library.read(path)


def test_a_probe_is_believed_only_with_its_content(tmp_path):
    (tmp_path / "probe").write_text("token")
    assert is_here(tmp_path / "probe", "token")
    assert not is_here(tmp_path / "probe", "other") and not is_here(tmp_path / "none", "token")


# A local instance.


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> DatasetRecipe:
    lm = make_lm(tmp_path_factory.mktemp("lm"))
    return load_recipe(X2, DatasetRecipe, [f"model.path={lm}", *SMALL])


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): sha256_file(path) for path in files}


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("alone") / "run"
    generate(recipe, directory, "command", local_executor)
    return directory


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    os.environ["OPENAI_API_KEY"] = PLANTED
    with local_instance(2, 0, ("OPENAI_API_KEY",)) as instance:
        yield instance
    del os.environ["OPENAI_API_KEY"]


@pytest.fixture
def on_the_instance(monkeypatch, ray) -> None:
    @contextmanager
    def connected(*_: object) -> Iterator[object]:
        yield ray

    monkeypatch.setattr(cluster, "_connected", connected)


def processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def workers() -> list[psutil.Process]:
    return [process for process in processes() if "RemoteWorker" in process.name()]


@pytest.mark.slow("starts Ray on this machine")
def test_a_local_instance_is_nobody_elses(ray):
    listening = [at.laddr.ip for one in processes() for at in one.net_connections() if at.status == "LISTEN"]
    assert listening and {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    folder = Path(ray._private.worker._global_node.get_temp_dir_path()).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [one for one in processes() if "OPENAI_API_KEY" in one.environ()]
    assert os.environ["OPENAI_API_KEY"] == PLANTED and os.environ["RAY_AUTH_MODE"] == "token"
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert kept and PLANTED.encode() not in kept and os.environ["RAY_AUTH_TOKEN"].encode() not in kept


@pytest.mark.slow("starts Ray on this machine")
def test_two_workers_one_of_them_killed_write_the_bytes_of_one_process(on_the_instance, recipe, alone, tmp_path):
    killed = []

    def started(contract):
        executor = ray_executor(ClusterOptions(workers=2))(contract)
        return killing(executor)

    @contextmanager
    def killing(started):
        with started as executor:
            run_tasks = executor.run_tasks

            def watched(tasks, tick):
                for made in run_tasks(tasks, tick):
                    if not killed:
                        killed.append(workers()[0])
                        killed[0].kill()
                    yield made

            executor.run_tasks = lambda tasks, tick=None: watched(tasks, tick)
            yield executor

    generate(recipe, tmp_path / "run", "command", started)
    assert killed and digests(tmp_path / "run") == digests(alone)
    assert not list((tmp_path / "run.scratch").glob("*"))


@pytest.mark.slow("starts Ray on this machine")
def test_workers_that_see_nothing_of_the_driver_but_a_store(on_the_instance, monkeypatch, recipe, alone, tmp_path):
    monkeypatch.setattr(cluster, "_probe", contextmanager(lambda _: iter([(tmp_path / "nowhere", "token")])))
    settings = [word for setting in (f"model.path={recipe.model.path}", *SMALL) for word in ("--set", setting)]
    options = ["--out", str(tmp_path / "run"), "--workers", "1", "--store", str(tmp_path / "store")]
    remove, failures = LocalFileSystem.rm, [OSError(errno.ESTALE, "Stale file handle")]

    def removes_later(files, *arguments, **options):
        if failures:
            raise failures.pop()
        remove(files, *arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "rm", removes_later)
    result = CliRunner().invoke(run.app, [str(X2), *settings, *options])
    assert result.exit_code == 0, result.exception
    assert digests(tmp_path / "run" / "data") == digests(alone / "data")
    assert not failures and not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


@pytest.mark.slow("starts Ray on this machine")
def test_no_node_is_left_when_none_has_the_drivers_versions(on_the_instance, monkeypatch, recipe, tmp_path, capsys):
    versions = cluster.code_versions()
    monkeypatch.setattr(cluster, "code_versions", lambda: {**versions, "torch": "1.0"})
    with pytest.raises(RunError, match=r"no node is left to work on: .*torch .*, on the driver 1\.0"):
        generate(recipe, tmp_path / "run", "command", ray_executor(ClusterOptions(workers=2)))
    assert capsys.readouterr().err.count("is left out") == 1


def test_folders_of_killed_runs_are_removed_and_those_in_use_are_not(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("generation.cluster.connect._LONGEST", 200)
    left, new = tmp_path / "sts-dino-ray-left", tmp_path / "sts-dino-ray-new"
    for folder in (left, new):
        folder.mkdir()
    (left / "lock").touch()
    with _home() as first, _home() as second:
        assert not left.exists() and new.exists()
        assert first.parent.is_dir() and second.parent.is_dir() and first != second
    assert list(tmp_path.iterdir()) == [new]

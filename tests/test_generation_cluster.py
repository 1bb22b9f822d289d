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
from tiny_lm import make_lm
from typer.testing import CliRunner

from generation import cluster, layout, live_batch, run, store_places
from generation.cluster import RayCrew, hire
from generation.cluster_actor import Library, RemoteWorker, is_here, require_files, require_versions
from generation.cluster_errors import node_problem, out_of_memory, what
from generation.cluster_ledger import Ledger
from generation.cluster_nodes import Node
from generation.cluster_options import Options
from generation.cluster_start import _home, local_instance
from generation.cluster_team import Flight, Member, Team
from generation.crew import one_process
from generation.job import generate
from generation.prompts import Prompts
from generation.sources import FirstText
from generation.store import Lost, Store
from generation.tasks import Made, WriteFirstTexts, WriteShard
from generation.worker import Worker
from generation.writer import load_writer
from hub import cli
from hub.errors import InputError, OutOfMemory, RunError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.shards import sha256_file

X2 = Path("recipes/demo/sts-dino-x2.yaml")
PLANTED = "sk-planted-9c1e"
SMALL = ["source.limit=24", "decoding.max_new_tokens=6", "shard_size=4", "decoding.max_attempts=3"]


# Whose fault it is.


def test_what_speaks_against_a_node():
    from ray.exceptions import ActorDiedError, OutOfDiskError, OutOfMemoryError

    assert "no space is left on its disk (/data/x)" in node_problem(OSError(28, "No space left on device", "/data/x"))
    assert node_problem(InputError("versions", "are not the driver's")) == "versions: are not the driver's"
    assert "not installed" in node_problem(ModuleNotFoundError("No module named 'generation'"))
    assert "disk" in node_problem(OutOfDiskError("full"))
    assert node_problem(ActorDiedError()) is None is node_problem(ValueError("x")) is node_problem(OSError(5, "io"))
    assert out_of_memory(OutOfMemoryError("killed")) and out_of_memory(OutOfMemory("memory", "is too small"))
    assert not out_of_memory(RuntimeError("out of memory, says a text"))


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
        assert out_of_memory(wrapped.cause) and "too small for one text at a time" in what(wrapped.cause)
    assert not out_of_memory(RayTaskError("do", "Traceback", RunError("disk", "out of memory")).cause)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_memory_that_runs_out_on_the_way_to_a_store_is_a_workers_too(error, tmp_path, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr(cli, "listeners", [])
    monkeypatch.setattr(store_places._Folder, "put", fails)
    worker, task = RemoteWorker(), WriteFirstTexts(range(4))
    worker._store, worker._directory, worker._sees = Store(str(tmp_path), "run", proven=True), tmp_path, True
    worker._worker = SimpleNamespace(do=lambda *_: Made(task))
    with pytest.raises(OutOfMemory, match=r"memory: is too small for .*start fewer workers"):
        worker.do(task, "node", None)


def test_a_worker_whose_memory_ran_out_costs_its_node_one_worker_and_its_task_no_try(capsys):
    node = Node("id", "small", room=2)
    members = [Member(node, None, None), Member(node, None, None)]
    crew, ledger = RayCrew.__new__(RayCrew), Ledger([WriteFirstTexts(range(4))])
    crew._team = team = Team.__new__(Team)
    team.members, team._said, team._ray = members, set(), SimpleNamespace(kill=lambda actor: None)
    team.tend = lambda now=False: None
    for lost in list(members):
        task = ledger.next("other")
        lost.flights.append(Flight(None, task, since=0.0))
        crew._failed(ledger, lost, lost.flights[0], OutOfMemory("memory", "is too small for one text at a time"))
        if node.problem is None:
            assert node.room == 1 and "warning: node small has memory for 1 workers" in capsys.readouterr().err
            assert not ledger._tried, "the node had too many workers; the task is not to blame"
    assert "it has too little memory for a worker: OutOfMemory: memory: is too small" in node.problem


def test_a_file_that_is_lost_in_the_store_is_made_again_and_a_store_that_is_gone_ends_the_run(tmp_path):
    crew, ledger = RayCrew.__new__(RayCrew), Ledger([WriteFirstTexts(range(4))])
    task, member = ledger.next("node"), Member(Node("id", "node", room=1), None, None)
    crew._job = SimpleNamespace(directory=tmp_path)
    for error in (Lost("store", "is not what was kept"), RunError("store", "no answer for 65 minutes")):

        def fetch(*_, error=error):
            raise error

        crew._store = SimpleNamespace(fetch=fetch)
        if isinstance(error, Lost):
            assert crew._received(ledger, member, task, Made(task)) is None and ledger.next("other") is task
        else:
            with pytest.raises(RunError, match="65 minutes"):
                crew._received(ledger, member, task, Made(task))


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
    library = Library(tmp_path / "run")
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
    generate(recipe, directory, "command", one_process)
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


def test_a_local_instance_is_nobody_elses(ray):
    listening = [at.laddr.ip for one in processes() for at in one.net_connections() if at.status == "LISTEN"]
    assert listening and {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    folder = Path(ray._private.worker._global_node.get_temp_dir_path()).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [one for one in processes() if "OPENAI_API_KEY" in one.environ()]
    assert os.environ["OPENAI_API_KEY"] == PLANTED and os.environ["RAY_AUTH_MODE"] == "token"
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert kept and PLANTED.encode() not in kept and os.environ["RAY_AUTH_TOKEN"].encode() not in kept


def test_two_workers_one_of_them_killed_write_the_bytes_of_one_process(on_the_instance, recipe, alone, tmp_path):
    killed = []

    def hired(contract):
        crew = hire(Options(workers=2))(contract)
        return killing(crew)

    @contextmanager
    def killing(hired):
        with hired as crew:
            work = crew.work

            def watched(tasks, tick):
                for made in work(tasks, tick):
                    if not killed:
                        killed.append(workers()[0])
                        killed[0].kill()
                    yield made

            crew.work = lambda tasks, tick=None: watched(tasks, tick)
            yield crew

    generate(recipe, tmp_path / "run", "command", hired)
    assert killed and digests(tmp_path / "run") == digests(alone)
    assert not list((tmp_path / "run.scratch").glob("*"))


def test_workers_that_see_nothing_of_the_driver_but_a_store(on_the_instance, monkeypatch, recipe, alone, tmp_path):
    monkeypatch.setattr(cluster, "_probe", contextmanager(lambda _: iter([(tmp_path / "nowhere", "token")])))
    settings = [word for setting in (f"model.path={recipe.model.path}", *SMALL) for word in ("--set", setting)]
    options = ["--out", str(tmp_path / "run"), "--workers", "1", "--store", str(tmp_path / "store")]
    clear, failures = store_places._Folder.clear, [OSError(errno.ESTALE, "Stale file handle")]

    def clears_later(place):
        if failures:
            raise failures.pop()
        clear(place)

    monkeypatch.setattr(store_places._Folder, "clear", clears_later)
    result = CliRunner().invoke(run.app, [str(X2), *settings, *options])
    assert result.exit_code == 0, result.exception
    assert digests(tmp_path / "run" / "data") == digests(alone / "data")
    assert not failures and not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_no_node_is_left_when_none_has_the_drivers_versions(on_the_instance, monkeypatch, recipe, tmp_path, capsys):
    versions = cluster.code_versions()
    monkeypatch.setattr(cluster, "code_versions", lambda: {**versions, "torch": "1.0"})
    with pytest.raises(RunError, match=r"no node is left to work on: .*torch .*, on the driver 1\.0"):
        generate(recipe, tmp_path / "run", "command", hire(Options(workers=2)))
    assert capsys.readouterr().err.count("is left out") == 1


def test_folders_of_killed_runs_are_removed_and_those_in_use_are_not(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("generation.cluster_start._LONGEST", 200)
    left, new = tmp_path / "sts-dino-ray-left", tmp_path / "sts-dino-ray-new"
    for folder in (left, new):
        folder.mkdir()
    (left / "lock").touch()
    with _home() as first, _home() as second:
        assert not left.exists() and new.exists()
        assert first.parent.is_dir() and second.parent.is_dir() and first != second
    assert list(tmp_path.iterdir()) == [new]

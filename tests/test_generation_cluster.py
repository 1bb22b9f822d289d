"""Work on Ray: who is given what, which nodes are left out and why, and a local instance with two workers."""

import dataclasses
import http.server
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from small_runs import small_recipe
from tiny_lm import make_lm
from typer.testing import CliRunner

from generation import cluster, run
from generation.cluster import hire, node_problem, out_of_memory
from generation.cluster_actor import Library, is_here, on_this_gpu, require_files, require_versions
from generation.cluster_ledger import LEAST, TRIES, UNKNOWN, Held, Ledger, second_copy
from generation.cluster_nodes import Node, Nodes, Share
from generation.cluster_options import PROCESS, Options, check, share_of, warn_of_threads, withheld
from generation.cluster_start import _home, _refusal, local_instance
from generation.cluster_start import cluster as connected
from generation.cluster_team import Member, Team
from generation.crew import one_process
from generation.job import generate
from generation.tasks import WriteFirstTexts
from hub.errors import InputError, RunError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.shards import sha256_file

X2 = Path("recipes/demo/sts-dino-x2.yaml")
PLANTED = "sk-planted-9c1e"
SMALL = ["source.limit=24", "decoding.max_new_tokens=6", "shard_size=4", "decoding.max_attempts=3"]


def tasks(count: int) -> list[WriteFirstTexts]:
    return [WriteFirstTexts(range(number, number + 1)) for number in range(count)]


# Tasks.


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


# Nodes.


def entry(number: int, alive: bool = True, name: str = "", host: str = "box", **resources: float) -> dict[str, object]:
    address = f"10.0.0.{number}"
    resources = {"CPU": 2.0, "memory": 8e9, **resources}
    names = {"NodeName": name or address, "NodeManagerHostname": host, "NodeManagerAddress": address}
    return {"NodeID": f"{number:056x}", "Alive": alive, "Resources": resources, **names}


def seen(*entries: dict[str, object], share: Share = Share()) -> Nodes:  # noqa: B008 - frozen
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
    assert Counter(node.id for node in nodes.wanted({}, None)) == {first: 2, second: 4}
    assert Counter(node.id for node in nodes.wanted({}, 4)) == {first: 2, second: 2}
    assert [node.id for node in nodes.wanted({first: 1}, 2)] == [second]
    assert nodes.wanted({first: 2, second: 4}, None) == [] == nodes.wanted({first: 2, second: 3}, 5)


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
        (Share(), {"CPU": 8.0}, 8),
        (Share(cpus=3), {"CPU": 8.0}, 2),
        (Share(cpus=1, gpus=2), {"CPU": 8.0, "GPU": 8.0}, 4),
        (Share(gpus=1), {"CPU": 8.0}, 0),
        (Share(cpus=0.1), {"CPU": 0.3}, 3),
        (Share(memory=4e9), {"CPU": 8.0, "memory": 13e9}, 3),
    ],
)
def test_room_for_workers(share, resources, room):
    assert share.room(resources) == room


def test_a_node_without_memory_for_a_worker_is_left_out_by_name():
    nodes = seen(entry(1), entry(2, host="small", memory=1e9), entry(3, host="head", CPU=0), share=Share(memory=4e9))
    assert list(nodes.problems()) == ["small"] and len(nodes.usable()) == 1
    assert "4.0 GB of memory, it has 2, 0, 1.0 GB" in nodes.problems()["small"]
    assert not nodes.hopeless()
    nodes.usable()[0].problem = "its disk is full"
    assert nodes.hopeless() and nodes.hopeless(growing=True)


def test_nodes_that_are_too_small_mean_nothing_where_larger_ones_were_asked_for():
    nodes = seen(entry(1, memory=1e9), share=Share(memory=4e9))
    assert nodes.hopeless() and not nodes.hopeless(growing=True)


def test_a_node_that_found_too_little_memory_gets_one_worker_less_than_it_had():
    node, gone = Node("1", "box", room=16), []
    team = Team(
        SimpleNamespace(put=id, kill=gone.append, get_runtime_context=RuntimeContext), JOB, Nodes(Share()), 2, 0
    )
    for left in (1, 0):
        team.members = [Member(node, actor, None) for actor in range(left + 1)]
        team.crowded(team.members[0], "killed")
        assert (node.room, len(team.members), node.losses) == (left, left, 0)
    assert gone == [0, 0] and node.problem == "it has too little memory for a worker: killed"


# Whose fault it is.


def test_what_speaks_against_a_node():
    from ray.exceptions import ActorDiedError, OutOfDiskError, OutOfMemoryError

    assert "no space is left on its disk (/data/x)" in node_problem(OSError(28, "No space left on device", "/data/x"))
    assert node_problem(InputError("versions", "are not the driver's")) == "versions: are not the driver's"
    assert "not installed" in node_problem(ModuleNotFoundError("No module named 'generation'"))
    assert "disk" in node_problem(OutOfDiskError("full"))
    assert node_problem(ActorDiedError()) is None is node_problem(ValueError("x")) is node_problem(OSError(5, "io"))
    assert out_of_memory(MemoryError()) and out_of_memory(RuntimeError("CUDA out of memory. Tried"))
    assert out_of_memory(OutOfMemoryError("killed"))
    assert not out_of_memory(RuntimeError("shapes"))


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


# Options.


def of(**model: object) -> DatasetRecipe:
    return small_recipe("sts", model={"repo_id": "org/lm", "revision": "a" * 40, "license": "mit"} | model)


def test_a_worker_takes_its_threads_its_gpu_or_the_memory_of_its_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    at = Options("auto")
    assert share_of(of(), at) == Share(1)
    assert share_of(of(threads=4), at) == Share(4)
    assert share_of(of(threads=4), dataclasses.replace(at, cpus=2)) == Share(2)
    assert share_of(of(device="cuda:1"), at) == Share(1, 1)
    assert share_of(of(device_map="auto"), dataclasses.replace(at, gpus=4)) == Share(1, 4)
    assert share_of(of(repo_id=None, path=str(tmp_path)), at) == Share(1, 0, PROCESS + 1000)
    assert share_of(of(), Options(workers=1)).cpus == os.cpu_count()
    assert share_of(of(), Options(workers=10_000)).cpus == 1


def test_a_worker_on_a_gpu_uses_the_one_that_ray_shows_it():
    assert on_this_gpu(of(device="cuda:3")).model.device == "cuda"
    assert on_this_gpu(of()).model.device == "cpu"


def test_tokens_stay_with_the_driver_unless_workers_need_them():
    local = of(repo_id=None, path="lm")
    assert "OPENAI_API_KEY" in withheld(of(), None) and "HF_TOKEN" not in withheld(of(), None)
    assert "HF_TOKEN" in withheld(local, None) and "HF_TOKEN" in withheld(local, "/shared")
    assert "HF_TOKEN" not in withheld(local, "hf://buckets/org/name")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--store", "/shared"], "--store: is for several workers; add --workers N or --ray"),
        (["--cpus-per-worker", "2", "--gpus-per-worker", "1"], "--cpus-per-worker, --gpus-per-worker: is for several"),
        (["--ray", "ray://10.0.0.1:10001"], "run the command on a node of the cluster"),
        (["--ray", "nowhere"], "is no address; allowed: auto or HOST:PORT"),
        (["--ray", "127.0.0.1:1"], r"--ray 127.0.0.1:1: does not answer \(\[Errno 111\]"),
        (["--workers", "0"], "--workers"),
        (
            ["--workers", "1", "--gpus-per-worker", "1.5"],
            "--gpus-per-worker: is 1.5; allowed: a whole number, or a part",
        ),
    ],
)
def test_options_that_cannot_be(tmp_path, options, words):
    lm = make_lm(tmp_path / "lm")
    result = CliRunner().invoke(run.app, [str(X2), "--out", str(tmp_path / "o"), "--set", f"model.path={lm}", *options])
    if isinstance(result.exception, InputError):
        with pytest.raises(InputError, match=words):
            raise result.exception
    else:
        assert result.exit_code == 2 and words in result.output


def test_a_server_is_kept_busy_by_one_process():
    server = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    recipe = small_recipe("nli", model={"backend": "openai", "server": server, "license": "mit"})
    with pytest.raises(InputError, match=r"are not for backend openai; raise model\.server\.concurrency"):
        check(Options(workers=2), recipe)


def test_clusters_to_choose_from_are_named():
    said = (
        "ConnectionError: Found multiple active Ray instances: {'127.0.0.1:39037', '127.0.0.2:32891'}. Please specify"
    )
    words = r"--ray auto: several clusters run on this machine \(127\.0\.0\.1:39037, 127\.0\.0\.2:32891\); give one"
    assert re.match(words, str(_refusal("--ray auto", RuntimeError(said))))


def test_versions_of_ray_and_python_that_differ_are_named_with_both_sides():
    from ray._private.utils import check_version_info, compute_version_info

    ray, python = compute_version_info()
    with pytest.raises(RuntimeError) as other:
        check_version_info({"ray_version": "2.1.0", "python_version": "3.10.4"}, "node 10.0.0.1:6379")
    words = f"--ray auto: has Ray 2.1.0, Python 3.10.4; this process Ray {ray}, Python {python}; install the same"
    assert str(_refusal("--ray auto", other.value)).startswith(words)


def test_open_threads_are_told_where_they_decide_bytes(capsys):
    recipe = load_recipe(X2, DatasetRecipe)
    warn_of_threads(recipe)
    assert not capsys.readouterr().err
    warn_of_threads(recipe.model_copy(update={"model": recipe.model.model_copy(update={"threads": None})}))
    assert "--set model.threads=1" in capsys.readouterr().err


def test_an_address_where_something_else_answers_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("generation.cluster_start.ANSWER_SECONDS", 3)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(InputError, match=r"within 3 seconds"), connected(f"127.0.0.1:{server.server_port}"):
            pass
    finally:
        server.shutdown()


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
    result = CliRunner().invoke(run.app, [str(X2), *settings, *options])
    assert result.exit_code == 0, result.exception
    assert digests(tmp_path / "run" / "data") == digests(alone / "data")
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


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

"""A release on a three-node Ray cluster while processes get ``kill -9`` and the Hub fails."""

import contextlib
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from cluster_drivers import Drivers
from commit_history import DATASET, History, contents
from faults import FaultyHub, Running
from growth import RECIPE_FILE
from huggingface_hub import HfApi
from ray_cluster import RayCluster
from tiny_lm import make_lm

NAME = RECIPE_FILE.stem
REPO = f"acme/{NAME}"
SETTINGS = ["source.limit=48", "shard_size=4", "decoding.max_new_tokens=16", "decoding.max_attempts=3"]
SHARDS = 12
KINDS = ("worker", "node", "release", "generator")
WEIGHTS = (3, 2, 2, 2)
LOADED = 5  # every so many seeds, the end is loaded with ``datasets``, too: that takes as long as the rest
HUB_FAULTS, OFTEN = 0.06, 0.15  # of the requests; in runs whose kinds of kills are given, which are few
STORE, DISK_LOST = 1 / 3, 0.15  # of the runs; of the killed releases, whose next start finds an empty disk
LONGEST = 240  # seconds of one start; longer is a hang
LOCKED = "another process is working on this run"


@dataclass(frozen=True)
class Kill:
    """One planned fault: so many seconds after so many of the shards are there; when a lost node is replaced."""

    shards: int
    seconds: float
    kind: str
    until_added: float


def planned(moments: random.Random, kinds: Sequence[str] = ()) -> list[Kill]:
    """What happens to a run: two to five kills from its start to its last commit, or ``kinds`` while it is written."""
    last = SHARDS - 4 if kinds else SHARDS
    kinds = kinds or moments.choices(KINDS, WEIGHTS, k=moments.randint(2, 5))
    kills = [Kill(moments.randint(0, last), moments.uniform(0, 0.5), kind, moments.uniform(0, 3)) for kind in kinds]
    return sorted(kills, key=lambda kill: kill.shards)


@dataclass
class Outcome:
    """What happened in a run."""

    seed: int
    seconds: float = 0.0
    starts: int = 0
    planned: int = 0
    hits: Counter[str] = field(default_factory=Counter)  # kills that met a living process
    hub_faults: int = 0
    waits: int = 0  # starts that came before the generator of a killed release had let go of the run
    disks_lost: int = 0
    store: bool = False
    stores_left: int = 0  # stores of runs whose driver was killed after its last word and before it emptied them
    commits: int = 0

    def line(self) -> str:
        """For people."""
        hits = ", ".join(f"{self.hits[kind]} {kind}" for kind in KINDS)
        more = "".join(f", {word}" for word, there in (("store", self.store), ("disk lost", self.disks_lost)) if there)
        return (
            f"seed {self.seed}: {self.seconds:.1f} s, {self.starts} starts, killed {hits} (of {self.planned} planned), "
            f"{self.hub_faults} Hub faults, {self.commits} commits{more}"
        )


class World:
    """The cluster, the Hub and what a release leaves that nothing disturbs. Use it as a context manager."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.lm = make_lm(folder / "lm")

    def __enter__(self) -> "World":
        with ExitStack() as stack:
            self.cluster = stack.enter_context(RayCluster())
            self.faulty = FaultyHub(self.folder / "faulty", orgs=["acme"], part_bytes=1 << 16)
            hub = self.faulty.hub
            stack.callback(hub.stop)
            environment = hub.client_environment(self.folder / "home") | {"HF_HUB_DISABLE_XET": "1"}
            self.drivers = stack.enter_context(Drivers(self.cluster, environment, self.folder / "said"))
            self.api = HfApi(endpoint=hub.endpoint, token=hub.token)
            self.history = History(self.api, REPO, self.folder / "downloads")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def words(self, artifacts: Path, *options: str) -> list[str]:
        """A release's arguments."""
        fixed = ["--org", "acme", "--yes", "--artifacts", str(artifacts), "--commits-per-hour", "12"]
        settings = [word for setting in (f"model.path={self.lm}", *SETTINGS) for word in ("--set", setting)]
        return [str(RECIPE_FILE), *fixed, *settings, *options]

    def undisturbed(self, *options: str) -> None:
        """Release once and remember the end, or compare it."""
        artifacts, started = Path(tempfile.mkdtemp(dir=self.folder)), time.monotonic()
        running = self.drivers.start("release", self.words(artifacts, *options))
        assert running.code() == 0, running.said()
        seconds, commits = time.monotonic() - started, self.history.check()
        print(f"undisturbed{''.join(f' {word}' for word in options)}: {seconds:.1f} s, {commits} commits", flush=True)
        end = contents(artifacts / "datasets" / NAME), self.history.end()
        self.end = getattr(self, "end", end)
        assert end == self.end, "another end"
        self.api.delete_repo(REPO, **DATASET)

    def require_as_undisturbed(self, artifacts: Path) -> None:
        """Raise AssertionError unless everything is as if nothing had been."""
        directory = artifacts / "datasets" / NAME
        assert contents(directory) == self.end[0], "another run directory"
        beside = {path.name for path in directory.parent.iterdir()}
        assert beside <= {NAME, f"{NAME}.lock", f"{NAME}.timing.json", f"{NAME}.places.json"}, beside
        assert self.history.end() == self.end[1], "another repository"
        main = self.history.end()["refs/heads/main"]
        assert main == self.end[0], f"the repository is not the run directory: {main.items() ^ self.end[0].items()}"


class Disturbed:
    """One run: a release that is given again until it ends."""

    def __init__(self, world: World, seed: int, kinds: Sequence[str] = ()):
        self.world, self.outcome = world, Outcome(seed)
        self.random = random.Random(seed)
        self.artifacts = world.folder / f"run-{seed}"
        self.store = self.artifacts / "store"
        self.outcome.store = self.random.random() < STORE
        self.kills, self.faults = planned(self.random, kinds), OFTEN if kinds else HUB_FAULTS
        self.outcome.planned = len(self.kills)
        self._added = list[float]()  # when nodes join
        self._moments = dict[Kill, float]()  # of kills whose shards are there

    def run(self) -> Outcome:
        """Start, kill, start again; then compare. Raises AssertionError when anything is lost, doubled or broken."""
        started, before = time.monotonic(), self.world.faulty.injected()
        code = self._once()
        while code:
            assert self.outcome.starts < 20, "it does not end"
            code = self._once()
        self._nodes_join(at_once=True)
        outcome = self.outcome
        outcome.hub_faults = (self.world.faulty.injected() - before).total()
        self.world.require_as_undisturbed(self.artifacts)
        outcome.commits = self.world.history.check()
        outcome.stores_left = int(any(path.is_file() for path in self.store.rglob("*")))
        if not outcome.hits["release"] + outcome.hits["generator"]:
            assert not outcome.stores_left, "the store was not emptied"
        if outcome.seed % LOADED == 0:
            found = self.world.drivers.result("loaded", REPO, "main")
            assert found["rows"] == found["stated"], f"load_dataset gives {found}"
        outcome.seconds = time.monotonic() - started
        self.world.api.delete_repo(REPO, **DATASET)
        shutil.rmtree(self.artifacts)
        return outcome

    def _once(self) -> int:
        """One start, to its end; the exit code, or minus the signal."""
        world = self.world
        options = ["--ray", world.cluster.address, *(["--store", str(self.store)] if self.outcome.store else [])]
        world.faulty.plan(seed=self.random.randrange(1 << 30), share=self.faults, slow_seconds=0.05)
        self.outcome.starts += 1
        running = world.drivers.start("release", world.words(self.artifacts, *options))
        killed = self._watch(running)
        code = running.code()
        world.faulty.plan(share=0.0)
        said = running.said()
        if code == 1 and LOCKED in said:
            self.outcome.waits += 1
            time.sleep(0.5)
        elif killed and code == 0:
            self.outcome.hits[killed] -= 1  # it ended in that moment
        else:
            assert code == {None: 0, "release": -9, "generator": 1}[killed], f"{killed} killed, code {code}:\n{said}"
        assert "Traceback" not in said and "warning: not published" not in said, said
        return code

    def _watch(self, running: Running) -> str | None:
        """Do what is planned until the process ends; which part of the driver was killed."""
        deadline = time.monotonic() + LONGEST
        while running.alive():
            if time.monotonic() > deadline:
                running.kill()
                raise AssertionError(f"it hangs:\n{running.said()}")
            self._nodes_join()
            for kill in self._due():
                if self._strike(kill, running):
                    self.kills.remove(kill)
                    if kill.kind in ("release", "generator"):
                        return kill.kind
            time.sleep(0.005)
        return None

    def _due(self) -> Iterator[Kill]:
        """The kills whose moment has come."""
        there, now = len(list(self.artifacts.glob(f"datasets/{NAME}/data/raw/*.parquet"))), time.monotonic()
        for kill in list(self.kills):
            if there >= kill.shards and now >= self._moments.setdefault(kill, now + kill.seconds):
                yield kill

    def _strike(self, kill: Kill, running: Running) -> bool:
        """Kill what is to be killed; whether it was there."""
        cluster, generator = self.world.cluster, child(running.pid)
        if kill.kind == "release":
            running.kill()
            if self.random.random() < DISK_LOST and generator:
                gone(generator)
                shutil.rmtree(self.artifacts)
                self.outcome.disks_lost += 1
        elif generator is None:
            return False  # nothing is written yet, or any more
        elif kill.kind == "generator":
            generator.kill()
        elif kill.kind == "worker":
            actors = [worker for worker in cluster.workers() if worker.name not in ("", "IDLE")]
            if not actors or not cluster.kill_worker(self.random.choice(actors)):
                return False
        else:
            cluster.kill_node(self.random.choice(cluster.nodes()[1:]))
            self._added.append(time.monotonic() + kill.until_added)
        self.outcome.hits[kill.kind] += 1
        return True

    def _nodes_join(self, at_once: bool = False) -> None:
        for moment in [moment for moment in self._added if at_once or moment <= time.monotonic()]:
            self._added.remove(moment)
            self.world.cluster.add_node()


def child(pid: int) -> psutil.Process | None:
    """The generator of a release."""
    with contextlib.suppress(psutil.Error):
        return next(iter(psutil.Process(pid).children()), None)
    return None


def gone(process: psutil.Process) -> None:
    """Wait until a process has ended that its parent's end tells to."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait(30)

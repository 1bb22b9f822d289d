"""A run's tasks on Ray: workers of this machine or of a cluster, driven by this process.

The driver reads tasks as workers become free and takes what they give as it comes; it alone writes the run directory.
Where, when and how often a task is done changes no byte, so a lost worker costs its task's time and nothing else.

What goes wrong on a node and is the node's (versions, files, memory, disk) leaves the node out, with one line; what is
the task's (a prompt that is too long) stops the run, as it does in one process; anything else is tried again elsewhere.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from generation import job
from generation.cluster_actor import Job, code_versions
from generation.cluster_errors import node_problem, out_of_memory, what
from generation.cluster_ledger import Held, Ledger, second_copy
from generation.cluster_nodes import Node, Nodes, Share
from generation.cluster_options import Options, check, share_of, warn_of_threads, withheld
from generation.cluster_start import cluster, local_instance
from generation.cluster_team import Flight, Member, Team
from generation.crew import Contract, Crew, Hire
from generation.store import Lost, Store, store_folder
from generation.tasks import Made, Task, Tick
from hub.errors import InputError, RunError
from hub.recipe import DatasetRecipe
from hub.shards import write_text

IN_FLIGHT = 2  # tasks that a worker has: one at work, and one that waits, so that the worker does not
PAUSE = 1.0  # seconds without an answer, after which the cluster is looked at
PATIENCE = 60.0  # seconds that a cluster may have no node to work on
AUTOSCALED = 900.0  # the same where --workers asked for nodes: a machine takes minutes to start


def hire(options: Options) -> Hire:
    """Hire the workers of a cluster, or so many of this machine. Raises InputError for what cannot be spread."""

    @contextmanager
    def hired(contract: Contract) -> Iterator[Crew]:
        check(options, contract.recipe)
        warn_of_threads(contract.recipe)
        share = share_of(contract.recipe, options)
        folder = store_folder(contract.run, contract.directory)
        store = None if options.store is None else Store(options.store, folder)
        mark = (store.url, store.mark()) if store else None
        with ExitStack() as stack:
            ray = stack.enter_context(_connected(options, share, contract.recipe))
            stack.enter_context(_told())
            probe = stack.enter_context(_probe(contract.directory))
            crew = RayCrew(ray, _job(contract, options, share, probe, folder, mark), share, options, store)
            stack.callback(crew.close)
            crew.start()
            yield crew

    return hired


class RayCrew:
    """Workers of one recipe on Ray (``generation.crew.Crew``)."""

    def __init__(self, ray: Any, job: Job, share: Share, options: Options, store: Store | None):
        self._ray, self._job, self._store = ray, job, store
        self._share, self._wanted = share, options.workers
        self._autoscaled = options.address is not None and options.workers is not None
        patience = 0.0 if options.address is None else AUTOSCALED if self._autoscaled else PATIENCE
        self._team = Team(ray, job, Nodes(share), options.workers, patience, self._autoscaled)

    def start(self) -> None:
        """Have workers started wherever there is room. Raises RunError when no node can have one."""
        if self._autoscaled:
            _ask_for_nodes(self._share, self._wanted or 0)
        self._team.tend()
        room = sum(node.room for node in self._team.nodes.usable())
        if self._wanted and room < self._wanted:
            self._team.say([f"warning: there is room for {room} of {self._wanted} workers now"])

    def work(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[Made]:
        """See ``Crew``; ``tick`` is not told of anything: texts of other processes come with their shard.

        Raises RunError when no node is left, or when a task fails time and again.
        """
        ledger = Ledger(tasks)
        self._team.forget()
        while True:
            self._team.tend()
            self._give(ledger)
            if ledger.finished:
                return
            answer = self._team.wait(PAUSE)
            made = self._taken(ledger, *answer) if answer else None
            if made:
                yield made

    def count_tokens(self, text: str) -> int:
        """See ``Crew``; by a tokenizer of this process."""
        return len(self._tokenizer(text, add_special_tokens=False).input_ids)

    def describe(self) -> dict[str, Any]:
        """See ``Crew``; as the first worker says that is ready. Raises RunError when no node can have one."""
        while self._team.facts is None:
            self._team.tend()
            answer = self._team.wait(PAUSE)
            if answer:
                self._taken(Ledger(()), *answer)
        return self._team.facts

    def close(self) -> None:
        """Let the workers go, and the nodes that were asked for, which cost money."""
        try:
            if self._autoscaled:
                _ask_for_nodes(self._share, 0)
        finally:
            self._team.close()

    @cached_property
    def _tokenizer(self) -> Any:
        from generation.loading import load_tokenizer

        return load_tokenizer(self._job.recipe.model)

    def _give(self, ledger: Ledger) -> None:
        """Give tasks to all workers: one to each, then one to wait behind it; to idle ones what others hold."""
        ready = self._team.ready()
        names = {member.node.name for member in ready}
        for depth in range(IN_FLIGHT):
            for member in [member for member in ready if len(member.flights) == depth]:
                task = ledger.next(member.node.name, names)
                if task is None and depth == 0 and (task := second_copy(self._held(), ledger)):
                    self._team.take_back(task)
                if task is not None:
                    self._team.send(member, task)

    def _held(self) -> list[Held]:
        now = time.monotonic()
        flights = [flight for member in self._team.members for flight in member.flights]
        copies = Counter(flight.task.key for flight in flights)
        return [Held(one.task, one.since and now - one.since, copies[one.task.key]) for one in flights]

    def _taken(self, ledger: Ledger, member: Member, flight: Flight | None) -> Made | None:
        """What a worker's answer gives, if somebody waits for it. Raises what stops the run."""
        from ray.exceptions import RayError, RayTaskError

        try:
            if flight is None:
                self._team.welcome(member)
                return None
            made, said = self._ray.get(flight.ref)
        except RayTaskError as error:
            self._failed(ledger, member, flight, error.cause)
            return None
        except RayError as error:
            self._failed(ledger, member, flight, error)
            return None
        self._team.say(said)
        self._team.worked(member)
        member.drop(flight)
        return self._received(ledger, member, flight.task, made)

    def _received(self, ledger: Ledger, member: Member, task: Task, made: Made) -> Made | None:
        if not ledger.is_open(task):
            return None  # another was faster
        try:
            if self._store:
                self._store.fetch(made, self._job.directory)
        except Lost as error:  # what fails for a moment was waited for, and a store that fails for long ends the run
            ledger.failed(task, member.node.name, str(error))
            return None
        ledger.done(task, made.seconds)
        return made

    def _failed(self, ledger: Ledger, member: Member, flight: Flight | None, error: BaseException) -> None:
        """A call raised. Whose fault is it: the task's, the node's, or neither's?"""
        if flight is not None and isinstance(error, InputError):
            if ledger.is_open(flight.task):
                raise error
            member.drop(flight)
        elif out_of_memory(error):
            self._lost(ledger, member, what(error), crowded=True)
        elif (problem := node_problem(error)) and not (flight is None and self._proven(member.node)):
            member.node.problem = problem
            self._abandon(ledger, member)
        else:
            self._lost(ledger, member, what(error))

    def _abandon(self, ledger: Ledger, member: Member) -> None:
        """Let all workers of a node go that is left out."""
        for other in [one for one in self._team.members if one.node is member.node]:
            self._team.dismiss(other)
            for flight in other.flights:
                ledger.give_back(flight.task)
        self._team.tend(now=True)

    def _proven(self, node: Node) -> bool:
        """Whether a worker of the node is ready: what kept another one from starting there, the Hub perhaps, passes."""
        return any(member.node is node for member in self._team.ready())

    def _lost(self, ledger: Ledger, member: Member, why: str, crowded: bool = False) -> None:
        """A worker ended: the task it was at is to blame, perhaps, unless its node is gone or had too many workers."""
        if crowded:
            self._team.crowded(member, why)
        else:
            self._team.lost(member, why)
        self._team.tend(now=True)
        spared = not member.node.alive or (crowded and member.node.room > 0)
        for flight in member.flights:
            if flight.since is None or spared:
                ledger.give_back(flight.task)
            else:
                ledger.failed(flight.task, member.node.name, why)


@contextmanager
def _connected(options: Options, share: Share, recipe: DatasetRecipe) -> Iterator[Any]:
    if options.address is not None:
        with cluster(options.address) as ray:
            yield ray
    else:
        cpus = math.ceil((options.workers or 1) * share.cpus)  # Ray has whole ones
        with local_instance(cpus, None if share.gpus else 0, withheld(recipe, options.store)) as ray:
            yield ray


@contextmanager
def _told() -> Iterator[None]:
    """Ray's own failures, which are nobody's task's, in one line."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise RunError("Ray", what(error), hint="what is finished is kept; run the same command again") from error


@contextmanager
def _probe(directory: Path) -> Iterator[tuple[Path, str]]:
    """A file beside the run directory that tells a node that sees it from one with another of the same name."""
    token = secrets.token_hex(16)
    path = directory.resolve().with_name(f"{directory.name}.scratch") / f".{token}.tmp"  # removed after a kill
    write_text(path, token)
    try:
        yield path, token
    finally:
        path.unlink(missing_ok=True)


def _job(
    contract: Contract,
    options: Options,
    share: Share,
    probe: tuple[Path, str],
    run: str,
    store: tuple[str, str] | None,
) -> Job:
    model = contract.recipe.model
    inputs: Mapping[str, str] = {}
    if options.address is not None and model.path:
        files = job.input_files(contract.recipe)
        inputs = {str(path): digest for path, digest in files.items() if path.parent == Path(model.path)}
    return Job(
        recipe=contract.recipe,
        sets=contract.prompts.sets,
        run=run,
        directory=contract.directory.resolve(),
        probe=probe,
        folder=Path.cwd(),
        inputs=inputs,
        versions=code_versions(),
        threads=None if model.threads or share.gpus else max(1, int(share.cpus)),
        store=store,
    )


def _ask_for_nodes(share: Share, workers: int) -> None:
    """Have an autoscaler, if the cluster has one, start nodes for so many workers; 0 takes the wish back."""
    from ray.autoscaler.sdk import request_resources

    asked = {"CPU": share.cpus, "GPU": share.gpus, "memory": share.memory}
    request_resources(bundles=[{name: amount for name, amount in asked.items() if amount}] * workers)

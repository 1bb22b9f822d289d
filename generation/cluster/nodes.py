"""Node table of a cluster, pure: how many workers each node has room for, and which nodes are left out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hub.errors import RunError

LOSSES = 5  # workers that a node may lose, one after the other, with nothing done between
_GB = 10**9
_ROUNDING = 1e-6


@dataclass(frozen=True)
class WorkerResources:
    """Resources that one worker reserves on a node; ``memory`` in bytes."""

    cpus: float = 1
    gpus: float = 0
    memory: float = 0

    def room(self, resources: Mapping[str, float]) -> int:
        """How many workers a node with these resources (by Ray's names) has room for."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return min(int(resources.get(name, 0) / amount + _ROUNDING) for name, amount in asked.items() if amount)

    def lacking(self, resources: Mapping[str, float]) -> str:
        """Why a node has no room at all."""
        has = {name: resources.get(name, 0) for name in ("CPU", "GPU", "memory")}
        asked = f"{self.cpus:g} CPU, {self.gpus:g} GPU, {self.memory / _GB:.1f} GB of memory"
        return f"a worker takes {asked}, it has {has['CPU']:g}, {has['GPU']:g}, {has['memory'] / _GB:.1f} GB"


@dataclass
class Node:
    """A node of the cluster. ``room``: workers it may host; ``problem``: why it is left out."""

    id: str
    name: str
    room: int
    alive: bool = True
    problem: str | None = None
    small: bool = False  # it never had room
    losses: int = 0  # workers lost since something was done here

    @property
    def usable(self) -> bool:
        """Whether it may host workers."""
        return self.alive and self.problem is None and self.room > 0


@dataclass
class Nodes:
    """Every node that was seen, by id."""

    share: WorkerResources
    seen: dict[str, Node] = field(default_factory=dict)

    def update(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Take up the answer of ``ray.nodes()``: nodes come and go. One that is left out stays so."""
        alive = {entry["NodeID"]: entry for entry in found if entry["Alive"]}
        for name, node in self.seen.items():
            node.alive = name in alive
        for name, entry in alive.items():
            if name in self.seen:
                continue
            node = Node(name, self._name(entry), self.share.room(entry["Resources"]))
            if not node.room and entry["Resources"].get("CPU"):  # a node without CPUs is none for work
                node.problem, node.small = self.share.lacking(entry["Resources"]), True
            self.seen[name] = node

    def usable(self) -> list[Node]:
        """The nodes that may host workers."""
        return [node for node in self.seen.values() if node.usable]

    def placements(self, have: Mapping[str, int], most: int | None) -> list[Node]:
        """Nodes for new workers, one entry each, the emptiest first; ``most`` workers in all.

        ``have``: workers by node.
        """
        count = Counter(dict(have))
        free = sum(max(0, node.room - count[node.id]) for node in self.usable())
        chosen = list[Node]()
        for _ in range(free if most is None else min(free, most - count.total())):
            open_ = [node for node in self.usable() if count[node.id] < node.room]
            chosen.append(min(open_, key=lambda node: count[node.id]))
            count[chosen[-1].id] += 1
        return chosen

    def problems(self) -> dict[str, str]:
        """The nodes without workers for good, and why."""
        return {node.name: node.problem for node in self.seen.values() if node.problem}

    def hopeless(self, growing: bool = False) -> bool:
        """Whether no known node can host a worker. ``growing``: too small ones are ignored, larger ones may join."""
        able = [node for node in self.seen.values() if (node.room or node.problem) and not (growing and node.small)]
        return bool(able) and all(node.problem for node in able)

    def none_left(self) -> RunError:
        """What to say when no node can be worked on."""
        gone = {node.name: "it is gone" for node in self.seen.values() if not node.alive and not node.problem}
        empty = {node.name: "it has no CPUs" for node in self.seen.values() if node.alive and not node.room}
        said = "; ".join(f"{name}: {why}" for name, why in (empty | gone | self.problems()).items())
        return RunError("no node is left to work on", said or "the cluster has none", hint="what is finished is kept")

    def _name(self, entry: Mapping[str, Any]) -> str:
        """A node's name: the one it was given, else its host's; with its address or id where that names several."""
        given, address = entry["NodeName"], entry["NodeManagerAddress"]
        name = given if given and given != address else entry["NodeManagerHostname"]
        taken = {node.name for node in self.seen.values()}
        candidates = (name, f"{name} ({address})", f"{name} ({entry['NodeID'][:8]})")
        return next((one for one in candidates if one not in taken), candidates[-1])

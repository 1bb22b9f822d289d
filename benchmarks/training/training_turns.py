"""Two training loops in one process that take turns, a few steps each: their times differ by what they do alone.

On a busy machine the speed of a process changes by tenths within seconds, more than what is to be seen here. Turns of a
second put both loops into the same weather. Each runs in a thread of its own and only the one whose turn it is moves.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState


def now() -> tuple[float, float]:
    """Seconds of CPU and of the wall clock, when the device has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.process_time(), time.perf_counter()


@dataclass(frozen=True)
class Turn:
    """What one turn took, in seconds."""

    cpu_s: float
    wall_s: float


class Turns:
    """Gives the turn to each of ``names`` in their order; ``taken`` holds what each one's turns took."""

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self.taken: dict[str, list[Turn]] = {name: [] for name in names}
        self._mine = {name: threading.Event() for name in names}
        self._all = threading.Barrier(len(self.names))
        self._started = (0.0, 0.0)

    def begin(self, name: str) -> None:
        """Wait for all to come here, then for one's first turn."""
        if self._all.wait() == 0:
            self._mine[self.names[0]].set()
        self._take(name)

    def pass_on(self, name: str) -> None:
        """End one's turn and wait for the next."""
        self._end(name)
        self._take(name)

    def finish(self, name: str) -> None:
        """End one's last turn, and go on when all have."""
        self._end(name)
        self._all.wait()

    def give_up(self) -> None:
        """Free the others: one of them has failed."""
        self._all.abort()
        for event in self._mine.values():
            event.set()

    def _take(self, name: str) -> None:
        self._mine[name].wait()
        if self._all.broken:
            raise threading.BrokenBarrierError
        self._mine[name].clear()
        self._started = now()

    def _end(self, name: str) -> None:
        cpu, wall = (after - before for before, after in zip(self._started, now(), strict=True))
        self.taken[name].append(Turn(cpu, wall))
        following = self.names[(self.names.index(name) + 1) % len(self.names)]
        self._mine[following].set()


class Player(TrainerCallback):
    """Makes a trainer take turns of ``steps`` steps after ``warm_up`` steps, logs and checkpoints in them included."""

    def __init__(self, turns: Turns, name: str, warm_up: int, steps: int):
        self.turns, self.name, self.warm_up, self.steps = turns, name, warm_up, steps

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Wait for the turn, at the first step of each."""
        done = state.global_step - self.warm_up
        if done == 0:
            self.turns.begin(self.name)
        elif done > 0 and done % self.steps == 0:
            self.turns.pass_on(self.name)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """The last turn is over."""
        self.turns.finish(self.name)


def play(trainers: dict[str, Any], warm_up: int, steps: int) -> dict[str, list[Turn]]:
    """Run all trainers in turns of ``steps`` steps. Raises what one of them raises."""
    turns = Turns(list(trainers))

    def train(name: str) -> None:
        trainers[name].add_callback(Player(turns, name, warm_up, steps))
        done = False
        try:
            trainers[name].train()
            done = True
        finally:
            if not done:
                turns.give_up()

    with ThreadPoolExecutor(len(trainers)) as threads:
        errors = [loop.exception() for loop in [threads.submit(train, name) for name in trainers]]
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return turns.taken

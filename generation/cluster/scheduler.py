"""Scheduling of tasks, pure: new ones, those whose worker was lost, and a speculative copy of the slowest."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from generation.run_state.tasks import Task
from hub.errors import RunError

TRIES = 3  # workers that a task may take with it
SLOW = 2.0  # times the median: a task that runs for so long is given to an idle worker, too
LEAST = 2.0  # seconds that are never slow
UNKNOWN = 600.0  # the same as long as no task is done that could tell
REMEMBERED = 255  # of the last tasks' times, for their median


class TaskQueue:
    """Queue of one call of ``Executor.run_tasks``: lazily read, with retries. Each task is finished once."""

    def __init__(self, tasks: Iterable[Task]):
        self._source: Iterator[Task] = iter(tasks)
        self._again = dict[str, Task]()
        self._open = dict[str, Task]()
        self._tried = dict[str, list[str]]()  # task → nodes where it ended a worker
        self._seconds = deque[float](maxlen=REMEMBERED)
        self._exhausted = False

    @property
    def finished(self) -> bool:
        """Whether every task is done."""
        return self._exhausted and not self._open

    def next(self, node: str, others: Collection[str] = ()) -> Task | None:
        """The next task for a worker of ``node``, or None.

        A task that ended a worker there waits for one of the ``others`` where it did not, if there is any.
        """
        for key in self._again:
            tried = self._tried.get(key, ())
            if node not in tried or all(other in tried for other in others):
                return self._again.pop(key)
        new = None if self._exhausted else next(self._source, None)
        self._exhausted = new is None
        if new is not None:
            self._open[new.key] = new
        return new

    def is_open(self, task: Task) -> bool:
        """Whether the task was given out and is not done."""
        return task.key in self._open

    def done(self, task: Task, seconds: float) -> None:
        """Note that an open task is done, and how long it took."""
        del self._open[task.key]
        self._seconds.append(seconds)
        self._again.pop(task.key, None)

    def requeue(self, task: Task) -> None:
        """Have a task that its worker will not do done by another."""
        if self.is_open(task):
            self._again.setdefault(task.key, task)

    def failed(self, task: Task, node: str, reason: str) -> None:
        """Requeue a task that its worker failed at. Raises RunError when that happens time and again."""
        if not self.is_open(task):
            return
        nodes = self._tried.setdefault(task.key, [])
        nodes.append(node)
        if len(nodes) == TRIES:
            raise RunError(
                f"task {task.key}",
                f"failed {TRIES} times, on {', '.join(dict.fromkeys(nodes))}; the last time: {reason}",
                hint="what is finished is kept; mend the cause and run the same command again",
            )
        self.requeue(task)

    def is_slow(self, seconds: float) -> bool:
        """Whether a task that has run for so long is well beyond the others."""
        return seconds > (max(LEAST, SLOW * median(self._seconds)) if self._seconds else UNKNOWN)


@dataclass(frozen=True)
class AssignedTask:
    """A task that a worker has. ``seconds``: how long it has run, None while it waits; ``copies``: workers with it."""

    task: Task
    seconds: float | None
    copies: int = 1


def speculative_copy(assigned: Sequence[AssignedTask], queue: TaskQueue) -> Task | None:
    """What to give to an idle worker when no task is left: one that waits elsewhere, else the slowest if it is slow."""
    once = [one for one in assigned if one.copies == 1 and queue.is_open(one.task)]
    waiting = [one.task for one in once if one.seconds is None]
    running = [(one.seconds, one.task) for one in once if one.seconds is not None]
    seconds, slowest = max(running, key=lambda pair: pair[0], default=(0.0, None))
    return next(iter(waiting), slowest if queue.is_slow(seconds) else None)

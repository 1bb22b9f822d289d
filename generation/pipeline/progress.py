"""Progress of a run's shards: the bar, accepted texts a second of every node, and ``NAME.timing.json``."""

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from generation.run_state.tasks import TaskResult
from hub.durable import write_text
from hub.process import peak_rss_mb

SHOWN = 4  # nodes in the bar; the others are summed
SAVE_EVERY = 5.0  # seconds


class Progress:
    """A bar over the texts that a run wants, and the run's timing. Use it as a context manager."""

    def __init__(self, name: str, total: int, done: int, directory: Path):
        self._bar = tqdm(total=total, initial=done, unit="text", desc=name, file=sys.stderr)
        self._done, self._started = done, time.monotonic()
        self._rows = defaultdict[str, int](int)
        self._timing = Timing(directory)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if error is None:
            self._timing.save()

    def tick(self, texts: int) -> None:
        """Count accepted texts of a shard that is being written in this process."""
        self._bar.update(texts)

    def shard(self, result: TaskResult, wanted: int) -> None:
        """Count a whole shard; what of its ``wanted`` texts was not accepted in the end counts as dealt with."""
        self._timing.add(result.seconds, result.rows)
        self._done += wanted
        self._rows[result.node] += result.rows
        if len(self._rows) > 1 or result.node:
            self._bar.set_postfix_str(self.rates(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def rates(self) -> str:
        """Accepted texts a second, node by node, the busiest first."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        nodes = sorted(self._rows.items(), key=lambda item: -item[1])
        shown = [f"{node} {rows / seconds:.3g}/s" for node, rows in nodes[:SHOWN]]
        rest = sum(rows for _, rows in nodes[SHOWN:])
        return ", ".join([*shown, *([f"{len(nodes) - SHOWN} more {rest / seconds:.3g}/s"] if rest else [])])


class Timing:
    """Seconds (summed over all workers) and rows of generation, beside the run directory: nothing of it is published"""

    def __init__(self, directory: Path):
        self.path = directory.parent / f"{directory.name}.timing.json"
        self.seconds, self.rows, self._saved = 0.0, 0, 0.0
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):  # of a killed process
            leftover.unlink()
        if self.path.is_file():
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self.seconds, self.rows = found["seconds"], found["rows"]

    def add(self, seconds: float, rows: int) -> None:
        """Count one shard's work; the sums are saved every few seconds."""
        self.seconds += seconds
        self.rows += rows
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Save the sums."""
        self._saved = time.monotonic()
        record = {"seconds": round(self.seconds, 3), "rows": self.rows, "peak_rss_mb": peak_rss_mb()}
        write_text(self.path, json.dumps(record) + "\n")

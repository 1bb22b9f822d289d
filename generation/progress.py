"""The one progress bar of a run, with accepted texts a second of every node where there are several."""

import sys
import time
from collections import defaultdict
from types import TracebackType

from tqdm import tqdm

from generation.tasks import Made

SHOWN = 4  # nodes in the bar; the others are summed


class Progress:
    """A bar over the texts that a run wants. Use it as a context manager."""

    def __init__(self, name: str, total: int, done: int):
        self._bar = tqdm(total=total, initial=done, unit="text", desc=name, file=sys.stderr)
        self._done, self._started = done, time.monotonic()
        self._rows = defaultdict[str, int](int)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def tick(self, texts: int) -> None:
        """Count accepted texts of a shard that is being written in this process."""
        self._bar.update(texts)

    def shard(self, made: Made, wanted: int) -> None:
        """Count a whole shard; what of its ``wanted`` texts was not accepted in the end counts as dealt with."""
        self._done += wanted
        self._rows[made.node] += made.rows
        if len(self._rows) > 1 or made.node:
            self._bar.set_postfix_str(self.rates(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def rates(self) -> str:
        """Accepted texts a second, node by node, the busiest first."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        nodes = sorted(self._rows.items(), key=lambda item: -item[1])
        shown = [f"{node} {rows / seconds:.3g}/s" for node, rows in nodes[:SHOWN]]
        rest = sum(rows for _, rows in nodes[SHOWN:])
        return ", ".join([*shown, *([f"{len(nodes) - SHOWN} more {rest / seconds:.3g}/s"] if rest else [])])

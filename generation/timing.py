"""How long a run took: ``NAME.timing.json``, beside the run directory."""

import json
import time
from pathlib import Path

from hub.memory import peak_rss_mb
from hub.shards import write_text

SAVE_EVERY = 5.0  # seconds


class Timing:
    """Seconds (summed over all workers) and rows of generation.

    They are kept beside the run directory: two equal runs differ in nothing published.
    """

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

"""Releases on a three-node Ray cluster while parts of it are killed and the Hub fails, and what is left of them.

    PYTHONPATH=. python tests/cluster_kills.py --runs 50 --out benchmarks/results/kills/cluster_kills.json

A run is ``sts-dino release RECIPE --org acme --yes --ray ADDRESS`` against the embedded Hub. Its seed says which
processes get ``kill -9`` and when: a worker, all processes of a node (another node joins later), the release, or its
generator. A killed command is given again. At the end the run directory and the repository are compared with those of a
release that nothing disturbed, and every commit is loaded. ``test_release_cluster_faults.py`` is the short form.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from disturbed_release import KINDS, Disturbed, Outcome, World


class Report:
    """Outcomes so far, on stdout and in a file, so that an interrupted series is not lost."""

    def __init__(self, path: Path | None):
        from benchmarks.trials import hardware

        self._path, self._started, self._hardware = path, time.monotonic(), hardware("cpu")
        self._outcomes = list[Outcome]()
        self.failed = dict[int, str]()

    def add(self, outcome: Outcome, error: AssertionError | None = None) -> None:
        """Take up a run that ended well, or with an ``error``."""
        if error:
            self.failed[outcome.seed] = str(error)
            print(f"FAILED {outcome.line()}\n{error}", flush=True)
        else:
            self._outcomes.append(outcome)
            print(outcome.line(), flush=True)
        record = {**self.totals(), "hardware": self._hardware, "failed": self.failed}
        record["outcomes"] = [vars(outcome) for outcome in self._outcomes]
        if self._path:
            self._path.write_text(json.dumps(record, indent=1) + "\n")

    def totals(self) -> dict[str, Any]:
        """Sums over the runs that ended well."""
        hits = sum((outcome.hits for outcome in self._outcomes), Counter[str]())
        summed = ("starts", "planned", "hub_faults", "waits", "disks_lost", "stores_left", "commits")
        return {
            "runs": len(self._outcomes),
            "seconds": round(time.monotonic() - self._started, 1),
            "killed": {kind: hits[kind] for kind in KINDS},
            "with_store": sum(outcome.store for outcome in self._outcomes),
            **{name: sum(getattr(outcome, name) for outcome in self._outcomes) for name in summed},
        }


def main() -> int:
    """Do the runs; the exit code. After a run that failed the next one begins on a fresh cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seeds, report = deque(range(given.seed, given.seed + given.runs)), Report(given.out)
    while seeds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, World(Path(folder)) as world:
            world.undisturbed()
            world.undisturbed("--ray", world.cluster.address)
            failed = len(report.failed)
            while seeds and len(report.failed) == failed:
                run = Disturbed(world, seeds.popleft())
                try:
                    report.add(run.run())
                except AssertionError as error:
                    report.add(run.outcome, error)
    print(json.dumps(report.totals()))
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())

"""Releases whose Hub fails for longer than the patience, and wrong answers to all commands: what came of them.

    PYTHONPATH=. python tests/hub_outages.py --runs 12 --out benchmarks/results/kills/hub_outages.json

A run is ``sts-dino release RECIPE --org acme --yes --patience 1`` against the embedded Hub, which refuses, drops
or misanswers every request for more than that second, three times; what the generator wrote meanwhile must be published
when each outage ends. Then every command that speaks to a Hub meets every wrong answer at every kind of request that it
makes: it must end with one line and an exit code. ``tests/release/test_release_outages.py`` is the short form.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import growth
from growth_outages import World, totals
from hostile import Hostile, shown

from hub_server.faults import WRONG


class Record:
    """What was found so far, in a file after every step, so that an interrupted series is not lost."""

    def __init__(self, path: Path | None):
        from benchmarks.trials import hardware

        self._path, self._started, self.failed = path, time.monotonic(), list[str]()
        self._parts: dict[str, Any] = {"hardware": hardware("cpu")}

    def fail(self, what: str) -> None:
        """Take up something that is not as it should be."""
        self.failed.append(what)
        print(f"FAILED {what}", flush=True)

    def write(self, part: str, found: dict[str, Any]) -> None:
        """Take up how far a part is."""
        self._parts[part] = found
        whole = {**self._parts, "seconds": round(time.monotonic() - self._started, 1), "failed": self.failed}
        if self._path:
            self._path.write_text(json.dumps(whole, indent=1) + "\n")


def outages(runs: int, folder: Path, record: Record) -> None:
    """The runs, one after the other, until one fails."""
    outcomes = []
    with closing(World(folder, growth.record(folder / "once"))) as world:
        for seed in range(runs):
            try:
                outcomes.append(world.run(seed))
            except AssertionError as error:
                record.fail(f"outages, seed {seed}: {error}")
                return
            print(outcomes[-1].line(), flush=True)
            record.write("outages", {**totals(outcomes), "outcomes": [vars(outcome) for outcome in outcomes]})


def wrong_answers(folder: Path, record: Record) -> None:
    """Every command, every kind of request that it makes, every wrong answer."""
    codes, met, asked = Counter[str](), 0, dict[str, list[str]]()
    with Hostile(folder) as world:
        for command in reversed(world.commands):  # those that publish make the most kinds of requests
            world.unpublish()
            asked[command] = sorted(world.asked(command))
            for request, wrong in product(asked[command], WRONG):
                world.unpublish()
                ended = world.run(command, wrong, request)
                met, codes[str(ended.code)] = met + ended.met, codes[str(ended.code)] + 1
                if complaint := ended.complaint(world.hub.token):
                    record.fail(f"{command}, {request}, {wrong}: {complaint}: {shown(ended.said)}")
            if world.elsewhere.tokens:
                record.fail(f"{command}: a token went to another host")
            print(f"{command}: {', '.join(asked[command])}", flush=True)
            sums = {"commands": codes.total(), "answers": met, "exit_codes": dict(sorted(codes.items()))}
            record.write("wrong_answers", {**sums, "sent_elsewhere": world.elsewhere.asked, "asked": asked})


def main() -> int:
    """Both parts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record(given.out)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outages(given.runs, Path(folder) / "outages", record)
        wrong_answers(Path(folder) / "wrong", record)
    return int(bool(record.failed))


if __name__ == "__main__":
    sys.exit(main())

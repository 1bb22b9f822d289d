"""Releases whose Hub fails for longer than the patience, and wrong answers to all commands: what came of them.

    PYTHONPATH=. python tests/hub_outages.py --runs 25 --out benchmarks/results/hub_outages.json

A run is ``python -m release.run RECIPE --org acme --yes --patience 1`` against the embedded Hub, which refuses, drops
or misanswers every request for more than that second, three times; what the generator wrote meanwhile must be published
when each outage ends. Then every command that speaks to a Hub meets every wrong answer at every kind of request that it
makes: it must end with one line and an exit code. ``tests/test_release_outages.py`` is the short form.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import growth
from growth_outages import World, totals
from hostile import Hostile, shown

from hub.local.faults import WRONG

REPO = "acme/publishing-load"


def outages(runs: int, folder: Path, failed: list[str]) -> dict[str, Any]:
    """The runs, one after the other."""
    outcomes = []
    with closing(World(folder, growth.record(folder / "once"))) as world:
        for seed in range(runs):
            try:
                outcomes.append(world.run(seed))
                print(outcomes[-1].line(), flush=True)
            except AssertionError as error:
                failed.append(f"outages, seed {seed}: {error}")
                print(f"FAILED {failed[-1]}", flush=True)
                break
    return {**totals(outcomes), "outcomes": [vars(outcome) for outcome in outcomes]}


def wrong_answers(folder: Path, failed: list[str]) -> dict[str, Any]:
    """Every command, every kind of request that it makes, every wrong answer."""
    codes, met, asked, commands = Counter[int](), 0, dict[str, list[str]](), 0
    with Hostile(folder) as world:
        for command in world.commands:
            world.api.delete_repo(REPO, repo_type="dataset", missing_ok=True)
            asked[command] = sorted(world.asked(command))
            for request in asked[command]:
                for wrong in WRONG:
                    if command.startswith("release"):
                        world.api.delete_repo(REPO, repo_type="dataset", missing_ok=True)
                    ended = world.run(command, wrong, request)
                    commands, met, codes[ended.code] = commands + 1, met + ended.met, codes[ended.code] + 1
                    if complaint := ended.complaint(world.hub.token):
                        failed.append(f"{command}, {request}, {wrong}: {complaint}: {shown(ended.said)}")
                        print(f"FAILED {failed[-1]}", flush=True)
            print(f"{command}: {', '.join(asked[command])}", flush=True)
        if world.elsewhere.tokens:
            failed.append("a token went to another host")
        redirected = world.elsewhere.asked
    exit_codes = {str(code): number for code, number in sorted(codes.items())}
    return {
        "commands": commands,
        "answers": met,
        "exit_codes": exit_codes,
        "sent_elsewhere": redirected,
        "asked": asked,
    }


def main() -> int:
    """Both parts; the exit code."""
    from benchmarks.throughput.worker import hardware

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--out", type=Path)
    given, failed, started = parser.parse_args(), list[str](), time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        record: dict[str, Any] = {
            "hardware": hardware("cpu"),
            "outages": outages(given.runs, Path(folder) / "o", failed),
        }
        record["wrong_answers"] = wrong_answers(Path(folder) / "w", failed)
    record |= {"seconds": round(time.monotonic() - started, 1), "failed": failed}
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""Dataset runs that are killed again and again after their first shard, and what is left of them.

    PYTHONPATH=. python tests/generation_kills.py --kills 20 --out benchmarks/results/kills/generation_kills.json

A run is ``sts-dino write``. Once its first shard is finished it gets ``kill -9`` at a random moment and is
started again, several times; then it may end. The moment is a number of shards and some time more, so that it does not
depend on the machine's speed. Every start has to go on, not begin anew: no file of a shard that was
entered is written again, and the finished directory is byte for byte that of a run that nothing disturbed.
``tests/generation/test_generation_kills.py`` is the short form.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from commit_history import contents
from killing import started

from benchmarks.generation_memory import make_model
from generation.run_state.journal import Journal
from hub.contract import run_dir

FIRSTS, SHARD = 48, 2
SETTINGS = (f"source.limit={FIRSTS}", f"shard_size={SHARD}", "decoding.max_new_tokens=8", "decoding.top_k=0")
KILLS_A_RUN = 4
RAW = "data/raw/train-*.parquet"
LONGEST = 240.0  # seconds of a start; longer is a hang


class Kill(NamedTuple):
    """One kill: of which start of a run, so many seconds after a shard was there, and how many were entered then."""

    run: int
    start: int
    seconds: float
    shards: int


class World:
    """A language model, the command, what an undisturbed run gives (path → digest), and the seconds of a shard."""

    def __init__(self, folder: Path):
        self.folder, self._lm = folder, make_model(folder / "lm", context=1024)
        assert not self.start("undisturbed")
        self.wanted = contents(folder / "undisturbed")
        times = sorted(path.stat().st_mtime for path in (folder / "undisturbed").glob(RAW))
        self.shards, self.seconds = len(times), (times[-1] - times[0]) / (len(times) - 1)

    def start(self, name: str, shards: int | None = None, seconds: float = 0.0) -> bool:
        """Run the command; ``kill -9`` it so many ``seconds`` after so many ``shards`` are there. Whether it was."""
        settings = [word for one in (f"model.path={self._lm}", *SETTINGS) for word in ("--set", one)]
        begun, out = time.monotonic(), self.folder / name
        process = started(["recipes/demo/sts-dino-x2.yaml", "--out", str(out), *settings])
        while process.is_alive() and time.monotonic() - begun < LONGEST:
            if shards is not None and len(list(out.glob(RAW))) >= shards and entered(out):
                time.sleep(seconds)
                process.kill()
                break
            time.sleep(0.002)
        process.join(10)
        assert process.exitcode in (0, -9), f"exit code {process.exitcode}"
        return process.exitcode == -9


def entered(out: Path) -> dict[str, tuple[int, int]]:
    """The files of finished shards → what a second writing would change: inode and time."""
    manifest = run_dir.read_manifest(out)
    journal = Journal(out.parent / f"{out.name}.scratch" / "journal.jsonl")
    entries = [*(manifest.files if manifest else ()), *(file for record in journal.records() for file in record.files)]
    raw = {file.path for file in entries if (file.config or "").startswith(("raw", "rejected"))}
    found = {path: (out / path).stat() for path in raw if (out / path).is_file()}
    return {path: (one.st_ino, one.st_mtime_ns) for path, one in found.items()}


def disturbed(world: World, number: int, kills: int, moments: random.Random) -> list[Kill]:
    """One run, killed up to so often; its kills. Raises AssertionError when it began anew or ends in other bytes."""
    name, found = f"run-{number}", list[Kill]()
    known = dict[str, tuple[int, int]]()
    for start, shards in enumerate(sorted(moments.sample(range(1, world.shards + 1), kills))):
        seconds = moments.uniform(0, 2 * world.seconds)
        killed = world.start(name, shards, seconds)
        now = entered(world.folder / name)
        assert known.items() <= now.items(), "a finished shard was written again"
        known = now
        if not killed:
            break
        found.append(Kill(number, start, round(seconds, 3), len({Path(path).name for path in known})))
    assert not world.start(name)
    assert known.items() <= entered(world.folder / name).items(), "a finished shard was written again"
    assert contents(world.folder / name) == world.wanted, "other bytes than an undisturbed run"
    assert not (world.folder / f"{name}.scratch").exists()
    return found


def series(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Runs until there were so many kills; what happened."""
    begun, world, done, number = time.monotonic(), World(folder), list[Kill](), 0
    while len(done) < kills:
        done += disturbed(world, number, min(KILLS_A_RUN, kills - len(done)), random.Random(f"{seed}/{number}"))
        number += 1
        print(f"{len(done)} kills, {number} runs, all byte-equal", file=sys.stderr, flush=True)
    return {
        "kills": len(done),
        "runs": number,
        "byte_equal": number,
        "shards_of_a_run": world.shards,
        "shards_entered_when_killed": sorted(kill.shards for kill in done),
        "seconds": round(time.monotonic() - begun, 1),
        "each": [kill._asdict() for kill in done],
    }


def main() -> None:
    """Do the runs; a failed one ends the series with its assertion."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    from benchmarks.trials import hardware

    with tempfile.TemporaryDirectory() as folder:
        record = {**series(Path(folder), given.kills, given.seed), "seed": given.seed, "hardware": hardware("cpu")}
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key != "each"}))


if __name__ == "__main__":
    main()

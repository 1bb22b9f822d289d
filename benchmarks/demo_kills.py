"""Kill the demo at random moments and compare what it ends with: python -m benchmarks.demo_kills --kills 9

A finished `make demo` in artifacts/ is the reference. Another, in a folder of its own, is killed with SIGKILL again
and again, then left to end; its datasets must be the same files, bit for bit, and so must the encoder's weights.
"""

import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from demo.run import DATASETS, MODEL
from hub import cli, run_dir
from hub.errors import RunError

app = cli.new_app(__doc__)
WEIGHTS = "model.safetensors"


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def kill_after(command: list[str], seconds: float) -> str:
    """Start a command and kill it after so long; says which stage it had reached."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
    stages = [line for line in (said or "").splitlines() if line.startswith("== ")]
    return stages[-1] if stages else "start"


@app.command()
def main(
    kills: Annotated[int, typer.Option(min=1, help="How often the demo is killed")] = 9,
    seed: Annotated[int, typer.Option(help="Decides the moments")] = 1,
    longest: Annotated[float, typer.Option(min=3, help="Seconds after which it is killed at the latest")] = 60,
    reference: Annotated[Path, typer.Option(help="Artifacts of a finished demo")] = run_dir.ARTIFACTS,
) -> None:
    """Kill, restart, compare. Exit code 1 when anything differs."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "demo.run", "--artifacts", folder]
        for number in range(kills):
            seconds = moments.uniform(2, longest)
            cli.say(f"kill {number + 1} after {seconds:.1f} s, in: {kill_after(command, seconds)}")
        subprocess.run(command, check=True)  # noqa: S603
        same = {
            name: digests(reference / "datasets" / name) == digests(Path(folder, "datasets", name)) for name in DATASETS
        }
        ours, theirs = (Path(root, "models", MODEL, WEIGHTS).read_bytes() for root in (folder, reference))
        same[MODEL] = ours == theirs
    print(json.dumps({"kills": kills, "identical": same}))
    if not all(same.values()):
        raise RunError("demo", f"a killed demo ended in other bytes: {same}")


if __name__ == "__main__":
    cli.run(app)

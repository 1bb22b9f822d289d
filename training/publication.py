"""The end of a training run: the finished model moves into the run directory, and what it cost is written beside it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hub.errors import RunError
from hub.memory import peak_rss_mb
from hub.run_dir import File, describe
from hub.shards import write_text
from training.trainer import StudentTrainer

LITTLE_ROOM = 4 << 20  # bytes; torch.save says only "unexpected pos" when it runs out


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Tell a full disk as what it is: safetensors and torch.save raise errors of their own, without an errno."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        room = shutil.disk_usage(out.parent).free
        if "No space left" not in str(error) and room > LITTLE_ROOM:
            raise
        hint = "free some and run the same command again: it goes on from the last whole checkpoint"
        raise RunError(out.parent, f"no space left on the disk ({room:,} bytes free)", hint=hint) from error


def move_into_place(built: Path, out: Path) -> list[str]:
    """Move every file of the finished model into ``out``; returns their paths inside it, sorted.

    A kill in between leaves files that the manifest does not name yet; the next run moves the same bytes again.
    """
    paths = sorted(path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file())
    for path in paths:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (built / path).replace(out / path)
    shutil.rmtree(built)
    return paths


def describe_files(out: Path, paths: list[str]) -> list[File]:
    """Manifest entries of the model's files."""
    return [describe(out, path) for path in paths]


def write_timing(out: Path, seconds: float, trainer: StudentTrainer, first_step: int) -> None:
    """What this process took, beside the run directory: it differs from run to run, so it is not published.

    ``pairs_per_second`` counts the steps of this process only (a resumed run did the first ones before).
    """
    steps = trainer.state.global_step - first_step
    pairs = steps * trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps
    timing = {
        "seconds": round(seconds, 2),
        "pairs_per_second": round(pairs / seconds, 1),
        "peak_rss_mb": peak_rss_mb(),
        "resumed_from_step": first_step,
    }
    write_text(out.with_name(f"{out.name}.timing.json"), json.dumps(timing, indent=2) + "\n")

"""How far a growing dataset is, and when it will be done at the pace of the work so far."""

import json
from datetime import datetime, timedelta
from pathlib import Path

from hub.contract.run_dir import Manifest
from hub.contract.schema import base_config
from model_cards.shared.facts import GenerationProgress


def done_so_far(manifest: Manifest, progress: GenerationProgress) -> str:
    """Shards and rows that are there, in sentences."""
    if progress.shards_total is None:
        return "No shard is done yet."
    share = f" ({progress.shards_done / progress.shards_total:.0%})" if progress.shards_total else ""
    rows: dict[str, int] = {}
    for file in manifest.files:
        if file.config is not None and file.rows:
            rows[file.config] = rows.get(file.config, 0) + file.rows
    counted = ", ".join(f"{count:,} in `{config}`" for config, count in sorted(rows.items()))
    shards = f"{progress.shards_done:,} of {progress.shards_total:,} shards are done{share}"
    return f"{shards}; rows so far: {counted}." if counted else f"{shards}."


def time_left(directory: Path, manifest: Manifest, progress: GenerationProgress, now: datetime) -> str:
    """When the last shard may be written, in a sentence; ``now`` in UTC."""
    if progress.shards_total is not None and progress.shards_done >= progress.shards_total:
        return "All shards are written; the finished configs and all counts follow."
    rate, per_shard = pace(directory), rows_per_shard(manifest, progress)
    if progress.shards_total is None or rate is None or per_shard is None:
        return "How long it will take is not known yet."
    seconds = (progress.shards_total - progress.shards_done) * per_shard / rate
    done = (now + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"At {rate:,.3g} rows a second another {duration(seconds)} of work are left: if nothing stops it, it will be "
        f"written around {done} (estimated {now:%Y-%m-%d %H:%M} UTC)."
    )


def pace(directory: Path) -> float | None:
    """Raw rows per second of work, from the timing beside the run directory; None while there is none."""
    path = directory.parent / f"{directory.name}.timing.json"
    if not path.is_file():
        return None
    timing = json.loads(path.read_text(encoding="utf-8"))
    return timing["rows"] / timing["seconds"] if timing["rows"] and timing["seconds"] else None


def rows_per_shard(manifest: Manifest, progress: GenerationProgress) -> float | None:
    """Raw rows of a shard in the mean; None while there are none."""
    rows = sum(file.rows or 0 for file in manifest.files if base_config(file.config or "") == "raw")
    return rows / progress.shards_done if rows and progress.shards_done else None


def duration(seconds: float) -> str:
    """A length of time in its two largest units: ``2 days 3 h``, ``3 h 20 min``, ``1 min``."""
    minutes = max(1, round(seconds / 60))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "day" if days == 1 else "days"), (hours, "h"), (minutes, "min")]
    first = next(place for place, (count, _) in enumerate(units) if count)
    return " ".join(f"{count} {name}" for count, name in units[first : first + 2] if count)

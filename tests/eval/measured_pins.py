"""Measure the pins of the evaluation data, when the data themselves change: ``make pins DATA=DIR``.

``DIR`` holds ``senteval`` and ``sts-original``. What they lack keeps its pins: of the probing tasks
and SNLI's train part they are the publishers' counts, without a checksum.
"""

from pathlib import Path

import yaml

from sts_dino.eval.tasks.registry import DATASETS
from sts_dino.eval.tasks.rows import PINS_FILE, Rows, RowsPin, load_pins
from sts_dino.eval.tasks.sources import Source
from sts_dino.hub.errors import InputError


def rows_pin(rows: Rows) -> RowsPin:
    subsets = {name: stop - start for name, start, stop in rows.subsets}
    return RowsPin(rows=len(rows), sha256=rows.sha256, subsets=subsets)


def measure(senteval: Path, originals: Path) -> dict[str, dict[str, RowsPin]]:
    """Pins of everything in the directories; today's pins for the rest."""
    source, known = Source(senteval, originals, pins={}), load_pins()
    rows = {name: dict(known.get(name, {})) for name in DATASETS}
    for name, dataset in DATASETS.items():
        for split in dataset.parts:
            try:
                rows[name][split] = rows_pin(source.load(name, [split])[split])
            except InputError:
                continue
    return rows


def write(data: Path) -> None:
    """Write the pins under the head that their file has."""
    head = "".join(
        line for line in PINS_FILE.read_text().splitlines(keepends=True) if line.startswith("#")
    )
    measured = measure(data / "senteval", data / "sts-original")
    pins = {
        name: {split: pin.model_dump(exclude_defaults=True) for split, pin in splits.items()}
        for name, splits in measured.items()
    }
    PINS_FILE.write_text(
        head + yaml.safe_dump(pins, sort_keys=False, default_flow_style=None, width=200)
    )

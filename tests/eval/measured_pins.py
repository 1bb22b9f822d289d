"""Measure the pins of the evaluation data, when the data themselves change: ``make pins DATA=DIR``.

``DIR`` holds ``senteval`` and ``sts-original``. What they lack keeps its pins: of the probing tasks, COCO and
SNLI's train part they are the publishers' counts, without a checksum.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from eval.tasks.hub import ORDER_FILE, Order, key, mteb_pins
from eval.tasks.registry import DATASETS
from eval.tasks.rows import (
    PINS_FILE,
    DataFile,
    Directory,
    FilePin,
    Pins,
    Rows,
    RowsPin,
    published,
)
from eval.tasks.task import Layout
from hub.errors import InputError

HEAD = """# Digests of evaluation files and splits (eval/tasks/rows.py), by `make pins DATA=DIR`.
# Entries without sha256 were not available when this was measured: their counts are the publishers', and only they are
# checked; `more` is how many further rows pass (SentEval says of the probing tasks: "a few more" in some cases).
"""


def file_pin(file: DataFile) -> FilePin:
    return FilePin(lines=file.line_count, sha256=file.sha256)


def rows_pin(rows: Rows) -> RowsPin:
    subsets = {name: stop - start for name, start, stop in rows.subsets}
    return RowsPin(rows=len(rows), sha256=rows.sha256, subsets=subsets)


def row_order(name: str, rows: Rows) -> Order:
    """The first four bytes of every row's hash. Raises InputError when two different rows share them."""
    keys = [key(row) for row in rows.canonical()]
    if len(set(keys)) != len(set(rows.canonical())):
        raise InputError(name, "two different rows have the same four bytes of hash", hint="take more bytes")
    return np.array(keys, dtype=np.uint32)


def measure(roots: Mapping[Layout, Path]) -> tuple[Pins, dict[str, Order]]:
    """Pins and row orders of everything in the directories; today's pins for the rest."""
    known = published()
    files: dict[str, dict[str, FilePin]] = {"senteval": dict(known.senteval), "originals": dict(known.originals)}
    rows, orders = {name: dict(splits) for name, splits in known.rows.items()}, dict[str, Order]()
    for dataset in DATASETS.values():
        place = Directory(roots[dataset.layout], str(roots[dataset.layout]))
        for split, part in dataset.parts.items():
            try:
                read = [place.read(name) for name in part.files]
            except InputError:
                continue
            files[dataset.layout] |= {name: file_pin(file) for name, file in zip(part.files, read, strict=True)}
            found = part.reader(read)
            rows.setdefault(dataset.name, {})[split] = rows_pin(found)
            if dataset.name in mteb_pins() and split != "train":
                orders[f"{dataset.name}/{split}"] = row_order(dataset.name, found)
    return Pins(**files, rows={name: rows[name] for name in DATASETS if name in rows}), orders


def write(data: Path) -> None:
    """Write ``files.yaml`` and ``row_order.npz``."""
    pins, orders = measure({"senteval": data / "senteval", "originals": data / "sts-original"})
    written = pins.model_dump(mode="json", exclude_defaults=True)
    PINS_FILE.write_text(HEAD + yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=200))
    np.savez(ORDER_FILE, **orders)

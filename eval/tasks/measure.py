"""Measure the pins of the evaluation data: ``python -m eval.tasks.measure --senteval-data DIR --sts-data DIR``.

Writes ``files.yaml`` (lines and SHA-256 of every file that is there, rows and SHA-256 of every split) and
``row_order.npz`` beside this module. What the directories lack keeps the counts below, which come from the papers and
SentEval's documentation, and gets no checksum. Not part of an evaluation: run it when the data themselves change.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from eval.tasks.files import DataFile, Directory
from eval.tasks.hub import ORDER_FILE, Order, key, mteb_pins
from eval.tasks.registry import DATASETS
from eval.tasks.rows import PINS_FILE, FilePin, Pins, Rows, RowsPin, ScoredPairs, canonical_rows
from eval.tasks.task import Layout
from eval.tasks.transfer import PROBING
from hub.cli import new_app, run, say
from hub.contract.shards import atomic_path, write_text
from hub.errors import InputError

app = new_app("Measure the pins of the evaluation data.")
SNLI_TRAIN = 549_367  # Bowman et al. 2015: 550,152 pairs, of which SentEval keeps those with a gold label
# Conneau et al. 2018, "in some cases a few more"
PROBING_ROWS = {"train": 100_000, "validation": 10_000, "test": 10_000}
A_FEW = 100
COCO_IMAGES = {"train": 113_287, "validation": 5_000, "test": 5_000}  # Karpathy and Fei-Fei 2015, as in SentEval
HEAD = """# Digests of evaluation files and splits (eval/tasks/rows.py), by `python -m eval.tasks.measure`.
# Entries without sha256 were not at hand when this was measured: their counts are the publishers', and only they are
# checked; `more` is how many further rows pass (SentEval says of the probing tasks: "a few more" in some cases).
"""


def declared() -> Pins:
    """The counts of what could not be measured."""
    lines = {f"downstream/SNLI/{kind}.train": FilePin(lines=SNLI_TRAIN) for kind in ("labels", "s1", "s2")}
    whole = FilePin(lines=sum(PROBING_ROWS.values()), more=3 * A_FEW)
    lines |= {file: whole for one in PROBING for part in one.parts.values() for file in part.files}
    probing = {split: RowsPin(rows=rows, more=A_FEW) for split, rows in PROBING_ROWS.items()}
    rows = {"snli": {"train": RowsPin(rows=SNLI_TRAIN)}} | dict.fromkeys((one.name for one in PROBING), probing)
    rows["coco"] = {split: RowsPin(rows=5 * images) for split, images in COCO_IMAGES.items()}
    return Pins(senteval=lines, rows=rows)


def file_pin(file: DataFile) -> FilePin:
    """A file as it is."""
    return FilePin(lines=file.line_count, sha256=file.sha256)


def rows_pin(rows: Rows) -> RowsPin:
    """A split as it is."""
    subsets = {name: stop - start for name, start, stop in rows.subsets} if isinstance(rows, ScoredPairs) else {}
    return RowsPin(rows=len(rows), sha256=rows.sha256, subsets=subsets)


def row_order(name: str, rows: ScoredPairs) -> Order:
    """The first four bytes of every row's hash. Raises InputError when two different rows share them."""
    listed = list(canonical_rows(rows))
    keys = [key(row) for row in zip(rows.first, rows.second, rows.gold.tolist(), strict=True)]
    if len(set(keys)) != len(set(listed)):
        raise InputError(name, "two different rows have the same four bytes of hash", hint="take more bytes")
    return np.array(keys, dtype=np.uint32)


def measure(roots: Mapping[Layout, Path]) -> tuple[Pins, dict[str, Order]]:
    """Pins and row orders of everything that is in the directories, with the declared counts for the rest."""
    pins = declared()
    files: dict[Layout, dict[str, FilePin]] = {"senteval": dict(pins.senteval), "originals": {}}
    rows, orders = {name: dict(splits) for name, splits in pins.rows.items()}, dict[str, Order]()
    for dataset in DATASETS.values():
        place = Directory(roots[dataset.layout], str(roots[dataset.layout]))
        for split, part in dataset.parts.items():
            try:
                read = [place.read(name) for name in part.files]
            except InputError:
                say(f"not measured, its declared count stays: {dataset.name} {split}")
                continue
            files[dataset.layout] |= {name: file_pin(file) for name, file in zip(part.files, read, strict=True)}
            found = part.reader(read)
            rows.setdefault(dataset.name, {})[split] = rows_pin(found)
            in_mteb = dataset.name in mteb_pins() and split != "train"  # no score is computed on a train split
            if isinstance(found, ScoredPairs) and in_mteb:
                orders[f"{dataset.name}/{split}"] = row_order(dataset.name, found)
    known = {name: rows[name] for name in DATASETS if name in rows}
    return Pins(senteval=files["senteval"], originals=files["originals"], rows=known), orders


@app.command()
def main(
    senteval_data: Annotated[Path, typer.Option("--senteval-data", help="SentEval's directory")],
    sts_data: Annotated[Path, typer.Option("--sts-data", help="The organisers' STS directory")],
) -> None:
    """Measure and write the pins."""
    pins, orders = measure({"senteval": senteval_data, "originals": sts_data})
    written = pins.model_dump(mode="json", exclude_defaults=True)
    write_text(PINS_FILE, HEAD + yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=200))
    with atomic_path(ORDER_FILE) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **orders)  # type: ignore[arg-type]
    say(f"written: {PINS_FILE}, {ORDER_FILE}")


if __name__ == "__main__":
    run(app)

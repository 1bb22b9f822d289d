"""MTEB's STS repositories as a source: the published rows, brought into the published order.

A repository says neither which subset a row is of nor keeps a promise on order, and both matter: ``mean`` needs the
subsets, and paired intervals need every model's rows in the same order. ``row_order.npz`` holds four bytes of every
row's hash in the published order (``eval.tasks.measure`` writes it), which is enough to sort the rows back; the
result is then held against the full checksum, like any other source's.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from eval.tasks.data.example_types import ScoredPairs
from eval.tasks.data.hub import MTEB, HubPin
from eval.tasks.data.pins import RESTORE, RowsPin, canonical_line
from eval.tasks.data.rows import scored_pairs
from hub.errors import InputError

DATASETS_FILE = Path(__file__).parents[1] / "pins" / "mteb_datasets.yaml"
ORDER_FILE = Path(__file__).parents[1] / "pins" / "row_order.npz"
COLUMNS = ("sentence1", "sentence2", "score")
Row = tuple[str, str, float]
Order = NDArray[np.uint32]


@cache
def mteb_pins() -> dict[str, HubPin]:
    """Data set → MTEB's repository at MTEB's revision."""
    entries = yaml.safe_load(DATASETS_FILE.read_text(encoding="utf-8"))
    return {name: HubPin(**entry) for name, entry in entries.items()}


@cache
def published_order() -> dict[str, Order]:
    """``<data set>/<split>`` → the first four bytes of every row's hash, in the published order."""
    with np.load(ORDER_FILE, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def key(row: Row) -> int:
    """The first four bytes of a row's hash."""
    return int.from_bytes(hashlib.sha256(canonical_line(row)).digest()[:4], "big")


def in_order(place: str, rows: Sequence[Row], order: Order) -> list[Row]:
    """``rows`` in the published order. Raises InputError when they are not the published ones."""
    if len(rows) != len(order):
        raise InputError(place, f"has {len(rows)} rows, expected {len(order)}", hint=RESTORE)
    by_key: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[key(row)].append(row)
    unknown = [row for known in set(by_key) - set(order.tolist()) for row in by_key[known]]
    if unknown:
        problem = f"{len(unknown)} rows are not among the published ones, e.g. {str(unknown[0])[:80]}"
        raise InputError(place, problem, hint=RESTORE)
    try:
        return [by_key[wanted].pop() for wanted in order.tolist()]
    except IndexError:
        raise InputError(place, "repeats some rows and lacks others", hint=RESTORE) from None


class MtebDatasets:
    """Scored pairs from MTEB's repositories. ``pins`` and ``order`` stand in for the published ones in tests."""

    def __init__(self, pins: Mapping[str, HubPin] | None = None, order: Mapping[str, Order] | None = None):
        self._pins = mteb_pins() if pins is None else pins
        self._order = published_order() if order is None else order

    def has(self, dataset: str, split: str) -> bool:
        """Whether MTEB has a repository of the data set, and the split's published order is known."""
        return dataset in self._pins and f"{dataset}/{split}" in self._order

    def rows(self, dataset: str, split: str, pin: RowsPin | None, form: Callable[[str], str]) -> ScoredPairs:
        """A split in the published order, with the subsets that ``pin`` lists and texts in their ``form``.

        Raises InputError when MTEB has no such data or its rows are not the published ones.
        """
        name = f"{dataset}/{split}"
        if not self.has(dataset, split):
            hint = "give --senteval-data DIR or --sts-data DIR"
            raise InputError(
                name, f"is not among the data of --hub-data {MTEB}", allowed=", ".join(self._order), hint=hint
            )
        repository = self._pins[dataset]
        place = f"dataset {repository.repo_id}@{(repository.revision or '')[:12]} {split}"
        found = _download(place, repository, split)
        rows = [(form(first), form(second), float(score)) for first, second, score in found]
        ordered = in_order(place, rows, self._order[name])
        return scored_pairs(ordered, bounds(pin.subsets if pin else {}))


def bounds(sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """(name, start, stop) of consecutive subsets from their sizes."""
    stops = np.cumsum(list(sizes.values())).tolist()
    return [(name, stop - size, stop) for (name, size), stop in zip(sizes.items(), stops, strict=True)]


def _download(place: str, repository: HubPin, split: str) -> list[Row]:
    from datasets import load_dataset

    from hub.client.failures import reading
    from hub.row_errors import reading_rows

    with reading(f"dataset {repository.repo_id}", repository.revision), reading_rows(place):
        table = load_dataset(repository.repo_id, revision=repository.revision, split=split)
    missing = [column for column in COLUMNS if column not in table.column_names]
    if missing:
        raise InputError(place, f"has no column {missing[0]!r}", allowed=", ".join(table.column_names))
    return list(zip(*(table[column] for column in COLUMNS), strict=True))

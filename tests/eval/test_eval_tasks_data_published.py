"""The published data themselves, where they are (STS_DINO_DATA): pins, counts and rows against plain readings."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from measured_pins import measure

from eval.tasks.hub import published_order
from eval.tasks.rows import Pins, Rows, published
from eval.tasks.sources import Source
from eval.tasks.sts import SUBSETS

DATA = Path(os.environ.get("STS_DINO_DATA", "no data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="STS_DINO_DATA does not name the original data")


@pytest.fixture(scope="module")
def measured() -> tuple[Pins, dict]:
    return measure({"senteval": DATA / "senteval", "originals": DATA / "sts-original"})


@cache
def load(name: str, split: str = "test") -> Rows:
    return Source(DATA / "senteval", DATA / "sts-original").load(name, [split])[split]


def test_the_pins_are_what_measuring_gives(measured):
    pins, orders = measured
    assert pins == published()
    assert set(orders) == set(published_order())
    assert all(np.array_equal(orders[name], order) for name, order in published_order().items())


def test_the_pins_are_the_checksums_that_came_with_the_data():
    lines = (DATA / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}
    sums = {path.strip().lstrip("*").removeprefix("./"): digest for path, digest in sums.items()}
    pinned = {f"senteval/{path}": pin.sha256 for path, pin in published().senteval.items()}
    pinned |= {f"sts-original/{path}": pin.sha256 for path, pin in published().originals.items()}
    measured = {path: digest for path, digest in pinned.items() if digest}
    assert len(measured) > 120 and measured == {path: sums[path] for path in measured}


def test_sts_rows_equal_a_plain_reading():
    for year, subsets in SUBSETS.items():
        rows = load(year)
        plain = []
        for subset in subsets:
            folder = DATA / f"senteval/downstream/STS/{year.upper()}-en-test"
            texts, gold = (
                (folder / f"STS.{kind}.{subset}.txt").read_text(encoding="utf-8").split("\n")
                for kind in ("input", "gs")
            )
            plain += [
                (*(" ".join(cell.split()) for cell in line.split("\t")), float(score))
                for line, score in zip(texts, gold, strict=False)
                if score
            ]
        assert list(rows.canonical()) == plain


def test_the_texts_are_those_that_mteb_counted():
    """Characters of either side, as MTEB publishes them; in STS14 one of its texts has a space at its end."""
    characters = {
        name: tuple(sum(map(len, side)) for side in (rows.first, rows.second))
        for name in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick-r-full")
        for rows in (load(name),)
    }
    assert characters == {
        "sts12": (198256, 203862), "sts13": (93101, 68848), "sts14": (212330, 194854), "sts15": (173466, 172976),
        "sts16": (77704, 77098), "stsb": (74107, 73779), "sick-r-full": (462620, 452997),
    }  # fmt: skip

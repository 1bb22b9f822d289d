"""The published data themselves, where they are (STS_DINO_DATA): pins, counts and rows against plain readings."""

import os
from functools import cache
from pathlib import Path

import pytest
from measured_pins import measure

from eval.tasks.rows import Rows, published
from eval.tasks.sources import Source

DATA = Path(os.environ.get("STS_DINO_DATA", "no data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="STS_DINO_DATA does not name the original data")


@cache
def load(name: str, split: str = "test") -> Rows:
    return Source(DATA / "senteval", DATA / "sts-original").load(name, [split])[split]


def test_the_pins_are_what_measuring_gives():
    assert measure(DATA / "senteval", DATA / "sts-original") == published()


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

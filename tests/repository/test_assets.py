"""What the repository ships, checked against the original data where they are (STS_DINO_DATA), and
in itself.
"""

import os
import re
from pathlib import Path

import pytest

DATA = Path(os.environ.get("STS_DINO_DATA", "no data"))
original = pytest.mark.skipif(
    not DATA.is_dir(), reason="STS_DINO_DATA does not name the original data"
)


def normalise(sentence: str) -> str:
    """Letters and digits alone, in lower case: how sentences are compared with evaluation sets."""
    return re.sub(r"[\W_]", "", sentence.lower())


def test_source_sentences_are_no_sentences_of_the_evaluation_files():
    """The demo is scored on sentences that are not among its source sentences."""
    lines = Path("assets/demo-data/x1.tsv").read_text(encoding="utf-8").splitlines()[1:]
    first = {normalise(line.split("\t")[0]) for line in lines}
    scored = set()
    for name in ("sts-dev.csv", "sts-test.csv"):
        rows = [
            line.split("\t")
            for line in Path("assets/stsb", name).read_text(encoding="utf-8").split("\n")
            if line
        ]
        scored |= {normalise(sentence) for row in rows for sentence in row[5:7]}
    assert len(lines) == 1200 and len(scored) > 5000 and not first & scored


@original
def test_shipped_files_are_the_original_ones():
    theirs, names = (
        DATA / "sts-original/STSBenchmark",
        ("sts-dev.csv", "sts-test.csv", "LICENSE.txt", "readme.txt"),
    )
    shipped = {Path("assets/stsb") / name: theirs / name for name in names}
    assert [
        ours for ours, other in shipped.items() if ours.read_bytes() != other.read_bytes()
    ] == []

"""The README's picture: texts are escaped and wrapped, the row's rank among all is told, an unknown row is refused."""

from xml.etree import ElementTree

import pytest

from benchmarks.papers.dino.examples import Example
from benchmarks.picture import LETTERS, picture
from hub.errors import InputError

MEANINGS = {"1": "the same", "0": "another topic"}
SVG = "{http://www.w3.org/2000/svg}"


def example(source: str, high: float, low: float, first: str = "A man plays a flute.") -> Example:
    return Example(
        source, first, {"1": "Someone makes music.", "0": "<b>Shares</b> & bonds fell."}, {"1": high, "0": low}
    )


FOUND = [example("000001", 0.9, 0.1), example("000002", 0.8, 0.3), example("000003", 0.2, 0.4, "word " * 60)]


def drawn(row: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture(FOUND, row, "Some LM", MEANINGS))


def test_the_picture_has_all_texts_their_labels_and_cosines_and_the_rank():
    told = ["".join(node.itertext()) for node in drawn("000002").iter(f"{SVG}text")]
    assert told[:2] == ["given", "A man plays a flute."]
    assert told[2:6] == ["1", "the same", "Someone makes music.", "cosine 0.80"]
    assert told[6:10] == ["0", "another topic", "<b>Shares</b> & bonds fell.", "cosine 0.30"]
    assert "Some LM" in told[-2] and "number 2 of 3" in told[-2]


def test_long_texts_are_wrapped_and_stay_inside_the_picture():
    svg = drawn("000003")
    texts = list(svg.iter(f"{SVG}text"))
    assert max(len(node.text or "") for node in texts[:-2]) <= LETTERS
    assert all(0 < float(node.get("y", 0)) < float(svg.get("height", 0)) for node in texts)
    tops = [float(node.get("y", 0)) for node in svg.iter(f"{SVG}rect") if node.get("class") in ("given", "written")]
    assert tops == sorted(tops) and len(tops) == 3


def test_a_cosine_below_zero_draws_no_bar():
    found = [example("000004", 0.5, -0.2)]
    svg = ElementTree.fromstring(picture(found, "000004", "m", MEANINGS))
    assert [node.get("width") for node in svg.iter(f"{SVG}rect") if node.get("class") == "bar"] == ["38.0", "0"]


def test_an_unknown_row_is_refused():
    with pytest.raises(InputError, match="'9'"):
        picture(FOUND, "9", "m", MEANINGS)

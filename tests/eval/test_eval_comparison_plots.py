"""eval.compare.plots: every score and verdict is in the picture, told by marks as well as by colours."""

import io
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import pytest

from eval.compare.model import Comparison, ScoreRow
from eval.compare.plots import COLOURS, HATCHES, MARKS, plots
from eval.statistics.bootstrap import Interval
from eval.statistics.paired import Difference, Measurement, Test, Verdict, adjusted
from hub.contract.results import TaskScore

MODELS = ("org/one", "_two <b>$x$", "a-name-that-is-much-longer-than-any-legend-could-show-in-one-line")
TASKS = ("sts12/all", "stsb/cosine", "mteb/STS12")


def score(task: str, value: float, interval: bool = True) -> TaskScore:
    around = {"low": value - 2, "high": value + 2} if interval else {}
    return TaskScore(
        task=task,
        protocol="p",
        split="test",
        main_metric="spearman",
        main_score=value,
        n=100,
        data_sha256="d",
        **around,
    )


@pytest.fixture(scope="module")
def drawn() -> dict[str, tuple[str, bytes]]:
    lines = []
    for place, task in enumerate(TASKS):
        scores = {
            model: score(task, 70 + 5 * index + place, task != "mteb/STS12") for index, model in enumerate(MODELS)
        }
        if place == 1:
            del scores[MODELS[2]]
        lines.append(ScoreRow(Measurement.of(next(iter(scores.values()))), scores))
    found = [
        Verdict(
            *MODELS[:2],
            line.measurement,
            Difference(difference, Interval(difference - 1, difference + 1), Test("t", 1.0, p)),
        )
        for line, difference, p in zip(lines, (3.0, -3.0, 0.2), (0.001, 0.001, 0.6), strict=True)
    ]
    return plots(Comparison(MODELS, tuple(lines), (), tuple(adjusted(found)), (), (), {}))


def words(content: bytes) -> list[str]:
    root = ElementTree.fromstring(content)
    return [text for element in root.iter("{http://www.w3.org/2000/svg}text") for text in element.itertext()]


def test_each_picture_comes_as_png_and_svg(drawn):
    assert list(drawn) == ["scores.png", "scores.svg", "differences-1.png", "differences-1.svg"]
    for name, (_, content) in drawn.items():
        if name.endswith("png"):
            height, width = matplotlib.image.imread(io.BytesIO(content)).shape[:2]
            assert width > 1000 and height > 300
        else:
            ElementTree.fromstring(content)


def test_scores_show_every_value_task_and_model(drawn):
    told = words(drawn["scores.svg"][1])
    values = [f"{70 + 5 * index + place:.2f}" for place in range(3) for index in range(3) if (place, index) != (1, 2)]
    assert sorted(text for text in told if text in values) == sorted(values)
    assert set(TASKS) <= set(told) and "org/one" in told and " _two <b>$x$" in told
    assert any("…" in text and len(text) == 40 for text in told)


def test_differences_show_each_verdict(drawn):
    words_of_it, content = drawn["differences-1.svg"]
    told = words(content)
    assert {"better", "worse", "not separable", *TASKS} <= set(told)
    assert "org/one" in words_of_it
    colours = content.decode().lower()
    assert all(colour.lower() in colours for _, colour in MARKS.values())


def test_models_and_verdicts_differ_by_more_than_colour():
    assert len(set(HATCHES)) == len(HATCHES) == len(set(COLOURS)) == len(COLOURS)
    assert len({shape for shape, _ in MARKS.values()}) == 3


def test_the_same_numbers_give_the_same_bytes(drawn):
    lines = (ScoreRow(Measurement.of(score("stsb/cosine", 80)), {"a": score("stsb/cosine", 80)}),)
    comparison = Comparison(("a",), lines, (), (), (), (), {})
    assert plots(comparison) == plots(comparison)

"""The report's charts: whole XML, shapes in proportion, every value written out, names escaped."""

from xml.etree import ElementTree

import pytest

from sts_dino.report.charts import WIDTH, Mark, curve_chart, histograms, kept_chart, score_chart


def shapes(chart: str, name: str, kind: str) -> list[dict[str, str]]:
    return [one.attrib for one in ElementTree.fromstring(chart).iter(name) if one.get("class") == kind]


def texts(chart: str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(chart).iter("text")]


def test_bars_are_as_long_as_their_counts():
    chart = kept_chart([("a", 60, 20), ("<b>\u202e", 10, 0), ("none", 0, 0)])
    assert [float(one["width"]) for one in shapes(chart, "rect", "fill")] == [WIDTH * 60 / 80, WIDTH * 10 / 80]
    assert [float(one["width"]) for one in shapes(chart, "rect", "hatch")] == [WIDTH * 20 / 80]
    assert texts(chart)[1] == "60 kept (75 %), 20 rejected" and texts(chart)[5] == "nothing written"
    assert texts(chart)[2] == "<b>\ufffd" and "<b>" not in chart
    ElementTree.fromstring(kept_chart([]))


def test_histograms_tell_two_encoders_apart_by_shape_and_name_their_medians():
    chart = histograms({"1": {"untrained": [0.2, 0.2, 0.9], "trained": [0.91, 0.92, 0.92]}, "0": {"trained": [-0.35]}})
    assert len(shapes(chart, "polyline", "outline")) == 1  # of the untrained one
    bars = shapes(chart, "rect", "fill")
    assert len(bars) == 2 and float(bars[0]["x"]) > 0.9 * WIDTH and float(bars[1]["x"]) < 0.1 * WIDTH
    assert {"median untrained 0.20, trained 0.92", "median trained -0.35", "-0.2", "1.0"} <= {*texts(chart)}


def test_a_curve_ends_at_its_last_value_and_marks_the_step_kept():
    chart = curve_chart("Loss", [(10, 1.0), (20, 0.5), (40, 0.25)], kept_step=20)
    points = [tuple(map(float, pair.split(","))) for pair in shapes(chart, "polyline", "curve")[0]["points"].split()]
    assert [y for _, y in points] == sorted(y for _, y in points)  # downwards is a larger y
    assert points[-1][0] > points[0][0] and len(shapes(chart, "line", "dashed")) == 1
    assert "0.25" in texts(chart) and "Loss" in texts(chart)
    assert curve_chart("Loss", [(10, 1.0)]) == "" and not shapes(
        curve_chart("Loss", [(1, 2.0), (2, 2.0)], kept_step=2), "line", "dashed"
    )


def test_scores_stand_within_their_intervals_in_shapes_of_their_own():
    marks = [
        Mark("untrained", 0, 40.0, (38, 42)),
        Mark("copies control", 1, 45.0, None),
        Mark("trained", 2, 50, (45, 55)),
    ]
    chart = score_chart([("stsb/cosine test", marks)])
    whiskers = shapes(chart, "line", "whisker")
    circles = [*shapes(chart, "circle", "hollow"), *shapes(chart, "circle", "fill")]
    for whisker, circle in zip(whiskers, circles, strict=True):
        assert float(whisker["x1"]) < float(circle["cx"]) < float(whisker["x2"])
    assert len(shapes(chart, "polyline", "hollow")) == 1 and "trained 50.0" in texts(chart)
    assert score_chart([]) == ""


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-9, 1e9])
def test_a_constant_curve_is_drawn(value):
    ElementTree.fromstring(curve_chart("x", [(0, value), (1, value)]))

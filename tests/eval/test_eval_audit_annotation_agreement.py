"""Cohen's κ against values worked out by hand, and against scikit-learn over random tables."""

import math

import numpy as np
import pytest
from annotation_examples import SCORES
from sklearn.metrics import cohen_kappa_score

from eval.audit.agreement import agreement, column_percent, kappas
from eval.audit.survey import Scale, inference_scale, similarity_scale

YES_NO = Scale("?", ("yes", "no"), ("", ""), ordered=True)


def raters(table, labels):
    """Two raters' labels whose confusion table (rows: the first) is the one given."""
    cells = [
        (a, b) for a, row in zip(labels, table, strict=True) for b, n in zip(labels, row, strict=True) for _ in range(n)
    ]
    return [a for a, _ in cells], [b for _, b in cells]


def test_kappa_of_two_labels_by_hand():
    # 20 both yes, 5 yes/no, 10 no/yes, 15 both no: observed 35/50 = 0.7; expected 0.5 x 0.6 + 0.5 x 0.4 = 0.5
    found = agreement(*raters([[20, 5], [10, 15]], YES_NO.labels), YES_NO)
    assert found.n == 50 and found.counts.tolist() == [[20, 5], [10, 15]]
    assert found.same.value == pytest.approx(70)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.weighted["linear"].value == pytest.approx(0.4)  # two labels: all weights are one and the same
    # Wilson: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with z = 1.959964
    assert (found.same.low, found.same.high) == pytest.approx((56.248, 80.899), abs=0.01)


def test_weighted_kappa_of_three_labels_by_hand():
    # margins 4, 4, 2 and 5, 3, 2; expected, off the diagonal: 4x3, 4x2, 4x5, 4x2, 2x5, 2x3 of 100, linear cost 82
    scale = inference_scale()
    ordered = Scale(scale.question, scale.labels, scale.meanings, ordered=True)
    table = [[3, 1, 0], [1, 2, 1], [1, 0, 1]]
    found = agreement(*raters(table, scale.labels), ordered)
    assert found.weighted["linear"].value == pytest.approx(1 - (1 + 1 + 1 + 2) / 10 / (82 / 100))
    assert found.weighted["quadratic"].value == pytest.approx(1 - (1 + 1 + 1 + 4) / 10 / ((46 + 4 * 18) / 100))
    assert found.kappa.value == pytest.approx((0.6 - 0.36) / (1 - 0.36))


def test_labels_without_an_order_are_not_weighted():
    found = agreement(["neutral", "neutral"], ["neutral", "entailment"], inference_scale())
    assert found.weighted == {} and found.kappa.value == pytest.approx(0)


def test_many_tables_at_once_equal_scikit_learn():
    generator, labels = np.random.default_rng(5), [str(score) for score in SCORES]
    tables = generator.multinomial(40, generator.dirichlet(np.ones(16)), size=20).reshape(-1, 4, 4)
    for weights in (None, "linear", "quadratic"):
        expected = [cohen_kappa_score(*raters(table, labels), labels=labels, weights=weights) for table in tables]
        assert kappas(tables, weights) == pytest.approx(expected)


def test_intervals_hold_the_planted_kappa_in_about_95_percent_of_samples():
    # half of the second rater's labels are the first's, half are drawn at random: κ = 0.5
    generator, scale, held = np.random.default_rng(1), similarity_scale(SCORES, "x"), 0
    for trial in range(100):
        first = generator.choice(scale.labels, 100)
        second = np.where(generator.random(100) < 0.5, first, generator.choice(scale.labels, 100))
        kappa = agreement(list(first), list(second), scale, seed=trial).kappa
        held += kappa.low <= 0.5 <= kappa.high
    assert 88 <= held <= 99


def test_one_label_only_leaves_kappa_undefined():
    found = agreement(["0.5", "0.5"], ["0.5", "0.5"], similarity_scale(SCORES, "x"))
    assert found.kappa is None and found.weighted == {"linear": None, "quadratic": None}
    assert found.same.value == 100 and found.same.low < 50


def test_columns_are_percentages_of_the_generators_label():
    percent = column_percent(np.array([[19, 4, 0], [0, 12, 0], [1, 11, 0]]))
    assert percent[:, 0].tolist() == [95, 0, 5]
    assert percent[:, 1] == pytest.approx([400 / 27, 1200 / 27, 1100 / 27])
    assert all(map(math.isnan, percent[:, 2]))

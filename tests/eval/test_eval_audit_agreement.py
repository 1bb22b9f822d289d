"""Cohen κ against values worked out by hand and scikit-learn; encoders against planted human
scores.
"""

import numpy as np
import pytest
from annotation_examples import INFERENCE, SCORES, SIMILARITY, examples, survey
from sklearn.metrics import cohen_kappa_score

from sts_dino.eval.audit.agreement import (
    compute_kappas,
    correlate_cosines,
    make_report,
    measure_agreement,
)
from sts_dino.eval.audit.survey import Scale
from sts_dino.hub.errors import InputError

YES_NO = Scale("?", ("yes", "no"), ("", ""), ordered=True)


def raters(table, labels):
    """Two raters' labels whose confusion table (rows: the first) is the one given."""
    cells = [
        (a, b)
        for a, row in zip(labels, table, strict=True)
        for b, n in zip(labels, row, strict=True)
        for _ in range(n)
    ]
    return [a for a, _ in cells], [b for _, b in cells]


def test_kappa_of_two_labels_by_hand():
    # 20 both yes, 5 yes/no, 10 no/yes, 15 both no: observed 35/50 = 0.7; expected 0.5 x 0.6 + 0.5 x
    # 0.4 = 0.5
    found = measure_agreement(*raters([[20, 5], [10, 15]], YES_NO.labels), YES_NO)
    assert found.n == 50 and found.counts == [[20, 5], [10, 15]]
    assert found.same.value == pytest.approx(70)
    assert found.kappa.value == pytest.approx(0.4)
    # Wilson: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with z = 1.959964
    assert (found.same.low, found.same.high) == pytest.approx((56.248, 80.899), abs=0.01)


def test_many_tables_at_once_equal_scikit_learn():
    generator = np.random.default_rng(5)
    tables = generator.multinomial(40, generator.dirichlet(np.ones(16)), size=20).reshape(-1, 4, 4)
    for weights in (None, "linear", "quadratic"):
        expected = [
            cohen_kappa_score(*raters(table, SCORES), labels=SCORES, weights=weights)
            for table in tables
        ]
        assert compute_kappas(tables, weights) == pytest.approx(expected)


def test_intervals_hold_the_planted_kappa_in_about_95_percent_of_samples():
    # half of the second rater's labels are the first's, half are drawn at random: κ = 0.5
    generator, scale, held = np.random.default_rng(1), SIMILARITY, 0
    for trial in range(100):
        first = generator.choice(scale.labels, 100)
        second = np.where(generator.random(100) < 0.5, first, generator.choice(scale.labels, 100))
        kappa = measure_agreement(list(first), list(second), scale, seed=trial).kappa
        held += kappa.low <= 0.5 <= kappa.high
    assert 88 <= held <= 99


def test_one_label_only_leaves_kappa_undefined():
    found = measure_agreement(["0.5", "0.5"], ["0.5", "0.5"], SIMILARITY)
    assert found.kappas == {"kappa": None, "kappa_linear": None, "kappa_quadratic": None}
    assert found.same.value == 100 and found.same.low < 50


def test_intervals_hold_the_value_and_are_the_same_whoever_is_beside():
    generator = np.random.default_rng(0)
    people = generator.integers(0, 4, 200).tolist()
    noise, first = generator.normal(size=200), [f"first {row // 3}" for row in range(200)]
    cosines = {
        name: (np.array(people) + size * noise).tolist()
        for name, size in (("near", 0.2), ("far", 5))
    }
    found = correlate_cosines(people, first, cosines)
    assert list(found) == ["near", "far"] and found["near"].low > found["far"].high
    assert all(one.low < one.value < one.high for one in found.values())
    assert correlate_cosines(people, first, {"far": cosines["far"]}) == {"far": found["far"]}


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([1.0] * 60, "good: has no correlation: all answers, or all its cosines, are equal"),
        ([1.0, 0.0] * 3, "6 pairs are answered; allowed: at least 10"),
    ],
)
def test_answers_that_tell_nothing_are_refused(scores, said):
    first = [f"first {row // 3}" for row in range(len(scores))]
    with pytest.raises(InputError, match=said):
        correlate_cosines(scores, first, {"good": np.linspace(0, 1, len(scores)).tolist()})


def test_the_report_has_a_table_per_annotator_one_for_all_and_every_two(tmp_path):
    asked = survey(examples(["entailment"] * 3 + ["contradiction"] * 2, INFERENCE), tmp_path)
    for row, label in enumerate(
        ["entailment", "neutral", "entailment", "contradiction", "entailment"]
    ):
        asked.store.add("ann", row, label)
    asked.store.add("b|<i>*", 0, "entailment")
    asked.store.add("b|<i>*", 3, "neutral")
    report = make_report(asked)
    assert list(report.annotators) == ["ann", "b|<i>*"] and list(report.between) == ["ann, b|<i>*"]
    assert report.annotators["ann"].counts == [[2, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert report.pooled.counts == [[3, 0, 1], [1, 0, 1], [0, 0, 1]]
    text = report.to_markdown()
    assert "| `entailment` | 67 % | – | 50 % |" in text and "| rows | 3 | 0 | 2 |" in text
    assert "## b&#124;&#60;i&#62;&#42;" in text and "<i>" not in text and "2 of 5 answered" in text
    # observed 3/5, expected (3x3 + 1x2) / 25
    assert f"| Cohen's κ | {(0.6 - 0.44) / 0.56:.2f} [" in text
    assert (
        "All annotators together" in text and "- `neutral`: the hypothesis might be true\n" in text
    )
    assert "|  | ann, b&#124;&#60;i&#62;&#42; |\n| --- | --- |\n| rows | 2 |\n" in text

"""Cohen κ against values worked out by hand and scikit-learn; encoders against planted human scores."""

import numpy as np
import pytest
from annotation_examples import INFERENCE, SCORES, SIMILARITY
from sklearn.metrics import cohen_kappa_score

from eval.audit.agreement import (
    agreement,
    agreements,
    encoder_agreements,
    encoders_markdown,
    kappas,
    make_report,
)
from eval.audit.survey import Examples, Sample, Scale
from eval.encoders.load import Encoder
from hub.errors import InputError

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
    assert found.n == 50 and found.counts == [[20, 5], [10, 15]]
    assert found.same.value == pytest.approx(70)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.kappas["kappa_linear"].value == pytest.approx(0.4)  # two labels: all weights are one and the same
    # Wilson: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with z = 1.959964
    assert (found.same.low, found.same.high) == pytest.approx((56.248, 80.899), abs=0.01)


def test_many_tables_at_once_equal_scikit_learn():
    generator, labels = np.random.default_rng(5), [str(score) for score in SCORES]
    tables = generator.multinomial(40, generator.dirichlet(np.ones(16)), size=20).reshape(-1, 4, 4)
    for weights in (None, "linear", "quadratic"):
        expected = [cohen_kappa_score(*raters(table, labels), labels=labels, weights=weights) for table in tables]
        assert kappas(tables, weights) == pytest.approx(expected)


def test_intervals_hold_the_planted_kappa_in_about_95_percent_of_samples():
    # half of the second rater's labels are the first's, half are drawn at random: κ = 0.5
    generator, scale, held = np.random.default_rng(1), SIMILARITY, 0
    for trial in range(100):
        first = generator.choice(scale.labels, 100)
        second = np.where(generator.random(100) < 0.5, first, generator.choice(scale.labels, 100))
        kappa = agreement(list(first), list(second), scale, seed=trial).kappa
        held += kappa.low <= 0.5 <= kappa.high
    assert 88 <= held <= 99


def test_one_label_only_leaves_kappa_undefined():
    found = agreement(["0.5", "0.5"], ["0.5", "0.5"], SIMILARITY)
    assert found.kappas == {"kappa": None, "kappa_linear": None, "kappa_quadratic": None}
    assert found.same.value == 100 and found.same.low < 50


THREE_SCORES = (0.0, 0.5, 1.0)
PAIRS = 60


def sample(scale=None):
    labels = tuple(scale.labels[row % 3] if scale else f"{THREE_SCORES[row % 3]:g}" for row in range(PAIRS))
    texts = tuple((f"first {row // 3}", f"{row} {label}") for row, label in enumerate(labels))
    scale = scale or Scale("?", ("0", "0.5", "1"), ("", "", ""), ordered=True)
    examples = Examples("pairs", "default", "train", ("a", "b"), scale, texts, labels)
    return Sample(examples, 0, tuple(range(PAIRS)))


def encoder(name, noise):
    """source sentences lie on an axis; a second text's angle to it is that of its label, and some noise."""

    def embed(texts):
        found = []
        for text in texts:
            if text.startswith("first"):
                found.append([1.0, 0.0])
            else:
                row, label = text.split()
                angle = (1 - float(label)) + noise * np.random.default_rng(int(row)).normal()
                found.append([np.cos(angle), np.sin(angle)])
        return np.array(found, dtype=np.float32)

    return Encoder(name, "1", embed, 2)


def report(answers, scale=None):
    return make_report(sample(scale), answers)


def test_the_encoder_that_ranks_as_people_do_is_told_with_its_gain_over_its_base():
    one = report({"ann": {row: f"{THREE_SCORES[row % 3]:g}" for row in range(PAIRS)}})
    good, poor = encoder("good", 0.05), encoder("poor", 2.0)
    found = encoder_agreements(one, [good, poor], {"good": "poor"})
    assert found[0].spearman.value > 0.9 > 0.5 > found[1].spearman.value
    gain = found[0].gain
    assert (found[0].base, found[1].base) == ("poor", None) and gain.low > 0
    assert gain.value == pytest.approx(found[0].spearman.value - found[1].spearman.value, abs=2e-4)
    assert "good" in encoders_markdown(found) and "60 pairs" in encoders_markdown(found)


def test_intervals_hold_the_value_and_are_the_same_whoever_is_beside():
    generator = np.random.default_rng(0)
    people = generator.integers(0, 4, 200).tolist()
    noise, first = generator.normal(size=200), [f"first {row // 3}" for row in range(200)]
    cosines = {name: (np.array(people) + size * noise).tolist() for name, size in (("near", 0.2), ("far", 5))}
    near, far = agreements(people, first, cosines)
    assert (near.encoder, far.encoder) == ("near", "far") and near.spearman.low > far.spearman.high
    assert all(one.spearman.low < one.spearman.value < one.spearman.high for one in (near, far))
    assert agreements(people, first, {"far": cosines["far"]}) == [far]


@pytest.mark.parametrize(
    ("answers", "scale", "said"),
    [
        (dict.fromkeys(range(PAIRS), "0.5"), None, "answers that are all the same"),
        (dict.fromkeys(range(5), "1"), None, "5 pairs are answered; allowed: at least 10"),
        ({0: "neutral"}, INFERENCE, "is for pairs with scores"),
    ],
)
def test_answers_that_tell_nothing_are_refused(answers, scale, said):
    with pytest.raises(InputError, match=said):
        encoder_agreements(report({"ann": answers}, scale), [encoder("good", 0.1)], {})

"""Encoders beside people: correlations with planted answers, and what is refused."""

import numpy as np
import pytest

from eval.audit.agreement import (
    agreements,
    encoder_agreements,
    encoder_facts,
    encoders_markdown,
    make_report,
    mean_scores,
)
from eval.audit.survey import Examples, Sample, inference_scale, similarity_scale
from eval.encoders.load import Encoder
from hub.errors import InputError

SCORES = (0.0, 0.5, 1.0)
PAIRS = 60


def sample(scale=None):
    labels = tuple(scale.labels[row % 3] if scale else f"{SCORES[row % 3]:g}" for row in range(PAIRS))
    texts = tuple((f"first {row // 3}", f"{row} {label}") for row, label in enumerate(labels))
    scale = scale or similarity_scale(SCORES, "pairs")
    examples = Examples("pairs", "default", "train", ("a", "b"), scale, texts, labels)
    return Sample(examples, 0, tuple(range(PAIRS)))


def encoder(name, noise):
    """First texts lie on an axis; a second text's angle to it is that of its label, and some noise."""

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
    one = report({"ann": {row: f"{SCORES[row % 3]:g}" for row in range(PAIRS)}})
    good, poor = encoder("good", 0.05), encoder("poor", 2.0)
    found = encoder_agreements(one, [good, poor], {"good": "poor"})
    assert found[0].spearman.value > 0.9 > 0.5 > found[1].spearman.value
    assert found[0].over is not None and found[1].over is None
    name, gain = found[0].over
    assert name == "poor" and gain.low > 0
    assert gain.value == pytest.approx(found[0].spearman.value - found[1].spearman.value, abs=2e-4)
    assert "good" in encoders_markdown(found) and "60 pairs" in encoders_markdown(found)
    assert encoder_facts(found)[0]["over"]["encoder"] == "poor"


def test_several_people_count_by_their_mean():
    assert mean_scores({"ann": {0: "0", 1: "1"}, "bob": {0: "0.5", 1: "1"}}) == {0: 0.25, 1: 1.0}


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
        ({0: "neutral"}, inference_scale(), "is for pairs with scores"),
    ],
)
def test_answers_that_tell_nothing_are_refused(answers, scale, said):
    with pytest.raises(InputError, match=said):
        encoder_agreements(report({"ann": answers}, scale), [encoder("good", 0.1)], {})

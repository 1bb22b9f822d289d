"""DINO's table 3 by a judge: cosines become people's similarities, percentages are of what was asked for."""

import numpy as np
import pytest

from benchmarks.papers.dino.judged_labels import confusion, people, similarities, trained_on
from hub.errors import InputError


def test_a_cosine_is_read_as_the_similarity_that_people_gave_such_pairs():
    cosines, gold = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert similarities(cosines, gold, [-0.5, 0.1, 0.5, 0.9, 1.5]).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_percentages_are_of_the_score_that_was_asked_for():
    scores, judged = np.array([0.1, 0.1, 0.1, 0.1, 0.9, 0.9]), np.array([0.0, 0.2, 0.3, 0.8, 0.55, 0.4])
    found = confusion(scores, judged, ["a", "b", "c", "d", "a", "b"])
    assert {row: {name: one.score for name, one in of.items()} for row, of in found.items()} == {
        "judged 0.1": {"0.1": 75.0, "0.9": 50.0},
        "judged 0.9": {"0.1": 25.0, "0.9": 50.0},
    }
    one = found["judged 0.1"]["0.1"]
    assert one.low < one.score < one.high <= 100


def test_intervals_draw_first_texts_and_not_pairs():
    """Ten copies of each pair under one first text tell no more than one."""
    scores, judged = np.array([0.1, 0.9, 0.1, 0.9] * 5), np.array([0.0, 1.0, 1.0, 0.0] * 5)
    sources = [str(number) for number in range(10) for _ in range(2)]
    once = confusion(scores, judged, sources)
    assert confusion(np.repeat(scores, 10), np.repeat(judged, 10), [one for one in sources for _ in range(10)]) == once


def test_peoples_scores_are_between_0_and_1_beside_their_sentences():
    gold, first, second = people()
    assert len(gold) == len(first) == len(second) == 1500
    assert (gold[0], first[0], second[0]) == (
        1.0,
        "A man with a hard hat is dancing.",
        "A man wearing a hard hat is dancing.",
    )


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a run directory"):
        trained_on(tmp_path)

"""A limit draws rows by a seed, each as likely as another, every subset and class with its share."""

import numpy as np
import pytest

from eval.tasks.rows import Captions, LabelledPairs, LabelledTexts, ScoredPairs, drawn, spread


def pairs(sizes: tuple[int, ...]) -> ScoredPairs:
    """Pairs whose texts and gold score are their number, in subsets of these sizes."""
    n, ends = sum(sizes), np.cumsum(sizes).tolist()
    subsets = tuple((f"s{number}", end - size, end) for number, (size, end) in enumerate(zip(sizes, ends, strict=True)))
    texts = tuple(map(str, range(n)))
    return ScoredPairs(texts, texts, np.arange(n, dtype=float), "h" * 64, subsets)


def test_every_row_is_as_likely_and_every_group_has_its_share():
    strata = np.repeat([0, 1, 2], [10, 60, 30])
    counts = np.zeros(100)
    for seed in range(2000):
        chosen = spread(strata, 20, seed)
        assert len(set(chosen.tolist())) == 20 and (np.diff(chosen) > 0).all()
        assert np.bincount(strata[chosen]).tolist() == [2, 12, 6]
        counts[chosen] += 1
    assert np.abs(counts / 2000 - 0.2).max() < 0.04  # 4.5 standard deviations


def test_the_drawn_pairs_are_the_datas_with_their_subsets():
    rows = pairs((50, 30, 20))
    part = drawn(rows, 10, 7)
    assert part.first == part.second == tuple(str(int(gold)) for gold in part.gold)
    assert [(name, stop - start) for name, start, stop in part.subsets] == [("s0", 5), ("s1", 3), ("s2", 2)]
    for name, start, stop in part.subsets:
        of = next((low, high) for found, low, high in rows.subsets if found == name)
        assert all(of[0] <= gold < of[1] for gold in part.gold[start:stop])
    assert part.sha256 == rows.sha256  # of the whole: the limit is told beside it
    assert part.first != rows.first[:10]
    assert drawn(rows, 10, 7).first == part.first != drawn(rows, 10, 8).first


@pytest.mark.parametrize("limit", [None, 100, 1000])
def test_no_limit_below_the_number_of_rows_changes_nothing(limit):
    rows = pairs((60, 40))
    assert drawn(rows, limit, 1) is rows


def test_labelled_rows_keep_their_labels():
    labels = np.repeat([0, 1], 50)
    texts = tuple(f"{label} {row}" for row, label in enumerate(labels))
    single = drawn(LabelledTexts(texts, labels, ("a", "b"), "h"), 10, 3)
    both = drawn(LabelledPairs(texts, texts, labels, ("a", "b"), "h"), 10, 3)
    for part in (single.text, both.first, both.second):
        assert [int(text.split()[0]) for text in part] == single.labels.tolist() == [0] * 5 + [1] * 5


def test_captions_are_those_of_whole_images():
    image_of = np.repeat(np.arange(20), 5)
    rows = Captions(tuple(map(str, image_of)), np.zeros((20, 4), np.float32), image_of, "h")
    part = drawn(rows, 15, 1)
    assert np.unique(part.image_of, return_counts=True)[1].tolist() == [5, 5, 5]
    assert part.text == tuple(map(str, part.image_of))
    assert part.image_of.max() > 2  # not the first three

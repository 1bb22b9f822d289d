"""The toolkit's order of rows and features, blank lines, seeds, predictions in the data's order."""

from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.metrics import f1_score

from benchmarks.evaluation import reference_probe as reference
from eval.scoring.probe import UNREGULARISED, cross_validated
from eval.scoring.transfer import f1, measure_transfer, pair_features, toolkit_order
from eval.tasks.registry import find_task
from eval.tasks.rows import LabelledPairs, LabelledTexts, ScoredPairs
from hub.errors import InputError

WORDS = ("good", "bad", "film", "plot", "dull", "fine", "cast", "slow")
VECTORS = {word: np.random.default_rng(number).normal(size=12) for number, word in enumerate(WORDS)} | {
    ".": np.ones(12)
}


def embed(texts: Sequence[str]) -> np.ndarray:
    """Mean word vector; a text without words has none."""
    return np.array([np.mean([VECTORS[word] for word in text.split()], axis=0) for text in texts], dtype=np.float32)


def sentences(n: int, seed: int) -> tuple[str, ...]:
    draw = np.random.default_rng(seed)
    return tuple(" ".join(draw.choice(WORDS, size=draw.integers(1, 7))) for _ in range(n))


def texts(n: int, seed: int, k: int = 2) -> LabelledTexts:
    """Classes that depend on the words, with some noise."""
    text = sentences(n, seed)
    noise = np.random.default_rng(seed + 1).normal(scale=1.0, size=n)
    value = embed(text)[:, 0] + 0.3 * noise
    labels = np.searchsorted(np.quantile(value, np.arange(1, k) / k), value).astype(np.int64)
    return LabelledTexts(text, labels, tuple(f"class {i}" for i in range(k)), sha256="")


def pairs(n: int, seed: int, classes: tuple[str, ...]) -> LabelledPairs:
    first, second = sentences(n, seed), sentences(n, seed + 50)
    value = np.linalg.norm(embed(first) - embed(second), axis=1)
    labels = np.searchsorted(np.quantile(value, np.arange(1, len(classes)) / len(classes)), value).astype(np.int64)
    return LabelledPairs(first, second, labels, classes, sha256="")


def in_order(rows: LabelledTexts) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Sorted as the toolkit does it, with sorted() over whole rows."""
    order = sorted(range(len(rows)), key=lambda row: (len(rows.text[row].split()), rows.labels[row]))
    return embed([rows.text[row] for row in order]), rows.labels[order], order


def test_texts_are_sorted_as_the_toolkit_sorts_them():
    rows = texts(80, seed=1, k=4)
    assert toolkit_order(rows).tolist() == in_order(rows)[2]


def test_pairs_are_sorted_by_both_texts_and_snli_by_the_second_and_the_name():
    rows = pairs(80, 3, ("entailment", "neutral", "contradiction"))
    sizes = [(len(a.split()), len(b.split())) for a, b in zip(rows.first, rows.second, strict=True)]
    plain = sorted(range(80), key=lambda row: (*sizes[row], rows.labels[row]))
    snli = sorted(range(80), key=lambda row: (*sizes[row][::-1], rows.classes[rows.labels[row]]))
    assert toolkit_order(rows).tolist() == plain
    assert toolkit_order(rows, as_snli=True).tolist() == snli
    scored = ScoredPairs(rows.first, rows.second, rows.labels * 1.5, sha256="")
    assert toolkit_order(scored).tolist() == plain


def test_a_blank_line_has_no_tokens_and_is_encoded_as_a_full_stop():
    rows = LabelledTexts(("good", "", "bad plot", ""), np.array([1, 1, 0, 0]), ("0", "1"), sha256="")
    assert toolkit_order(rows).tolist() == [3, 1, 0, 2]
    data = texts(60, seed=2)
    blank = LabelledTexts(("", *data.text[1:]), data.labels, data.classes, sha256="")
    seen: list[str] = []

    def watch(wanted: Sequence[str]) -> np.ndarray:
        seen.extend(wanted)
        return embed(wanted)

    measure_transfer(find_task("cr/lbfgs"), {"all": blank}, watch, (1111,))
    assert "." in seen and "" not in seen


def test_features_of_pairs_are_in_the_toolkits_order():
    rows = pairs(20, 5, ("0", "1"))
    order = toolkit_order(rows)
    u, v = (embed([side[row] for row in order]) for side in (rows.first, rows.second))
    np.testing.assert_array_equal(pair_features(rows, order, embed), np.c_[np.abs(u - v), u * v])
    np.testing.assert_array_equal(pair_features(rows, order, embed, as_snli=True), np.c_[u, v, u * v, np.abs(u - v)])


def test_predictions_come_back_in_the_datas_order():
    data = {"train": texts(130, seed=7, k=3), "test": texts(60, seed=8, k=3)}
    measured = measure_transfer(find_task("trec/senteval"), data, embed, (1111,))
    (X, y, _), (X_test, y_test, order) = in_order(data["train"]), in_order(data["test"])
    answer = cross_validated(X, y, X_test, y_test)
    assert measured.score == answer.accuracy
    assert measured.other["dev_accuracy"] == answer.dev_accuracy
    assert np.array_equal(measured.outcomes.predicted[order], answer.predicted)
    assert np.array_equal(measured.outcomes.gold, data["test"].labels)
    assert round(100 * float((measured.outcomes.gold == measured.outcomes.predicted).mean()), 2) == measured.score
    assert measured.seeds == (1111,) and measured.seconds["probing"] > 0


def test_snli_has_no_regularisation_and_its_own_features_and_pace():
    names = ("entailment", "neutral", "contradiction")
    data = {split: pairs(70, seed, names) for split, seed in (("train", 11), ("validation", 12), ("test", 13))}
    measured = measure_transfer(find_task("snli/senteval"), data, embed, (1111,))
    sets = []
    for rows in data.values():
        order = toolkit_order(rows, as_snli=True)
        sets += [pair_features(rows, order, embed, as_snli=True), rows.labels[order]]
    known = reference.held_out(*sets, grid=UNREGULARISED, max_epoch=15, epoch_size=1)
    usual = reference.held_out(*sets, grid=UNREGULARISED)
    assert (measured.score, measured.other["dev_accuracy"]) == (known.accuracy, known.dev_accuracy)
    assert known.dev_accuracy != usual.dev_accuracy, "the pace must matter, or it is not tested"


def test_paraphrases_have_f1_too():
    data = {"train": pairs(90, 21, ("0", "1")), "test": pairs(60, 22, ("0", "1"))}
    measured = measure_transfer(find_task("mrpc/lbfgs"), data, embed, (1111,))
    known = f1_score(measured.outcomes.gold, measured.outcomes.predicted)
    assert measured.other["f1"] == pytest.approx(100 * known, abs=0.005)
    assert f1(np.array([0, 0]), np.array([0, 0])) == 0


@pytest.mark.parametrize("mode", ["senteval", "lbfgs"])
@pytest.mark.parametrize(("name", "k"), [("cr", 2), ("trec", 3), ("sst5", 3)])
def test_a_validation_score_is_the_dev_accuracy_of_the_test_task_and_reads_no_test_row(name, k, mode):
    test, task = find_task(f"{name}/{mode}"), find_task(f"{name}/{mode}-validation")
    data = {split: texts(120 + seed, seed, k) for seed, split in enumerate(test.reads(test.default_split), 61)}
    read = {split: data[split] for split in task.reads(task.default_split)}
    assert "test" not in read
    measured, whole = (measure_transfer(one, rows, embed, (1111,)) for one, rows in ((task, read), (test, data)))
    assert measured.score == measured.other["dev_accuracy"] == whole.other["dev_accuracy"]
    assert np.array_equal(measured.outcomes.gold, read[task.default_split].labels)
    by_rows = 100 * float((measured.outcomes.gold == measured.outcomes.predicted).mean())
    assert by_rows == pytest.approx(measured.score, abs=0.01 if name == "sst5" else 3)
    assert "f1" not in measured.other


def test_snlis_validation_has_its_own_pace():
    names = ("entailment", "neutral", "contradiction")
    data = {split: pairs(70, seed, names) for split, seed in (("train", 11), ("validation", 12))}
    measured = measure_transfer(find_task("snli/senteval-validation"), data, embed, (1111,))
    whole = measure_transfer(find_task("snli/senteval"), data | {"test": pairs(70, 13, names)}, embed, (1111,))
    assert measured.score == whole.other["dev_accuracy"]


def test_several_seeds_give_a_mean_and_a_spread():
    data = {split: texts(60, seed, k=3) for split, seed in (("train", 31), ("validation", 32), ("test", 33))}
    task = find_task("sst5/senteval")
    alone = [measure_transfer(task, data, embed, (seed,)) for seed in (1, 2, 3)]
    together = measure_transfer(task, data, embed, (1, 2, 3))
    scores = [one.score for one in alone]
    assert len(set(scores)) > 1
    assert together.score == pytest.approx(np.mean(scores))
    assert together.other["sd_over_seeds"] == pytest.approx(np.std(scores, ddof=1))
    assert np.array_equal(together.outcomes.predicted, alone[0].outcomes.predicted)
    assert together.seeds == (1, 2, 3)
    assert "sd_over_seeds" not in alone[0].other


def test_errors_name_the_task():
    with pytest.raises(InputError, match=r"cr/senteval: probe: a class has \d rows, 10 folds"):
        measure_transfer(find_task("cr/senteval"), {"all": texts(16, seed=41)}, embed, (1111,))
    with pytest.raises(InputError, match="cr/lbfgs: probe, train rows: 60 rows hold NaN"):
        measure_transfer(find_task("cr/lbfgs"), {"all": texts(60, seed=42)}, lambda t: embed(t) * np.nan, (1111,))

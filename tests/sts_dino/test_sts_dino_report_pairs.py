"""Random pairs of a dataset: which are drawn, which fit worst, and similarities that are computed once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tiny_lm import make_tokenizer

from eval.audit.source import Batch, DatasetRows
from eval.encoders.load import content_hash
from sts_dino.report.pairs import Kept, Pair, Sample, cosines_of, draw, misfits


class Rows(DatasetRows):
    """Rows of one split in batches of three: text i has label i mod 2, the last one a label of its own."""

    def batches(self, sample=None, seed=0):
        for start in range(0, self.total, 3):
            rows = range(start, min(start + 3, self.total))
            texts = {"sentence1": [f"a{i}" for i in rows], "sentence2": [f"b{i}" for i in rows]}
            labels = ["rare" if i == self.total - 1 else str(i % 2) for i in rows]
            yield Batch("train", np.array(rows), texts, labels, [i / 100 for i in rows])


def rows(total: int) -> Rows:
    return Rows("tiny", "r", "postprocessed", "sts", {"train": total}, (), "target", lambda split, columns: iter(()))


def test_pairs_are_drawn_by_label_without_replacement_and_the_same_each_time():
    found = draw(rows(50), ["1", "missing", "0"], count=10, seed=1)
    assert list(found.pairs) == ["1", "0", "rare"] and found.totals == {"1": 24, "0": 25, "rare": 1}
    assert [len({*pairs}) for pairs in found.pairs.values()] == [10, 10, 1]
    assert found.pairs["rare"] == (Pair("a49", "b49", 0.49),)
    assert all(int(pair.first[1:]) % 2 == 1 for pair in found.pairs["1"])
    assert found == draw(rows(50), ["1", "0"], count=10, seed=1) != draw(rows(50), ["1", "0"], count=10, seed=2)


def test_each_row_of_a_label_is_as_likely_as_another_and_in_random_order():
    first = Counter(draw(rows(21), [], count=5, seed=seed).pairs["1"][0].first for seed in range(400))
    assert len(first) == 10 and min(first.values()) > 15 and max(first.values()) < 80  # 40 each


def test_the_worst_pairs_are_the_farthest_from_their_labels_median_on_either_side():
    pairs = {label: tuple(Pair(f"{label}{i}", "") for i in range(5)) for label in ("high", "low")}
    sample = Sample("c", pairs, {})
    cosines = {"high": [0.9, 0.9, 0.8, 0.1, 0.9], "low": [0.1, 0.15, 0.1, 0.6, 0.1]}
    found = misfits(sample, cosines, 3)
    assert [(one.pair.first, one.cosine, one.median) for one in found[:2]] == [("high3", 0.1, 0.9), ("low3", 0.6, 0.1)]
    assert found[2].pair.first == "high2"


def make_encoder(folder: Path) -> Path:
    encoder = SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=8)])
    encoder.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_similarities_are_those_of_the_encoder_and_computed_once(tmp_path, monkeypatch):
    folder, kept = make_encoder(tmp_path / "encoder"), tmp_path / "report.cosines.json"
    sample = Sample("c", {"1": (Pair("A man plays.", "A man plays."), Pair("A man", "Two dogs run"))}, {"1": 2})
    found = cosines_of(sample, "rows", {"trained": folder}, kept, content_hash)
    vectors = SentenceTransformer(str(folder), device="cpu").encode(["A man", "Two dogs run"])
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert found["trained"]["1"] == pytest.approx([1, cosine], abs=1e-5)

    monkeypatch.setattr("eval.encoders.load.load_encoder", None)  # nothing may be encoded again
    assert cosines_of(sample, "rows", {"trained": folder}, kept, content_hash) == found
    with pytest.raises(TypeError):
        cosines_of(sample, "other rows", {"trained": folder}, kept, content_hash)
    (folder / "modules.json").write_text((folder / "modules.json").read_text() + " ")
    with pytest.raises(TypeError):
        cosines_of(sample, "rows", {"trained": folder}, kept, content_hash)


@pytest.mark.parametrize("content", ["", "[]", '{"similarities": {"x": 1}}'])
def test_a_damaged_file_of_similarities_is_as_none(tmp_path, content):
    (tmp_path / "kept.json").write_text(content)
    assert Kept.read(tmp_path / "kept.json") == Kept.read(tmp_path / "absent.json") == Kept()

"""Planted evaluation sentences and light edits of them are found, unrelated text is not; the ledger counts them."""

import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from benchmarks.evaluation.decontamination import edited, near_pairs
from eval.audit.evaluation_sentences import (
    SCHEME,
    SEED,
    Banding,
    EvaluationSet,
    MatchSettings,
    NearIndex,
    Sentences,
    _gram_hash,
    grams,
    jaccard,
    read_evaluation_sets,
    signatures,
)
from eval.audit.text_forms import normal_form
from hub.errors import InputError

DATA = os.environ.get("STS_DINO_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="STS_DINO_DATA names no folder of evaluation data")
PREMISES = Path("assets/demo-data/premises.txt")  # sentences of Wikipedia


@pytest.fixture(scope="module")
def shipped():
    """The STS Benchmark's validation and test splits, which the repository ships, and an index of them."""
    evaluation = read_evaluation_sets()
    return evaluation, Sentences(evaluation.sets)


def texts_of_test(evaluation) -> list[str]:
    return list(
        dict.fromkeys(text for one in evaluation.sets if one.split == "test" for side in one.sides for text in side)
    )


def planted_and_edited(texts: list[str], seed: int) -> tuple[list[str], list[str]]:
    """200 sentences of any length, and 200 others lightly edited."""
    draw = random.Random(seed)
    chosen = draw.sample(texts, 400)
    words = [word for text in texts[:2000] for word in text.split()]
    return chosen[:200], [edited(text, words, draw) for text in chosen[200:]]


def found(sentences: Sentences, texts: list[str], kinds: set[str]) -> int:
    return sum(any(match.kind in kinds for match in matches) for matches in sentences.matches(texts))


def test_all_planted_sentences_and_nearly_all_light_edits_are_found(shipped):
    evaluation, sentences = shipped
    planted, edits = planted_and_edited(texts_of_test(evaluation), seed=0)
    assert found(sentences, planted, {"exact"}) == 200
    assert found(sentences, edits, {"exact", "normal", "near"}) >= 190


def test_unrelated_text_is_not_found(shipped):
    texts = PREMISES.read_text(encoding="utf-8").splitlines()
    assert len(texts) == 300
    assert found(shipped[1], texts, {"exact", "normal", "near", "short"}) == 0


@pytest.mark.slow("reads whole evaluation sets")
@needs_data
def test_planted_sentences_are_found_among_all_sts_and_sick_sentences():
    evaluation = read_evaluation_sets(originals=Path(DATA) / "sts-original")
    assert evaluation.absent == ()
    sentences = Sentences(evaluation.sets)
    texts = texts_of_test(evaluation)
    for seed in range(3):
        planted, edits = planted_and_edited(texts, seed)
        assert found(sentences, planted, {"exact", "short"}) == 200
        assert found(sentences, edits, {"exact", "normal", "near"}) >= 190
    unrelated = (Path(DATA) / "text/wikipedia-sentences-10k.txt").read_text(encoding="utf-8").splitlines()[:3000]
    assert found(sentences, unrelated, {"exact", "normal", "near"}) <= 3


def test_another_form_of_a_sentence_is_the_sentence():
    texts = ("I don't think it's over, said Ms. O'Neill.", "He lives in the U.S. and can not vote")
    sentences = Sentences([EvaluationSet("stsb", "test", "stsb", (texts,), "0")])
    tokenised = ["i do n't think it 's over , said ms . o'neill .", "he lives in the u.s. and cannot vote ."]
    assert [found[0].kind for found in sentences.matches(tokenised)] == ["normal", "normal"]
    assert [found[0].kind for found in sentences.matches(texts)] == ["exact", "exact"]


def test_the_two_forms_of_a_set_are_one_place():
    plain = EvaluationSet("sts12", "test", "sts12-original", (("A dog's bone is here.",), ("Another one here.",)), "0")
    tokens = EvaluationSet("sts12", "test", "sts12", (("a dog 's bone is here .",), ("another one here .",)), "1")
    sentences = Sentences([plain, tokens])
    for text in ("A dog's bone is here.", "a dog 's bone is here ."):
        (match,) = sentences.matches([text])[0]
        assert (match.kind, match.place.place, match.place.row, match.place.side) == ("exact", "sts12/test", 0, 1)
    assert len(sentences) == 2


def test_short_texts_match_by_chance_only():
    sentences = Sentences([EvaluationSet("sst2", "test", "sst2", (("a good film", "a man is dancing there"),), "0")])
    kinds = [[match.kind for match in one] for one in sentences.matches(["A good film!", "a good filn", "", "…"])]
    assert kinds == [["short"], [], [], []]
    assert [match.kind for match in sentences.matches(["A man is dancing here"])[0]] == ["near"]


def test_candidates_are_those_of_datasketch(shipped):
    forms = list(dict.fromkeys(normal_form(text) for text in texts_of_test(shipped[0])))[:600]
    banding = Banding(bands=16, rows=3)
    index, library = NearIndex(forms, banding), MinHashLSH(num_perm=48, params=(16, 3))
    sketches = []
    for number, form in enumerate(forms):
        sketch = MinHash(48, seed=SEED, scheme=SCHEME, hashfunc=_gram_hash)
        sketch.update_batch(grams(form, 3))
        library.insert(number, sketch)
        sketches.append(sketch)
    assert (signatures(forms, banding) == np.stack([sketch.hashvalues for sketch in sketches])).all()
    ours = set(zip(*index.candidates(forms), strict=True))
    assert ours == {(number, place) for number, sketch in enumerate(sketches) for place in library.query(sketch)}
    assert len(ours) > len(forms)


def test_near_matches_have_the_similarity_they_say(shipped):
    forms = list(dict.fromkeys(normal_form(text) for text in texts_of_test(shipped[0])))[:300]
    index = NearIndex(forms, Banding.at(0.5))
    for form, near in zip(forms[:100], index.near(forms[:100], 0.5), strict=True):
        assert (form, 1.0) == (forms[near[0][0]], near[0][1])
        for place, similarity in near:
            assert similarity == jaccard(grams(form, 3), grams(forms[place], 3))
            assert similarity >= 0.5
    empty = NearIndex([], Banding.at(0.5))
    assert index.near([], 0.5) == empty.near([], 0.5) == []
    assert empty.near(["abc"], 0.5) == [[]]


@pytest.mark.parametrize("threshold", [0.3, 0.4, 0.5, 0.7])
def test_pairs_at_any_threshold_are_found(shipped, threshold):
    """Every pair is known from a sparse product. 32 bands of 4 rows found 0.60, 0.86, 0.97 and all of them."""
    forms = list(dict.fromkeys(normal_form(text) for text in texts_of_test(shipped[0])))[:1500]
    edits = [form[place % 9 :] + other[: place % 40] for place, (form, other) in enumerate(pairwise(forms))]
    wanted = near_pairs(forms, edits, threshold).keys()
    near = NearIndex(forms, Banding.at(threshold)).near(edits, threshold)
    pairs = {(query, place) for query, found in enumerate(near) for place, _ in found}
    assert len(wanted) > 200 and pairs <= wanted
    assert len(pairs) >= 0.985 * len(wanted)


@pytest.mark.parametrize("threshold", [0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 0.95, 1.0])
def test_the_banding_follows_from_the_threshold(threshold):
    banding = Banding.at(threshold)
    assert banding.recall(threshold) >= 0.99
    assert banding.permutations <= 768
    assert banding.recall(0.05) < 0.05  # unrelated texts are no candidates
    assert MatchSettings(similarity=threshold).recall == pytest.approx(banding.recall(threshold), abs=1e-4)


def test_what_is_checked_is_said(tmp_path, shipped):
    places = [(one.place, len(one.sides[0])) for one in shipped[0].sets]
    assert places == [("stsb/validation", 1500), ("stsb/test", 1379)]
    with pytest.raises(InputError, match="no source of its data is given"):
        read_evaluation_sets(names=["sts12"])
    with pytest.raises(InputError, match=r"unknown name 'sst12'.*did you mean"):
        read_evaluation_sets(names=["sst12"])
    with pytest.raises(InputError, match="no such directory"):
        read_evaluation_sets(tmp_path / "nowhere", names=["sts12"])


def test_settings_are_a_choice():
    one = [EvaluationSet("stsb", "test", "stsb", (("A man is playing a guitar on stage",),), "0")]
    near = "A man is playing a big guitar on a stage"
    assert Sentences(one).matches([near])[0]
    assert not Sentences(one, MatchSettings(similarity=0.95)).matches([near])[0]

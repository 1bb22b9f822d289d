"""The benchmark on real text: nothing of the evaluation is trained on, material and recipes are what they say."""

import json
import os
import random
from pathlib import Path

import pytest
import yaml

from benchmarks.real_text import Held, plain, read_captions, read_text, words
from benchmarks.text_families import FAMILIES, recipe_of
from benchmarks.text_material import POOL, caption_triplets, inference_triplets, scored_pairs, write_run
from benchmarks.training_on_text import STSB, held_out, markdown
from hub.recipe import ModelRecipe
from hub.recipe_file import read_yaml
from hub.run_dir import require_complete
from hub.schema import TRIPLET
from hub.shards import read_shard, write_text

DATA = os.environ.get("STS_DINO_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="STS_DINO_DATA names no folder of evaluation data")


def test_sentences_are_compared_by_their_words():
    assert words('A man, playing "guitar" .') == "a man playing guitar"


@pytest.mark.parametrize(
    ("sentence", "mark"),
    [
        ("a MAN is playing the guitar!", 2),  # the same words
        ("A man is playing the guitar loudly.", 1),  # 6 of 7 distinct words
        ("Is the man playing a guitar?", 1),  # the same words in another order
        ("A man is playing the drums today.", 0),  # 5 of 8
        ("Two dogs run.", 0),
        ("", 0),
    ],
)
def test_held_sentences_and_near_ones_are_told(sentence, mark):
    held = Held(["A man is playing the guitar.", "Stocks fell on Monday."])
    assert held.alike(["Unrelated words here.", sentence]).tolist() == [0, mark]


def test_tokenised_text_is_written_as_people_do():
    assert plain("He does n't know , does he ?") == "He doesn't know, does he?"
    assert plain("60 centimetres ( 24 in ) and 8 @.@ 5 , the dog 's") == "60 centimetres (24 in) and 8.5, the dog's"


def images(count):
    return [tuple(f"caption {n} of image number{i} thing{i % 40}" for n in range(5)) for i in range(count)]


def test_triplets_of_captions_take_the_most_alike_other_image():
    rows = caption_triplets(images(2 * POOL))
    assert len(rows) == 2 * POOL
    for place, row in enumerate(rows):
        number = int(row["negative"].split("number")[1].split()[0])
        assert number != place
        assert number // POOL == place // POOL
        assert number % 40 == place % 40  # the shared rare word
        assert row["anchor"] != row["positive"]
        assert row["anchor"].split("number")[1] == row["positive"].split("number")[1]


def test_triplets_of_inference_need_both_labels():
    rows = [
        ("p", "yes", "entailment"),
        ("p", "no", "contradiction"),
        ("q", "yes", "entailment"),
        ("p", "hm", "neutral"),
    ]
    assert inference_triplets(rows) == [{"anchor": "p", "positive": "yes", "negative": "no"}]


def test_scored_pairs_hold_a_third_of_each_label(monkeypatch):
    monkeypatch.setattr("benchmarks.text_material.PAIRS", 540)
    monkeypatch.setattr("benchmarks.text_material.VALIDATION", 60)
    monkeypatch.setattr("benchmarks.text_material.POOL", 50)
    inference = [(f"p{i}", f"h{i}", label) for i in range(150) for label in ("entailment", "neutral", "contradiction")]
    rows = scored_pairs(images(800), inference, random.Random(1))
    counts = {score: sum(row["score"] == score for row in rows) for score in (0.9, 0.5, 0.1)}
    assert counts == {0.9: 200, 0.5: 200, 0.1: 200}
    image = {score: [] for score in counts}
    for row in rows:
        if "number" in row["sentence1"]:
            first, second = (row[key].split("number")[1].split()[0] for key in ("sentence1", "sentence2"))
            image[row["score"]].append(first == second)
    assert all(image[0.9]) and not any(image[0.5]) and not any(image[0.1])


def test_material_is_a_finished_run_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.text_material.VALIDATION", 2)
    rows = [{"anchor": f"a{i}", "positive": f"p{i}", "negative": f"n{i}"} for i in range(5)]
    write_run(tmp_path / "t", "triplet", TRIPLET, rows)
    files = require_complete(tmp_path / "t").files
    found = {file.split: read_shard(tmp_path / "t" / file.path) for file in files}
    assert found == {"train": rows[:3], "validation": rows[3:]}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_a_recipe_in_the_papers_terms(name, tmp_path):

    write_text(tmp_path / "r.yaml", yaml.safe_dump(recipe_of(name, FAMILIES[name], tmp_path, STSB["validation"], 1)))
    recipe = ModelRecipe.model_validate(read_yaml(tmp_path / "r.yaml"))
    assert [(task.task, task.split) for task in recipe.evaluation] == [("stsb/cosine", "validation")]
    assert not recipe.validation  # never chosen by what it is scored on


def test_the_table_shows_failures_and_intervals_with_zero():
    score = {"main_score": 50.0, "low": 48.0, "high": 52.0}
    told = {"family": "F", "objective": "O", "data": "D"}
    good = {**told, "minutes": 2.0, "before": score, "after": score}
    families = {
        "a": {**good, "gain": {"difference": 0.1, "low": -0.2, "high": 0.4}, "excludes_zero": False},
        "b": {**told, "failed": "training.run: error: a | b"},
    }
    lines = markdown({"families": families}).splitlines()
    assert lines[2].endswith("| 2.0 | 50.00 [48.00, 52.00] | 50.00 [48.00, 52.00] | +0.10 [-0.20, +0.40] | **no** |")
    assert lines[3].endswith("failed: training.run: error: a / b |")
    assert {line.count("|") for line in lines} == {9}


@needs_data
def test_no_evaluation_sentence_is_left_in_the_text():
    text = read_text(Path(DATA), held_out())
    known = {
        words(sentence)
        for path in STSB.values()
        for line in path.read_text(encoding="utf-8").split("\n")
        for sentence in line.split("\t")[5:7]
    } - {""}
    left = [caption for image in text.captions for caption in image]
    left += [sentence for row in text.inference for sentence in row[:2]]
    assert not known & {words(sentence) for sentence in left}
    assert known & {words(caption) for image in read_captions(Path(DATA)) for caption in image}  # there were some
    assert text.removed["captions"]["groups"] == 29_000 - len(text.captions) > 0
    assert json.dumps(text.removed)

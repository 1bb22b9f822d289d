"""Rows of every published form as people are asked about them."""

import re
import shutil

import pytest
import yaml
from small_runs import small_recipe, small_run
from training_inputs import sts_rows, triplet_rows, write_dataset

from eval.audit.source import find_rows, label_meanings
from eval.audit.survey import in_words, inference_scale, page_words, read_examples, words_in
from hub.contract.recipe_file import fingerprint, resolved
from hub.contract.run_dir import read_manifest
from hub.contract.schema import PAIR_CLASS, TRIPLET, published_features
from hub.errors import InputError
from sts_dino.proposals.recipes import languages


def examples_of(place, config=None, split="train"):
    return read_examples(find_rows(str(place), config, split))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for form in ("sts", "nli", "text"):
        small_run(folder / form, small_recipe(form))
    return folder


def test_scored_pairs_are_asked_about_on_the_scale_of_their_scores(runs):
    examples = examples_of(runs / "sts")
    assert (examples.name, examples.config, examples.split) == ("small-sts", "postprocessed", "train")
    assert examples.scale.labels == ("0", "0.1", "0.5", "0.9") and examples.headings == ("Sentence 1", "Sentence 2")
    assert len(examples) == read_manifest(runs / "sts").counts["splits"]["postprocessed"]["train"]
    assert set(examples.labels) == set(examples.scale.labels) and all(
        first != second for first, second in examples.texts
    )


def test_classified_pairs_are_asked_for_three_classes_though_the_generator_writes_two(runs):
    pairs = examples_of(runs / "nli", "pair-class-5shot")
    assert pairs.scale.labels == ("entailment", "neutral", "contradiction") and not pairs.scale.ordered
    assert set(pairs.labels) == {"entailment", "contradiction"}
    for premise, hypothesis in pairs.texts[:50]:
        assert premise.startswith("First text") and hypothesis


def test_a_triplet_is_an_entailed_and_a_contradicting_pair(tmp_path):
    rows = [{key: row[key] for key in ("anchor", "positive", "negative", "source_id")} for row in triplet_rows(3)]
    examples = examples_of(write_dataset(tmp_path / "t", {"train": rows}, "triplet", TRIPLET))
    assert examples.texts[:2] == ((rows[0]["anchor"], rows[0]["positive"]), (rows[0]["anchor"], rows[0]["negative"]))
    assert examples.labels == ("entailment", "contradiction") * 3


def test_single_texts_are_asked_for_their_class(runs):
    examples = examples_of(runs / "text")
    assert examples.scale.labels == ("gut", 'bö"se') and examples.headings == ("Text",) and len(examples.texts[0]) == 1


def test_a_recipes_own_words_for_its_labels_are_what_people_read(runs, tmp_path):
    usual = examples_of(runs / "sts").scale
    copy = shutil.copytree(runs / "sts", tmp_path / "sts")
    given = yaml.safe_load((copy / "recipe.yaml").read_text(encoding="utf-8"))
    next(label for label in given["labels"] if label["score"] == 1)["meaning"] = "fragen dasselbe"
    (copy / "recipe.yaml").write_text(yaml.safe_dump(given, allow_unicode=True), encoding="utf-8")
    examples = examples_of(copy)
    assert examples.scale.labels == usual.labels and examples.sha256 == examples_of(runs / "sts").sha256
    assert examples.scale.meanings == (*usual.meanings[:3], "fragen dasselbe"), "smoothed from 1 to 0.9"
    (copy / "recipe.yaml").write_text("kind: dataset\nunknown: key\n")
    assert examples_of(copy).scale == usual, "a recipe of another version"


def test_words_of_labels_without_a_score_stand_under_their_names():
    words = small_recipe("nli").labels[0].model_copy(update={"meaning": "folgt daraus"})
    recipe = small_recipe("nli").model_copy(update={"labels": (words,)})
    assert label_meanings(recipe) == {words.name: "folgt daraus"}
    assert in_words(inference_scale(), label_meanings(recipe)).meanings.count("folgt daraus") == 1
    assert fingerprint(recipe, {}) == fingerprint(
        recipe.model_copy(update={"labels": small_recipe("nli").labels[:1]}), {}
    )
    assert "meaning" not in resolved(small_recipe("nli")) and "folgt daraus" in resolved(recipe)


def test_labels_that_nobody_could_choose_are_refused(tmp_path):
    one = [{**row, "score": 0.5} for row in sts_rows(4)]
    with pytest.raises(InputError, match="has 1 distinct scores; allowed: 2 to 9"):
        examples_of(write_dataset(tmp_path / "one", {"train": one}))
    pair = {"premise": "p", "hypothesis": "h", "source_id": "s", "target": "t", "sample": 0, "attempt": 0, "seed": 1}
    rows = [{**pair, "label": label, "log_prob": 0.0, "margin": None} for label in (0, None)]
    features = published_features(PAIR_CLASS)
    with pytest.raises(InputError, match=r"row 1: has the label 'no label'; allowed: \['entailment'"):
        examples_of(write_dataset(tmp_path / "null", {"train": rows}, "pair-class", PAIR_CLASS, features))


def test_people_are_asked_in_the_datasets_language_where_the_page_speaks_it(runs, tmp_path):
    english = examples_of(runs / "sts")
    copy = shutil.copytree(runs / "sts", tmp_path / "sts")
    given = yaml.safe_load((copy / "recipe.yaml").read_text(encoding="utf-8"))
    (copy / "recipe.yaml").write_text(yaml.safe_dump({**given, "language": "de"}), encoding="utf-8")
    german = examples_of(copy)
    assert german.headings == ("Satz 1", "Satz 2") and german.scale.question.startswith("Wie ähnlich")
    assert german.scale.meanings[0] == "handeln von völlig verschiedenen Themen"
    assert (german.scale.labels, german.sha256) == (english.scale.labels, english.sha256)
    assert read_examples(find_rows(str(copy)), "en").scale == english.scale, "asked for"
    (copy / "recipe.yaml").write_text(yaml.safe_dump({**given, "language": "fr"}), encoding="utf-8")
    assert examples_of(copy).scale == english.scale


def test_the_page_speaks_every_language_that_the_project_writes_prompts_in():
    spoken = page_words()
    assert languages().keys() <= spoken.keys()
    fields = [set(vars(words)) | set(words.meanings) for words in spoken.values()]
    assert all(one == fields[0] for one in fields)
    braces = [[sorted(re.findall(r"{\w+}", str(text))) for text in vars(words).values()] for words in spoken.values()]
    assert all(one == braces[0] for one in braces)
    assert words_in("de-AT") is spoken["de"] and words_in("yue") is spoken["en"]

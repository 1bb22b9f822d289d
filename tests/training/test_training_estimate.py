"""sts-dino estimate-training: a pilot of the recipe's own training, which leaves nothing."""

import json
import re

import pytest
import torch
from command_outcomes import outcome_of
from tiny_bases import make_llama
from training_inputs import WORDS, triplet_data, write_recipe

from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.training import estimate, run
from sts_dino.training.loop import train

LORA = {"r": "4", "alpha": "8", "release": "merged"}


def write_texts(folder):
    path = folder / "texts.txt"
    path.write_text("".join(f"a {first} and a {second}\n" for first in WORDS for second in WORDS))
    return path


def estimate_of(recipe, *words):
    done = outcome_of(estimate, recipe, *words, "--json")
    assert done.code == 0, done.error
    return json.loads(done.printed)


def test_an_estimate_is_of_the_training_that_follows(tmp_path):
    """Its steps are the run's; the disk is that of both encoders with room for a checkpoint."""
    recipe = write_recipe(tmp_path, control="simcse", merge="auto")
    before = sorted(tmp_path.iterdir())
    found = estimate_of(recipe)
    assert sorted(tmp_path.iterdir()) == before
    run.main(recipe, out=tmp_path / "out")
    assert require_complete(tmp_path / "out").provenance["training"]["steps"] == found["steps"]
    weights = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert 2 * weights < found["disk"] < 20 * weights
    assert found["memory"] > 100 << 20
    assert found["training_seconds"] == pytest.approx(found["steps"] * found["step_seconds"])
    assert found["control_seconds"] == found["training_seconds"]  # a pair has two texts, too
    assert 0 < found["load_seconds"] < found["start_seconds"]
    assert found["texts_per_second"] > 0


def test_a_pilot_shows_its_steps_and_says_of_which_batches_its_memory_is(tmp_path):
    done = outcome_of(estimate, write_recipe(tmp_path))
    assert (
        f"pilot: {estimate.FEWEST_PILOT_STEPS} of {estimate.FEWEST_PILOT_STEPS} steps"
        in done.stderr
    )
    counts = r"memory is the peak of (\d+) steps with whole batches of 16 rows; a batch of longer"
    (steps,) = re.findall(counts, done.printed)
    assert int(steps) >= estimate.FEWEST_PILOT_STEPS


FORMS = {
    "a triplet": {"example_type": "graded-triplet", "loss": "MultipleNegativesRankingLoss"},
    "a pair": {"example_type": "graded-pair", "loss": "MultipleNegativesRankingLoss"},
    "a scored pair": {"example_type": "sts", "loss": "CoSENTLoss"},
    "a text": {"example_type": "self-pair", "loss": "CachedMultipleNegativesRankingLoss"},
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_texts_stand_for_a_dataset_that_does_not_exist(tmp_path, data):
    missing = {"path": str(tmp_path / "nowhere"), "config": "default"}
    recipe = write_recipe(tmp_path, datasets=[missing | data], control="simcse")
    words = ["--texts", write_texts(tmp_path), "--longest", "40", "--set", "arguments.max_steps=7"]
    found = estimate_of(recipe, *words)
    assert found["steps"] == 7 and found["step_seconds"] > 0
    is_triplet = data["example_type"] == "graded-triplet"
    share = found["control_seconds"] / found["training_seconds"]
    assert share == pytest.approx(2 / 3 if is_triplet else 1)


def test_a_licence_that_follows_from_a_teacher_is_no_obstacle_to_a_pilot(tmp_path):
    """The rows of a pilot have no teacher, whose licence would cover them."""
    missing = {"path": str(tmp_path / "nowhere"), "config": "default", "license": "cc0-1.0"}
    teacher = {"path": str(make_llama(tmp_path / "teacher")), "license": "gemma"}
    pairs = {"example_type": "graded-triplet", "loss": "MultipleNegativesRankingLoss"}
    taught = {"example_type": "sts", "loss": "CorrelationLoss", "teacher": teacher}
    datasets = [missing | pairs, missing | taught]
    recipe = write_recipe(tmp_path, license="gemma", datasets=datasets)
    words = ["--texts", write_texts(tmp_path), "--set", "arguments.max_steps=7"]
    assert estimate_of(recipe, *words)["steps"] == 7


def test_an_adapter_and_a_cut_vocabulary_are_estimated_too(tmp_path):
    base = {"path": str(make_llama(tmp_path / "llama")), "license": "mit"}
    adapted = base | {"pooling": "lasttoken", "prompt": 'It: "[X]" is:'}
    recipe = write_recipe(tmp_path, base=adapted, lora=LORA, datasets=[triplet_data(tmp_path)])
    assert estimate_of(recipe)["steps"] == 15
    vocabulary = {"path": str(tmp_path / "nowhere.txt"), "size": "30"}
    cut = base | {"modules": "static", "vocabulary": vocabulary}
    recipe = write_recipe(tmp_path, base=cut, datasets=[triplet_data(tmp_path)])
    texts = ["--texts", write_texts(tmp_path), "--set", "arguments.max_steps=7"]
    assert estimate_of(recipe, *texts)["steps"] == 7


def test_a_pilot_reads_the_recipes_guide_and_explains_a_full_memory(tmp_path, monkeypatch):
    guide = {"path": str(make_llama(tmp_path / "guide")), "license": "mit", "pooling": "lasttoken"}
    missing = {"path": str(tmp_path / "nowhere"), "config": "default", "guide": guide}
    data = missing | {"example_type": "pair", "loss": "GISTEmbedLoss"}
    recipe = write_recipe(tmp_path, datasets=[data])
    built = []
    build = train.build_encoder

    def record(spec, *arguments, **options):
        built.append(spec.path)
        return build(spec, *arguments, **options)

    monkeypatch.setattr(train, "build_encoder", record)
    words = ["--texts", write_texts(tmp_path), "--set", "arguments.max_steps=7"]
    assert estimate_of(recipe, *words)["steps"] == 7
    assert built == [str(tmp_path / "lm"), guide["path"]]

    def fill(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train.EncoderTrainer, "train", fill)
    done = outcome_of(estimate, recipe, *words)
    assert done.code == 1 and "the device's memory is full" in done.error, done.error


def test_a_longest_text_has_no_negative_length(tmp_path):
    words = ("--texts", write_texts(tmp_path), "--longest", "-1")
    done = outcome_of(estimate, write_recipe(tmp_path), *words)
    assert done.code == 2 and "--longest" in done.error, done.error


def test_a_baseline_is_not_estimated_by_a_pilot_either(tmp_path):
    done = outcome_of(estimate, write_recipe(tmp_path, datasets=[], arguments={}))
    assert done.code == 2 and "is a baseline, which is not trained" in done.error, done.error


@pytest.mark.parametrize(
    ("changes", "texts", "message"),
    [
        ({}, "a dog\n", "arguments.max_steps: is not given; allowed: a number of steps"),
        ({}, "\n", "holds no text; allowed: at least one line"),
        ({}, None, "no such file; give a file of texts, one a line"),
        ({}, "un café\n", "texts.txt: is not UTF-8 (byte 6); save it as UTF-8"),
        (
            {"arguments": {"max_steps": "many"}},
            "a dog\n",
            "arguments.max_steps: Input should be a valid integer",
        ),
        ({"datasets": [], "arguments": {}}, "a dog\n", "is a baseline, which is not trained"),
    ],
)
def test_what_cannot_be_estimated_is_refused(tmp_path, changes, texts, message):
    path = tmp_path / "texts.txt"
    if texts is not None:
        path.write_text(texts, encoding="latin-1")
    done = outcome_of(estimate, write_recipe(tmp_path, **changes), "--texts", path)
    assert done.code == 2 and message in done.error, done.error

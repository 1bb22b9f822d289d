"""The SimCSE baseline: as many steps on the source sentences, trained beside the model, scored and
shown with it.
"""

from pathlib import Path

import pytest
from test_eval_run import EVALUATION, command
from training_inputs import write_recipe

from sts_dino.eval.encoders.load import load_encoder
from sts_dino.hub.contract.licences import check_model
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe, load_recipe
from sts_dino.hub.contract.results import read_results
from sts_dino.hub.contract.run_dir import Manifest, require_complete
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.render import render
from sts_dino.release import simcse
from sts_dino.release.simcse import make_baseline_recipe, read_steps, train_baseline
from sts_dino.training.run import main as train

STATIC = {"modules": "static", "license": "apache-2.0"}


def recipe_of(folder, **changes):
    found = {"base": {"path": str(folder / "lm"), **STATIC}, "control": "simcse", **changes}
    return load_recipe(write_recipe(folder, **found), ModelRecipe)


def test_the_control_differs_in_what_it_is_trained_on_and_what_chooses_its_checkpoint(tmp_path):
    arguments = {
        "learning_rate": "1e-3",
        "num_train_epochs": "3",
        "eval_strategy": "steps",
        "eval_steps": "4",
    }
    pairs = {
        "path": str(tmp_path / "pairs"),
        "config": "postprocessed",
        "loss": "CosineSimilarityLoss",
        "example_type": "sts",
    }
    both = [pairs, {**pairs, "example_type": "graded-pair", "loss": "MultipleNegativesRankingLoss"}]
    recipe = recipe_of(tmp_path, arguments=arguments, datasets=both)
    found = make_baseline_recipe(recipe, 18)
    assert found.arguments == {"learning_rate": "1e-3", "max_steps": "18"} and found.control is None
    (data,) = found.datasets  # the same source sentences, once
    assert (data.example_type, data.loss, data.path) == (
        "self-pair",
        "MultipleNegativesRankingLoss",
        pairs["path"],
    )
    same = {"base", "lora", "batch_size", "seed", "threads", "limit", "evaluation", "license"}
    assert all(getattr(found, key) == getattr(recipe, key) for key in same)
    assert ModelRecipe.model_validate(found.model_dump(mode="json")) == found


def test_the_control_of_a_taught_encoder_is_not_under_its_teachers_licence(tmp_path):
    teacher = {"path": str(tmp_path / "teacher"), "license": "gemma"}
    data = {"path": str(tmp_path), "config": "default", "license": "cc0-1.0"}
    pairs = data | {"example_type": "graded-triplet", "loss": "MultipleNegativesRankingLoss"}
    taught = data | {"example_type": "sts", "loss": "CorrelationLoss", "teacher": teacher}
    path = write_recipe(tmp_path, license="gemma", datasets=[pairs, taught], control="simcse")
    recipe = load_recipe(path, ModelRecipe)
    known = [("pairs", "cc0-1.0"), ("taught", "cc0-1.0")]
    assert check_model(recipe, known).licence.id == "gemma"
    baseline = make_baseline_recipe(recipe, steps=2)
    assert check_model(baseline, [("pairs", "cc-by-nc-4.0")]).licence.non_commercial
    with pytest.raises(InputError, match="does not cover its parts"):
        check_model(baseline.model_copy(update={"license": "gemma"}), known)


def test_what_is_refused_and_what_the_key_leaves_alone(tmp_path):
    columns = ("sentence1", "sentence2")
    place = {
        "path": str(tmp_path / "pairs"),
        "config": "postprocessed",
        "example_type": "self-pair",
    }
    own = TrainingData(**place, columns=columns, loss="MultipleNegativesRankingLoss")
    recipe, without = recipe_of(tmp_path), recipe_of(tmp_path, control=None)
    found = make_baseline_recipe(recipe.model_copy(update={"datasets": (*recipe.datasets, own)}), 5)
    assert [one.columns for one in found.datasets] == [None, columns]
    assert compute_fingerprint(recipe, {}) == compute_fingerprint(
        without, {}
    )  # the key affects no weight
    assert "control" not in format_recipe(without) and "control: simcse" in format_recipe(recipe)
    train_baseline(tmp_path / "nothing", without)
    assert not (tmp_path / "nothing.copies").exists()
    documents = {"path": "x.txt", "config": "x", "example_type": "documents", "loss": "DeCLUTRLoss"}
    with pytest.raises(
        InputError, match="control: simcse is trained on source sentences, and documents have none"
    ):
        recipe_of(tmp_path, datasets=[documents])
    with pytest.raises(
        InputError, match="control is for training, but the recipe names no datasets"
    ):
        recipe_of(tmp_path, datasets=[], arguments={})
    whole = Manifest(kind="model", name="m", version="1.0.0", fingerprint="f", complete=True)
    assert (
        read_steps(whole.model_copy(update={"provenance": {"training": {"steps": 7}}}), tmp_path)
        == 7
    )
    with pytest.raises(
        InputError, match="does not say how many steps it was trained; train it again"
    ):
        read_steps(whole, tmp_path)


def in_this_process(command: str, path: str, option: str, out: str) -> None:
    """The stage without a process of its own."""
    assert (command, option) == ("train", "--out")
    train(Path(path), out=Path(out))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model with its control, both trained and scored."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = recipe_of(folder, evaluation=EVALUATION, bootstrap_samples="50")
    train(folder / "recipe.yaml", out=folder / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simcse, "run_stage", in_this_process)
        train_baseline(folder / "tiny", recipe)
    assert command(folder / "recipe.yaml", "--model", folder / "tiny") == 0
    return folder


def test_the_control_is_trained_for_as_many_steps_and_scored_with_the_model(
    trained, capsys, monkeypatch
):
    model, control = require_complete(trained / "tiny"), require_complete(trained / "tiny.copies")
    assert control.provenance["training"]["steps"] == model.provenance["training"]["steps"] == 18
    assert control.name == "tiny-copies"
    results = read_results(trained / "tiny/results.json")
    for control_score, after, gain in zip(
        results.control_scores, results.scores, results.over_control, strict=True
    ):
        assert control_score.data_sha256 == after.data_sha256
        assert gain.difference == pytest.approx(after.main_score - control_score.main_score)
        assert gain.low <= gain.difference <= gain.high and gain.verdict
    assert (
        load_encoder(str(trained / "tiny.copies")).revision
        != load_encoder(str(trained / "tiny")).revision
    )
    assert command(trained / "recipe.yaml", "--model", trained / "tiny", "--dry-run") == 0
    assert f"SimCSE baseline {trained / 'tiny.copies'}; results to" in capsys.readouterr().out
    assert command(trained / "recipe.yaml", "--model", trained / "tiny") == 0
    shown = capsys.readouterr()
    assert "SimCSE baseline" in shown.out.splitlines()[0] and shown.err.count("(kept)") == 6
    control_score, card = results.control_scores[0], render(trained / "tiny")["README.md"].decode()
    assert (
        f"| {control_score.main_score:.2f} [{control_score.low:.2f}, {control_score.high:.2f}] |"
        in card
    )
    before = (trained / "tiny.copies/manifest.json").stat().st_mtime_ns
    recipe = load_recipe(trained / "recipe.yaml", ModelRecipe)
    monkeypatch.setattr(simcse, "run_stage", in_this_process)
    train_baseline(trained / "tiny", recipe)  # it is there
    assert (trained / "tiny.copies/manifest.json").stat().st_mtime_ns == before
    with pytest.raises(
        InputError, match="tiny: holds a run of another recipe or of other settings"
    ):
        train_baseline(trained / "tiny", recipe.model_copy(update={"batch_size": 8}))

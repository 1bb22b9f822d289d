"""The demo's own logic: the closing table, and how it ends when a stage fails.

`make demo` itself runs in CI.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sts_dino.experiments import demo, verify
from sts_dino.experiments import real as demo_real
from sts_dino.experiments.demo import ORG, Chain, format_report
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.results import Results, TaskScore, write_results
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.errors import InputError, RunError


@pytest.fixture
def artifacts(tmp_path) -> Path:
    counts = {"requested": 40, "kept": 30, "by_label": {"1": {"kept": 20}, "0": {"kept": 10}}}
    counts["splits"] = {"postprocessed": {"train": 30}}
    (tmp_path / "datasets/x2").mkdir(parents=True)
    manifest = Manifest(
        kind="dataset", name="x2", version="0.1.0", fingerprint="f", complete=True, counts=counts
    )
    run_dir.write_manifest(tmp_path / "datasets/x2", manifest)
    (tmp_path / "datasets/x2.timing.json").write_text(json.dumps({"seconds": 2.0, "rows": 30}))
    score = {
        "task": "stsb/cosine",
        "protocol": "p",
        "split": "test",
        "main_metric": "m",
        "n": 9,
        "data_sha256": "0",
    }
    before, control, after = (
        TaskScore(main_score=s, low=s - 2, high=s + 2, **score) for s in (40.0, 45.0, 55.0)
    )
    (tmp_path / "models/m").mkdir(parents=True)
    results = {
        "model": "m",
        "revision": "r",
        "bootstrap_samples": 10,
        "seed": 1,
        "versions": {},
        "scores": (after,),
    }
    known = {"fingerprint": "f"} if "fingerprint" in Results.model_fields else {}
    others = {"base_scores": (before,), "control_scores": (control,)}
    write_results(tmp_path / "models/m/results.json", Results(**results, **others, **known))
    return tmp_path


def test_the_report_shows_what_the_stages_wrote(artifacts):
    loaded = {"datasets": {"x2": {"postprocessed": {"train": 30}}}, "similar": 0.9, "other": 0.1}
    text = format_report(artifacts, ["x2"], {"m": loaded})
    for words in ("0: 10, 1: 20", "75.0%", "15", "SimCSE baseline", f"/datasets/{ORG}/x2"):
        assert words in text
    for score in ("40.00 [38.00, 42.00]", "45.00 [43.00, 47.00]", "55.00 [53.00, 57.00]"):
        assert score in text
    assert (
        f"`make hub HUB={artifacts / 'hub'}`" in text
        and "loaded all of it. Its cosines: 0.9" in text
    )
    assert 'load_dataset("sts-dino/x2")' in text and 'SentenceTransformer("sts-dino/m")' in text


def test_other_rows_in_the_clean_process_fail_the_demo(artifacts):
    with pytest.raises(RunError, match="loaded other rows"):
        format_report(artifacts, ["x2"], {"m": {"datasets": {"x2": {}}, "similar": 1, "other": 0}})


def test_a_killed_quiet_stage_shows_its_messages(tmp_path, monkeypatch, caplog):
    def kill(*words, stderr, **options):
        stderr.write(b"97 of 100 texts")
        raise RunError("sts-dino write", "was killed")

    monkeypatch.setattr(demo, "run_stage", kill)
    chain = Chain(SimpleNamespace(client_environment=dict), tmp_path)
    with caplog.at_level("INFO", "sts_dino"), pytest.raises(RunError, match="was killed"):
        chain.run_stage("the texts", "write", quiet=True)
    assert "97 of 100 texts" in caplog.text


def test_make_real_names_recipes_that_need_each_other():
    assert demo_real.get_source_limit() <= len(
        Path("assets/source-sentences/wikipedia.txt").read_text().splitlines()
    )
    encoder = load_recipe(demo_real.RECIPES / f"{demo_real.ENCODER}.yaml", ModelRecipe)
    assert {item.repo_id for item in encoder.datasets} == {f"{ORG}/{demo_real.DATASET}"}
    assert (
        encoder.control == "simcse"
        and encoder.arguments == load_recipe(demo_real.STUDENT, ModelRecipe).arguments
    )


def test_the_taught_encoder_reads_the_pairs_that_make_real_makes(tmp_path, monkeypatch):
    """Its recipe names the teacher of the chain, and a path that the chain replaces."""
    path = demo_real.RECIPES / f"{demo_real.TAUGHT_ENCODER}.yaml"
    recipe = load_recipe(path, ModelRecipe)
    taught, graded = recipe.datasets
    assert taught.teacher is not None and graded.repo_id == f"{ORG}/{demo_real.DATASET}"
    hub_id = f"{taught.teacher.repo_id}@{taught.teacher.revision}"
    assert hub_id == demo_real.ENCODERS[demo_real.TEACHER].hub

    calls = []
    chain = demo_real.Chain.__new__(demo_real.Chain)
    chain.artifacts = tmp_path
    monkeypatch.setattr(chain, "run_stage", lambda *arguments, **_: calls.append(arguments))
    demo_real.release_taught_encoder(chain, None)
    teach, release = calls
    folder = tmp_path / "datasets" / f"{demo_real.DATASET}-taught"
    assert teach[1:3] == ("teach", str(tmp_path / "datasets" / demo_real.DATASET))
    pairs = recipe.batch_size * int(recipe.arguments["max_steps"])
    assert teach[teach.index("--pairs") + 1] == str(pairs) == "19200"
    assert str(folder) in teach and f"datasets.0.path={folder / 'pairs.parquet'}" in release


def test_make_real_names_the_missing_teacher(monkeypatch):
    teacher = demo_real.ENCODERS[demo_real.TEACHER]
    monkeypatch.setattr(type(teacher), "is_here", property(lambda model: model is not teacher))
    demo_real.require_models(taught=False)
    with pytest.raises(InputError, match="make lm NAME=embeddinggemma-300m downloads it"):
        demo_real.require_models(taught=True)


def test_a_missing_folder_of_senteval_is_found_before_a_text_is_generated(monkeypatch, tmp_path):
    monkeypatch.setattr(demo_real, "require_models", lambda taught: None)
    monkeypatch.setattr(demo_real, "start_hub", None)  # nothing starts
    with pytest.raises(InputError, match=r"--senteval-data .*nowhere: no such folder"):
        demo_real.main(None, 0, None, 1, tmp_path / "nowhere", False)


def test_a_trial_of_make_real_trains_in_proportion_and_reads_no_test_set():
    path = demo_real.RECIPES / f"{demo_real.ENCODER}.yaml"
    steps = int(load_recipe(path, ModelRecipe).arguments["max_steps"])
    half = load_recipe(
        path, ModelRecipe, demo_real.scale_training(path, demo_real.get_source_limit() // 2)
    )
    assert half.arguments["max_steps"] == str(steps // 2) and len(half.evaluation) == 1
    assert half.evaluation[0].split == "validation" and half.evaluation[0].path
    assert (
        load_recipe(path, ModelRecipe, demo_real.scale_training(path, 60)).arguments["max_steps"]
        == "10"
    )


def test_looking_at_what_was_published_leaves_a_persons_caches_alone(tmp_path, monkeypatch):
    home, cache = tmp_path / "home", tmp_path / "datasets"
    for folder in (home, cache):
        folder.mkdir()
        (folder / "token").write_text("mine")
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(cache))
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    importlib.reload(verify)
    with verify.use_empty_cache() as used:
        assert os.environ["HF_HOME"] == str(used) and list(used.iterdir()) == []
        assert "HF_DATASETS_CACHE" not in os.environ and os.environ["HF_TOKEN_PATH"] == str(
            home / "token"
        )
    assert os.environ["HF_HOME"] == str(home) and "HF_TOKEN_PATH" not in os.environ
    assert not used.exists() and (home / "token").is_file() and (cache / "token").is_file()
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with verify.use_empty_cache():  # a login in the cache that the desktop names is used too
        code = (
            "from huggingface_hub import constants as c\n"
            "print(c.HF_TOKEN_PATH, c.HF_HUB_CACHE, sep='\\n')"
        )
        token, cache = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
        assert (
            token == str(tmp_path / "huggingface/token") and cache == f"{os.environ['HF_HOME']}/hub"
        )


@pytest.mark.parametrize(
    ("target", "kept"),
    [(("clean",), True), (("clean-artifacts",), True), (("clean-artifacts", "YES=1"), False)],
)
def test_cleaning_keeps_what_people_made_unless_they_say_so(tmp_path, target, kept):
    shutil.copy("Makefile", tmp_path)
    answers = tmp_path / "artifacts/datasets/x2.answers.sqlite"
    answers.parent.mkdir(parents=True)
    answers.write_text("paid")
    (tmp_path / "hub/__pycache__").mkdir(parents=True)
    done = subprocess.run(
        ["make", *target], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answers.is_file() is kept
    assert (tmp_path / "hub/__pycache__").exists() is (target != ("clean",))
    if target[0] == "clean-artifacts":
        assert "artifacts/datasets" in done.stdout

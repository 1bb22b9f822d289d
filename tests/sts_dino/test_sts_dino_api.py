"""The stages as functions: pairs, an encoder, scores, a comparison and a publication from Python
alone.
"""

from pathlib import Path

import pytest
from datasets import DatasetDict
from sentence_transformers import SentenceTransformer

from sts_dino import api
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.packaged import MODELS
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.hub.errors import InputError

pytest_plugins = ["local_hub"]
LM = find_asset("demo-lm").resolve()
STSB = find_asset("stsb").resolve()
TEXTS = [
    line.split("\t")[0] for line in find_asset("demo-data/x1.tsv").read_text().splitlines()[1:60]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("notebook")
        patch.chdir(place)
        yield place


@pytest.fixture(scope="module")
def pairs(folder):
    return api.write_pairs(TEXTS, name="mine", lm="builtin")


@pytest.fixture(scope="module")
def encoder(pairs):
    more = ["arguments.max_steps=12", "arguments.save_steps=12"]
    return api.train(
        pairs,
        LM,
        base_license="cc-by-nc-sa-4.0",
        name="enc",
        modules="static",
        batch_size=8,
        settings=more,
    )


def test_pairs_are_a_dataset_and_written_once(pairs, folder):
    assert pairs.column_names[:3] == ["sentence1", "sentence2", "score"] and len(pairs) > 60
    assert {round(score, 2) for score in pairs["score"]} == {0.1, 0.5, 0.9}  # smoothed
    before = (folder / "artifacts/datasets/mine/manifest.json").stat().st_mtime_ns
    again = api.write_pairs(iter(TEXTS), name="mine", lm="builtin")
    assert again.to_list() == pairs.to_list() == api.read_pairs("artifacts/datasets/mine").to_list()
    assert (folder / "artifacts/datasets/mine/manifest.json").stat().st_mtime_ns == before


def test_a_recipe_of_ones_own_takes_the_texts_as_its_source(folder, tmp_path):
    recipe = tmp_path / "own.yaml"
    text = (Path(__file__).parents[2] / "recipes/demo/sts-dino-x2.yaml").read_text()
    recipe.write_text(text.replace("assets/demo-lm", str(LM)).replace("samples: 2", "samples: 1"))
    found = api.write_pairs(TEXTS[:5], recipe, name="own", license="cc-by-4.0")
    assert set(found["sentence1"]) <= set(TEXTS[:5])
    assert read_manifest(Path("artifacts/datasets/own")).counts["sources"] == 5


def test_labels_of_ones_own_take_the_place_of_those_proposed(folder):
    asked = {
        0: 'Two facts.\n1: "<X1>"\n2: "',
        1.0: 'The same, twice.\n1: "<X1>"\n2: "',
        0.25: 'Alike.\n1: "<X1>"\n2: "',
    }
    found = api.write_pairs(TEXTS[:6], labels=asked, name="labelled", lm="builtin")
    assert {round(score, 3) for score in found["score"]} == {0.1, 0.3, 0.9}, "smoothed by 0.2"
    recipe = load_recipe(folder / "artifacts/datasets/labelled/recipe.yaml", DatasetRecipe)
    assert {label.name: (label.score, label.counter_labels) for label in recipe.labels} == {
        "1": (1.0, ()),
        "0.25": (0.25, ("1",)),
        "0": (0.0, ("1", "0.25")),
    }
    assert recipe.few_shot is None


def test_a_causal_language_model_is_trained_under_prompteols_prompt(pairs, folder):
    more = ["arguments.max_steps=2", "arguments.save_steps=2"]
    given = {
        "base_license": "cc-by-nc-sa-4.0",
        "name": "eol",
        "modules": "prompteol",
        "batch_size": 8,
    }
    encoder = api.train(pairs, LM, settings=more, **given)
    assert encoder.encode(["A man plays a flute."]).shape == (1, encoder.get_embedding_dimension())
    recipe = load_recipe(folder / "artifacts/models/eol/recipe.yaml", ModelRecipe)
    assert (
        recipe.lora is not None
        and recipe.base.pooling == "lasttoken"
        and "[X]" in (recipe.base.prompt or "")
    )


def test_an_encoder_is_trained_scored_and_compared(encoder, folder):
    assert encoder.encode(["A man plays a flute."]).shape == (1, encoder.get_embedding_dimension())
    scores = {}
    for model in ("enc", "enc.base"):
        out = folder / "artifacts" / "evaluations" / model
        scores[model] = api.evaluate(
            folder / "artifacts/models" / model, ["stsb/cosine"], limit=200, out=out
        )
    table = scores["enc"].to_pandas()
    assert list(table["split"]) == ["validation", "test"] and (table["low"] < table["score"]).all()
    assert table["n"].tolist() == [200, 200]
    found = api.compare(
        *(folder / "artifacts/evaluations" / model for model in scores), out=folder / "both"
    )
    assert len(found.pairs) == 1 and (folder / "both" / "comparison.md").is_file()
    loaded = api.evaluate(encoder, ["stsb/cosine"], limit=200, out=folder / "loaded").to_pandas()
    untrained = SentenceTransformer(str(folder / "artifacts/models/enc.base"))
    other = api.evaluate(untrained, ["stsb/cosine"], limit=200, out=folder / "loaded").to_pandas()
    assert other["score"].tolist() == pytest.approx(
        scores["enc.base"].to_pandas()["score"].tolist(), abs=1e-3
    )
    assert loaded["score"].tolist() == pytest.approx(table["score"].tolist(), abs=1e-3)


def test_what_was_made_is_published_with_its_card(pairs, hub_api, monkeypatch):
    monkeypatch.setattr("sts_dino.release.publish.HfApi", lambda: hub_api)
    user = hub_api.whoami()["name"]
    planned = api.publish("artifacts/datasets/mine")
    assert planned.repo_id == f"{user}/mine" and not hub_api.repo_exists(
        f"{user}/mine", repo_type="dataset"
    )
    api.publish("artifacts/datasets/mine", org=user, yes=True)
    assert hub_api.dataset_info(f"{user}/mine").private
    files = hub_api.list_repo_files(f"{user}/mine", repo_type="dataset", revision="v0.1.0")
    assert "README.md" in files and "manifest.json" in files


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: api.write_pairs(TEXTS[:3], name="mine"),
            "mine.texts.jsonl: holds other texts than these",
        ),
        (
            lambda: api.write_pairs(TEXTS, name="mine", lm=LM, lm_license="mit"),
            "mine.yaml: is another recipe than these",
        ),
        (lambda: api.write_pairs(["", ""], name="none"), "has no usable text"),
        (
            lambda: api.write_pairs(TEXTS, labels={"1": "x"}, name="own-labels", lm="builtin"),
            "numbers from 0 to 1",
        ),
        (
            lambda: api.write_pairs(TEXTS, labels={"1": "x", 0: "y"}, name="mixed", lm="builtin"),
            "numbers from 0 to 1",
        ),
        (
            lambda: api.write_pairs(TEXTS, "own.yaml", name="own-lm", lm="builtin"),
            "lm, lm_license, language: are for a recipe that is proposed",
        ),
        (
            lambda: api.read_pairs("artifacts/datasets/mine", "triplet"),
            "config 'triplet': not in the run",
        ),
        (
            lambda: api.read_pairs("artifacts/datasets/mine", split="test"),
            "split 'test': has no rows",
        ),
        (
            lambda: api.train("nowhere", LM, base_license="mit"),
            "nowhere: is not a folder, a model of sts-dino lm or a pinned repository",
        ),
        (
            lambda: api.train("artifacts/datasets/mine", LM, base_license="mitt"),
            "'mitt' is not a licence",
        ),
        (
            lambda: api.train(
                "artifacts/datasets/mine",
                LM,
                base_license="cc-by-nc-sa-4.0",
                modules="static",
                learning_rate=0,
                name="rate",
            ),
            "arguments.learning_rate: is 0; allowed: a positive number",
        ),
        (
            lambda: api.train("artifacts/datasets/mine.texts.jsonl", LM, base_license="mit"),
            "mine.texts.jsonl: is not a run directory (no recipe.yaml)",
        ),
        (
            lambda: api.train(DatasetDict(), LM, base_license="mit"),
            "dataset: is a DatasetDict; allowed: a Dataset, folder or name; name one of its splits",
        ),
        (
            lambda: api.train("artifacts/datasets/mine", object(), base_license="mit"),
            "base: is a object; allowed: a folder or name",
        ),
        (lambda: api.evaluate(LM, limit=0), "limit: is 0; allowed: 1 or more"),
    ],
)
def test_bad_input_is_an_error_that_says_what_to_do(pairs, call, said):
    with pytest.raises(InputError) as refused:
        call()
    assert said in str(refused.value)


def test_texts_of_a_refused_call_are_replaced(folder):
    with pytest.raises(InputError, match="has no usable text"):
        api.write_pairs(["", ""], name="corrected", lm="builtin")
    settings = ["source.limit=2"]
    assert api.write_pairs(TEXTS[:6], name="corrected", lm="builtin", settings=settings)
    with pytest.raises(InputError, match="holds other texts than these"):
        api.write_pairs(TEXTS[:5], name="corrected", lm="builtin", settings=settings)


def test_interrupted_pairs_go_on_where_they_stopped(folder, monkeypatch):
    """Ctrl-C in a notebook: the run keeps its shards and its lock is free; resumed trainings:
    tests/training.
    """
    from sts_dino.generation.pipeline.directory import DatasetRun

    add, calls = DatasetRun.add_shard, list[None]()

    def added(self, *arguments):
        calls.append(add(self, *arguments))
        if len(calls) == 2:
            raise KeyboardInterrupt

    def write(name):
        return api.write_pairs(TEXTS[:6], name=name, lm="builtin", settings=["shard_size=2"])

    monkeypatch.setattr(DatasetRun, "add_shard", added)
    with pytest.raises(KeyboardInterrupt):
        write("stopped")
    run = folder / "artifacts/datasets/stopped"
    assert not read_manifest(run).complete and not run.with_name("stopped.lock").exists()
    with pytest.raises(InputError, match="the run is not finished"):
        api.read_pairs(run)
    assert write("stopped").to_list() == write("whole").to_list()
    assert len(calls) == 2 + 1 + 3, "the shards that were written are not written again"


def test_a_base_may_be_named_as_sts_dino_lm_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path))
    model = MODELS["gemma-3-270m"]
    weights = tmp_path / "lm" / model.name / model.file
    weights.parent.mkdir(parents=True)
    weights.touch()
    for name in (model.name, f"artifacts/lm/{model.name}"):
        assert api._resolve_location(name) == {"path": str(weights.parent)}

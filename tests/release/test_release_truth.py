"""What is published says the truth: licences of all parts, the base, the published datasets.

One adaptation of a corpus without a licence is published by api, publish and release.
"""

import shutil
from pathlib import Path

import pytest
import yaml
from command_outcomes import outcome_of
from datasets import Dataset, load_dataset
from huggingface_hub import HfApi, ModelCard
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tiny_bases import make_mlm

import sts_dino.model_cards.render
import sts_dino.release.publish
import sts_dino.release.run
from sts_dino import adapt, api
from sts_dino.generation.executors.cluster import ClusterOptions
from sts_dino.generation.run import load_checked_recipe, write_dataset
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.licences import check_dataset, check_model
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.hub.contract.shards import LOADING_FILE
from sts_dino.model_cards.render import render
from sts_dino.new import CorpusChoices
from sts_dino.training.loop.job import prepare
from sts_dino.training.loop.train import run_training

pytest_plugins = ["local_hub"]

LM = find_asset("demo-lm").resolve()
TEXTS = [
    line.split("\t")[0] for line in find_asset("demo-data/x1.tsv").read_text().splitlines()[1:45]
]
UPSTREAM = "some-org/tiny-base"  # the Hub repository that the base's folder names


def save_encoder(folder: Path) -> Path:
    """A finished encoder whose folder names its licence and its Hub repository."""
    transformer = Transformer(str(make_mlm(folder.with_name("mlm"))))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), "mean"), Normalize()]
    SentenceTransformer(modules=modules).save_pretrained(str(folder), create_model_card=False)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    origin = {"model": UPSTREAM, "made_by": "sts-dino lm", "packages": {}}
    (folder / "provenance.yaml").write_text(yaml.safe_dump(origin))
    return folder


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Recipes and run directories as ``sts-dino adapt`` leaves them; no text has a licence."""
    folder = tmp_path_factory.mktemp("truth")
    base = save_encoder(folder / "base")
    lm = folder / "lm"
    shutil.copytree(LM, lm, ignore=shutil.ignore_patterns("README.md", "provenance.yaml"))
    corpus = folder / "truth.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS))
    choices = CorpusChoices(lm=str(lm), lm_license="apache-2.0", language="en")
    encoder = adapt.EncoderChoices(encoder=str(base))
    adaptation = adapt.propose_adaptation(str(corpus), folder / "out", choices, encoder)
    options = ClusterOptions()
    settings = ["decoding.max_new_tokens=12", "model.dtype=float32"]
    checked, _ = load_checked_recipe(
        adaptation.dataset_recipe, adaptation.pairs, None, settings, options
    )
    write_dataset(checked, adaptation.pairs, "sts-dino write", options)
    settings = [*adaptation.settings, "arguments.max_steps=2", "arguments.save_steps=2"]
    settings += ["evaluation=[]", "control=null"]
    job = prepare(adaptation.model_recipe, adaptation.encoder, None, settings)
    run_training(job, "sts-dino train")
    return adaptation


@pytest.fixture(autouse=True)
def hub(hub_api, monkeypatch):
    monkeypatch.setattr("sts_dino.release.publish.HfApi", lambda: hub_api)
    monkeypatch.setattr("sts_dino.release.run.HfApi", lambda: hub_api)
    return hub_api


def require_truth(hub: HfApi, owner: str, adaptation: adapt.Adaptation) -> None:
    """Compare the published cards and manifests with the licences computed of all parts."""
    pairs_id = f"{owner}/{adaptation.dataset.name}"
    encoder_id = f"{owner}/{adaptation.model.name}"
    pairs = load_recipe(adaptation.pairs / "recipe.yaml", DatasetRecipe)
    encoder = load_recipe(adaptation.encoder / "recipe.yaml", ModelRecipe)
    assert hub.dataset_info(pairs_id).private and hub.model_info(encoder_id).private

    # the dataset: rows keep the licences of their parts, and the source sentences have none
    verdict = check_dataset(pairs)
    path = hub.hf_hub_download(pairs_id, "README.md", repo_type="dataset")
    card = ModelCard.load(path)
    assert verdict.licence.id == card.data.license_name == "mixed-unlicensed"
    assert LOADING_FILE not in hub.list_repo_files(pairs_id, repo_type="dataset")
    assert "no licence stated" in card.text and "Apache License 2.0" in card.text

    # the encoder: its base's licence; the card names base, dataset and the dataset's commit
    commit = hub.list_repo_refs(pairs_id, repo_type="dataset").tags[0].target_commit
    verdict = check_model(encoder, [(pairs_id, pairs.license)])
    card = ModelCard.load(hub.hf_hub_download(encoder_id, "README.md"))
    assert card.data.license == verdict.licence.id == encoder.license == "apache-2.0"
    assert (card.data.base_model, card.data.datasets) == (UPSTREAM, [pairs_id])
    details = Path(hub.hf_hub_download(encoder_id, "DETAILS.md")).read_text()
    pages = card.text + details
    assert f"v0.1.0 ({commit[:12]})" in pages and "`local`" not in pages
    assert "the source sentences have no licence" in card.text
    manifest = read_manifest(Path(hub.hf_hub_download(encoder_id, "manifest.json")).parent)
    (trained_on,) = manifest.provenance["datasets"]
    assert trained_on["license"] == pairs.license
    assert (trained_on["repo_id"], trained_on["commit"]) == (pairs_id, commit)


def test_proposed_recipes_give_the_computed_licences_and_say_what_has_none(adapted):
    pairs, encoder = adapted.dataset_recipe.read_text(), adapted.model_recipe.read_text()
    assert "license: mixed-unlicensed # follows from the parts' licences; the source sen" in pairs
    assert "license: apache-2.0 # the base's; the source sentences have no licence" in encoder


def test_a_run_directory_loads_before_it_has_a_card(adapted, tmp_path):
    copy = Path(shutil.copytree(adapted.pairs, tmp_path / "pairs"))
    (copy / "README.md").unlink(missing_ok=True)
    manifest = read_manifest(copy)
    cache = str(tmp_path / "cache")
    finished = load_dataset(str(copy), cache_dir=cache)
    rows = {split: len(finished[split]) for split in finished}
    recipe = load_recipe(copy / "recipe.yaml", DatasetRecipe)
    assert rows == manifest.counts["splits"][recipe.configs[0]]
    for config in recipe.configs[1:]:
        loaded = load_dataset(str(copy), config, cache_dir=cache)
        assert {split: len(loaded[split]) for split in loaded} == {
            split: count for split, count in manifest.counts["splits"][config].items() if count
        }
    # the card says the same, and the file is not published
    card = render(adapted.pairs)["README.md"].decode()
    loading = yaml.safe_load((copy / LOADING_FILE).read_text())
    assert yaml.safe_load(card.split("---")[1])["configs"] == loading["configs"]


def test_dataset_and_encoder_published_in_one_command(adapted, hub):
    words = [adapted.encoder, adapted.pairs, "--org", "acme"]
    planned = outcome_of(sts_dino.release.publish, *words)
    assert planned.code == 0 and not hub.repo_exists("acme/truth-encoder")
    published = outcome_of(sts_dino.release.publish, *words, "--yes")
    assert published.code == 0, published.stderr
    assert "without a licence: training data" in published.stderr
    require_truth(hub, "acme", adapted)
    again = outcome_of(sts_dino.release.publish, *words, "--yes")
    assert "without a licence: training data" in again.stderr
    assert again.code == 0 and again.printed.count("no file changes") == 2, again


def test_dataset_and_encoder_published_by_the_api(adapted, hub):
    api.publish(adapted.pairs, yes=True)
    api.publish(adapted.encoder, yes=True)
    require_truth(hub, "demo", adapted)
    # the card of the other owner is as it was
    words = [adapted.pairs, adapted.encoder, "--org", "acme", "--yes"]
    again = outcome_of(sts_dino.release.publish, *words)
    assert again.code == 0 and again.printed.count("no file changes") == 2, again


def test_finished_runs_published_by_release(adapted, hub, alice, monkeypatch):
    monkeypatch.setattr("sts_dino.release.publish.HfApi", lambda: alice)
    monkeypatch.setattr("sts_dino.release.run.HfApi", lambda: alice)
    out = adapted.out
    words = [out / "truth.yaml", out / "truth.encoder.yaml", "--artifacts", out, "--again"]
    # the fixture's overrides, which a release of several recipes cannot take
    shutil.copy(adapted.pairs / "recipe.yaml", out / "truth.yaml")
    shutil.copy(adapted.encoder / "recipe.yaml", out / "truth.encoder.yaml")
    published = outcome_of(sts_dino.release.run, *words, "--yes", "--org", "alice")
    assert published.code == 0, published.stderr
    require_truth(alice, "alice", adapted)


def test_the_licence_of_pairs_in_memory_travels_to_the_encoder(adapted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = api.read_pairs(adapted.pairs).filter(lambda row: row["score"] > 0)
    assert pairs.info.license == "mixed-unlicensed"
    api.train(
        pairs,
        adapted.out.parent / "base",
        base_license="apache-2.0",
        name="enc",
        steps=2,
        batch_size=8,
    )
    recipe = load_recipe(Path("artifacts/models/enc/recipe.yaml"), ModelRecipe)
    assert recipe.license == "apache-2.0"
    assert [data.license for data in recipe.datasets] == ["mixed-unlicensed"]
    assert outcome_of(sts_dino.model_cards.render, "artifacts/models/enc").code == 0
    card = Path("artifacts/models/enc/README.md").read_text()
    assert "source sentences without a licence" in card


@pytest.mark.parametrize(
    ("base_license", "dataset_license", "licence"),
    [
        ("apache-2.0", "cc-by-nc-sa-4.0", "cc-by-nc-4.0"),
        ("mit", "mixed-non-commercial", "cc-by-nc-4.0"),
        ("gemma", "mixed", "gemma"),
        ("apache-2.0", None, "apache-2.0"),
    ],
)
def test_an_encoders_licence_follows_from_base_and_pairs(
    base_license, dataset_license, licence, tmp_path, monkeypatch
):
    class Stopped(Exception):
        pass

    def stop(*_):
        raise Stopped

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sts_dino.training.loop.job.prepare", stop)
    rows = Dataset.from_dict({"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]})
    if dataset_license:
        rows.info.license = dataset_license
    with pytest.raises(Stopped):
        api.train(rows, LM, base_license=base_license, name="e", modules="static")
    tree = yaml.safe_load(Path("artifacts/models/e.yaml").read_text())
    assert tree["license"] == licence
    assert tree["datasets"][0]["license"] == (dataset_license or "unlicensed")

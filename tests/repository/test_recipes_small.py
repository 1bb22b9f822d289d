"""recipes/small: complete, and planned offline (models: trained) with the overrides for a machine
without the Hub.
"""

import json
from pathlib import Path

import pytest
import yaml
from sentence_transformers import SentenceTransformer
from tiny_bases import make_mlm
from tiny_lm import make_lm
from training_inputs import sts_rows, write_dataset

import sts_dino.training.run
from sts_dino.generation.plan import describe_plan
from sts_dino.hub.contract import packaged
from sts_dino.hub.contract.licences import check_dataset, check_model
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.model_cards.provenance import read_changes

OFFLINE = Path("assets/offline.yaml")
FOLDER = Path("recipes/small")
KINDS = {path: read_yaml(path)["kind"] for path in sorted(FOLDER.glob("*.yaml"))}
PATHS = [path for path, kind in KINDS.items() if kind == "dataset"]
MODELS = [path for path, kind in KINDS.items() if kind == "model"]
SEARCH = Path("recipes/search/minilm-search.yaml")  # its passages are not of the Hub
WRITTEN = ("sts-dino/sts-dino-gemma", "sts-dino/sts-dino-qwen")


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> Path:
    """The shipped overrides, with a random model in place of the one that make lm brings."""
    folder = tmp_path_factory.mktemp("small")
    overrides = yaml.safe_load(OFFLINE.read_text())
    lm, encoder = make_lm(folder / "lm", max_position_embeddings=4096), folder / "encoder"
    SentenceTransformer(str(make_mlm(folder / "mlm"))).save_pretrained(str(encoder))
    for model in packaged.MODELS.values():
        gguf = {"gguf_file": None} if model.kind == "generator" and not model.dequantise else {}
        own = {"path": str(lm if model.kind == "generator" else encoder), **gguf}
        overrides[model.hub.partition("@")[0] or model.upstream] = own
    rows = [{**row, "sentence1": f"text {number // 3}"} for number, row in enumerate(sts_rows(96))]
    pairs = write_dataset(folder / "pairs", {"train": rows}, "postprocessed-5shot")
    overrides |= {key: {"path": str(pairs), "config": "postprocessed-5shot"} for key in WRITTEN}
    queries = [{"anchor": row["sentence1"], "positive": row["sentence2"]} for row in rows[::3]]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    overrides["sts-dino/search-cranfield"] = {
        "path": str(folder / "queries.jsonl"),
        "config": "default",
    }
    (folder / "taught.jsonl").write_text("\n".join(map(json.dumps, sts_rows(96))))
    (folder / "offline.yaml").write_text(yaml.safe_dump(overrides))
    return folder / "offline.yaml"


def test_the_shipped_overrides_name_the_files_that_sts_dino_lm_makes():
    shipped = yaml.safe_load(OFFLINE.read_text(encoding="utf-8"))
    for model in packaged.MODELS.values():
        made = {"path": f"artifacts/lm/{model.name}"} | {
            k: v for k, v in model.section.items() if k == "gguf_file"
        }
        assert shipped[model.hub.partition("@")[0] or model.upstream] == made


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_planned_offline_by_one_switch(path, offline, tmp_path):
    recipe = load_recipe(path, DatasetRecipe, [f"@{offline}", "premise_tokens=null"])
    assert (
        recipe.source.kind == "file"
        and Path(recipe.source.path or "").is_file()
        and recipe.model.repo_id is None
    )
    check_dataset(recipe)
    shown = describe_plan(recipe, tmp_path / "run")
    there = len(
        Path("assets/source-sentences/wikipedia.txt").read_text(encoding="utf-8").splitlines()
    )
    assert f"source sentences: {min(there, recipe.source.limit or there)} " in shown and not list(
        tmp_path.iterdir()
    )


@pytest.mark.parametrize("path", [*MODELS, SEARCH], ids=lambda path: path.stem)
def test_a_model_is_trained_offline_by_one_switch(path, offline, tmp_path):
    """As it is, but for the length."""
    short = ["arguments.max_steps=2", "arguments.bf16=false"]
    short += ["arguments.eval_steps=2"] if load_recipe(path, ModelRecipe).validation else []
    settings = [f"@{offline}", *short]
    for index, item in enumerate(load_recipe(path, ModelRecipe).datasets):
        settings.append(f"datasets.{index}.license=mixed")
        if item.teacher is not None:  # `sts-dino teach` makes its pairs
            settings.append(f"datasets.{index}.path={offline.with_name('taught.jsonl')}")
    dev = Path("assets/stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "dev.csv").write_text("".join(dev[::50]), encoding="utf-8")
    recipe = load_recipe(path, ModelRecipe, settings)
    assert recipe.base.repo_id is None and not any(
        item.repo_id for item in (*recipe.datasets, *recipe.validation)
    )
    if recipe.validation:
        settings.append(f"validation=[{{path: {tmp_path}/dev.csv}}]")
    sts_dino.training.run.main(path, out=tmp_path / "out", settings=settings)
    assert require_complete(tmp_path / "out").provenance["training"]["steps"] == 2
    assert SentenceTransformer(str(tmp_path / "out")).encode("A man plays.").shape == (32,)


@pytest.mark.parametrize("path", [*PATHS, *MODELS], ids=lambda path: path.stem)
def test_a_recipe_names_the_hub_and_has_prose_changes_and_a_licence(path):
    recipe = load_recipe(path, DatasetRecipe if path in PATHS else ModelRecipe)
    assert recipe.about and recipe.version in read_changes(recipe.name)
    if isinstance(recipe, DatasetRecipe):
        assert (
            recipe.model.repo_id
            and recipe.source.repo_id
            and check_dataset(recipe).licence.id == recipe.license
        )
        return
    published = [item for item in recipe.datasets if item.teacher is None]
    assert all(place.repo_id for place in (recipe.base, *published, *recipe.validation))
    words = recipe.base.vocabulary  # of the repository: the pairs themselves have too few
    assert words is None or Path(words.path or "").is_file()
    for item in published:
        made = load_recipe(FOLDER / f"{(item.repo_id or '').split('/')[1]}.yaml", DatasetRecipe)
        assert (item.revision, item.config in made.configs) == (f"v{made.version}", True)
        check_model(recipe, [(item.repo_id or "", made.license)])
    assert recipe.evaluation and all(
        task.path and Path(task.path).is_file() for task in recipe.evaluation
    )

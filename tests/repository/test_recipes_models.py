"""recipes/models: complete, pinned, true to the papers, on datasets that recipes/datasets make; baselines apart."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_recipes import difference as dataset_difference
from test_recipes import leaves

from hub.contract.licences import check_model
from hub.contract.recipe import DatasetRecipe, Lora, ModelRecipe, SlantedTriangular, Spans, TrainingData
from hub.contract.recipe_file import load_recipe
from model_cards.papers import reproduced
from model_cards.provenance import read_changes
from release.preflight import check_pins
from training.loop.arguments import check_together, trainer_arguments, typed_arguments
from training.losses.losses import check_losses

FOLDER, DATASETS = Path("recipes/models"), Path("recipes/datasets")
PATHS = sorted(FOLDER.glob("*.yaml"))
RECIPES = {path.stem: load_recipe(path, ModelRecipe) for path in PATHS}
TRAINED = sorted(name for name, recipe in RECIPES.items() if not recipe.is_baseline)
BASELINES = sorted(set(RECIPES) - set(TRAINED))
SHOTS = (0, 5, 10, 20)
ABLATIONS = ("lambda0", "lambda200", "no-smoothing", "no-augmentation")
ORGANISATION = "sts-dino"
OUTSIDE = {"Skylion007/openwebtext": "cc0-1.0"}  # data that nobody makes here, with the licence of their card
COMMIT = re.compile(r"[0-9a-f]{40}")
OF_NO_KNOWN_COMMIT = {"albert-base-v2-mean", "albert-base-v2-cls", "sbert-base-nli", "sroberta-base-nli"}
NAMES = {"name", "version", "pretty_name", "about"}


@cache
def made(repo_id: str) -> DatasetRecipe:
    """The recipe of a dataset of ours."""
    organisation, name = repo_id.split("/")
    assert organisation == ORGANISATION
    return load_recipe(DATASETS / f"{name}.yaml", DatasetRecipe)


def difference(one: str, other: str) -> dict[str, tuple[Any, Any]]:
    """The keys in which two recipes differ, names apart; lists are taken apart, too."""
    a, b = (leaves(numbered(RECIPES[name].model_dump(mode="json"))) for name in (one, other))
    return {key: (a.get(key), b.get(key)) for key in {*a, *b} - NAMES if a.get(key) != b.get(key)}


def numbered(tree: Any) -> Any:
    """``tree`` with mappings from numbers in the place of lists."""
    if isinstance(tree, list):
        return {str(index): numbered(item) for index, item in enumerate(tree)}
    return {key: numbered(value) for key, value in tree.items()} if isinstance(tree, dict) else tree


def given(name: str) -> dict[str, Any]:
    """A recipe's trainer arguments, typed."""
    return typed_arguments(RECIPES[name].arguments, f"{name}:arguments")


def only(name: str) -> TrainingData:
    (data,) = RECIPES[name].datasets
    return data


def test_every_model_of_the_issue_has_a_recipe() -> None:
    assert set(TRAINED) == {
        "sroberta-sts-dino-x2",
        "sroberta-sts-dino-x1x2",
        *(f"sroberta-sts-dino-x2-{name}" for name in (*ABLATIONS, "cosent", "angle")),
        *(f"prompteol-auto-nli-{shots}shot" for shots in SHOTS),
        "simcse-roberta-auto-nli",
        "declutr-small",
        "declutr-base",
    }
    assert set(BASELINES) == {
        "word-vectors-glove",
        *(f"{base}-{pooling}" for base in ("bert-base", "roberta-base") for pooling in ("mean", "cls")),
        *(f"albert-base-v2-{pooling}" for pooling in ("mean", "cls")),
        "distilroberta-base-mean",
        "sbert-base-nli",
        "sroberta-base-nli",
        "prompteol-llama-2-7b",
        "all-minilm-l6-v2",
    }


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_pinned_and_named_as_its_file(path: Path) -> None:
    recipe = RECIPES[path.stem]
    assert (recipe.name, recipe.version) == (path.stem, "1.0.0")
    known = path.stem not in OF_NO_KNOWN_COMMIT
    assert COMMIT.fullmatch(recipe.base.revision or "") if known else recipe.base.revision == "main"
    check_pins(path, recipe)
    assert all(COMMIT.fullmatch(item.revision or "") for item in recipe.validation)
    assert [(task.task, task.split) for task in recipe.evaluation] == [
        ("stsb/cosine", "validation"),
        ("stsb/cosine", "test"),
    ]
    assert all(Path(task.path).is_file() for task in recipe.evaluation)


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_trains_on_data_that_a_recipe_makes(name: str) -> None:
    for data in RECIPES[name].datasets:
        if data.repo_id in OUTSIDE:
            continue
        recipe = made(data.repo_id or "")
        assert data.revision == f"v{recipe.version}"
        assert data.config in recipe.configs
        assert data.example_set is None or (recipe.few_shot and data.example_set < recipe.few_shot.sets)
        validated = recipe.postprocess.validation_fraction > 0 or RECIPES[name].validation
        assert validated, "nothing would choose the checkpoint"


@pytest.mark.parametrize("name", TRAINED)
def test_the_runner_takes_losses_and_arguments(name: str, tmp_path: Path) -> None:
    recipe, arguments = RECIPES[name], given(name)
    check_together(recipe, arguments, name)
    check_losses(recipe, name)
    selects = not only(name).streaming
    made, reporters = trainer_arguments(recipe, arguments, tmp_path, 1, selects, name)
    assert (made.per_device_train_batch_size, made.eval_steps) == (recipe.batch_size, arguments.get("eval_steps"))
    assert reporters == ["tensorboard"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_has_prose_and_a_version_and_a_licence_that_its_parts_allow(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.about
    assert recipe.version in read_changes(name)
    parts = [(str(d.repo_id), OUTSIDE.get(str(d.repo_id)) or made(str(d.repo_id)).license) for d in recipe.datasets]
    assert check_model(recipe, parts).licence.id == recipe.license


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_has_its_bases_licence(name: str) -> None:
    recipe = RECIPES[name]
    assert check_model(recipe, []).licence.id == recipe.license == recipe.base.license


@pytest.mark.parametrize("name", ["sroberta-sts-dino-x2", "sroberta-sts-dino-x1x2"])
def test_dinos_encoder(name: str) -> None:
    """DINO section 4; what it leaves to Reimers and Gurevych 2019, section 3.1."""
    recipe, data = RECIPES[name], only(name)
    assert (recipe.base.repo_id, recipe.base.pooling) == ("FacebookAI/roberta-base", "mean")
    assert (data.config, data.loss, data.loss_arguments) == ("postprocessed", "CosineSimilarityLoss", {})
    assert data.repo_id == f"sts-dino/{name.removeprefix('sroberta-')}"
    assert (recipe.batch_size, recipe.limit, recipe.validation) == (32, None, ())
    arguments = given(name)
    assert (arguments["num_train_epochs"], arguments["learning_rate"], arguments["warmup_steps"]) == (1, 2e-5, 0.1)


def test_x1x2_differs_from_x2_in_its_data_and_their_licence() -> None:
    assert set(difference("sroberta-sts-dino-x2", "sroberta-sts-dino-x1x2")) == {"datasets.0.repo_id", "license"}


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_in_its_data_alone(name: str) -> None:
    """DINO table 2: the encoder's training is the same, and the data differ in one key."""
    pair = ("sts-dino/sts-dino-x2", f"sts-dino/sts-dino-x2-{name}")
    assert difference("sroberta-sts-dino-x2", f"sroberta-sts-dino-x2-{name}") == {"datasets.0.repo_id": pair}
    assert len(dataset_difference("sts-dino-x2", f"sts-dino-x2-{name}")) == 1


@pytest.mark.parametrize(("name", "loss"), [("cosent", "CoSENTLoss"), ("angle", "AnglELoss")])
def test_an_experiment_differs_in_its_loss_alone(name: str, loss: str) -> None:
    assert difference("sroberta-sts-dino-x2", f"sroberta-sts-dino-x2-{name}") == {
        "datasets.0.loss": ("CosineSimilarityLoss", loss),
        "datasets.0.loss_arguments.scale": (None, "20"),
    }


@pytest.mark.parametrize("shots", SHOTS)
def test_auto_nlis_encoder(shots: int) -> None:
    """Auto-NLI sections 2 and 4.2; rank, α, dropout, temperature and epochs are those of the authors' script."""
    name = f"prompteol-auto-nli-{shots}shot"
    recipe, data = RECIPES[name], only(name)
    assert recipe.base.repo_id == "meta-llama/Llama-2-7b-hf"
    assert (recipe.base.prompt, recipe.base.pooling) == ('This sentence : "[X]" means in one word:"', "lasttoken")
    assert recipe.lora == Lora(r=64, alpha=16, dropout=0.05, target_modules=(), release="adapter")
    assert (data.repo_id, data.config) == ("sts-dino/auto-nli", f"triplet-{shots}shot")
    assert data.example_set == (None if shots == 0 else 0)
    assert data.loss == "CachedMultipleNegativesRankingLoss" and 1 / float(data.loss_arguments["scale"]) == 0.05
    assert (recipe.batch_size, recipe.limit) == (256, 64_000)
    arguments = given(name)
    assert (arguments["learning_rate"], arguments["warmup_steps"], arguments["num_train_epochs"]) == (5e-4, 0.1, 1)
    assert (arguments["eval_strategy"], arguments["eval_steps"]) == ("steps", 5)
    (stsb,) = recipe.validation
    assert (stsb.repo_id, stsb.split) == ("mteb/stsbenchmark-sts", "validation")


@pytest.mark.parametrize("shots", SHOTS[1:])
def test_the_shot_counts_differ_in_their_data_alone(shots: int) -> None:
    keys = set(difference("prompteol-auto-nli-0shot", f"prompteol-auto-nli-{shots}shot"))
    assert keys == {"datasets.0.config", "datasets.0.example_set"}


def test_promptol_without_training_is_the_encoder_that_training_starts_from() -> None:
    keys = {key.split(".")[0] for key in difference("prompteol-auto-nli-0shot", "prompteol-llama-2-7b")}
    assert keys == {"lora", "datasets", "validation", "batch_size", "limit", "arguments"}


def test_simcses_values() -> None:
    """Supervised SimCSE (Gao et al. 2021) as its script has it: batch 4 x 128, 3 epochs, 5e-5, temperature 0.05."""
    name = "simcse-roberta-auto-nli"
    recipe, data, arguments = RECIPES[name], only(name), given(name)
    assert (recipe.base.repo_id, recipe.base.pooling) == ("FacebookAI/roberta-base", "cls")
    assert data.loss == "CachedMultipleNegativesRankingLoss" and 1 / float(data.loss_arguments["scale"]) == 0.05
    assert (recipe.batch_size, arguments["num_train_epochs"], arguments["learning_rate"]) == (512, 3, 5e-5)
    assert (arguments["eval_steps"], arguments["warmup_steps"]) == (125, 0)


@pytest.mark.parametrize(
    ("name", "base"),
    [("declutr-small", "distilbert/distilroberta-base"), ("declutr-base", "FacebookAI/roberta-base")],
)
def test_declutrs_values(name: str, base: str) -> None:
    """DeCLUTR sections 3.1, 3.2, 3.3 and 4.1."""
    recipe, data, arguments = RECIPES[name], only(name), given(name)
    assert (recipe.base.repo_id, recipe.base.pooling, recipe.base.max_seq_length) == (base, "mean", 512)
    assert data.spans == Spans(
        unit="words",
        lowercase=True,
        anchor_placement="blocks",
        min_length=32,
        max_length=512,
        anchors=2,
        positives=2,
        anchor_beta=(4, 2),
        positive_beta=(2, 4),
        strategy="any",
        min_document=2048,
    )
    assert (data.example_type, data.streaming, data.loss) == ("documents", True, "DeclutrLoss")
    assert data.loss_arguments == {"temperature": "0.05", "contrastive_weight": "0.25"}
    assert (recipe.batch_size, recipe.slanted_triangular) == (16, SlantedTriangular(cut_fraction=0.1))
    assert (arguments["learning_rate"], arguments["weight_decay"], arguments["max_grad_norm"]) == (5e-5, 0.1, 1.0)
    assert arguments["max_steps"] == 497_868 // 16


def test_declutrs_sizes_differ_in_their_base_and_the_memory_it_needs() -> None:
    keys = set(difference("declutr-small", "declutr-base"))
    assert keys == {"base.repo_id", "base.revision", "base.license", "license", "arguments.activation_checkpointing"}


def test_transformer_small_is_what_declutr_small_starts_from() -> None:
    """DeCLUTR, table 2."""
    keys = set(difference("declutr-small", "distilroberta-base-mean"))
    assert not {key for key in keys if key.startswith("base.")}


def test_the_papers_rows_have_their_recipes() -> None:
    found = {name: row.row for name, recipe in RECIPES.items() if (row := reproduced(recipe))}
    assert found == {
        "sroberta-sts-dino-x2": "DINO (STS-x2)",
        "sroberta-sts-dino-x1x2": "DINO (STS-x1x2)",
        "sroberta-sts-dino-x2-lambda0": "decay constant λ = 0",
        "sroberta-sts-dino-x2-lambda200": "decay constant λ = 200",
        "sroberta-sts-dino-x2-no-smoothing": "no label smoothing",
        "sroberta-sts-dino-x2-no-augmentation": "no augmentation",
        "prompteol-llama-2-7b": "PromptEOL-Llama-2-7b",
        **{f"prompteol-auto-nli-{shots}shot": f"PromptEOL+CSE-Llama-2-7b (n={shots})" for shots in SHOTS},
    }


def test_the_documented_table_names_every_recipe() -> None:
    text = Path("docs/training.md").read_text(encoding="utf-8")
    assert [name for name in RECIPES if f"`{name}`" not in text] == []

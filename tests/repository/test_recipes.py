"""recipes/datasets and recipes/models: complete, pinned, true to the papers, on data that recipes
make.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sts_dino.generation.inputs.examples import Example
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.hub.contract.licences import check_dataset, check_model
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe, Variant
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml
from sts_dino.model_cards.provenance import read_changes
from sts_dino.model_cards.scores import find_reproduced_row
from sts_dino.release.preflight import check_pins
from sts_dino.training.data.objectives import check_losses, parse_loss_arguments
from sts_dino.training.loop.job import (
    TABLES,
    build_trainer_arguments,
    check_argument_names,
    check_arguments,
    parse_arguments,
    parse_reporters,
    split_batch,
)

ALL = {path.stem: path for path in Path("recipes").rglob("*.yaml")}
TEXTS = {
    path.stem: load_recipe(path, DatasetRecipe)
    for path in sorted(Path("recipes/datasets").glob("*.yaml"))
}
MODELS = {
    path.stem: load_recipe(path, ModelRecipe)
    for path in sorted(Path("recipes/models").glob("*.yaml"))
}
TRAINED = [name for name, recipe in MODELS.items() if not recipe.is_baseline]
EXPECTED = yaml.safe_load(
    Path(__file__).with_name("recipe_values.yaml").read_text(encoding="utf-8")
)
# data that no recipe makes, with the licence of their card
OUTSIDE = {"Skylion007/openwebtext": "cc0-1.0"}
OF_NO_KNOWN_COMMIT = {
    "albert-base-v2-mean",
    "albert-base-v2-cls",
    "sbert-base-nli",
    "sroberta-base-nli",
}
NOT_COMPARED = {"name", "version", "pretty_name", "about"}
COMMIT = re.compile(r"[0-9a-f]{40}")
ABOUT = re.compile(r"^about: \|\n((?:  .*\n|\n)+)", re.M)
NAMED = re.compile(r"x1x2|x2|Llama 2|Gemma 3 270M|all-MiniLM-L6-v2|CC0")


def leaves(tree: Any, place: str = "") -> dict[str, Any]:
    """Every value of a recipe by its dotted key; numbers stand for the places of a list."""
    if isinstance(tree, list):
        tree = {str(place): item for place, item in enumerate(tree)}
    if isinstance(tree, dict):
        found = [leaves(value, f"{place}.{key}" if place else key) for key, value in tree.items()]
        return {key: value for one in found for key, value in one.items()}
    return {place: tree}


def values_of(name: str) -> dict[str, Any]:
    """Every value of a recipe that is not name, version or prose."""
    found = leaves((TEXTS | MODELS)[name].model_dump(mode="json"))
    return {
        key: value for key, value in found.items() if key not in NOT_COMPARED and value is not None
    }


def same(found: Any, expected: Any) -> bool:
    """Equal, as numbers where both are: trainer arguments are text in a recipe."""
    try:
        return float(found) == float(expected)
    except (TypeError, ValueError):
        return found == expected


@pytest.mark.parametrize("name", EXPECTED["values"])
def test_a_recipe_has_the_values_of_its_paper(name):
    found = values_of(name)
    wrong = {
        key: found.get(key)
        for key, value in EXPECTED["values"][name].items()
        if not same(found.get(key), value)
    }
    assert not wrong


@pytest.mark.parametrize("name", EXPECTED["differences"])
def test_a_recipe_differs_from_another_in_these_keys(name):
    stated = EXPECTED["differences"][name]
    one, other = values_of(stated["than"]), values_of(name)
    keys = {key for key in {*one, *other} if one.get(key) != other.get(key)}
    assert not {
        key
        for key in keys
        if not any(f"{key}.".startswith(f"{place}.") for place in stated["keys"])
    }
    assert all(
        any(f"{key}.".startswith(f"{place}.") for key in keys) for place in stated["keys"]
    ), keys
    assert all(
        same(other.get(key), value)
        for key, value in zip(stated["keys"], stated.get("to", []), strict=False)
    )


def test_the_papers_rows_have_their_recipes():
    assert {
        name: row.row for name, recipe in MODELS.items() if (row := find_reproduced_row(recipe))
    } == EXPECTED["rows"]
    text = Path("docs/training.md").read_text(encoding="utf-8")
    assert [name for name in MODELS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", [*TEXTS, *MODELS])
def test_a_recipe_has_prose_and_its_version_has_an_entry(name):
    recipe = (TEXTS | MODELS)[name]
    assert recipe.name == name
    if name in TEXTS or name in TRAINED:  # a baseline is not published
        assert recipe.about and recipe.version in read_changes(name)


def test_changes_are_one_line_a_version_newest_first():
    for name in read_yaml(Path("model_cards/data/changes.yaml")):
        versions = [[int(part) for part in version.split(".")] for version in read_changes(name)]
        assert versions == sorted(versions, reverse=True)
        assert all("\n" not in line for line in read_changes(name).values())


@pytest.mark.parametrize("path", ALL.values(), ids=str)
def test_an_introduction_has_no_number_of_its_own(path):
    """Every number on a card comes from the run's files; nor does an introduction hold headings or
    template code.
    """
    found = ABOUT.search(path.read_text(encoding="utf-8"))
    assert not any(
        char.isdigit() or char in "#{" for char in (NAMED.sub("", found[1]) if found else "")
    )


@pytest.mark.parametrize("name", TEXTS)
def test_a_dataset_recipe_is_pinned_and_has_a_licence(name):
    recipe = TEXTS[name]
    pinned = [recipe.model, recipe.source, *([recipe.few_shot.examples] if recipe.few_shot else [])]
    assert all(COMMIT.fullmatch(part.revision or "") for part in pinned if part.repo_id)
    assert (
        recipe.model.device == "cuda"
        and recipe.model.repo_id
        and check_dataset(recipe).licence.id == recipe.license
    )


@pytest.mark.parametrize("path", sorted(Path("recipes/demo").glob("*.yaml")), ids=str)
def test_a_demo_recipes_version_has_an_entry_and_its_parts_allow_its_licence(path):
    recipe = read_yaml(path)
    assert recipe["version"] in read_changes(recipe["name"])
    assert (
        recipe["kind"] == "model"
        or check_dataset(load_recipe(path, DatasetRecipe)).licence.id == recipe["license"]
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_recipe_is_pinned_and_has_a_licence(name):
    recipe, revision = MODELS[name], MODELS[name].base.revision or ""
    assert revision == "main" if name in OF_NO_KNOWN_COMMIT else COMMIT.fullmatch(revision)
    check_pins(ALL[name], recipe)
    assert all(COMMIT.fullmatch(item.revision or "") for item in recipe.validation)
    scored = [(task.task, task.split) for task in recipe.evaluation]
    assert scored == [("stsb/cosine", "validation"), ("stsb/cosine", "test")]
    assert all(Path(task.path).is_file() for task in recipe.evaluation)
    parts = [
        (data.repo_id, OUTSIDE.get(data.repo_id) or made(data).license) for data in recipe.datasets
    ]
    assert check_model(recipe, parts).licence.id == recipe.license
    assert parts or recipe.license == recipe.base.license


def made(data: Any) -> DatasetRecipe:
    """The recipe that makes a dataset of ours."""
    organisation, name = data.repo_id.split("/")
    assert organisation == "sts-dino"
    return TEXTS[name]


@pytest.mark.parametrize("name", TRAINED)
def test_the_runner_takes_data_losses_and_arguments_of_a_model_recipe(name, tmp_path):
    recipe = MODELS[name]
    for data in (one for one in recipe.datasets if one.repo_id not in OUTSIDE):
        source = made(data)
        assert data.revision == f"v{source.version}" and data.config in source.configs
        assert data.example_set is None or (
            source.few_shot and data.example_set < source.few_shot.sets
        )
        assert source.postprocess.validation_fraction > 0 or recipe.validation, (
            "nothing would choose the checkpoint"
        )
    check_argument_names(recipe.arguments, f"{name}:arguments")
    arguments = parse_arguments(recipe.arguments, f"{name}:arguments")
    has_schedule = recipe.slanted_triangular is not None
    check_arguments(arguments, recipe.datasets, has_schedule, f"{name}:arguments")
    accumulated = arguments.get("gradient_accumulation_steps", 1)
    arguments["per_device_train_batch_size"] = split_batch(
        recipe.batch_size, 1, accumulated, f"{name}:batch_size"
    )
    check_losses(recipe, name)
    for spec in recipe.datasets:
        parse_loss_arguments(spec, name)
    assert "report_to" not in arguments
    assert parse_reporters(TABLES["defaults"]["report_to"], name) == ["tensorboard"]
    found = build_trainer_arguments(arguments, [], tmp_path, not recipe.datasets[0].streaming, name)
    assert (found.per_device_train_batch_size, found.eval_steps) == (
        recipe.batch_size,
        arguments.get("eval_steps"),
    )


@pytest.mark.parametrize("name", ["sts-dino-x2", "sts-dino-x1x2"])
def test_dinos_prompts(name):
    """DINO figures 1 and 2."""
    recipe, tasks = TEXTS[name], {"1": "mean the same thing", "0.5": "are somewhat similar"}
    tasks["0"] = "are on completely different topics"
    expected = {
        label: f'Task: Write two sentences that {task}.\nSentence 1: "A man is playing a flute."\nSentence 2: "'
        for label, task in tasks.items()
    }
    prompts = Prompts(recipe)
    found = {
        one.name: prompts.make_prompts(one, "A man is playing a flute.", recipe.variants[0])
        for one in recipe.labels
    }
    assert {name: prompt for name, (prompt, _) in found.items()} == expected
    counters = {
        name: [expected[other] for other in expected if float(other) > float(name)]
        for name in expected
    }
    assert {name: list(others) for name, (_, others) in found.items()} == counters
    assert {label.name: label.score for label in recipe.labels} == {"1": 1, "0.5": 0.5, "0": 0}


def test_auto_nlis_prompts():
    """Auto-NLI sections 3.2 and 4.1."""
    recipe = TEXTS["auto-nli"]
    zero, _ = Prompts(recipe).make_prompts(
        recipe.labels[0], "It is a colorless liquid.", Variant(0, 0)
    )
    assert zero.startswith("\nGenerate one sentence that logically entails"), (
        "the authors' code has the line break"
    )
    pairs = {
        "entailment": "Fun for both adults and children.",
        "contradiction": "No fun for children.",
    }
    sets = {
        5: [
            {
                label: [Example(0, "Fun for adults and children.", text)]
                for label, text in pairs.items()
            }
        ]
    }
    found = [
        Prompts(recipe, sets).make_prompts(label, "It is a colorless liquid.", Variant(5, 0))
        for label in recipe.labels
    ]
    assert found == [
        (
            f'Generate one sentence that logically {verb} "Fun for adults and children." in the form of a statement '
            f'beginning with "Answer:". Answer: "{text}".\n'
            f'Generate one sentence that logically {verb} "It is a colorless liquid." in the form of a statement '
            'beginning with "Answer:". Answer: "',
            (),
        )
        for verb, text in zip(("entails", "contradicts"), pairs.values(), strict=True)
    ]
    assert recipe.configs[0] == "triplet-0shot" and len(recipe.variants) == 31
    examples = recipe.few_shot.examples
    assert (examples.repo_id, examples.revision) == (recipe.source.repo_id, recipe.source.revision)


def test_movie_reviews_are_texts_of_classes_against_one_another():
    recipe = TEXTS["movie-reviews"]
    prompt, (counter,) = Prompts(recipe).make_prompts(
        recipe.labels[0], "Some Movie", recipe.variants[0]
    )
    assert prompt == 'Task: Write a review for a bad movie.\nMovie: "Some Movie"\nReview: "'
    assert counter == prompt.replace("bad", "good")

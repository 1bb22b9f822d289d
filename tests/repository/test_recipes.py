"""recipes/datasets: complete, pinned, true to the papers, and ending in one clear line without a Hub."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from generation.inputs.examples import Example
from generation.inputs.prompts import Prompts
from hub.contract.licences import check
from hub.contract.recipe import DatasetRecipe, Variant
from hub.contract.recipe_file import load_recipe, read_yaml
from model_cards.provenance import read_changes

FOLDER = Path("recipes/datasets")
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
STS = ["sts-dino-x2", "sts-dino-x1x2"]
NOT_COMPARED = {"name", "version", "pretty_name", "about"}
COMMIT = re.compile(r"[0-9a-f]{40}")


def recipe(name: str) -> DatasetRecipe:
    return load_recipe(FOLDER / f"{name}.yaml", DatasetRecipe)


def leaves(tree: Any, place: str = "") -> dict[str, Any]:
    """Every value of a recipe by its dotted key."""
    if isinstance(tree, dict):
        return {
            k: v for key, value in tree.items() for k, v in leaves(value, f"{place}.{key}" if place else key).items()
        }
    return {place: tree}


def difference(one: str, other: str) -> dict[str, tuple[Any, Any]]:
    """The keys in which two recipes differ, names and version apart."""
    a, b = (leaves(recipe(name).model_dump(mode="json")) for name in (one, other))
    return {key: (a.get(key), b.get(key)) for key in {*a, *b} - NOT_COMPARED if a.get(key) != b.get(key)}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_pinned_and_has_prose_and_a_licence(name):
    found = recipe(name)
    pinned = [found.model, found.source, *([found.few_shot.examples] if found.few_shot else [])]
    for part in pinned:
        if part.repo_id:
            assert COMMIT.fullmatch(part.revision or "")
    assert found.model.device == "cuda" and found.model.repo_id
    assert found.about
    assert check(found).licence.id == found.license


ABOUT = re.compile(r"^about: \|\n((?:  .*\n|\n)+)", re.M)
NAMED = re.compile(r"x1x2|x2|Llama 2|Gemma 3 270M|CC0")


@pytest.mark.parametrize("path", sorted(Path("recipes").rglob("*.yaml")), ids=str)
def test_an_introduction_has_no_number_of_its_own(path):
    """Every number on a card comes from the run's files; nor does an introduction hold headings or template code."""
    found = ABOUT.search(path.read_text(encoding="utf-8"))
    text = NAMED.sub("", found[1]) if found else ""
    assert not any(char.isdigit() or char in "#{" for char in text)


@pytest.mark.parametrize("path", [*FOLDER.glob("*.yaml"), *Path("recipes/demo").glob("*.yaml")], ids=str)
def test_a_recipes_version_is_told_in_its_changes(path):
    recipe = read_yaml(path)
    assert recipe["version"] in read_changes(recipe["name"])


@pytest.mark.parametrize("name", STS)
def test_dinos_prompts_and_constants(name):
    """DINO figures 1 and 2, section 4."""
    found = recipe(name)
    expected = {
        "1": (
            "Task: Write two sentences that mean the same thing.\n"
            'Sentence 1: "A man is playing a flute."\nSentence 2: "'
        ),
        "0.5": (
            "Task: Write two sentences that are somewhat similar.\n"
            'Sentence 1: "A man is playing a flute."\nSentence 2: "'
        ),
        "0": (
            "Task: Write two sentences that are on completely different topics.\n"
            'Sentence 1: "A man is playing a flute."\nSentence 2: "'
        ),
    }
    prompts = Prompts(found)
    made = {label.name: prompts.of(label, "A man is playing a flute.", found.variants[0]) for label in found.labels}
    assert {name: prompt for name, (prompt, _) in made.items()} == expected
    counters = {name: [expected[other] for other in expected if float(other) > float(name)] for name in expected}
    assert {name: list(found) for name, (_, found) in made.items()} == counters
    assert {label.name: label.score for label in found.labels} == {"1": 1, "0.5": 0.5, "0": 0}
    decoding = found.decoding
    assert (decoding.decay_constant, decoding.epsilon, decoding.top_k, decoding.top_p) == (100, 0.01, 5, 0.9)
    assert (decoding.max_new_tokens, decoding.samples, decoding.max_attempts) == (40, 2, 5)
    after = found.postprocess
    assert (after.smoothing, after.sampled_negatives, after.max_per_label, after.validation_fraction) == (
        0.2,
        2,
        2,
        0.1,
    )


def test_x1x2_differs_from_x2_in_its_source_alone():
    keys = {key for key in difference("sts-dino-x2", "sts-dino-x1x2") if not key.startswith("source.")}
    assert keys == {"license"}
    source = recipe("sts-dino-x1x2").source
    assert (source.kind, source.limit, source.top_p) == ("model", 15_000, 0.9)


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("sts-dino-x2-lambda0", "decoding.decay_constant", (100, 0)),
        ("sts-dino-x2-lambda200", "decoding.decay_constant", (100, 200)),
        ("sts-dino-x2-no-smoothing", "postprocess.smoothing", (0.2, 0)),
        ("sts-dino-x2-no-augmentation", "postprocess.sampled_negatives", (2, 0)),
    ],
)
def test_an_ablation_differs_in_one_key(name, key, values):
    """DINO table 2."""
    assert difference("sts-dino-x2", name) == {key: values}


def test_x2_reads_no_sentence_of_the_validation_and_test_parts():
    assert all(recipe(name).source.splits == ("train",) for name in NAMES if name.startswith("sts-dino-x2"))


@pytest.mark.parametrize("name", ["sts-dino-x2", "movie-reviews", "auto-nli"])
def test_where_the_papers_are_silent_the_authors_code_decides(name):
    """timoschick/dino (dino.py, modeling.py) and lamsoma/Auto_NLI: docs/differences.md."""
    found = recipe(name)
    dino = name != "auto-nli"
    assert found.model.dtype == ("float32" if dino else "bfloat16")
    assert found.decoding.text_end == ("quotation_mark" if dino else "line")
    assert found.source.quotation_marks == "keep" and found.postprocess.equal_triplets


def test_auto_nlis_examples_are_rows_of_simcses_triplets():
    examples = recipe("auto-nli").few_shot.examples
    source = recipe("auto-nli").source
    assert (examples.repo_id, examples.revision) == (source.repo_id, source.revision)
    assert (examples.path, examples.premise) == ("nli_for_simcse.csv", "sent0")
    assert examples.texts == {"entailment": "sent1", "contradiction": "hard_neg"} and not examples.labels


@pytest.mark.skipif("STS_DINO_DATA" not in os.environ, reason="needs STS_DINO_DATA")
def test_the_counts_in_the_table_of_differences_are_those_of_the_data():
    data, table = Path(os.environ["STS_DINO_DATA"]), Path("docs/differences.md").read_text(encoding="utf-8")
    rows = {
        part: [
            line.split("\t")[5:7]
            for line in (data / f"sts-original/STSBenchmark/sts-{part}.csv").read_text(encoding="utf-8").splitlines()
        ]
        for part in ("train", "dev", "test")
    }
    train, every = {text for row in rows["train"] for text in row}, {t for p in rows.values() for row in p for t in row}
    quoted, spaced = sum('"' in text for text in every), sum(text != text.strip() for text in every)
    examples = [line for file in data.glob("auto_nli_fewshot/*/*/*.txt") for line in file.read_text().splitlines()]
    inside = [re.sub(r'^[^"]*"|" in the form.*Answer: "|"\.$', "", line) for line in examples]
    marked = sum('"' in line for line in inside)
    for said in (
        f"have {len(every):,} unique sentences, which eight pairs each ({8 * len(every):,})",
        f"the train part's {len(train):,} give {8 * len(train):,} at most",
        f"({quoted} of the {len(every):,})",
        f"({spaced} of the {len(every):,} x1)",
        f"{marked} of the {len(examples)} published examples",
    ):
        assert said in table


def test_auto_nlis_prompts_and_constants():
    """Auto-NLI sections 3.2, 4.1 and 4.2."""
    found = recipe("auto-nli")
    zero, _ = Prompts(found).of(found.labels[0], "It is a colorless liquid.", Variant(0, 0))
    assert zero.startswith("\nGenerate one sentence that logically entails"), (
        "the authors' code begins with a line break"
    )
    pairs = {"entailment": "Fun for both adults and children.", "contradiction": "No fun for children."}
    sets = {5: [{label: [Example(0, "Fun for adults and children.", text)] for label, text in pairs.items()}]}
    made = [Prompts(found, sets).of(label, "It is a colorless liquid.", Variant(5, 0)) for label in found.labels]
    assert made == [
        (
            f'Generate one sentence that logically {verb} "Fun for adults and children." in the form of a statement '
            f'beginning with "Answer:". Answer: "{text}".\n'
            f'Generate one sentence that logically {verb} "It is a colorless liquid." in the form of a statement '
            'beginning with "Answer:". Answer: "',
            (),
        )
        for verb, text in zip(("entails", "contradicts"), pairs.values(), strict=True)
    ]
    assert found.few_shot is not None
    assert (found.few_shot.shots, found.few_shot.sets) == ((0, 5, 10, 20), 10)
    assert (found.source.limit, found.premise_tokens) == (64_000, (4, 32))
    assert not found.model.chat_template
    assert found.configs[0] == "triplet-0shot" and len(found.variants) == 31


def test_the_chat_variant_differs_in_one_key():
    assert difference("auto-nli", "auto-nli-chat") == {"model.chat_template": (False, True)}


def test_movie_reviews_are_texts_of_classes_against_one_another():
    found = recipe("movie-reviews")
    prompt, (counter,) = Prompts(found).of(found.labels[0], "Some Movie", found.variants[0])
    assert prompt == 'Task: Write a review for a bad movie.\nMovie: "Some Movie"\nReview: "'
    assert counter == prompt.replace("bad", "good")
    assert found.schema_name == "text"


@pytest.mark.slow("starts command after command")
def test_without_the_hub_a_recipe_ends_in_one_clear_line(tmp_path):
    name = "auto-nli"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "sts_dino", "write", str(FOLDER / f"{name}.yaml"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ") and recipe(name).model.repo_id in done.stderr

import json
from pathlib import Path

import pytest
import yaml

from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe, parse_quantization
from sts_dino.hub.contract.recipe_file import (
    compute_fingerprint,
    format_recipe,
    get_deciding_values,
    load_recipe,
    read_yaml,
    resolve_local_paths,
)
from sts_dino.hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")


def refused(path: Path, model=DatasetRecipe, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_recipe(path, model, list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(Path("recipes").rglob("*.yaml")), ids=str)
def test_every_committed_recipe_is_valid_named_like_its_file_and_reads_back_equal(path, tmp_path):
    kind = {"dataset": DatasetRecipe, "model": ModelRecipe}[
        yaml.safe_load(path.read_text())["kind"]
    ]
    recipe = load_recipe(path, kind)
    assert recipe.name == path.stem
    (tmp_path / "recipe.yaml").write_text(format_recipe(recipe))
    assert load_recipe(tmp_path / "recipe.yaml", kind) == recipe


def test_a_recipe_of_an_unknown_kind_names_its_encoders_recipe(tmp_path):
    path = tmp_path / "texts.yaml"
    path.write_text("kind: datset\n")
    (tmp_path / "texts.encoder.yaml").write_text("kind: model\n")
    text = refused(path, ModelRecipe)
    assert "; the recipe of its encoder is " in text and "None" not in text


def test_scalars_are_typed_by_the_model_not_by_yaml(tmp_path):
    text = X2.read_text().replace('- name: "0.5"', "- name: 0.5").replace('"1", "0.5"', "1, 0.5")
    path = tmp_path / "r.yaml"
    path.write_text(
        text.replace("decay_constant: 100", "decay_constant: 1e2").replace(
            "language: en", "language: no"
        )
    )
    recipe = load_recipe(path, DatasetRecipe)
    assert recipe.labels[1].name == "0.5" and recipe.labels[2].counter_labels == ("1", "0.5")
    assert (
        recipe.decoding.decay_constant == 100
        and recipe.language == "no"
        and recipe.version == "0.1.0"
    )


def test_overrides_and_a_long_one_that_is_wrong():
    recipe = load_recipe(
        X2, DatasetRecipe, ["decoding.top_k=7", "labels.0.score=0.9", "source.limit=3"]
    )
    assert (recipe.decoding.top_k, recipe.labels[0].score, recipe.source.limit) == (7, 0.9, 3)
    assert len(refused(X2, DatasetRecipe, f"name={'y' * 9_000}")) < 700
    assert "'²' does not lead anywhere" in refused(X2, DatasetRecipe, "labels.².score=1")
    message = refused(X2, DatasetRecipe, "about=@home: it's")
    assert """--set 'about="@home: it'"'"'s"'""" in message
    recipe = load_recipe(X2, DatasetRecipe, ["verification=null", "verification.best_of=2"])
    assert recipe.verification.best_of == 2  # published recipes have null for absent sections


@pytest.mark.parametrize("value", ["!!timestamp 2020-01-01", "!!binary aGk=", "!!set {a, b}"])
def test_a_value_that_json_lacks_is_refused_with_its_line(tmp_path, value):
    (tmp_path / "tagged.yaml").write_text(f"name: {value}\n")
    assert "tagged.yaml:1: not valid YAML" in refused(tmp_path / "tagged.yaml", DatasetRecipe)


@pytest.mark.parametrize(
    "setting, problem",
    [
        ("source.repo_id=org/texts", "repo_id is of a Hub dataset, but"),
        ("source.revision=v1", "revision is of a Hub dataset, but"),
        ("premise_tokens=[32, 4]", "the least stands before the most"),
    ],
)
def test_a_setting_without_a_use_is_refused(setting, problem):
    assert problem in refused(X2, DatasetRecipe, setting)


def test_a_link_beside_a_recipe_keeps_its_name(tmp_path):
    """Caches and versioned data have links to blobs, whose names have no suffix."""
    (tmp_path / "blob").write_text("a text")
    (tmp_path / "texts.txt").symlink_to("blob")
    section = {"source": {"path": "texts.txt"}}
    tree = resolve_local_paths(section, tmp_path)
    assert tree == {"source": {"path": str(tmp_path / "texts.txt")}}


def test_a_byte_that_is_not_utf_8_is_named_by_its_place_in_the_file(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"# comment\n" * 5_000 + b"name: caf\xe9\n")
    assert "latin.yaml: is not UTF-8 (byte 50009)" in refused(path, DatasetRecipe)
    path.write_text("#" + "名" * 400_000, encoding="utf-8")  # the limit cuts a character
    assert "at most 1048576 are read" in refused(path, DatasetRecipe)


@pytest.mark.parametrize("escape", [r"\U00110000", r"\UFFFFFFFF"])
def test_an_escape_beyond_unicode_is_refused_with_the_file(tmp_path, escape):
    (tmp_path / "escape.yaml").write_text(f'name: "{escape}"\n')
    assert "is no character" in refused(tmp_path / "escape.yaml", DatasetRecipe)


def test_an_override_in_json_keeps_characters_beyond_the_basic_plane():
    description = "😀 and é"
    recipe = load_recipe(X2, DatasetRecipe, [f"source.description={json.dumps(description)}"])
    assert recipe.source.description == description


def test_a_quantization_of_an_untrusted_model_is_read_within_limits():
    path = Path("recipes/demo/sts-dino-x2.yaml")
    settings = ["model.quantization={bits: '4', modules: '[lm_head]', double: 'true'}"]
    recipe = load_recipe(path, DatasetRecipe, settings)
    assert parse_quantization(recipe.model.quantization) == {
        "bits": 4,
        "modules": ["lm_head"],
        "double": True,
    }
    message = refused(path, DatasetRecipe, f"model.quantization={{bits: '{'[' * 3_000}'}}")
    assert "model.quantization: bits: more than 2 levels" in message
    message = refused(path, DatasetRecipe, 'model.quantization={bits: "\\0"}')
    assert "model.quantization: bits: control characters are not allowed" in message


NLI, X1X2 = Path("recipes/demo/auto-nli.yaml"), Path("recipes/demo/sts-dino-x1x2.yaml")


def test_a_source_sentence_stands_in_quotation_marks_only_where_the_model_writes_it():
    bare = "labels.0.instruction='Go on after <X1>: \"'"
    assert load_recipe(NLI, DatasetRecipe, [bare]).labels[0].instruction == 'Go on after <X1>: "'
    message = refused(X1X2, DatasetRecipe, bare)
    assert "labels.1.instruction: <X1> must stand between quotation marks" in message


OVERRIDES = """
google/gemma-3-270m: {path: lm}
org/texts: {kind: file, path: x1.txt, description: here, license: cc0-1.0}
"""


def test_a_file_of_overrides_takes_the_place_of_hub_repositories(tmp_path):
    tree, path = yaml.safe_load(X2.read_text()), tmp_path / "hub.yaml"
    tree["model"] = {
        "repo_id": "google/gemma-3-270m",
        "revision": "main",
        "gguf_file": "a.gguf",
        "license": "gemma",
    }
    source = {
        "kind": "hub",
        "repo_id": "org/texts",
        "revision": "main",
        "config": "en",
        "splits": ["a"],
        "limit": 7,
    }
    tree["source"] = {**source, "columns": ["text"], "description": "theirs", "license": "cc0-1.0"}
    path.write_text(yaml.safe_dump(tree))
    (tmp_path / "offline.yaml").write_text(OVERRIDES)
    hub = load_recipe(path, DatasetRecipe)
    local = load_recipe(path, DatasetRecipe, [f"@{tmp_path}/offline.yaml", "source.columns=[]"])
    assert (local.model.path, local.model.repo_id, local.model.revision, local.model.gguf_file) == (
        "lm",
        *[None] * 3,
    )
    assert local.model.license == "gemma"  # what the file does not name stays
    assert (local.source.kind, local.source.path, local.source.limit) == ("file", "x1.txt", 7)
    assert (local.source.description, local.source.config, local.source.splits) == (
        "here",
        None,
        ("train",),
    )
    assert "google" not in format_recipe(local) and "org/texts" not in format_recipe(local)
    assert compute_fingerprint(hub, {}) != compute_fingerprint(local, {})
    again = load_recipe(path, DatasetRecipe, ["source.columns=[]", f"@{tmp_path}/offline.yaml"])
    assert again == local
    # a file that is missing, and one of other repositories
    assert "--set @no.yaml: no such file of overrides" in refused(path, DatasetRecipe, "@no.yaml")
    (tmp_path / "other.yaml").write_text("org/other: {path: lm}")
    message = refused(path, DatasetRecipe, f"@{tmp_path}/other.yaml")
    assert "(found org/other); allowed: google/gemma-3-270m, org/texts" in message


OPTIONS = ["postprocess.near_copy=0.8", "labels.0.overlap=[0, 0.5]", "labels.1.overlap=[0.5, 0.5]"]
OPTIONS += [
    "decoding.guidance=0.5",
    "labels.0.guidance=0",
    "labels.1.decay_constant=3",
    "labels.2.samples=1",
]
OPTIONS += ["verification={}", "verification.drop=true", "verification.best_of=2"]


def test_an_option_that_is_not_set_is_recorded_nowhere_and_one_that_is_makes_another_run():
    """So runs and cards from before the key was made stay what they are."""
    longer = "decoding.max_attempts=8"
    plain, *others = (
        load_recipe(X2, DatasetRecipe, [longer, *option])
        for option in ([], *([o] for o in OPTIONS))
    )
    text, decides = format_recipe(plain), json.dumps(get_deciding_values(plain))
    for option in ("near_copy", "overlap", "guidance", "verification", "rotate", "rank_by"):
        assert option not in text and option not in decides
    assert set(yaml.safe_load(text)["labels"][0]) == {
        "name",
        "score",
        "instruction",
        "counter_labels",
    }
    for one in (plain, *others):
        assert DatasetRecipe.model_validate(yaml.safe_load(format_recipe(one))) == one
    assert len({compute_fingerprint(one, {}) for one in (plain, *others)}) == 1 + len(OPTIONS)
    assert format_recipe(load_recipe(X2, DatasetRecipe, [longer, "decoding.guidance=0"])) == text


def test_a_recipe_says_only_what_differs_from_the_one_it_extends(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x1.txt").write_text("a\n")
    source = {"kind": "file", "path": "x1.txt", "description": "d", "license": "cc0-1.0"}
    base = yaml.safe_load(X2.read_text()) | {"source": source}
    (tmp_path / "far/base.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "middle.yaml").write_text(
        "extends: far/base.yaml\nname: middle\ndecoding: {epsilon: 0.5}\n"
    )
    own = tmp_path / "own.yaml"
    own.write_text("extends: middle.yaml\nname: own\ndecoding: {top_k: 3}\n")
    recipe = load_recipe(own, DatasetRecipe)
    assert (recipe.name, recipe.decoding.epsilon, recipe.decoding.top_k) == ("own", 0.5, 3)
    assert recipe.source.path == str(tmp_path / "far/x1.txt")  # beside the file that names it
    assert "extends" not in format_recipe(recipe)  # a published recipe is whole
    other = "{kind: model, limit: 9, description: d, license: cc0-1.0}"
    # of another kind: nothing of the base's source stays
    own.write_text(f"extends: middle.yaml\nsource: {other}\n")
    assert load_recipe(own, DatasetRecipe).source.path is None


def test_half_of_an_escaped_character_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text('about: "\\ud83d\\ude00"\n')
    assert read_yaml(path) == {"about": "\U0001f600"}
    path.write_text('about: "\\ud83d"\n')
    with pytest.raises(InputError, match="half of a surrogate pair"):
        read_yaml(path)

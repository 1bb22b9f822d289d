import json
import re
from pathlib import Path

import pytest
import yaml

from hub.contract.dataset_sections import quantization_values
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import deciding, fingerprint, load_recipe, resolved
from hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")
MODEL = Path("recipes/demo/demo-sts-dino.yaml")


def refused(path: Path, model=DatasetRecipe, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_recipe(path, model, list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(Path("recipes").rglob("*.yaml")), ids=str)
def test_every_committed_recipe_is_valid_and_named_like_its_file(path):
    kind = {"dataset": DatasetRecipe, "model": ModelRecipe}[yaml.safe_load(path.read_text())["kind"]]
    assert load_recipe(path, kind).name == path.stem


def test_scalars_are_typed_by_the_model_not_by_yaml(tmp_path):
    text = X2.read_text().replace('- name: "0.5"', "- name: 0.5").replace('"1", "0.5"', "1, 0.5")
    path = tmp_path / "r.yaml"
    path.write_text(text.replace("decay_constant: 100", "decay_constant: 1e2").replace("language: en", "language: no"))
    recipe = load_recipe(path, DatasetRecipe)
    assert recipe.labels[1].name == "0.5" and recipe.labels[2].counter_labels == ("1", "0.5")
    assert recipe.decoding.decay_constant == 100 and recipe.language == "no" and recipe.version == "0.1.0"


def test_overrides_and_what_is_wrong_with_them():
    recipe = load_recipe(X2, DatasetRecipe, ["decoding.top_k=7", "labels.0.score=0.9", "source.limit=3"])
    assert (recipe.decoding.top_k, recipe.labels[0].score, recipe.source.limit) == (7, 0.9, 3)
    assert "KEY.KEY=VALUE" in refused(X2, DatasetRecipe, "decoding.top_k")
    assert "does not lead anywhere" in refused(X2, DatasetRecipe, "labels.9.score=1")
    assert "does not lead anywhere" in refused(X2, DatasetRecipe, "seed.a=1")
    assert "did you mean 'top_k'" in refused(X2, DatasetRecipe, "decoding.topk=1")
    assert "not valid YAML" in refused(X2, DatasetRecipe, "seed=[1")
    assert len(refused(X2, DatasetRecipe, f"name={'y' * 9_000}")) < 700


def test_a_recipe_for_vllm_in_this_process_is_told_the_way_there_is():
    assert re.search(
        r":model.backend: .*vllm serve.*backend: openai.*docs/backends.md",
        refused(X2, DatasetRecipe, "model.backend=vllm"),
    )


def test_the_resolved_recipe_reads_back_equal(tmp_path):
    recipe = load_recipe(X2, DatasetRecipe)
    path = tmp_path / "recipe.yaml"
    path.write_text(resolved(recipe))
    assert load_recipe(path, DatasetRecipe) == recipe


def test_the_fingerprint_knows_recipe_and_inputs():
    a, b = load_recipe(X2, DatasetRecipe), load_recipe(X2, DatasetRecipe, ["seed=43"])
    prints = {fingerprint(a, {}), fingerprint(b, {}), fingerprint(a, {"x": "1"}), fingerprint(a, {"x": "2"})}
    assert len(prints) == 4 and fingerprint(a, {}) == fingerprint(load_recipe(X2, DatasetRecipe), {})


def test_files_that_are_no_recipe(tmp_path):
    assert "no such recipe" in refused(tmp_path / "none.yaml")
    assert "is a folder" in refused(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: Mäd".encode("latin-1"))
    assert "not UTF-8" in refused(tmp_path / "latin.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    assert "mapping" in refused(tmp_path / "list.yaml")
    (tmp_path / "tag.yaml").write_text("name: !!python/object/apply:os.getcwd []\n")
    assert "tag.yaml:1: not valid YAML" in refused(tmp_path / "tag.yaml")
    assert "takes a model recipe, not 'dataset'" in refused(X2, ModelRecipe)


BOMBS = {
    "depth": ("name: " + "[" * 30_000, r":1: not valid YAML: more than 20 levels"),
    "aliases": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)),
        ":5: .* more than 20000 keys",
    ),
    "merges": (
        "a: &a {k: 1}\n"
        + "".join(
            f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
        ),
        "more than 20000 keys",
    ),
    "size": ("name: " + "x" * (1 << 20), "at most 1048576"),
    "itself": ("a: &a {<<: *a}", "stands for nothing before it"),
    "a value of no type": ("name: !!int x", ":1: not valid YAML"),
    "a control character": ('name: "\x01"', "not valid YAML: special characters are not allowed"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_recipe_of_a_stranger_is_one_line_whatever_it_holds(tmp_path, name):
    text, cause = BOMBS[name]
    (tmp_path / "bomb.yaml").write_text(text)
    message = refused(tmp_path / "bomb.yaml")
    assert re.search(cause, message) and len(message) < 700


def test_a_quantization_of_a_stranger_is_read_within_limits():
    path = Path("recipes/demo/sts-dino-x2.yaml")
    settings = ["model.quantization={bits: '4', modules: '[lm_head]', double: 'true'}"]
    recipe = load_recipe(path, DatasetRecipe, settings)
    assert quantization_values(recipe.model.quantization) == {"bits": 4, "modules": ["lm_head"], "double": True}
    message = refused(path, DatasetRecipe, f"model.quantization={{bits: '{'[' * 3_000}'}}")
    assert "model.quantization: bits: more than 2 levels" in message


@pytest.mark.parametrize("name", ["../x", "A", "a b", "a--b", "-a", "a" * 97, ""])
def test_names_that_could_not_be_a_repository(name):
    assert "name" in refused(X2, DatasetRecipe, f"name='{name}'")


FEW_SHOT = (
    "few_shot={shots: [0, 5], examples: {kind: file, path: nli.tsv, description: pairs, license: CC0, "
    "labels: {entailment: '0', contradiction: '2'}}}"
)
NLI = Path("recipes/demo/auto-nli.yaml")


def test_a_source_sentence_stands_in_quotation_marks_only_where_the_model_writes_it():
    bare = "labels.0.instruction='Go on after <X1>: \"'"
    assert load_recipe(NLI, DatasetRecipe, [bare]).labels[0].instruction == 'Go on after <X1>: "'
    message = refused(Path("recipes/demo/sts-dino-x1x2.yaml"), DatasetRecipe, bare)
    assert "labels.1.instruction: <X1> must stand between quotation marks" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("few_shot.shots=[5, 5]", "a count stands twice"),
        ("few_shot.shots=[]", "at least 1 item"),
        ("few_shot.end='.'", "few_shot.end"),
        ("few_shot.examples.labels={entailment: '0'}", "no value of the label column is given for 'contradiction'"),
        ("few_shot.examples.labels={entailment: '0', contradiction: '0'}", "two labels have one value"),
        ("few_shot.examples.kind=hub", "need repo_id, revision"),
    ],
)
def test_few_shot_sections_that_cannot_work(change, message):
    assert message in refused(NLI, DatasetRecipe, FEW_SHOT, change)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (
            NLI,
            "labels.0.name=entails",
            "labels.entails: not a label of schema nli; allowed: entailment, neutral, contra",
        ),
        (NLI, "labels.1.name=contradicts", "did you mean 'contradiction'"),
        (X2, "labels.1.counter_labels=['0.55']", "unknown counter-label '0.55'; allowed: 1, 0"),
        (X2, "source.splits=[train, test]", "splits names parts of a Hub dataset, but one file is read, whole: remove"),
        (X2, "source.config=plain", "config names parts of a Hub dataset"),
        (Path("recipes/demo/sts-dino-x1x2.yaml"), "source.splits=[test]", "but the model writes these texts"),
        (NLI, FEW_SHOT.replace("kind: file", "kind: file, splits: [test]"), "few_shot.examples: splits names parts"),
    ],
)
def test_keys_and_names_that_nothing_reads(path, change, message):
    assert message in refused(path, DatasetRecipe, change)


STAND_INS = """
google/gemma-3-270m: {path: lm}
org/texts: {kind: file, path: x1.txt, description: here, license: cc0-1.0}
"""


def hub_recipe(folder: Path) -> Path:
    tree = yaml.safe_load(X2.read_text())
    tree["model"] = {"repo_id": "google/gemma-3-270m", "revision": "main", "gguf_file": "a.gguf", "license": "gemma"}
    source = {"kind": "hub", "repo_id": "org/texts", "revision": "main", "config": "en", "splits": ["a"], "limit": 7}
    tree["source"] = {**source, "columns": ["text"], "description": "theirs", "license": "cc0-1.0"}
    (folder / "hub.yaml").write_text(yaml.safe_dump(tree))
    (folder / "offline.yaml").write_text(STAND_INS)
    return folder / "hub.yaml"


def test_a_file_of_stand_ins_takes_the_place_of_hub_repositories(tmp_path):
    path = hub_recipe(tmp_path)
    hub = load_recipe(path, DatasetRecipe)
    local = load_recipe(path, DatasetRecipe, [f"@{tmp_path}/offline.yaml", "source.columns=[]"])
    assert (local.model.path, local.model.repo_id, local.model.revision, local.model.gguf_file) == ("lm", *[None] * 3)
    assert local.model.license == "gemma"  # what the file does not name stays
    assert (local.source.kind, local.source.path, local.source.limit) == ("file", "x1.txt", 7)
    assert (local.source.description, local.source.config, local.source.splits) == ("here", None, ("train",))
    assert "google" not in resolved(local) and "org/texts" not in resolved(local)
    assert fingerprint(hub, {}) != fingerprint(local, {})
    again = load_recipe(path, DatasetRecipe, ["source.columns=[]", f"@{tmp_path}/offline.yaml"])
    assert again == local


def test_what_is_wrong_with_a_file_of_stand_ins(tmp_path):
    path = hub_recipe(tmp_path)
    assert "no such recipe" in refused(path, DatasetRecipe, f"@{tmp_path}/none.yaml")
    other = tmp_path / "other.yaml"
    other.write_text("org/other: {path: lm}\n")
    assert "names no repository of the recipe" in refused(path, DatasetRecipe, f"@{other}")
    other.write_text("google/gemma-3-270m: lm\n")
    assert "other.yaml:google/gemma-3-270m: is no mapping" in refused(path, DatasetRecipe, f"@{other}")
    other.write_text("google/gemma-3-270m: {paht: lm}\n")
    assert "did you mean 'path'" in refused(path, DatasetRecipe, f"@{other}")


def test_an_option_that_is_not_set_is_told_nowhere():
    """So runs and cards from before the key was made stay what they are."""
    recipe = load_recipe(X2, DatasetRecipe)
    assert recipe.postprocess.unset_options and recipe.labels[0].unset_options
    text, options = resolved(recipe), ("near_copy", "overlap", "rotate", "rank_by")
    assert not any(option in text for option in options)
    assert not any(f'"{option}"' in json.dumps(deciding(recipe)) for option in options)
    with_option = load_recipe(X2, DatasetRecipe, ["postprocess.near_copy=0.8", "labels.0.overlap=[0, 0.5]"])
    assert "near_copy: 0.8" in resolved(with_option) and fingerprint(with_option, {}) != fingerprint(recipe, {})
    assert load_recipe(X2, DatasetRecipe, ["labels.0.overlap=[0.5, 0.5]"]).labels[0].overlap == (0.5, 0.5)
    assert "the least stands before the most" in refused(X2, DatasetRecipe, "labels.0.overlap=[0.5, 0.2]")


def test_a_recipe_says_only_what_differs_from_the_one_it_extends(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x1.txt").write_text("a\n")
    source = {"kind": "file", "path": "x1.txt", "description": "d", "license": "cc0-1.0"}
    base = yaml.safe_load(X2.read_text()) | {"source": source}
    (tmp_path / "far/base.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "middle.yaml").write_text("extends: far/base.yaml\nname: middle\ndecoding: {epsilon: 0.5}\n")
    own = tmp_path / "own.yaml"
    own.write_text("extends: middle.yaml\nname: own\ndecoding: {top_k: 3}\n")
    recipe = load_recipe(own, DatasetRecipe)
    assert (recipe.name, recipe.decoding.epsilon, recipe.decoding.top_k) == ("own", 0.5, 3)
    assert recipe.source.path == str(tmp_path / "far/x1.txt")  # beside the file that names it
    assert "extends" not in resolved(recipe)  # a published recipe is whole
    other = "{kind: model, limit: 9, description: d, license: cc0-1.0}"
    own.write_text(f"extends: middle.yaml\nsource: {other}\n")  # of another kind: nothing of the base's source stays
    assert load_recipe(own, DatasetRecipe).source.path is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: own.yaml\n", "own.yaml:extends: more than 5 recipes extend each other"),
        ("extends: [a]\n", "own.yaml:extends: is not a recipe file"),
        ("extends: /etc/passwd\n", "own.yaml:extends: is not a recipe file .*passwd"),
        ("extends: none.yaml\n", "none.yaml: no such recipe"),
    ],
)
def test_a_wrong_base_is_one_line(tmp_path, text, message):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_recipe(tmp_path / "own.yaml", DatasetRecipe)


def test_a_published_recipe_extends_nothing(tmp_path):
    (tmp_path / "recipe.yaml").write_text("extends: other.yaml\n")
    with pytest.raises(InputError, match=r"recipe.yaml:extends: unknown key"):
        load_recipe(tmp_path / "recipe.yaml", DatasetRecipe)

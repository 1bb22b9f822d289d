"""The key ``decoding.guidance``: off it leaves no trace, on it reaches the texts; what cannot be guided is refused."""

from pathlib import Path

import pytest
import yaml
from tiny_lm import make_lm

from generation.explain import explain, rendered
from generation.inputs.examples import Example
from generation.inputs.prompts import Prompts
from generation.pipeline import job
from generation.plan import plan
from hub.contract.recipe import DatasetRecipe, Variant
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.contract.shards import read_shard
from hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")
NLI = Path("recipes/datasets/auto-nli.yaml")
RECIPES = sorted(path for path in Path("recipes").rglob("*.yaml") if "kind: dataset" in path.read_text())
SERVER = [
    "model={backend: openai, server: {base_url: 'http://localhost:1/v1', model: m}, license: mit}",
    "labels.1.counter_labels=[]",
    "labels.2.counter_labels=[]",
]


@pytest.fixture(scope="module")
def lm(tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("lm"))


def tiny(lm: Path, *settings: str) -> DatasetRecipe:
    small = [f"model.path={lm}", "source.limit=6", "decoding.max_new_tokens=6", "shard_size=3"]
    return load_recipe(X2, DatasetRecipe, [*small, "decoding.max_attempts=20", *settings])


def instructed(words: str) -> list[str]:
    """A setting: the instruction of the first label ends with these words behind the first text."""
    return [f"labels.0.instruction='Say <X1>{words}\"'", "decoding.guidance=1"]


def rows_of(directory: Path, config: str) -> list[dict]:
    return [row for path in sorted(directory.glob(f"data/{config}/*")) for row in read_shard(path)]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to("recipes")))
def test_every_recipe_has_plain_prompts_without_task_and_first_text(path):
    """Last words of a line, or of a sentence: ``Answer: "`` of Auto-NLI's instruction."""
    found = {label.plain_prompt for label in load_recipe(path, DatasetRecipe).labels}
    assert len(found) == 1 and found <= {'Sentence 2: "', 'Answer: "', 'Review: "'}


def test_unset_it_is_told_nowhere():
    recipe, zero = load_recipe(X2, DatasetRecipe), load_recipe(X2, DatasetRecipe, ["decoding.guidance=0"])
    given = load_recipe(X2, DatasetRecipe, ["decoding.guidance=0.5"])
    assert "guidance" not in resolved(recipe) and resolved(zero) == resolved(recipe)
    assert fingerprint(zero, {}) == fingerprint(recipe, {}) != fingerprint(given, {})
    assert yaml.safe_load(resolved(given))["decoding"]["guidance"] == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["decoding.guidance=-1"], "decoding.guidance: .*greater than or equal to 0"),
        (["decoding.guidance=inf"], "decoding.guidance: .*finite"),
        (["decoding.guidance=strong"], "decoding.guidance: .*number"),
        (
            ["decoding.guidance=1", *SERVER],
            "which backend 'openai' cannot do; use backend: engine",
        ),
        (instructed("."), "labels.1.instruction: decoding.guidance needs .* no word stands between <X1>"),
        (instructed(". => "), "end the instruction with some, e.g. Sentence 2: "),
    ],
    ids=["negative", "infinite", "a word", "server", "nothing behind x1", "no word behind x1"],
)
def test_what_cannot_be_guided_is_one_line(settings, message):
    with pytest.raises(InputError, match=message) as found:
        load_recipe(X2, DatasetRecipe, settings)
    assert "\n" not in str(found.value)


def test_a_plain_prompt_has_no_examples():
    few = load_recipe(NLI, DatasetRecipe, ["decoding.guidance=1"])
    example = {name: (Example(0, "premise", "said"),) for name in ("entailment", "contradiction")}
    prompts = Prompts(few, {5: [example]})
    label = few.labels[0]
    assert "premise" in prompts.of(label, "First.", Variant(5, 0))[0] and prompts.plain(label) == 'Answer: "'
    assert Prompts(load_recipe(NLI, DatasetRecipe), {5: [example]}).plain(label) is None


def test_it_changes_texts_and_every_row_is_explained(lm, tmp_path):
    job.generate(tiny(lm), tmp_path / "off", "test")
    job.generate(tiny(lm, "decoding.guidance=1.5", "verification={}"), tmp_path / "on", "test")
    before, after = (rows_of(tmp_path / name, "raw") for name in ("off", "on"))
    texts = [{(row["source_id"], row["target"], row["text2"]) for row in rows} for rows in (before, after)]
    assert len(texts[0] & texts[1]) < len(texts[0]) / 2
    for row in after[:3] + rows_of(tmp_path / "on", "rejected")[:1]:
        found = explain(tmp_path / "on", f"{row['source_id']}/{row['target']}/{row['attempt']}")
        assert found.differences == [] and found.request.plain_prompt == 'Sentence 2: "'
        assert "--- plain prompt: guidance leads away from it\nSentence 2: " in rendered(found)
        assert "p(plain)   guided" in rendered(found)
        for step in found.steps:
            weight = step.own * (step.own / step.plain) ** 1.5  # their sum over all tokens is 1 or more (Jensen)
            assert 0 < step.guided <= 1.001 * weight and step.sampled >= step.debiased - 1e-6
            assert step.counter is not None or step.debiased == pytest.approx(step.guided)
    row = before[0]
    shown = rendered(explain(tmp_path / "off", f"{row['source_id']}/{row['target']}/{row['attempt']}"))
    assert "plain" not in shown and "guided" not in shown


def test_first_texts_of_the_model_are_not_guided(lm, tmp_path):
    of_model = "source={kind: model, limit: 6, description: d, license: mit}"
    longer = "decoding.max_new_tokens=25"
    for name, settings in (("off", [longer]), ("on", [longer, "decoding.guidance=0.3"])):
        job.generate(tiny(lm, of_model, *settings), tmp_path / name, "test")
    assert rows_of(tmp_path / "on", "sources") == rows_of(tmp_path / "off", "sources") != []
    assert rows_of(tmp_path / "on", "raw") != rows_of(tmp_path / "off", "raw")


def test_a_plan_tells_the_plain_prompt_and_the_rows(lm, tmp_path):
    told = plan(tiny(lm, "decoding.guidance=0.5", "verification={}"), tmp_path / "run")
    assert "guidance: γ = 0.5 away from 'Sentence 2: \"' (one model row more a text)" in told
    assert "(4 model rows a text, 3 on average without it)" in told
    assert "guidance" not in plan(tiny(lm), tmp_path / "run")

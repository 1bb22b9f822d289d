"""What a label sets for itself: ``decay_constant``, ``guidance``, ``samples``, and labels that are never written."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from seeded_writer import FIRSTS, ScoringWriter, rows_of

from generation.explain import explain
from generation.inputs.examples import Example, example_sets
from generation.inputs.prompts import Prompts
from generation.pipeline import job
from generation.plan import estimate, plan
from generation.rows.attempts import write_pairs
from generation.rows.filters import filtered
from hub.contract.recipe import DatasetRecipe, Variant, config_features
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")
SMALL = {"max_new_tokens": 6, "max_attempts": 20, "decay_constant": 30.0}
COPY = {
    "name": "copy",
    "samples": 0,
    "instruction": 'Task: Write the same sentence again.\nSentence 1: "<X1>"\nSentence 2: "',
}
NLI = Path("recipes/datasets/auto-nli.yaml")
RECIPES = sorted(path for path in Path("recipes").rglob("*.yaml") if "kind: dataset" in path.read_text())
OWN = {"1": {"counter_labels": ["copy"], "guidance": 0.5, "samples": 3}, "0.5": {"decay_constant": 3.0, "samples": 1}}


def built(own: dict[str, dict[str, Any]], *more: dict[str, Any], **sections: Any) -> DatasetRecipe:
    """The demo's recipe with keys of its labels changed, and more labels."""
    tree = yaml.safe_load(X2.read_text(encoding="utf-8"))
    tree["labels"] = [{**label, **own.get(label["name"], {})} for label in tree["labels"]] + list(more)
    return DatasetRecipe.model_validate({**tree, **sections})


def tiny(lm: Path, own: dict[str, dict[str, Any]] = OWN, *more: dict[str, Any], **sections: Any) -> DatasetRecipe:
    """The same, small, with the label ``copy``."""
    small = load_recipe(X2, DatasetRecipe, [f"model.path={lm}", "source.limit=6", "shard_size=3"])
    given = {"source": small.source, "model": small.model, "shard_size": 3, "decoding": SMALL, **sections}
    return built(own, *(more or (COPY,)), **given)


def test_unset_keys_are_not_recorded():
    recipe, given = built({}), built(OWN, COPY)
    assert set(yaml.safe_load(resolved(recipe))["labels"][0]) == {"name", "score", "instruction", "counter_labels"}
    assert recipe == load_recipe(X2, DatasetRecipe) and recipe.written_labels == recipe.labels
    settings = ["labels.1.decay_constant=3", "labels.0.guidance=0", "labels.2.samples=1", "decoding.guidance=0.5"]
    changed = [load_recipe(X2, DatasetRecipe, [setting]) for setting in settings]
    assert len({fingerprint(one, {}) for one in (recipe, given, *changed)}) == 6
    zero = load_recipe(X2, DatasetRecipe, ["decoding.guidance=0"])
    assert "guidance" not in resolved(recipe) and resolved(zero) == resolved(recipe)
    assert fingerprint(zero, {}) == fingerprint(recipe, {})
    assert yaml.safe_load(resolved(given))["labels"][3] == {**COPY, "score": None, "counter_labels": []}
    assert DatasetRecipe.model_validate(yaml.safe_load(resolved(given))) == given


@pytest.mark.parametrize(
    ("own", "more", "message"),
    [
        ({"1": {"decay_constant": 3}}, [], "labels.1.decay_constant is of self-debiasing, but .* no counter_labels"),
        ({"1": {"samples": 6}}, [], r"labels.1.samples \(6\) is above decoding.max_attempts \(5\)"),
        ({}, [COPY], "labels.copy.samples: 0, and no other label has it among its counter_labels"),
        ({"1": {"samples": 0}}, [], "labels.1.score is for texts, but samples: 0 asks for none"),
        (OWN, [{**COPY, "guidance": 0.0}], "labels.copy.guidance is for texts"),
        (OWN, [{**COPY, "samples": None}], "labels.copy: schema sts needs a score"),
        ({"1": {"guidance": 1, "instruction": 'Say <X1>"'}}, [], "labels.1.instruction: labels.1.guidance needs a"),
        (
            {"1": {"guidance": 1, "instruction": 'Say <X1>. => "'}},
            [],
            "end the instruction with some, e.g. Sentence 2: ",
        ),
    ],
)
def test_bad_input_is_one_clear_error(own, more, message):
    with pytest.raises(ValueError, match=message):
        built(own, *more)


def test_what_needs_other_sections_is_one_clear_error():
    server = {"backend": "openai", "server": {"base_url": "http://localhost:1/v1", "model": "m"}, "license": "mit"}
    none = {name: {"counter_labels": []} for name in ("1", "0.5", "0")}
    with pytest.raises(ValueError, match=r"labels.1.guidance draws each token .* backend 'openai' cannot do"):
        built({**none, "1": {"guidance": 1}}, model=server)
    assert built({**none, "1": {"guidance": 0, "samples": 1}}, model=server).guided_labels == ()
    with pytest.raises(ValueError, match=r"best_of 3 asks for 9 texts of a .* label, but .* is 5"):
        built({"1": {"samples": 3}}, verification={"best_of": 3})


@pytest.mark.parametrize("best_of", [1, 2])
def test_labels_have_as_many_texts_as_each_asks_for(best_of):
    verification = {"verification": {"best_of": best_of}} if best_of > 1 else {}
    recipe = built(OWN, COPY, decoding={"max_attempts": 8}, postprocess={"max_per_label": 9}, **verification)
    raw, failed = write_pairs(ScoringWriter(1, 1.0), Prompts(recipe), recipe, FIRSTS, int)
    assert not failed and len(raw) == recipe.texts_per_source_sentence * len(FIRSTS)
    kept, dropped = filtered(raw, recipe)
    assert Counter(row["target"] for row in kept) == {"1": 3 * len(FIRSTS), "0.5": len(FIRSTS), "0": 2 * len(FIRSTS)}
    assert {row["reason"] for row in dropped} <= {"not_best"} and len(dropped) == (best_of - 1) * len(kept)
    if best_of > 1:  # none of the label that is never written
        assert (
            set(raw[0]["log_likelihoods"])
            == {"1", "0.5", "0"}
            == set(config_features("raw", recipe)["log_likelihoods"])
        )


def test_a_run_with_all_of_it(lm, tmp_path):
    recipe = tiny(lm, verification={"best_of": 2, "scores": "soft"}, postprocess={"max_per_label": 3})
    manifest = job.generate(recipe, tmp_path / "run", "test")
    rows = [*rows_of(tmp_path / "run", "raw"), *rows_of(tmp_path / "run", "rejected")]
    targets = ["1", "0.5", "0"]
    assert {row["target"] for row in rows} == set(targets) == set(manifest.counts["by_label"])
    assert set(manifest.counts["likeliest"]) == set(targets)
    timing = json.loads((tmp_path / "run.timing.json").read_text())
    assert timing["rows"] == len(rows_of(tmp_path / "run", "raw"))
    for target in targets:
        row = next(row for row in rows if row["target"] == target)
        found = explain(tmp_path / "run", f"{row['source_id']}/{target}/{row['attempt']}")
        assert found.differences == []
        assert (found.request.guidance, found.request.decay_constant) == {
            "1": (0.5, None),
            "0.5": (None, 3.0),
            "0": (None, None),
        }[target]
        assert (found.request.plain_prompt is None) == (target != "1")
        assert all((step.guided is None) == (target != "1") for step in found.steps)
        assert bool(re.search(r"p\(plain\) +guided", str(found))) == (target == "1")
        for step in found.steps if target == "1" else ():
            weight = step.own * (step.own / step.plain) ** 0.5  # their sum over all tokens is 1 or more (Jensen)
            assert 0 < step.guided <= 1.001 * weight and step.sampled >= step.debiased - 1e-6
        assert any("the same sentence again" in text for text in found.request.counter_prompts) == (target == "1")
    with pytest.raises(InputError, match=r"row id '000000/copy/0'.* TARGET 1 \| 0.5 \| 0"):
        explain(tmp_path / "run", "000000/copy/0")


def test_other_labels_texts_are_those_without_the_keys(lm, tmp_path):
    """A label's own settings are of its own texts alone; the plain row is asked for where γ is above 0 alone."""
    zero = {"1": {"counter_labels": ["copy"], "guidance": 0.0}}
    job.generate(tiny(lm), tmp_path / "own", "test")
    job.generate(tiny(lm, {"1": {"counter_labels": ["copy"]}}), tmp_path / "plain", "test")
    job.generate(tiny(lm, zero, decoding={**SMALL, "guidance": 0.5}), tmp_path / "off", "test")
    own, plain, off = dict[str, list](), dict[str, list](), dict[str, list]()
    for name, found in (("own", own), ("plain", plain), ("off", off)):
        for row in rows_of(tmp_path / name, "raw"):
            found.setdefault(row["target"], []).append(row)
    assert own["0"] == plain["0"] and off["1"] == plain["1"]
    assert own["1"] != plain["1"] and own["0.5"] != plain["0.5"]


def test_a_plan_and_an_estimate_count_what_each_label_asks_for(lm, tmp_path):
    recipe = tiny(lm, verification={})
    said = plan(recipe, tmp_path / "run")
    assert "texts: 36 wanted, 18 of label 1, 6 of label 0.5, 12 of label 0; at most 360 attempts" in said
    assert "label copy: samples 0" in said and "label 0.5: decay_constant 3.0, samples 1" in said
    assert "guidance: away from 'Sentence 2: \"', in texts of label 1 (one model row more a text)" in said
    assert "prompts of 3 labels; scores alone" in said
    assert "3 source sentences and 18 wanted texts" in said and "=== label copy" not in said
    found = estimate(recipe)
    assert set(found.keep_rate) == {"1", "0.5", "0"}
    job.generate(recipe, tmp_path / "run", "test")
    assert found.rows == len(rows_of(tmp_path / "run", "raw"))


def test_a_column_by_hand_for_a_label_that_is_never_written(tmp_path):
    """Its examples may repeat their source sentence, as its prompt asks; those of other labels may not."""
    path = tmp_path / "examples.tsv"
    examples = {"kind": "hand", "path": str(path), "description": "ours", "license": "cc0-1.0"}
    recipe = built(OWN, COPY, few_shot={"shots": [2], "sets": 2, "examples": examples})
    rows = [f"First {n}.\tSame {n}.\tLike {n}.\tOther {n}.\tFirst {n}." for n in range(4)]
    path.write_text("\n".join(["text1\t1\t0.5\t0\tcopy", *rows]), encoding="utf-8")
    sets = example_sets(recipe)
    assert all(one.hypothesis == one.premise for of_set in sets[2] for one in of_set["copy"])
    (prompt, counters) = Prompts(recipe, sets).of(recipe.labels[0], "Now.", recipe.variants[0])
    first = sets[2][0]["copy"][0].premise
    assert len(counters) == 1 and counters[0].endswith('Sentence 1: "Now."\nSentence 2: "')
    assert f'Sentence 1: "{first}"\nSentence 2: "{first}"' in counters[0] and f'2: "{first}"' not in prompt
    copied = [row.replace("Same", "First") for row in rows]
    path.write_text("\n".join(["text1\t1\t0.5\t0\tcopy", *copied]), encoding="utf-8")
    with pytest.raises(InputError, match=r"row 0, column '1': repeats its source sentence"):
        example_sets(recipe)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to("recipes")))
def test_every_recipe_has_plain_prompts_without_task_and_source_sentence(path):
    """Last words of a line, or of a sentence: ``Answer: "`` of Auto-NLI's instruction."""
    found = {label.plain_prompt for label in load_recipe(path, DatasetRecipe).labels}
    assert len(found) == 1 and found <= {'Sentence 2: "', 'Answer: "', 'Review: "'}


def test_a_plain_prompt_has_no_examples():
    few = load_recipe(NLI, DatasetRecipe, ["decoding.guidance=1"])
    example = {name: (Example(0, "premise", "said"),) for name in ("entailment", "contradiction")}
    prompts, label = Prompts(few, {5: [example]}), few.labels[0]
    assert "premise" in prompts.of(label, "First.", Variant(5, 0))[0] and prompts.plain(label) == 'Answer: "'
    assert Prompts(load_recipe(NLI, DatasetRecipe), {5: [example]}).plain(label) is None

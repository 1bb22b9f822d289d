"""What a label sets for itself: ``decay_constant``, ``guidance``, ``samples``, and labels that are
never written.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from seeded_writer import FIRSTS, ScoringWriter, rows_of, write_pairs

from sts_dino.generation.explain import explain_row
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.pipeline import job
from sts_dino.generation.plan import describe_plan, estimate_run
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.hub.contract.recipe import DatasetRecipe, build_config_features
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")
SMALL = {"max_new_tokens": 6, "max_attempts": 20, "decay_constant": 30.0}
COPY = {
    "name": "copy",
    "samples": 0,
    "instruction": 'Task: Write the same sentence again.\nSentence 1: "<X1>"\nSentence 2: "',
}
RECIPES = sorted(
    path for path in Path("recipes").rglob("*.yaml") if "kind: dataset" in path.read_text()
)
OWN = {
    "1": {"counter_labels": ["copy"], "guidance": 0.5, "samples": 3},
    "0.5": {"decay_constant": 3.0, "samples": 1},
}


def built(own: dict[str, dict[str, Any]], *more: dict[str, Any], **sections: Any) -> DatasetRecipe:
    """The demo's recipe with keys of its labels changed, and more labels."""
    tree = yaml.safe_load(X2.read_text(encoding="utf-8"))
    tree["labels"] = [{**label, **own.get(label["name"], {})} for label in tree["labels"]] + list(
        more
    )
    return DatasetRecipe.model_validate({**tree, **sections})


def tiny(
    lm: Path, own: dict[str, dict[str, Any]] = OWN, *more: dict[str, Any], **sections: Any
) -> DatasetRecipe:
    """The same, small, with the label ``copy``."""
    small = load_recipe(X2, DatasetRecipe, [f"model.path={lm}", "source.limit=6", "shard_size=3"])
    given = {
        "source": small.source,
        "model": small.model,
        "shard_size": 3,
        "decoding": SMALL,
        **sections,
    }
    return built(own, *(more or (COPY,)), **given)


@pytest.mark.parametrize("best_of", [1, 2])
def test_labels_have_as_many_texts_as_each_asks_for(best_of):
    verification = {"verification": {"best_of": best_of}} if best_of > 1 else {}
    recipe = built(
        OWN, COPY, decoding={"max_attempts": 8}, postprocess={"max_per_label": 9}, **verification
    )
    raw, failed = write_pairs(ScoringWriter(1, 1.0), Prompts(recipe), recipe, FIRSTS, int)
    assert not failed and len(raw) == recipe.texts_per_source_sentence * len(FIRSTS)
    kept, dropped = filter_rows(raw, recipe)
    assert Counter(row["target"] for row in kept) == {
        "1": 3 * len(FIRSTS),
        "0.5": len(FIRSTS),
        "0": 2 * len(FIRSTS),
    }
    assert {row["reason"] for row in dropped} <= {"not_best"} and len(dropped) == (
        best_of - 1
    ) * len(kept)
    if best_of > 1:  # none of the label that is never written
        assert (
            set(raw[0]["log_likelihoods"])
            == {"1", "0.5", "0"}
            == set(build_config_features("raw", recipe)["log_likelihoods"])
        )


def test_a_run_with_all_of_it(lm, tmp_path):
    recipe = tiny(
        lm, verification={"best_of": 2, "scores": "soft"}, postprocess={"max_per_label": 3}
    )
    manifest = job.generate(recipe, tmp_path / "run", "test")
    rows = [*rows_of(tmp_path / "run", "raw"), *rows_of(tmp_path / "run", "rejected")]
    targets = ["1", "0.5", "0"]
    assert {row["target"] for row in rows} == set(targets) == set(manifest.counts["by_label"])
    assert set(manifest.counts["likeliest"]) == set(targets)
    timing = json.loads((tmp_path / "run.timing.json").read_text())
    assert timing["rows"] == len(rows_of(tmp_path / "run", "raw"))
    for target in targets:
        row = next(row for row in rows if row["target"] == target)
        found = explain_row(tmp_path / "run", f"{row['source_id']}/{target}/{row['attempt']}")
        assert found.differences == []
        assert (found.request.guidance, found.request.decay_constant) == {
            "1": (0.5, None),
            "0.5": (None, 3.0),
            "0": (None, None),
        }[target]
        assert (found.request.plain_prompt is None) == (target != "1")
        assert all((step.guided is None) == (target != "1") for step in found.steps)
        assert bool(re.search(r"p\(plain\) +guided", str(found))) == (target == "1")
        assert any("the same sentence again" in text for text in found.request.counter_prompts) == (
            target == "1"
        )
    with pytest.raises(InputError, match=r"row id '000000/copy/0'.* TARGET 1 \| 0.5 \| 0"):
        explain_row(tmp_path / "run", "000000/copy/0")


def test_a_plan_and_an_estimate_count_what_each_label_asks_for(lm, tmp_path):
    recipe = tiny(lm, verification={})
    said = describe_plan(recipe, tmp_path / "run")
    assert (
        "texts: 36 wanted, 18 of label 1, 6 of label 0.5, 12 of label 0; at most 360 attempts"
        in said
    )
    assert "label copy: samples 0" in said and "label 0.5: decay_constant 3.0, samples 1" in said
    guidance = (
        "guidance: away from 'Sentence 2: \"', in texts of label 1 (γ = 0.5): "
        "one model row more a text"
    )
    assert guidance in said
    assert "prompts of 3 labels; scores alone" in said
    assert "3 source sentences and 18 wanted texts" in said and "=== label copy" not in said
    found = estimate_run(recipe)
    assert set(found.keep_rate) == {"1", "0.5", "0"}
    job.generate(recipe, tmp_path / "run", "test")
    assert found.rows == len(rows_of(tmp_path / "run", "raw"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to("recipes")))
def test_every_recipe_has_plain_prompts_without_task_and_source_sentence(path):
    """Last words of a line, or of a sentence: ``Answer: "`` of Auto-NLI's instruction."""
    found = {label.plain_prompt for label in load_recipe(path, DatasetRecipe).labels}
    assert len(found) == 1 and found <= {'Sentence 2: "', 'Answer: "', 'Query: "', 'Review: "'}

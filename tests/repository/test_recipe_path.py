"""How many functions a recipe passes before training starts: few layers between the command and what acts."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

import training.run
from hub.contract.recipe import ModelRecipe
from training.loop import train

RECIPE = "recipes/demo/demo-sts-dino.yaml"
ROOT = str(Path(__file__).parents[2])
FUNCTIONS, CALLS = 20, 40  # goals of issue "House III"


def is_recipe(value: object) -> bool:
    """Whether a value is the recipe: its path, its mapping or the checked object."""
    if isinstance(value, dict):
        return {"kind", "base"} <= value.keys()
    return isinstance(value, ModelRecipe) or (isinstance(value, str | Path) and str(value).endswith(RECIPE))


def test_a_recipe_passes_few_functions_before_training_starts(tmp_path, monkeypatch):
    rows = [{"sentence1": f"a man number {i}", "sentence2": f"a person {i}", "score": i % 3 / 2} for i in range(64)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = {"path": str(tmp_path / "pairs.jsonl"), "config": "default", "example_type": "sts", "license": "mit"}
    passed = Counter[str]()

    def look(frame, event, _) -> None:
        code = frame.f_code
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        own = taken[:1] in (("self",), ("cls",))  # a method of the recipe is the recipe's own
        if event != "call" or own or not code.co_filename.startswith(ROOT):
            return
        if any(is_recipe(frame.f_locals.get(name)) for name in taken):
            passed[f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}"] += 1

    monkeypatch.setattr(train, "train", lambda *_: sys.exit())
    settings = [f"datasets={json.dumps([data | {'loss': 'CosineSimilarityLoss'}])}"]
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        with pytest.raises(SystemExit):
            training.run.main(Path(RECIPE), out=tmp_path / "run", settings=settings)
    finally:
        sys.setprofile(before)
    found = {name: count for name, count in passed.items() if "/tests/" not in name and "/.venv/" not in name}
    assert 10 < len(found) <= FUNCTIONS, "\n".join(found)
    assert sum(found.values()) <= CALLS, found

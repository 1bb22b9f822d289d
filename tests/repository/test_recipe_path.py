"""How many functions and files a recipe passes before training starts: few layers between the
command and what acts.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from walks import find_own_file

import sts_dino.training.run
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.training.loop import train

RECIPE = "recipes/demo/demo-sts-dino.yaml"
RECIPE_MODULE = "hub/contract/recipe.py"
# functions that take the recipe, their calls, their files
FUNCTIONS, CALLS, FILES = 21, 30, 6
ALL_FILES = 21  # whose functions run before training starts, with the recipe or without


def is_recipe(value: object) -> bool:
    """Whether a value is the recipe: its path, its mapping or the checked object."""
    if isinstance(value, dict):
        return {"kind", "base"} <= value.keys()
    return isinstance(value, ModelRecipe) or (
        isinstance(value, str | Path) and str(value).endswith(RECIPE)
    )


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Calls of functions that take the recipe, by file and name; and all files that are passed."""
    folder = tmp_path_factory.mktemp("walk")
    rows = [
        {"sentence1": f"a man number {i}", "sentence2": f"a person {i}", "score": i % 3 / 2}
        for i in range(64)
    ]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = {
        "path": str(folder / "pairs.jsonl"),
        "config": "default",
        "example_type": "sts",
        "license": "mit",
        "loss": "CosineSimilarityLoss",
    }
    calls = Counter[tuple[str, str]]()
    files: set[str] = set()

    def note(frame, event, _) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>":
            return
        path = find_own_file(code.co_filename)
        if path is None:
            return
        files.add(path)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        # methods of the recipe and the rules in its module are the recipe's own
        is_own = arguments[:1] in (("self",), ("cls",)) or path == RECIPE_MODULE
        if not is_own and any(is_recipe(frame.f_locals.get(name)) for name in arguments):
            calls[path, code.co_qualname] += 1

    profiler = sys.getprofile()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(train, "train", lambda *_: sys.exit())
        sys.setprofile(note)
        try:
            sts_dino.training.run.main(
                Path(RECIPE), out=folder / "run", settings=[f"datasets={json.dumps([data])}"]
            )
        finally:
            sys.setprofile(profiler)
    return calls, files


def test_a_recipe_passes_few_functions_before_training_starts(walk):
    calls, _ = walk
    assert 10 < len(calls) <= FUNCTIONS, sorted(calls)
    assert calls.total() <= CALLS, calls


def test_a_recipe_passes_few_files_before_training_starts(walk):
    calls, files = walk
    assert 3 < len({path for path, _ in calls}) <= FILES, calls
    assert 10 < len(files) <= ALL_FILES, sorted(files)

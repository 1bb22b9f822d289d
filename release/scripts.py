"""Loading scripts, one for each dataset recipe: sts-dino loading-scripts [--check]

A script is written for one recipe: it names what the recipe decides, and imports the modules beside it, which are the
same for all. The scripts in ``dataset_scripts/`` are those of ``recipes/datasets``; a run publishes its own recipe's.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from hub import cli
from hub.assets import dataset_scripts
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.shards import write_text
from hub.errors import InputError, RunError

RECIPES, SCRIPTS = Path("recipes/datasets"), Path("dataset_scripts")
TEMPLATE = "loading_script.py.jinja"
# No name of a recipe has an underscore.
SHARED = ("published_dataset.py", "finished_rows.py", "downloaded_copy.py", "verify_copy.py")

app = cli.new_app(__doc__)


@app.command()
def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when a file differs")] = False,
) -> None:
    """Write dataset_scripts/<name>.py for every recipe in recipes/datasets, and remove those without a recipe."""
    wanted = committed()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    without = sorted(set(SCRIPTS.glob("*.py")) - set(wanted) - {SCRIPTS / name for name in SHARED})
    if check and (stale or without):
        names = ", ".join(str(path) for path in (*stale, *without))
        raise RunError(names, "not as the recipes make them", hint="run: sts-dino loading-scripts")
    for path in stale:
        write_text(path, wanted[path])
        print(f"written {path}")
    for path in without:
        path.unlink()
        print(f"removed {path}")


def committed() -> dict[Path, str]:
    """The scripts of the recipes in ``recipes/datasets``, by path."""
    recipes = [load_recipe(path, DatasetRecipe) for path in sorted(RECIPES.glob("*.yaml"))]
    return {SCRIPTS / script_name(recipe): script_text(recipe) for recipe in recipes}


def script_name(recipe: DatasetRecipe) -> str:
    """The file's name: ``datasets`` below 4 looks for ``<repo name>.py`` and imports it as a Python module.

    Raises InputError for a name with a dot, which no module can have.
    """
    if not recipe.has_script:
        raise InputError(
            f"recipe:name {recipe.name!r}",
            "a loading script cannot have a dot in its name",
            hint="use a hyphen: sts-dino-x2",
        )
    return f"{recipe.name}.py"


def script_files(recipe: DatasetRecipe) -> dict[str, str]:
    """Name → text of what the branch ``script`` of a recipe's dataset holds beside the files of main."""
    return {
        script_name(recipe): script_text(recipe),
        **{name: (dataset_scripts() / name).read_text(encoding="utf-8") for name in SHARED},
    }


def script_text(recipe: DatasetRecipe) -> str:
    """The loading script of a recipe's dataset, which imports the shared modules beside it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(dataset_scripts()),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is Python: texts pass through json.dumps
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(TEMPLATE).render(name=recipe.name, spec=spec(recipe))


def spec(recipe: DatasetRecipe) -> dict[str, str]:
    """What a recipe decides, as the Python text of the arguments of ``published_dataset.Spec``."""
    rules, names = recipe.postprocess, [label.name for label in recipe.written_labels]
    sets = Counter(variant.shots for variant in recipe.variants)
    facts = {
        "name": json.dumps(recipe.name),
        "form": json.dumps(recipe.form),
        "seed": repr(recipe.seed),
        "sets": repr(dict(sets)),
        "labels": json.dumps(recipe.dataset_form.labels or names),
        "max_per_label": repr(rules.max_per_label),
        "validation_fraction": repr(rules.validation_fraction),
        "sources": repr(recipe.source.kind == "model"),
    }
    if recipe.dataset_form.scored:
        facts["scores"] = json.dumps({label.name: label.score or 0.0 for label in recipe.written_labels})
        facts |= {"smoothing": repr(rules.smoothing), "sampled_negatives": repr(rules.sampled_negatives)}
    if recipe.verification:
        facts |= {"verification": repr(recipe.verification.model_dump()), "targets": json.dumps(names)}
        facts["samples"] = json.dumps(
            {label.name: recipe.decoding_of(label).samples for label in recipe.written_labels}
        )
    return facts | ({"equal_triplets": repr(rules.equal_triplets)} if "triplet" in recipe.dataset_form.finished else {})

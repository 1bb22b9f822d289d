"""Loading scripts, one for each dataset recipe: python -m release.scripts [--check]

A script is written for one recipe, since its features, class names and post-processing constants are the recipe's. The
files in ``dataset_scripts/`` are those of ``recipes/datasets``; a run publishes the script of its own recipe.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hub import cli
from hub.errors import InputError, RunError
from hub.recipe import NLI_LABELS, DatasetRecipe
from hub.recipe_file import load_recipe
from hub.shards import write_text

RECIPES, SCRIPTS = Path("recipes/datasets"), Path("dataset_scripts")
TEMPLATE = Path(__file__).resolve().parents[1] / SCRIPTS / "loading_script.py.jinja"

app = cli.new_app(__doc__)


@app.command()
def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail when a file differs")] = False,
) -> None:
    """Write dataset_scripts/<name>.py for every recipe in recipes/datasets, and remove those without a recipe."""
    wanted = committed()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    without = sorted(set(SCRIPTS.glob("*.py")) - set(wanted))
    if check and (stale or without):
        names = ", ".join(str(path) for path in (*stale, *without))
        raise RunError(names, "not as the recipes make them", hint="run: python -m release.scripts")
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


def script_text(recipe: DatasetRecipe) -> str:
    """The loading script of a recipe's dataset: for the branch ``script`` of its repository."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is Python: texts pass through ``literal``
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["literal"] = literal
    return environment.get_template(TEMPLATE.name).render(facts(recipe))


def facts(recipe: DatasetRecipe) -> dict[str, Any]:
    """What a script knows of its recipe."""
    names = [label.name for label in recipe.labels]
    sets = dict.fromkeys((variant.shots for variant in recipe.variants), 0)
    for variant in recipe.variants:
        sets[variant.shots] += 1
    return {
        "name": recipe.name,
        "form": recipe.form,
        "seed": recipe.seed,
        "sets": sets,
        "few_shot": recipe.few_shot is not None,
        "sources": recipe.source.kind == "model",
        "class_names": NLI_LABELS if recipe.form == "nli" else names,
        "scores": {label.name: label.score or 0.0 for label in recipe.labels},
        "max_per_label": recipe.postprocess.max_per_label,
        "validation_fraction": recipe.postprocess.validation_fraction,
        "equal_triplets": recipe.postprocess.equal_triplets,
        "smoothing": recipe.postprocess.smoothing,
        "sampled_negatives": recipe.postprocess.sampled_negatives,
    }


def literal(text: str) -> str:
    """``text`` as a Python string between double quotation marks."""
    return json.dumps(text)


if __name__ == "__main__":
    cli.run(app)

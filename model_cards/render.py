"""Write the card of a run directory: README.md, and for a model .eval_results/.

    python -m model_cards.render artifacts/datasets/NAME [--repo-id ORG/NAME] [--dry-run]

Reads manifest.json, recipe.yaml, results.json, the shards and ``model_cards/sections/NAME.md``, and nothing else. The
same directory gives the same bytes: a card holds no date, no timing and no machine.
"""

from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hub.cli import DryRunOption, new_app, run
from hub.errors import InputError
from hub.recipe import DatasetRecipe, ModelRecipe
from hub.recipe_file import load_recipe
from hub.run_dir import RECIPE, Manifest, read_manifest, require_complete
from hub.shards import write_text
from model_cards.checks import check_identity
from model_cards.dataset_card import dataset_card
from model_cards.eval_results import FOLDER as EVAL_RESULTS
from model_cards.model_card import model_files

CARD = "README.md"
ORGANISATION = "sts-dino"

app = new_app("Write the card of a finished or growing run directory.")


def render(directory: Path, repo_id: str | None = None) -> dict[str, str]:
    """The files of the card, path → text. Writes nothing."""
    manifest = _manifest(directory)
    repo_id = checked_repo_id(repo_id or f"{ORGANISATION}/{manifest.name}")
    if manifest.kind == "dataset":
        recipe = load_recipe(directory / RECIPE, DatasetRecipe)
        check_identity(directory, manifest, recipe.name, recipe.version)
        return {CARD: dataset_card(directory, manifest, recipe, repo_id)}
    model_recipe = load_recipe(directory / RECIPE, ModelRecipe)
    check_identity(directory, manifest, model_recipe.name, model_recipe.version)
    return model_files(directory, require_complete(directory), model_recipe, repo_id)


def _manifest(directory: Path) -> Manifest:
    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError(
            directory, "is not a run directory (no manifest.json)", hint="run the stage that makes it first"
        )
    return manifest


def checked_repo_id(repo_id: str) -> str:
    """``repo_id`` when it is a full Hub id. Raises InputError otherwise."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError("--repo-id", str(error).splitlines()[0]) from error
    if repo_id.count("/") != 1:
        raise InputError("--repo-id", f"{repo_id!r} has no organisation", allowed="ORG/NAME")
    return repo_id


def write(directory: Path, files: dict[str, str]) -> None:
    """Write the card's files, and remove evaluation entries that an earlier card left and this one does not have."""
    for path, text in sorted(files.items()):
        write_text(directory / path, text)
    for old in sorted((directory / EVAL_RESULTS).glob("*.yaml")):
        if old.relative_to(directory).as_posix() not in files:
            old.unlink()


@app.command()
def main(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="e.g. artifacts/datasets/NAME")],
    repo_id: Annotated[str | None, typer.Option("--repo-id", help="Hub id [default: sts-dino/NAME]")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write README.md (and .eval_results/ for a model) into RUN_DIR."""
    files = render(run_dir, repo_id)
    if not dry_run:
        write(run_dir, files)
    for path, text in sorted(files.items()):
        verb = "would write" if dry_run else "wrote"
        print(f"{verb} {run_dir / path} ({len(text.encode())} bytes)")


if __name__ == "__main__":
    run(app)

"""A finished run under a changed recipe: other words and licences, the same rows or weights."""

from pathlib import Path
from typing import Any

from hub.contract.licences import check, check_model
from hub.contract.published_paths import published
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import deciding, load_recipe, resolved
from hub.contract.run_dir import RECIPE, Manifest, changed_keys, locked, require_complete, rewrite_recipe
from hub.errors import InputError
from model_cards.model.card import licensed, told_under
from model_cards.shared.changes import change_table
from model_cards.shared.facts import ModelProvenance, read_facts

_SHOWN = 5  # keys in a message


def update_recipe(directory: Path, recipe_path: Path, settings: list[str], dry_run: bool) -> list[str]:
    """Give a finished run another recipe of the same rows or weights; ``KEY VALUE there, VALUE now`` of every change.

    Manifest and recipe.yaml are rewritten, unless it is a ``dry_run``; the card is stale then, until it is written.

    Raises InputError when the run is not finished, a key differs that decides rows or weights, or a licence does not
    follow from the parts; RunError when another process holds the run.
    """
    with locked(directory):
        manifest = require_complete(directory)
        kind: Any = DatasetRecipe if manifest.kind == "dataset" else ModelRecipe
        kept = load_recipe(directory / RECIPE, kind)
        given = _as_run(load_recipe(recipe_path, kind, settings), kept)
        _require_same(directory, recipe_path, manifest, kept, given)
        _require_card(directory, manifest, given)
        if not dry_run:
            rewrite_recipe(directory, manifest, given.version, resolved(given))
        return changed_keys(_plain(kept), _plain(given))


def _as_run(given: Any, kept: Any) -> Any:
    """``given`` with the number format that ``auto`` was found to be where the run was made."""
    if isinstance(given, DatasetRecipe) and given.model.dtype == "auto":
        model = given.model.model_copy(update={"dtype": kept.model.dtype})
        return given.model_copy(update={"model": model})
    return given


def _require_same(directory: Path, recipe_path: Path, manifest: Manifest, kept: Any, given: Any) -> None:
    found = changed_keys(deciding(published(kept)), deciding(published(given)))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        problem = f"differs from the run {directory} in what decides it: {'; '.join(found[:_SHOWN])}{more}"
        command = manifest.provenance.get("command")
        made = f"; the run was made by: {command}" if command else ""
        hint = f"make another run of it, or say what is another than in the file: --set KEY=VALUE{made}"
        raise InputError(recipe_path, problem, hint=hint)


def _require_card(directory: Path, manifest: Manifest, given: Any) -> None:
    """Raise InputError when the run could have no card under this recipe."""
    if isinstance(given, DatasetRecipe):
        check(given)
        change_table(given.name, given.version, complete=True)
        return
    facts = read_facts(directory, "provenance", manifest.provenance, ModelProvenance)
    check_model(given, licensed(given, facts))
    if not given.is_baseline:
        change_table(told_under(given), given.version, complete=True)


def _plain(recipe: Any) -> Any:
    return published(recipe).model_dump(mode="json")

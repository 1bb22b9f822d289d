"""Where a run's inputs lie on this machine: kept beside its directory, because what is in there is published."""

import json
from collections.abc import Sequence
from pathlib import Path

from hub.errors import InputError
from hub.published_paths import is_outside, local_paths
from hub.recipe import DatasetRecipe, ModelRecipe
from hub.run_dir import MANIFEST, RECIPE, read_manifest
from hub.shards import write_text

_SHOWN = 3  # checksums in a message


def _note(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.places.json")


def remember(directory: Path, recipe: DatasetRecipe | ModelRecipe) -> None:
    """Note beside a run directory, which is published, where its inputs lie that it names by their last name alone."""
    places = {key: str(Path(path).resolve()) for key, path in local_paths(recipe).items() if is_outside(path)}
    if places:
        write_text(_note(directory), json.dumps(places, indent=2) + "\n")
    else:
        _note(directory).unlink(missing_ok=True)


def remembered(directory: Path) -> list[str]:
    """The settings that put the noted places back into a run's recipe; none for a run that was made elsewhere."""
    try:
        places = json.loads(_note(directory).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return [f"{key}={json.dumps(path)}" for key, path in places.items()]


def require_inputs(recipe_path: Path, recipe: DatasetRecipe | ModelRecipe, unneeded: Sequence[str] = ()) -> None:
    """Raise InputError for a published recipe whose local inputs are not here, with the checksums of what they are.

    The manifest beside the recipe has those. A recipe that lies anywhere else is left to the stage's own checks.
    """
    if recipe_path.name != RECIPE or not (recipe_path.parent / MANIFEST).is_file():
        return
    manifest = read_manifest(recipe_path.parent)
    for key, path in local_paths(recipe).items():
        found = [(name, digest) for name, digest in manifest.inputs.items() if _is_of(name, path)] if manifest else []
        if found and key not in unneeded and not Path(path).exists():
            files = ", ".join(f"{name} with SHA-256 {digest}" for name, digest in found[:_SHOWN])
            more = f" and {len(found) - _SHOWN} more in {MANIFEST}" if len(found) > _SHOWN else ""
            hint = f"put it there, or say where it is: --set {key}=PLACE"
            raise InputError(f"{recipe_path}: {key} {path}", f"is not published; it is {files}{more}", hint=hint)


def _is_of(name: str, path: str) -> bool:
    """Whether an input's name in a manifest is of ``path``: the file, a file in the folder, a base or a dataset."""
    return name in (path, f"base:{path}") or name.startswith((f"{path}/", f"dataset:{path}:"))

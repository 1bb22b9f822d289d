"""How an encoder is made again, as its card tells it."""

from typing import Any

from hub.contract.published_paths import local_paths, published_path
from hub.contract.recipe import ModelRecipe
from hub.contract.run_dir import Manifest
from hub.markdown import Markdown, code, table
from model_cards.shared.again import IN_THE_CLONE, commands, input_digest
from model_cards.shared.facts import ModelProvenance


def making_again(manifest: Manifest, recipe: ModelRecipe, provenance: ModelProvenance, repo_id: str) -> dict[str, Any]:
    """Template variables of ``again.md.jinja``."""
    return {
        "command": provenance.command,
        "commit": provenance.code.commit if provenance.code else None,
        "again": commands(repo_id, f"v{recipe.version}", manifest, provenance.code),
        "local_inputs": local_inputs(recipe, manifest),
    }


def local_inputs(recipe: ModelRecipe, manifest: Manifest) -> Markdown | None:
    """Folders and files that the training read from a disk: key, name, SHA-256. None where there are none."""
    rows = [
        [code(key), code(published_path(path)), code(digest), "in the clone" if path.startswith(IN_THE_CLONE) else ""]
        for key, path in local_paths(recipe).items()
        if (digest := input_digest(path, manifest)) is not None
    ]
    return table(["key", "name", "SHA-256", "where it is had"], rows) if rows else None

"""How an encoder is made again, as its card tells it."""

import re
from pathlib import PurePath
from typing import Any

from hub.contract.published_paths import local_paths, published_path
from hub.contract.recipe import ModelRecipe
from hub.contract.run_dir import Manifest
from hub.untrusted import Markdown, code, table
from model_cards.shared.again import IN_THE_CLONE, commands, input_digest, made_from
from model_cards.shared.facts import ModelProvenance

RUN_DIRECTORY = re.compile(r"datasets\.\d+\.path|base\.vocabulary\.path")  # a file of rows has a suffix


def making_again(manifest: Manifest, recipe: ModelRecipe, provenance: ModelProvenance, repo_id: str) -> dict[str, Any]:
    """Template variables of ``again.md.jinja``."""
    return {
        "command": provenance.command,
        "commit": provenance.code.commit if provenance.code else None,
        "again": commands(repo_id, f"v{recipe.version}", manifest, provenance.code),
        "local_inputs": local_inputs(recipe, manifest, provenance, repo_id.partition("/")[0]),
    }


def local_inputs(recipe: ModelRecipe, manifest: Manifest, provenance: ModelProvenance, owner: str) -> Markdown | None:
    """Folders and files that the training read from a disk: key, name, SHA-256. None where there are none."""

    def had(key: str, path: str) -> Markdown:
        if path.startswith(IN_THE_CLONE):
            return Markdown("in the clone")
        if RUN_DIRECTORY.fullmatch(key) and not PurePath(path).suffix:
            name = code(f"{owner}/{PurePath(published_path(path)).name}")
            return Markdown(f"a dataset; if it was published with the encoder, {name}")
        told = made_from(provenance.base.upstream) if key == "base.path" else None
        return told or Markdown("whoever published the encoder knows where from")

    rows = [
        [code(key), code(published_path(path)), code(digest), had(key, path)]
        for key, path in local_paths(recipe).items()
        if (digest := input_digest(path, manifest)) is not None
    ]
    return table(["key", "name", "SHA-256", "where it is had"], rows) if rows else None

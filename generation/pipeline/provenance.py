"""Provenance section of a run's manifest: command, model, source, examples."""

from pathlib import Path
from typing import Any

import yaml

from generation.inputs.prompts import Prompts
from generation.pipeline.executor import Executor
from hub import safe_yaml
from hub.contract.published_paths import published_path
from hub.contract.recipe import DatasetRecipe

ORIGIN = "provenance.yaml"  # in a folder that generation.fetch_lm made: what it was made from


def provenance(
    recipe: DatasetRecipe,
    executor: Executor,
    prompts: Prompts,
    inputs: dict[str, str],
    command: str,
    code: dict[str, str],
) -> dict[str, Any]:
    """Where the data came from, beyond the recipe. No key that the card takes from there: it may be corrected later.

    ``code``: the clone that the run was begun in (``hub.contract.published_paths.clone_of``).
    """
    model = recipe.model
    weights = [digest for path, digest in inputs.items() if path.endswith((".safetensors", ".gguf"))]
    examples = prompts.provenance()
    if recipe.few_shot:
        examples["examples"]["sha256"] = inputs.get(published_path(str(recipe.few_shot.examples.path)))
    return {
        "command": command,
        "model": {
            "id": model.repo_id or (model.path and published_path(model.path)),
            "revision": model.revision,
            "sha256": weights[0] if weights else None,
            **executor.describe(),
            **_upstream(model.path),
        },
        "source": {"sha256": inputs.get(published_path(str(recipe.source.path)))},
        **examples,
        **({"code": code} if code else {}),
    }


def _upstream(path: str | None) -> dict[str, Any]:
    """What the folder of a language model says it was made from, where ``generation.fetch_lm`` made it."""
    place = Path(path or "") / ORIGIN
    if path is None or not place.is_file():
        return {}
    try:
        told = safe_yaml.load(place.read_text(encoding="utf-8"), max_bytes=1 << 16, max_depth=5, max_nodes=1_000)
        packages = {str(name): str(version) for name, version in told["packages"].items()}
        return {"upstream": {"model": str(told["model"]), "made_by": str(told["made_by"]), "packages": packages}}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):  # somebody else's file
        return {}

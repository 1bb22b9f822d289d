"""Provenance section of a run's manifest: command, model, source, examples."""

from typing import Any

from generation.inputs.prompts import Prompts
from generation.pipeline.executor import Executor
from hub.contract.published_paths import published_path
from hub.contract.recipe import DatasetRecipe
from hub.untrusted import upstream_of


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
            **upstream_of(model.path),
        },
        "source": {"sha256": inputs.get(published_path(str(recipe.source.path)))},
        **examples,
        **({"code": code} if code else {}),
    }

"""A small Auto-NLI recipe with few-shot examples, for tests of what stands before the model."""

from typing import Any

from hub.contract.recipe import DatasetRecipe


def nli_recipe(labels: list[dict[str, Any]], **changes: Any) -> DatasetRecipe:
    """``changes`` set or replace keys of the recipe, e.g. ``few_shot``."""
    return DatasetRecipe.model_validate(
        {
            "kind": "dataset",
            "name": "few",
            "version": "0.1.0",
            "schema": "nli",
            "pretty_name": "Few",
            "license": "cc0-1.0",
            "source": {"kind": "file", "path": "x1.txt", "description": "sentences", "license": "cc0-1.0"},
            "model": {"path": "lm", "license": "mit"},
            "labels": labels,
            **changes,
        }
    )

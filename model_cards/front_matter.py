"""The YAML at the top of a card: built as data, dumped by PyYAML, never by a template.

Everything in it is either computed from the manifest or taken from the recipe; the Hub reads it to load the data.
"""

import re
from typing import Any

import yaml

from hub.errors import InputError
from hub.recipe import DatasetRecipe, ModelRecipe
from model_cards.configs import Split, data_files, dataset_info
from model_cards.escape import one_line
from model_cards.facts import ModelProvenance

TASKS = {
    "sts": ["sentence-similarity"],
    "nli": ["text-classification", "sentence-similarity"],
    "text": ["text-classification"],
}
TASK_IDS = {"sts": ["semantic-similarity-scoring"], "nli": ["natural-language-inference"], "text": []}
METHOD_TAGS = {
    "sts": ["dino", "semantic-textual-similarity", "sentence-transformers"],
    "nli": ["auto-nli", "natural-language-inference", "sentence-transformers"],
    "text": ["dino"],
}
LICENSE_ID = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


def front_matter(data: dict[str, Any]) -> str:
    """``data`` between the two lines that mark front matter."""
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{body}---\n"


def dataset_data(recipe: DatasetRecipe, configs: dict[str, list[Split]], complete: bool) -> dict[str, Any]:
    """Front matter of a dataset card. ``configs`` are those that exist, in the recipe's order."""
    data: dict[str, Any] = {
        "pretty_name": one_line(recipe.pretty_name),
        "language": [recipe.language],
        **license_fields(recipe.license),
        "task_categories": TASKS[recipe.form],
        **({"task_ids": TASK_IDS[recipe.form]} if TASK_IDS[recipe.form] else {}),
        "annotations_creators": ["machine-generated"],
        "language_creators": ["machine-generated"] + (["found"] if recipe.source.kind != "model" else []),
        "tags": ["synthetic", "sts-dino", *METHOD_TAGS[recipe.form]],
    }
    if configs:
        data["size_categories"] = [size_category(configs, recipe)]
        data["configs"] = [config_entry(config, splits, recipe) for config, splits in configs.items()]
        data["dataset_info"] = [dataset_info(config, splits, complete, recipe) for config, splits in configs.items()]
    return data


def config_entry(config: str, splits: list[Split], recipe: DatasetRecipe) -> dict[str, Any]:
    """One entry of ``configs``. Only the recipe's first config is a default: no other stands in while it is missing."""
    entry: dict[str, Any] = {"config_name": config, "data_files": data_files(config, splits)}
    if config == recipe.configs[0]:
        entry["default"] = True
    return entry


def size_category(configs: dict[str, list[Split]], recipe: DatasetRecipe) -> str:
    """The Hub's size class of the default config (of the first that exists while the default is missing)."""
    first = recipe.configs[0] if recipe.configs[0] in configs else next(iter(configs))
    rows = sum(split.rows for split in configs[first])
    bounds = ["1K", "10K", "100K", "1M", "10M", "100M", "1B"]
    power = max(0, len(str(rows)) - 3)  # 0 below a thousand, 1 below ten thousand
    if power == 0:
        return f"n<{bounds[0]}"
    return f"{bounds[power - 1]}<n<{bounds[power]}" if power < len(bounds) else f"n>{bounds[-1]}"


def license_fields(name: str) -> dict[str, str]:
    """A licence as the Hub wants it: an id such as ``cc-by-sa-4.0``, or ``other`` with a name."""
    if LICENSE_ID.fullmatch(name):
        return {"license": name}
    slug = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
    if not slug:
        raise InputError(
            "recipe:license", f"{name!r} names no licence", allowed="an id such as cc-by-sa-4.0, or a name"
        )
    return {"license": "other", "license_name": slug[:96]}


def model_data(recipe: ModelRecipe, provenance: ModelProvenance, model_index: list[dict[str, Any]]) -> dict[str, Any]:
    """Front matter of a model card; keys with nothing to say are left out."""
    repo_ids = sorted({item.repo_id for item in provenance.datasets if item.repo_id})
    data: dict[str, Any] = {
        "language": [recipe.language],
        **license_fields(recipe.license),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "sts-dino"],
        "base_model": recipe.base.repo_id,
        "datasets": repo_ids,
        "model-index": model_index,
    }
    return {key: value for key, value in data.items() if value}

"""The YAML at the top of a card: built as data, dumped by PyYAML, never by a template.

Everything in it is either computed from the manifest or taken from the recipe; the Hub reads it to load the data.
"""

from typing import Any

import yaml

from hub.contract.licences import Licence, known
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.untrusted import visible_line
from model_cards.shared.configs import Split, data_files, dataset_info, default_config
from model_cards.shared.facts import ModelProvenance

# example type of training data → tag of the paper
METHODS = {
    **{"sts": "dino", "triplet": "auto-nli", "pair-class": "auto-nli", "documents": "declutr"},
    **{"self-pair": "simcse", "graded-pair": "dino", "graded-triplet": "dino"},
}
PAGE = "https://huggingface.co/"


def front_matter(data: dict[str, Any]) -> str:
    """``data`` between the two lines that mark front matter."""
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{body}---\n"


def dataset_data(recipe: DatasetRecipe, configs: dict[str, list[Split]], page: str) -> dict[str, Any]:
    """Front matter of a dataset card. ``configs`` are those that exist, in the recipe's order; ``page`` is its URL."""
    words = recipe.dataset_schema.card
    data: dict[str, Any] = {
        "pretty_name": visible_line(recipe.pretty_name),
        "language": [recipe.language],
        **license_fields(known("recipe: license", recipe.license), page),
        "task_categories": list(words.task_categories),
        **({"task_ids": list(words.task_ids)} if words.task_ids else {}),
        "annotations_creators": ["machine-generated"],
        "language_creators": ["machine-generated"] + (["found"] if not recipe.source.facts.generated else []),
        "tags": ["synthetic", "sts-dino", words.method, *words.tags],
    }
    if configs:
        default = default_config(configs, recipe)
        data["size_categories"] = [size_category(sum(split.rows for split in configs[default]))]
        data["configs"] = [config_entry(config, splits, config == default) for config, splits in configs.items()]
        data["dataset_info"] = [dataset_info(config, splits, recipe) for config, splits in configs.items()]
    return data


def config_entry(config: str, splits: list[Split], default: bool) -> dict[str, Any]:
    """One entry of ``configs``."""
    entry: dict[str, Any] = {"config_name": config, "data_files": data_files(config, splits)}
    return {**entry, "default": True} if default else entry


def size_category(rows: int) -> str:
    """The Hub's size class of so many rows."""
    bounds = ["1K", "10K", "100K", "1M", "10M", "100M", "1B"]
    power = max(0, len(str(rows)) - 3)  # 0 below a thousand, 1 below ten thousand
    if power == 0:
        return f"n<{bounds[0]}"
    return f"{bounds[power - 1]}<n<{bounds[power]}" if power < len(bounds) else f"n>{bounds[-1]}"


def license_fields(licence: Licence, page: str = "") -> dict[str, str]:
    """A licence as the Hub wants it: one of its ids, or ``other`` with a name and a link (to a section of ``page``)."""
    if licence.hub:
        return {"license": licence.id}
    link = f"{page}{licence.link}" if licence.link.startswith("#") else licence.link
    return {"license": "other", "license_name": licence.id, "license_link": link}


def model_data(recipe: ModelRecipe, provenance: ModelProvenance, model_index: list[dict[str, Any]]) -> dict[str, Any]:
    """Front matter of a model card; keys with nothing to say are left out."""
    repo_ids = sorted({item.repo_id for item in provenance.datasets if item.repo_id})
    data: dict[str, Any] = {
        "language": [recipe.language],
        **license_fields(known("recipe: license", recipe.license)),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "sts-dino", *_method(recipe)],
        "base_model": recipe.base.repo_id,
        "base_model_relation": _relation(recipe),
        "datasets": repo_ids,
        "model-index": model_index,
    }
    return {key: value for key, value in data.items() if value}


def _method(recipe: ModelRecipe) -> list[str]:
    """Tags of an adapter, and of what wrote or cut the training pairs."""
    methods = dict.fromkeys(METHODS[item.example_type] for item in recipe.datasets)
    return [*(["peft", "lora"] if recipe.lora else []), *methods]


def _relation(recipe: ModelRecipe) -> str | None:
    """How the model comes from its base, in the Hub's words; None: there is no base on the Hub, or it is the base."""
    if recipe.base.repo_id is None or recipe.is_baseline:
        return None
    return "adapter" if recipe.lora and recipe.lora.release == "adapter" else "finetune"

"""A dataset's card: the facts of its run directory, gathered for ``dataset_card.md.jinja``."""

from pathlib import Path
from typing import Any

from hub.recipe import DatasetRecipe
from hub.run_dir import Manifest
from model_cards.checks import check_counts, check_files, check_splits
from model_cards.citations import cited
from model_cards.columns import column_tables, config_list, provenance_table
from model_cards.configs import Split, existing_configs, measure
from model_cards.count_tables import SOURCE_REASONS, label_table, reason_table, rejected_table, variant_table
from model_cards.escape import Markdown, code, fenced, table
from model_cards.facts import DatasetCounts, DatasetProvenance, Progress, SourceFacts, read_facts
from model_cards.front_matter import dataset_data, front_matter
from model_cards.samples import sample_config, sample_table
from model_cards.templates import fill, section

SMALL_GENERATOR = 100_000_000  # parameters; the smallest GPT-2 has 124 million


def dataset_card(directory: Path, manifest: Manifest, recipe: DatasetRecipe, repo_id: str) -> str:
    """README.md of a dataset, front matter included. Raises InputError when its numbers do not agree."""
    check_files(directory, manifest)
    configs = {config: measure(directory, manifest, config) for config in existing_configs(recipe, manifest)}
    shown = sample_config(manifest, recipe)
    context = {
        "recipe": recipe,
        "repo_id": Markdown(repo_id),  # checked by the caller to be a Hub id
        "tag": Markdown(f"v{recipe.version}"),
        "prose": section(recipe.name),
        "splits": split_table(configs),
        "configs": list(configs),
        "config_list": config_list(list(configs), recipe),
        "columns": column_tables(list(configs), recipe),
        "provenance_columns": provenance_table(recipe),
        "samples": sample_table(directory, manifest, recipe, shown) if shown else None,
        "sample_config": shown,
        "debiased": is_debiased(recipe),
        "decoding": decoding_table(recipe),
        "postprocess": postprocess_table(recipe),
        "examples": example_table(recipe),
        "exact": is_exact(recipe),
        "citation": fenced(cited({recipe.form}, is_debiased(recipe)), "bibtex"),
        "small_generator": SMALL_GENERATOR,
        **state(directory, manifest, recipe),
    }
    return (
        front_matter(dataset_data(recipe, configs, manifest.complete)) + "\n" + fill("dataset_card.md.jinja", context)
    )


def state(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> dict[str, Any]:
    """What depends on whether the run is finished: counts and provenance, or progress."""
    provenance = None
    if manifest.complete or manifest.provenance:
        provenance = read_facts(directory, "provenance", manifest.provenance, DatasetProvenance)
    source = provenance.source if provenance else _planned_source(recipe)
    common = {"provenance": provenance, "source": source}
    if not manifest.complete:
        progress = read_facts(directory, "counts", manifest.counts, Progress)
        return {**common, "complete": False, "progress": progress}
    counts = read_facts(directory, "counts", manifest.counts, DatasetCounts)
    check_counts(directory, counts)
    check_splits(directory, counts, manifest)
    tables = {
        "labels": label_table(recipe, counts),
        "rejected": rejected_table(recipe, counts),
        "variants": variant_table(counts),
        "passed_over": reason_table({**counts.sources_skipped, **counts.sources_rejected}, SOURCE_REASONS),
    }
    return {**common, **tables, "complete": True, "counts": counts, "dropped": sum(counts.rejected.values())}


def _planned_source(recipe: DatasetRecipe) -> SourceFacts:
    return SourceFacts(description=recipe.source.description, license=recipe.source.license)


def is_debiased(recipe: DatasetRecipe) -> bool:
    """Is any label written against counter-labels?"""
    return recipe.decoding.decay_constant > 0 and any(label.counter_labels for label in recipe.labels)


def is_exact(recipe: DatasetRecipe) -> bool:
    """Does the recipe give the same bytes on every machine? Only fp32 on a CPU promises that."""
    model = recipe.model
    on_cpu = model.device == "cpu" and model.device_map is None and model.quantization is None
    return model.backend == "engine" and model.dtype == "float32" and on_cpu


def split_table(configs: dict[str, list[Split]]) -> Markdown:
    """Rows of every config and split."""
    rows: list[list[Any]] = [
        [code(config), split.name, split.rows] for config, splits in configs.items() for split in splits
    ]
    return table(["config", "split", "rows"], rows)


def decoding_table(recipe: DatasetRecipe) -> Markdown:
    """The decoding constants, under their names in the recipe."""
    decoding = recipe.decoding
    rows: list[list[Any]] = []
    if is_debiased(recipe):
        rows += [["decay constant λ", decoding.decay_constant], ["floor ε", decoding.floor]]
    rows += [
        ["top-k", decoding.top_k or "off"],
        ["top-p", decoding.top_p],
        ["new tokens, at most", decoding.max_new_tokens],
        [f"texts wanted per first text{', example set' if recipe.few_shot else ''} and label", decoding.samples],
        ["attempts, at most", decoding.max_attempts],
        ["number format", recipe.model.dtype if recipe.model.backend != "openai" else "the server's"],
        ["seed", recipe.seed],
    ]
    if recipe.source.kind == "model":
        rows.append(["top-p for first texts (no top-k)", recipe.source.top_p])
    return table(["constant", "value"], rows)


def example_table(recipe: DatasetRecipe) -> Markdown | None:
    """How many examples stand in a prompt and in how many sets. None without a few-shot section."""
    if recipe.few_shot is None:
        return None
    rows: list[list[Any]] = [
        [code(f"{shots}shot"), shots, recipe.few_shot.sets if shots else 0] for shots in recipe.few_shot.shots
    ]
    return table(["configs ending in", "examples in a prompt", "example sets"], rows)


def postprocess_table(recipe: DatasetRecipe) -> Markdown:
    """The constants of post-processing that apply to the recipe's form."""
    chosen = recipe.postprocess
    rows: list[list[Any]] = []
    if recipe.form == "sts":
        rows += [["label smoothing", chosen.smoothing], ["sampled negatives per first text", chosen.sampled_negatives]]
    rows += [
        ["texts per first text and label, at most", chosen.max_per_label],
        ["fraction of first texts in validation", chosen.validation_fraction],
    ]
    if recipe.premise_tokens is not None:
        rows.append(["tokens of a first text", "{} to {}".format(*recipe.premise_tokens)])
    return table(["constant", "value"], rows)

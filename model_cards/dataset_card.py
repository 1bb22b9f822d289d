"""A dataset's card: the facts of its run directory, gathered for ``dataset_card.md.jinja``."""

from pathlib import Path
from typing import Any

from hub.recipe import DatasetRecipe
from hub.run_dir import Manifest
from model_cards.checks import check_counts, check_files, check_splits
from model_cards.citations import cited
from model_cards.columns import column_tables, config_list, provenance_table
from model_cards.configs import Split, existing_configs, measure
from model_cards.escape import Markdown, code, fenced, table
from model_cards.facts import DatasetCounts, DatasetProvenance, Progress, SourceFacts, read_facts
from model_cards.front_matter import dataset_data, front_matter
from model_cards.samples import sample_table
from model_cards.templates import fill, section

SMALL_GENERATOR = 100_000_000  # parameters; the smallest GPT-2 has 124 million

REASONS = {
    "not_closed": "no closing quotation mark within the token limit",
    "line_break": "a line break inside the text",
    "empty": "no text before the closing quotation mark",
    "identical": "the second text repeats the first",
    "duplicate": "the same pair was kept before",
    "over_cap": "more texts than wanted for one first text and label",
}

SOURCE_REASONS = {
    "not_closed": "no closing quotation mark within the token limit",
    "line_break": "a line break inside the text",
    "empty": "no text",
    "duplicate": "the same first text was there before",
    "quotation_mark": "a quotation mark inside, which would close the prompt's own",
    "length": "not of the wanted number of tokens",
    "not_needed": "there were enough first texts already",
}


def dataset_card(directory: Path, manifest: Manifest, recipe: DatasetRecipe, repo_id: str) -> str:
    """README.md of a dataset, front matter included. Raises InputError when its numbers do not agree."""
    check_files(directory, manifest)
    configs = {config: measure(directory, manifest, config) for config in existing_configs(recipe, manifest)}
    context = {
        "recipe": recipe,
        "repo_id": Markdown(repo_id),  # checked by the caller to be a Hub id
        "tag": Markdown(f"v{recipe.version}"),
        "prose": section(recipe.name),
        "splits": split_table(configs),
        "configs": list(configs),
        "config_list": config_list(list(configs)),
        "columns": column_tables(list(configs)),
        "provenance_columns": provenance_table(recipe.form),
        "samples": sample_table(directory, manifest, recipe),
        "debiased": is_debiased(recipe),
        "decoding": decoding_table(recipe),
        "postprocess": postprocess_table(recipe),
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
        "rejected": reason_table(counts.rejected, REASONS),
        "passed_over": reason_table({**counts.sources_skipped, **counts.sources_rejected}, SOURCE_REASONS),
    }
    return {**common, **tables, "complete": True, "counts": counts, "dropped": sum(counts.rejected.values())}


def _planned_source(recipe: DatasetRecipe) -> SourceFacts:
    return SourceFacts(description=recipe.source.description, license=recipe.source.license)


def is_debiased(recipe: DatasetRecipe) -> bool:
    """Is any label written against counter-labels?"""
    return recipe.decoding.decay_constant > 0 and any(label.counter_labels for label in recipe.labels)


def label_table(recipe: DatasetRecipe, counts: DatasetCounts) -> Markdown:
    """Requested, kept and rejected for every label, in the recipe's order, then any the recipe does not name."""
    names = [label.name for label in recipe.labels if label.name in counts.by_label]
    names += sorted(set(counts.by_label) - set(names))
    rows = [[code(name), row.requested, row.kept, row.rejected] for name in names for row in [counts.by_label[name]]]
    return table(["label", "requested", "kept", "rejected"], rows)


def reason_table(counts: dict[str, int], meanings: dict[str, str]) -> Markdown | None:
    """Every reason with its count: the known ones in the order of ``meanings``, then any other. None without any."""
    names = [*(name for name in meanings if name in counts), *sorted(set(counts) - set(meanings))]
    rows: list[list[Any]] = [[code(name), meanings.get(name, ""), counts[name]] for name in names if counts[name]]
    return table(["reason", "meaning", "texts"], rows) if rows else None


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
        ["texts wanted per first text and label", decoding.samples],
        ["attempts, at most", decoding.max_attempts],
        ["number format", recipe.model.dtype],
        ["seed", recipe.seed],
    ]
    if recipe.source.kind == "model":
        rows.append(["top-p for first texts (no top-k)", recipe.source.top_p])
    return table(["constant", "value"], rows)


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

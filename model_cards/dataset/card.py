"""A dataset's card: the facts of its run directory, gathered for ``dataset_card.md.jinja``."""

from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from hub.contract.licences import check
from hub.contract.measured import NEAR_COPY, PROVENANCE, Dropped
from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import Manifest
from hub.untrusted import Markdown, code, fenced, inline, table
from model_cards.dataset import tables
from model_cards.dataset.again import local_inputs
from model_cards.dataset.measured import Measured
from model_cards.dataset.measured_tables import fidelity_table, ledger_table, people_table, value_table
from model_cards.dataset.pictures import LABELS, LENGTHS, dataset_pictures, length_note, length_table
from model_cards.dataset.progress import done_so_far, time_left
from model_cards.dataset.samples import rejected_samples, sample_config, sample_table
from model_cards.shared.again import commands
from model_cards.shared.attribution import attribution
from model_cards.shared.changes import change_table
from model_cards.shared.checks import check_counts, check_dropped, check_files, check_history, check_splits
from model_cards.shared.citations import cited
from model_cards.shared.configs import Split, default_config, existing_configs, measure
from model_cards.shared.facts import DatasetCounts, DatasetProvenance, GenerationProgress, read_facts
from model_cards.shared.front_matter import PAGE, dataset_data, front_matter
from model_cards.shared.templates import fill

GENERATORS = Path(__file__).with_name("generators.yaml")
BENCHMARKS = {"stsb-train": "STS Benchmark", "stsb-captions-and-headlines": "STS Benchmark"}  # by the source's licence
NOT_MEASURED = Measured()
SMALL_GENERATOR = 100_000_000  # parameters; the smallest GPT-2 has 124 million


def dataset_files(
    directory: Path,
    manifest: Manifest,
    recipe: DatasetRecipe,
    repo_id: str,
    now: datetime,
    measured: Measured = NOT_MEASURED,
) -> dict[str, bytes]:
    """README.md of a dataset and its plots, path → content. Raises InputError when its numbers do not agree.

    ``measured``: what stands beside its manifest.
    """
    files = {"README.md": dataset_card(directory, manifest, recipe, repo_id, now, measured).encode()}
    if manifest.complete:
        counts = read_facts(directory, "counts", manifest.counts, DatasetCounts)
        files |= dataset_pictures(directory, manifest, recipe, counts)
    return files


def dataset_card(
    directory: Path,
    manifest: Manifest,
    recipe: DatasetRecipe,
    repo_id: str,
    now: datetime,
    measured: Measured = NOT_MEASURED,
) -> str:
    """README.md of a dataset, front matter included."""
    attributed = attribution(check(recipe))
    dropped = dropped_rows(directory, manifest)
    check_files(directory, manifest)
    configs = {config: measure(directory, manifest, config) for config in existing_configs(recipe, manifest)}
    context = {
        "repo_id": Markdown(repo_id),  # checked by the caller to be a Hub id
        "attribution": attributed,
        "changes": change_table(recipe.name, recipe.version, manifest.complete),
        "script": manifest.complete and recipe.has_script and not dropped,  # a release publishes it
        **of_recipe(recipe),
        "removed": dropped,
        "removed_table": tables.dropped_table(dropped) if dropped else None,
        "kinds": tables.KINDS,
        **of_rows(directory, manifest, recipe, configs),
        **making_again(directory, manifest, recipe, repo_id),
        **state(directory, manifest, recipe, now),
        **of_measured(measured),
    }
    head = front_matter(dataset_data(recipe, configs, f"{PAGE}datasets/{repo_id}"))
    return head + "\n" + fill("dataset_card.md.jinja", context)


def of_measured(measured: Measured) -> dict[str, Any]:
    """Template variables of what was measured; None for what was not."""
    value, fidelity, ledger = measured.value, measured.fidelity, measured.ledger
    return {
        "report": measured.report,
        "value": value,
        "arms": value_table(value) if value is not None else None,
        "fidelity": fidelity,
        "near_copy": NEAR_COPY,
        "by_label": fidelity_table(fidelity) if fidelity is not None else None,
        "people": people_table(fidelity) if fidelity is not None and fidelity.people else None,
        "ledger": ledger,
        "ledger_rows": ledger_table(ledger) if ledger is not None else None,
    }


def dropped_rows(directory: Path, manifest: Manifest) -> Dropped | None:
    """What was dropped of another dataset to make this one. Raises InputError when that does not agree."""
    if PROVENANCE not in manifest.provenance:
        return None
    dropped = read_facts(directory, "provenance", manifest.provenance, DatasetProvenance).decontamination
    if dropped is not None:
        check_dropped(directory, dropped, manifest)
    return dropped


def of_recipe(recipe: DatasetRecipe) -> dict[str, Any]:
    """Template variables that the recipe alone decides."""
    return {
        "recipe": recipe,
        "form": recipe.dataset_schema,
        "tag": Markdown(f"v{recipe.version}"),
        "provenance_columns": tables.provenance_table(recipe),
        "debiased": tables.is_debiased(recipe),
        "against": {label.name for label in recipe.labels if tables.label_is_debiased(label, recipe)},
        "guided": bool(recipe.guided_labels),
        "plain_prompts": tables.plain_prompts(recipe),
        "decoding": tables.decoding_table(recipe),
        "postprocess": tables.postprocess_table(recipe),
        "verification": tables.verification_table(recipe),
        "examples": tables.example_table(recipe),
        "exact": tables.is_exact(recipe),
        "citation": fenced(
            cited({recipe.dataset_schema.card.method}, tables.is_debiased(recipe), guided=bool(recipe.guided_labels)),
            "bibtex",
        ),
        "benchmark": BENCHMARKS.get(recipe.source.license),
        "generator_limits": generator_limits(recipe),
        "small_generator": SMALL_GENERATOR,
    }


def of_rows(
    directory: Path, manifest: Manifest, recipe: DatasetRecipe, configs: dict[str, list[Split]]
) -> dict[str, Any]:
    """Template variables of the configs that exist: rows, splits, samples."""
    shown = sample_config(manifest, recipe)
    return {
        "configs": list(configs),
        "default": default_config(configs, recipe) if configs else None,
        "config_list": tables.config_list(list(configs), recipe),
        "columns": tables.column_tables(list(configs), recipe),
        "splits": split_table(configs),
        "samples": sample_table(directory, manifest, recipe, shown) if shown else None,
        "sample_config": shown,
        "pictures": {"labels": LABELS, "lengths": LENGTHS},
    }


def making_again(directory: Path, manifest: Manifest, recipe: DatasetRecipe, repo_id: str) -> dict[str, Any]:
    """Template variables of how the run is made again; None where the manifest does not know yet how it was made."""
    if not manifest.provenance:
        return {"again": None, "local_inputs": None, "commit": None}
    provenance = read_facts(directory, "provenance", manifest.provenance, DatasetProvenance)
    tag = f"v{recipe.version}" if manifest.complete else None
    return {
        "again": commands(repo_id, tag, manifest, provenance.code),
        "local_inputs": local_inputs(recipe, manifest, provenance),
        "commit": provenance.code.commit if provenance.code else None,
    }


def state(directory: Path, manifest: Manifest, recipe: DatasetRecipe, now: datetime) -> dict[str, Any]:
    """Template variables of a finished run (counts, provenance) or of a growing one (progress)."""
    provenance = None
    if manifest.complete or manifest.provenance:
        provenance = read_facts(directory, "provenance", manifest.provenance, DatasetProvenance)
    if not manifest.complete:
        progress = read_facts(directory, "counts", manifest.counts, GenerationProgress)
        told = [done_so_far(manifest, progress), time_left(directory, manifest, progress, now)]
        return {"provenance": provenance, "complete": False, "history": None, "progress": Markdown(" ".join(told))}
    counts = read_facts(directory, "counts", manifest.counts, DatasetCounts)
    check_counts(directory, counts)
    check_splits(directory, counts, manifest)
    history = provenance.history if provenance and provenance.decontamination is None else ()
    check_history(directory, counts, history)
    named = tables.label_names(recipe, counts)
    return {
        "provenance": provenance,
        "complete": True,
        "history": tables.history_table(history, recipe) if history else None,
        "counts": counts,
        "dropped": sum(counts.rejected.values()),
        "labels": tables.counts_table("label", {name: counts.by_label[name] for name in named}),
        "likeliest": tables.likeliest_table(recipe, counts),
        "rejected": tables.rejected_table(recipe, counts),
        "variants": tables.counts_table("examples in the prompt", counts.variants) if counts.variants else None,
        "rejects": rejected_samples(
            directory, manifest, recipe, tables.ordered_reasons(counts.rejected, tables.REASONS)
        ),
        "lengths": length_table(recipe, counts.token_lengths) if counts.token_lengths else None,
        "length_note": length_note(counts.token_lengths) if counts.token_lengths else None,
        "passed_over": tables.reason_table(
            {**counts.sources_skipped, **counts.sources_rejected}, tables.SOURCE_REASONS
        ),
    }


def generator_limits(recipe: DatasetRecipe) -> Markdown | None:
    """What is known of the generator's own limits and biases, with its source. None for a generator not in the list."""
    known = yaml.safe_load(GENERATORS.read_text(encoding="utf-8"))
    found = known.get(recipe.model.repo_id or recipe.model.path)
    if found is None:
        return None
    told = inline(found["about"])
    return Markdown(f"{told} ([source]({found['source']}))" if found["source"] else told)


def split_table(configs: dict[str, list[Split]]) -> Markdown:
    """Rows of every config and split."""
    rows: list[list[Any]] = [
        [code(config), split.name, split.rows] for config, splits in configs.items() for split in splits
    ]
    return table(["config", "split", "rows"], rows)

"""A dataset's card: the facts of its run as variables of ``dataset_card.md.jinja``."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import yaml

from hub.client.plan import DETAILS
from hub.contract.measured import KINDS, NEAR_COPY
from hub.contract.recipe import DatasetRecipe, Label, config_features, finished_schema
from hub.contract.run_dir import Manifest
from hub.contract.schema import EXAMPLE_SET, PROVENANCE, base_config, features
from hub.untrusted import Markdown, code, fenced, sample, table
from model_cards.facts import DatasetFacts
from model_cards.manifest import GenerationProgress, TextLengths, check_files
from model_cards.metadata import PAGE, WORDS, dataset_data, front_matter
from model_cards.provenance import change_table, cited, reproduction
from model_cards.renderer import DATA, fill
from model_cards.rows import (
    GROWING_SHARDS,
    Split,
    default_config,
    existing_configs,
    first_rows,
    measure,
    ordered_shards,
    rows_by_label,
    sample_config,
    targets_of,
)

NOTES = WORDS["columns"]
REASONS, SOURCE_REASONS = WORDS["reasons"], WORDS["source_reasons"]
GENERATORS = DATA / "generators.yaml"
BENCHMARKS = {"stsb-train": "STS Benchmark", "stsb-captions-and-headlines": "STS Benchmark"}  # by the source's licence
SMALL_GENERATOR = 100_000_000  # parameters; the smallest GPT-2 has 124 million
LABELS, LENGTHS = "assets/labels.png", "assets/lengths.png"
QUANTILES = (0.05, 0.5, 0.95)
PER_TARGET, PER_REASON = 3, 2  # sample rows
RAW_COLUMNS = ["text1", "text2"]


def dataset_files(facts: DatasetFacts, repo_id: str, now: datetime) -> dict[str, bytes]:
    """README.md of a dataset and its plots, path → content. Raises InputError for damaged files."""
    check_files(facts.directory, facts.manifest)
    recipe, manifest = facts.recipe, facts.manifest
    names = existing_configs(recipe, manifest)
    configs = {name: measure(facts.directory, manifest, name) for name in names}  # config → its splits
    head = front_matter(dataset_data(recipe, configs, f"{PAGE}datasets/{repo_id}"))
    context = recipe_context(facts) | rows_context(facts, configs) | counts_context(facts) | measured_context(facts)
    context |= {
        "repo_id": Markdown(repo_id),  # the caller checks that it is a Hub id
        "verdict": facts.verdict,
        "changes": change_table(recipe.name, recipe.version, manifest.complete),
        "provenance": facts.provenance,
        "complete": manifest.complete,
        "progress": Markdown(f"{done_so_far(manifest, facts.progress)} {time_left(facts, facts.progress, now)}")
        if facts.progress
        else None,
        "script": manifest.complete and recipe.has_script and not facts.dropped,  # a release publishes it
        "removed": facts.dropped,
        "report": facts.report,
        "history": facts.provenance.history if facts.provenance and not facts.dropped else (),
        "pictures": {"labels": LABELS, "lengths": LENGTHS},
    }
    if facts.provenance:
        context |= reproduction(manifest, recipe, facts.provenance, repo_id)
    card = head + "\n" + fill("dataset_card.md.jinja", context)
    details = fill("dataset_details.md.jinja", context)
    return {"README.md": card.encode(), DETAILS: details.encode(), **(pictures(facts) if facts.counts else {})}


def pictures(facts: DatasetFacts) -> dict[str, bytes]:
    """The plots of a finished dataset, path → PNG; that of the lengths only where the manifest has them."""
    from model_cards.plots import label_plot, length_plot  # matplotlib takes a second to import

    assert facts.counts is not None
    by_label, lengths = facts.counts.by_label, facts.counts.token_lengths
    outcomes = {name: {"kept": by_label[name].kept, "rejected": by_label[name].rejected} for name in facts.label_names}
    rows = rows_by_label(facts.directory, facts.manifest, facts.recipe)
    found = {LABELS: label_plot(outcomes, rows, facts.recipe.dataset_schema.labelled)}
    if lengths:
        unit = f"{lengths.unit} of {lengths.tokenizer}" if lengths.tokenizer else lengths.unit
        found[LENGTHS] = length_plot(_in_order(facts.recipe, lengths), unit)
    return found


def recipe_context(facts: DatasetFacts) -> dict[str, Any]:
    """Template variables from the recipe, and the papers behind it and its measured downstream gain."""
    recipe = facts.recipe
    model, guided = recipe.model, bool(recipe.guided_labels)
    countered = [label for label in recipe.labels if label.counter_labels]
    against = {label.name for label in countered if recipe.decoding_of(label).decay_constant > 0}  # self-debiased
    on_cpu = model.device == "cpu" and model.device_map is None and model.quantization is None
    words = WORDS["schemas"][recipe.schema_name]
    methods = {words["method"]} | ({"simcse"} if facts.value else set())
    return {
        "recipe": recipe,
        "form": recipe.dataset_schema,
        "words": words,
        "tag": Markdown(f"v{recipe.version}"),
        "against": against,
        "debiased": bool(against),
        "guided": guided,
        "plain_prompts": list(dict.fromkeys(label.plain_prompt or "" for label in recipe.guided_labels)),
        "settings": partial(settings, recipe),
        "countered": countered,
        "exact": model.facts.local and model.dtype == "float32" and on_cpu,  # fp32 on a CPU
        "citation": fenced(cited(methods, bool(against), guided=guided), "bibtex"),
        "benchmark": BENCHMARKS.get(recipe.source.license),
        "limits": yaml.safe_load(GENERATORS.read_text(encoding="utf-8")).get(model.repo_id or model.path),
        "small_generator": SMALL_GENERATOR,
        "kinds": WORDS["matches"],
    }


def settings(recipe: DatasetRecipe, key: str, labels: Sequence[Label]) -> list[tuple[str, Any]]:
    """(", label NAME" or nothing, value) of a decoding key that labels may override; the common value first."""
    own = [label for label in labels if getattr(label, key) is not None]
    common = [("", getattr(recipe.decoding, key))] if len(own) < len(labels) else []
    return [*common, *((f", label {label.name}", getattr(label, key)) for label in own)]


def rows_context(facts: DatasetFacts, configs: dict[str, list[Split]]) -> dict[str, Any]:
    """Template variables of the existing configs: columns, splits, sample rows."""
    recipe, names = facts.recipe, list(configs)
    shown = sample_config(facts.manifest, recipe)
    columns = {**PROVENANCE, **(EXAMPLE_SET if recipe.few_shot else {})}
    sampled = WORDS["target_of_sampled"] if recipe.dataset_schema.sampled_negatives else ""
    return {
        "configs": names,
        "to_train": Markdown(json.dumps([*finished_schema(recipe.configs[0], recipe).columns])),
        "default": default_config(configs, recipe) if configs else None,
        "config_note": config_note,
        "provenance_columns": _columns(features(columns), more={"target": sampled}),
        "columns": column_tables(names, recipe),
        "splits": configs,
        "samples": sample_table(facts, shown) if shown else None,
        "sample_config": shown,
    }


def config_note(config: str, recipe: DatasetRecipe) -> str:
    """The contents of a config, with the number and kind of the examples in its prompts."""
    base = base_config(config)
    finished = recipe.dataset_schema.finished
    note = finished[base].holds if base in finished else WORDS["configs"][base]
    if base in finished and recipe.dataset_schema.scored:
        after = recipe.postprocess
        note += ", smoothed" * bool(after.smoothing) + ", with sampled negatives" * bool(after.sampled_negatives)
    if base == config:
        return note
    shots = int(config.removeprefix(f"{base}-").removesuffix("shot"))
    kind = WORDS["examples"][recipe.few_shot.examples.kind] if recipe.few_shot else ""
    examples = {0: "no example", 1: f"one {kind} example"}.get(shots, f"{shots} {kind} examples")
    return f"{note}; {examples} in the prompt"


def column_tables(configs: list[str], recipe: DatasetRecipe) -> list[tuple[list[str], Markdown]]:
    """Configs that differ in their shot count alone → the table of their columns, without provenance columns."""
    alike: dict[str, list[str]] = {}
    for config in configs:
        alike.setdefault(base_config(config), []).append(config)
    found = []
    for base, group in alike.items():
        columns = dict(config_features(group[0], recipe))
        if set(PROVENANCE) <= set(columns):
            columns = {name: one for name, one in columns.items() if name not in {*PROVENANCE, *EXAMPLE_SET}}
        found.append((group, _columns(columns, base)))
    return found


def _columns(columns: Mapping[str, Any], base: str = "", more: Mapping[str, str] | None = None) -> Markdown:
    own = {**NOTES, **WORDS["columns_of"].get(base, {})}
    notes = {name: own[name] + (more or {}).get(name, "") for name in columns}
    rows = [[code(name), code(_type(feature)), Markdown(notes[name])] for name, feature in columns.items()]
    return table(["column", "type", "meaning"], rows)


def _type(feature: object) -> str:
    if isinstance(feature, dict):
        return "struct: " + ", ".join(f"{name} {_type(one)}" for name, one in feature.items())
    names = getattr(feature, "names", None)
    if names:
        return "class: " + ", ".join(f"{index} {name}" for index, name in enumerate(names))
    return str(getattr(feature, "dtype", feature))


def sample_table(facts: DatasetFacts, config: str) -> Markdown | None:
    """The first rows of each label of ``config``; None while there are none."""
    raw, recipe = base_config(config) == "raw", facts.recipe
    types = {} if raw else finished_schema(config, recipe).columns
    targets = [label.name for label in recipe.written_labels] if raw else targets_of(recipe)
    shards = ordered_shards(facts.manifest, config)[: None if facts.manifest.complete else GROWING_SHARDS]
    found = first_rows(facts.directory, shards, "target", targets, PER_TARGET)
    return _samples(found, ["target"], types or dict.fromkeys(RAW_COLUMNS))


def rejected_samples(facts: DatasetFacts, reasons: list[str]) -> Markdown | None:
    """The first rejected rows of every reason; None without any."""
    configs = [config for config in facts.recipe.configs if base_config(config) == "rejected"]
    shards = [file for config in configs for file in ordered_shards(facts.manifest, config)]
    found = first_rows(facts.directory, shards, "reason", reasons, PER_REASON)
    return _samples(found, ["reason", "target"], dict.fromkeys(RAW_COLUMNS))


def _samples(found: Mapping[str, list[dict[str, Any]]], keys: list[str], columns: Mapping[str, Any]) -> Markdown | None:
    """A table of rows: their ``keys`` as code, the cells of ``columns`` escaped, classes by name."""

    def cell(kind: Any, value: Any) -> Any:
        shown = kind[value] if isinstance(kind, tuple) else value
        return sample(shown) if isinstance(value, str) else shown

    rows = [
        [*(code(row[key]) for key in keys), *(cell(kind, row[name]) for name, kind in columns.items())]
        for some in found.values()
        for row in some
    ]
    header = ["requested label" if key == "target" else key for key in keys]
    return table([*header, *columns], rows) if rows else None


def counts_context(facts: DatasetFacts) -> dict[str, Any]:
    """Template variables of the counts of a finished run."""
    counts, recipe = facts.counts, facts.recipe
    if counts is None:
        return {"counts": None}
    passed_over = {**counts.sources_skipped, **counts.sources_rejected}
    lengths, meanings = counts.token_lengths, REASONS | WORDS["reasons_at"].get(recipe.decoding.text_end, {})
    by_label = {name: counts.by_label[name].reasons for name in facts.label_names}
    return {
        "counts": counts,
        "rejected_texts": sum(counts.rejected.values()),
        "labels": {name: counts.by_label[name] for name in facts.label_names},
        "likeliest": [label.name for label in recipe.labels if label.name in counts.likeliest],
        "rejected": reason_table(counts.rejected, meanings, by_label if any(by_label.values()) else {}),
        "rejects": rejected_samples(facts, ordered_reasons(counts.rejected, REASONS)),
        "lengths": _in_order(recipe, lengths) if lengths else {},
        "quantiles": QUANTILES,
        "quantile": quantile,
        "passed_over": reason_table(passed_over, SOURCE_REASONS, {}),
    }


def ordered_reasons(counts: Mapping[str, int], meanings: Mapping[str, str]) -> list[str]:
    """The reasons that occurred: the known ones in the order of ``meanings``, then any other."""
    names = [*(name for name in meanings if name in counts), *sorted(set(counts) - set(meanings))]
    return [name for name in names if counts[name]]


def reason_table(
    counts: Mapping[str, int], meanings: Mapping[str, str], labels: Mapping[str, Mapping[str, int]]
) -> Markdown | None:
    """Every reason with its count, after those of the ``labels``. None without any."""
    rows: list[list[Any]] = []
    for name in ordered_reasons(counts, meanings):
        per_label = [found.get(name, 0) for found in labels.values()]
        rows.append([code(name), Markdown(meanings.get(name, "")), *per_label, counts[name]])
    return table(["reason", "meaning", *map(code, labels), "all" if labels else "texts"], rows) if rows else None


def _in_order(recipe: DatasetRecipe, lengths: TextLengths) -> dict[str, dict[int, int]]:
    """The lengths of the labels that have any, in the recipe's order (the manifest's is alphabetical)."""
    names = [label.name for label in recipe.written_labels]
    return {name: lengths.by_label[name] for name in names if lengths.by_label.get(name)}


def quantile(counts: Mapping[int, int], share: float) -> int:
    """The smallest length that at least ``share`` of the texts do not exceed."""
    return int(np.quantile(list(counts), share, weights=list(counts.values()), method="inverted_cdf"))


def measured_context(facts: DatasetFacts) -> dict[str, Any]:
    """Template variables of the measurements; None for those not taken."""
    fidelity = facts.fidelity
    return {
        "value": facts.value,
        "fidelity": fidelity,
        "nli_classes": list(next(iter(fidelity.labels.values())).nli or {}) if fidelity else [],
        "near_copy": NEAR_COPY,
        "ledger": facts.ledger,
        "ledger_kinds": KINDS,
    }


def done_so_far(manifest: Manifest, progress: GenerationProgress) -> str:
    """Finished shards and rows."""
    if progress.shards_total is None:
        return "No shard is done yet."
    share = f" ({progress.shards_done / progress.shards_total:.0%})" if progress.shards_total else ""
    rows = Counter[str]()
    for file in manifest.files:
        rows[file.config or ""] += (file.rows or 0) if file.config else 0
    counted = ", ".join(f"{count:,} in `{config}`" for config, count in sorted(rows.items()) if count)
    shards = f"{progress.shards_done:,} of {progress.shards_total:,} shards are done{share}"
    return f"{shards}; rows so far: {counted}." if counted else f"{shards}."


def time_left(facts: DatasetFacts, progress: GenerationProgress, now: datetime) -> str:
    """The estimated end (UTC) at the rate recorded beside the run directory."""
    done, total = progress.shards_done, progress.shards_total
    if total is not None and done >= total:
        return "All shards are written; the finished configs and all counts follow."
    path = facts.directory.with_name(f"{facts.directory.name}.timing.json")
    timing = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    rows = sum(file.rows or 0 for file in facts.manifest.files if base_config(file.config or "") == "raw")
    if total is None or not (rows and done and timing.get("rows") and timing.get("seconds")):
        return "The remaining time is not known yet."
    rate = timing["rows"] / timing["seconds"]
    left = timedelta(seconds=(total - done) * rows / done / rate)
    hours = f"At {rate:,.3g} rows a second, {left.total_seconds() / 3600:,.1f} h of work remain"
    return f"{hours}: it will finish around {now + left:%Y-%m-%d %H:%M} UTC (estimated {now:%Y-%m-%d %H:%M} UTC)."

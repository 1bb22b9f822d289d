"""A dataset's card: the facts of its run as variables of ``dataset_card.md.jinja``."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
import yaml

from sts_dino.hub.client.plan import CARD, DETAILS
from sts_dino.hub.contract.measured import MATCH_KINDS, NEAR_COPY_OVERLAP
from sts_dino.hub.contract.recipe import (
    DatasetRecipe,
    Label,
    build_config_features,
    get_finished_schema,
)
from sts_dino.hub.contract.run_dir import Manifest, find_beside
from sts_dino.hub.contract.schema import EXAMPLE_SET, PROVENANCE, build_features, get_base_config
from sts_dino.hub.contract.shards import choose_default_config, describe_configs
from sts_dino.hub.untrusted import (
    Markdown,
    escape_sample,
    format_code,
    format_fenced,
    format_table,
    read_json_object,
)
from sts_dino.model_cards.facts import DatasetFacts, GenerationProgress, TextLengths
from sts_dino.model_cards.metadata import (
    HUB_URL,
    WORDS,
    build_dataset_metadata,
    format_front_matter,
)
from sts_dino.model_cards.provenance import describe_reproduction, format_changes, format_citations
from sts_dino.model_cards.renderer import DATA, fill_template
from sts_dino.model_cards.rows import (
    MOST_SAMPLED_SHARDS,
    Split,
    choose_sample_config,
    count_rows_by_label,
    list_existing_configs,
    list_targets,
    measure_splits,
    read_first_rows,
    sort_shards,
)

COLUMN_MEANINGS = WORDS["columns"]
REASON_MEANINGS = WORDS["reasons"]
SOURCE_REASON_MEANINGS = WORDS["source_reasons"]
GENERATOR_LIMITS = DATA / "generators.yaml"
# licence of the source sentences → the benchmark whose train split they are
BENCHMARK_OF_LICENCE = {
    "stsb-train": "STS Benchmark",
    "stsb-captions-and-headlines": "STS Benchmark",
}
SMALL_GENERATOR_PARAMETERS = 100_000_000  # the smallest GPT-2 has 124 million
LABEL_PLOT = "assets/labels.png"
LENGTH_PLOT = "assets/lengths.png"
LENGTH_QUANTILES = (0.05, 0.5, 0.95)
SAMPLES_PER_TARGET = 3
SAMPLES_PER_REASON = 2
RAW_TEXT_COLUMNS = ["text1", "text2"]


def make_dataset_files(facts: DatasetFacts, repo_id: str, now: datetime) -> dict[str, bytes]:
    """Make the files of a dataset's card: path in the run directory → content; write nothing.

    They are README.md, DETAILS.md and, for a finished run, the plots.

    Args:
        facts: the checked facts of the run; the sample rows are read from its directory.
        repo_id: the Hub id on the card, which the caller has checked.
        now: the time (UTC) from which the card of a growing run estimates its end.

    Raises InputError for a damaged shard, for one with another number of rows than the manifest
    says, and when ``changes.yaml`` lists the dataset without the version of a finished run. Raises
    OSError for a shard that cannot be opened.
    """
    recipe = facts.recipe
    manifest = facts.manifest
    configs = {
        config: measure_splits(facts.directory, manifest, config)
        for config in list_existing_configs(recipe, manifest)
    }

    # the templates' variables
    context = {
        **_build_recipe_context(facts),
        **_build_rows_context(facts, configs),
        **build_counts_context(facts),
        **build_measured_context(facts),
        "repo_id": Markdown(repo_id),
        "verdict": facts.verdict,
        "changes": format_changes(recipe.name, recipe.version, manifest.complete),
        "provenance": facts.provenance,
        "complete": manifest.complete,
        "progress": _describe_growth(facts, facts.progress, now) if facts.progress else None,
        # whether a release publishes the loading script
        "script": manifest.complete and recipe.has_script and not facts.dropped,
        "removed": facts.dropped,
        "report": facts.report,
        "history": (),
        "pictures": {"labels": LABEL_PLOT, "lengths": LENGTH_PLOT},
    }
    if facts.provenance:
        context |= describe_reproduction(manifest, recipe, facts.provenance, repo_id)
        if not facts.dropped:
            context["history"] = facts.provenance.history

    # the files
    metadata = build_dataset_metadata(
        recipe,
        facts.verdict.licence,
        configs,
        describe_configs(manifest, recipe.configs),
        f"{HUB_URL}datasets/{repo_id}",
    )
    card = format_front_matter(metadata) + "\n" + fill_template("dataset_card.md.jinja", context)
    details = fill_template("dataset_details.md.jinja", context)
    files = {CARD: card.encode(), DETAILS: details.encode()}
    if facts.counts:
        files |= draw_pictures(facts)
    return files


def draw_pictures(facts: DatasetFacts) -> dict[str, bytes]:
    """Draw the plots of a finished dataset: path in the run directory → content of the PNG file.

    Without text lengths in the manifest, the plot of lengths is left out. Shards are read to count
    the rows. Raises InputError for a damaged shard, OSError for one that cannot be opened.
    """
    # matplotlib takes a second to import
    from sts_dino.model_cards.plots import draw_label_plot, draw_length_plot

    assert facts.counts is not None
    outcomes = {
        name: facts.counts.by_label[name].model_dump(include={"kept", "rejected"})
        for name in facts.label_names
    }
    rows = count_rows_by_label(facts.directory, facts.manifest, facts.recipe)
    pictures = {LABEL_PLOT: draw_label_plot(outcomes, rows, facts.recipe.dataset_schema.labelled)}
    lengths = facts.counts.token_lengths
    if lengths:
        unit = f"{lengths.unit} of {lengths.tokenizer}" if lengths.tokenizer else lengths.unit
        pictures[LENGTH_PLOT] = draw_length_plot(_sort_lengths(facts.recipe, lengths), unit)
    return pictures


def _build_recipe_context(facts: DatasetFacts) -> dict[str, Any]:
    """Return the template variables about the recipe: decoding, prompts, papers to cite, limits."""
    recipe = facts.recipe
    model = recipe.model

    # the decoding: guidance, and self-debiasing against counter-labels
    guided = bool(recipe.guided_labels)
    countered = [label for label in recipe.labels if label.counter_labels]
    debiased_names = {
        label.name for label in countered if recipe.get_decoding(label).decay_constant > 0
    }
    on_cpu = model.device == "cpu" and model.device_map is None and model.quantization is None

    # the papers: a measured downstream gain is compared with a SimCSE baseline
    words = WORDS["schemas"][recipe.schema_name]
    methods = {words["method"]}
    if facts.value:
        methods.add("simcse")
    citation = format_citations(methods, bool(debiased_names), guided=guided)

    generator_limits = yaml.safe_load(GENERATOR_LIMITS.read_text(encoding="utf-8"))
    plain_prompts = dict.fromkeys(label.plain_prompt or "" for label in recipe.guided_labels)
    return {
        "recipe": recipe,
        "form": recipe.dataset_schema,
        "words": words,
        "tag": Markdown(f"v{recipe.version}"),
        "debiased_names": debiased_names,
        "debiased": bool(debiased_names),
        "guided": guided,
        "plain_prompts": list(plain_prompts),
        "settings": partial(_list_settings, recipe),
        "countered": countered,
        # whether other machines give bit-identical files, too
        "exact": model.is_local and model.dtype == "float32" and on_cpu,
        "citation": format_fenced(citation, "bibtex"),
        "benchmark": BENCHMARK_OF_LICENCE.get(recipe.source.license),
        "limits": generator_limits.get(model.repo_id or PurePath(model.path or "").name),
        "small_generator": SMALL_GENERATOR_PARAMETERS,
        "kinds": WORDS["matches"],
    }


def _list_settings(
    recipe: DatasetRecipe, key: str, labels: Sequence[Label]
) -> list[tuple[str, Any]]:
    """List the values of a decoding key as (suffix of the table row's title, value).

    The value of ``recipe.decoding`` comes first, with an empty suffix, unless every label overrides
    it. The labels that override it follow in their order.

    Args:
        recipe: the recipe.
        key: a key of the recipe's ``decoding`` that labels may override, e.g. samples.
        labels: the labels that the table is about.
    """
    overrides = []
    for label in labels:
        value = getattr(label, key)
        if value is not None:
            overrides.append((f", label {label.name}", value))
    if len(overrides) < len(labels):
        return [("", getattr(recipe.decoding, key)), *overrides]
    return overrides


def _build_rows_context(facts: DatasetFacts, configs: dict[str, list[Split]]) -> dict[str, Any]:
    """Return the template variables of the configs that have rows: columns, splits, sample rows.

    ``configs``: config → its splits. Shards are read for the sample rows. Raises InputError for a
    damaged shard, OSError for one that cannot be opened.
    """
    recipe = facts.recipe
    names = list(configs)
    sample_config = choose_sample_config(facts.manifest, recipe)
    finished = get_finished_schema(recipe.configs[0], recipe)

    # the provenance columns; a sampled negative's ``target`` has a meaning of its own
    provenance = dict(PROVENANCE)
    if recipe.few_shot:
        provenance |= EXAMPLE_SET
    suffixes = {}
    if recipe.dataset_schema.sampled_negatives:
        suffixes["target"] = WORDS["target_of_sampled"]
    return {
        "configs": names,
        "to_train": Markdown(json.dumps(list(finished.columns))),
        "default": choose_default_config(names, recipe.configs),
        "config_note": describe_config,
        "provenance_columns": _format_columns(build_features(provenance), suffixes=suffixes),
        "columns": _format_config_columns(names, recipe),
        "splits": configs,
        "samples": _format_samples(facts, sample_config) if sample_config else None,
        "sample_config": sample_config,
    }


def describe_config(config: str, recipe: DatasetRecipe) -> str:
    """Describe the rows of a config, and the number and kind of the examples in their prompts.

    ``config``: a config of ``recipe``, e.g. pairs, or pairs-5shot for rows of prompts with five
    examples. Without a shot count in its name, no examples are described.
    """
    # the rows
    base = get_base_config(config)
    finished = recipe.dataset_schema.finished
    note = finished[base].holds if base in finished else WORDS["configs"][base]
    if base in finished and recipe.dataset_schema.scored:
        if recipe.postprocess.smoothing:
            note += ", smoothed"
        if recipe.postprocess.sampled_negatives:
            note += ", with sampled negatives"
    if base == config:
        return note

    # the examples of a config with a shot count
    shots = int(config.removeprefix(f"{base}-").removesuffix("shot"))
    kind = WORDS["examples"][recipe.few_shot.examples.kind] if recipe.few_shot else ""
    examples = f"{shots} {kind} examples"
    if shots == 0:
        examples = "no example"
    elif shots == 1:
        examples = f"one {kind} example"
    return f"{note}; {examples} in the prompt"


def _format_config_columns(
    configs: list[str], recipe: DatasetRecipe
) -> list[tuple[list[str], Markdown]]:
    """Return (configs, table of their columns) for each group that differs in shot counts alone.

    The table of configs with all provenance columns leaves these out: the card explains them once.
    """
    groups: dict[str, list[str]] = {}
    for config in configs:
        groups.setdefault(get_base_config(config), []).append(config)
    tables = []
    for base, group in groups.items():
        columns = dict(build_config_features(group[0], recipe))
        # A config that lacks a provenance column may have a column of the same name as another
        # one, but with another meaning.
        if PROVENANCE.keys() <= columns.keys():
            for name in (*PROVENANCE, *EXAMPLE_SET):
                columns.pop(name, None)
        tables.append((group, _format_columns(columns, base)))
    return tables


def _format_columns(
    columns: Mapping[str, Any], base: str = "", suffixes: Mapping[str, str] | None = None
) -> Markdown:
    """Format a table of columns: name, type and meaning.

    Args:
        columns: name → feature of ``datasets``.
        base: the config without its shot count, in which some columns have another meaning;
            empty: no config.
        suffixes: name → text to add to the column's meaning.
    """
    notes = {**COLUMN_MEANINGS, **WORDS["columns_of"].get(base, {})}
    rows = []
    for name, feature in columns.items():
        note = notes[name] + (suffixes or {}).get(name, "")
        rows.append([format_code(name), format_code(_format_type(feature)), Markdown(note)])
    return format_table(["column", "type", "meaning"], rows)


def _format_type(feature: object) -> str:
    """Format a feature of ``datasets``: a dtype, the names of classes, or a struct's fields."""
    if isinstance(feature, dict):
        fields = [f"{name} {_format_type(field)}" for name, field in feature.items()]
        return "struct: " + ", ".join(fields)
    names = getattr(feature, "names", None)
    if names:
        return "class: " + ", ".join(f"{index} {name}" for index, name in enumerate(names))
    return str(getattr(feature, "dtype", feature))


def _format_samples(facts: DatasetFacts, config: str) -> Markdown | None:
    """Format a table of the first ``SAMPLES_PER_TARGET`` rows of each label of ``config``.

    Of a growing run only the first ``MOST_SAMPLED_SHARDS`` shards are read. Returns None without
    rows. Raises InputError for a damaged shard, OSError for one that cannot be opened.
    """
    recipe = facts.recipe
    if get_base_config(config) == "raw":
        columns: Mapping[str, Any] = dict.fromkeys(RAW_TEXT_COLUMNS)
        targets = [label.name for label in recipe.written_labels]
    else:
        columns = get_finished_schema(config, recipe).columns
        targets = list_targets(recipe)
    shards = sort_shards(facts.manifest, config)
    if not facts.manifest.complete:
        shards = shards[:MOST_SAMPLED_SHARDS]
    rows = read_first_rows(facts.directory, shards, "target", targets, SAMPLES_PER_TARGET)
    return _format_sample_rows(rows, ["target"], columns)


def _format_rejected_samples(facts: DatasetFacts, reasons: list[str]) -> Markdown | None:
    """Format a table of the first ``SAMPLES_PER_REASON`` rejected rows of each of ``reasons``.

    Returns None without rows. Raises InputError for a damaged shard, OSError for one that cannot be
    opened.
    """
    shards = []
    for config in facts.recipe.configs:
        if get_base_config(config) == "rejected":
            shards += sort_shards(facts.manifest, config)
    rows = read_first_rows(facts.directory, shards, "reason", reasons, SAMPLES_PER_REASON)
    return _format_sample_rows(rows, ["reason", "target"], dict.fromkeys(RAW_TEXT_COLUMNS))


def _format_sample_rows(
    groups: Mapping[str, list[dict[str, Any]]], keys: list[str], columns: Mapping[str, Any]
) -> Markdown | None:
    """Format a table of rows; None without rows.

    Args:
        groups: target or reason → rows, each as column → value.
        keys: the columns that come first, formatted as code.
        columns: the other columns, name → type. A class label's type is a tuple of the class names;
            None: a column of text.
    """
    rows = []
    for row in chain.from_iterable(groups.values()):
        cells = [format_code(row[key]) for key in keys]
        cells += [_format_cell(row[name], kind) for name, kind in columns.items()]
        rows.append(cells)
    header = ["requested label" if key == "target" else key for key in keys]
    return format_table([*header, *columns], rows) if rows else None


def _format_cell(value: Any, kind: Any) -> Any:
    """Format the cell of a value: an index of the class names ``kind`` as its name, a text escaped.

    ``kind``: the column's type, a tuple for a class label. Other values are returned unchanged.
    """
    if isinstance(kind, tuple):
        return kind[value]
    return escape_sample(value) if isinstance(value, str) else value


def build_counts_context(facts: DatasetFacts) -> dict[str, Any]:
    """Return the template variables of the counts; for a growing run only ``counts``, None.

    Raises InputError for a damaged shard of rejected rows, OSError for one that cannot be opened.
    """
    counts = facts.counts
    if counts is None:
        return {"counts": None}
    recipe = facts.recipe
    lengths = counts.token_lengths
    labels = {name: counts.by_label[name] for name in facts.label_names}
    # earlier manifests have no reasons by label: the table has no columns of labels then
    reasons = {name: label.reasons for name, label in labels.items()}
    if not any(reasons.values()):
        reasons = {}
    meanings = REASON_MEANINGS | WORDS["reasons_at"].get(recipe.decoding.text_end, {})
    skipped = {**counts.sources_skipped, **counts.sources_rejected}
    return {
        "counts": counts,
        "rejected_texts": sum(counts.rejected.values()),
        "labels": labels,
        "likeliest": [label.name for label in recipe.labels if label.name in counts.likeliest],
        "rejected": _format_reasons(counts.rejected, meanings, reasons),
        "rejects": _format_rejected_samples(facts, _sort_reasons(counts.rejected, REASON_MEANINGS)),
        "lengths": _sort_lengths(recipe, lengths) if lengths else {},
        "quantiles": LENGTH_QUANTILES,
        "quantile": compute_quantile,
        "passed_over": _format_reasons(skipped, SOURCE_REASON_MEANINGS, {}),
    }


def _sort_reasons(counts: Mapping[str, int], meanings: Mapping[str, str]) -> list[str]:
    """Sort the reasons with a count above 0: in the order of ``meanings``, then by name."""
    reasons = [*meanings, *sorted(counts.keys() - meanings.keys())]
    return [reason for reason in reasons if counts.get(reason)]


def _format_reasons(
    counts: Mapping[str, int], meanings: Mapping[str, str], labels: Mapping[str, Mapping[str, int]]
) -> Markdown | None:
    """Format a table of reasons with a count above 0; None without any.

    Args:
        counts: reason → texts.
        meanings: reason → its meaning, in Markdown.
        labels: label → reason → texts; each label gets a column.
    """
    rows: list[list[Any]] = []
    for reason in _sort_reasons(counts, meanings):
        by_label = [label_counts.get(reason, 0) for label_counts in labels.values()]
        meaning = Markdown(meanings.get(reason, ""))
        rows.append([format_code(reason), meaning, *by_label, counts[reason]])
    if not rows:
        return None
    label_headers = [format_code(label) for label in labels]
    return format_table(["reason", "meaning", *label_headers, "all" if labels else "texts"], rows)


def _sort_lengths(recipe: DatasetRecipe, lengths: TextLengths) -> dict[str, dict[int, int]]:
    """Return label → length → texts in the recipe's order, without labels that have no lengths."""
    names = [label.name for label in recipe.written_labels]
    return {name: lengths.by_label[name] for name in names if lengths.by_label.get(name)}


def compute_quantile(counts: Mapping[int, int], share: float) -> int:
    """Return the smallest length that at least ``share`` (0 to 1) of the texts do not exceed.

    ``counts``: length → texts.
    """
    weights = list(counts.values())
    return int(np.quantile(list(counts), share, weights=weights, method="inverted_cdf"))


def build_measured_context(facts: DatasetFacts) -> dict[str, Any]:
    """Return the template variables of the measurements; a missing measurement is None."""
    fidelity = facts.fidelity
    nli_classes: list[str] = []
    if fidelity:
        nli_classes = list(next(iter(fidelity.labels.values())).nli or {})
    return {
        "value": facts.value,
        "fidelity": fidelity,
        "nli_classes": nli_classes,
        "near_copy": NEAR_COPY_OVERLAP,
        "ledger": facts.ledger,
        "ledger_kinds": MATCH_KINDS,
    }


def describe_progress(manifest: Manifest, progress: GenerationProgress) -> str:
    """Describe the finished shards of a growing run, and its rows by config, in a sentence.

    Before the number of shards is known, the sentence says that no shard is done.
    """
    if progress.shards_total is None:
        return "No shard is done yet."
    rows = Counter[str]()
    for file in manifest.files:
        if file.config and file.rows:
            rows[file.config] += file.rows
    counts = ", ".join(f"{count:,} in `{config}`" for config, count in sorted(rows.items()))
    shards = f"{progress.shards_done:,} of {progress.shards_total:,} shards are done"
    if progress.shards_total:
        shards += f" ({progress.shards_done / progress.shards_total:.0%})"
    return f"{shards}; rows so far: {counts}." if counts else f"{shards}."


def _describe_growth(facts: DatasetFacts, progress: GenerationProgress, now: datetime) -> Markdown:
    """Describe the progress of a growing run, and estimate its end from the raw rows so far.

    The rate, in rows a second, is computed from RUN_DIR.timing.json beside the run directory.
    Without that file or without finished shards, no end is estimated. ``now`` (UTC): the time of
    the estimate. Raises InputError for a file that is not a JSON object.
    """
    done = describe_progress(facts.manifest, progress)
    shards = progress.shards_done
    total = progress.shards_total
    if total is not None and shards >= total:
        return Markdown(
            f"{done} All shards are written; the finished configs and all counts follow."
        )

    # rows so far, and rows and seconds of the timing file
    path = find_beside(facts.directory, "timing.json")
    timing = read_json_object(path, path.parent) if path is not None else {}
    raw_files = [
        file for file in facts.manifest.files if get_base_config(file.config or "") == "raw"
    ]
    rows = sum(file.rows or 0 for file in raw_files)
    if total is None or not (rows and shards and timing.get("rows") and timing.get("seconds")):
        return Markdown(f"{done} The remaining time is not known yet.")

    # assume that the remaining shards have as many rows each as those so far
    rate = timing["rows"] / timing["seconds"]
    remaining = timedelta(seconds=(total - shards) * rows / shards / rate)
    hours = remaining.total_seconds() / 3600
    return Markdown(
        f"{done} At {rate:,.3g} rows a second, {hours:,.1f} h of work remain: it will finish "
        f"around {now + remaining:%Y-%m-%d %H:%M} UTC (estimated {now:%Y-%m-%d %H:%M} UTC)."
    )

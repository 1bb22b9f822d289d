"""The tables of a dataset card: configs and columns, the recipe's constants, and texts by label, shots and reason.

What a column, a config or a match means is said in ``words.yaml``; a test holds it against ``hub.contract.schema``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hub.contract.measured import Dropped
from hub.contract.recipe import DatasetRecipe, Label, config_features
from hub.contract.schema import EXAMPLE_SET, OF_FIRST_TEXTS, OF_SECOND_TEXTS, PROVENANCE, base_config, features
from hub.untrusted import Markdown, code, table
from model_cards.shared.facts import Counts, DatasetCounts, VersionFacts

WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
NOTES, KINDS = WORDS["columns"], WORDS["matches"]
REASONS = {reason.name: reason.second for reason in OF_SECOND_TEXTS}
LINE_REASONS = {reason.name: reason.line or reason.second for reason in OF_SECOND_TEXTS}
SOURCE_REASONS = {reason.name: reason.first for reason in OF_FIRST_TEXTS}


def config_list(configs: list[str], recipe: DatasetRecipe) -> Markdown:
    """The configs of a dataset, each with what it holds."""
    return table(["config", "holds"], [[code(config), config_note(config, recipe)] for config in configs])


def config_note(config: str, recipe: DatasetRecipe) -> str:
    """What a config holds, and with how many examples of which kind in the prompt it was made."""
    base = base_config(config)
    finished = recipe.dataset_schema.finished
    note = finished[base].holds if base in finished else WORDS["configs"][base]
    if base == config:
        return note
    shots = int(config.removeprefix(f"{base}-").removesuffix("shot"))
    kind = WORDS["examples"][recipe.few_shot.examples.kind] if recipe.few_shot else ""
    examples = {0: "no example", 1: f"one {kind} example"}.get(shots, f"{shots} {kind} examples")
    return f"{note}; {examples} in the prompt"


def column_tables(configs: list[str], recipe: DatasetRecipe) -> list[tuple[list[str], Markdown]]:
    """Tables of the columns, but for the provenance columns of rows that carry all of them.

    Configs that differ in their shot count alone share one.
    """
    alike: dict[str, list[str]] = {}
    for config in configs:
        alike.setdefault(base_config(config), []).append(config)
    return [(group, _table(_own(config_features(group[0], recipe)), base)) for base, group in alike.items()]


def provenance_table(recipe: DatasetRecipe) -> Markdown:
    """The columns that say where a row comes from."""
    columns = {**PROVENANCE, **(EXAMPLE_SET if recipe.few_shot else {})}
    sampled = recipe.dataset_schema.sampled_negatives
    return _table(features(columns), more={"target": WORDS["target_of_sampled"]} if sampled else {})


def _own(columns: dict[str, Any]) -> dict[str, Any]:
    if not set(PROVENANCE) <= set(columns):
        return columns
    return {name: feature for name, feature in columns.items() if name not in {*PROVENANCE, *EXAMPLE_SET}}


def _table(columns: dict[str, Any], base: str = "", more: dict[str, str] | None = None) -> Markdown:
    notes = {
        name: WORDS["columns_of"].get(base, {}).get(name, NOTES[name]) + (more or {}).get(name, "") for name in columns
    }
    rows = [[code(name), code(_type(feature)), Markdown(notes[name])] for name, feature in columns.items()]
    return table(["column", "type", "meaning"], rows)


def _type(feature: object) -> str:
    if isinstance(feature, dict):
        return "struct: " + ", ".join(f"{name} {_type(one)}" for name, one in feature.items())
    names = getattr(feature, "names", None)
    if names:
        return "class: " + ", ".join(f"{index} {name}" for index, name in enumerate(names))
    return str(getattr(feature, "dtype", feature))


def is_debiased(recipe: DatasetRecipe) -> bool:
    """Is any label written against counter-labels?"""
    return any(label_is_debiased(label, recipe) for label in recipe.labels)


def label_is_debiased(label: Label, recipe: DatasetRecipe) -> bool:
    """Are a label's texts written against counter-labels?"""
    return recipe.decoding_of(label).decay_constant > 0 and bool(label.counter_labels)


def is_exact(recipe: DatasetRecipe) -> bool:
    """Does the recipe give the same bytes on every machine? Only fp32 on a CPU promises that."""
    model = recipe.model
    on_cpu = model.device == "cpu" and model.device_map is None and model.quantization is None
    return model.backend == "engine" and model.dtype == "float32" and on_cpu


def plain_prompts(recipe: DatasetRecipe) -> Markdown:
    """The prompts that guidance leads away from, as code; one where the labels have the same one."""
    distinct = dict.fromkeys(label.plain_prompt or "" for label in recipe.guided_labels)
    return Markdown(", ".join(code(prompt) for prompt in distinct))


def decoding_table(recipe: DatasetRecipe) -> Markdown:
    """The decoding constants, under their names in the recipe."""
    decoding = recipe.decoding
    each_set = ", example set" if recipe.few_shot and not recipe.few_shot.rotate else ""
    rows: list[list[Any]] = []
    if is_debiased(recipe):
        countered = [label for label in recipe.labels if label.counter_labels]
        rows += _by_label("decay constant λ", "decay_constant", countered, recipe)
        rows.append(["epsilon", decoding.epsilon])
    if recipe.guided_labels:
        rows += _by_label("guidance γ", "guidance", recipe.written_labels, recipe)
    rows += [
        ["top-k", decoding.top_k or "off"],
        ["top-p", decoding.top_p],
        ["new tokens, at most", decoding.max_new_tokens],
        ["a text ends at", "the end of its line" if decoding.text_end == "line" else "its closing quotation mark"],
        *_by_label(f"texts wanted per first text{each_set} and label", "samples", recipe.written_labels, recipe),
        ["attempts, at most", decoding.max_attempts],
        ["number format", recipe.model.dtype if recipe.model.backend != "openai" else "the server's"],
        ["seed", recipe.seed],
    ]
    if recipe.source.facts.generated:
        rows.append(["top-p for first texts (no top-k)", recipe.source.top_p])
    return table(["constant", "value"], rows)


def _by_label(constant: str, key: str, labels: Sequence[Label], recipe: DatasetRecipe) -> list[list[Any]]:
    """The rows of a constant that each of some labels may set for itself: what the others have comes first."""
    own = [label for label in labels if getattr(label, key) is not None]
    common = [[constant, getattr(recipe.decoding, key)]] if len(own) < len(labels) else []
    return [*common, *([f"{constant}, label {label.name}", getattr(label, key)] for label in own)]


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
    if recipe.dataset_schema.scored:
        rows += [["label smoothing", chosen.smoothing], ["sampled negatives per first text", chosen.sampled_negatives]]
    if "triplet" in recipe.dataset_schema.finished:
        rows.append(["triplets whose positive is their negative", "kept" if chosen.equal_triplets else "left out"])
    rows += [
        ["reasons to reject a text that the recipe chose", ", ".join(chosen.reject) or "none"],
        ["texts per first text and label, at most", chosen.max_per_label],
        ["fraction of first texts in validation", chosen.validation_fraction],
    ]
    if chosen.near_copy is not None:
        rows.append(["share of words in common from which a text is a near-copy", chosen.near_copy])
    for label in recipe.labels:
        if label.overlap is not None:
            allowed = "{:g} to {:g}".format(*label.overlap)
            rows.append([f"share of words in common, label {label.name}", allowed])
    if recipe.premise_tokens is not None:
        rows.append(["tokens of a first text", "{} to {}".format(*recipe.premise_tokens)])
    return table(["constant", "value"], rows)


def verification_table(recipe: DatasetRecipe) -> Markdown | None:
    """What is made of the likelihoods under all labels' prompts. None where they were not taken."""
    asked = recipe.verification
    if asked is None:
        return None
    scores = f"soft, at temperature {asked.temperature:g}" if asked.scores == "soft" else "those asked for"
    rows: list[list[Any]] = [
        ["texts that fit another label better", "dropped" if asked.drop else "kept"],
        ["texts written for each one wanted", asked.best_of],
        *([["scores", scores]] if recipe.dataset_schema.scored else []),
        ["each label's mean over a shard is subtracted first", "yes" if asked.calibrated else "no"],
    ]
    return table(["constant", "value"], rows)


def likeliest_table(recipe: DatasetRecipe, counts: DatasetCounts) -> Markdown | None:
    """Raw texts by the label asked for and the label they fit best. None where they were not scored."""
    names = [label.name for label in recipe.labels if label.name in counts.likeliest]
    rows: list[list[Any]] = []
    for target in names:
        found = [counts.likeliest[target].get(name, 0) for name in names]
        share = counts.likeliest[target].get(target, 0) / max(1, sum(found))
        rows.append([code(target), *found, f"{share:.0%}"])
    return table(["asked for", *(code(name) for name in names), "own label"], rows) if rows else None


def label_names(recipe: DatasetRecipe, counts: DatasetCounts) -> list[str]:
    """The labels that are counted: the recipe's in its order, then any it does not name."""
    names = [label.name for label in recipe.labels if label.name in counts.by_label]
    return names + sorted(set(counts.by_label) - set(names))


def counts_table(title: str, counts: Mapping[str, Counts]) -> Markdown:
    """Requested, kept and rejected texts of each part."""
    rows = [[code(name), row.requested, row.kept, row.rejected] for name, row in counts.items()]
    return table([title, "requested", "kept", "rejected"], rows)


def rejected_table(recipe: DatasetRecipe, counts: DatasetCounts) -> Markdown | None:
    """Every reason with its count, label by label where the manifest tells them apart. None without any."""
    names = label_names(recipe, counts)
    meanings = LINE_REASONS if recipe.decoding.text_end == "line" else REASONS
    if not any(counts.by_label[name].reasons for name in names):
        return reason_table(counts.rejected, meanings)
    rows: list[list[Any]] = []
    for reason in ordered_reasons(counts.rejected, meanings):
        per_label = [counts.by_label[name].reasons.get(reason, 0) for name in names]
        rows.append([code(reason), Markdown(meanings.get(reason, "")), *per_label, counts.rejected[reason]])
    return table(["reason", "meaning", *(code(name) for name in names), "all"], rows)


def dropped_table(dropped: Dropped) -> Markdown:
    """Rows of every config and split: before, dropped by the kind of their strongest match, and kept."""
    rows = [
        [code(config), split, found.before, *(found.dropped[kind] for kind in dropped.kinds), found.kept]
        for config, splits in dropped.rows.items()
        for split, found in splits.items()
    ]
    return table(["config", "split", "rows before", *(f"dropped: {kind}" for kind in dropped.kinds), "kept"], rows)


def ordered_reasons(counts: dict[str, int], meanings: dict[str, str]) -> list[str]:
    """The reasons that occurred: the known ones in the order of ``meanings``, then any other."""
    names = [*(name for name in meanings if name in counts), *sorted(set(counts) - set(meanings))]
    return [name for name in names if counts[name]]


def reason_table(counts: dict[str, int], meanings: dict[str, str]) -> Markdown | None:
    """Every reason with its count. None without any."""
    names = ordered_reasons(counts, meanings)
    rows: list[list[Any]] = [[code(name), Markdown(meanings.get(name, "")), counts[name]] for name in names]
    return table(["reason", "meaning", "texts"], rows) if rows else None


def history_table(history: Sequence[VersionFacts], recipe: DatasetRecipe) -> Markdown:
    """What each version brought, the newest first: first texts, texts, and the rows of every config."""
    configs = [config for config in recipe.configs if any(config in one.rows for one in history)]
    rows: list[list[Any]] = [
        [
            code(f"v{one.version}"),
            one.first_texts,
            one.requested,
            one.kept,
            *(one.rows.get(name, 0) for name in configs),
        ]
        for one in reversed(history)
    ]
    return table(["version", "first texts", "texts requested", "kept", *(f"rows: {name}" for name in configs)], rows)

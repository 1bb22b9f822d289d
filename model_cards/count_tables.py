"""The tables of a dataset card that count texts: by label, by shot count, by the reason they were rejected for."""

from collections.abc import Mapping
from typing import Any

from hub.dropped import Dropped
from hub.recipe import DatasetRecipe
from model_cards.escape import Markdown, code, table
from model_cards.facts import Counts, DatasetCounts

REASONS = {
    "not_closed": "no closing quotation mark within the token limit",
    "line_break": "a line break inside the text",
    "empty": "no text before the closing quotation mark",
    "example_copy": "a text of an example that stood in its prompt",
    "prompt_words": "nothing but words of its prompt, such as the name of a line",
    "identical": "the second text repeats the first",
    "duplicate": "the same pair was kept before",
    "over_cap": "more texts than wanted for one first text and label",
}

SOURCE_REASONS = {
    "not_closed": "no closing quotation mark within the token limit",
    "line_break": "a line break inside the text",
    "empty": "no text",
    "duplicate": "the same first text was there before",
    "quotation_mark": "a quotation mark inside, which the recipe passes over",
    "prompt_words": "nothing but words of its prompt, such as the name of a line",
    "not_unicode": "half a surrogate pair, which is no text",
    "length": "not of the wanted number of tokens",
    "not_needed": "there were enough first texts already",
}

KINDS = {  # of matches with evaluation data
    "exact": "the same characters",
    "normal": "the same letters and digits",
    "near": "nearly the same letters and digits",
    "short": "the same, and so short that it may be by chance",
}


def label_table(recipe: DatasetRecipe, counts: DatasetCounts) -> Markdown:
    """Requested, kept and rejected for every label, in the recipe's order, then any the recipe does not name."""
    return counts_table("label", {name: counts.by_label[name] for name in label_names(recipe, counts)})


def label_names(recipe: DatasetRecipe, counts: DatasetCounts) -> list[str]:
    """The labels that are counted: the recipe's in its order, then any it does not name."""
    names = [label.name for label in recipe.labels if label.name in counts.by_label]
    return names + sorted(set(counts.by_label) - set(names))


def variant_table(counts: DatasetCounts) -> Markdown | None:
    """Requested, kept and rejected for every shot count. None without few-shot examples."""
    return counts_table("examples in the prompt", counts.variants) if counts.variants else None


def counts_table(title: str, counts: Mapping[str, Counts]) -> Markdown:
    """Requested, kept and rejected texts of each part."""
    rows = [[code(name), row.requested, row.kept, row.rejected] for name, row in counts.items()]
    return table([title, "requested", "kept", "rejected"], rows)


def rejected_table(recipe: DatasetRecipe, counts: DatasetCounts) -> Markdown | None:
    """Every reason with its count, label by label where the manifest tells them apart. None without any."""
    names, meanings = label_names(recipe, counts), REASONS
    if recipe.decoding.text_end == "line":
        meanings = REASONS | {"not_closed": "no end within the token limit", "empty": "no text in the line"}
    if not any(counts.by_label[name].reasons for name in names):
        return reason_table(counts.rejected, meanings)
    rows: list[list[Any]] = []
    for reason in ordered_reasons(counts.rejected, meanings):
        per_label = [counts.by_label[name].reasons.get(reason, 0) for name in names]
        rows.append([code(reason), meanings.get(reason, ""), *per_label, counts.rejected[reason]])
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
    rows: list[list[Any]] = [[code(name), meanings.get(name, ""), counts[name]] for name in names]
    return table(["reason", "meaning", "texts"], rows) if rows else None

"""What each published column means, in the words of a card. A test holds this against ``hub.schema``."""

from typing import Any

from hub.recipe import DatasetRecipe
from hub.schema import EXAMPLE_SET, PROVENANCE, base_config, config_features
from model_cards.escape import Markdown, code, table

NOTES = {
    "sentence1": "the first text",
    "sentence2": "the second text, written for the first",
    "score": "the similarity asked for, 0 to 1, after label smoothing; 0 for a sampled negative",
    "premise": "the first text",
    "hypothesis": "the second text, written for the first",
    "label": "the class asked for",
    "anchor": "the first text",
    "positive": "a text written to be entailed by it",
    "negative": "a text written to contradict it",
    "source_id": "which first text, given or generated",
    "target": "the label whose instruction was given",
    "sample": "which of the texts wanted for this first text and target, from 0",
    "attempt": "which completion for this first text and target, from 0",
    "seed": "the random seed of this row alone",
    "log_prob": "mean log-probability per token under the instruction, before debiasing, in nats",
    "margin": "`log_prob` minus that under the best counter-label's instruction; null without counter-labels",
    "example_set": "which set of examples stood in the prompt, from 0",
    "text1": "the first text",
    "text2": "the second text as generated",
    "reason": "the filter that rejected the row",
    "text": "the text written for the label",
    "instruction": "the instruction the text was written for",
}
OWN_NOTES = {("sources", "text"): "the first text, written by the generator"}
SAMPLED_NOTE = "; `sampled` for a first text with a second text written for another"

CONFIG_NOTES = {
    "postprocessed": "pairs for training a sentence encoder: filtered, smoothed, with sampled negatives",
    "triplet": "first texts that have both an entailed and a contradicting text, for contrastive training",
    "pair-class": "single pairs with their class",
    "raw": "every text that ended properly and copies nothing of its prompt, before post-processing",
    "rejected": "what was filtered out while and after generating, each row with its reason",
    "sources": "the first texts, written by the generator",
}
TEXTS_NOTE = "texts with the class each was written for, filtered"


def config_list(configs: list[str], recipe: DatasetRecipe) -> Markdown:
    """The configs of a dataset, each with what it holds."""
    return table(["config", "holds"], [[code(config), config_note(config, recipe)] for config in configs])


def config_note(config: str, recipe: DatasetRecipe) -> str:
    """What a config holds, and with how many gold examples in the prompt it was made."""
    base = base_config(config)
    note = TEXTS_NOTE if (base, recipe.form) == ("postprocessed", "text") else CONFIG_NOTES[base]
    if base == config:
        return note
    shots = int(config.removeprefix(f"{base}-").removesuffix("shot"))
    examples = {0: "no example", 1: "one gold example"}.get(shots, f"{shots} gold examples")
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
    features = {**PROVENANCE, **(EXAMPLE_SET if recipe.few_shot else {})}
    return _table(features, more={"target": SAMPLED_NOTE} if recipe.form == "sts" else {})


def _own(features: dict[str, Any]) -> dict[str, Any]:
    if not set(PROVENANCE) <= set(features):
        return features
    return {name: feature for name, feature in features.items() if name not in {*PROVENANCE, *EXAMPLE_SET}}


def _table(features: dict[str, Any], base: str = "", more: dict[str, str] | None = None) -> Markdown:
    notes = {name: OWN_NOTES.get((base, name), NOTES[name]) + (more or {}).get(name, "") for name in features}
    rows = [[code(name), code(_type(feature)), Markdown(notes[name])] for name, feature in features.items()]
    return table(["column", "type", "meaning"], rows)


def _type(feature: object) -> str:
    names = getattr(feature, "names", None)
    if names:
        return "class: " + ", ".join(f"{index} {name}" for index, name in enumerate(names))
    return str(getattr(feature, "dtype", feature))

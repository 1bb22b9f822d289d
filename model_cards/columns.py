"""What each published column means, in the words of a card. A test holds this against ``hub.schema``."""

from typing import Any

from hub.schema import PROVENANCE, config_features
from model_cards.configs import form_of
from model_cards.escape import Markdown, code, table

NOTES = {
    "sentence1": "the first text",
    "sentence2": "the second text, written for the first",
    "score": "the similarity asked for, 0 to 1, after label smoothing; 0 for a sampled negative",
    "premise": "the first text",
    "hypothesis": "the second text, written for the first",
    "label": "the relation asked for",
    "anchor": "the first text",
    "positive": "a text written to be entailed by it",
    "negative": "a text written to contradict it",
    "source_id": "which first text, given or generated",
    "target": "the label whose instruction was given",
    "attempt": "which completion for this first text and target, from 0",
    "seed": "the random seed of this row alone",
    "log_prob": "mean log-probability per token under the instruction, before debiasing, in nats",
    "margin": "`log_prob` minus that under the best counter-label's instruction; null without counter-labels",
    "text1": "the first text",
    "text2": "the second text as generated",
    "reason": "the filter that rejected the row",
    "text": "the first text, written by the generator",
    "instruction": "the instruction the text was written for",
}

SAMPLED_NOTE = "; `sampled` for a first text with a second text written for another"

CONFIG_NOTES = {
    "postprocessed": "pairs for training a sentence encoder: filtered, smoothed, with sampled negatives",
    "triplet": "anchor, entailed text and contradicting text, for contrastive training",
    "pair-class": "single pairs with their class",
    "raw": "every text the generator closed properly, before post-processing",
    "rejected": "what was filtered out while and after generating, each row with its reason",
    "sources": "the first texts, written by the generator",
}


def config_list(configs: list[str]) -> Markdown:
    """The configs of a dataset, each with what it holds."""
    return table(["config", "holds"], [[code(config), CONFIG_NOTES[config]] for config in configs])


def column_tables(configs: list[str]) -> dict[str, Markdown]:
    """For each config a table of its columns, but for the provenance columns of rows that carry all of them."""
    return {config: _table(_own(config_features(config, form_of(config)))) for config in configs}


def provenance_table(form: str) -> Markdown:
    """The columns that say where a row comes from, for the recipe form ``sts`` or ``nli``."""
    return _table(dict(PROVENANCE), {"target": SAMPLED_NOTE} if form == "sts" else {})


def _own(features: dict[str, Any]) -> dict[str, Any]:
    if not set(PROVENANCE) <= set(features):
        return features
    return {name: feature for name, feature in features.items() if name not in PROVENANCE}


def _table(features: dict[str, Any], more: dict[str, str] | None = None) -> Markdown:
    notes = {name: NOTES[name] + (more or {}).get(name, "") for name in features}
    rows = [[code(name), code(_type(feature)), Markdown(notes[name])] for name, feature in features.items()]
    return table(["column", "type", "meaning"], rows)


def _type(feature: object) -> str:
    names = getattr(feature, "names", None)
    if names:
        return "class: " + ", ".join(f"{index} {name}" for index, name in enumerate(names))
    return str(getattr(feature, "dtype", feature))

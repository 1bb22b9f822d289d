"""The vocabulary of columns, labels and splits: the one place that says what a published pair looks like.

A *form* is the schema a trainer sees (its ``columns``, in order). Every row carries ``PROVENANCE`` after them; training
selects columns by form, because a sentence-transformers trainer feeds every other column to the model as text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import datasets
import pyarrow as pa
from datasets import ClassLabel, Value

from hub.recipe import NLI_LABELS, DatasetRecipe

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Form:
    """A pair form: its name and its typed columns, in the order a viewer and a loss read them."""

    name: str
    columns: dict[str, Value | ClassLabel]
    provenance: dict[str, Value]


PROVENANCE: dict[str, Value] = {
    "source_id": Value("string"),  # which given or generated first text
    "target": Value("string"),  # the label whose instruction was given, e.g. "0.5" or "entailment"
    "sample": Value("int32"),  # 0-based: which of the texts wanted for this (source, target) it was written for
    "attempt": Value("int32"),  # 0-based number of the completion asked for this (source, target)
    "seed": Value("uint64"),  # the row's own random seed
    "log_prob": Value("float32"),  # mean nats per token under the instruction, before debiasing
    "margin": Value("float32"),  # log_prob minus that of the best counter-label; null without counter-labels
}

STS = Form("sts", {"sentence1": Value("string"), "sentence2": Value("string"), "score": Value("float32")}, PROVENANCE)
PAIR_CLASS = Form(
    "pair-class",
    {"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=list(NLI_LABELS))},
    PROVENANCE,
)
TRIPLET = Form(
    "triplet",
    {"anchor": Value("string"), "positive": Value("string"), "negative": Value("string")},
    {"source_id": PROVENANCE["source_id"]},  # two completions made it: they are looked up by source in `pair-class`
)
EXAMPLE_SET = {"example_set": Value("int32")}  # 0-based; a column of few-shot recipes alone
FORMS = {form.name: form for form in (STS, PAIR_CLASS, TRIPLET)}

RAW: dict[str, Value] = {"text1": Value("string"), "text2": Value("string"), **PROVENANCE}
REJECTED: dict[str, Value] = {**RAW, "reason": Value("string")}
SOURCES: dict[str, Value] = {
    "source_id": Value("string"),
    "text": Value("string"),
    "instruction": Value("string"),
    "seed": Value("uint64"),
    "log_prob": Value("float32"),
}


def text_form(label_names: Sequence[str]) -> Form:
    """The form of single labelled texts: ``text, label``."""
    columns = {"text": Value("string"), "label": ClassLabel(names=list(label_names))}
    return Form("text", columns, PROVENANCE)


def published_features(form: Form) -> datasets.Features:
    """Features of a config that holds finished rows of ``form``: its columns, then provenance."""
    return datasets.Features({**form.columns, **form.provenance})


def finished_form(config: str, recipe: DatasetRecipe) -> Form:
    """The form of a finished config of a recipe. Raises KeyError for any other config."""
    base = base_config(config)
    if base == "postprocessed":
        return STS if recipe.form == "sts" else text_form([label.name for label in recipe.labels])
    return {"triplet": TRIPLET, "pair-class": PAIR_CLASS}[base]


def base_config(config: str) -> str:
    """The config without its shot count: ``triplet`` of ``triplet-20shot``."""
    return re.sub(r"-\d+shot$", "", config)


def config_features(config: str, recipe: DatasetRecipe) -> datasets.Features:
    """Features of one Hub config of a dataset repo: ``raw``, ``rejected``, ``sources`` or a finished one."""
    base = base_config(config)
    fixed = {"raw": RAW, "rejected": REJECTED, "sources": SOURCES}
    features = datasets.Features(fixed[base]) if base in fixed else published_features(finished_form(config, recipe))
    return datasets.Features({**features, **EXAMPLE_SET}) if recipe.few_shot and base != "sources" else features


def arrow_schema(features: datasets.Features) -> pa.Schema:
    """The arrow schema for a shard, with the ``huggingface`` metadata that keeps ClassLabel names in the file."""
    return features.arrow_schema

"""The vocabulary of columns, labels and splits: the one place that says what a published pair looks like.

A *form* is the schema a trainer sees (its ``columns``, in order). Every row carries ``PROVENANCE`` after them; training
selects columns by form, because a sentence-transformers trainer feeds every other column to the model as text.
"""

from dataclasses import dataclass

import datasets
import pyarrow as pa
from datasets import ClassLabel, Value

NLI_LABELS = ("entailment", "neutral", "contradiction")
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


def published_features(form: Form) -> datasets.Features:
    """Features of a config that holds finished rows of ``form``: its columns, then provenance."""
    return datasets.Features({**form.columns, **form.provenance})


def config_features(config: str, form: Form) -> datasets.Features:
    """Features of one Hub config of a dataset repo (``raw``, ``rejected``, ``sources`` or a finished form)."""
    fixed = {"raw": RAW, "rejected": REJECTED, "sources": SOURCES}
    return datasets.Features(fixed[config]) if config in fixed else published_features(form)


def arrow_schema(features: datasets.Features) -> pa.Schema:
    """The arrow schema for a shard, with the ``huggingface`` metadata that keeps ClassLabel names in the file."""
    return features.arrow_schema

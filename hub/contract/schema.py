"""Schemas of datasets, the columns of their rows, and the reasons why a text is rejected.

A recipe names its dataset schema (key ``schema``). To add one, declare it in ``SCHEMAS`` and give
``sts_dino.generation.rows.pairs.FINISHING`` the function that makes its rows.

A *row schema* lists the columns that a trainer sees, in order. ``PROVENANCE`` follows them in every
row. Training selects columns by row schema, because a sentence-transformers trainer feeds every
other column to the model as text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets  # importing it takes a second
    import pyarrow as pa

NLI_LABELS = ("entailment", "neutral", "contradiction")  # SNLI's and MultiNLI's order
SEARCH_LABELS = ("0", "1")  # whether the passage answers the query
SAMPLED = "sampled"  # the target of a sampled negative
SPLITS = ("train", "validation", "test")
# the name of an arrow type, the class names of a label, or a struct: field → name of its type
ColumnType = str | tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True)
class RowSchema:
    """Name and typed columns of a row, in the order a viewer and a loss read them."""

    name: str
    columns: dict[str, ColumnType]
    provenance: dict[str, ColumnType]


PROVENANCE: dict[str, ColumnType] = {
    "source_id": "string",  # which given or generated source sentence
    "target": "string",  # the label whose instruction was given, e.g. "0.5" or "entailment"
    # 0-based: which of the texts wanted for this (source, target) it was written for
    "sample": "int32",
    "attempt": "int32",  # 0-based number of the completion asked for this (source, target)
    "seed": "uint64",  # the row's own random seed
    "log_prob": "float32",  # mean nats per token under the instruction, before debiasing
    # log_prob minus that of the best counter-label; null without counter-labels
    "margin": "float32",
}

STS = RowSchema(
    "sts", {"sentence1": "string", "sentence2": "string", "score": "float32"}, PROVENANCE
)
PAIR_CLASS = RowSchema(
    "pair-class", {"premise": "string", "hypothesis": "string", "label": NLI_LABELS}, PROVENANCE
)
TRIPLET = RowSchema(
    "triplet",
    {"anchor": "string", "positive": "string", "negative": "string"},
    # two completions made it: they are looked up by source in `pair-class`
    {"source_id": PROVENANCE["source_id"]},
)
PAIR = RowSchema("pair", {"anchor": "string", "positive": "string"}, PROVENANCE)
QUERY_CLASS = RowSchema(
    "query-class", {"query": "string", "passage": "string", "label": SEARCH_LABELS}, PROVENANCE
)
# 0-based; a column of few-shot recipes alone
EXAMPLE_SET: dict[str, ColumnType] = {"example_set": "int32"}
LOG_LIKELIHOODS = "log_likelihoods"
LABEL_PROBABILITY = "label_probability"
COSINE = "cosine"  # of a text to its source sentence, by the encoder that chooses texts
ROW_SCHEMAS = {rows.name: rows for rows in (STS, PAIR_CLASS, TRIPLET, PAIR, QUERY_CLASS)}

RAW: dict[str, ColumnType] = {"text1": "string", "text2": "string", **PROVENANCE}
REJECTED: dict[str, ColumnType] = {**RAW, "reason": "string"}
SOURCES: dict[str, ColumnType] = {
    "source_id": "string",
    "text": "string",
    "instruction": "string",
    "seed": "uint64",
    "log_prob": "float32",
}
UNFINISHED = {"raw": RAW, "rejected": REJECTED, "sources": SOURCES}  # configs of every schema


@dataclass(frozen=True)
class Finished:
    """A config of training rows: the name of its row schema, and its description on a card."""

    example_type: str
    holds: str


@dataclass(frozen=True)
class DatasetSchema:
    """A dataset schema: its finished configs, its labels, and the rules of its rows.

    ``labelled``: the finished config whose rows hold their label, for a card's samples and plots.
    ``labels``: the labels that a recipe may have; None allows any. ``required``: the labels that a
    recipe must have. ``pairs``: whether a row joins a generated text and its source sentence.
    ``scored``: whether every label needs a score. ``sampled_negatives``: whether pairs with texts
    generated for other source sentences are added. ``distinct``: whether a (text, label) may stand
    only once in the whole dataset; else it may stand once for each source sentence.
    """

    name: str
    finished: dict[str, Finished]  # by base name; the first is the dataset's default config
    labelled: str
    labels: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    pairs: bool = True
    scored: bool = False
    sampled_negatives: bool = False
    distinct: bool = False


STS_DATASET = DatasetSchema(
    name="sts",
    finished={"postprocessed": Finished("sts", "pairs for training a sentence encoder: filtered")},
    labelled="postprocessed",
    scored=True,
    sampled_negatives=True,
)
_TRIPLETS = (
    "source sentences that have both an entailed and a contradicting text, for contrastive training"
)
NLI_DATASET = DatasetSchema(
    name="nli",
    finished={
        "triplet": Finished("triplet", _TRIPLETS),
        "pair-class": Finished("pair-class", "single pairs with their class"),
    },
    labelled="pair-class",
    labels=NLI_LABELS,
    required=("entailment", "contradiction"),
)
TEXT_DATASET = DatasetSchema(
    name="text",
    finished={
        "postprocessed": Finished("text", "texts with the class each was written for, filtered")
    },
    labelled="postprocessed",
    pairs=False,
    distinct=True,
)
SEARCH_DATASET = DatasetSchema(
    name="search",
    finished={
        "pair": Finished(
            "pair", "a query and the passage that answers it, for contrastive training"
        ),
        "query-triplet": Finished(
            "triplet", "a passage, a query that it answers and, as hard negative, one it does not"
        ),
        "query-class": Finished(
            "query-class", "single queries: 1, the passage answers them, or 0, it does not"
        ),
    },
    labelled="query-class",
    labels=SEARCH_LABELS,
    required=("1",),
)
SCHEMAS = {
    schema.name: schema for schema in (STS_DATASET, NLI_DATASET, TEXT_DATASET, SEARCH_DATASET)
}


def make_text_schema(label_names: Sequence[str]) -> RowSchema:
    """Return the row schema of single labelled texts: ``text``, and ``label`` as a class."""
    columns: dict[str, ColumnType] = {"text": "string", "label": tuple(label_names)}
    return RowSchema("text", columns, PROVENANCE)


def build_features(columns: Mapping[str, ColumnType]) -> "datasets.Features":
    """Build the features of ``datasets`` for columns, in their order."""
    from datasets import ClassLabel, Features, Value

    features: dict[str, Any] = {}
    for name, column_type in columns.items():
        if isinstance(column_type, tuple):
            features[name] = ClassLabel(names=list(column_type))
        elif isinstance(column_type, str):
            features[name] = Value(column_type)
        else:
            features[name] = {field: Value(dtype) for field, dtype in column_type.items()}
    return Features(features)


def get_base_config(config: str) -> str:
    """Return the name of a config without its shot count, e.g. triplet for triplet-20shot."""
    return re.sub(r"-\d+shot$", "", config)


def is_generated(config: str) -> bool:
    """Whether a config of training rows has a name that ``sts-dino write`` gives.

    Hub datasets of people have configs such as triplet, without a shot count.
    """
    return config == STS_DATASET.labelled or get_base_config(config) != config


def is_finished(config: str) -> bool:
    """Whether a config holds training rows, not raw rows, rejected rows or source sentences."""
    return get_base_config(config) not in UNFINISHED


def is_same_schema(schema: "pa.Schema", expected: "pa.Schema") -> bool:
    """Return whether two schemas have equal columns: names, order, types and class names."""
    from datasets import Features

    if not schema.equals(expected):
        return False
    return Features.from_arrow_schema(schema) == Features.from_arrow_schema(expected)


# Reasons why a text is rejected; ``model_cards/data/words.yaml`` has their words on a card.
# of a completion
NOT_CLOSED = "not_closed"
LINE_BREAK = "line_break"
EMPTY = "empty"
# of a server's answer
NOT_A_SENTENCE = "not_a_sentence"
ABOUT_THE_TASK = "about_the_task"
SEVERAL_SENTENCES = "several_sentences"
TOO_LONG_ANSWER = "too_long_answer"
COMPLETION = (
    NOT_CLOSED,
    LINE_BREAK,
    EMPTY,
    NOT_A_SENTENCE,
    ABOUT_THE_TASK,
    SEVERAL_SENTENCES,
    TOO_LONG_ANSWER,
)
# of filters
SAME_FOR_LABELS = "same_for_labels"
SAME_BEGINNING = "same_beginning"
EXAMPLE_COPY = "example_copy"
EXAMPLE_LEAK = "example_leak"
PROMPT_WORDS = "prompt_words"
PROMPT_ECHO = "prompt_echo"
NEAR_COPY = "near_copy"  # of the source sentence, as is OVERLAP
OVERLAP = "overlap"
CONTROL_CHARACTERS = "control_characters"
WRONG_LANGUAGE = "wrong_language"
# of verification and selection
OTHER_LABEL = "other_label"
NOT_BEST = "not_best"
VERIFIED = (OTHER_LABEL, NOT_BEST)
# of rows
IDENTICAL = "identical"
DUPLICATE = "duplicate"
OVER_CAP = "over_cap"
ROW_FILTERS = (IDENTICAL, *VERIFIED, DUPLICATE, OVER_CAP)
# of source sentences
QUOTATION_MARK = "quotation_mark"
NOT_UNICODE = "not_unicode"
CONTROL_TOKEN = "control_token"  # noqa: S105 - the reason's name
LENGTH = "length"
TOO_LONG = "too_long"
NOT_NEEDED = "not_needed"

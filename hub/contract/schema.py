"""Schemas of datasets, the columns of their rows, and the reasons why a text is rejected.

A recipe names its dataset schema (key ``schema``). To add one, declare it in ``SCHEMAS`` and give
``generation.rows.pairs.FINISHING`` the function that makes its rows.

A *row schema* lists the columns that a trainer sees, in order. ``PROVENANCE`` follows them in every row. Training
selects columns by row schema, because a sentence-transformers trainer feeds every other column to the model as text.
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
# an arrow type by name, the class names of a label, or the types of a struct's fields
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
    "sample": "int32",  # 0-based: which of the texts wanted for this (source, target) it was written for
    "attempt": "int32",  # 0-based number of the completion asked for this (source, target)
    "seed": "uint64",  # the row's own random seed
    "log_prob": "float32",  # mean nats per token under the instruction, before debiasing
    "margin": "float32",  # log_prob minus that of the best counter-label; null without counter-labels
}

STS = RowSchema("sts", {"sentence1": "string", "sentence2": "string", "score": "float32"}, PROVENANCE)
PAIR_CLASS = RowSchema("pair-class", {"premise": "string", "hypothesis": "string", "label": NLI_LABELS}, PROVENANCE)
TRIPLET = RowSchema(
    "triplet",
    {"anchor": "string", "positive": "string", "negative": "string"},
    {"source_id": PROVENANCE["source_id"]},  # two completions made it: they are looked up by source in `pair-class`
)
PAIR = RowSchema("pair", {"anchor": "string", "positive": "string"}, PROVENANCE)
QUERY_CLASS = RowSchema("query-class", {"query": "string", "passage": "string", "label": SEARCH_LABELS}, PROVENANCE)
EXAMPLE_SET: dict[str, ColumnType] = {"example_set": "int32"}  # 0-based; a column of few-shot recipes alone
LOG_LIKELIHOODS, LABEL_PROBABILITY = "log_likelihoods", "label_probability"
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
    """A config of rows to train on: their row schema, and what a card says it holds."""

    example_type: str
    holds: str


@dataclass(frozen=True)
class DatasetSchema:
    """A dataset schema: its finished configs, its labels, and what it can do (card: model_cards/data/words.yaml).

    ``labels``: those a recipe may have, None for any; ``required``: those of them it must have. ``pairs``: a row joins
    a generated text and its source sentence. ``scored``: every label needs a score. ``sampled_negatives``: pairs with
    generated texts of other source sentences, of other shards too, are added. ``distinct``: a (text, label) stands once
    in the whole dataset, not only once per source sentence.
    """

    name: str
    finished: dict[str, Finished]  # by base name; the first is the dataset's default config
    labelled: str  # the finished config whose rows carry their label: a card's samples and plots are of it
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
_TRIPLETS = "source sentences that have both an entailed and a contradicting text, for contrastive training"
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
    finished={"postprocessed": Finished("text", "texts with the class each was written for, filtered")},
    labelled="postprocessed",
    pairs=False,
    distinct=True,
)
SEARCH_DATASET = DatasetSchema(
    name="search",
    finished={
        "pair": Finished("pair", "a query and the passage that answers it, for contrastive training"),
        "query-triplet": Finished(
            "triplet", "a passage, a query that it answers and, as hard negative, one it does not"
        ),
        "query-class": Finished("query-class", "single queries: 1, the passage answers them, or 0, it does not"),
    },
    labelled="query-class",
    labels=SEARCH_LABELS,
    required=("1",),
)
SCHEMAS = {schema.name: schema for schema in (STS_DATASET, NLI_DATASET, TEXT_DATASET, SEARCH_DATASET)}


def text_schema(label_names: Sequence[str]) -> RowSchema:
    """The row schema of single labelled texts: ``text, label``."""
    columns: dict[str, ColumnType] = {"text": "string", "label": tuple(label_names)}
    return RowSchema("text", columns, PROVENANCE)


def features(columns: Mapping[str, ColumnType]) -> "datasets.Features":
    """Columns as ``datasets`` has them."""
    from datasets import ClassLabel, Features, Value

    def feature(of: ColumnType) -> Any:
        if isinstance(of, tuple):
            return ClassLabel(names=list(of))
        return Value(of) if isinstance(of, str) else {name: Value(one) for name, one in of.items()}

    return Features({name: feature(of) for name, of in columns.items()})


def base_config(config: str) -> str:
    """The config without its shot count: ``triplet`` of ``triplet-20shot``."""
    return re.sub(r"-\d+shot$", "", config)


def is_finished(config: str) -> bool:
    """Whether a config holds rows that one trains on, and not raw or rejected texts or source sentences."""
    return base_config(config) not in UNFINISHED


def same_schema(found: "pa.Schema", wanted: "pa.Schema") -> bool:
    """Whether columns have the same names, order, types and class names."""
    from datasets import Features

    return found.equals(wanted) and Features.from_arrow_schema(found) == Features.from_arrow_schema(wanted)


# Reasons why a text is rejected; ``model_cards/data/words.yaml`` has their words on a card.
NOT_CLOSED, LINE_BREAK, EMPTY = "not_closed", "line_break", "empty"
NOT_A_SENTENCE, TOO_LONG_ANSWER = "not_a_sentence", "too_long_answer"  # of a server's answer
COMPLETION = (NOT_CLOSED, LINE_BREAK, EMPTY, NOT_A_SENTENCE, TOO_LONG_ANSWER)
SAME_FOR_LABELS = "same_for_labels"
EXAMPLE_COPY, PROMPT_WORDS, PROMPT_ECHO = "example_copy", "prompt_words", "prompt_echo"
NEAR_COPY, OVERLAP = "near_copy", "overlap"  # of the source sentence
CONTROL_CHARACTERS, WRONG_LANGUAGE = "control_characters", "wrong_language"
VERIFIED = OTHER_LABEL, NOT_BEST = "other_label", "not_best"
IDENTICAL, DUPLICATE, OVER_CAP = "identical", "duplicate", "over_cap"
ROW_FILTERS = (IDENTICAL, *VERIFIED, DUPLICATE, OVER_CAP)
QUOTATION_MARK, NOT_UNICODE = "quotation_mark", "not_unicode"  # of source sentences, as those below
CONTROL_TOKEN = "control_token"  # noqa: S105 - the reason's name
LENGTH, TOO_LONG, NOT_NEEDED = "length", "too_long", "not_needed"

"""Forms of a dataset (STS pairs, NLI, labelled texts): finished configs, labels, a card's words. Each is declared once.

A recipe names its form (key ``form``). To add one: declare it here, then give ``generation.rows.pairs.FINISHING`` the
function that makes its rows, and ``hub.contract.schema`` new columns.
"""

from dataclasses import dataclass

NLI_LABELS = ("entailment", "neutral", "contradiction")  # SNLI's and MultiNLI's order
SAMPLED = "sampled"  # the target of a sampled negative


@dataclass(frozen=True)
class Finished:
    """A config of rows to train on: their example type (``hub.contract.schema``), and what a card says it holds."""

    example_type: str
    holds: str


@dataclass(frozen=True)
class CardWords:
    """What a dataset card and its front matter say of a form."""

    opening: str
    texts: str  # what the model wrote for a label
    rows: str  # what a row holds
    method: str  # tag of the paper
    tags: tuple[str, ...]
    task_categories: tuple[str, ...]
    task_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetForm:
    """A form: its finished configs, the labels it takes and the words of its card.

    ``labels``: those a recipe may have, None for any; ``required``: those of them it must have. ``scored``: every label
    needs a score. ``sampled_negatives``: pairs with second texts of other first texts, of other shards too, are added.
    ``distinct``: a (text, label) stands once in the whole dataset, not only once for each first text.
    """

    name: str
    finished: dict[str, Finished]  # by base name; the first is the dataset's default config
    labelled: str  # the finished config whose rows carry their label: a card's samples and plots are of it
    card: CardWords
    labels: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    scored: bool = False
    sampled_negatives: bool = False
    distinct: bool = False


STS = DatasetForm(
    name="sts",
    finished={
        "postprocessed": Finished(
            "sts", "pairs for training a sentence encoder: filtered, smoothed, with sampled negatives"
        )
    },
    labelled="postprocessed",
    scored=True,
    sampled_negatives=True,
    card=CardWords(
        opening="Labelled sentence pairs written by a language model, each with a similarity score.",
        texts="second texts",
        rows="pairs",
        method="dino",
        tags=("semantic-textual-similarity", "sentence-transformers"),
        task_categories=("sentence-similarity",),
        task_ids=("semantic-similarity-scoring",),
    ),
)
NLI = DatasetForm(
    name="nli",
    finished={
        "triplet": Finished(
            "triplet", "first texts that have both an entailed and a contradicting text, for contrastive training"
        ),
        "pair-class": Finished("pair-class", "single pairs with their class"),
    },
    labelled="pair-class",
    labels=NLI_LABELS,
    required=("entailment", "contradiction"),
    card=CardWords(
        opening="Labelled sentence pairs written by a language model, each with an inference label.",
        texts="second texts",
        rows="pairs",
        method="auto-nli",
        tags=("natural-language-inference", "sentence-transformers"),
        task_categories=("text-classification", "sentence-similarity"),
        task_ids=("natural-language-inference",),
    ),
)
TEXT = DatasetForm(
    name="text",
    finished={"postprocessed": Finished("text", "texts with the class each was written for, filtered")},
    labelled="postprocessed",
    distinct=True,
    card=CardWords(
        opening="Texts written by a language model, each for the class it is labelled with.",
        texts="texts",
        rows="texts",
        method="dino",
        tags=(),
        task_categories=("text-classification",),
    ),
)
FORMS = {form.name: form for form in (STS, NLI, TEXT)}

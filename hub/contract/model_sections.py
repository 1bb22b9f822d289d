"""The sections of a model recipe: encoder, adapters, data with their losses, what picks the checkpoint, what scores."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hub.contract.dataset_sections import Quantization
from hub.contract.sections import CARD_ONLY, OPTION, Fraction, Positive, Strict

PROMPT_TEXT = "[X]"  # where the sentence stands in ``Encoder.prompt``, as PromptEOL's paper writes it

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Pinned(Strict):
    """What comes from a path on this disk, or from a Hub repository at a pinned revision."""

    repo_id: str | None = None  # on the Hub: ORG/NAME
    revision: str | None = None  # a commit or a tag of it
    path: str | None = None  # or on this disk

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        if (self.path is None) == (self.repo_id is None):
            yield "give exactly one of path and repo_id"
        if self.repo_id is not None and self.revision is None:
            yield f"{self.repo_id} needs a revision: pin it by a tag or a commit, e.g. revision: v1.0.0"


Columns = Annotated[tuple[str, ...], Field(min_length=1)]


class Vocabulary(Pinned):
    """Which tokens a static encoder keeps of its base, and what becomes of their vectors.

    The place is a corpus: a dataset as those under ``datasets`` are named, or a file (.txt: a text a line).
    """

    config: str = "default"
    split: str = "train"
    columns: Columns | None = None  # of the texts; left out: the source sentences
    size: Positive | None = None  # the corpus's most frequent tokens; left out: all of its tokens
    dimensions: Positive | None = None  # principal components of the vectors; left out: all, as they are
    sif: PositiveFloat | None = None  # a of a / (a + p), which a token of frequency p is multiplied by; usual: 1e-3


class Encoder(Pinned):
    """The encoder before training, in stock modules of sentence-transformers.

    ``transformer``: all layers under ``pooling``; ``static``: the mean of the base's token embeddings; for baselines
    also ``word-vectors``: the mean of the vectors in a text file (GloVe's form: a word and its numbers a line), and
    ``sentence-transformer``: a finished encoder as it is (its own pooling).
    """

    file: str | None = None  # word-vectors: the file in the repo (.txt, .vec, or either as .gz)
    modules: Literal["transformer", "static", "word-vectors", "sentence-transformer"] = "transformer"
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"  # how tokens become one vector
    max_seq_length: Positive = 64  # tokens, the prompt's included
    prompt: str | None = None  # around every sentence, e.g. PromptEOL's; [X] stands for the sentence
    layers: Annotated[Positive | None, OPTION] = None  # the base's first so many; left out: all
    vocabulary: Annotated[Vocabulary | None, OPTION] = None  # static: the tokens of a corpus alone; left out: all
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of the base's weights; half needs lora
    quantization: Quantization | None = None  # as in a dataset recipe's model; needs lora
    license: Annotated[str, CARD_ONLY]  # of the base

    @field_validator("prompt")
    @classmethod
    def _one_place(cls, text: str | None) -> str | None:
        if text is not None and text.count(PROMPT_TEXT) != 1:
            raise ValueError(f"the prompt must contain {PROMPT_TEXT}, the sentence's place, exactly once")
        return text

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        yield from super().problems()
        if self.modules in ("static", "word-vectors") and self.pooling != "mean":
            yield f"modules {self.modules} is a mean of embeddings: pooling {self.pooling} does not fit"
        if self.prompt is not None and self.modules != "transformer":
            yield f"a prompt needs modules: transformer, not {self.modules}"
        if self.layers is not None and self.modules != "transformer":
            yield f"layers are those of modules: transformer, not of {self.modules}"
        if self.vocabulary is not None and self.modules != "static":
            yield f"vocabulary is cut for modules: static, not for {self.modules}"
        if (self.file is not None) != (self.modules == "word-vectors" and self.repo_id is not None):
            yield "file names the vectors in a Hub repo: give it with repo_id and modules: word-vectors"


class Lora(Strict):
    """Low-rank adapters on a frozen base (Hu et al. 2022); values under peft's meaning."""

    r: Positive
    alpha: Positive  # the update is scaled by alpha / r
    dropout: Fraction = 0.0
    target_modules: tuple[str, ...] = ()  # names of linear layers; empty: all of them
    release: Literal["adapter", "merged"] = "adapter"  # what is published: the adapter alone, or whole weights


class Spans(Strict):
    """How anchors and positives are cut from a document: DeCLUTR section 3.2, read as the authors' code does it.

    Lengths are in ``unit``s. ``anchor_placement`` blocks: each anchor lies in a block of ``max_length`` units, and a
    block that is taken takes its neighbours with it; apart: the paper's sentence, 2 * max_length units between two
    anchors (``training.data.spans``).
    """

    unit: Literal["words", "tokens"] = "words"  # words: what whitespace separates
    lowercase: bool = False  # the documents, before anything else
    min_length: Positive = 32
    max_length: Positive = 512
    anchors: Positive = 2  # per document
    positives: Positive = 2  # per anchor
    anchor_beta: tuple[PositiveFloat, PositiveFloat] = (4.0, 2.0)  # long spans are likely
    positive_beta: tuple[PositiveFloat, PositiveFloat] = (2.0, 4.0)  # short ones
    anchor_placement: Literal["blocks", "apart"] = "blocks"
    strategy: Literal["any", "adjacent", "overlapping", "subsumed"] = "any"  # where positives lie; any: as they fall
    min_document: Positive = 2048  # shorter documents are passed over, and counted

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        if self.min_length >= self.max_length:
            yield f"min_length {self.min_length} is not below max_length {self.max_length}"
        if self.min_document < self.needed_units:
            yield (
                f"min_document {self.min_document}: {self.anchors} anchors of up to {self.max_length} {self.unit} "
                f"(anchor_placement {self.anchor_placement}) and their positives need {self.needed_units} {self.unit}"
            )

    @property
    def needed_units(self) -> int:
        """The shortest document in which the anchors, and a positive of the strategy with each, always fit."""
        blocks = 2 * self.anchors if self.anchor_placement == "blocks" else 3 * self.anchors - 2
        beside = {"adjacent": 2 * self.min_length, "overlapping": 1}.get(self.strategy, 0)
        return max(blocks * self.max_length, self.max_length + beside)


class Grades(Strict):
    """Score bands, bounds included, of the pairs that hold a source sentence's positives and its hard negatives.

    The defaults fit DINO's labels 1, 0.5 and 0, smoothed or not: 1 is positive, 0.5 and 0 are negative.
    """

    positive_from: Annotated[float, Field(gt=0, le=1)] = 0.75
    negative_from: Annotated[float, Field(ge=0, lt=1)] = 0.0  # 0.4: the pairs of label 0.5 alone
    negative_to: Annotated[float, Field(ge=0, lt=1)] = 0.6  # 0.3: those of label 0 alone

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        if not self.negative_from <= self.negative_to < self.positive_from:
            found = f"{self.negative_from:g}, {self.negative_to:g}, {self.positive_from:g}"
            yield f"negative_from <= negative_to < positive_from does not hold for {found}"


MADE = ("self-pair", "graded-pair", "graded-triplet")  # types whose rows are made from all that are read


class TrainingData(Pinned):
    """One dataset of a model: a Hub dataset pinned by tag (or a local run directory), config, example type and loss.

    It may also be a file with the example type's columns: .jsonl or .parquet, and for texts alone .txt, one a line.

    Three example types are made of the rows that are read. ``self-pair``: each distinct text of ``columns`` with itself
    (unsupervised SimCSE, Gao et al. 2021). ``graded-pair`` and ``graded-triplet``: of sts pairs; the source
    sentence is the anchor, and ``grades`` says which scores are positive and which are hard negatives.
    """

    config: str
    split: str = "train"
    example_type: Literal["sts", "triplet", "pair-class", "documents", "self-pair", "graded-pair", "graded-triplet"]
    example_set: Annotated[int, Field(ge=0)] | None = None  # only the rows of this set of few-shot examples
    streaming: bool = False  # read while training, never whole in memory or on disk; needs arguments.max_steps
    columns: Annotated[Columns | None, OPTION] = None  # of the texts of self-pair; left out: the source sentences
    grades: Annotated[Grades | None, OPTION] = None  # graded-pair, graded-triplet; left out: its defaults
    weights: Annotated[str | None, OPTION] = None  # the column of how much each row counts; left out: all the same
    loss: str
    loss_arguments: dict[str, str] = Field(default_factory=dict)  # under the loss class's own names
    guide: Annotated[Encoder | None, OPTION] = None  # of GISTEmbedLoss and its cached form; left out: the base
    spans: Spans | None = None  # documents; left out: DeCLUTR's values
    license: Annotated[str | None, CARD_ONLY] = None  # of files and datasets that do not say theirs

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        yield from super().problems()
        if self.guide is not None and self.guide.vocabulary is not None:
            yield "guide.vocabulary: a guide reads what the encoder reads: remove it"
        if self.spans is not None and self.example_type != "documents":
            yield f"spans are cut from documents, example_type is {self.example_type}"
        if self.columns is not None and self.example_type != "self-pair":
            yield f"columns are those of the texts of self-pair, example_type is {self.example_type}"
        if self.grades is not None and not self.example_type.startswith("graded-"):
            yield f"grades are those of graded-pair and graded-triplet, example_type is {self.example_type}"
        if self.example_type in MADE and self.streaming:
            yield f"example_type {self.example_type} is made from all rows: it cannot be streamed"
        if self.weights is not None and self.streaming:
            yield "weights are divided by their mean, which is not known of a stream: remove streaming"
        if self.weights is not None and self.example_type in ("self-pair", "documents"):
            yield f"weights are of rows, and example_type {self.example_type} has none of its own"


class ValidationData(Pinned):
    """Scored sentence pairs that the checkpoint is chosen by: a split of a pinned Hub dataset with the columns
    sentence1, sentence2 and score (of any scale), or a file in the STS Benchmark's layout.
    """

    config: str | None = None
    split: str = "validation"


class SlantedTriangular(Strict):
    """Howard and Ruder 2018, equation 3: up for a share of the steps, then down, between rate / ratio and rate."""

    cut_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 32.0


class EvaluationTask(Strict):
    """One evaluation: a registered task name, its split, and the file it reads (None: where the command says)."""

    task: str  # e.g. stsb/cosine
    split: Literal["validation", "test"] = "test"
    path: str | None = None

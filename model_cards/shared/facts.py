"""What a card needs from manifest.json, typed: strict about what it shows, tolerant about extra keys.

``Manifest.counts`` and ``Manifest.provenance`` are free mappings; these models say which of their keys a card reads.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from hub.contract.measured import Dropped
from hub.contract.run_dir import MANIFEST
from hub.errors import InputError


class Facts(BaseModel):
    """Base of the models here: immutable, extra keys ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Counts(Facts):
    """Texts of one shot count."""

    requested: int
    kept: int
    rejected: int


class LabelCounts(Counts):
    """Texts of one label; ``reasons`` says why its rejected ones were (empty: not recorded)."""

    reasons: dict[str, int] = {}


class GenerationProgress(Facts):
    """Counts of a generation that is still running."""

    shards_done: int = 0
    shards_total: int | None = None  # not known before the first texts are


class TextLengths(Facts):
    """Label → length → kept texts of that length, in ``unit`` (tokens of ``tokenizer``, or words)."""

    unit: str
    tokenizer: str | None = None
    by_label: dict[str, dict[int, int]]


class DatasetCounts(Facts):
    """Counts of a finished generation."""

    sources: int
    sources_skipped: dict[str, int] = {}  # given texts passed over
    sources_rejected: dict[str, int] = {}  # first texts that the model wrote and the filters rejected
    requested: int
    kept: int
    rejected: dict[str, int]
    sampled_negatives: int = 0
    by_label: dict[str, LabelCounts]
    likeliest: dict[str, dict[str, int]] = {}  # label asked for → label that fits best → raw texts; {}: not scored
    variants: dict[str, Counts] = {}  # shot count (e.g. 5shot) → texts of all its example sets
    splits: dict[str, dict[str, int]]  # config → split → rows
    token_lengths: TextLengths | None = None  # None: made before lengths were counted


class Upstream(Facts):
    """What a folder of a language model says it was made from (``hub.untrusted``)."""

    model: str
    made_by: str
    packages: dict[str, str]


class CodeFacts(Facts):
    """The clone that a run was made in."""

    commit: str
    url: str | None = None


class Generator(Facts):
    """The language model that wrote the texts."""

    id: str
    revision: str | None = None
    sha256: str | None = None  # None: a Hub model, pinned by its revision
    parameters: int | None = None  # None: a server does not say
    upstream: Upstream | None = None  # None: a Hub model, or nothing says where a folder is from


class SourceFacts(Facts):
    """Where the first texts come from, beyond the recipe."""

    sha256: str | None = None


class ExampleFacts(Facts):
    """Where few-shot examples come from. ``rows``: shot count → example set → row numbers in that dataset, from 0."""

    repo_id: str | None = None
    revision: str | None = None
    sha256: str | None = None
    rows: dict[str, tuple[dict[str, tuple[int, ...]], ...]] = {}  # the sets of a shot count: label → rows


class VersionFacts(Facts):
    """What one version of a dataset brought: its own first texts, texts and rows, and the command that wrote them."""

    version: str
    first_texts: int
    requested: int
    kept: int
    rows: dict[str, int]  # by config
    command: str


class DatasetProvenance(Facts):
    """How a dataset was made."""

    model: Generator
    source: SourceFacts
    examples: ExampleFacts | None = None
    decontamination: Dropped | None = None  # of a dataset without the rows of another that stand in evaluation data
    code: CodeFacts | None = None  # None: made outside of a clone
    command: str
    history: tuple[VersionFacts, ...] = ()  # the oldest first; (): no rows were appended


class TrainedOn(Facts):
    """One dataset a model was trained on."""

    repo_id: str | None = None
    path: str | None = None
    revision: str | None = None
    commit: str | None = None
    config: str
    example_type: str = Field(validation_alias=AliasChoices("example_type", "form"))  # form: before version 0.2
    loss: str
    example_set: int | None = None  # None: all rows
    splits: dict[str, int | None]  # rows; None: streamed, and not counted
    license: str | None = None  # what its own card or recipe says; None: the model's recipe does


class BaseFacts(Facts):
    """The pretrained model before training."""

    sha256: str | None = None
    upstream: Upstream | None = None


Curve = tuple[tuple[int, float], ...]  # (step, value)


class TrainingFacts(Facts):
    """Length, outcome and arguments of a training."""

    steps: int
    epochs: float
    best_step: int | None = None  # the step kept; None: the last one
    validation_metric: str | None = None  # what the checkpoint was chosen by, in words
    validation_score: float | None = None  # at the step kept
    loss_curve: Curve = ()
    loss_parts: dict[str, Curve] = {}  # of a loss that is a sum: its parts by name
    validation_curve: Curve = ()
    arguments: dict[str, Any] = {}
    batch_size: int  # of one optimiser step
    processes: int
    seed: int


class ModelProvenance(Facts):
    """How an encoder was made."""

    datasets: tuple[TrainedOn, ...]
    base: BaseFacts
    training: TrainingFacts | None  # None: a baseline
    code: CodeFacts | None = None  # None: made outside of a clone
    command: str


Model = TypeVar("Model", bound=Facts)


def read_facts(directory: Path, key: str, tree: dict[str, Any], model: type[Model]) -> Model:
    """One mapping of the manifest as ``model``. Raises InputError naming the key that is missing or wrong."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([key, *(str(part) for part in first["loc"])])
        raise InputError(
            directory / MANIFEST,
            f"{where}: {first['msg'].lower()}",
            hint="a card needs it: run the stage that made the directory again",
        ) from error

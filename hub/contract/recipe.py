"""Recipes: frozen, strict models of what is to be made. One recipe file is one published artefact.

``hub.contract.recipe_file`` reads them; the sections are in ``hub.contract.dataset_sections`` and ``model_sections``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from hub.contract.dataset_sections import (
    RECOGNISED,
    Decoding,
    DecodingParameters,
    Examples,
    FewShot,
    Label,
    LanguageModel,
    Postprocess,
    Server,
    Source,
    Verification,
)
from hub.contract.model_sections import (
    Encoder,
    EvaluationTask,
    Lora,
    SlantedTriangular,
    Spans,
    TrainingData,
    ValidationData,
)
from hub.contract.schema import (
    EXAMPLE_SET,
    LABEL_PROBABILITY,
    LOG_LIKELIHOODS,
    NLI_LABELS,
    PROVENANCE,
    RAW,
    REJECTED,
    ROW_SCHEMAS,
    SCHEMAS,
    SOURCES,
    ColumnType,
    DatasetSchema,
    RowSchema,
    base_config,
    features,
    text_schema,
)
from hub.contract.sections import (
    CARD_ONLY,
    OPTION,
    QUOTE,
    SCORING_ONLY,
    X1,
    Fraction,
    Language,
    Name,
    Positive,
    Strict,
    TextEnd,
    Version,
)
from hub.errors import did_you_mean

if TYPE_CHECKING:
    import datasets

__all__ = [
    "NLI_LABELS",
    "QUOTE",
    "X1",
    "DatasetRecipe",
    "DecodingParameters",
    "Encoder",
    "Examples",
    "FewShot",
    "Label",
    "LanguageModel",
    "Lora",
    "ModelRecipe",
    "Server",
    "Source",
    "Spans",
    "TextEnd",
    "TrainingData",
    "ValidationData",
    "Variant",
    "Verification",
    "config_columns",
    "config_features",
    "config_name",
    "finished_schema",
]


@dataclass(frozen=True)
class Variant:
    """One way to ask: a shot count (None: the recipe has no few-shot section) and the number of an example set."""

    shots: int | None
    example_set: int


OWN_SETTINGS = ("decay_constant", "guidance", "samples")  # of a label, in place of decoding's
OF_WRITTEN_LABELS = ("counter_labels", "score", "meaning", "decay_constant", "guidance", "overlap")  # of texts
_OF_LABELS = {"labels": "value of the label column", "texts": "column", "scores": "band"}


def config_name(base: str, shots: int | None) -> str:
    """The Hub config of a shot count, e.g. triplet-20shot; just the base without few-shot."""
    return base if shots is None else f"{base}-{shots}shot"


def _choices(found: str, allowed: Sequence[str]) -> str:
    """What is allowed instead of ``found``, and what may have been meant."""
    return "; ".join(filter(None, (f"allowed: {', '.join(allowed)}", did_you_mean(found, allowed))))


class DatasetRecipe(Strict):
    """Everything that decides the bytes of one published dataset."""

    kind: Literal["dataset"]  # what the recipe makes
    name: Name  # of the dataset, on the Hub, too
    version: Annotated[Version, CARD_ONLY]  # the same rows may be published anew, with another card
    schema_name: str = Field(alias="schema")  # of the dataset: sts, nli or text
    pretty_name: Annotated[str, CARD_ONLY]  # the card's title
    language: Annotated[Language, CARD_ONLY] = "en"  # of the texts: ISO 639
    license: Annotated[str, CARD_ONLY]  # of the dataset; which are possible follows from its parts' licences
    about: Annotated[str | None, CARD_ONLY, OPTION] = None  # the card's introduction: paragraphs, `code` in backticks
    source: Source  # source sentences
    model: LanguageModel  # what writes
    labels: Annotated[tuple[Label, ...], Field(min_length=1)]  # what pairs are asked for
    few_shot: FewShot | None = None  # examples in the prompt
    decoding: Decoding = Decoding()  # how texts are drawn
    verification: Annotated[Verification | None, OPTION] = None  # each text scored under every label's prompt
    postprocess: Postprocess = Postprocess()  # from texts to rows
    premise_tokens: tuple[int, int] | None = None  # keep only source sentences of so many tokens (Auto-NLI: 4-32)
    shard_size: Positive = 64  # source sentences per shard
    seed: Annotated[int, Field(ge=0)] = 42  # decides every draw

    @field_validator("schema_name")
    @classmethod
    def _known_schema(cls, name: str) -> str:
        if name not in SCHEMAS:
            raise ValueError(f"unknown schema; {_choices(name, tuple(SCHEMAS))}")
        return name

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        schema, names = self.dataset_schema, [label.name for label in self.labels]
        if len(set(names)) != len(names):
            yield f"labels: two labels share a name: {names}"
        for label in self.labels:
            others = [name for name in names if name != label.name]
            for counter in label.counter_labels:
                if counter not in others:
                    problem = f"labels.{label.name}.counter_labels: unknown counter-label {counter!r}"
                    yield f"{problem}; {_choices(counter, others)}"
            if schema.scored and label.written and label.score is None:
                yield f"labels.{label.name}: schema {schema.name} needs a score for every label"
            if schema.labels and label.written and label.name not in schema.labels:
                yield (
                    f"labels.{label.name}: not a label of schema {schema.name}; {_choices(label.name, schema.labels)}"
                )
        if not set(schema.required) <= {label.name for label in self.written_labels}:
            yield f"labels: schema {schema.name} needs the labels {' and '.join(schema.required)}"
        countered = {name for label in self.labels for name in label.counter_labels}
        for label in self.labels:
            place = f"labels.{label.name}"
            idle = [key for key in OF_WRITTEN_LABELS if getattr(label, key) not in (None, ())]
            if not label.written and label.name not in countered:
                yield (
                    f"{place}.samples: 0, and no other label has it among its counter_labels, so that its prompt "
                    "is never used; name it there, or remove the label"
                )
            if not label.written and idle:
                yield f"{place}.{idle[0]} is for texts, but samples: 0 asks for none: remove one of the two"
            if label.decay_constant is not None and not label.counter_labels:
                yield f"{place}.decay_constant is of self-debiasing, but the label has no counter_labels: remove it"
            if (label.samples or 0) > self.decoding.max_attempts:
                yield (
                    f"{place}.samples ({label.samples}) is above decoding.max_attempts ({self.decoding.max_attempts})"
                )
        for label in self.written_labels:
            if self.source.facts.generated and f"{QUOTE}{X1}{QUOTE}" not in label.instruction:
                yield (
                    f"labels.{label.name}.instruction: {X1} must stand between quotation marks ({QUOTE}) where the "
                    "model writes the source sentences: it writes them up to the closing one"
                )
        shown = self.few_shot.examples if self.few_shot else None
        if shown and shown.kind in ("file", "hub"):
            names = [label.name for label in self.labels]
            key = next(key for key in _OF_LABELS if getattr(shown, key))
            for missing in (name for name in names if name not in shown.names):
                yield f"few_shot.examples.{key}: no {_OF_LABELS[key]} is given for {missing!r}"
            for unknown in (name for name in shown.names if name not in names):
                yield f"few_shot.examples.{key}: unknown label {unknown!r}; {_choices(unknown, names)}"
        if "wrong_language" in self.postprocess.reject and self.language not in RECOGNISED:
            yield (
                f"postprocess.reject: wrong_language cannot be found where language is {self.language!r}; "
                f"allowed: {', '.join(sorted(RECOGNISED))}; else remove wrong_language"
            )
        coupled = [label.name for label in self.labels if label.counter_labels]
        if coupled and not self.model.facts.can_debias:
            yield (
                f"labels {coupled} have counter-labels: self-debiasing draws each token from the model's answers to "
                f"several prompts at once, which backend {self.model.backend!r} cannot do; use backend: engine, or "
                "remove the counter-labels"
            )
        for label in self.guided_labels:
            key = "decoding.guidance" if label.guidance is None else f"labels.{label.name}.guidance"
            if not self.model.facts.can_debias:
                yield (
                    f"{key} draws each token from the model's answers to two prompts at once, which backend "
                    f"{self.model.backend!r} cannot do; use backend: engine, or remove guidance"
                )
            if label.plain_prompt is None:
                yield (
                    f"labels.{label.name}.instruction: {key} needs a prompt without task and source sentence, "
                    f"but no word stands between {X1} and the opening quotation mark; end the instruction with some, "
                    f"e.g. Sentence 2: {QUOTE}, or remove guidance"
                )
        asked, labels = self.verification, self.written_labels
        if asked is None:
            return
        if not self.model.facts.can_score:
            yield (
                f"verification scores a text under every label's prompt, which backend {self.model.backend!r} cannot "
                "do; use backend: engine, or remove the section"
            )
        if len({label.instruction for label in labels}) < max(2, len(labels)):
            yield "verification compares the prompts of labels: it needs two labels or more, all different"
        if asked.scores == "soft" and not self.dataset_schema.scored:
            yield f"verification.scores: soft needs a schema with scores, and {self.schema_name} has none"
        most = max(self.texts_asked(label) for label in labels)
        if most > self.decoding.max_attempts:
            yield (
                f"verification.best_of {asked.best_of} asks for {most} texts of a source sentence and label, "
                f"but decoding.max_attempts is {self.decoding.max_attempts}"
            )

    @property
    def also_deciding(self) -> frozenset[str]:
        """The language decides rows where texts in another one are rejected."""
        return frozenset({"language"} if "wrong_language" in self.postprocess.reject else ())

    @property
    def written_labels(self) -> tuple[Label, ...]:
        """The labels that texts are asked for: those of rows, counts and verification."""
        return tuple(label for label in self.labels if label.written)

    @property
    def guided_labels(self) -> tuple[Label, ...]:
        """The labels whose texts are written with guidance."""
        return tuple(label for label in self.written_labels if self.decoding_of(label).guidance)

    def decoding_of(self, label: Label) -> Decoding:
        """How texts of a label are decoded: what it sets itself, the rest as ``decoding`` says."""
        own = {key: value for key in OWN_SETTINGS if (value := getattr(label, key)) is not None}
        return self.decoding.model_copy(update=own)

    def texts_asked(self, label: Label) -> int:
        """Usable texts asked for each source sentence of a label; its ``samples`` of them are wanted."""
        return self.decoding_of(label).samples * (self.verification.best_of if self.verification else 1)

    @property
    def texts_per_source_sentence(self) -> int:
        """Usable texts asked for each source sentence, of all labels together."""
        return sum(map(self.texts_asked, self.labels))

    @property
    def dataset_schema(self) -> DatasetSchema:
        """The declared schema that the key ``schema`` names."""
        return SCHEMAS[self.schema_name]

    @property
    def has_script(self) -> bool:
        """Whether a loading script can serve the dataset: it is a Python module, and none has a dot in its name."""
        return "." not in self.name

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The ways every source sentence is asked for: one, or one for each shot count and example set.

        With ``few_shot.rotate`` one for each shot count: each source sentence has its own set (``row_variants``).
        """
        if self.few_shot and self.few_shot.rotate:
            return tuple(Variant(shots, 0) for shots in self.few_shot.shots)
        return self.row_variants

    @property
    def row_variants(self) -> tuple[Variant, ...]:
        """The variants that rows have: one, or one for each shot count and example set."""
        if self.few_shot is None:
            return (Variant(None, 0),)
        return tuple(
            Variant(shots, number)
            for shots in self.few_shot.shots
            for number in range(self.few_shot.sets if shots else 1)
        )

    @property
    def configs(self) -> tuple[str, ...]:
        """Hub configs of the dataset, the default first; with few-shot examples, so many for each shot count."""
        shots = dict.fromkeys(variant.shots for variant in self.variants)
        bases = (*self.dataset_schema.finished, "raw", "rejected")
        named = [config_name(base, count) for count in shots for base in bases]
        return (*named, *(("sources",) if self.source.facts.generated else ()))


def verified_columns(base: str, recipe: DatasetRecipe) -> dict[str, ColumnType]:
    """Columns that a recipe's section ``verification`` adds to a config of some base name; none without the section.

    ``log_likelihoods``: label → log p(text | that label's prompt) in nats, of all its tokens with the one that ends it.
    ``label_probability``: what a softmax of them gives to the label asked for; null for a sampled negative.
    """
    if recipe.verification is None or base == "sources":
        return {}
    probability: dict[str, ColumnType] = {LABEL_PROBABILITY: "float32"}
    if base in ("raw", "rejected"):
        return {LOG_LIKELIHOODS: {label.name: "float32" for label in recipe.written_labels}, **probability}
    return probability if finished_schema(base, recipe).provenance is PROVENANCE else {}


def finished_schema(config: str, recipe: DatasetRecipe) -> RowSchema:
    """The row schema of a finished config of a recipe. Raises KeyError for any other config."""
    example_type = recipe.dataset_schema.finished[base_config(config)].example_type
    return (
        text_schema([label.name for label in recipe.written_labels])
        if example_type == "text"
        else ROW_SCHEMAS[example_type]
    )


def config_columns(config: str, recipe: DatasetRecipe) -> dict[str, ColumnType]:
    """Columns of one Hub config of a dataset repository: ``raw``, ``rejected``, ``sources`` or a finished one."""
    base = base_config(config)
    fixed = {"raw": RAW, "rejected": REJECTED, "sources": SOURCES}
    if base in fixed:
        columns = fixed[base]
    else:
        rows = finished_schema(config, recipe)
        columns = {**rows.columns, **rows.provenance}
    columns = {**columns, **verified_columns(base, recipe)}
    return {**columns, **EXAMPLE_SET} if recipe.few_shot and base != "sources" else columns


def config_features(config: str, recipe: DatasetRecipe) -> "datasets.Features":
    """``config_columns`` as features of ``datasets``."""
    return features(config_columns(config, recipe))


# keys that a baseline does not have
OF_TRAINING = ("lora", "validation", "slanted_triangular", "token_dropout", "arguments", "limit", "control")


class ModelRecipe(Strict):
    """Everything that decides one published encoder, or one baseline (no ``datasets``: the base as it is).

    ``arguments`` are trainer arguments under their upstream names.
    """

    kind: Literal["model"]  # what the recipe makes
    name: Name  # of the encoder, on the Hub, too
    version: Annotated[Version, CARD_ONLY]  # the same weights may be published anew, with another card
    pretty_name: Annotated[str, CARD_ONLY]  # the card's title
    language: Annotated[Language, CARD_ONLY] = "en"  # of the texts it is for: ISO 639
    license: Annotated[str, CARD_ONLY]  # of the encoder: the base's, or what it allows
    about: Annotated[str | None, CARD_ONLY, OPTION] = None  # the card's introduction: paragraphs, `code` in backticks
    base: Encoder  # the encoder before training
    lora: Lora | None = None  # adapters; left out: all weights are trained
    datasets: tuple[TrainingData, ...] = ()  # what it is trained on, and with which losses
    validation: tuple[ValidationData, ...] = ()  # the checkpoint is chosen by these, else by the datasets' own splits
    batch_size: Positive = 32  # of one optimiser step, over all devices and accumulated steps
    slanted_triangular: SlantedTriangular | None = None  # instead of the trainer's schedule
    token_dropout: Annotated[Fraction, OPTION] = 0.0  # share of each text's tokens left out whenever it is trained on
    arguments: dict[str, str] = Field(
        default_factory=dict
    )  # of sentence-transformers' trainer, under their names there
    limit: Positive | None = None  # at most so many training rows per dataset, in file order
    threads: Positive | None = None  # torch threads; fixed because sums depend on it
    evaluation: Annotated[tuple[EvaluationTask, ...], SCORING_ONLY] = ()  # what it is scored on
    bootstrap_samples: Annotated[Positive, SCORING_ONLY] = 1000  # for intervals
    control: Annotated[Literal["simcse"] | None, SCORING_ONLY, OPTION] = None  # trained and scored beside it
    seed: Annotated[int, Field(ge=0)] = 42  # decides every draw

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        for key in OF_TRAINING:
            if getattr(self, key) and not self.datasets:
                yield f"{key} is for training, but the recipe names no datasets"
        if self.base.modules in ("word-vectors", "sentence-transformer") and self.datasets:
            yield f"base.modules {self.base.modules} is for baselines: it is not trained"
        if self.lora and self.base.modules != "transformer":
            yield f"lora adapts the layers of a transformer, base.modules is {self.base.modules}"
        if self.base.dtype != "float32" and self.datasets and not self.lora:
            yield (
                f"base.dtype {self.base.dtype} needs lora: half precision loses small updates (arguments.bf16 trains "
                "float32 weights in mixed precision)"
            )
        if self.base.quantization and not self.lora:
            yield "base.quantization needs lora: rounded weights are not trained"
        if self.lora and self.lora.release == "adapter" and self.base.repo_id is None:
            yield "a released adapter names its base by Hub id: give base.repo_id, or lora.release: merged"
        if self.lora and self.lora.release == "adapter" and self.base.layers is not None:
            yield "a released adapter is loaded on its whole base: remove base.layers, or lora.release: merged"
        types = {item.example_type for item in self.datasets}
        if "documents" in types and len(self.datasets) > 1:
            yield "datasets: documents are trained on alone: their spans are not pairs"
        if "documents" in types and self.token_dropout:
            yield "token_dropout is for texts, and documents are cut into spans: remove one of the two"
        if "documents" in types and self.control:
            yield "control: simcse is trained on source sentences, and documents have none: remove it"

    @property
    def is_baseline(self) -> bool:
        """Whether nothing is trained: the base itself is what the evaluation scores."""
        return not self.datasets

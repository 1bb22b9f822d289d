"""Recipes: frozen, strict models of what is to be made. One recipe file is one published artefact.

``hub.recipe_file`` reads them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hub.errors import nearest

X1 = "<X1>"
QUOTE = '"'

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=96)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Base of every recipe section: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Source(Strict):
    """Where first texts come from: a file, a pinned Hub dataset, or the generator itself (``model``)."""

    kind: Literal["file", "hub", "model"]
    path: str | None = None  # .txt (one text a line), .tsv, .csv, .jsonl or .parquet; with kind hub: a file of the repo
    columns: tuple[str, ...] = ()  # read side by side; needed by every kind of file but .txt, and by hub
    repo_id: str | None = None
    revision: str | None = None
    config: str | None = None
    splits: tuple[str, ...] = ("train",)  # hub: read one after the other
    limit: Positive | None = None  # at most so many unique texts, in file order; the number to write for `model`
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9  # model: nucleus of x1, no top-k (DINO section 4)
    description: str  # for the card: what the texts are
    license: str  # for the card

    @model_validator(mode="after")
    def _complete(self) -> "Source":
        needed = {"file": ("path",), "hub": ("repo_id", "revision"), "model": ("limit",)}[self.kind]
        missing = [key for key in needed if getattr(self, key) is None]
        if self.kind == "hub" and not (self.path or self.columns):
            missing.append("columns (or the path of a text file in the repo)")
        if missing:
            raise ValueError(f"a source of kind {self.kind} needs {', '.join(missing)}")
        return self


class Server(Strict):
    """An OpenAI-compatible server (``backend: openai``). The key is read from OPENAI_API_KEY, never from a recipe."""

    base_url: Annotated[str, Field(pattern=r"^https?://")]
    model: str  # the name the server knows the model by
    concurrency: Positive = 8  # requests under way at a time
    timeout: Annotated[float, Field(gt=0)] = 60.0  # seconds for one request
    max_retries: Annotated[int, Field(ge=0)] = 6
    price_per_million: tuple[Price, Price] | None = None  # prompt and completion tokens, in the provider's currency


class LanguageModel(Strict):
    """The generator: a Hub id with a pinned revision, a local folder, or a model behind a server.

    ``quantization`` holds keyword arguments of transformers' config class of that ``quant_method`` (one of its keys).
    """

    backend: Literal["engine", "openai", "vllm"] = "engine"
    path: str | None = None
    repo_id: str | None = None  # openai: optional, the id the card names
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    device_map: str | None = None  # transformers' (auto, balanced ...), instead of device
    quantization: dict[str, str] | None = None
    chat_template: bool = False  # the prompt as a user's turn, the answer opened with the quotation mark
    server: Server | None = None
    threads: Positive | None = None  # torch threads; fixed in the recipe because floating-point sums depend on it
    license: str

    @model_validator(mode="after")
    def _one_origin(self) -> "LanguageModel":
        if (self.server is None) == (self.backend == "openai"):
            raise ValueError("backend openai needs the section server, and no other backend takes one")
        if self.backend != "openai" and (self.path is None) == (self.repo_id is None):
            raise ValueError("give exactly one of path and repo_id")
        if self.backend != "openai" and self.repo_id is not None and self.revision is None:
            raise ValueError("a Hub model needs its revision pinned")
        return self


class Label(Strict):
    """One label: its instruction (with the ``<X1>`` placeholder) and the labels its texts must not fit."""

    name: str
    score: Annotated[float, Field(ge=0, le=1)] | None = None  # sts form
    instruction: str
    counter_labels: tuple[str, ...] = ()

    @field_validator("instruction")
    @classmethod
    def _prompt(cls, text: str) -> str:
        if text.count(X1) != 1:
            raise ValueError(f"the instruction must contain the placeholder {X1} exactly once")
        if not text.endswith(QUOTE):
            raise ValueError(f"the instruction must end with the opening quotation mark ({QUOTE}) of the text to write")
        if not text[: text.index(X1)].endswith(QUOTE):
            raise ValueError(f"the placeholder {X1} must stand right after an opening quotation mark ({QUOTE})")
        return text


class Decoding(Strict):
    """How text is decoded (DINO sections 3-4; ``floor`` is the original implementation's ε)."""

    decay_constant: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 100.0  # λ
    floor: Annotated[float, Field(gt=0, le=1)] = 0.01
    top_k: Annotated[int, Field(ge=0)] = 5  # 0 = off
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_new_tokens: Positive = 40
    samples: Positive = 2  # texts wanted per (x1, label)
    max_attempts: Positive = 5
    batch_size: Positive | None = None  # model rows decoded together; None: from the free memory

    @model_validator(mode="after")
    def _attempts(self) -> "Decoding":
        if self.max_attempts < self.samples:
            raise ValueError(f"max_attempts ({self.max_attempts}) is below samples ({self.samples})")
        return self


class Examples(Strict):
    """A labelled NLI dataset that few-shot examples are drawn from: a .tsv, .csv, .jsonl or .parquet file, or the Hub.

    ``labels`` says which value of the label column stands for which label of the recipe, e.g. {entailment: "0"}.
    """

    kind: Literal["file", "hub"]
    path: str | None = None
    repo_id: str | None = None
    revision: str | None = None
    config: str | None = None
    splits: tuple[str, ...] = ("train",)
    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"
    labels: dict[str, str]
    description: str
    license: str

    @model_validator(mode="after")
    def _complete(self) -> "Examples":
        needed = {"file": ("path",), "hub": ("repo_id", "revision")}[self.kind]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"examples of kind {self.kind} need {', '.join(missing)}")
        return self


class FewShot(Strict):
    """Gold examples before the prompt (Auto-NLI section 3.2). Every shot count has Hub configs of its own."""

    shots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]  # examples per prompt; 0 = none
    sets: Positive = 10  # example sets of each shot count, drawn by seed; every set writes for every premise
    examples: Examples
    end: str = QUOTE  # what closes an example's text
    separator: str = "\n"  # between examples, and before the prompt


class Postprocess(Strict):
    """From raw rows to training rows (DINO section 4 and the original's script)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.2  # 0 → ε/2, 1 → 1 - ε/2
    sampled_negatives: Annotated[int, Field(ge=0)] = 2  # per x1, score 0
    max_per_label: Positive = 2
    validation_fraction: Fraction = 0.1


@dataclass(frozen=True)
class Variant:
    """One way to ask: a shot count (None: the recipe has no few-shot section) and the number of an example set."""

    shots: int | None
    example_set: int


def config_name(base: str, shots: int | None) -> str:
    """The Hub config of a shot count, e.g. triplet-20shot; just the base without few-shot."""
    return base if shots is None else f"{base}-{shots}shot"


class DatasetRecipe(Strict):
    """Everything that decides the bytes of one published dataset."""

    kind: Literal["dataset"]
    name: Name
    version: Version
    form: Literal["sts", "nli", "text"]  # text: single labelled texts (text, label), one class per label
    pretty_name: str
    language: str = "en"
    license: str
    source: Source
    model: LanguageModel
    labels: Annotated[tuple[Label, ...], Field(min_length=1)]
    few_shot: FewShot | None = None
    decoding: Decoding = Decoding()
    postprocess: Postprocess = Postprocess()
    premise_tokens: tuple[int, int] | None = None  # keep only first texts of so many tokens (Auto-NLI: 4-32)
    shard_size: Positive = 64  # first texts per shard
    seed: Annotated[int, Field(ge=0)] = 42

    @model_validator(mode="after")
    def _labels_fit(self) -> "DatasetRecipe":
        names = [label.name for label in self.labels]
        if len(set(names)) != len(names):
            raise ValueError(f"labels: two labels share a name: {names}")
        for label in self.labels:
            for counter in label.counter_labels:
                if counter not in names or counter == label.name:
                    guess = nearest(counter, names)
                    raise ValueError(
                        f"labels.{label.name}.counter_labels: unknown counter-label {counter!r}; "
                        f"allowed: {[n for n in names if n != label.name]}"
                        + (f"; did you mean {guess!r}?" if guess else "")
                    )
            if self.form == "sts" and label.score is None:
                raise ValueError(f"labels.{label.name}: the sts form needs a score for every label")
        if self.form == "nli" and not {"entailment", "contradiction"} <= set(names):
            raise ValueError("labels: the nli form needs the labels entailment and contradiction")
        return self

    @model_validator(mode="after")
    def _backend_fits(self) -> "DatasetRecipe":
        coupled = [label.name for label in self.labels if label.counter_labels]
        if coupled and self.model.backend != "engine":
            raise ValueError(
                f"labels {coupled} have counter-labels: self-debiasing draws each token from the model's answers to "
                f"several prompts at once, which backend {self.model.backend!r} cannot do; use backend: engine, or "
                "remove the counter-labels"
            )
        return self

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The ways every first text is asked for: one, or one for each shot count and example set."""
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
        finished = ("triplet", "pair-class") if self.form == "nli" else ("postprocessed",)
        shots = dict.fromkeys(variant.shots for variant in self.variants)
        named = [config_name(base, count) for count in shots for base in (*finished, "raw", "rejected")]
        return (*named, *(("sources",) if self.source.kind == "model" else ()))


class TrainingData(Strict):
    """One dataset of a model: a Hub dataset pinned by tag (or a local run directory), its config, form and loss."""

    repo_id: str | None = None
    revision: str | None = None
    path: str | None = None
    config: str
    form: Literal["sts", "triplet", "pair-class"]
    loss: str

    @model_validator(mode="after")
    def _one_origin(self) -> "TrainingData":
        if (self.path is None) == (self.repo_id is None):
            raise ValueError("give exactly one of path and repo_id")
        if self.repo_id is not None and self.revision is None:
            raise ValueError(f"{self.repo_id} needs a revision: pin the dataset by its tag, e.g. revision: v1.0.0")
        return self


class Encoder(Strict):
    """The student before training: a base model's transformer under stock pooling, or its input embeddings only."""

    path: str | None = None
    repo_id: str | None = None
    revision: str | None = None
    modules: Literal["transformer", "static"] = "transformer"  # static: the mean of the base's token embeddings
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"
    max_seq_length: Positive = 64
    license: str

    @model_validator(mode="after")
    def _fits_modules(self) -> "Encoder":
        if self.modules == "static" and self.pooling != "mean":
            raise ValueError(f"a static student is a mean of token embeddings: pooling {self.pooling} does not fit")
        return self

    @model_validator(mode="after")
    def _one_origin(self) -> "Encoder":
        if (self.path is None) == (self.repo_id is None):
            raise ValueError("give exactly one of path and repo_id")
        if self.repo_id is not None and self.revision is None:
            raise ValueError("a Hub model needs its revision pinned")
        return self


class EvaluationTask(Strict):
    """One evaluation: a registered task name and the data it reads."""

    task: str  # e.g. stsb/cosine
    split: Literal["validation", "test"]
    path: str


class ModelRecipe(Strict):
    """Everything that decides one published encoder. ``arguments`` are trainer arguments under their upstream names."""

    kind: Literal["model"]
    name: Name
    version: Version
    pretty_name: str
    language: str = "en"
    license: str
    base: Encoder
    datasets: Annotated[tuple[TrainingData, ...], Field(min_length=1)]
    arguments: dict[str, str] = {}
    limit: Positive | None = None  # at most so many training pairs per dataset, in file order
    threads: Positive | None = None  # torch threads; fixed because sums depend on it
    evaluation: tuple[EvaluationTask, ...] = ()
    bootstrap_samples: Positive = 1000
    seed: Annotated[int, Field(ge=0)] = 42

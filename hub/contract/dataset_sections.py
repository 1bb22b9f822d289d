"""The sections of a dataset recipe: where first texts come from, what writes, how it is asked, what becomes of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from hub import safe_yaml

X1 = "<X1>"
QUOTE = '"'

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=96)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
Language = Annotated[str, Field(pattern=r"^([a-z]{2,3}|code|multilingual)$")]  # what the Hub takes: ISO 639, lower case
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
TextEnd = Literal["quotation_mark", "line"]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class NotFingerprinted:
    """Marks a key, as ``Annotated[str, CARD_ONLY]``, that decides no row and no weight. Any other key does."""

    use: str


CARD_ONLY = NotFingerprinted("what a card says")
SCORING_ONLY = NotFingerprinted("how a finished encoder is scored")
SPEED_ONLY = NotFingerprinted("how fast, or at what price, the same is done")


@dataclass(frozen=True)
class LeftOutUnlessSet:
    """Marks a key, as ``Annotated[bool, OPTION]``, that a recipe without it does not know of.

    While it has its default it stands neither in the fingerprint nor in the resolved recipe, so that recipes, runs and
    cards from before the key was made stay as they are.
    """


OPTION = LeftOutUnlessSet()


class Strict(BaseModel):
    """Base of every recipe section: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def deciding_keys(cls) -> list[str]:
        """The keys that decide rows or weights: all but those that are marked otherwise."""
        fields = cls.model_fields.items()
        return [
            name for name, field in fields if not any(isinstance(mark, NotFingerprinted) for mark in field.metadata)
        ]

    @property
    def unset_options(self) -> set[str]:
        """The keys marked ``OPTION`` that have their default."""
        fields = type(self).model_fields.items()
        options = {name: field for name, field in fields if OPTION in field.metadata}
        return {
            name
            for name, field in options.items()
            if getattr(self, name) == field.get_default(call_default_factory=True)
        }

    @model_serializer(mode="wrap")
    def _without_unset_options(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unset = self.unset_options
        return {name: value for name, value in serialised(self).items() if name not in unset}


class Source(Strict):
    """Where first texts come from: a file, a pinned Hub dataset, or the generator itself (``model``)."""

    kind: Literal["file", "hub", "model"]
    path: str | None = None  # .txt (one text a line), .tsv, .csv, .jsonl or .parquet; with kind hub: a file of the repo
    columns: tuple[str, ...] = ()  # read side by side; needed by every kind of file but .txt, and by hub
    repo_id: str | None = None
    revision: str | None = None
    config: str | None = None
    splits: tuple[str, ...] = ("train",)  # hub: read one after the other
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the cells that are read, chosen by a hash of seed and place
    limit: Positive | None = None  # at most so many unique texts, in file order; the number to write for `model`
    quotation_marks: Literal["keep", "skip"] = "keep"  # of texts with one inside; both papers' code keeps them
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9  # model: nucleus of x1, no top-k (DINO section 4)
    description: Annotated[str, CARD_ONLY]  # what the texts are
    license: Annotated[str, CARD_ONLY]

    @model_validator(mode="after")
    def _complete(self) -> "Source":
        needed = {"file": ("path",), "hub": ("repo_id", "revision"), "model": ("limit",)}[self.kind]
        missing = [key for key in needed if getattr(self, key) is None]
        if self.kind == "hub" and not (self.path or self.columns):
            missing.append("columns (or the path of a text file in the repo)")
        if missing:
            raise ValueError(f"a source of kind {self.kind} needs {', '.join(missing)}")
        if self.kind == "model" and self.share < 1:
            raise ValueError("share chooses among rows that are read, but the model writes these: set limit alone")
        _check_parts(self)
        return self


class Server(Strict):
    """An OpenAI-compatible server (``backend: openai``). The key is read from OPENAI_API_KEY, never from a recipe."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]  # no password: recipes are published
    model: str  # the name the server knows the model by
    dialect: Literal["openai", "vllm", "transformers", "llamacpp"] = "openai"  # generation.servers.dialects
    logprobs: bool = False  # ask for the tokens' log-probabilities; some servers refuse
    concurrency: Annotated[Positive, SPEED_ONLY] = 8  # requests under way at a time
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False), SPEED_ONLY] = (
        60.0  # seconds that a server may be silent
    )
    max_retries: Annotated[int, Field(ge=0), SPEED_ONLY] = 6
    price_per_million: Annotated[tuple[Price, Price] | None, SPEED_ONLY] = (
        None  # prompt, completion tokens; in its currency
    )

    @model_validator(mode="after")
    def _tells(self) -> "Server":
        if self.logprobs and self.dialect == "transformers":
            raise ValueError("transformers serve tells no log-probabilities: remove logprobs")
        return self


def quantization_values(texts: Mapping[str, str] | None) -> dict[str, Any]:
    """The arguments as transformers takes them: numbers, truth values and short lists for their texts (true, 4, nf4).

    Raises yaml.YAMLError for what cannot be read as one.
    """
    return {
        key: safe_yaml.load(text, max_bytes=10_000, max_depth=2, max_nodes=1_000) for key, text in (texts or {}).items()
    }


def _readable(texts: dict[str, str]) -> dict[str, str]:
    for key, text in texts.items():
        try:
            quantization_values({key: text})
        except yaml.MarkedYAMLError as error:
            raise ValueError(f"{key}: {error.problem}") from error
    return texts


Quantization = Annotated[dict[str, str], AfterValidator(_readable)]  # arguments of a config class of transformers


def _inside(name: str) -> str:
    if not re.fullmatch(r"([\w+-][\w.+ -]*/)*[\w+-][\w.+ -]*\.gguf", name):
        raise ValueError("names a .gguf file inside path or repo_id, e.g. model-q4_k_m.gguf")
    return name


GgufName = Annotated[str, AfterValidator(_inside)]


class LanguageModel(Strict):
    """The generator: a Hub id with a pinned revision, a local folder, or a model behind a server.

    ``gguf_file`` names a file in that repository or folder, which then is the whole model, tokenizer included.
    ``quantization`` holds keyword arguments of transformers' config class of that ``quant_method`` (one of its keys).
    """

    backend: Literal["engine", "openai"] = "engine"
    path: str | None = None
    repo_id: str | None = None  # openai: optional, the id the card names
    revision: str | None = None
    gguf_file: GgufName | None = None  # its weights are de-quantised to dtype
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"  # auto: bfloat16 where it is native
    device: str = "cpu"
    device_map: str | None = None  # transformers' (auto, balanced ...), instead of device
    quantization: Quantization | None = None
    chat_template: bool = False  # the prompt as a user's turn, the answer opened with the quotation mark
    server: Server | None = None
    threads: Positive | None = None  # torch threads; fixed in the recipe because floating-point sums depend on it
    license: Annotated[str, CARD_ONLY]

    @field_validator("backend", mode="before")
    @classmethod
    def _known_backend(cls, name: object) -> object:
        if name == "vllm":
            raise ValueError(
                "vLLM no longer runs in this process: serve the model (vllm serve) and give backend: openai with "
                "server.dialect: vllm (docs/backends.md)"
            )
        return name

    @model_validator(mode="after")
    def _one_origin(self) -> "LanguageModel":
        if (self.server is None) == (self.backend == "openai"):
            raise ValueError("backend openai needs the section server, and no other backend takes one")
        if self.backend != "openai" and (self.path is None) == (self.repo_id is None):
            raise ValueError("give exactly one of path and repo_id")
        if self.backend != "openai" and self.repo_id is not None and self.revision is None:
            raise ValueError("a Hub model needs its revision pinned")
        return self

    @model_validator(mode="after")
    def _gguf_alone(self) -> "LanguageModel":
        if self.gguf_file and self.backend == "openai":
            raise ValueError("gguf_file is what the engine reads: remove it, and have the server load that file")
        if self.gguf_file and self.quantization:
            raise ValueError("a GGUF file is de-quantised when it is read: remove quantization or gguf_file")
        return self


class Label(Strict):
    """One label: its instruction (with the ``<X1>`` placeholder) and the labels its texts must not fit."""

    name: str
    score: Annotated[float, Field(ge=0, le=1)] | None = None  # sts form
    instruction: str
    counter_labels: tuple[str, ...] = ()
    overlap: Annotated[tuple[Share, Share] | None, OPTION] = None  # least and most words shared with x1: word_overlap

    @field_validator("overlap")
    @classmethod
    def _band(cls, band: tuple[float, float] | None) -> tuple[float, float] | None:
        if band and band[0] > band[1]:
            raise ValueError("the least stands before the most, e.g. [0.1, 0.6]")
        return band

    @field_validator("instruction")
    @classmethod
    def _prompt(cls, text: str) -> str:
        if text.count(X1) != 1:
            raise ValueError(f"the instruction must contain the placeholder {X1} exactly once")
        if not text.endswith(QUOTE):
            raise ValueError(f"the instruction must end with the opening quotation mark ({QUOTE}) of the text to write")
        return text

    @property
    def plain_prompt(self) -> str | None:
        """The instruction without task and first text, e.g. ``Sentence 2: "``: its last piece after ``<X1>``.

        A piece begins after a line break, a quotation mark or the end of a sentence. None where it has no word.
        """
        piece = re.split(r'[\n".!?]', self.instruction.partition(X1)[2].removesuffix(QUOTE))[-1].lstrip()
        return piece + QUOTE if re.search(r"\w", piece) else None


class DecodingParameters(Strict):
    """How a text is decoded (DINO sections 3-4): what a writer needs to know. ``floor`` is the original code's ε.

    ``guidance`` is γ of classifier-free guidance (Sanchez et al. 2023): probabilities are multiplied by
    (p(t | prompt) / p(t | plain prompt))^γ, with ``Label.plain_prompt``.
    """

    decay_constant: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 100.0  # λ
    floor: Annotated[float, Field(gt=0, le=1)] = 0.01
    top_k: Annotated[int, Field(ge=0)] = 5  # 0 = off
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_new_tokens: Positive = 40
    text_end: TextEnd = "quotation_mark"  # where a text ends: generation.decoding.endings (Auto-NLI's code: line)
    guidance: Annotated[float, Field(ge=0, allow_inf_nan=False), OPTION] = 0.0  # γ; 0 = off

    @property
    def epsilon(self) -> float:
        """ε: the smallest factor that debiasing multiplies a probability by."""
        return self.floor


class Decoding(DecodingParameters):
    """How second texts are decoded, how many are wanted and how often each is tried."""

    samples: Positive = 2  # texts wanted per (x1, label)
    max_attempts: Positive = 5
    batch_size: Positive | None = None  # model rows decoded together; None: from the free memory

    @model_validator(mode="after")
    def _attempts(self) -> "Decoding":
        if self.max_attempts < self.samples:
            raise ValueError(f"max_attempts ({self.max_attempts}) is below samples ({self.samples})")
        return self


class Examples(Strict):
    """Where few-shot examples come from. A file is a .tsv, .csv, .jsonl or .parquet one.

    - ``file``, ``hub``: a dataset of pairs. With a label, ``labels`` says which value of the label column stands for
      which label of the recipe, e.g. {entailment: "0"}; with a score, ``scores`` gives each label a band of it, e.g.
      {"1": [4.5, 5]}, limits included. Where a row has a text for every label, as in triplets, ``texts`` names their
      columns, e.g. {entailment: sent1, contradiction: hard_neg}; ``hypothesis`` and ``label`` are not read then.
    - ``hand``: a .tsv file written for prompts: the column text1 and one for each label, named like it.
    - ``own``: the run directory of a finished dataset, whose labels the recipe's are among: the model's own texts.

    ``rank_by`` names a numeric column, of which each label's ``top`` rows with the largest values are drawn from.
    """

    kind: Literal["file", "hub", "hand", "own"]
    path: str | None = None  # with kind hub: a file of the repo
    repo_id: str | None = None
    revision: str | None = None
    config: str | None = None
    splits: tuple[str, ...] = ("train",)
    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"
    labels: dict[str, str] = Field(default_factory=dict)
    texts: dict[str, str] = Field(default_factory=dict)
    scores: Annotated[dict[str, tuple[Number, Number]], OPTION] = Field(default_factory=dict)
    rank_by: Annotated[str | None, OPTION] = None
    top: Annotated[Positive | None, OPTION] = None
    description: Annotated[str, CARD_ONLY]
    license: Annotated[str, CARD_ONLY]

    @model_validator(mode="after")
    def _one_way(self) -> "Examples":
        given = [key for key in ("labels", "texts", "scores") if getattr(self, key)]
        if self.kind in ("hand", "own"):
            columns = ("premise", "hypothesis", "label")
            unused = given + [key for key in columns if getattr(self, key) != type(self).model_fields[key].default]
            if unused:
                raise ValueError(f"examples of kind {self.kind} name their columns themselves: remove {unused[0]}")
        elif len(given) != 1:
            raise ValueError(
                "give either labels (the values of a label column) or texts (a column for every label) or scores "
                "(a band for every label)"
            )
        return self

    @model_validator(mode="after")
    def _bands(self) -> "Examples":
        bands = sorted(self.scores.items(), key=lambda item: item[1])
        for label, (low, high) in bands:
            if low > high:
                raise ValueError(f"scores.{label}: the lower limit stands before the upper one, e.g. [4.5, 5]")
        for (one, (_, high)), (other, (low, _)) in pairwise(bands):
            if low <= high:
                raise ValueError(f"scores: the bands of {one!r} and {other!r} share a score")
        return self

    @model_validator(mode="after")
    def _ranked(self) -> "Examples":
        if (self.rank_by is None) != (self.top is None):
            raise ValueError("rank_by names the column and top says how many rows are drawn from: give both or neither")
        if self.rank_by and (self.texts or self.kind == "hand"):
            raise ValueError("rank_by ranks pairs, but a row here has a text for every label: remove rank_by and top")
        return self

    @property
    def names(self) -> dict[str, str]:
        """For each label of the recipe the value, or the column, that it has in the dataset; empty: its own name."""
        return self.labels or self.texts or {label: label for label in self.scores}

    @model_validator(mode="after")
    def _complete(self) -> "Examples":
        needed = ("repo_id", "revision") if self.kind == "hub" else ("path",)
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"examples of kind {self.kind} need {', '.join(missing)}")
        _check_parts(self)
        return self


def _check_parts(origin: Source | Examples) -> None:
    """Raise ValueError for ``config`` or ``splits`` where there is one file, or no data, to read."""
    if origin.kind == "hub" and origin.path is None:
        return
    for key in ("config", "splits"):
        if getattr(origin, key) != type(origin).model_fields[key].default:
            reads = "the model writes these texts" if origin.kind == "model" else "one file is read, whole"
            raise ValueError(f"{key} names parts of a Hub dataset, but {reads}: remove {key}")


class FewShot(Strict):
    """Gold examples before the prompt (Auto-NLI section 3.2). Every shot count has Hub configs of its own."""

    shots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]  # examples per prompt; 0 = none
    sets: Positive = 10  # example sets of each shot count, drawn by seed; every set writes for every premise
    examples: Examples
    end: Annotated[str, Field(pattern=f"^{QUOTE}")] = QUOTE  # what closes an example's text (the authors' files: ".)
    separator: str = "\n"  # between examples, and before the prompt: without examples too, as in the authors' code
    rotate: Annotated[bool, OPTION] = False  # each first text has one set, chosen by a hash, instead of all of them

    @model_validator(mode="after")
    def _distinct(self) -> "FewShot":
        if len(set(self.shots)) != len(self.shots):
            raise ValueError(f"shots: a count stands twice: {list(self.shots)}")
        values = list(self.examples.names.values())
        if len(set(values)) != len(values):
            key = "texts: two labels have one column" if self.examples.texts else "labels: two labels have one value"
            raise ValueError(f"examples.{key}: {values}")
        return self


class Verification(Strict):
    """Every text is scored under the prompt of every label: log p(text | prompt), columns of ``raw`` and ``rejected``.

    With no key the columns are all that is added. How labels are compared: ``generation.rows.verification``.
    """

    calibrated: bool = False  # compare after subtracting each label's mean over the shard
    drop: bool = False  # reject texts that another label's prompt makes likelier than their own
    best_of: Positive = 1  # usable texts asked for each one wanted; those least probable for their label are rejected
    scores: Literal["asked", "soft"] = "asked"  # of finished rows: the label's, or the expectation over all labels
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # of soft scores

    @model_validator(mode="after")
    def _keys_are_used(self) -> "Verification":
        if self.calibrated and not (self.drop or self.scores == "soft"):
            raise ValueError("calibrated is for comparing labels: add drop: true or scores: soft, or remove it")
        if self.temperature != 1.0 and self.scores != "soft":
            raise ValueError("temperature is of soft scores: add scores: soft, or remove it")
        return self


class Postprocess(Strict):
    """From raw rows to training rows (DINO section 4 and the original's script)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.2  # 0 → ε/2, 1 → 1 - ε/2
    sampled_negatives: Annotated[int, Field(ge=0)] = 2  # per x1, score 0
    max_per_label: Positive = 2
    equal_triplets: bool = (
        True  # nli form: whether a triplet whose positive is its negative stays, as in Auto-NLI's code
    )
    reject: tuple[Literal["example_copy", "prompt_words"], ...] = (
        "example_copy",
        "prompt_words",
    )  # generation.rows.filters
    validation_fraction: Fraction = 0.1
    near_copy: Annotated[Share | None, OPTION] = None  # a word_overlap with x1 from which a text is a near-copy of it

"""Recipes: frozen, strict models of what is to be made. One recipe file is one published artefact.

``hub.contract.recipe_file`` reads them. In order: what sections share, the sections of a dataset recipe and the recipe,
the columns of its configs, the sections of a model recipe and the recipe.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from hub.contract import schema as rows
from hub.contract.published_paths import PATH, published_value
from hub.contract.schema import PROVENANCE, SCHEMAS, ColumnType, DatasetSchema, RowSchema, base_config
from hub.errors import did_you_mean
from hub.untrusted import load_yaml

if TYPE_CHECKING:
    import datasets

X1 = "<X1>"
QUOTE = '"'

NAME = r"^[a-z0-9]+([.-][a-z0-9]+)*$"
Name = Annotated[str, Field(pattern=NAME, max_length=96)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
LANGUAGE = r"^([a-z]{2,3}|code|multilingual)$"  # what the Hub takes: ISO 639, lower case
Language = Annotated[str, Field(pattern=LANGUAGE)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
TextEnd = Literal["quotation_mark", "line"]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Columns = Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True)
class NotFingerprinted:
    """Marks a key, as ``Annotated[str, CARD_ONLY]``, that decides no row and no weight. Any other key does."""

    use: str


CARD_ONLY = NotFingerprinted("what a card says")
SCORING_ONLY = NotFingerprinted("how a finished encoder is scored")
PLACE_ONLY = NotFingerprinted("where the same is had: it is not published")
SPEED_ONLY = NotFingerprinted("how fast, or at what price, the same is done")


OPTION = object()
"""Marks a key, as ``Annotated[bool, OPTION]``, that stands neither in the fingerprint nor in the resolved recipe while
it has its default: recipes, runs and cards from before the key was made stay as they are."""


PUBLISHED, DECIDING = "published", "deciding"  # contexts of ``Strict.model_dump``


class Strict(BaseModel):
    """Base of every recipe section: immutable, no unknown keys.

    ``model_dump(context=PUBLISHED)`` gives values as others may see them (``hub.contract.published_paths``),
    ``context=DECIDING`` of those only the keys that decide rows or weights.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), serialize_by_alias=True)

    def _problems(self) -> Iterator[str]:
        """Problems of the keys taken together, one message each; the first one is reported."""
        yield from ()

    @model_validator(mode="after")
    def _without_problems(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    @property
    def deciding_keys(self) -> set[str]:
        """The keys that decide rows or weights: all but those marked otherwise and unset options."""
        fields = type(self).model_fields.items()
        marked = {name for name, field in fields if any(isinstance(mark, NotFingerprinted) for mark in field.metadata)}
        return {*type(self).model_fields} - marked - self.unset_options

    @property
    def unset_options(self) -> set[str]:
        """The keys marked ``OPTION`` that have their default."""
        options = {name: field for name, field in type(self).model_fields.items() if OPTION in field.metadata}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in options.items()}
        return {name for name, default in defaults.items() if getattr(self, name) == default}

    @model_serializer(mode="wrap")
    def _plain(self, serialised: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        left_out = {*type(self).model_fields} - self.deciding_keys if info.context == DECIDING else self.unset_options
        found = {key: value for key, value in serialised(self).items() if key not in left_out}
        return {key: published_value(key, value) for key, value in found.items()} if info.context else found

    def local_paths(self, above: str = "") -> dict[str, str]:
        """Key of the recipe, e.g. ``source.path`` → the local path that it names. One inside a Hub repo is not one."""
        found = dict[str, str]()
        for name in type(self).model_fields:
            value: Any = getattr(self, name)
            if name == PATH and isinstance(value, str) and getattr(self, "repo_id", None) is None:
                found[f"{above}{name}"] = value
            inner = enumerate(value) if isinstance(value, tuple) else [("", value)]
            for index, one in ((index, one) for index, one in inner if isinstance(one, Strict)):
                found |= one.local_paths(f"{above}{name}.{index}.".replace("..", "."))
        return found


def _part_problems(origin: Any) -> Iterator[str]:
    """Problems of ``config`` and ``splits`` where one file is read, or none."""
    if origin.kind == "hub" and origin.path is None:
        return
    for key in ("config", "splits"):
        if getattr(origin, key) != type(origin).model_fields[key].default:
            reads = "the model writes these texts" if origin.kind == "model" else "one file is read, whole"
            yield f"{key} names parts of a Hub dataset, but {reads}: remove {key}"


SourceName = Literal["file", "hub", "model"]
BackendName = Literal["engine", "openai"]


@dataclass(frozen=True)
class SourceFacts:
    """A kind of source: the keys it needs; ``generated``: the model writes the sentences and nothing is read."""

    needs: tuple[str, ...]
    generated: bool = False


SOURCE_KINDS: dict[SourceName, SourceFacts] = {
    "file": SourceFacts(needs=("path",)),
    "hub": SourceFacts(needs=("repo_id", "revision")),
    "model": SourceFacts(needs=("limit",), generated=True),
}


@dataclass(frozen=True)
class BackendFacts:
    """Capabilities of a backend.

    ``local``: the model's weights are read in this process, so dtype, threads and pinned origin decide texts.
    ``can_debias``: draws a token from the answers to several prompts (self-debiasing, guidance). ``can_score``: gives
    a text's log-likelihood under other prompts. ``can_trace``: shows every token's probabilities.
    """

    local: bool
    can_debias: bool
    can_score: bool
    can_trace: bool


BACKENDS: dict[BackendName, BackendFacts] = {
    "engine": BackendFacts(local=True, can_debias=True, can_score=True, can_trace=True),
    "openai": BackendFacts(local=False, can_debias=False, can_score=False, can_trace=False),
}


def backends_that(capability: str) -> str:
    """The names of the backends with a capability, for messages."""
    return ", ".join(name for name, facts in BACKENDS.items() if getattr(facts, capability))


_CODES = """
    ace af am an ar ary arz as az ba bcl be bg bn br bs ca crh cs cy da de dz el en eo es et eu ext fa fi fo fr
    fuv fy ga gcf gcr gd gl gom grc gu gug guw ha hbo he hi hr ht hu hy id ig is it ja jv ka kab kik kk km kn ko
    ku ky la lb lg lij ln lo lt ltg lv mg mk ml mn mr ms mt my ne nl nn no nso oc om or pa pcm pl ps pt qu ro ru
    rw sa sdh se si sk sl sn so sq sr st sv sw ta te tg th tk tl tr tt ug uk ur uz uzs vec vi vo wa wuu xh yo yue
    zh zu
"""
RECOGNISED = frozenset(_CODES.split())


class Source(Strict):
    """Where source sentences come from: a file, a pinned Hub dataset, or the generator itself (``model``)."""

    kind: SourceName  # file: on this disk; hub: a pinned dataset; model: the generator writes them
    path: str | None = None  # a file that hub.text_files reads; with kind hub: a file of the repo
    columns: tuple[str, ...] = ()  # read side by side; needed by every kind of file but .txt, and by hub
    repo_id: str | None = None  # hub: ORG/NAME
    revision: str | None = None  # hub: a commit or a tag
    config: str | None = None  # hub: of the dataset
    splits: tuple[str, ...] = ("train",)  # hub: read one after the other
    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the cells that are read, chosen by a hash of seed and place
    limit: Positive | None = None  # at most so many unique texts, in file order; the number to write for `model`
    quotation_marks: Literal["keep", "skip"] = "keep"  # of texts with one inside; both papers' code keeps them
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9  # model: nucleus of x1, no top-k (DINO section 4)
    description: Annotated[str, CARD_ONLY]  # what the texts are
    license: Annotated[str, CARD_ONLY]  # of the source sentences

    @property
    def facts(self) -> SourceFacts:
        """What this kind of source needs and gives."""
        return SOURCE_KINDS[self.kind]

    def _problems(self) -> Iterator[str]:
        missing = [key for key in self.facts.needs if getattr(self, key) is None]
        if self.kind == "hub" and not (self.path or self.columns):
            missing.append("columns (or the path of a text file in the repo)")
        if missing:
            yield f"a source of kind {self.kind} needs {', '.join(missing)}"
        if self.facts.generated and self.share < 1:
            yield "share chooses among rows that are read, but the model writes these: set limit alone"
        yield from _part_problems(self)


Address = Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]


class Server(Strict):
    """An OpenAI-compatible server (``backend: openai``). The key is read from OPENAI_API_KEY, never from a recipe."""

    base_url: Annotated[Address, PLACE_ONLY]  # no password; not published
    model: str  # the name the server knows the model by
    dialect: Literal["openai", "vllm", "transformers", "llamacpp"] = "openai"  # generation.backends.dialects
    logprobs: bool = False  # ask for the tokens' log-probabilities; some servers refuse
    concurrency: Annotated[Positive, SPEED_ONLY] = 8  # requests under way at a time
    timeout: Annotated[PositiveFloat, SPEED_ONLY] = 60.0  # seconds that an answer may take
    max_retries: Annotated[int, Field(ge=0), SPEED_ONLY] = 6  # of a request that failed
    price_per_million: Annotated[tuple[NotNegative, NotNegative] | None, SPEED_ONLY] = None  # prompt, completion tokens

    def _problems(self) -> Iterator[str]:
        if self.logprobs and self.dialect == "transformers":
            yield "transformers serve tells no log-probabilities: remove logprobs"


def quantization_values(texts: Mapping[str, str] | None) -> dict[str, Any]:
    """The arguments as transformers takes them: numbers, truth values and short lists for their texts (true, 4, nf4).

    Raises yaml.YAMLError for what cannot be read as one.
    """
    return {key: load_yaml(text, max_bytes=10_000, max_depth=2, max_nodes=1_000) for key, text in (texts or {}).items()}


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

    backend: BackendName = "engine"  # engine: in this process, with self-debiasing; openai: a server
    path: str | None = None  # a folder of transformers
    repo_id: str | None = None  # openai: optional, the id the card names
    revision: str | None = None  # a commit or a tag of repo_id
    gguf_file: GgufName | None = None  # its weights are de-quantised to dtype
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "float32"  # auto: the fastest one here
    device: str = "cpu"  # as torch calls it: cpu, cuda, cuda:1
    device_map: str | None = None  # transformers' (auto, balanced ...), instead of device
    quantization: Quantization | None = None  # arguments of transformers' config class
    chat_template: bool = False  # the prompt as a user's turn, the answer opened with the quotation mark
    server: Server | None = None  # of backend openai
    threads: Positive | None = None  # torch threads; fixed in the recipe because floating-point sums depend on it
    license: Annotated[str, CARD_ONLY]  # of the model

    @property
    def facts(self) -> BackendFacts:
        """What the backend can do."""
        return BACKENDS[self.backend]

    def _problems(self) -> Iterator[str]:
        if (self.server is None) != self.facts.local:
            yield "backend openai needs the section server, and no other backend takes one"
        if self.facts.local and (self.path is None) == (self.repo_id is None):
            yield "give exactly one of path and repo_id"
        if self.facts.local and self.repo_id is not None and self.revision is None:
            yield "a Hub model needs its revision pinned"
        if self.gguf_file and not self.facts.local:
            yield "gguf_file is what the engine reads: remove it, and have the server load that file"
        if self.gguf_file and self.quantization:
            yield "a GGUF file is de-quantised when it is read: remove quantization or gguf_file"
        if self.dtype == "int8" and (self.device != "cpu" or self.device_map or self.quantization):
            yield "dtype int8 is for a CPU, and without quantization; on a GPU give bfloat16"


Meaning = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\r\n]*$")]


class Label(Strict):
    """One label: its instruction (with the ``<X1>`` placeholder) and the labels its texts must not fit.

    ``decay_constant``, ``guidance`` and ``samples`` replace those of ``decoding``. With ``samples`` 0 the
    label is never written: its prompt is a counter-prompt of other labels, and nothing else.
    """

    name: str  # of the label, in rows and files
    score: Annotated[float, Field(ge=0, le=1)] | None = None  # schema sts
    instruction: str  # the prompt, with <X1> for the source sentence, up to the quotation mark that opens the text
    meaning: Annotated[Meaning | None, CARD_ONLY, OPTION] = None  # in words for people: annotators, readers of the card
    counter_labels: tuple[str, ...] = ()  # labels that a text must not fit: self-debiasing
    overlap: Annotated[tuple[Share, Share] | None, OPTION] = None  # least and most words shared with x1: word_overlap
    decay_constant: Annotated[NotNegative | None, OPTION] = None  # λ of this label's texts
    guidance: Annotated[NotNegative | None, OPTION] = None  # γ of this label's texts
    samples: Annotated[Annotated[int, Field(ge=0)] | None, OPTION] = None  # texts wanted per x1 of this label

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
    def written(self) -> bool:
        """Whether texts are asked for; of a label with ``samples`` 0 none are."""
        return self.samples != 0

    @property
    def plain_prompt(self) -> str | None:
        """The instruction without task and source sentence, e.g. ``Sentence 2: "``: its last piece after ``<X1>``.

        A piece begins after a line break, a quotation mark or the end of a sentence. None where it has no word.
        """
        piece = re.split(r'[\n".!?]', self.instruction.partition(X1)[2].removesuffix(QUOTE))[-1].lstrip()
        return piece + QUOTE if re.search(r"\w", piece) else None


class DecodingParameters(Strict):
    """How a text is decoded (DINO sections 3-4): what a writer needs to know. ``epsilon`` is the original code's ε.

    ``guidance`` is γ of classifier-free guidance (Sanchez et al. 2023): probabilities are multiplied by
    (p(t | prompt) / p(t | plain prompt))^γ, with ``Label.plain_prompt``.
    """

    decay_constant: NotNegative = 100.0  # λ
    epsilon: Annotated[float, Field(gt=0, le=1)] = 0.01  # the least factor of a probability in self-debiasing
    top_k: Annotated[int, Field(ge=0)] = 5  # 0 = off
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9  # nucleus
    max_new_tokens: Positive = 40  # of a text
    text_end: TextEnd = "quotation_mark"  # where a text ends: generation.backends.protocol (Auto-NLI's code: line)
    guidance: Annotated[NotNegative, OPTION] = 0.0  # γ; 0 = off


class Decoding(DecodingParameters):
    """How texts are decoded, how many are wanted and how often each is tried."""

    samples: Positive = 2  # texts wanted per (x1, label)
    max_attempts: Positive = 5  # for each text wanted, at most
    batch_size: Positive | None = None  # model rows decoded together; None: from the free memory

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.max_attempts < self.samples:
            yield f"max_attempts ({self.max_attempts}) is below samples ({self.samples})"


Rejection = Literal[
    "example_copy", "prompt_words", "prompt_echo", "control_characters", "wrong_language", "too_long"
]  # names of hub.contract.schema


class Postprocess(Strict):
    """From raw rows to training rows (DINO section 4 and the original's script)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.2  # 0 → ε/2, 1 → 1 - ε/2
    sampled_negatives: Annotated[int, Field(ge=0)] = 2  # per x1, score 0
    max_per_label: Positive = 2  # texts kept for a source sentence and label
    equal_triplets: bool = True  # schema nli: keep triplets whose positive is their negative, as Auto-NLI's code does
    reject: tuple[Rejection, ...] = ("example_copy", "prompt_words")  # filters to apply: docs/recipes.md
    validation_fraction: Fraction = 0.1  # of the source sentences
    near_copy: Annotated[Share | None, OPTION] = None  # a word_overlap with x1 from which a text is a near-copy of it

    def smoothed(self, score: float) -> float:
        """A label's score as rows have it: (1 - ε)·y + ε/2, so with ε = 0.2: 0 → 0.1, 0.5 → 0.5, 1 → 0.9."""
        return (1 - self.smoothing) * score + self.smoothing / 2

    @field_validator("reject")
    @classmethod
    def _distinct(cls, chosen: tuple[str, ...]) -> tuple[str, ...]:
        if {"prompt_words", "prompt_echo"} <= {*chosen}:
            raise ValueError("prompt_words and prompt_echo are two ways to look for one thing: choose one")
        return chosen


class Examples(Strict):
    """Where few-shot examples come from. A file is one that ``hub.text_files`` reads.

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

    def _problems(self) -> Iterator[str]:
        given = [key for key in ("labels", "texts", "scores") if getattr(self, key)]
        if self.kind in ("hand", "own"):
            columns = ("premise", "hypothesis", "label")
            unused = given + [key for key in columns if getattr(self, key) != type(self).model_fields[key].default]
            if unused:
                yield f"examples of kind {self.kind} name their columns themselves: remove {unused[0]}"
        elif len(given) != 1:
            yield "give either labels (values of a label column) or texts or scores (a column, a band for every label)"
        bands = sorted(self.scores.items(), key=lambda item: item[1])
        for label, (low, high) in bands:
            if low > high:
                yield f"scores.{label}: the lower limit stands before the upper one, e.g. [4.5, 5]"
        for (one, (_, high)), (other, (low, _)) in pairwise(bands):
            if low <= high:
                yield f"scores: the bands of {one!r} and {other!r} share a score"
        if (self.rank_by is None) != (self.top is None):
            yield "rank_by names the column and top says how many rows are drawn from: give both or neither"
        if self.rank_by and (self.texts or self.kind == "hand"):
            yield "rank_by ranks pairs, but a row here has a text for every label: remove rank_by and top"
        needed = ("repo_id", "revision") if self.kind == "hub" else ("path",)
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            yield f"examples of kind {self.kind} need {', '.join(missing)}"
        yield from _part_problems(self)

    @property
    def names(self) -> dict[str, str]:
        """For each label of the recipe the value, or the column, that it has in the dataset; empty: its own name."""
        return self.labels or self.texts or {label: label for label in self.scores}


class FewShot(Strict):
    """Gold examples before the prompt (Auto-NLI section 3.2). Every shot count has Hub configs of its own."""

    shots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]  # examples per prompt; 0 = none
    sets: Positive = 10  # example sets of each shot count, drawn by seed; every set writes for every premise
    examples: Examples
    end: Annotated[str, Field(pattern=f"^{QUOTE}")] = QUOTE  # what closes an example's text (the authors' files: ".)
    separator: str = "\n"  # between examples, and before the prompt: without examples too, as in the authors' code
    rotate: Annotated[bool, OPTION] = False  # each source sentence has one set, chosen by a hash, not all of them

    def _problems(self) -> Iterator[str]:
        if len(set(self.shots)) != len(self.shots):
            yield f"shots: a count stands twice: {list(self.shots)}"
        values = list(self.examples.names.values())
        if len(set(values)) != len(values):
            key = "texts: two labels have one column" if self.examples.texts else "labels: two labels have one value"
            yield f"examples.{key}: {values}"


class Verification(Strict):
    """Every text is scored under the prompt of every label: log p(text | prompt), columns of ``raw`` and ``rejected``.

    With no key the columns are all that is added. How labels are compared: ``generation.rows.verification``.
    """

    calibrated: bool = False  # compare after subtracting each label's mean over the shard
    drop: bool = False  # reject texts that another label's prompt makes likelier than their own
    best_of: Positive = 1  # usable texts asked for each one wanted; those least probable for their label are rejected
    scores: Literal["asked", "soft"] = "asked"  # of finished rows: the label's, or the expectation over all labels
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # of soft scores

    def _problems(self) -> Iterator[str]:
        if self.calibrated and not (self.drop or self.scores == "soft"):
            yield "calibrated is for comparing labels: add drop: true or scores: soft, or remove it"
        if self.temperature != 1.0 and self.scores != "soft":
            yield "temperature is of soft scores: add scores: soft, or remove it"


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
    schema_name: str = Field(alias="schema")  # of the dataset: sts, nli, text or search
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

    def _problems(self) -> Iterator[str]:
        schema, names = self.dataset_schema, [label.name for label in self.labels]
        if len(set(names)) != len(names):
            yield f"labels: two labels share a name: {names}"
        for label in self.labels:
            yield from (f"labels.{label.name}{problem}" for problem in self._label_problems(label))
        if not set(schema.required) <= {label.name for label in self.written_labels}:
            yield f"labels: schema {schema.name} needs the labels {' and '.join(schema.required)}"
        shown = self.few_shot.examples if self.few_shot else None
        if shown and shown.kind in ("file", "hub"):
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
        if self.verification is not None:
            yield from (f"verification{problem}" for problem in self._verification_problems(self.verification))

    def _label_problems(self, label: Label) -> Iterator[str]:
        schema, others = self.dataset_schema, [one.name for one in self.labels if one is not label]
        for counter in label.counter_labels:
            if counter not in others:
                yield f".counter_labels: unknown counter-label {counter!r}; {_choices(counter, others)}"
        if not label.written and not any(label.name in one.counter_labels for one in self.labels):
            yield ".samples: 0, and no other label has it among its counter_labels; name it there, or remove the label"
        if (label.samples or 0) > self.decoding.max_attempts:
            yield f".samples ({label.samples}) is above decoding.max_attempts ({self.decoding.max_attempts})"
        if label.decay_constant is not None and not label.counter_labels:
            yield ".decay_constant is of self-debiasing, but the label has no counter_labels: remove it"
        if not label.written:
            idle = [key for key in OF_WRITTEN_LABELS if getattr(label, key) not in (None, ())]
            if idle:
                yield f".{idle[0]} is for texts, but samples: 0 asks for none: remove one of the two"
            return
        if schema.scored and label.score is None:
            yield f": schema {schema.name} needs a score for every label"
        if schema.labels and label.name not in schema.labels:
            yield f": not a label of schema {schema.name}; {_choices(label.name, schema.labels)}"
        if self.source.facts.generated and f"{QUOTE}{X1}{QUOTE}" not in label.instruction:
            yield (
                f".instruction: {X1} must stand between quotation marks ({QUOTE}) where the model writes the source "
                "sentences: it writes them up to the closing one"
            )
        guidance = f"labels.{label.name}.guidance" if label.guidance is not None else "decoding.guidance"
        guided = [guidance] if label in self.guided_labels else []
        coupled = [f"labels.{label.name}.counter_labels"] if label.counter_labels else []
        for key in (*coupled, *guided):
            if not self.model.facts.can_debias:
                yield (
                    f": {key} draws each token from the model's answers to several prompts at once, which backend "
                    f"{self.model.backend!r} cannot do; use backend: engine, or remove {key}"
                )
        if guided and label.plain_prompt is None:
            yield (
                f".instruction: {guidance} needs a prompt without task and source sentence, but no word stands between "
                f"{X1} and the opening quotation mark; end the instruction with some, e.g. Sentence 2: {QUOTE}, or "
                "remove guidance"
            )

    def _verification_problems(self, asked: Verification) -> Iterator[str]:
        labels = self.written_labels
        if not self.model.facts.can_score:
            yield (
                f" scores a text under every label's prompt, which backend {self.model.backend!r} cannot do; "
                "use backend: engine, or remove the section"
            )
        if len({label.instruction for label in labels}) < max(2, len(labels)):
            yield " compares the prompts of labels: it needs two labels or more, all different"
        if asked.scores == "soft" and not self.dataset_schema.scored:
            yield f".scores: soft needs a schema with scores, and {self.schema_name} has none"
        most = max(self.texts_asked(label) for label in labels)
        if most > self.decoding.max_attempts:
            limit = f"decoding.max_attempts is {self.decoding.max_attempts}"
            yield f".best_of {asked.best_of} asks for {most} texts of a source sentence and label, but {limit}"

    @property
    def deciding_keys(self) -> set[str]:
        """Those of any section; the language decides rows where texts in another one are rejected."""
        return super().deciding_keys | ({"language"} if "wrong_language" in self.postprocess.reject else set())

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
        return sum(map(self.texts_asked, self.written_labels))

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
    probability: dict[str, ColumnType] = {rows.LABEL_PROBABILITY: "float32"}
    if not rows.is_finished(base):
        return {rows.LOG_LIKELIHOODS: {label.name: "float32" for label in recipe.written_labels}, **probability}
    return probability if finished_schema(base, recipe).provenance is PROVENANCE else {}


def finished_schema(config: str, recipe: DatasetRecipe) -> RowSchema:
    """The row schema of a finished config of a recipe. Raises KeyError for any other config."""
    example_type = recipe.dataset_schema.finished[base_config(config)].example_type
    if example_type == "text":
        return rows.text_schema([label.name for label in recipe.written_labels])
    return rows.ROW_SCHEMAS[example_type]


def config_columns(config: str, recipe: DatasetRecipe) -> dict[str, ColumnType]:
    """Columns of one Hub config of a dataset repository: ``raw``, ``rejected``, ``sources`` or a finished one."""
    base = base_config(config)
    columns = rows.UNFINISHED.get(base)
    if columns is None:
        finished = finished_schema(config, recipe)
        columns = {**finished.columns, **finished.provenance}
    columns = {**columns, **verified_columns(base, recipe)}
    return {**columns, **rows.EXAMPLE_SET} if recipe.few_shot and base != "sources" else columns


def config_features(config: str, recipe: DatasetRecipe) -> "datasets.Features":
    """``config_columns`` as features of ``datasets``."""
    return rows.features(config_columns(config, recipe))


DOWNLOADED = "as downloaded"  # what a finished encoder is called that is trained further
PROMPT_TEXT = "[X]"  # where the sentence stands in ``Encoder.prompt``, as PromptEOL's paper writes it


class Pinned(Strict):
    """What comes from a path on this disk, or from a Hub repository at a pinned revision."""

    repo_id: str | None = None  # on the Hub: ORG/NAME
    revision: str | None = None  # a commit or a tag of it
    path: str | None = None  # or on this disk

    def _problems(self) -> Iterator[str]:
        if (self.path is None) == (self.repo_id is None):
            yield "give exactly one of path and repo_id"
        if self.repo_id is not None and self.revision is None:
            yield f"{self.repo_id} needs a revision: pin it by a tag or a commit, e.g. revision: v1.0.0"


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

    ``transformer``: all layers under ``pooling``; ``static``: the mean of the base's token embeddings;
    ``sentence-transformer``: a finished encoder with its own modules; for baselines also ``word-vectors``: the mean of
    the vectors in a text file (GloVe's form: a word and its numbers a line).
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

    @property
    def start(self) -> str:
        """What tables, cards and reports call the encoder before this training."""
        return DOWNLOADED if self.modules == "sentence-transformer" else "before training"

    @field_validator("prompt")
    @classmethod
    def _one_place(cls, text: str | None) -> str | None:
        if text is not None and text.count(PROMPT_TEXT) != 1:
            raise ValueError(f"the prompt must contain {PROMPT_TEXT}, the sentence's place, exactly once")
        return text

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
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

    def _problems(self) -> Iterator[str]:
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

    The defaults fit DINO's labels 1, 0.5 and 0, smoothed or not: 1 is positive, 0.5 and 0 are negative. ``positives:
    itself``: each source sentence is its own positive under dropout, as in SimCSE; generated texts are hard negatives.
    """

    positives: Literal["generated", "itself"] = "generated"
    positive_from: Annotated[float, Field(gt=0, le=1)] = 0.75
    negative_from: Annotated[float, Field(ge=0, lt=1)] = 0.0  # 0.4: the pairs of label 0.5 alone
    negative_to: Annotated[float, Field(ge=0, lt=1)] = 0.6  # 0.3: those of label 0 alone

    def _problems(self) -> Iterator[str]:
        if not self.negative_from <= self.negative_to < self.positive_from:
            found = f"{self.negative_from:g}, {self.negative_to:g}, {self.positive_from:g}"
            yield f"negative_from <= negative_to < positive_from does not hold for {found}"


MADE = ("self-pair", "graded-pair", "graded-triplet")  # types whose rows are made from all that are read


class TrainingData(Pinned):
    """One dataset of a model: a Hub dataset pinned by tag (or a local run directory), config, example type and loss.

    It may also be a file with the example type's columns (``hub.text_files``); for texts alone .txt, one a line.

    Three example types are made of the rows that are read. ``self-pair``: each distinct text of ``columns`` with itself
    (unsupervised SimCSE, Gao et al. 2021). ``graded-pair`` and ``graded-triplet``: of sts pairs; the source
    sentence is the anchor, and ``grades`` says which scores are positive and which are hard negatives.
    """

    config: str
    split: str = "train"
    example_type: Literal[
        "sts", "triplet", "pair", "pair-class", "documents", "self-pair", "graded-pair", "graded-triplet"
    ]
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

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.guide is not None and self.guide.vocabulary is not None:
            yield "guide.vocabulary: a guide reads what the encoder reads: remove it"
        if self.spans is not None and self.example_type != "documents":
            yield f"spans are cut from documents, example_type is {self.example_type}"
        if self.columns is not None and self.example_type != "self-pair":
            yield f"columns are those of the texts of self-pair, example_type is {self.example_type}"
        if self.grades is not None and not self.example_type.startswith("graded-"):
            yield f"grades are those of graded-pair and graded-triplet, example_type is {self.example_type}"
        if self.grades is not None and self.grades.positives == "itself" and self.example_type == "graded-pair":
            yield "grades.positives: itself needs hard negatives: use graded-triplet, or self-pair without any"
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


# keys that a baseline does not have
OF_TRAINING = ("lora", "validation", "slanted_triangular", "token_dropout", "merge", "arguments", "limit", "control")


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
    merge: Annotated[float | Literal["auto"] | None, OPTION] = None  # share of the trained weights, beside the base's
    arguments: dict[str, str] = {}  # of sentence-transformers' trainer, under their names there
    limit: Positive | None = None  # at most so many training rows per dataset, in file order
    threads: Positive | None = None  # torch threads; fixed because sums depend on it
    evaluation: Annotated[tuple[EvaluationTask, ...], SCORING_ONLY] = ()  # what it is scored on
    bootstrap_samples: Annotated[Positive, SCORING_ONLY] = 1000  # for intervals
    control: Annotated[Literal["simcse"] | None, SCORING_ONLY, OPTION] = None  # trained and scored beside it
    seed: Annotated[int, Field(ge=0)] = 42  # decides every draw

    @field_validator("merge")
    @classmethod
    def _share(cls, share: float | str | None) -> float | str | None:
        if isinstance(share, float) and not 0 < share <= 1:
            raise ValueError("is a share of the trained weights: above 0, up to 1, or auto")
        return share

    def _problems(self) -> Iterator[str]:
        for key in OF_TRAINING:
            if getattr(self, key) and not self.datasets:
                yield f"{key} is for training, but the recipe names no datasets"
        if self.base.modules == "word-vectors" and self.datasets:
            yield "base.modules word-vectors is for baselines: it is not trained"
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
        if self.merge and self.lora and self.lora.release == "adapter":
            yield "merge: a released adapter has no weights of the base to merge with: give lora.release: merged"
        if self.merge and self.base.vocabulary:
            yield "merge: base.vocabulary cuts the base, so its own weights are gone: remove one of the two"
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

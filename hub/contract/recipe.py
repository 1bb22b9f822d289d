"""Recipes: frozen, strict models. One recipe describes one published dataset or encoder.

``sts_dino.hub.contract.recipe_file`` reads recipe files. This module has, in order: the base of all
sections, the sections of a dataset recipe, the dataset recipe, the columns of its configs, the
sections of a model recipe, and the model recipe. A section's ``rules`` are checked in order, and
the first message is reported.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

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
from pydantic.fields import FieldInfo

from sts_dino.hub.contract import schema as rows
from sts_dino.hub.contract.published_paths import (
    PATH_KEY,
    find_public_host,
    hide_value,
    name_origin,
)
from sts_dino.hub.contract.schema import (
    PROVENANCE,
    SCHEMAS,
    ColumnType,
    DatasetSchema,
    RowSchema,
    get_base_config,
)
from sts_dino.hub.errors import suggest_choice
from sts_dino.hub.untrusted import load_yaml

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


def refuse_value(message: str, when: Callable[[Any], object]) -> AfterValidator:
    """Make the validator that refuses a key's value with ``message`` if ``when(value)`` is true."""

    def check_value(value: Any) -> Any:
        if when(value):
            raise ValueError(message)
        return value

    return AfterValidator(check_value)


def _check_encoding(encoding: str) -> str:
    """Return ``encoding``. Raises ValueError unless Python can encode text by that name."""
    try:
        "a".encode(encoding)
    except (LookupError, ValueError) as error:
        raise ValueError("is not an encoding that Python knows, e.g. cp1252") from error
    return encoding


Encoding = Annotated[str, AfterValidator(_check_encoding)]
HAS_SENTENCE_ONCE = refuse_value(
    f"the instruction must contain the placeholder {X1} exactly once",
    when=lambda text: text.count(X1) != 1,
)


class NotFingerprinted:
    """A mark, as in ``Annotated[str, CARD_ONLY]``, of a key that decides no row and no weight."""


CARD_ONLY = NotFingerprinted()  # shown on the card
SCORING_ONLY = NotFingerprinted()  # settings of the evaluation after training
PLACE_ONLY = NotFingerprinted()  # the address of a server, which is not published
SPEED_ONLY = NotFingerprinted()  # speed or price of the same texts
USER_ONLY = NotFingerprinted()  # a user's own limit, which is not published

# A mark, as in ``Annotated[bool, OPTION]``, of a key that is left out of the fingerprint and of the
# resolved recipe while the key has its default. Older recipes, runs and cards so stay valid.
OPTION = object()

# contexts of ``Strict.model_dump``
PUBLISHED = "published"
DECIDING = "deciding"


def _is_not_fingerprinted(field: FieldInfo) -> bool:
    return any(isinstance(mark, NotFingerprinted) for mark in field.metadata)


Rule = Callable[[Any], Iterable[str]]  # a section → a message for each problem


def refuse(message: str, when: Callable[[Any], object]) -> Rule:
    """Make the rule that refuses a section with ``message`` if ``when(section)`` is true.

    ``{0.key}`` in the message stands for the section's value of that key.
    """

    def find_problem(section: Any) -> list[str]:
        return [message.format(section)] if when(section) else []

    return find_problem


class Strict(BaseModel):
    """Base of every recipe section: immutable, unknown keys refused.

    ``model_dump`` leaves out unset options. ``model_dump(context=PUBLISHED)`` also hides paths and
    addresses of this machine (``sts_dino.hub.contract.published_paths``) and leaves out keys marked
    ``USER_ONLY``. ``context=DECIDING`` hides the same values and keeps ``deciding_keys`` alone.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), serialize_by_alias=True
    )
    rules: ClassVar[tuple[Rule, ...]] = ()  # checks that concern several keys

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        """Raise ValueError with the first message of the rules; return the section without any.

        A rule may rely on what the rules before it have checked.
        """
        for rule in self.rules:
            for message in rule(self):
                raise ValueError(message)
        return self

    @property
    def deciding_keys(self) -> set[str]:
        """The keys that decide rows or weights: all but unset options and ``NotFingerprinted``."""
        fields = type(self).model_fields
        marked_keys = {key for key, field in fields.items() if _is_not_fingerprinted(field)}
        return set(fields) - marked_keys - self.unset_options

    @property
    def unset_options(self) -> set[str]:
        """The keys marked ``OPTION`` that have their default."""
        unset_keys = set[str]()
        for key, field in type(self).model_fields.items():
            if OPTION not in field.metadata:
                continue
            if getattr(self, key) == field.get_default(call_default_factory=True):
                unset_keys.add(key)
        return unset_keys

    @model_serializer(mode="wrap")
    def _serialize(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Leave out and hide the keys that the class's docstring names for each context."""
        omitted = self.unset_options
        fields = type(self).model_fields
        if info.context == DECIDING:
            omitted = set(fields) - self.deciding_keys
        elif info.context == PUBLISHED:
            omitted = omitted | {
                key for key, field in fields.items() if USER_ONLY in field.metadata
            }
        values = {key: value for key, value in handler(self).items() if key not in omitted}
        if info.context is None:
            return values
        return {key: hide_value(key, value) for key, value in values.items()}

    def collect_local_paths(self, prefix: str = "") -> dict[str, str]:
        """Map recipe keys, e.g. ``source.path``, to the local paths of this section and its parts.

        A path inside a Hub repository is not local. ``prefix``: the section's own key with a dot;
        empty for a whole recipe.
        """
        paths = dict[str, str]()
        for name in type(self).model_fields:
            value: Any = getattr(self, name)
            if (
                name == PATH_KEY
                and isinstance(value, str)
                and getattr(self, "repo_id", None) is None
            ):
                paths[f"{prefix}{name}"] = value
            elif isinstance(value, Strict):
                paths |= value.collect_local_paths(f"{prefix}{name}.")
            elif isinstance(value, tuple):
                for index, item in enumerate(value):
                    if isinstance(item, Strict):
                        paths |= item.collect_local_paths(f"{prefix}{name}.{index}.")
        return paths


UNUSED_ENCODING = refuse(
    "encoding is of a file, and no path is given: remove encoding",
    when=lambda origin: origin.encoding is not None and origin.path is None,
)


def _find_unused_parts(origin: Any) -> Iterator[str]:
    """Yield a message for each key of a Hub dataset that is set but not read.

    Only the kind hub reads ``repo_id`` and ``revision``. Only the kind hub without ``path`` reads
    ``config`` and ``splits``: with ``path``, one file is read, whole. ``origin``: a section of type
    ``Source`` or ``Examples``.
    """
    if origin.kind == "hub" and origin.path is None:
        return
    reason = "one file is read, whole"
    if origin.kind == "model":
        reason = "the model writes these texts"
    elif origin.kind == "own":
        reason = "the examples come from a run directory"
    for key in ("repo_id", "revision"):
        if origin.kind != "hub" and getattr(origin, key) is not None:
            yield f"{key} is of a Hub dataset, but {reason}: remove {key}"
    for key in ("config", "splits"):
        if getattr(origin, key) != type(origin).model_fields[key].default:
            yield f"{key} names parts of a Hub dataset, but {reason}: remove {key}"


SourceName = Literal["file", "hub", "model"]
BackendName = Literal["engine", "openai"]


# The backend that loads the weights into this process. It alone draws one token from the answers to
# several prompts, scores a text under other prompts, and shows every token's probabilities.
LOCAL_BACKEND: BackendName = "engine"


_LANGUAGE_CODES = """
    ace af am an ar ary arz as az ba bcl be bg bn br bs ca crh cs cy da de dz el en eo es et eu
    ext fa fi fo fr fuv fy ga gcf gcr gd gl gom grc gu gug guw ha hbo he hi hr ht hu hy id ig is
    it ja jv ka kab kik kk km kn ko ku ky la lb lg lij ln lo lt ltg lv mg mk ml mn mr ms mt my
    ne nl nn no nso oc om or pa pcm pl ps pt qu ro ru rw sa sdh se si sk sl sn so sq sr st sv sw
    ta te tg th tk tl tr tt ug uk ur uz uzs vec vi vo wa wuu xh yo yue zh zu
"""
RECOGNISED_LANGUAGES = frozenset(_LANGUAGE_CODES.split())


class Source(Strict):
    """Where source sentences come from: a file, a pinned Hub dataset, or the generator itself
    (``model``).
    """

    kind: SourceName  # file: on this disk; hub: a pinned dataset; model: the generator writes them
    # a file that sts_dino.hub.text_files reads; with kind hub: a file of the repo
    path: str | None = None
    # of the texts; needed by every kind of file but .txt, and by hub
    columns: tuple[str, ...] = ()
    # of a file that is not UTF-8, e.g. cp1252; left out: it is recognised
    encoding: Annotated[Encoding | None, OPTION] = None
    repo_id: str | None = None  # hub: ORG/NAME
    revision: str | None = None  # hub: a commit or a tag
    config: str | None = None  # hub: of the dataset
    splits: tuple[str, ...] = ("train",)  # hub: read one after the other
    # of the cells that are read, chosen by a hash of seed and place
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    # at most so many unique texts, in file order; the number to write for `model`
    limit: Positive | None = None
    # of texts with one inside; both papers' code keeps them
    quotation_marks: Literal["keep", "skip"] = "keep"
    # model: nucleus of x1, no top-k (DINO section 4)
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    description: Annotated[str, CARD_ONLY]  # what the texts are
    license: Annotated[str, CARD_ONLY]  # of the source sentences

    @property
    def is_generated(self) -> bool:
        """Whether the language model writes the source sentences."""
        return self.kind == "model"

    rules = (
        refuse(
            "a source of kind file needs path",
            when=lambda source: source.kind == "file" and source.path is None,
        ),
        refuse(
            "a source of kind hub needs repo_id and revision",
            when=lambda source: source.kind == "hub" and None in (source.repo_id, source.revision),
        ),
        refuse(
            "a source of kind hub needs columns (or the path of a text file in the repo)",
            when=lambda source: source.kind == "hub" and not (source.path or source.columns),
        ),
        refuse(
            "a source of kind model needs limit",
            when=lambda source: source.is_generated and source.limit is None,
        ),
        refuse(
            "share chooses among rows that are read, but the model writes these: set limit alone",
            when=lambda source: source.is_generated and source.share < 1,
        ),
        _find_unused_parts,
        UNUSED_ENCODING,
    )


Address = Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]


class Contrast(Strict):
    """One request for the texts of all labels of a source sentence.

    The answer is one JSON object with a text under each label's key. Few-shot examples are turns
    with such objects.
    """

    # the user's turn, with <X1> for the source sentence; it names the keys
    instruction: Annotated[str, HAS_SENTENCE_ONCE]
    # label → the key of its text, in the order in which the model writes the texts
    keys: dict[str, Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]]

    rules = (
        refuse(
            "keys: two labels have one key: {0.keys}",
            when=lambda contrast: len(set(contrast.keys.values())) < len(contrast.keys),
        ),
    )


class Server(Strict):
    """An OpenAI-compatible server (``backend: openai``).

    The API key is read from the variable OPENAI_API_KEY; a recipe never holds it.
    """

    base_url: Annotated[Address, PLACE_ONLY]  # no password; not published
    model: str  # the name the server knows the model by
    # sts_dino.generation.backends.dialects
    dialect: Literal["openai", "vllm", "transformers", "llamacpp"] = "openai"
    logprobs: bool = False  # ask for the tokens' log-probabilities; some servers refuse
    # ask for JSON with one sentence, by a JSON schema; one request tests whether the server
    # supports it
    structured_output: Annotated[bool, OPTION] = False
    # few-shot examples as turns of the chat: the prompt by the user, the text by the assistant
    example_turns: Annotated[bool, OPTION] = False
    # one request for the texts of all labels; left out: a request for each text
    contrast: Annotated[Contrast | None, OPTION] = None
    # texts that the first request for a source sentence and label asks for (the field n)
    choices: Annotated[Positive, OPTION] = 1
    # requests under way at a time; fewer while the server answers 429
    concurrency: Annotated[Positive, SPEED_ONLY] = 8
    timeout: Annotated[PositiveFloat, SPEED_ONLY] = 60.0  # seconds that an answer may take
    max_retries: Annotated[int, Field(ge=0), SPEED_ONLY] = 6  # of a request that failed
    # prompt, completion tokens
    price_per_million: Annotated[tuple[NotNegative, NotNegative] | None, SPEED_ONLY] = None
    # the most that the run may cost, in the currency of the prices; it then stops, and resumes with
    # a larger budget
    budget: Annotated[NotNegative | None, USER_ONLY, OPTION] = None

    rules = (
        refuse(
            "a budget needs the prices of tokens: add price_per_million",
            when=lambda server: server.budget is not None and server.price_per_million is None,
        ),
        refuse(
            "transformers serve tells no log-probabilities: remove logprobs",
            when=lambda server: server.logprobs and server.dialect == "transformers",
        ),
        refuse(
            "the log-probability of JSON is not that of its sentence: remove logprobs or "
            "structured_output",
            when=lambda server: server.logprobs and server.structured_output,
        ),
        refuse(
            "contrast is one JSON object with a text for each label: add structured_output: true",
            when=lambda server: server.contrast and not server.structured_output,
        ),
        refuse(
            "choices are several texts of one label: remove contrast or choices",
            when=lambda server: server.contrast and server.choices > 1,
        ),
        refuse(
            "llama.cpp reports the end of one text in an answer: several choices need "
            "structured_output: true",
            when=lambda server: (
                server.choices > 1 and server.dialect == "llamacpp" and not server.structured_output
            ),
        ),
    )


def parse_quantization(texts: Mapping[str, str] | None) -> dict[str, Any]:
    """Parse the texts of quantization arguments (true, 4, nf4) as YAML.

    Returns argument → value, and {} for None. A value is a number, truth value, date, text, None,
    or a list or mapping of at most two levels. Raises yaml.YAMLError for a text that is not YAML,
    for more levels, for more than 1,000 keys and values and for more than 10,000 bytes.
    """
    return {
        key: load_yaml(text, max_bytes=10_000, max_depth=2, max_nodes=1_000)
        for key, text in (texts or {}).items()
    }


def _check_quantization(texts: dict[str, str]) -> dict[str, str]:
    """Return ``texts`` unchanged: argument → YAML. Raises ValueError naming one with bad YAML."""
    for key, text in texts.items():
        try:
            parse_quantization({key: text})
        except yaml.MarkedYAMLError as error:
            raise ValueError(f"{key}: {error.problem}") from error
        except yaml.reader.ReaderError as error:  # a control character
            raise ValueError(f"{key}: {error.reason}") from error
    return texts


# arguments of a config class of transformers
Quantization = Annotated[dict[str, str], AfterValidator(_check_quantization)]


# No folder or file in the path begins with a dot, and its separator is /.
GgufName = Annotated[
    str,
    refuse_value(
        "names a .gguf file inside path or repo_id, e.g. model-q4_k_m.gguf",
        when=lambda name: not re.fullmatch(r"([\w+-][\w.+ -]*/)*[\w+-][\w.+ -]*\.gguf", name),
    ),
]


class LanguageModel(Strict):
    """The generator: a Hub id with a pinned revision, a local folder, or a model on a server.

    ``gguf_file``: a file in the repository or folder that holds the whole model with its tokenizer.
    ``quantization``: keyword arguments of transformers' config class; its key ``quant_method``
    names the class.
    """

    # engine: in this process, with self-debiasing; openai: a server
    backend: BackendName = "engine"
    path: str | None = None  # a folder of transformers
    repo_id: str | None = None  # openai: optional, the id the card names
    revision: str | None = None  # a commit or a tag of repo_id
    gguf_file: GgufName | None = None  # its weights are de-quantised to dtype
    # auto: the fastest one here
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "float32"
    device: str = "cpu"  # as torch calls it: cpu, cuda, cuda:1
    device_map: str | None = None  # transformers' (auto, balanced ...), instead of device
    quantization: Quantization | None = None  # arguments of transformers' config class
    # the prompt as a user's turn, the answer opened with the quotation mark
    chat_template: bool = False
    server: Server | None = None  # of backend openai
    # torch threads; fixed in the recipe because floating-point sums depend on it
    threads: Positive | None = None
    license: Annotated[str, CARD_ONLY]  # of the model

    @property
    def is_local(self) -> bool:
        """Whether this process loads the weights, so that dtype and threads decide texts."""
        return self.backend == LOCAL_BACKEND

    rules = (
        refuse(
            "backend openai needs the section server, and no other backend takes one",
            when=lambda model: (model.server is None) != model.is_local,
        ),
        refuse(
            "structured_output is of a chat model's answer: add chat_template: true",
            when=lambda model: (
                model.server and model.server.structured_output and not model.chat_template
            ),
        ),
        refuse(
            "example_turns are turns of a chat: add chat_template: true",
            when=lambda model: (
                model.server and model.server.example_turns and not model.chat_template
            ),
        ),
        refuse(
            "give exactly one of path and repo_id",
            when=lambda model: model.is_local and (model.path is None) == (model.repo_id is None),
        ),
        refuse(
            "a Hub model needs its revision pinned",
            when=lambda model: (
                model.is_local and model.repo_id is not None and model.revision is None
            ),
        ),
        refuse(
            "gguf_file is what the engine reads: remove it, and have the server load that file",
            when=lambda model: model.gguf_file and not model.is_local,
        ),
        refuse(
            "a GGUF file is de-quantised when it is read: remove quantization or gguf_file",
            when=lambda model: model.gguf_file and model.quantization,
        ),
        refuse(
            "dtype int8 is for a CPU, and without quantization; on a GPU give bfloat16",
            when=lambda model: (
                model.dtype == "int8"
                and (model.device != "cpu" or model.device_map or model.quantization)
            ),
        ),
    )


Meaning = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\r\n]*$")]


class Label(Strict):
    """A label of generated texts: its instruction with ``<X1>``, and its counter-labels.

    ``decay_constant``, ``guidance`` and ``samples`` replace the same keys of ``decoding``. With
    ``samples`` 0 no text of the label is generated: its prompt is only a counter-prompt of other
    labels.
    """

    name: str  # of the label, in rows and files
    score: Annotated[float, Field(ge=0, le=1)] | None = None  # schema sts
    # the prompt, with <X1> for the source sentence, up to the quotation mark that opens the text
    instruction: Annotated[
        str,
        HAS_SENTENCE_ONCE,
        refuse_value(
            f"the instruction must end with the opening quotation mark ({QUOTE}) of the text to "
            "write",
            when=lambda text: not text.endswith(QUOTE),
        ),
    ]
    # in words for people: annotators, readers of the card
    meaning: Annotated[Meaning | None, CARD_ONLY, OPTION] = None
    counter_labels: tuple[str, ...] = ()  # labels that a text must not fit: self-debiasing
    # least and most words shared with x1: word_overlap
    overlap: Annotated[
        tuple[Share, Share] | None,
        OPTION,
        refuse_value(
            "the least stands before the most, e.g. [0.1, 0.6]",
            when=lambda band: band and band[0] > band[1],
        ),
    ] = None
    decay_constant: Annotated[NotNegative | None, OPTION] = None  # λ of this label's texts
    guidance: Annotated[NotNegative | None, OPTION] = None  # γ of this label's texts
    # texts wanted per x1 of this label
    samples: Annotated[Annotated[int, Field(ge=0)] | None, OPTION] = None

    @property
    def written(self) -> bool:
        """Whether texts of the label are generated: not with ``samples`` 0."""
        return self.samples != 0

    @property
    def plain_prompt(self) -> str | None:
        """The end of the instruction without task and source sentence, e.g. ``Sentence 2: "``.

        It begins behind ``<X1>``, and there behind the last line break, ``"``, ``.``, ``!`` or
        ``?`` before the opening quotation mark. None when this part has no word.
        """
        after_sentence = self.instruction.partition(X1)[2].removesuffix(QUOTE)
        last_piece = re.split(r'[\n".!?]', after_sentence)[-1].lstrip()
        return last_piece + QUOTE if re.search(r"\w", last_piece) else None


class DecodingParameters(Strict):
    """The parameters of decoding one text (DINO sections 3-4).

    ``decay_constant`` and ``epsilon``: λ and ε of self-debiasing, as in the original code.
    ``guidance``: γ of classifier-free guidance (Sanchez et al. 2023): probabilities are multiplied
    by (p(t | prompt) / p(t | plain prompt))^γ, with ``Label.plain_prompt``.
    """

    decay_constant: NotNegative = 100.0  # λ
    # the least factor of a probability in self-debiasing
    epsilon: Annotated[float, Field(gt=0, le=1)] = 0.01
    top_k: Annotated[int, Field(ge=0)] = 5  # 0 = off
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9  # nucleus
    max_new_tokens: Positive = 40  # of a text
    # where a text ends: sts_dino.generation.backends.protocol (Auto-NLI's code: line)
    text_end: TextEnd = "quotation_mark"
    guidance: Annotated[NotNegative, OPTION] = 0.0  # γ; 0 = off


class Decoding(DecodingParameters):
    """The parameters of decoding, the number of texts, and the attempts for each of them."""

    samples: Positive = 2  # texts per (source sentence, label)
    max_attempts: Positive = 5  # completions per text at most
    batch_size: Positive | None = None  # model rows decoded together; None: from the free memory

    rules = (
        refuse(
            "max_attempts ({0.max_attempts}) is below samples ({0.samples})",
            when=lambda decoding: decoding.max_attempts < decoding.samples,
        ),
    )


Rejection = Literal[
    "example_copy",
    "prompt_words",
    "prompt_echo",
    "control_characters",
    "wrong_language",
    "too_long",
]  # names of sts_dino.hub.contract.schema


class Postprocess(Strict):
    """The steps from raw rows to training rows (DINO section 4 and its authors' script)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.2  # 0 → ε/2, 1 → 1 - ε/2
    sampled_negatives: Annotated[int, Field(ge=0)] = 2  # per x1, score 0
    max_per_label: Positive = 2  # texts kept for a source sentence and label
    # schema nli: keep triplets whose positive is their negative, as Auto-NLI's code does
    equal_triplets: bool = True
    # filters to apply: docs/recipes.md
    reject: Annotated[
        tuple[Rejection, ...],
        refuse_value(
            "prompt_words and prompt_echo are two ways to look for one thing: choose one",
            when=lambda filters: {"prompt_words", "prompt_echo"} <= set(filters),
        ),
    ] = ("example_copy", "prompt_words")
    validation_fraction: Fraction = 0.1  # of the source sentences
    # a word_overlap with x1 from which a text is a near-copy of it
    near_copy: Annotated[Share | None, OPTION] = None

    def smooth_score(self, score: float) -> float:
        """Return the smoothed score of a label, as rows have it: (1 - ε)·y + ε/2.

        y is ``score``, and ε is ``smoothing``. With ε = 0.2: 0 → 0.1, 0.5 → 0.5, 1 → 0.9.
        """
        return (1 - self.smoothing) * score + self.smoothing / 2


class Examples(Strict):
    """The origin of few-shot examples. ``sts_dino.hub.text_files`` reads its files.

    - ``file``, ``hub``: a dataset of pairs. ``labels`` maps each label of the recipe to a value of
      the label column, e.g. {entailment: "0"}. ``scores`` maps each label to a band of the score
      column, limits included, e.g. {"1": [4.5, 5]}. Where a row has a text for every label, as in
      triplets, ``texts`` maps each label to its column, e.g. {entailment: sent1, contradiction:
      hard_neg}; the columns ``hypothesis`` and ``label`` are not read then.
    - ``hand``: a .tsv file written for prompts. It has the column text1 and a column for each
      label, with the label's name.
    - ``own``: the run directory of a finished dataset, with the labels of the recipe. The examples
      are texts of the model itself.

    ``rank_by`` names a numeric column: examples are drawn from each label's ``top`` rows with the
    largest values.
    """

    kind: Literal["file", "hub", "hand", "own"]
    path: str | None = None  # with kind hub: a file of the repo
    # of a file that is not UTF-8, e.g. cp1252; left out: it is recognised
    encoding: Annotated[Encoding | None, OPTION] = None
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

    def _find_unused_columns(self) -> Iterator[str]:
        """Yield a message for each key that names columns, for kinds with fixed column names."""
        if self.kind in ("file", "hub"):
            return
        for key in ("labels", "texts", "scores", "premise", "hypothesis", "label"):
            field = type(self).model_fields[key]
            if getattr(self, key) != field.get_default(call_default_factory=True):
                yield f"examples of kind {self.kind} name their columns themselves: remove {key}"

    def _find_band_problems(self) -> Iterator[str]:
        """Yield a message for a band with its limits reversed, and for bands that share a score."""
        # Sorted bands that share no score with the next one share none with any other.
        bands = sorted(self.scores.items(), key=lambda item: item[1])
        for label, (low, high) in bands:
            if low > high:
                yield f"scores.{label}: the lower limit stands before the upper one, e.g. [4.5, 5]"
        for (label, (_, high)), (next_label, (next_low, _)) in pairwise(bands):
            if next_low <= high:
                yield f"scores: the bands of {label!r} and {next_label!r} share a score"

    rules = (
        refuse(
            "give either labels (values of a label column) or texts or scores (a column, a band "
            "for every label)",
            when=lambda examples: (
                examples.kind in ("file", "hub")
                and [examples.labels, examples.texts, examples.scores].count({}) != 2
            ),
        ),
        _find_unused_columns,
        _find_band_problems,
        refuse(
            "rank_by names the column and top says how many rows are drawn from: "
            "give both or neither",
            when=lambda examples: (examples.rank_by is None) != (examples.top is None),
        ),
        refuse(
            "rank_by ranks pairs, but a row here has a text for every label: "
            "remove rank_by and top",
            when=lambda examples: examples.rank_by and (examples.texts or examples.kind == "hand"),
        ),
        refuse(
            "examples of kind hub need repo_id and revision",
            when=lambda examples: (
                examples.kind == "hub" and None in (examples.repo_id, examples.revision)
            ),
        ),
        refuse(
            "examples of kind {0.kind} need path",
            when=lambda examples: examples.kind != "hub" and examples.path is None,
        ),
        _find_unused_parts,
        UNUSED_ENCODING,
    )

    @property
    def names(self) -> dict[str, str]:
        """Label of the recipe → its name in the dataset: value of the label column, or column.

        With ``scores``, and for a label without an entry, the name is the recipe's label itself.
        """
        return self.labels or self.texts or {label: label for label in self.scores}


class FewShot(Strict):
    """Few-shot examples before the prompt (Auto-NLI section 3.2).

    Every shot count has Hub configs of its own.
    """

    # examples per prompt; 0 = none
    shots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    # example sets of each shot count, drawn by seed; unless rotate, every set prompts for every
    # source sentence
    sets: Positive = 10
    examples: Examples
    # what closes an example's text (the authors' files: ".)
    end: Annotated[str, Field(pattern=f"^{QUOTE}")] = QUOTE
    # between examples, and before the prompt: without examples too, as in the authors' code
    separator: str = "\n"
    # each source sentence has one set, chosen by a hash, not all of them
    rotate: Annotated[bool, OPTION] = False

    rules = (
        refuse(
            "shots: a count stands twice: {0.shots}",
            when=lambda section: len(set(section.shots)) < len(section.shots),
        ),
        refuse(
            "examples: two labels have one value or column: {0.examples.names}",
            when=lambda section: (
                len(set(section.examples.names.values())) < len(section.examples.names)
            ),
        ),
    )


class Verification(Strict):
    """The scoring of every text under the prompt of every label: log p(text | prompt).

    The scores are columns of the configs ``raw`` and ``rejected``. An empty section only adds these
    columns. ``sts_dino.generation.rows.selection`` compares the labels.
    """

    calibrated: bool = False  # compare after subtracting each label's mean over the shard
    drop: bool = False  # reject texts that another label's prompt makes likelier than their own
    # usable texts asked for each one wanted; those least probable for their label are rejected
    best_of: Positive = 1
    # of finished rows: the label's, or the expectation over all labels
    scores: Literal["asked", "soft"] = "asked"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # of soft scores

    rules = (
        refuse(
            "calibrated is for comparing labels: add drop: true or scores: soft, or remove it",
            when=lambda section: (
                section.calibrated and not section.drop and section.scores != "soft"
            ),
        ),
        refuse(
            "temperature is of soft scores: add scores: soft, or remove it",
            when=lambda section: section.temperature != 1.0 and section.scores != "soft",
        ),
    )


class Selection(Strict):
    """The choice among several texts of a label by an encoder's cosine to the source sentence.

    The label of the highest score keeps the texts with the highest cosines, and the label of the
    lowest score the texts with the lowest. Any other label keeps the texts nearest to a cosine in
    between, by its score (``sts_dino.generation.rows.selection``). The cosines are a column of the
    configs ``raw`` and ``rejected``.
    """

    # usable texts that are generated for each one wanted
    candidates: Annotated[int, Field(ge=2)] = 4
    # the encoder's folder; without path and repo_id: all-minilm-l6-v2 of sts-dino lm, for other
    # languages than English multilingual-e5-small
    path: str | None = None
    repo_id: str | None = None  # or its Hub id: ORG/NAME
    revision: str | None = None  # a commit or a tag of repo_id

    rules = (
        refuse(
            "give one of path and repo_id",
            when=lambda section: section.path is not None and section.repo_id is not None,
        ),
        refuse(
            "an encoder of the Hub needs its revision pinned, and no other has one",
            when=lambda section: (section.repo_id is None) != (section.revision is None),
        ),
    )


@dataclass(frozen=True)
class Variant:
    """A form of the prompt: its shot count (None without few-shot), and its example set from 0."""

    shots: int | None
    example_set: int


# keys of a label that replace those of decoding
LABEL_DECODING_KEYS = ("decay_constant", "guidance", "samples")
# keys of a label that concern its generated texts
WRITTEN_LABEL_KEYS = ("counter_labels", "score", "meaning", "decay_constant", "guidance", "overlap")
_EXAMPLE_MAPPINGS = {"labels": "value of the label column", "texts": "column", "scores": "band"}


def refuse_labels(message: str, when: Callable[["DatasetRecipe", Label], object]) -> Rule:
    """Make the rule that refuses a label of a dataset recipe if ``when(recipe, label)`` is true.

    ``{0.key}`` in the message stands for the label's value of that key, ``{1.key}`` for the
    recipe's.
    """

    def find_problems(recipe: "DatasetRecipe") -> Iterator[str]:
        for label in recipe.labels:
            if when(recipe, label):
                yield message.format(label, recipe)

    return find_problems


def format_config_name(base: str, shots: int | None) -> str:
    """Return the Hub config of a shot count, e.g. triplet-20shot; ``base`` without few-shot."""
    return base if shots is None else f"{base}-{shots}shot"


def _format_choices(name: str, allowed: Sequence[str]) -> str:
    """Return the end of a message: the allowed names, and a suggestion if ``name`` is like one."""
    choices = f"allowed: {', '.join(allowed)}"
    suggestion = suggest_choice(name, allowed)
    return f"{choices}; {suggestion}" if suggestion else choices


class DatasetRecipe(Strict):
    """Everything that decides the bytes of one published dataset."""

    kind: Literal["dataset"]  # what the recipe makes
    name: Name  # of the dataset, on the Hub, too
    version: Annotated[Version, CARD_ONLY]  # the same rows may be published anew, with another card
    schema_name: str = Field(alias="schema")  # of the dataset: sts, nli, text or search
    pretty_name: Annotated[str, CARD_ONLY]  # the card's title
    language: Annotated[Language, CARD_ONLY] = "en"  # of the texts: ISO 639
    # of the dataset; which are possible follows from its parts' licences
    license: Annotated[str, CARD_ONLY]
    # the card's introduction: paragraphs, `code` in backticks
    about: Annotated[str | None, CARD_ONLY, OPTION] = None
    source: Source  # source sentences
    model: LanguageModel  # the generator
    labels: Annotated[tuple[Label, ...], Field(min_length=1)]  # of the pairs
    few_shot: FewShot | None = None  # examples in the prompt
    decoding: Decoding = Decoding()  # how texts are drawn
    # each text scored under every label's prompt
    verification: Annotated[Verification | None, OPTION] = None
    # the best of several texts by an encoder
    selection: Annotated[Selection | None, OPTION] = None
    postprocess: Postprocess = Postprocess()  # from texts to rows
    # keep only source sentences of so many tokens (Auto-NLI: 4-32)
    premise_tokens: Annotated[
        tuple[int, int] | None,
        refuse_value(
            "the least stands before the most, e.g. [4, 32]",
            when=lambda bounds: bounds and bounds[0] > bounds[1],
        ),
    ] = None
    shard_size: Positive = 64  # source sentences per shard
    seed: Annotated[int, Field(ge=0)] = 42  # decides every draw

    @field_validator("schema_name")
    @classmethod
    def _check_schema_name(cls, name: str) -> str:
        if name not in SCHEMAS:
            raise ValueError(f"unknown schema; {_format_choices(name, tuple(SCHEMAS))}")
        return name

    def _find_label_problems(self) -> Iterator[str]:
        """Yield a message for each problem of the labels.

        Their problems are names, counter-labels, keys without effect, labels that the schema lacks
        or needs, and self-debiasing or guidance that cannot be done.
        """
        names = [label.name for label in self.labels]
        if len(set(names)) != len(names):
            yield f"labels: two labels share a name: {names}"
        schema = self.dataset_schema
        for label in self.labels:
            peers = [name for name in names if name != label.name]
            for counter in label.counter_labels:
                if counter not in peers:
                    yield (
                        f"labels.{label.name}.counter_labels: unknown counter-label {counter!r}; "
                        f"{_format_choices(counter, peers)}"
                    )
            if not label.written:
                yield from self._find_unused_settings(label)
                continue
            if schema.labels and label.name not in schema.labels:
                choices = _format_choices(label.name, schema.labels)
                yield f"labels.{label.name}: not a label of schema {schema.name}; {choices}"
            yield from self._find_debiasing_problems(label)
        if not set(schema.required) <= {label.name for label in self.written_labels}:
            yield f"labels: schema {schema.name} needs the labels {' and '.join(schema.required)}"

    def _find_unused_settings(self, label: Label) -> Iterator[str]:
        """Yield a message for each text setting of a label without generated texts."""
        for key in WRITTEN_LABEL_KEYS:
            if getattr(label, key) not in (None, ()):
                yield (
                    f"labels.{label.name}.{key} is for texts, but samples: 0 asks for none: "
                    "remove one of the two"
                )

    def _find_debiasing_problems(self, label: Label) -> Iterator[str]:
        """Yield a message for counter-labels or guidance that the backend cannot do.

        Yield a message, too, for guidance where the instruction has no ``plain_prompt``.
        """
        is_guided = self.get_decoding(label).guidance > 0
        guidance_key = "decoding.guidance"
        if label.guidance is not None:
            guidance_key = f"labels.{label.name}.guidance"
        # Counter-labels and guidance need several prompts for each token.
        if (label.counter_labels or is_guided) and not self.model.is_local:
            key = f"labels.{label.name}.counter_labels" if label.counter_labels else guidance_key
            yield (
                f"labels.{label.name}: {key} draws each token from the model's answers to "
                f"several prompts at once, which backend {self.model.backend!r} cannot do; "
                f"use backend: engine, or remove {key}"
            )
        if is_guided and label.plain_prompt is None:
            yield (
                f"labels.{label.name}.instruction: {guidance_key} needs a prompt without task and "
                f"source sentence, but no word stands between {X1} and the opening quotation mark; "
                f"end the instruction with some, e.g. Sentence 2: {QUOTE}, or remove guidance"
            )

    def _find_example_problems(self) -> Iterator[str]:
        """Yield a message for each label without few-shot examples, and for each unknown label.

        Examples of the kinds ``hand`` and ``own`` pass: the recipe does not map their labels.
        """
        examples = self.few_shot.examples if self.few_shot else None
        if examples is None or examples.kind not in ("file", "hub"):
            return
        mapping = next(key for key in _EXAMPLE_MAPPINGS if getattr(examples, key))
        key = f"few_shot.examples.{mapping}"
        names = [label.name for label in self.labels]
        for name in names:
            if name not in examples.names:
                yield f"{key}: no {_EXAMPLE_MAPPINGS[mapping]} is given for {name!r}"
        for name in examples.names:
            if name not in names:
                yield f"{key}: unknown label {name!r}; {_format_choices(name, names)}"

    def _find_contrast_problems(self) -> Iterator[str]:
        """Yield a message unless the keys of ``model.server.contrast`` are the labels with texts.

        Yield it, too, for fewer than two such labels. Without ``contrast`` there is no message.
        """
        contrast = self.model.server.contrast if self.model.server else None
        if contrast is None:
            return
        names = [label.name for label in self.written_labels]
        if set(contrast.keys) != set(names) or len(names) < 2:
            yield (
                f"model.server.contrast.keys: gives keys for {', '.join(contrast.keys)}; "
                f"allowed: a key for each of two or more labels with texts: {', '.join(names)}"
            )

    rules = (
        refuse_labels(
            "labels.{0.name}.samples: 0, and no other label has it among its counter_labels; "
            "name it there, or remove the label",
            when=lambda recipe, label: (
                not label.written
                and not any(label.name in peer.counter_labels for peer in recipe.labels)
            ),
        ),
        _find_label_problems,
        refuse_labels(
            "labels.{0.name}.samples ({0.samples}) is above decoding.max_attempts "
            "({1.decoding.max_attempts})",
            when=lambda recipe, label: (label.samples or 0) > recipe.decoding.max_attempts,
        ),
        refuse_labels(
            "labels.{0.name}.decay_constant is of self-debiasing, but the label has no "
            "counter_labels: remove it",
            when=lambda recipe, label: (
                label.decay_constant is not None and not label.counter_labels
            ),
        ),
        refuse_labels(
            "labels.{0.name}: schema {1.schema_name} needs a score for every label",
            when=lambda recipe, label: (
                recipe.dataset_schema.scored and label.written and label.score is None
            ),
        ),
        refuse_labels(
            f"labels.{{0.name}}.instruction: {X1} must stand between quotation marks ({QUOTE}) "
            "where the model writes the source sentences: a sentence ends at the closing mark",
            when=lambda recipe, label: (
                recipe.source.is_generated
                and label.written
                and f"{QUOTE}{X1}{QUOTE}" not in label.instruction
            ),
        ),
        _find_example_problems,
        refuse(
            "postprocess.reject: wrong_language cannot be found where language is {0.language!r}; "
            f"allowed: {', '.join(sorted(RECOGNISED_LANGUAGES))}; else remove wrong_language",
            when=lambda recipe: (
                "wrong_language" in recipe.postprocess.reject
                and recipe.language not in RECOGNISED_LANGUAGES
            ),
        ),
        refuse(
            "verification scores a text under every label's prompt, which backend "
            "{0.model.backend!r} cannot do; use backend: engine, or remove the section",
            when=lambda recipe: recipe.verification and not recipe.model.is_local,
        ),
        refuse(
            "verification compares the prompts of labels: it needs two labels or more, "
            "all different",
            when=lambda recipe: (
                recipe.verification
                and len({label.instruction for label in recipe.written_labels})
                < max(2, len(recipe.written_labels))
            ),
        ),
        refuse(
            "verification.scores: soft needs a schema with scores, and {0.schema_name} has none",
            when=lambda recipe: (
                recipe.verification
                and recipe.verification.scores == "soft"
                and not recipe.dataset_schema.scored
            ),
        ),
        refuse(
            "verification.best_of {0.verification.best_of} asks for {0.most_texts_asked} texts of "
            "a source sentence and label, but decoding.max_attempts is {0.decoding.max_attempts}",
            when=lambda recipe: (
                recipe.verification and recipe.most_texts_asked > recipe.decoding.max_attempts
            ),
        ),
        refuse(
            "selection compares the texts of labels by their scores: it needs two scores",
            when=lambda recipe: (
                recipe.selection
                and len({label.score for label in recipe.written_labels} - {None}) < 2
            ),
        ),
        refuse(
            "selection needs a score for every label",
            when=lambda recipe: (
                recipe.selection and None in [label.score for label in recipe.written_labels]
            ),
        ),
        refuse(
            "selection and verification.best_of both choose among texts: remove one of them",
            when=lambda recipe: (
                recipe.selection and recipe.verification and recipe.verification.best_of > 1
            ),
        ),
        refuse(
            "selection.candidates {0.selection.candidates} asks for {0.most_texts_asked} texts of "
            "a source sentence and label, but decoding.max_attempts is {0.decoding.max_attempts}",
            when=lambda recipe: (
                recipe.selection and recipe.most_texts_asked > recipe.decoding.max_attempts
            ),
        ),
        _find_contrast_problems,
        refuse(
            "model.server.contrast: needs given source sentences, and the model writes these: "
            "remove it",
            when=lambda recipe: recipe.has_contrast and recipe.source.is_generated,
        ),
        refuse(
            "model.server.contrast: one request has a text for each label: give all the same "
            "samples",
            when=lambda recipe: (
                recipe.has_contrast
                and len({recipe.count_texts_asked(label) for label in recipe.written_labels}) > 1
            ),
        ),
        refuse(
            "source.columns names a column twice: {0.source.columns}",
            when=lambda recipe: len(set(recipe.source.columns)) < len(recipe.source.columns),
        ),
    )

    @property
    def deciding_keys(self) -> set[str]:
        """Those of ``Strict``, and ``language`` where texts in another language are rejected."""
        if "wrong_language" in self.postprocess.reject:
            return super().deciding_keys | {"language"}
        return super().deciding_keys

    @property
    def written_labels(self) -> tuple[Label, ...]:
        """The labels whose texts are generated."""
        return tuple(label for label in self.labels if label.written)

    @property
    def guided_labels(self) -> tuple[Label, ...]:
        """The labels whose texts are written with guidance."""
        return tuple(label for label in self.written_labels if self.get_decoding(label).guidance)

    def get_decoding(self, label: Label) -> Decoding:
        """Return the decoding of a label's texts.

        It is the recipe's ``decoding``, where the label's own ``LABEL_DECODING_KEYS`` replace the
        recipe's values. ``samples`` is 0 for a label without generated texts.
        """
        settings = {key: getattr(label, key) for key in LABEL_DECODING_KEYS}
        changes = {key: value for key, value in settings.items() if value is not None}
        return self.decoding.model_copy(update=changes)

    def count_texts_asked(self, label: Label) -> int:
        """Return the number of usable texts of a label per source sentence and prompt variant.

        With ``verification.best_of`` above 1 or ``selection`` it is larger than ``samples``, the
        number of texts that become rows. 0 for a label without generated texts.
        """
        best_of = self.verification.best_of if self.verification else 1
        if self.selection is not None:
            best_of = self.selection.candidates
        return self.get_decoding(label).samples * best_of

    @property
    def most_texts_asked(self) -> int:
        """The largest ``count_texts_asked`` of all labels with generated texts."""
        return max(self.count_texts_asked(label) for label in self.written_labels)

    @property
    def has_contrast(self) -> bool:
        """Whether one request asks for the texts of all labels."""
        return self.model.server is not None and self.model.server.contrast is not None

    @property
    def texts_per_source_sentence(self) -> int:
        """The number of usable texts of all labels for a source sentence and variant."""
        return sum(self.count_texts_asked(label) for label in self.written_labels)

    @property
    def dataset_schema(self) -> DatasetSchema:
        """The declared schema that the key ``schema`` names."""
        return SCHEMAS[self.schema_name]

    @property
    def has_script(self) -> bool:
        """Whether a loading script can serve the dataset: a module's name must have no dot."""
        return "." not in self.name

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The prompt variants that every source sentence gets.

        They are ``row_variants``, except with ``few_shot.rotate``. Then there is one variant for
        each shot count, because a hash of the source sentence chooses its example set. The
        variant's ``example_set`` 0 is a placeholder: each row names the set that was chosen.
        """
        if self.few_shot and self.few_shot.rotate:
            return tuple(Variant(shots, 0) for shots in self.few_shot.shots)
        return self.row_variants

    @property
    def row_variants(self) -> tuple[Variant, ...]:
        """The prompt variants of rows: one for each shot count and example set, in this order.

        Without few-shot examples there is one variant; for the shot count 0, too.
        """
        if self.few_shot is None:
            return (Variant(None, 0),)
        variants = []
        for shots in self.few_shot.shots:
            sets = self.few_shot.sets if shots else 1
            variants += [Variant(shots, number) for number in range(sets)]
        return tuple(variants)

    @property
    def configs(self) -> tuple[str, ...]:
        """The Hub configs of the dataset, the default first.

        With few-shot examples each shot count has configs of its own.
        """
        bases = (*self.dataset_schema.finished, "raw", "rejected")
        configs = []
        for shots in dict.fromkeys(variant.shots for variant in self.variants):
            configs += [format_config_name(base, shots) for base in bases]
        if self.source.is_generated:
            configs.append("sources")
        return tuple(configs)


def get_verified_columns(base: str, recipe: DatasetRecipe) -> dict[str, ColumnType]:
    """Return the columns that ``verification`` and ``selection`` add to the config ``base``.

    {} where they add none. ``cosine``: of the text to its source sentence, by the encoder of
    ``selection``; null for a text that was rejected before. ``log_likelihoods``: label → log p(text
    | label's prompt) in nats, summed over the tokens of the text and the end token.
    ``label_probability``: the softmax of these log-likelihoods at the label of the instruction;
    null for a sampled negative.
    """
    if base == "sources":
        return {}
    cosine: dict[str, ColumnType] = {}
    if recipe.selection is not None and not rows.is_finished(base):
        cosine[rows.COSINE] = "float32"
    if recipe.verification is None:
        return cosine
    probability: dict[str, ColumnType] = {rows.LABEL_PROBABILITY: "float32"}
    if not rows.is_finished(base):
        likelihoods = {label.name: "float32" for label in recipe.written_labels}
        return {rows.LOG_LIKELIHOODS: likelihoods, **probability, **cosine}
    # A row of another provenance, a triplet, joins texts of several labels.
    if get_finished_schema(base, recipe).provenance is PROVENANCE:
        return probability
    return {}


def get_finished_schema(config: str, recipe: DatasetRecipe) -> RowSchema:
    """Return the row schema of a finished config. Raises KeyError for any other config."""
    example_type = recipe.dataset_schema.finished[get_base_config(config)].example_type
    if example_type == "text":
        return rows.make_text_schema([label.name for label in recipe.written_labels])
    return rows.ROW_SCHEMAS[example_type]


def get_config_columns(config: str, recipe: DatasetRecipe) -> dict[str, ColumnType]:
    """Return the columns of a Hub config in order: ``raw``, ``rejected``, ``sources`` or finished.

    Raises KeyError for a config that the recipe's schema lacks.
    """
    base = get_base_config(config)
    if base in rows.UNFINISHED:
        columns = dict(rows.UNFINISHED[base])
    else:
        schema = get_finished_schema(config, recipe)
        columns = schema.columns | schema.provenance
    columns |= get_verified_columns(base, recipe)
    if recipe.few_shot and base != "sources":
        columns |= rows.EXAMPLE_SET
    return columns


def build_config_features(config: str, recipe: DatasetRecipe) -> "datasets.Features":
    """Return ``get_config_columns`` as features of ``datasets``."""
    return rows.build_features(get_config_columns(config, recipe))


START_OF_FINISHED_ENCODER = "as published"  # words for a finished encoder before more training
# the sentence's place in ``Encoder.prompt``, as in PromptEOL's paper
PROMPT_TEXT = "[X]"


NEEDS_REVISION = refuse(
    "{0.repo_id} needs a revision: pin it by a tag or a commit, e.g. revision: v1.0.0",
    when=lambda origin: origin.repo_id is not None and origin.revision is None,
)


class Pinned(Strict):
    """Base of a section that names a local path, or a Hub repository at a pinned revision."""

    repo_id: str | None = None  # on the Hub: ORG/NAME
    revision: str | None = None  # a commit or a tag of it
    path: str | None = None  # or on this disk

    @property
    def location(self) -> str:
        """The path, or ORG/NAME@REVISION: what commands take."""
        return self.path or f"{self.repo_id}@{self.revision}"

    rules: ClassVar[tuple[Rule, ...]] = (
        refuse(
            "give exactly one of path and repo_id",
            when=lambda origin: (origin.path is None) == (origin.repo_id is None),
        ),
        NEEDS_REVISION,
    )


class Vocabulary(Pinned):
    """The tokens that a static encoder keeps of its base, and the change of their vectors.

    ``repo_id`` or ``path`` names the corpus whose tokens are kept: a dataset as under ``datasets``,
    or a file (.txt: a text a line).
    """

    config: str = "default"
    split: str = "train"
    columns: Columns | None = None  # of the texts; left out: of the source sentences
    size: Positive | None = None  # the corpus's most frequent tokens; left out: all of its tokens
    # principal components of the vectors; left out: all, as they are
    dimensions: Positive | None = None
    # a: the vector of a token of frequency p is multiplied by a / (a + p); usual: 1e-3
    sif: PositiveFloat | None = None


class Encoder(Pinned):
    """The encoder before training, in stock modules of sentence-transformers.

    ``transformer``: all layers under ``pooling``; ``static``: the mean of the base's token
    embeddings; ``sentence-transformer``: a finished encoder with its own modules; for baselines
    also ``word-vectors``: the mean of the vectors in a text file (GloVe's form: a word and its
    numbers a line).
    """

    file: str | None = None  # word-vectors: the file in the repo (.txt, .vec, or either as .gz)
    modules: Literal["transformer", "static", "word-vectors", "sentence-transformer"] = (
        "transformer"
    )
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"  # how tokens become one vector
    max_seq_length: Positive = 64  # tokens, the prompt's included
    # around every sentence, e.g. PromptEOL's; [X] stands for the sentence. A finished encoder's
    # stands before the sentence, e.g. "query: [X]", and becomes its default prompt
    prompt: Annotated[
        str | None,
        refuse_value(
            f"the prompt must contain {PROMPT_TEXT}, the sentence's place, exactly once",
            when=lambda text: text is not None and text.count(PROMPT_TEXT) != 1,
        ),
    ] = None
    layers: Annotated[Positive | None, OPTION] = None  # the base's first so many; left out: all
    # static: the tokens of a corpus alone; left out: all
    vocabulary: Annotated[Vocabulary | None, OPTION] = None
    # of the base's weights; half needs lora
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Quantization | None = None  # as in a dataset recipe's model; needs lora
    license: Annotated[str, CARD_ONLY]  # of the base

    @property
    def start(self) -> str:
        """The name of the encoder before training, in tables, cards and reports."""
        if self.modules == "sentence-transformer":
            return START_OF_FINISHED_ENCODER
        return "before training"

    rules = (
        *Pinned.rules,
        refuse(
            "modules {0.modules} is a mean of embeddings: pooling {0.pooling} does not fit",
            when=lambda encoder: (
                encoder.modules in ("static", "word-vectors") and encoder.pooling != "mean"
            ),
        ),
        refuse(
            "a prompt needs modules: transformer or sentence-transformer, not {0.modules}",
            when=lambda encoder: (
                encoder.prompt is not None and encoder.modules in ("static", "word-vectors")
            ),
        ),
        refuse(
            "the prompt of a finished encoder ends in [X]: it stands before the sentence",
            when=lambda encoder: (
                encoder.modules == "sentence-transformer"
                and not (encoder.prompt or PROMPT_TEXT).endswith(PROMPT_TEXT)
            ),
        ),
        refuse(
            "layers are those of modules: transformer, not of {0.modules}",
            when=lambda encoder: encoder.layers is not None and encoder.modules != "transformer",
        ),
        refuse(
            "vocabulary is cut for modules: static, not for {0.modules}",
            when=lambda encoder: encoder.vocabulary is not None and encoder.modules != "static",
        ),
        refuse(
            "file names the vectors in a Hub repo: give it with repo_id and modules: word-vectors",
            when=lambda encoder: (
                (encoder.file is not None)
                != (encoder.modules == "word-vectors" and encoder.repo_id is not None)
            ),
        ),
    )


class Lora(Strict):
    """Low-rank adapters on a frozen base (Hu et al. 2022); keys mean the same as in peft."""

    r: Positive
    alpha: Positive  # the update is scaled by alpha / r
    dropout: Fraction = 0.0
    target_modules: tuple[str, ...] = ()  # names of linear layers; empty: all of them
    # what is published: the adapter alone, or whole weights
    release: Literal["adapter", "merged"] = "adapter"


class Spans(Strict):
    """The sampling of anchors and positives from a document (DeCLUTR section 3.2).

    Lengths are in units of ``unit``. ``anchor_placement: blocks``, as in the authors' code: each
    anchor lies in a block of ``max_length`` units, and the neighbours of a used block stay unused.
    ``anchor_placement: apart``, as in the paper: 2 * max_length units lie between two anchors.
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
    # where positives lie; any: as they fall
    strategy: Literal["any", "adjacent", "overlapping", "subsumed"] = "any"
    min_document: Positive = 2048  # shorter documents are passed over, and counted

    rules = (
        refuse(
            "min_length {0.min_length} is not below max_length {0.max_length}",
            when=lambda spans: spans.min_length >= spans.max_length,
        ),
        refuse(
            "min_document {0.min_document}: {0.anchors} anchors of up to {0.max_length} {0.unit} "
            "(anchor_placement {0.anchor_placement}) and their positives need {0.needed_units} "
            "{0.unit}",
            when=lambda spans: spans.min_document < spans.needed_units,
        ),
    )

    @property
    def needed_units(self) -> int:
        """The length of the shortest document in which all anchors and positives always fit.

        It is a number of words or tokens (``unit``). ``blocks``: each anchor takes its block and
        leaves a neighbour unused. ``apart``: each anchor takes ``max_length`` units, and twice as
        many lie between two anchors.
        """
        blocks = 2 * self.anchors if self.anchor_placement == "blocks" else 3 * self.anchors - 2
        # With 2 * min_length units beside an anchor, one of its sides has room for a positive. An
        # overlapping positive needs one unit outside its anchor.
        beside = {"adjacent": 2 * self.min_length, "overlapping": 1}.get(self.strategy, 0)
        return max(blocks * self.max_length, self.max_length + beside)


class Grades(Strict):
    """The score bands of positives and of hard negatives, bounds included.

    The defaults fit DINO's labels, smoothed or not: 1 is positive, 0.5 and 0 are negative.
    ``positives: itself``: each source sentence is its own positive under dropout, as in SimCSE, and
    generated texts are hard negatives.
    """

    positives: Literal["generated", "itself"] = "generated"
    positive_from: Annotated[float, Field(gt=0, le=1)] = 0.75
    negative_from: Annotated[float, Field(ge=0, lt=1)] = 0.0  # 0.4: the pairs of label 0.5 alone
    negative_to: Annotated[float, Field(ge=0, lt=1)] = 0.6  # 0.3: those of label 0 alone

    rules = (
        refuse(
            "negative_from <= negative_to < positive_from does not hold for {0.negative_from:g}, "
            "{0.negative_to:g}, {0.positive_from:g}",
            when=lambda grades: (
                not grades.negative_from <= grades.negative_to < grades.positive_from
            ),
        ),
    )


TAUGHT_PAIRS = "pairs.parquet"  # the file of a teacher's pairs, in a folder of its own


class Teacher(Pinned):
    """The encoder whose cosines are the scores of a dataset's pairs (``sts-dino teach``).

    ``model`` and ``endpoint`` name an encoder behind a server, in place of ``path`` or ``repo_id``.
    The API key is read from the variable OPENAI_API_KEY.
    """

    license: Annotated[str, CARD_ONLY]  # of the teacher
    # the name that the server knows the encoder by
    model: Annotated[str | None, OPTION] = None
    # the server's URL, without a password, as in OpenAI's API; a public host alone is published
    endpoint: Annotated[Address | None, OPTION] = None

    @property
    def location(self) -> str:
        """The path, ORG/NAME@REVISION, or NAME@URL: what ``sts-dino teach`` takes."""
        if self.endpoint is not None:
            return f"{self.model}@{self.endpoint}"
        return super().location

    @property
    def origin(self) -> str:
        """The teacher's name on a card: a published path, ORG/NAME, or the model and its host."""
        if self.endpoint is None:
            return name_origin(self.repo_id, self.path)
        return f"{self.model} of {find_public_host(self.endpoint) or 'a private server'}"

    rules = (
        refuse(
            "give exactly one of path, repo_id, and model with endpoint",
            when=lambda teacher: [teacher.path, teacher.repo_id, teacher.model].count(None) != 2,
        ),
        refuse(
            "model and endpoint name a server's encoder: give both or neither",
            when=lambda teacher: (teacher.model is None) != (teacher.endpoint is None),
        ),
        NEEDS_REVISION,
    )


# example types whose rows are made from the whole dataset
TYPES_MADE_FROM_ROWS = ("self-pair", "graded-pair", "graded-triplet")


class TrainingData(Pinned):
    """One training dataset of an encoder, with its example type and its loss.

    The rows come from a Hub dataset pinned by its revision, a local run directory, or a file with
    the example type's columns (``sts_dino.hub.text_files``; a .txt file has a text a line).

    Three example types are made from the rows of the dataset. ``self-pair``: each distinct text of
    ``columns`` with itself (unsupervised SimCSE, Gao et al. 2021). ``graded-pair`` and
    ``graded-triplet``, from scored pairs: the source sentence is the anchor, and ``grades`` gives
    the scores of positives and of hard negatives.
    """

    config: str
    split: str = "train"
    example_type: Literal[
        "sts",
        "triplet",
        "pair",
        "pair-class",
        "documents",
        "self-pair",
        "graded-pair",
        "graded-triplet",
    ]
    # only the rows of this set of few-shot examples
    example_set: Annotated[int, Field(ge=0)] | None = None
    # read while training, never whole in memory or on disk; needs arguments.max_steps
    streaming: bool = False
    # the data's names of the example type's columns, in its order; of self-pair: of its texts;
    # left out: the example type's own names; for self-pair the source sentences
    columns: Annotated[Columns | None, OPTION] = None
    # of a file that is not UTF-8, e.g. cp1252; left out: it is recognised
    encoding: Annotated[Encoding | None, OPTION] = None
    # graded-pair, graded-triplet; left out: its defaults
    grades: Annotated[Grades | None, OPTION] = None
    # no longer supported: training refuses it, since every row counts the same
    weights: Annotated[str | None, OPTION] = None
    loss: str
    loss_arguments: dict[str, str] = Field(default_factory=dict)  # under the loss class's own names
    # of GISTEmbedLoss and its cached form; left out: the base
    guide: Annotated[Encoder | None, OPTION] = None
    # the larger encoder whose cosines are the scores of the pairs
    teacher: Annotated[Teacher | None, OPTION] = None
    spans: Spans | None = None  # documents; left out: DeCLUTR's values
    license: Annotated[str | None, CARD_ONLY] = None  # of files and datasets that do not say theirs

    rules = (
        *Pinned.rules,
        UNUSED_ENCODING,
        refuse(
            "guide.vocabulary: a guide reads what the encoder reads: remove it",
            when=lambda data: data.guide is not None and data.guide.vocabulary is not None,
        ),
        refuse(
            "a teacher scores pairs: example_type sts, not {0.example_type}",
            when=lambda data: data.teacher is not None and data.example_type != "sts",
        ),
        refuse(
            "spans are cut from documents, example_type is {0.example_type}",
            when=lambda data: data.spans is not None and data.example_type != "documents",
        ),
        refuse(
            "grades are those of graded-pair and graded-triplet, example_type is {0.example_type}",
            when=lambda data: (
                data.grades is not None and not data.example_type.startswith("graded-")
            ),
        ),
        refuse(
            "grades.positives: itself needs hard negatives: use graded-triplet, or self-pair "
            "without any",
            when=lambda data: (
                data.example_type == "graded-pair"
                and data.grades is not None
                and data.grades.positives == "itself"
            ),
        ),
        refuse(
            "example_type {0.example_type} is made from all rows: it cannot be streamed",
            when=lambda data: data.example_type in TYPES_MADE_FROM_ROWS and data.streaming,
        ),
        refuse(
            "weights are divided by their mean, which is not known of a stream: remove streaming",
            when=lambda data: data.weights is not None and data.streaming,
        ),
        refuse(
            "weights are of rows, and example_type {0.example_type} has none of its own",
            when=lambda data: (
                data.weights is not None and data.example_type in ("self-pair", "documents")
            ),
        ),
    )


class ValidationData(Pinned):
    """Scored sentence pairs that choose the checkpoint.

    They are a split of a pinned Hub dataset with the columns sentence1, sentence2 and score (of any
    scale), or a file in the STS Benchmark's layout.
    """

    config: str | None = None
    split: str = "validation"


class SlantedTriangular(Strict):
    """The learning-rate schedule of Howard and Ruder 2018, equation 3.

    The rate rises from rate / ``ratio`` to rate over the first ``cut_fraction`` of the steps, and
    falls back over the remaining steps.
    """

    cut_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 32.0


class EvaluationTask(Strict):
    """One evaluation: a task, its split, and its file (None: the command's options name it)."""

    task: str  # e.g. stsb/cosine
    split: Literal["validation", "test"] = "test"
    path: str | None = None


# keys that only a recipe with datasets may have
TRAINING_KEYS = (
    "lora",
    "validation",
    "slanted_triangular",
    "token_dropout",
    "merge",
    "arguments",
    "limit",
    "control",
)


class ModelRecipe(Strict):
    """Everything that decides one published encoder.

    Without ``datasets`` it is a baseline: the base is scored untrained. ``arguments`` are trainer
    arguments under their upstream names.
    """

    kind: Literal["model"]  # what the recipe makes
    name: Name  # of the encoder, on the Hub, too
    # the same weights may be published anew, with another card
    version: Annotated[Version, CARD_ONLY]
    pretty_name: Annotated[str, CARD_ONLY]  # the card's title
    language: Annotated[Language, CARD_ONLY] = "en"  # of the texts it is for: ISO 639
    license: Annotated[str, CARD_ONLY]  # of the encoder: the base's, or what it allows
    # the card's introduction: paragraphs, `code` in backticks
    about: Annotated[str | None, CARD_ONLY, OPTION] = None
    base: Encoder  # the encoder before training
    lora: Lora | None = None  # adapters; left out: all weights are trained
    datasets: tuple[TrainingData, ...] = ()  # what it is trained on, and with which losses
    # choose the checkpoint; left out: the datasets' own validation splits do
    validation: tuple[ValidationData, ...] = ()
    batch_size: Positive = 32  # of one optimiser step, over all devices and accumulated steps
    slanted_triangular: SlantedTriangular | None = None  # instead of the trainer's schedule
    # share of each text's tokens left out whenever it is trained on
    token_dropout: Annotated[Fraction, OPTION] = 0.0
    # multiplies what the training changed in the base's weights; 1 is the trained encoder
    merge: Annotated[
        float | Literal["auto"] | None,
        OPTION,
        refuse_value(
            "multiplies what the training changed: above 0, up to 2, or auto",
            when=lambda factor: isinstance(factor, float) and not 0 < factor <= 2,
        ),
    ] = None
    arguments: dict[str, str] = {}  # of sentence-transformers' trainer, under their names there
    limit: Positive | None = None  # at most so many training rows per dataset, in file order
    threads: Positive | None = None  # torch threads; fixed because sums depend on it
    evaluation: Annotated[tuple[EvaluationTask, ...], SCORING_ONLY] = ()  # what it is scored on
    bootstrap_samples: Annotated[Positive, SCORING_ONLY] = 1000  # for intervals
    # trained and scored beside it
    control: Annotated[Literal["simcse"] | None, SCORING_ONLY, OPTION] = None
    # decides every draw; numpy takes no larger one
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42

    def _find_unused_training_keys(self) -> Iterator[str]:
        for key in TRAINING_KEYS:
            if getattr(self, key) and not self.datasets:
                yield f"{key} is for training, but the recipe names no datasets"

    rules = (
        _find_unused_training_keys,
        refuse(
            "base.modules word-vectors is for baselines: it is not trained",
            when=lambda recipe: recipe.base.modules == "word-vectors" and recipe.datasets,
        ),
        refuse(
            "lora adapts the layers of a transformer, base.modules is {0.base.modules}",
            when=lambda recipe: recipe.lora and recipe.base.modules != "transformer",
        ),
        refuse(
            "base.dtype {0.base.dtype} needs lora: half precision loses small updates "
            "(arguments.bf16 trains float32 weights in mixed precision)",
            when=lambda recipe: (
                recipe.base.dtype != "float32" and recipe.datasets and not recipe.lora
            ),
        ),
        refuse(
            "base.quantization needs lora: rounded weights are not trained",
            when=lambda recipe: recipe.base.quantization and not recipe.lora,
        ),
        refuse(
            "a released adapter names its base by Hub id: give base.repo_id, or "
            "lora.release: merged",
            when=lambda recipe: recipe.releases_adapter and recipe.base.repo_id is None,
        ),
        refuse(
            "a released adapter is loaded on its whole base: remove base.layers, or "
            "lora.release: merged",
            when=lambda recipe: recipe.releases_adapter and recipe.base.layers is not None,
        ),
        refuse(
            "merge: a released adapter has no weights of the base to merge with: give "
            "lora.release: merged",
            when=lambda recipe: recipe.releases_adapter and recipe.merge,
        ),
        refuse(
            "merge: base.vocabulary cuts the base, so its own weights are gone: "
            "remove one of the two",
            when=lambda recipe: recipe.merge and recipe.base.vocabulary,
        ),
        refuse(
            "datasets: documents are trained on alone: their spans are not pairs",
            when=lambda recipe: recipe.has_documents and len(recipe.datasets) > 1,
        ),
        refuse(
            "token_dropout is for texts, and documents are cut into spans: remove one of the two",
            when=lambda recipe: recipe.has_documents and recipe.token_dropout,
        ),
        refuse(
            "control: simcse is trained on source sentences, and documents have none: remove it",
            when=lambda recipe: recipe.has_documents and recipe.control,
        ),
    )

    @property
    def releases_adapter(self) -> bool:
        """Whether the trained adapter alone is published, without its base."""
        return self.lora is not None and self.lora.release == "adapter"

    @property
    def has_documents(self) -> bool:
        """Whether a dataset holds documents, from which spans are cut."""
        return any(dataset.example_type == "documents" for dataset in self.datasets)

    @property
    def is_baseline(self) -> bool:
        """Whether nothing is trained, so that the evaluation scores the base."""
        return not self.datasets

"""The sections of a dataset recipe: where first texts come from, what writes, how it is asked, what becomes of it."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, field_validator, model_validator

from hub import safe_yaml
from hub.contract.sections.base import (
    CARD_ONLY,
    OPTION,
    PLACE_ONLY,
    QUOTE,
    SPEED_ONLY,
    X1,
    Fraction,
    NotNegative,
    Positive,
    Share,
    Strict,
    TextEnd,
    check_parts,
)


class Source(Strict):
    """Where first texts come from: a file, a pinned Hub dataset, or the generator itself (``model``)."""

    kind: Literal["file", "hub", "model"]  # file: on this disk; hub: a pinned dataset; model: the generator writes them
    path: str | None = None  # .txt (one text a line), .tsv, .csv, .jsonl or .parquet; with kind hub: a file of the repo
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
    license: Annotated[str, CARD_ONLY]  # of the first texts

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
        check_parts(self)
        return self


class Server(Strict):
    """An OpenAI-compatible server (``backend: openai``). The key is read from OPENAI_API_KEY, never from a recipe."""

    base_url: Annotated[
        str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"), PLACE_ONLY
    ]  # no password; not published
    model: str  # the name the server knows the model by
    dialect: Literal["openai", "vllm", "transformers", "llamacpp"] = "openai"  # generation.servers.dialects
    logprobs: bool = False  # ask for the tokens' log-probabilities; some servers refuse
    concurrency: Annotated[Positive, SPEED_ONLY] = 8  # requests under way at a time
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False), SPEED_ONLY] = (
        60.0  # seconds that a server may be silent
    )
    max_retries: Annotated[int, Field(ge=0), SPEED_ONLY] = 6  # of a request that failed
    price_per_million: Annotated[tuple[NotNegative, NotNegative] | None, SPEED_ONLY] = (
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

    backend: Literal["engine", "openai"] = "engine"  # engine: in this process, with self-debiasing; openai: a server
    path: str | None = None  # a folder of transformers
    repo_id: str | None = None  # openai: optional, the id the card names
    revision: str | None = None  # a commit or a tag of repo_id
    gguf_file: GgufName | None = None  # its weights are de-quantised to dtype
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"  # auto: bfloat16 where it is native
    device: str = "cpu"  # as torch calls it: cpu, cuda, cuda:1
    device_map: str | None = None  # transformers' (auto, balanced ...), instead of device
    quantization: Quantization | None = None  # arguments of transformers' config class
    chat_template: bool = False  # the prompt as a user's turn, the answer opened with the quotation mark
    server: Server | None = None  # of backend openai
    threads: Positive | None = None  # torch threads; fixed in the recipe because floating-point sums depend on it
    license: Annotated[str, CARD_ONLY]  # of the model

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


Meaning = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\r\n]*$")]


class Label(Strict):
    """One label: its instruction (with the ``<X1>`` placeholder) and the labels its texts must not fit.

    ``decay_constant``, ``guidance`` and ``samples`` stand in place of those of ``decoding``. With ``samples`` 0 the
    label is never written: its prompt is a counter-prompt of other labels, and nothing else.
    """

    name: str  # of the label, in rows and files
    score: Annotated[float, Field(ge=0, le=1)] | None = None  # schema sts
    instruction: str  # the prompt, with <X1> for the first text, up to the quotation mark that opens the text
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
        """The instruction without task and first text, e.g. ``Sentence 2: "``: its last piece after ``<X1>``.

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
    text_end: TextEnd = "quotation_mark"  # where a text ends: generation.decoding.endings (Auto-NLI's code: line)
    guidance: Annotated[NotNegative, OPTION] = 0.0  # γ; 0 = off


class Decoding(DecodingParameters):
    """How second texts are decoded, how many are wanted and how often each is tried."""

    samples: Positive = 2  # texts wanted per (x1, label)
    max_attempts: Positive = 5  # for each text wanted, at most
    batch_size: Positive | None = None  # model rows decoded together; None: from the free memory

    @model_validator(mode="after")
    def _attempts(self) -> "Decoding":
        if self.max_attempts < self.samples:
            raise ValueError(f"max_attempts ({self.max_attempts}) is below samples ({self.samples})")
        return self


Rejection = Literal[
    "example_copy", "prompt_words", "prompt_echo", "control_characters", "wrong_language", "too_long"
]  # names of hub.contract.reasons


class Postprocess(Strict):
    """From raw rows to training rows (DINO section 4 and the original's script)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.2  # 0 → ε/2, 1 → 1 - ε/2
    sampled_negatives: Annotated[int, Field(ge=0)] = 2  # per x1, score 0
    max_per_label: Positive = 2  # texts kept for a first text and label
    equal_triplets: bool = (
        True  # schema nli: whether a triplet whose positive is its negative stays, as in Auto-NLI's code
    )
    reject: tuple[Rejection, ...] = ("example_copy", "prompt_words")  # what is no data: docs/recipes.md
    validation_fraction: Fraction = 0.1  # of the first texts
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

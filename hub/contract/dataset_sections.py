"""Sections of a dataset recipe: source, language model, labels, examples, decoding, verification, postprocessing."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, field_validator

from hub.contract.kinds import BACKENDS, SOURCES, BackendFacts, BackendName, SourceFacts, SourceName
from hub.contract.sections import (
    CARD_ONLY,
    OPTION,
    PLACE_ONLY,
    QUOTE,
    SPEED_ONLY,
    X1,
    Fraction,
    NotNegative,
    Number,
    Positive,
    Share,
    Strict,
    TextEnd,
    part_problems,
)
from hub.untrusted import load_yaml

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
    license: Annotated[str, CARD_ONLY]  # of the source sentences

    @property
    def facts(self) -> SourceFacts:
        """What this kind of source needs and gives."""
        return SOURCES[self.kind]

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        missing = [key for key in self.facts.needs if getattr(self, key) is None]
        if self.kind == "hub" and not (self.path or self.columns):
            missing.append("columns (or the path of a text file in the repo)")
        if missing:
            yield f"a source of kind {self.kind} needs {', '.join(missing)}"
        if self.facts.generated and self.share < 1:
            yield "share chooses among rows that are read, but the model writes these: set limit alone"
        yield from part_problems(self)


class Server(Strict):
    """An OpenAI-compatible server (``backend: openai``). The key is read from OPENAI_API_KEY, never from a recipe."""

    base_url: Annotated[
        str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$"), PLACE_ONLY
    ]  # no password; not published
    model: str  # the name the server knows the model by
    dialect: Literal["openai", "vllm", "transformers", "llamacpp"] = "openai"  # generation.backends.dialects
    logprobs: bool = False  # ask for the tokens' log-probabilities; some servers refuse
    concurrency: Annotated[Positive, SPEED_ONLY] = 8  # requests under way at a time
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False), SPEED_ONLY] = (
        60.0  # seconds that a server may be silent
    )
    max_retries: Annotated[int, Field(ge=0), SPEED_ONLY] = 6  # of a request that failed
    price_per_million: Annotated[tuple[NotNegative, NotNegative] | None, SPEED_ONLY] = (
        None  # prompt, completion tokens; in its currency
    )

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
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
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"  # auto: bfloat16 where it is native
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

    @field_validator("backend", mode="before")
    @classmethod
    def _known_backend(cls, name: object) -> object:
        if name == "vllm":
            raise ValueError(
                "vLLM no longer runs in this process: serve the model (vllm serve) and give backend: openai with "
                "server.dialect: vllm (docs/backends.md)"
            )
        return name

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
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

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        yield from super().problems()
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
    equal_triplets: bool = (
        True  # schema nli: whether a triplet whose positive is its negative stays, as in Auto-NLI's code
    )
    reject: tuple[Rejection, ...] = ("example_copy", "prompt_words")  # what is no data: docs/recipes.md
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

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        given = [key for key in ("labels", "texts", "scores") if getattr(self, key)]
        if self.kind in ("hand", "own"):
            columns = ("premise", "hypothesis", "label")
            unused = given + [key for key in columns if getattr(self, key) != type(self).model_fields[key].default]
            if unused:
                yield f"examples of kind {self.kind} name their columns themselves: remove {unused[0]}"
        elif len(given) != 1:
            yield (
                "give either labels (the values of a label column) or texts (a column for every label) or scores "
                "(a band for every label)"
            )
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
        yield from part_problems(self)

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
    rotate: Annotated[bool, OPTION] = (
        False  # each source sentence has one set, chosen by a hash, instead of all of them
    )

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
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

    def problems(self) -> Iterator[str]:
        """What is wrong with the keys taken together, one message each."""
        if self.calibrated and not (self.drop or self.scores == "soft"):
            yield "calibrated is for comparing labels: add drop: true or scores: soft, or remove it"
        if self.temperature != 1.0 and self.scores != "soft":
            yield "temperature is of soft scores: add scores: soft, or remove it"

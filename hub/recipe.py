"""Recipes: frozen, strict models of what is to be made. One recipe file is one published artefact.

Every YAML scalar is read as text and typed by the model, so none of YAML's surprises (``2e-5`` a string, ``no`` False,
a key ``0.5`` a float, ``1.10`` = 1.1) reaches a recipe. Unknown keys are refused with the nearest valid one.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hub.errors import InputError, nearest

X1 = "<X1>"
QUOTE = '"'

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=96)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Base of every recipe section: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Source(Strict):
    """Where first texts come from: a file, a pinned Hub dataset, or the generator itself (``model``)."""

    kind: Literal["file", "hub", "model"]
    path: str | None = None  # file: .txt (one text a line), .tsv, .csv, .jsonl or .parquet
    column: str | None = None  # every file kind but .txt, and hub
    repo_id: str | None = None
    revision: str | None = None
    config: str | None = None
    split: str = "train"
    limit: Positive | None = None  # at most so many unique texts, in file order; the number to write for `model`
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9  # model: nucleus of x1, no top-k (DINO section 4)
    description: str  # for the card: what the texts are
    license: str  # for the card

    @model_validator(mode="after")
    def _complete(self) -> "Source":
        needed = {"file": ("path",), "hub": ("repo_id", "revision", "column"), "model": ("limit",)}[self.kind]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"a source of kind {self.kind} needs {', '.join(missing)}")
        return self


class LanguageModel(Strict):
    """The generator: a Hub id with a pinned revision, or a local folder."""

    path: str | None = None
    repo_id: str | None = None
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    threads: Positive | None = None  # torch threads; fixed in the recipe because floating-point sums depend on it
    license: str

    @model_validator(mode="after")
    def _one_origin(self) -> "LanguageModel":
        if (self.path is None) == (self.repo_id is None):
            raise ValueError("give exactly one of path and repo_id")
        if self.repo_id is not None and self.revision is None:
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
    batch_size: Positive = 288  # texts whose prompts are computed together

    @model_validator(mode="after")
    def _attempts(self) -> "Decoding":
        if self.max_attempts < self.samples:
            raise ValueError(f"max_attempts ({self.max_attempts}) is below samples ({self.samples})")
        return self


class Postprocess(Strict):
    """From raw rows to training rows (DINO section 4 and the original's script)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.2  # 0 → ε/2, 1 → 1 - ε/2
    sampled_negatives: Annotated[int, Field(ge=0)] = 2  # per x1, score 0
    max_per_label: Positive = 2
    validation_fraction: Fraction = 0.1


class DatasetRecipe(Strict):
    """Everything that decides the bytes of one published dataset."""

    kind: Literal["dataset"]
    name: Name
    version: Version
    form: Literal["sts", "nli"]
    pretty_name: str
    language: str = "en"
    license: str
    source: Source
    model: LanguageModel
    labels: Annotated[tuple[Label, ...], Field(min_length=1)]
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

    @property
    def configs(self) -> tuple[str, ...]:
        """Hub configs of the dataset, the default first."""
        finished = ("postprocessed",) if self.form == "sts" else ("triplet", "pair-class")
        return (*finished, "raw", "rejected") + (("sources",) if self.source.kind == "model" else ())


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


class _TextLoader(yaml.SafeLoader):
    """SafeLoader that leaves every scalar but null as text, and refuses a key that stands twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the attribute belongs to yaml
        first: [(tag, pattern) for tag, pattern in pairs if tag == "tag:yaml.org,2002:null"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} stands twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


Recipe = TypeVar("Recipe", DatasetRecipe, ModelRecipe)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, all scalars as text. Raises InputError naming file and line."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _TextLoader)  # noqa: S506 - a SafeLoader with fewer types
    except FileNotFoundError as error:
        raise InputError(path, "no such recipe", hint="look in recipes/") from error
    except IsADirectoryError as error:
        raise InputError(path, "is a folder, not a recipe file", hint="look in recipes/") from error
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 (byte {error.start})", hint="save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise InputError(f"{path}:{line}", f"not valid YAML: {error.problem}") from error
    if not isinstance(tree, dict):
        raise InputError(path, "a recipe is a mapping of keys to values")
    return tree


def apply_overrides(tree: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """``tree`` with ``a.b=c`` settings applied (list items by index). Raises InputError for a malformed one."""
    tree = json.loads(json.dumps(tree))
    for setting in overrides:
        path, equals, text = setting.partition("=")
        if not equals or not all(path.split(".")):
            raise InputError(f"--set {setting}", "cannot be read", allowed="KEY.KEY=VALUE")
        try:
            value = yaml.load(text, _TextLoader)  # noqa: S506
        except yaml.YAMLError as error:
            raise InputError(f"--set {setting}", "the value is not valid YAML") from error
        *parents, last = path.split(".")
        node: Any = tree
        for key in parents:
            node = _child(node, key, setting)
        _assign(node, last, value, setting)
    return tree


def _child(node: Any, key: str, setting: str) -> Any:
    if isinstance(node, dict):
        return node.setdefault(key, {})
    return node[_index(node, key, setting)]


def _assign(node: Any, key: str, value: Any, setting: str) -> None:
    if isinstance(node, dict):
        node[key] = value
    else:
        node[_index(node, key, setting)] = value


def _index(node: Any, key: str, setting: str) -> int:
    if isinstance(node, list) and key.isdigit() and int(key) < len(node):
        return int(key)
    raise InputError(f"--set {setting}", f"{key!r} does not lead anywhere")


def load_recipe(path: Path, model: type[Recipe], overrides: list[str] | None = None) -> Recipe:
    """Read, override and check a recipe. Raises InputError that names ``file:key``, the value and what is allowed."""
    tree = apply_overrides(read_yaml(path), overrides or [])
    kind = model.__name__.removesuffix("Recipe").lower()
    if tree.get("kind") not in (None, kind):
        raise InputError(f"{path}:kind", f"this command takes a {kind} recipe, not {tree['kind']!r}")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _input_error(path, model, tree, error) from error


def _input_error(path: Path, model: type[BaseModel], tree: Any, error: ValidationError) -> InputError:
    """The first problem of a ValidationError, in the project's form (misspelt keys before what they leave missing)."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    keys = [str(part) for part in first["loc"]]
    place = f"{path}:{'.'.join(keys)}" if keys else str(path)
    if first["type"] == "extra_forbidden":
        valid = _valid_keys(model, keys[:-1])
        guess = nearest(keys[-1], valid)
        hint = f"did you mean {guess!r}?" if guess else None
        return InputError(place, "unknown key", allowed=", ".join(sorted(valid)), hint=hint)
    if first["type"] == "missing":
        return InputError(place, "missing")
    message = re.sub(r"^Value error, ", "", first["msg"])
    found = "" if isinstance(first["input"], (dict, list)) else f" (found {first['input']!r})"
    return InputError(place, message + found)


def _valid_keys(model: type[BaseModel], keys: list[str]) -> list[str]:
    """Field names of the section at ``keys``, following nested models through tuples and unions."""
    for key in keys:
        if key.isdigit():
            continue
        annotation: Any = model.model_fields[key].annotation
        while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            candidates = [a for a in annotation.__args__ if a is not Ellipsis and a is not type(None)]
            annotation = candidates[0]
        model = annotation
    return list(model.model_fields)


def resolved(recipe: DatasetRecipe | ModelRecipe) -> str:
    """The recipe with every default written out, as YAML: what is saved inside the artefact."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def fingerprint(recipe: DatasetRecipe | ModelRecipe, inputs: dict[str, str]) -> str:
    """SHA-256 over the resolved recipe and the hashes of its input files: what decides the artefact's bytes."""
    text = json.dumps({"recipe": recipe.model_dump(mode="json"), "inputs": inputs}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""Base checkpoints: the pretrained model of a recipe, on this disk or downloaded from the Hub of HF_ENDPOINT."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hub.client.connection import reading
from hub.client.offline import commit_of
from hub.contract.recipe import DECIDING, Encoder, TrainingData
from hub.durable import sha256_file
from hub.errors import InputError
from hub.model_limits import require_ids
from hub.untrusted import NO_CODE, read_object, reading_model, require_modules, upstream_of

if TYPE_CHECKING:
    from training.data.training_sets import TrainingSet

BASE_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WORD_FILES = (".txt", ".vec", ".txt.gz", ".vec.gz")


@dataclass(frozen=True)
class Base:
    """A base on this disk: its folder (word vectors: the file), its Hub commit (None: local), a hash over its files.

    ``corpus``: the distinct texts whose tokens are kept of its vocabulary (None: all are).
    """

    folder: Path
    commit: str | None
    sha256: str
    corpus: TrainingSet | None = field(default=None, repr=False)

    def describe(self, spec: Encoder) -> dict[str, object]:
        """Its provenance entry for the manifest."""
        described = spec.model_dump(mode="json", context=DECIDING, exclude_none=True)
        return {**described, "commit": self.commit, "sha256": self.sha256, **upstream_of(spec.path)}


def find_base(spec: Encoder, key: str = "base") -> Base:
    """The base that a recipe names under ``key``, downloaded when it is on the Hub.

    Raises InputError when it is absent or not what ``spec.modules`` takes, RunError when the Hub cannot be read.
    """
    commit, folder = _fetched(spec) if spec.repo_id is not None else (None, Path(spec.path or ""))
    place = f"{key}: {spec.repo_id or spec.path}"
    corpus = None
    if spec.modules == "word-vectors":
        if not folder.is_file() or not folder.name.endswith(WORD_FILES):
            raise InputError(place, f"{folder.name} is not a file of word vectors", allowed=", ".join(WORD_FILES))
        return Base(folder, commit, sha256_file(folder))
    if not folder.is_dir():
        raise InputError(place, "no such folder", hint=f"run from the repository root, or fix {key}.path")
    if spec.modules == "sentence-transformer":
        require_modules(folder, place)
        if (folder / "config.json").is_file():
            _check_ids(folder, place)
        return Base(folder, commit, _hash(folder, "**/") + _adapted(folder, place))
    if (folder / ADAPTER_CONFIG).is_file():
        raise InputError(place, "is an adapter", allowed="the model it is for, or its merged form")
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise InputError(place, "is not a transformers model", allowed="a folder with config.json and *.safetensors")
    if spec.vocabulary is not None:
        from training.data.training_sets import load  # imports its libraries, which takes seconds

        data = spec.vocabulary.model_dump(include={"repo_id", "revision", "path", "config", "split", "columns"})
        corpus = load(TrainingData(**data, example_type="self-pair", loss="none"), f"{key}.vocabulary")
    _check_ids(folder, place)
    return Base(folder, commit, _hash(folder), corpus)


def _check_ids(folder: Path, place: str) -> None:
    """Raise InputError where the tokenizer gives a text ids beyond the embedding."""
    from transformers import AutoConfig, AutoTokenizer

    with reading_model(place):
        config, tokenizer = (one.from_pretrained(folder, **NO_CODE) for one in (AutoConfig, AutoTokenizer))
        used = [*tokenizer("A text.").input_ids, tokenizer.pad_token_id]
    require_ids(tokenizer, config.get_text_config().vocab_size, place, used)


def _fetched(spec: Encoder) -> tuple[str | None, Path]:
    """The commit that the pinned revision stands for now, and its files on this disk."""
    from huggingface_hub import hf_hub_download, snapshot_download

    assert spec.repo_id is not None
    with reading(spec.repo_id, spec.revision):
        commit = commit_of(spec.repo_id, spec.revision, "model")
        if spec.modules == "word-vectors":
            return commit, Path(hf_hub_download(spec.repo_id, spec.file or "", revision=commit))
        return commit, Path(snapshot_download(spec.repo_id, revision=commit, allow_patterns=list(BASE_FILES)))


def _adapted(folder: Path, place: str) -> str:
    """A finished encoder that is an adapter: its base is fetched too, at main, where sentence-transformers reads it.

    Returns what it adds to the hash: the base's commit. A finished encoder with weights of its own adds nothing.
    """
    config = folder / ADAPTER_CONFIG
    if not config.is_file():
        return ""
    repo_id = read_object(config, place).get("base_model_name_or_path")
    if not isinstance(repo_id, str) or not repo_id or Path(repo_id).is_absolute():
        raise InputError(place, f"is an adapter for {repo_id!r}, which is not on the Hub", allowed="its merged form")
    from huggingface_hub import snapshot_download

    with reading(repo_id, "main"):
        return Path(snapshot_download(repo_id, allow_patterns=list(BASE_FILES))).name


def _hash(folder: Path, below: str = "") -> str:
    """SHA-256 over names and contents of the model's files (not of readmes or logs beside them)."""
    found = (path for pattern in BASE_FILES for path in folder.glob(below + pattern))
    files = sorted({path.relative_to(folder).as_posix(): path for path in found}.items())
    return hashlib.sha256("".join(f"{name} {sha256_file(path)}\n" for name, path in files).encode()).hexdigest()

"""Base checkpoints: the pretrained model of a recipe, on this disk or downloaded from the Hub."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.client.fetch import resolve_commit
from sts_dino.hub.contract.packaged import describe_packaged_model
from sts_dino.hub.contract.recipe import DECIDING, Encoder, TrainingData
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import (
    NO_CODE,
    convert_model_errors,
    read_json_object,
    read_upstream,
    require_ids,
    require_modules,
)

if TYPE_CHECKING:
    from sts_dino.training.data.training_sets import TrainingSet

BASE_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WORD_FILES = (".txt", ".vec", ".txt.gz", ".vec.gz")
OF_CORPUS = {"repo_id", "revision", "path", "config", "split", "columns"}  # keys of a vocabulary


@dataclass(frozen=True)
class Base:
    """A base on this disk: its folder (word vectors: the file), Hub commit and a hash of its files.

    ``commit``: None of a local base. ``corpus``: the distinct texts whose tokens are kept of its
    vocabulary (None: all are).
    """

    folder: Path
    commit: str | None
    sha256: str
    corpus: TrainingSet | None = field(default=None, repr=False)

    def describe(self, spec: Encoder) -> dict[str, object]:
        """Return its provenance entry for the manifest."""
        described = spec.model_dump(mode="json", context=DECIDING, exclude_none=True)
        origin = read_upstream(spec.path)
        if spec.path and not origin:
            origin = describe_packaged_model(self.folder)
        return {
            **described,
            "commit": self.commit,
            "sha256": self.sha256,
            **origin,
        }


def find_base(spec: Encoder, key: str = "base") -> Base:
    """Find the base that a recipe names under ``key``; download it when it is on the Hub.

    Raises InputError when it is absent or not what ``spec.modules`` takes, RunError when the Hub
    cannot be read.
    """
    where = f"{key}: {spec.repo_id or spec.path}"
    commit = None
    folder = Path(spec.path or "")
    if spec.repo_id is not None:
        commit, folder = _fetch_base(spec, spec.repo_id)

    # A file of word vectors.
    if spec.modules == "word-vectors":
        if not folder.is_file() or not folder.name.endswith(WORD_FILES):
            raise InputError(
                where, f"{folder.name} is not a file of word vectors", allowed=", ".join(WORD_FILES)
            )
        return Base(folder, commit, hash_file(folder))
    if not folder.is_dir():
        raise InputError(
            where, "no such folder", hint=f"run from the repository root, or fix {key}.path"
        )

    # A finished encoder with modules of its own.
    if spec.modules == "sentence-transformer":
        require_modules(folder, where)
        if (folder / "config.json").is_file():
            _check_ids(folder, where)
        return Base(folder, commit, _hash_files(folder, "**/") + _fetch_adapter_base(folder, where))

    # A model of transformers.
    if (folder / ADAPTER_CONFIG).is_file():
        raise InputError(where, "is an adapter", allowed="the model it is for, or its merged form")
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise InputError(
            where,
            "is not a transformers model",
            allowed="a folder with config.json and *.safetensors",
        )
    corpus = None
    if spec.vocabulary is not None:
        # its libraries take seconds
        from sts_dino.training.data.training_sets import load_training_set

        data = spec.vocabulary.model_dump(include=OF_CORPUS)
        texts = TrainingData(**data, example_type="self-pair", loss="none")
        corpus = load_training_set(texts, f"{key}.vocabulary")
    _check_ids(folder, where)
    return Base(folder, commit, _hash_files(folder), corpus)


def _check_ids(folder: Path, where: str) -> None:
    """Raise InputError where the tokenizer gives a text ids beyond the embedding."""
    from transformers import AutoConfig, AutoTokenizer

    with convert_model_errors(where):
        config = AutoConfig.from_pretrained(folder, **NO_CODE)
        tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
        used = [*tokenizer("A text.").input_ids, tokenizer.pad_token_id]
    require_ids(tokenizer, config.get_text_config().vocab_size, where, used)


def _fetch_base(spec: Encoder, repo_id: str) -> tuple[str | None, Path]:
    """Return the commit that the pinned revision stands for now, and its files on this disk."""
    from huggingface_hub import hf_hub_download, snapshot_download

    with convert_read_errors(repo_id, spec.revision):
        commit = resolve_commit(repo_id, spec.revision, "model")
        if spec.modules == "word-vectors":
            path = hf_hub_download(repo_id, spec.file or "", revision=commit)
        else:
            path = snapshot_download(repo_id, revision=commit, allow_patterns=list(BASE_FILES))
    return commit, Path(path)


def _fetch_adapter_base(folder: Path, where: str) -> str:
    """Fetch the base of a finished encoder that is an adapter; return the base's commit.

    It is fetched at main, where sentence-transformers reads it. The commit is part of the hash; a
    finished encoder with weights of its own adds nothing.
    """
    config = folder / ADAPTER_CONFIG
    if not config.is_file():
        return ""
    repo_id = read_json_object(config, where).get("base_model_name_or_path")
    if not isinstance(repo_id, str) or not repo_id or Path(repo_id).is_absolute():
        raise InputError(
            where,
            f"is an adapter for {repo_id!r}, which is not on the Hub",
            allowed="its merged form",
        )
    from huggingface_hub import snapshot_download

    with convert_read_errors(repo_id, "main"):
        return Path(snapshot_download(repo_id, allow_patterns=list(BASE_FILES))).name


def _hash_files(folder: Path, below: str = "") -> str:
    """Return the SHA-256 over names and contents of the model's files (not of readmes or logs)."""
    paths: dict[str, Path] = {}
    for pattern in BASE_FILES:
        for path in folder.glob(below + pattern):
            paths[path.relative_to(folder).as_posix()] = path
    lines = [f"{name} {hash_file(path)}\n" for name, path in sorted(paths.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()

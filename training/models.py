"""The student before training: the recipe's base under stock pooling, or the base's input embeddings alone.

Only stock sentence-transformers modules and safetensors are used, so whoever loads the result needs no code of ours.
Padding is on the right: with left padding a GPT-2 student would see other positions in a batch than alone.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import HfApi, snapshot_download
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from transformers import PreTrainedTokenizerFast

from hub.errors import InputError
from hub.recipe import Encoder
from hub.remote import reading
from hub.shards import sha256_file

BASE_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")


@dataclass(frozen=True)
class Base:
    """A base model on this disk: its folder, its Hub commit (None: local) and a hash over its files."""

    folder: Path
    commit: str | None
    sha256: str

    def describe(self, encoder: Encoder) -> dict[str, object]:
        """Its provenance entry for the manifest."""
        return {**encoder.model_dump(mode="json", exclude_none=True), "commit": self.commit, "sha256": self.sha256}


def find_base(encoder: Encoder) -> Base:
    """The base that a recipe names, downloaded when it is a Hub model.

    Raises InputError when it is absent or has no safetensors weights, RunError when the Hub cannot be read.
    """
    commit = None
    folder = Path(encoder.path or "")
    if encoder.repo_id is not None:
        with reading(encoder.repo_id, encoder.revision):
            commit = HfApi().model_info(encoder.repo_id, revision=encoder.revision).sha
            folder = Path(snapshot_download(encoder.repo_id, revision=commit, allow_patterns=list(BASE_FILES)))
    place = f"base: {encoder.repo_id or encoder.path}"
    if not folder.is_dir():
        raise InputError(place, "no such folder", hint="run from the repository root, or fix base.path")
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise InputError(place, "is not a transformers model", allowed="a folder with config.json and *.safetensors")
    return Base(folder, commit, _hash(folder))


def _hash(folder: Path) -> str:
    """SHA-256 over names and contents of the model's files (not of readmes or logs beside them)."""
    files = sorted({path.name: path for pattern in BASE_FILES for path in folder.glob(pattern)}.items())
    return hashlib.sha256("".join(f"{name} {sha256_file(path)}\n" for name, path in files).encode()).hexdigest()


def build_student(encoder: Encoder, base: Base) -> SentenceTransformer:
    """The untrained encoder in float32. Raises InputError when transformers cannot load the base."""
    try:
        transformer = Transformer(
            str(base.folder),
            max_seq_length=encoder.max_seq_length,
            model_kwargs={"dtype": "float32", "use_safetensors": True},
            processor_kwargs={"padding_side": "right"},
        )
    except (OSError, ValueError) as error:
        problem = f"cannot be loaded: {str(error).splitlines()[0]}"
        raise InputError(f"base: {encoder.repo_id or encoder.path}", problem) from error
    _set_padding(transformer, encoder)
    if encoder.modules == "static":
        return SentenceTransformer(modules=[_static(transformer, encoder)], similarity_fn_name="cosine")
    pooling = Pooling(transformer.get_embedding_dimension(), encoder.pooling)
    return SentenceTransformer(modules=[transformer, pooling], similarity_fn_name="cosine")


def _static(transformer: Transformer, encoder: Encoder) -> StaticEmbedding:
    """The mean of the base's input embeddings: no layer of the base is kept, and word order does not count."""
    if not isinstance(transformer.tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"base: {encoder.repo_id or encoder.path}", "a static student needs a fast tokenizer")
    tokenizer = transformer.tokenizer.backend_tokenizer
    tokenizer.enable_truncation(encoder.max_seq_length)  # stays in tokenizer.json
    weights = transformer.model.get_input_embeddings().weight
    assert isinstance(weights, torch.Tensor)
    return StaticEmbedding(tokenizer, embedding_weights=weights.detach().clone())


def _set_padding(transformer: Transformer, encoder: Encoder) -> None:
    """Pad with the end token where a causal model has none of its own; the attention mask hides it either way."""
    tokenizer = transformer.tokenizer
    place = f"base: {encoder.repo_id or encoder.path}"
    if tokenizer is None:
        raise InputError(place, "has no tokenizer", allowed="a text model with its tokenizer files")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(place, "its tokenizer has no pad and no eos token")
        tokenizer.pad_token = tokenizer.eos_token


def save_student(model: SentenceTransformer, folder: Path) -> None:
    """Write a loadable model to ``folder``, which is there whole or not at all; no automatic README."""
    temporary = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(str(temporary), create_model_card=False, safe_serialization=True)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)

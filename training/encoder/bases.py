"""Base checkpoints: the pretrained model of a recipe, on this disk or downloaded from the Hub."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.client.fetch import resolve_commit
from sts_dino.hub.client.plan import MEASURED
from sts_dino.hub.contract.packaged import describe_packaged_model
from sts_dino.hub.contract.recipe import DECIDING, Encoder, TrainingData
from sts_dino.hub.contract.run_dir import ARTIFACTS
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
WORD_VECTOR_ENDINGS = (".txt", ".vec", ".txt.gz", ".vec.gz")
CORPUS_KEYS = {"repo_id", "revision", "path", "config", "split", "columns"}  # keys of a vocabulary


@dataclass(frozen=True)
class Base:
    """A base on this disk: its folder, Hub commit and a hash of its files.

    ``folder``: for word vectors, the file. ``commit``: None for a local base. ``sha256``: the hash
    of the files; for an adapter, the commit of its own base is appended. ``corpus``: the distinct
    texts to whose tokens the vocabulary is cut; None: the vocabulary is not cut.
    """

    folder: Path
    commit: str | None
    sha256: str
    corpus: TrainingSet | None = field(default=None, repr=False)

    def describe(self, spec: Encoder) -> dict[str, object]:
        """Return the manifest's entry for the base: the recipe's keys, commit, hash and origin.

        The origin has the keys that a local folder or its package records; a base on the Hub has
        none. ``spec``: the base's section of the recipe.
        """
        recipe_keys = spec.model_dump(mode="json", context=DECIDING, exclude_none=True)
        origin = read_upstream(spec.path)
        if spec.path and not origin:
            origin = describe_packaged_model(self.folder)
        return {**recipe_keys, "commit": self.commit, "sha256": self.sha256, **origin}


def find_base(spec: Encoder, key: str = "base") -> Base:
    """Find the base that a recipe names, on this disk or by a download from the Hub, and hash it.

    With ``spec.vocabulary``, the corpus of the vocabulary is loaded, too. Raises InputError when
    the base is absent, is not of the kind that ``spec.modules`` needs, or has a tokenizer that does
    not fit its embedding, and for a corpus that cannot be read. Raises RunError when the Hub cannot
    be read. ``spec``: the base's section of the recipe. ``key``: its key, which errors name.
    """
    where = f"{key}: {spec.repo_id or spec.path}"
    commit = None
    folder = Path(spec.path or "")
    if spec.repo_id is not None:
        commit, folder = _fetch_base(spec, spec.repo_id)

    # A file of word vectors.
    if spec.modules == "word-vectors":
        if not folder.is_file() or not folder.name.endswith(WORD_VECTOR_ENDINGS):
            raise InputError(
                where,
                f"{folder.name} is not a file of word vectors",
                allowed=", ".join(WORD_VECTOR_ENDINGS),
            )
        return Base(folder, commit, hash_file(folder))
    if not folder.is_dir():
        raise InputError(
            where, "no such folder", hint=f"run from the repository root, or fix {key}.path"
        )

    # A SentenceTransformer with modules of its own. An adapter's outputs depend on its base, so the
    # base's commit is part of the hash.
    if spec.modules == "sentence-transformer":
        require_modules(folder, where)
        if (folder / "config.json").is_file():
            _check_ids(folder, where)
        adapter_base = _fetch_adapter_base(folder, where)
        return Base(folder, commit, _hash_files(folder, "**/") + adapter_base)

    # A transformers model, which an adapter alone is not.
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
        # The import takes seconds.
        from sts_dino.training.data.training_sets import load_training_set

        data = spec.vocabulary.model_dump(include=CORPUS_KEYS)
        texts = TrainingData(**data, example_type="self-pair", loss="none")
        corpus = load_training_set(texts, f"{key}.vocabulary")
    _check_ids(folder, where)
    return Base(folder, commit, _hash_files(folder), corpus)


def _check_ids(folder: Path, where: str) -> None:
    """Raise InputError naming ``where`` when the tokenizer has an id beyond the embedding.

    Special tokens that neither a text nor its padding gets are not checked. Raises InputError also
    when config or tokenizer cannot be loaded, or the config has no ``vocab_size``. No code from the
    folder runs.
    """
    from transformers import AutoConfig, AutoTokenizer

    with convert_model_errors(where):
        config = AutoConfig.from_pretrained(folder, **NO_CODE)
        tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
        used = [*tokenizer("A text.").input_ids, tokenizer.pad_token_id]
        require_ids(tokenizer, config.get_text_config().vocab_size, where, used)


def _fetch_base(spec: Encoder, repo_id: str) -> tuple[str | None, Path]:
    """Download a base from the Hub; return the commit of its revision and its path on this disk.

    The path is a folder; for word vectors, a file. Raises InputError for a repository, revision or
    file that does not exist, RunError when the Hub cannot be read.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    with convert_read_errors(repo_id, spec.revision):
        commit = resolve_commit(repo_id, spec.revision, "model")
        if spec.modules == "word-vectors":
            path = hf_hub_download(repo_id, spec.file or "", revision=commit)
        else:
            path = snapshot_download(repo_id, revision=commit, allow_patterns=list(BASE_FILES))
    return commit, Path(path)


def _fetch_adapter_base(folder: Path, where: str) -> str:
    """Download the base of a SentenceTransformer that is an adapter; return the base's commit.

    The base is read at main, as sentence-transformers reads it. Returns "" for a folder without an
    adapter. Raises InputError when the adapter's config is damaged or names a base that is not on
    the Hub, RunError when the Hub cannot be read. ``where``: the encoder that errors name.
    """
    config = folder / ADAPTER_CONFIG
    if not config.is_file():
        return ""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    repo_id = read_json_object(config, where).get("base_model_name_or_path") or ""
    try:
        validate_repo_id(repo_id)  # refuses paths such as ../base and /home/me/base
    except HFValidationError as error:
        raise InputError(
            where,
            f"is an adapter for {repo_id!r}, which is not on the Hub",
            allowed="its merged form",
        ) from error
    with convert_read_errors(repo_id, "main"):
        snapshot = snapshot_download(repo_id, allow_patterns=list(BASE_FILES))
    return Path(snapshot).name  # the Hub's cache names a snapshot by its commit


def _hash_files(folder: Path, prefix: str = "") -> str:
    """Return the SHA-256 over the names and contents of a folder's files, as hex.

    Only files that match ``BASE_FILES`` count, without ``MEASURED`` and ``artifacts/``: an
    encoder that is scored stays the same base. ``prefix`` is put before each pattern: "" takes the
    files of ``folder`` alone, "**/" those of all folders below, too.
    """
    paths: dict[str, Path] = {}
    for pattern in BASE_FILES:
        for path in folder.glob(prefix + pattern):
            paths[path.relative_to(folder).as_posix()] = path
    lines = [
        f"{name} {hash_file(path)}\n"
        for name, path in sorted(paths.items())
        if name not in MEASURED and not name.startswith(f"{ARTIFACTS.name}/")
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()

"""The encoder to be scored: a local SentenceTransformer folder or a model of the Hub that HF_ENDPOINT names."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import HfApi, snapshot_download
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from hub.errors import InputError
from hub.remote import reading
from hub.run_dir import read_manifest, require_complete

BATCH = 64


@dataclass(frozen=True)
class Encoder:
    """A loaded encoder, the name results are written under, its revision, and the fingerprint of its run directory."""

    model: SentenceTransformer
    name: str
    revision: str
    fingerprint: str | None

    def encode(self, label: str) -> Callable[[list[str]], NDArray[np.floating]]:
        """A function from n sentences to (n, dimension) embeddings, with a progress bar called ``label``."""

        def embed(sentences: list[str]) -> NDArray[np.floating]:
            order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))  # little padding per batch
            parts = []
            for start in tqdm(range(0, len(order), BATCH), desc=label, unit="batch"):
                batch = [sentences[row] for row in order[start : start + BATCH]]
                parts.append(self.model.encode(batch, batch_size=BATCH, show_progress_bar=False))
            shuffled = np.concatenate(parts)
            embeddings = np.empty_like(shuffled)
            embeddings[order] = shuffled
            return embeddings

        return embed


def load_encoder(model: str) -> Encoder:
    """The encoder at a path, or under a Hub id ``ORG/NAME`` or ``ORG/NAME@REVISION``.

    Raises InputError when there is no such model or it is not finished, RunError when the Hub cannot be read.
    """
    path = Path(model)
    if path.exists():
        return _load(path, path.name, model)
    if path.is_absolute() or len(path.parts) != 2 or path.parts[0] in (".", "..", "artifacts"):
        raise InputError(model, "no such model folder", hint="train it first: python -m training.run RECIPE")
    folder, commit = _download(model)
    return _load(folder, f"{model.partition('@')[0]}@{commit}", model)


def _load(folder: Path, name: str, model: str) -> Encoder:
    if not (folder / "modules.json").is_file():
        raise InputError(model, "is not a SentenceTransformer model (no modules.json)")
    manifest = read_manifest(folder)
    if manifest is not None:
        require_complete(folder)
    try:
        encoder = SentenceTransformer(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(model, f"cannot be loaded: {str(error).splitlines()[0]}") from error
    encoder.eval()
    return Encoder(encoder, name, name.partition("@")[2] or "local", manifest.fingerprint if manifest else None)


def _download(model: str) -> tuple[Path, str]:
    """A local copy of a Hub model and the commit it is of."""
    repo_id, _, revision = model.partition("@")
    with reading(repo_id, revision or None):
        commit = HfApi().model_info(repo_id, revision=revision or None).sha
        assert commit is not None
        return Path(snapshot_download(repo_id, revision=commit)), commit

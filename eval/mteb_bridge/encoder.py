"""Our encoders as MTEB sees them: its encoder protocol, on top of the embeddings that all tasks share."""

import re
from dataclasses import replace
from typing import Any, cast

import numpy as np
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from eval.encoders.embeddings import Embeddings
from eval.encoders.load import BATCH, Encoder, chat_template


class MtebEncoder(AbsEncoder):
    """An encoder under MTEB's protocol.

    A SentenceTransformer gets the prompts that MTEB chooses from its own for the task, the task's type or the side of a
    retrieval; a function gets the texts alone. Every text is encoded once a prompt, through
    ``eval.encoders.embeddings``.
    """

    def __init__(self, embeddings: Embeddings):
        """``embeddings`` without a prompt are shared with other tasks; those with one are kept beside them."""
        self.encoder = embeddings.encoder
        self.model: Any = self.encoder.model  # where AbsEncoder finds the model's own similarity
        self.meta = model_meta(self.encoder)
        self.mteb_model_meta = self.meta  # MTEB's name for it, which may be None there
        self._cache = embeddings.folder.parent
        self._stores = {self.encoder.key: embeddings}

    def encode(
        self,
        inputs: DataLoader[Any],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> NDArray[np.float32]:
        """Embeddings (n, dimension) of the texts of all batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        encoder = prompted(self.encoder, task_metadata, prompt_type)
        if encoder.key not in self._stores:
            self._stores[encoder.key] = Embeddings(encoder, self._cache)
        return self._stores[encoder.key].rows(texts)

    @property
    def seconds(self) -> float:
        """The time spent in the encoder, with and without prompts."""
        return sum(store.seconds for store in self._stores.values())

    def close(self) -> None:
        """Close what was opened here: not the embeddings that were given."""
        for key, store in self._stores.items():
            if key != self.encoder.key:
                store.close()


def prompted(encoder: Encoder, task: TaskMetadata, side: PromptType | None) -> Encoder:
    """The encoder with the prompt that MTEB chooses for a task; itself where there is neither prompt nor side."""
    if encoder.model is None:
        return encoder
    prompt = get_prompt(cast("dict[str, str]", encoder.model.prompts), task, side)
    if prompt is None and side is None:
        return encoder
    sides = {PromptType.query: encoder.model.encode_query, PromptType.document: encoder.model.encode_document}
    encode = encoder.model.encode if side is None else sides[side]

    def embed(texts: list[str]) -> Any:
        with chat_template(encoder.name):
            return encode(texts, prompt=prompt, batch_size=BATCH, show_progress_bar=False)

    return replace(
        encoder,
        embed=embed,
        settings=encoder.settings | {"prompt": repr(prompt), "side": str(side and side.value)},
    )


def model_meta(encoder: Encoder) -> ModelMeta:
    """The metadata that MTEB keeps results under: name and revision, so that no two models share a score."""
    name = re.sub(r"[^A-Za-z0-9._/-]", "_", encoder.name.partition("@")[0])
    facts: dict[str, Any] = {
        "name": name if name.count("/") == 1 and not name.startswith(("/", ".")) else f"local/{name.replace('/', '_')}",
        "revision": re.sub(r"[^A-Za-z0-9._-]", "_", encoder.revision),
        "embed_dim": encoder.dimension,
    }
    if encoder.model is not None:
        facts |= {"framework": ["Sentence Transformers", "PyTorch"], "max_tokens": encoder.model.max_seq_length}
        facts |= {"use_instructions": any(encoder.model.prompts.values())}
    return ModelMeta.create_empty(facts)

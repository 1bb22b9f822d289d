"""Token dropout: a share of each text's tokens is left out at random whenever the text is read for training.

It is the noise that tells a text from itself in unsupervised SimCSE where an encoder has no dropout of its own: static
embeddings, Gemma, Llama. Deleted words are among the noises of Gao et al. 2021 (table 2) and TSDAE (Wang et al. 2021).
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

IDS = "_input_ids"
PROBES = ("Dogs", "A man is playing a flute", "3.5 apples", "we, too")  # they share neither first nor last token


class TokenDropout:
    """Leaves each token of a batch's texts out with probability ``rate``, but never all of a text's.

    What stands around every text (special tokens, a prompt) is never left out. The draw is a function of ``seed`` and
    the whole batch, not of a generator's state: a resumed run draws as an uninterrupted one, whatever was read ahead.
    Epochs differ because they cut other batches; columns with the same text differ because they are drawn in turn.
    """

    def __init__(self, preprocess: Callable[[list[str]], dict[str, Any]], rate: float, seed: int, pad: int = 0):
        self.rate, self.seed, self.pad = rate, seed, pad
        probes = [_texts(preprocess([probe]))[0] for probe in PROBES]
        self.before = _common(probes)
        self.after = _common([ids[::-1] for ids in probes])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch of a collator (``COLUMN_input_ids`` and what belongs to them) with fewer tokens."""
        columns = [key.removesuffix(IDS) for key in batch if key.endswith(IDS)]
        digest = hashlib.sha256(str(self.seed).encode())
        for column in columns:
            digest.update(batch[column + IDS].numpy().tobytes())
        generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:8], "little", signed=True))
        batch = dict(batch)
        for column in columns:
            thin = self._ragged if f"{column}_offsets" in batch else self._padded
            thin(batch, column, generator)
        return batch

    def _ragged(self, batch: dict[str, Any], column: str, generator: torch.Generator) -> None:
        """Texts one after another, each from its offset on: what an embedding bag reads."""
        ids, offsets = batch[column + IDS], batch[f"{column}_offsets"]
        lengths = torch.diff(offsets, append=torch.tensor([len(ids)]))
        kept = self._kept(lengths, generator)
        left = torch.zeros_like(lengths).index_add_(0, _rows(lengths), kept.long())
        batch[column + IDS], batch[f"{column}_offsets"] = ids[kept], left.cumsum(0) - left

    def _padded(self, batch: dict[str, Any], column: str, generator: torch.Generator) -> None:
        """One row a text, padding behind it."""
        seen = batch[f"{column}_attention_mask"].bool()
        kept = torch.zeros_like(seen)
        kept[seen] = self._kept(seen.sum(1), generator)
        lengths = kept.sum(1)
        width = int(lengths.max())
        order = kept.logical_not().long().argsort(dim=1, stable=True)[:, :width]  # what is kept moves to the front
        padding = torch.arange(width) >= lengths[:, None]
        shape = batch[column + IDS].shape
        for name, values in batch.items():
            if name.startswith(f"{column}_") and isinstance(values, torch.Tensor) and values.shape == shape:
                empty = self.pad if name == column + IDS else 0
                batch[name] = values.gather(1, order).masked_fill(padding, empty)

    def _kept(self, lengths: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """For the tokens of texts of these lengths, one text after another: which are kept."""
        rows = _rows(lengths)
        places = torch.arange(len(rows)) - (lengths.cumsum(0) - lengths)[rows]
        around = (places < self.before) | (places >= lengths[rows] - self.after)
        draws = torch.rand(len(rows), generator=generator).masked_fill(around, -1.0)
        highest = torch.full((len(lengths),), -1.0).scatter_reduce(0, rows, draws, "amax")
        return around | (draws >= self.rate) | (draws == highest[rows])


def _rows(lengths: torch.Tensor) -> torch.Tensor:
    """The number of the text that each token is of."""
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def _texts(features: dict[str, Any]) -> list[list[int]]:
    ids = features["input_ids"].tolist()
    return [ids] if "offsets" in features else ids


def _common(ids: Sequence[Sequence[int]]) -> int:
    """How many tokens all of these begin with."""
    return next((i for i, found in enumerate(zip(*ids, strict=False)) if len(set(found)) > 1), min(map(len, ids)))

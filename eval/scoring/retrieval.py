"""SentEval's model of caption–image retrieval: both sides projected linearly, trained to rank right pairs first.

The toolkit's settings and random numbers (facebookresearch/SentEval, ``senteval/tools/ranking.py``), as
``docs/protocols.md`` tells them.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.tasks.rows import Rows
from eval.tasks.task import Task
from hub.errors import InputError, RunError

CUTS = (1, 5, 10)
Ranks = NDArray[np.int64]
Drawn = np.random.RandomState


@dataclass(frozen=True)
class RankingSettings:
    """SentEval's values. ``fold``: images that are ranked together."""

    dimension: int = 1000
    margin: float = 0.2
    batch: int = 128
    contrasts: int = 30
    passes: int = 21
    patience: int = 4  # passes without an improvement, in all
    fold: int = 1000


@dataclass(frozen=True)
class EncodedSplit:
    """A split on the device: images (images, f), caption embeddings (captions, d), the image of every caption."""

    images: Tensor
    captions: Tensor
    image_of: Tensor


class Projections(nn.Module):
    """A linear map for each side, to unit vectors."""

    def __init__(self, image_dimension: int, caption_dimension: int, dimension: int):
        super().__init__()
        self.of_image = nn.Linear(image_dimension, dimension)
        self.of_caption = nn.Linear(caption_dimension, dimension)

    def images(self, features: Tensor) -> Tensor:
        """(n, f) → (n, dimension), each of length 1."""
        return normalize(self.of_image(features), dim=-1)

    def captions(self, embeddings: Tensor) -> Tensor:
        """(n, d) → (n, dimension), each of length 1."""
        return normalize(self.of_caption(embeddings), dim=-1)


def ranking_loss(image: Tensor, caption: Tensor, images: Tensor, captions: Tensor, margin: float) -> Tensor:
    """Sum of hinges: (n, p) right pairs against (n, contrasts, p) wrong images and wrong captions."""
    right = (image * caption).sum(-1, keepdim=True)
    wrong_captions = torch.einsum("np,ncp->nc", image, captions)
    wrong_images = torch.einsum("np,ncp->nc", caption, images)
    return (margin - right + wrong_captions).clamp(min=0).sum() + (margin - right + wrong_images).clamp(min=0).sum()


def ranks(model: Projections, side: EncodedSplit, fold: int) -> tuple[Ranks, Ranks]:
    """Rank, from 0, of the best own caption of every image, and of the own image of every caption, within folds of
    consecutive images.

    What is as near as the right answer counts as nearer, so that equal vectors earn nothing.
    """
    of_images, of_captions = [], []
    with torch.inference_mode():
        for start in range(0, len(side.images), fold):
            inside = (side.image_of >= start) & (side.image_of < start + fold)
            own = side.image_of[inside] - start
            images = model.images(side.images[start : start + fold])
            similar = images @ model.captions(side.captions[inside]).T  # (images, captions)
            right = torch.zeros_like(similar, dtype=torch.bool)
            right[own, torch.arange(len(own), device=own.device)] = True
            best = similar.masked_fill(~right, -2).amax(1, keepdim=True)
            of_images.append(((similar >= best) & ~right).sum(1))
            mine = similar.masked_fill(~right, -2).amax(0, keepdim=True)
            of_captions.append(((similar >= mine) & ~right).sum(0))
    return torch.cat(of_images).cpu().numpy(), torch.cat(of_captions).cpu().numpy()


def recalls(found: Ranks) -> tuple[float, ...]:
    """Recall at 1, 5 and 10, x 100."""
    return tuple(100 * float(np.mean(found < cut)) for cut in CUTS)


def train(
    training: EncodedSplit, validation: EncodedSplit, settings: RankingSettings, seed: int
) -> tuple[Projections, float]:
    """The model of the best pass and its mean of six validation recalls x 100. Raises RunError for an infinite loss."""
    device = training.images.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Projections(training.images.shape[1], training.captions.shape[1], settings.dimension).to(device)
    optimizer, drawn = torch.optim.Adam(model.parameters()), np.random.RandomState(seed)
    best, kept, stale = -1.0, model, 0
    for number in range(1, settings.passes + 1):
        loss = _one_pass(model, optimizer, training, settings, drawn)
        if not np.isfinite(loss):
            hint = "are the embeddings or the features very large?"
            raise RunError("caption-image retrieval", f"the loss of pass {number} is {loss}", hint=hint)
        score = float(np.mean([recalls(found) for found in ranks(model, validation, settings.fold)]))
        if score > best:
            best, kept = score, copy.deepcopy(model)
            continue
        stale += 1
        if stale == settings.patience:
            break
    return kept, best


def _one_pass(
    model: Projections, optimizer: torch.optim.Optimizer, side: EncodedSplit, settings: RankingSettings, drawn: Drawn
) -> float:
    """One pass over all captions in a drawn order; the sum of its losses."""
    total = torch.zeros((), device=side.images.device)
    order = drawn.permutation(len(side.captions))
    for start in range(0, len(order), settings.batch):
        batch = order[start : start + settings.batch]
        image_contrasts = contrasts(order, start, len(batch), settings.contrasts, drawn)
        caption_contrasts = contrasts(order, start, len(batch), settings.contrasts, drawn)
        rows = torch.as_tensor(batch, device=side.images.device)
        others = side.image_of[torch.as_tensor(image_contrasts, device=rows.device)]
        loss = ranking_loss(
            model.images(side.images[side.image_of[rows]]),
            model.captions(side.captions[rows]),
            model.images(side.images[others]),
            model.captions(side.captions[torch.as_tensor(caption_contrasts, device=rows.device)]),
            settings.margin,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total)


def contrasts(order: Ranks, start: int, size: int, each: int, drawn: Drawn) -> Ranks:
    """(size, each) captions drawn with replacement from ``order`` without the batch at ``start``: the toolkit's draw,
    without the list of all captions that it builds at every step.
    """
    places = drawn.choice(len(order) - size, each * size)
    return order[np.where(places < start, places, places + size)].reshape(size, each)


DIRECTIONS = ("image_to_text", "text_to_image")


def measure_retrieval(
    task: Task, data: Mapping[str, Rows], embed: Embed, seeds: Sequence[int], settings: RankingSettings | None = None
) -> Measured:
    """Mean x 100 of recall at 1, 5 and 10 in both directions (DeCLUTR, appendix C.2), on the test images.

    Outcomes are one row a query, images first: gold is its image, predicted the rank of the first right answer. With
    several seeds the score is their mean and the outcomes are the first one's.

    Raises:
        InputError: a split is too small to draw wrong answers from.
        RunError: training diverged.
    """
    settings, started = settings or RankingSettings(), time.perf_counter()
    sides = {split: _side(rows, embed) for split, rows in data.items()}
    read, given = time.perf_counter(), len(sides["train"].captions)
    if given <= settings.batch:
        raise InputError(f"{task.name} train", f"has {given} captions", allowed=f"more than {settings.batch}, a batch")
    models = [train(sides["train"], sides["validation"], settings, seed) for seed in seeds]
    found = [ranks(model, sides["test"], settings.fold) for model, _ in models]
    six = np.array([[recalls(direction) for direction in both] for both in found])  # (seeds, directions, cuts)
    other = {"dev_recall": float(np.mean([score for _, score in models]))}
    parts, names = {}, list[str]()
    for row, (name, of_first) in enumerate(zip(DIRECTIONS, found[0], strict=True)):
        other |= {f"{name}_recall@{cut}": float(six[:, row, column].mean()) for column, cut in enumerate(CUTS)}
        other[f"{name}_median_rank"] = float(np.floor(np.median(of_first)) + 1)  # from 1
        parts[name] = float(six[:, row].mean()), len(of_first)
        names += [name] * len(of_first)
    if len(six) > 1:
        other["sd_over_seeds"] = float(np.std(six.mean((1, 2)), ddof=1))
    image_of = sides["test"].image_of.cpu().numpy()
    gold = np.concatenate([np.unique(image_of), image_of]).astype(np.float64)
    return Measured(
        outcomes=Outcomes(gold, np.concatenate(found[0]).astype(np.float64), tuple(names)),
        score=float(six.mean()),
        other=other,
        parts=parts,
        seconds={"reading_embeddings": read - started, "probing": time.perf_counter() - read},
        seeds=tuple(seeds),
    )


def _side(rows: Rows, embed: Embed) -> EncodedSplit:
    """A split on the accelerator, if there is one. Images without a caption (a limit cut them off) are left out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, image_of = np.unique(rows.target, return_inverse=True)
    assert rows.features is not None
    parts = (rows.features[images], np.asarray(embed(rows.first), dtype=np.float32), image_of)
    return EncodedSplit(*(torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts))

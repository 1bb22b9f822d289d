"""Caption–image retrieval as SentEval does it: how early the right image or caption comes, over 1,000 images a fold."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from eval.data.forms import Captions, Rows
from eval.outcomes import Measured, Outcomes
from eval.ranking_model import CUTS, Ranks, Settings, Side, ranks, recalls, train
from eval.registry import Task
from hub.errors import InputError

DIRECTIONS = ("image-to-text", "text-to-image")
Embed = Callable[[Sequence[str]], NDArray[np.float32]]


def measure_retrieval(
    task: Task, data: Mapping[str, Rows], embed: Embed, seeds: Sequence[int], settings: Settings | None = None
) -> Measured:
    """Mean x 100 of recall at 1, 5 and 10 in both directions (DeCLUTR, appendix C.2), on the test images.

    Outcomes are one row a query, images first: gold is its image, predicted the rank of the first right answer. With
    several seeds the score is their mean and the outcomes are the first one's.

    Raises:
        InputError: a split is too small to draw wrong answers from.
        RunError: training diverged.
    """
    settings, started = settings or Settings(), time.process_time()
    sides = {split: _side(cast(Captions, rows), embed) for split, rows in data.items()}
    if len(sides["train"].captions) <= settings.batch:
        found, needed = len(sides["train"].captions), f"more than one batch of {settings.batch}"
        raise InputError(f"{task.name} train", f"has {found} captions", allowed=needed)
    measured = [_one_seed(sides, settings, seed) for seed in seeds]
    by_direction = measured[0]
    scores = [[recalls(found) for found in both] for both in measured]  # (seeds, directions, cuts)
    means = np.mean(scores, axis=0)
    images = sides["test"].image_of.cpu().numpy()
    queries = (np.unique(images), images)
    other = {
        f"{direction} recall@{cut}": float(means[row, column])
        for row, direction in enumerate(DIRECTIONS)
        for column, cut in enumerate(CUTS)
    }
    for direction, found in zip(DIRECTIONS, by_direction, strict=True):
        other[f"{direction} median rank"] = float(np.floor(np.median(found)) + 1)
    return Measured(
        outcomes=_outcomes(queries, by_direction),
        score=float(means.mean()),
        other=other,
        parts={name: (float(means[row].mean()), len(by_direction[row])) for row, name in enumerate(DIRECTIONS)},
        seconds={"probing": time.process_time() - started},
        seeds=tuple(seeds),
    )


def _outcomes(queries: tuple[Ranks, Ranks], found: tuple[Ranks, Ranks]) -> Outcomes:
    part = tuple(name for name, rows in zip(DIRECTIONS, found, strict=True) for _ in rows)
    return Outcomes(np.concatenate(queries).astype(np.float64), np.concatenate(found).astype(np.float64), part)


def _one_seed(sides: Mapping[str, Side], settings: Settings, seed: int) -> tuple[Ranks, Ranks]:
    """Test ranks of images' captions and captions' images."""
    model, _ = train(sides["train"], sides["validation"], settings, seed)
    return ranks(model, sides["test"], settings.fold)


def _side(rows: Captions, embed: Embed) -> Side:
    """A split on the accelerator, if there is one. Images without a caption (a limit cut them off) are left out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, image_of = np.unique(rows.image_of, return_inverse=True)
    parts = (rows.features[images], np.asarray(embed(rows.text), dtype=np.float32), image_of)
    return Side(*(torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts))

"""Caption–image retrieval as SentEval does it: how early the right image or caption comes, over 1,000 images a fold."""

import time
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.scoring.ranking_model import CUTS, EncodedSplit, RankingSettings, Ranks, ranks, recalls, train
from eval.tasks.data.example_types import Captions, Rows
from eval.tasks.task import Task
from hub.errors import InputError

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
    sides = {split: _side(cast(Captions, rows), embed) for split, rows in data.items()}
    started, embedded = time.perf_counter(), time.perf_counter() - started
    given = len(sides["train"].captions)
    if given <= settings.batch:
        raise InputError(f"{task.name} train", f"has {given} captions", allowed=f"more than {settings.batch}, a batch")
    models = [train(sides["train"], sides["validation"], settings, seed) for seed in seeds]
    found = [ranks(model, sides["test"], settings.fold) for model, _ in models]
    six = np.array([[recalls(direction) for direction in both] for both in found])  # (seeds, directions, cuts)
    return Measured(
        outcomes=_outcomes(sides["test"].image_of.cpu().numpy(), found[0]),
        score=float(six.mean()),
        other=_other(six, found[0]) | {"dev_recall": float(np.mean([score for _, score in models]))},
        parts={name: (float(six[:, row].mean()), len(found[0][row])) for row, name in enumerate(DIRECTIONS)},
        seconds={"reading_embeddings": embedded, "probing": time.perf_counter() - started},
        seeds=tuple(seeds),
    )


def _other(six: NDArray[np.float64], first: tuple[Ranks, Ranks]) -> dict[str, float]:
    """The six recalls, the first seed's median ranks (from 1), and the spread over seeds if there are several."""
    other = {
        f"{direction}_recall@{cut}": float(six[:, row, column].mean())
        for row, direction in enumerate(DIRECTIONS)
        for column, cut in enumerate(CUTS)
    }
    for direction, found in zip(DIRECTIONS, first, strict=True):
        other[f"{direction}_median_rank"] = float(np.floor(np.median(found)) + 1)
    if len(six) > 1:
        other["sd_over_seeds"] = float(np.std(six.mean((1, 2)), ddof=1))
    return other


def _outcomes(image_of: Ranks, found: tuple[Ranks, Ranks]) -> Outcomes:
    gold = np.concatenate([np.unique(image_of), image_of]).astype(np.float64)
    part = tuple(name for name, rows in zip(DIRECTIONS, found, strict=True) for _ in rows)
    return Outcomes(gold, np.concatenate(found).astype(np.float64), part)


def _side(rows: Captions, embed: Embed) -> EncodedSplit:
    """A split on the accelerator, if there is one. Images without a caption (a limit cut them off) are left out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, image_of = np.unique(rows.image_of, return_inverse=True)
    parts = (rows.features[images], np.asarray(embed(rows.text), dtype=np.float32), image_of)
    return EncodedSplit(*(torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts))

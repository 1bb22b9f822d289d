"""The papers' own rows (``papers.yaml``), shown beside a model's scores only where data, encoder and protocol agree."""

from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from hub.recipe import ModelRecipe
from hub.results import TaskScore

TABLE = Path(__file__).parent / "papers.yaml"
METRIC = "spearman"


class PaperRow(BaseModel):
    """One row of a paper's table; the keys are explained in ``papers.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    source: str
    dataset: str
    base: tuple[str, ...]
    pooling: str
    scores: dict[str, float]
    not_compared: dict[str, float]

    def score(self, ours: TaskScore) -> float | None:
        """The paper's number for the same measurement as ``ours``; None when it has none."""
        same = ours.split == "test" and ours.main_metric == METRIC
        return self.scores.get(ours.task) if same else None


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """Every row that is known."""
    return TypeAdapter(tuple[PaperRow, ...]).validate_python(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def reproduced(recipe: ModelRecipe) -> PaperRow | None:
    """The row that a recipe reproduces: its data alone, of a full version, on its encoder. None: it reproduces none."""
    if len(recipe.datasets) != 1 or recipe.limit is not None or recipe.base.modules != "transformer":
        return None
    (data,) = recipe.datasets
    name, version = (data.repo_id or "").rpartition("/")[2], data.revision or ""
    if not version.startswith("v") or version.startswith("v0."):
        return None
    for row in paper_rows():
        if (row.dataset, row.pooling) == (name, recipe.base.pooling) and recipe.base.repo_id in row.base:
            return row
    return None

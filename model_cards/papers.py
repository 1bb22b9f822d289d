"""The papers' own rows (``papers.yaml``), shown beside a model's scores only where data, encoder and protocol agree."""

from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from hub.recipe import Encoder, ModelRecipe, TrainingData
from hub.results import TaskScore

TABLE = Path(__file__).parent / "papers.yaml"
METRIC = "spearman"


class PaperRow(BaseModel):
    """One row of a paper's table; the keys are explained in ``papers.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    source: str
    dataset: str | None = None
    config: str | None = None
    loss: str | None = None
    limit: int | None = None
    base: tuple[str, ...]
    pooling: str
    prompt: str | None = None
    mean_of: str | None = None
    scores: dict[str, float]
    not_compared: dict[str, float]

    def score(self, ours: TaskScore) -> float | None:
        """The paper's number for the same measurement as ``ours``; None when it has none."""
        same = ours.split == "test" and ours.main_metric == METRIC
        return self.scores.get(ours.task) if same else None

    def has_encoder(self, encoder: Encoder) -> bool:
        """Whether ``encoder`` is the one the row's model started from."""
        wanted = (encoder.pooling, encoder.prompt) == (self.pooling, self.prompt)
        return wanted and encoder.modules == "transformer" and encoder.repo_id in self.base

    def has_data(self, data: TrainingData, limit: int | None) -> bool:
        """Whether ``data`` is what the row's model was trained on, in a full version and with its loss."""
        name, version = (data.repo_id or "").rpartition("/")[2], data.revision or ""
        full = version.startswith("v") and not version.startswith("v0.")
        return full and (name, data.config, data.loss, limit) == (self.dataset, self.config, self.loss, self.limit)


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """Every row that is known."""
    return TypeAdapter(tuple[PaperRow, ...]).validate_python(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def reproduced(recipe: ModelRecipe) -> PaperRow | None:
    """The row that a recipe reproduces: its data alone, of a full version, on its encoder. None: it reproduces none."""
    for row in paper_rows():
        if recipe.is_baseline:
            found = row.dataset is None
        else:
            found = len(recipe.datasets) == 1 and row.has_data(recipe.datasets[0], recipe.limit)
        if found and row.has_encoder(recipe.base):
            return row
    return None

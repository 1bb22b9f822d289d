"""The papers' own rows, shown beside a model's scores only where data, encoder and protocol agree.

Which recipe a row belongs to is in ``papers.yaml``. The numbers, and which task of ours has a column's protocol, are in
the papers' tables (``hub.papers``).
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from hub.contract.recipe import ModelRecipe
from hub.contract.results import TaskScore
from hub.papers import Paper, Table, find_paper

TABLE = Path(__file__).parent / "data" / "papers.yaml"


class PaperRow(BaseModel):
    """One row of a paper's table; the keys are explained in ``papers.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: tuple[str, ...]
    row: str
    dataset: str | None = None
    config: str | None = None
    loss: str | None = None
    limit: int | None = None
    base: tuple[str, ...]
    pooling: str
    prompt: str | None = None
    mean_of: str | None = None

    @property
    def source(self) -> str:
        """Where the row stands: paper, section and table, of every table that has it."""
        return "; ".join(paper.source(table) for paper, table in self._found())

    @property
    def scores(self) -> dict[tuple[str, str], float]:
        """(task of ours, metric) → the paper's number, of the columns whose protocol is ours."""
        found = (table.scores(table.row(self.row)) for _, table in self._found())
        return {key: value for scores in found for key, value in scores.items()}

    @property
    def averages(self) -> dict[str, float]:
        """Name of an average (``eval.tasks.registry``) → the paper's number."""
        return {
            column.average: value
            for _, table in self._found()
            for column, value in zip(table.columns, table.row(self.row).values, strict=True)
            if column.average is not None and value is not None
        }

    def _found(self) -> list[tuple[Paper, Table]]:
        places = (place.partition("/") for place in self.tables)
        return [(find_paper(key), find_paper(key).table(int(number))) for key, _, number in places]

    def score(self, ours: TaskScore) -> float | None:
        """The paper's number for the same measurement as ``ours``; None when it has none."""
        return self.scores.get((ours.task, ours.main_metric)) if ours.split in ("test", "all") else None

    def beside(self, scores: Sequence[TaskScore]) -> "PaperRow | None":
        """The row in those of its tables that measure one of ``scores``; None when none does."""
        each = (self.model_copy(update={"tables": (place,)}) for place in self.tables)
        tables = [one.tables[0] for one in each if any(one.score(score) is not None for score in scores)]
        return self.model_copy(update={"tables": tuple(tables)}) if tables else None

    def is_of(self, recipe: ModelRecipe) -> bool:
        """Whether ``recipe`` has the row's encoder, and its data alone in a full version with its loss (or none)."""
        base, wanted = recipe.base, (self.dataset, self.config, self.loss, self.limit)
        if base.repo_id not in self.base or (base.pooling, base.prompt) != (self.pooling, self.prompt):
            return False
        found = []
        for data in recipe.datasets:
            full = (data.revision or "").startswith("v") and not (data.revision or "").startswith("v0.")
            name = (data.repo_id or "").rpartition("/")[2] if full else ""
            found.append((name, data.config, data.loss, recipe.limit))
        return base.modules == "transformer" and found == ([wanted] if self.dataset else [])


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All rows of ``papers.yaml``."""
    return TypeAdapter(tuple[PaperRow, ...]).validate_python(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def reproduced(recipe: ModelRecipe) -> PaperRow | None:
    """The row that a recipe reproduces: its data alone, of a full version, on its encoder. None: it reproduces none."""
    return next((row for row in paper_rows() if row.is_of(recipe)), None)

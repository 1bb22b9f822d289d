"""The kept result of an experiment: scores with intervals, paired differences, cost. Pure."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from sts_dino.hub.contract.measured import Estimate
from sts_dino.hub.contract.results import Frozen
from sts_dino.hub.errors import InputError

Verdict = Literal[
    "reproduced",
    "same direction, not significant",
    "opposite direction, not significant",
    "contradicted",
]


class Difference(Frozen):
    """A paired difference: the score of the row ``better`` minus that of ``than`` in a column."""

    better: str
    than: str
    column: str
    difference: Estimate

    @property
    def verdict(self) -> Verdict:
        """The paper's effect by the 95 % interval of the difference."""
        if self.difference.low > 0:
            return "reproduced"
        if self.difference.high < 0:
            return "contradicted"
        alike = self.difference.score > 0
        return "same direction, not significant" if alike else "opposite direction, not significant"


class Measured(Frozen):
    """Scores (row → column → estimate) and paired differences; ``notes``: sentences.

    ``pages``: Markdown, e.g. generated texts side by side; ``plots``: name → SVG.
    """

    rows: dict[str, dict[str, Estimate]]
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    plots: dict[str, str] = Field(default_factory=dict)


class Result(Frozen):
    """The result of an experiment in ``experiments/results/papers/NAME.json``.

    ``seconds``: CPU seconds of its steps, those shared with other experiments included. ``sizes``:
    variant → source sentences and rows. ``commands``: in results of version 0.1, the commands of
    its steps.
    """

    experiment: str
    measured: Measured
    seconds: float
    data_seeds: int
    training_seeds: int
    sizes: dict[str, dict[str, int]] = Field(default_factory=dict)
    commands: tuple[str, ...] = ()
    hardware: dict[str, Any]
    versions: dict[str, str]


def read_result(path: Path) -> Result | None:
    """A kept result, or None without the file. Raises InputError for another format."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(
            path, f"not a result of an experiment: {error.errors()[0]['msg']}"
        ) from error

"""What an experiment found, kept as data: our numbers with intervals, its effects, and what it cost. Pure."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from hub.contract.measured import Estimate, Frozen
from hub.errors import InputError

Verdict = Literal["reproduced", "same direction, not separable", "opposite direction, not separable", "contradicted"]


class Difference(Frozen):
    """A paired difference: what the row ``better`` has more than ``than`` in a column."""

    better: str
    than: str
    column: str
    difference: Estimate

    @property
    def verdict(self) -> Verdict:
        """Whether the paper's order is found, and whether the 95 % interval excludes no difference."""
        if self.difference.low > 0:
            return "reproduced"
        if self.difference.high < 0:
            return "contradicted"
        alike = self.difference.score > 0
        return "same direction, not separable" if alike else "opposite direction, not separable"


class Measured(Frozen):
    """What a measurement writes: row → column → number, and paired differences; ``notes``: in sentences.

    ``pages``: further Markdown of the experiment, e.g. generated texts side by side; ``plots``: name → SVG.
    """

    rows: dict[str, dict[str, Estimate]]
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    plots: dict[str, str] = Field(default_factory=dict)


class Result(Frozen):
    """One experiment's result as it is kept in ``benchmarks/results/papers/NAME.json``.

    ``seconds``: CPU seconds of every step that it needs, those included that other experiments share. ``sizes``: arm →
    its first texts and rows. ``commands``: what makes it all, as a user types it.
    """

    experiment: str
    measured: Measured
    seconds: float
    data_seeds: int
    training_seeds: int
    sizes: dict[str, dict[str, int]] = Field(default_factory=dict)
    commands: tuple[str, ...]
    hardware: dict[str, Any]
    versions: dict[str, str]


def read_result(path: Path) -> Result | None:
    """A kept result, or None when there is none. Raises InputError when the file has another form."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(path, f"is no result of an experiment: {error.errors()[0]['msg']}") from error

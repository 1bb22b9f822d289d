"""Record of a decontaminated dataset in its manifest: which rows of another dataset were dropped, and why.

``eval.decontaminate --drop`` makes one. It stands in ``provenance.decontamination``, and its digest among the inputs
of the manifest: with the recipe it makes the fingerprint, so other rows dropped are another run.
"""

import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PROVENANCE, INPUT = "decontamination", "rows dropped"
Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(_Frozen):
    """The run that rows were dropped from."""

    name: str
    version: str
    fingerprint: str


class SplitRows(_Frozen):
    """Rows of one split of a config: those kept, and those dropped by the kind of their strongest match."""

    kept: Count
    dropped: dict[str, Count]

    @property
    def before(self) -> int:
        """The rows there were."""
        return self.kept + sum(self.dropped.values())


class Dropped(_Frozen):
    """What was compared, under which settings, and the rows of every config and split."""

    dataset: Origin
    kinds: tuple[str, ...]  # of matches that a row was dropped for
    evaluation_splits: tuple[str, ...]  # that a row was dropped for
    evaluation: dict[str, dict[str, str]]  # every split compared with, e.g. stsb/test: text form → SHA-256 of its rows
    not_checked: tuple[str, ...]
    settings: dict[str, float | int | dict[str, int]]
    rows: dict[str, dict[str, SplitRows]]

    def digest(self) -> str:
        """SHA-256 of all of it."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    @property
    def total(self) -> int:
        """Rows dropped of all configs; a text may stand in several."""
        return sum(sum(split.dropped.values()) for splits in self.rows.values() for split in splits.values())

"""What is known of evaluation sentences in a dataset: the ledger of what was found, the record of rows dropped for it.

The ledger (``Ledger``) is what ``eval.decontaminate`` found, of any dataset; on its card where it stands in the run
directory. Texts are not in it: several sets allow no redistribution. A match is told by the SHA-256 of the dataset's
text and by where the evaluation sentence stands.

The record (``Dropped``) is of a dataset made by ``eval.decontaminate --drop``: it stands in its manifest
(``provenance.decontamination``), and its digest among the manifest's inputs: with the recipe it makes the fingerprint,
so other rows dropped are another run.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, Field

from hub.contract.measured import Frozen, read_measured
from hub.contract.run_dir import Manifest

PROVENANCE, INPUT = "decontamination", "rows dropped"
LEDGER = "decontamination.json"  # of a run directory
Kind = Literal["exact", "normal", "near", "short"]  # of a match, strongest first: eval.audit.evaluation_sentences
KINDS: tuple[Kind, ...] = get_args(Kind)
Count = Annotated[int, Field(ge=0)]


class Origin(Frozen):
    """The run that rows were dropped from."""

    name: str
    version: str
    fingerprint: str


class SplitRows(Frozen):
    """Rows of one split of a config: those kept, and those dropped by the kind of their strongest match."""

    kept: Count
    dropped: dict[str, Count]

    @property
    def before(self) -> int:
        """The rows there were."""
        return self.kept + sum(self.dropped.values())


class Dropped(Frozen):
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


class Checked(Frozen):
    """A split of evaluation data: its rows' SHA-256 by text form, its sentences, and what of it was found.

    ``rows`` are the dataset's rows that match it, by the strongest kind; ``found`` its distinct sentences (by normal
    form) that some text matches, by kind: a sentence may be matched in several.
    """

    texts: int
    sha256: dict[str, str]
    rows: dict[Kind, int]
    found: dict[Kind, int]


class ConfigCount(BaseModel, extra="forbid"):
    """Rows of one config. ``kinds``: by a row's strongest match with a split that scores come from; ``train_only``:
    rows that match train splits alone (exact, normal or near)."""

    splits: dict[str, int]
    kinds: dict[Kind, int]
    train_only: int
    columns: dict[str, dict[Kind, int]]  # texts of a column, likewise
    labels: dict[str, dict[Kind, int]]


class Example(Frozen):
    """One match; rows count from 0."""

    config: str
    split: str
    row: int
    column: str
    text_sha256: str
    kind: Kind
    similarity: float
    place: str  # e.g. sts12/test
    place_row: int
    place_side: int


class Ledger(Frozen):
    """What was checked and found, under which settings.

    ``revision``: the Hub commit or the run's fingerprint. ``not_checked``: splits without files in what was given.

    ``settings``: the thresholds, how near matches are looked up, and ``recall``, the share of the near pairs just at
    the threshold that is expected to be found.
    """

    dataset: str
    revision: str
    settings: dict[str, float | int | dict[str, int]]
    sentences: int  # distinct normal forms of all evaluation data
    checked: dict[str, Checked]
    not_checked: tuple[str, ...]
    configs: dict[str, ConfigCount]
    examples: tuple[Example, ...]


def read_ledger(directory: Path, manifest: Manifest) -> Ledger | None:
    """decontamination.json of a run directory, or None when there is none.

    Raises InputError when it has another form or was made of other rows than the run's.
    """
    command = f"python -m eval.decontaminate {directory} --card"
    return read_measured(directory, manifest, LEDGER, Ledger, "revision", command)

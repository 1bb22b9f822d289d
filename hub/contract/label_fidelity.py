"""fidelity.json: how well the texts of a dataset fit their labels, as a judge sees it that took no part in making them.

The judge is a sentence encoder, and beside it, where there are any, a model for natural language inference and people.
It measures alone: no row was dropped or kept for what it says.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from hub.contract.measured import Frozen, read_measured
from hub.contract.results import Finite
from hub.contract.run_dir import Manifest

FIDELITY = "fidelity.json"
NEAR_COPY = 0.8  # a word overlap from which a text counts as a near-copy here, whatever the recipe filters by
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Interval(Frozen):
    """A value and its 95 % bootstrap interval over first texts."""

    value: Finite
    low: Finite
    high: Finite

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Judge(Frozen):
    """A model that measured; ``revision`` is its commit or a hash of its files."""

    name: str
    revision: str


class LabelFidelity(Frozen):
    """The texts of one label: their cosine with x1, the shares that copy x1 or nearly do, and what an NLI judge says.

    ``nli``: class → share of the pairs (x1, text) that the NLI judge puts there; None where there was none.
    """

    texts: Annotated[int, Field(ge=1)]
    cosine: Interval
    identical: Share
    near_copies: Share
    word_overlap: Share
    nli: dict[str, Share] | None = None


class PersonAgreement(Frozen):
    """How one person's blind answers agree with the labels of the finished rows: percent, and Cohen's κ if defined."""

    answers: Annotated[int, Field(ge=1)]
    same: Interval
    kappa: Interval | None


class Fidelity(Frozen):
    """Label fidelity of one config of a dataset's run.

    ``first_texts`` were drawn by ``seed`` of ``all_first_texts``; ``requested`` and ``kept`` texts are those of the
    whole config. ``spearman``: of label score and cosine, None for labels without scores.
    """

    dataset: str
    config: str
    fingerprint: str
    judge: Judge
    nli_judge: Judge | None
    first_texts: Annotated[int, Field(ge=1)]
    all_first_texts: Annotated[int, Field(ge=1)]
    seed: Count
    requested: Annotated[int, Field(ge=1)]
    kept: Count
    spearman: Interval | None
    near_copies: Share
    labels: dict[str, LabelFidelity]
    people: tuple[PersonAgreement, ...] = ()
    versions: dict[str, str]


def read_fidelity(directory: Path, manifest: Manifest) -> Fidelity | None:
    """fidelity.json of a run directory, or None when there is none.

    Raises InputError when it has another form or was measured on other rows than the run's.
    """
    command = f"sts-dino fidelity {directory}"
    return read_measured(directory, manifest, FIDELITY, Fidelity, "fingerprint", command)

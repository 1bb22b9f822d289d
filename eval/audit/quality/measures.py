"""quality.json: what was measured of a dataset, in the form that reports and comparisons read.

Shares are fractions (0 to 1), each with its counts; intervals are 95 % Wilson intervals (Wilson 1927).
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Share(_Frozen):
    """``count`` of ``n``; ``low`` and ``high`` are the interval if rows were drawn independently."""

    count: int
    n: int
    share: Finite
    low: Finite
    high: Finite


class LabelAgreement(_Frozen):
    """The NLI model's classes for the pairs of one label; ``agreement`` where the label stands for a class."""

    label: str
    intended: str | None
    predicted: dict[str, Share]
    agreement: Share | None


class NliAgreement(_Frozen):
    """Agreement with an NLI model (Auto-NLI, section 4.1); ``classes`` in the order of the model's outputs."""

    model: str
    revision: str
    classes: tuple[str, ...]
    labels: tuple[LabelAgreement, ...]
    agreement: Share | None  # over all pairs whose label stands for a class


class Spread(_Frozen):
    """A measure's values over the pairs of one label; ``histogram`` counts them between the edges."""

    label: str
    n: int
    mean: Finite
    sd: Finite
    quantiles: dict[str, Finite]
    histogram: tuple[int, ...]


class Auc(_Frozen):
    """The chance that a pair of label ``higher`` has a larger value than one of ``lower``; ties count half (AUC)."""

    lower: str
    higher: str
    auc: Finite


class Measure(_Frozen):
    """A number per pair, label by label in rising order. ``source`` and its ``revision``: the encoder, if one."""

    name: str
    source: str | None = None
    revision: str | None = None
    edges: tuple[Finite, ...]
    labels: tuple[Spread, ...]
    separations: tuple[Auc, ...]


class Distinct(_Frozen):
    """distinct-n (Li et al. 2016): different n-grams over all n-grams of ``texts`` texts drawn at random."""

    n: int
    different: int
    total: int
    ratio: Finite
    texts: int


class Column(_Frozen):
    """The texts of one column; ``lengths`` is length → texts."""

    name: str
    texts: int
    empty: int
    short: int  # fewer than SHORT tokens, the empty ones included
    between_4_and_32: Share
    mean_length: Finite
    lengths: dict[int, int]
    different: int  # exactly
    different_normal: int  # by letters and digits alone
    distinct: tuple[Distinct, ...]


class Repeats(_Frozen):
    """Rows that repeat an earlier one (texts and label), and pairs whose two texts are the same."""

    rows: int
    exact: int
    normal: int
    same_sides: int
    same_sides_normal: int


class Quality(_Frozen):
    """Everything measured of one config. ``rows`` of ``splits`` were read, drawn at random if fewer than there are."""

    dataset: str
    revision: str
    config: str
    form: str
    splits: dict[str, int]
    rows: int
    seed: int
    length_unit: str
    versions: dict[str, str]
    columns: tuple[Column, ...]
    repeats: Repeats
    measures: tuple[Measure, ...] = ()
    nli: NliAgreement | None = None


def share(count: int, n: int) -> Share:
    """``count`` of ``n`` with its 95 % Wilson interval; of nothing, 0 with the interval [0, 1]."""
    if n == 0:
        return Share(count=0, n=0, share=0.0, low=0.0, high=1.0)
    from scipy.stats import binomtest  # costs most of a second

    around = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return Share(count=count, n=n, share=count / n, low=float(around.low), high=float(around.high))

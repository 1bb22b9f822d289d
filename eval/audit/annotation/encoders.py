"""Encoders beside people: how the cosines of encoders rank the pairs that people scored, blind to the labels.

Of each pair, the mean of people's scores counts; Spearman's correlation with an encoder's cosine, and its difference
to that of the encoder's untrained base. Intervals are 95 % percentile bootstrap intervals over first texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from eval.audit.annotation.agreement import Estimate
from eval.audit.annotation.report import Report
from eval.audit.quality.fidelity import correlation_interval, resampled
from eval.audit.quality.pairs import cosine
from eval.audit.tables import table
from eval.encoders.load import Encoder
from hub.errors import InputError

FEWEST = 10  # pairs: an interval of fewer tells nothing


@dataclass(frozen=True)
class EncoderAgreement:
    """Spearman's correlation, from -1 to 1, of an encoder's cosines and people's mean scores of ``pairs`` pairs.

    over: the difference to another encoder's on the same pairs, by its name; None where there is none to compare with.
    """

    encoder: str
    pairs: int
    spearman: Estimate
    over: tuple[str, Estimate] | None = None


def people_scores(report: Report) -> dict[int, float]:
    """Row → the mean of the scores that people gave it. Raises InputError for labels that are no scores."""
    if not report.sample.examples.scale.ordered:
        raise InputError("--encoder", "is for pairs with scores", hint="leave it out: these labels have no order")
    given: dict[int, list[float]] = {}
    for answers in report.answers.values():
        for row, label in answers.items():
            given.setdefault(row, []).append(float(label))
    return {row: mean(found) for row, found in sorted(given.items())}


def encoder_agreements(report: Report, encoders: Sequence[Encoder], bases: Mapping[str, str]) -> list[EncoderAgreement]:
    """The agreement of each encoder with people; ``bases``: the name of an encoder → that of its untrained base.

    Raises InputError for too few answers, or for answers or cosines that are all the same.
    """
    people = people_scores(report)
    if len(people) < FEWEST:
        raise InputError("--encoder", f"{len(people)} pairs are answered", allowed=f"at least {FEWEST}")
    texts = [report.sample.examples.texts[row] for row in people]
    first, second = [one[0] for one in texts], [one[1] for one in texts]
    resamples = resampled(first)
    scores = list(people.values())
    found = {encoder.name: cosine(encoder)(first, second) for encoder in encoders}

    def correlation(name: str, less: str | None = None) -> Estimate:
        interval = correlation_interval(scores, found[name], resamples, found[less] if less else None)
        if interval is None:
            raise InputError(name, "has no correlation with answers that are all the same, or cosines that are")
        return Estimate(interval.value, interval.low, interval.high)

    result = []
    for encoder in encoders:
        base = bases.get(encoder.name)
        over = (base, correlation(encoder.name, base)) if base in found else None
        result.append(EncoderAgreement(encoder.name, len(people), correlation(encoder.name), over))
    return result


def markdown(agreements: Sequence[EncoderAgreement]) -> str:
    """The agreements as a section of the report; correlations x 100, as all scores are told."""
    rows = []
    for one in agreements:
        over = f"{_points(one.over[1])} over {one.over[0]}" if one.over else ""
        rows.append([one.encoder, _points(one.spearman), over])
    told = (
        f"Spearman x 100 of an encoder's cosine and people's mean score, {agreements[0].pairs} pairs; 95 % intervals."
    )
    return f"## Encoders beside people\n\n{told}\n\n{table(['encoder', 'Spearman', 'difference'], rows)}\n"


def facts(agreements: Sequence[EncoderAgreement]) -> list[dict[str, object]]:
    """The agreements for programs (JSON)."""
    return [
        {
            "encoder": one.encoder,
            "pairs": one.pairs,
            "spearman": vars(one.spearman),
            "over": {"encoder": one.over[0], **vars(one.over[1])} if one.over else None,
        }
        for one in agreements
    ]


def _points(estimate: Estimate) -> str:
    value, low, high = (100 * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"

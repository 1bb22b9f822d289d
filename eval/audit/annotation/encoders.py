"""Encoders beside people: how the cosines of encoders rank the pairs that people scored, blind to the labels.

Of each pair, the mean of people's scores counts; Spearman's correlation with an encoder's cosine, and its difference
to that of the encoder's untrained base. Intervals are 95 % percentile bootstrap intervals over first texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from types import MappingProxyType

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


def mean_scores(answers: Mapping[str, Mapping[int, str]]) -> dict[int, float]:
    """Row → the mean of the scores that people gave it; ``answers``: person → row → score, as a label."""
    given: dict[int, list[float]] = {}
    for rows in answers.values():
        for row, label in rows.items():
            given.setdefault(row, []).append(float(label))
    return {row: mean(found) for row, found in sorted(given.items())}


def agreements(
    scores: Sequence[float],
    first: Sequence[str],
    cosines: Mapping[str, Sequence[float]],
    bases: Mapping[str, str] = MappingProxyType({}),
) -> list[EncoderAgreement]:
    """The agreement of each encoder with people, all on the same resamples.

    scores, first: people's score and the first text of each pair; cosines: encoder → its cosine of each pair; bases:
    encoder → its untrained base, where that is among them. Raises InputError for too few pairs, and for scores or
    cosines that are all the same.
    """
    if len(scores) < FEWEST:
        raise InputError("judgements", f"{len(scores)} pairs are answered", allowed=f"at least {FEWEST}")
    resamples = resampled(first)

    def correlation(name: str, less: str | None = None) -> Estimate:
        interval = correlation_interval(scores, cosines[name], resamples, cosines[less] if less else None)
        if interval is None:
            raise InputError(name, "has no correlation with answers that are all the same, or cosines that are")
        return Estimate(interval.value, interval.low, interval.high)

    found = []
    for name in cosines:
        base = bases.get(name)
        over = (base, correlation(name, base)) if base is not None and base in cosines else None
        found.append(EncoderAgreement(name, len(scores), correlation(name), over))
    return found


def encoder_agreements(report: Report, encoders: Sequence[Encoder], bases: Mapping[str, str]) -> list[EncoderAgreement]:
    """``agreements`` on the pairs that people answered. Raises InputError for labels without an order, too."""
    if not report.sample.examples.scale.ordered:
        raise InputError("--encoder", "is for pairs with scores", hint="leave it out: these labels have no order")
    people = mean_scores(report.answers)
    texts = [report.sample.examples.texts[row] for row in people]
    first, second = [one[0] for one in texts], [one[1] for one in texts]
    cosines = {one.name: cosine(one)(first, second) for one in encoders} if len(people) >= FEWEST else {}
    return agreements(list(people.values()), first, cosines, bases)


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

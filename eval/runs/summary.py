"""results.json: the records of an encoder and of its base, their paired gains, and the papers' averages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from eval.runs.evaluate import ScoredEncoder, versions
from eval.runs.records import RESULTS, Record
from eval.runs.validity import other_major, why_stale, with_interval
from eval.statistics.differences import Difference, gains, resampled
from eval.statistics.scores import EvaluationSettings
from eval.statistics.verdicts import Measurement
from eval.tasks.averages import averages
from eval.tasks.registry import MTEB, TASKS
from hub.cli import say
from hub.contract.results import Gain, Results, TaskScore


def everything(side: ScoredEncoder, settings: EvaluationSettings) -> ScoredEncoder:
    """What this run scored, and whatever earlier runs left of it that still holds. What does not is told, and why."""
    named = {record.key for record in side.records}
    others = [(record, _stale(record, side, settings)) for record in side.place.all() if record.key not in named]
    told = [(" ".join(record.key), stale) for record, stale in others if stale is not None]
    told += [(name, "it is damaged or of another form") for name in side.place.unreadable()]
    for name, stale in told:
        say(f"not in {side.place.folder / RESULTS}: {name}, for {stale}")
    earlier = [with_interval(record, side.place, settings) for record, stale in others if stale is None]
    order = {name: place for place, name in enumerate(TASKS)}
    earlier.sort(key=lambda record: (order.get(record.score.task, len(order)), *record.key))
    return replace(side, records=[*side.records, *earlier])


def summarise(
    model: ScoredEncoder,
    base: ScoredEncoder | None,
    settings: EvaluationSettings,
    control: ScoredEncoder | None = None,
) -> Results:
    """Results of a model and, where there are any, of its base and control on the same tasks.

    Part of the data makes no average.
    """
    now = versions(any(record.score.task.startswith(MTEB) for record in model.records))
    scores = tuple(_with_versions(record, now) for record in model.records)
    base_scores, base_gains = _against(model, base, "base", settings, now)
    control_scores, over_control = _against(model, control, "control", settings, now)
    return Results(
        model=model.encoder.name,
        revision=model.encoder.revision,
        fingerprint=model.encoder.fingerprint,
        bootstrap_samples=settings.bootstrap_samples,
        interval=settings.interval,
        seed=settings.seed,
        versions=now,
        scores=scores,
        averages=averages(scores) if settings.limit is None else (),
        base_scores=base_scores,
        gains=base_gains,
        control_scores=control_scores,
        over_control=over_control,
    )


def _against(
    model: ScoredEncoder,
    other: ScoredEncoder | None,
    which: str,
    settings: EvaluationSettings,
    now: Mapping[str, str],
) -> tuple[tuple[TaskScore, ...], tuple[Gain, ...]]:
    """Scores of another encoder on the model's tasks, and what the model gains over it; nothing where there is none."""
    if other is None:
        return (), ()
    pairs = list(_pairs(model, other, which))
    found = [_difference(model, other, after, before, settings) for after, before in pairs]
    scores = tuple(_with_versions(before, now) for _, before in pairs)
    return scores, gains([one for one in found if one is not None])


def _pairs(model: ScoredEncoder, base: ScoredEncoder, which: str) -> Iterator[tuple[Record, Record]]:
    """The records of both on one measurement. A run killed between the two may leave unlike versions: no gain."""
    measured = {Measurement.of(record.score): record for record in reversed(base.records)}
    for after in model.records:
        before = measured.get(Measurement.of(after.score))
        told = other_major(before, after.versions) if before else None
        if told:
            say(f"no gain on {' '.join(after.key)}, for the {which}'s score: {told}; name the task again to score both")
        elif before:
            yield after, before


def only(results: Results, keys: Sequence[tuple[str, str]]) -> Results:
    """The part of results that is of these tasks and splits: same numbers, same verdicts, as many averages."""
    scores = tuple(score for score in results.scores if (score.task, score.split) in keys)
    named = {average.name for average in averages(scores)}
    return results.model_copy(
        update={
            "scores": scores,
            "averages": tuple(average for average in results.averages if average.name in named),
            "base_scores": tuple(one for one in results.base_scores if (one.task, one.split) in keys),
            **{
                name: tuple(one for one in getattr(results, name) if (one.task, one.split) in keys)
                for name in ("gains", "control_scores", "over_control")
            },
        }
    )


def _stale(record: Record, side: ScoredEncoder, settings: EvaluationSettings) -> str | None:
    """Why a record that nobody asked for does not hold: its data are not read again."""
    task = TASKS.get(record.score.task)
    return why_stale(record, side.encoder, settings, settings.protocol(task) if task else None)


def _with_versions(record: Record, now: Mapping[str, str]) -> TaskScore:
    """The score with the versions it was made with, where they are not those of ``now``."""
    others = {library: version for library, version in record.versions.items() if now.get(library) != version}
    return record.score.model_copy(update={"versions": others})


def _difference(
    model: ScoredEncoder, base: ScoredEncoder, after: Record, before: Record, settings: EvaluationSettings
) -> tuple[TaskScore, Difference] | None:
    """The score after and its difference to the one before; None where no outcomes of rows were kept."""
    rows = model.place.outcomes(*after.key), base.place.outcomes(*before.key)
    if rows[0] is None or rows[1] is None or after.metric is None:
        return None
    both = resampled((rows[0], rows[1]), after.metric, after.aggregation, settings.resampling)
    return after.score, both.difference(0, 1, (after.score, before.score))

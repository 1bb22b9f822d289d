"""results.json: the records of an encoder and of its base, their paired gains, and the papers' averages."""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.averages import averages
from eval.differences import Difference, gains, resampled
from eval.encoders import Encoder
from eval.evaluation import Scored, holds, versions
from eval.records import RESULTS, Record, Records
from eval.registry import MTEB, TASKS
from eval.scores import Settings
from eval.verdicts import Measurement
from hub.cli import say
from hub.results import Results, TaskScore


@dataclass(frozen=True)
class Side:
    """One encoder, its records' folder, and the records that count."""

    encoder: Encoder
    place: Records
    records: tuple[Record, ...]

    def twin(self, record: Record) -> Record | None:
        """This encoder's record of the same measurement."""
        wanted = Measurement.of(record.score)
        return next((own for own in self.records if Measurement.of(own.score) == wanted), None)


def asked(encoder: Encoder, place: Records, scored: Scored) -> Side:
    """Exactly what this run was asked for and could score, in that order."""
    return Side(encoder, place, tuple(scored.records))


def everything(side: Side, settings: Settings) -> Side:
    """What this run scored, and whatever earlier runs left of the same encoder under the same settings."""
    named = {record.key for record in side.records}
    others = [record for record in side.place.all() if record.key not in named]
    earlier = [record for record in others if _is_current(record, side, settings)]
    stale = [" ".join(record.key) for record in others if record not in earlier]
    if stale:
        say(f"not in {side.place.folder / RESULTS}, for they are of another revision or setting: {', '.join(stale)}")
    order = {name: place for place, name in enumerate(TASKS)}
    earlier.sort(key=lambda record: (order.get(record.score.task, len(order)), *record.key))
    return Side(side.encoder, side.place, (*side.records, *earlier))


def summarise(model: Side, base: Side | None, settings: Settings) -> Results:
    """Results of a model and, if there is one, of its base on the same tasks. Part of the data makes no average."""
    twins = [(after, before) for after in model.records if base and (before := base.twin(after))]
    found = [_difference(model, base, after, before, settings) for after, before in twins if base]
    scores = tuple(record.score for record in model.records)
    return Results(
        model=model.encoder.name,
        revision=model.encoder.revision,
        fingerprint=model.encoder.fingerprint,
        bootstrap_samples=settings.bootstrap_samples,
        interval=settings.interval,
        seed=settings.seed,
        versions=versions(any(record.score.task.startswith(MTEB) for record in model.records)),
        scores=scores,
        averages=averages(scores) if settings.limit is None else (),
        base_scores=tuple(before.score for _, before in twins),
        gains=gains([one for one in found if one is not None]),
    )


def only(results: Results, keys: Sequence[tuple[str, str]]) -> Results:
    """The part of results that is of these tasks and splits: same numbers, same verdicts, as many averages."""
    scores = tuple(score for score in results.scores if (score.task, score.split) in keys)
    named = {average.name for average in averages(scores)}
    return results.model_copy(
        update={
            "scores": scores,
            "averages": tuple(average for average in results.averages if average.name in named),
            "base_scores": tuple(one for one in results.base_scores if (one.task, one.split) in keys),
            "gains": tuple(one for one in results.gains if (one.task, one.split) in keys),
        }
    )


def _is_current(record: Record, side: Side, settings: Settings) -> bool:
    """Whether a record is of this encoder and these settings, and its task still has the protocol that it says."""
    task = TASKS.get(record.score.task)
    same = task is None or record.score.protocol == settings.protocol(task)
    return same and holds(record, side.encoder, settings)


def _difference(
    model: Side, base: Side, after: Record, before: Record, settings: Settings
) -> tuple[TaskScore, Difference] | None:
    """The score after and its difference to the one before; None where no outcomes of rows were kept."""
    rows = model.place.outcomes(*after.key), base.place.outcomes(*before.key)
    if rows[0] is None or rows[1] is None or after.metric is None:
        return None
    both = resampled((rows[0], rows[1]), after.metric, after.aggregation, settings.resampling)
    return after.score, both.difference(0, 1, (after.score, before.score))

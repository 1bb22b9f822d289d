"""results.json: the records of an encoder and of its base, their paired gains, and the papers' averages."""

from dataclasses import dataclass

from eval.averages import averages
from eval.encoders import Encoder
from eval.evaluation import Scored, holds, versions
from eval.records import RESULTS, Record, Records
from eval.registry import MTEB, TASKS
from eval.scores import Settings, gain
from hub.cli import say
from hub.results import Gain, Results


@dataclass(frozen=True)
class Side:
    """One encoder, its records' folder, and the records that count."""

    encoder: Encoder
    place: Records
    records: tuple[Record, ...]

    def twin(self, record: Record) -> Record | None:
        """This encoder's record of the same task and split."""
        return next((own for own in self.records if own.key == record.key), None)


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
    gains = [_gain(model, base, after, before, settings) for after, before in twins if base]
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
        gains=tuple(item for item in gains if item is not None),
    )


def _is_current(record: Record, side: Side, settings: Settings) -> bool:
    """Whether a record is of this encoder and these settings, and its task still has the protocol that it says."""
    task = TASKS.get(record.score.task)
    same = task is None or record.score.protocol == settings.protocol(task)
    return same and holds(record, side.encoder, settings)


def _gain(model: Side, base: Side, after: Record, before: Record, settings: Settings) -> Gain | None:
    """The paired gain; None where no outcomes of rows were kept."""
    rows = model.place.outcomes(*after.key), base.place.outcomes(*before.key)
    if rows[0] is None or rows[1] is None or after.metric is None:
        return None
    return gain(after.score, before.score, (rows[0], rows[1]), after.metric, after.aggregation, settings)

"""Whether a record still holds. Only what decides a score counts: weights, encoding, protocol, data, seeds, rows.

How intervals are made decides intervals alone, which are made again from the kept rows. Versions of libraries are
recorded and shown and make no record stale; but a task that is asked for by a run with another major version of a
library that encodes or scores is measured anew. Model and base are asked for the same tasks, and a gain never sets one
major version against another (``eval.runs.summary``).
"""

from collections.abc import Mapping

from eval.encoders.load import Encoder
from eval.runs.records import Record, Records
from eval.statistics.scores import EvaluationSettings, task_interval

DECIDING = ("torch", "transformers", "sentence-transformers", "mteb")  # libraries, by their major version
SHOWN = 12  # characters of a revision


def why_stale(
    record: Record,
    encoder: Encoder,
    settings: EvaluationSettings,
    protocol: str | None = None,
    data: tuple[str | None, str | None] | None = None,
) -> str | None:
    """Why a record does not hold for this encoder and these settings, in words; None when it does.

    ``protocol`` and ``data`` (the rows' SHA-256, the Hub dataset's revision) are the task's of today, None where they
    are not known.
    """
    score = record.score
    if not encoder.pinned:
        return "the encoder declares no revision, so it may have changed"
    if record.revision != encoder.revision:
        return f"it is of other weights (revision {record.revision[:SHOWN]}, now {encoder.revision[:SHOWN]})"
    if told := _other_encoding(record, encoder):
        return told
    if record.settings.part != settings.part:
        return f"it is of {record.settings.rows}, not of {settings.rows}"
    if score.seeds and score.seeds != settings.probe_seeds:
        return f"seeds {_listed(score.seeds)}, now {_listed(settings.probe_seeds)}"
    if protocol is not None and score.protocol != protocol:
        return f"its protocol was {score.protocol!r}, now {protocol!r}"
    if data is not None and (score.data_sha256, score.data_revision) != data:
        was, now = (one[0] or one[1] or "" for one in ((score.data_sha256, score.data_revision), data))
        return f"its data were others ({was[:SHOWN]}, now {now[:SHOWN]})"
    return None


def other_major(record: Record, versions: Mapping[str, str]) -> str | None:
    """The deciding libraries with another major version than the record was made with, in words; None without."""
    changed = [
        f"{library} {record.versions[library]}, now {versions[library]}"
        for library in DECIDING
        if library in record.versions and library in versions
        if record.versions[library].partition(".")[0] != versions[library].partition(".")[0]
    ]
    return f"it was made with {'; '.join(changed)}" if changed else None


def with_interval(record: Record, records: Records, settings: EvaluationSettings) -> Record:
    """The record with the interval that ``settings`` ask for, made from its kept rows, and written, if it has another.

    A record without kept rows has no interval and comes back as it is.
    """
    if record.settings.resampling == settings.resampling or record.metric is None:
        return record
    rows = records.outcomes(*record.key)
    if rows is None:
        return record
    around = task_interval(record.score, rows, record.metric, record.aggregation, settings)
    score = record.score.model_copy(update={"low": around.low, "high": around.high})
    again = record.model_copy(update={"score": score, "settings": settings})
    records.rewrite(again)
    return again


def _other_encoding(record: Record, encoder: Encoder) -> str | None:
    """What differs of prompt, precision and lengths. Earlier versions kept a hash, with the libraries' versions."""
    if isinstance(record.encoder, str):
        return None if record.encoder == encoder.key else "it is of another encoding, or of other libraries"
    names = sorted({*record.encoder, *encoder.settings})
    found = [(name, record.encoder.get(name), encoder.settings.get(name)) for name in names]
    changed = [f"{name} was {was!r}, is {now!r}" for name, was, now in found if was != now]
    return "; ".join(changed) or None


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))

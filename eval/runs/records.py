"""What an evaluation leaves on disk, task by task, so that it can be resumed and compared.

    FOLDER/tasks/<task>--<split>.json         the score, and what it was measured with
    FOLDER/outcomes/<task>--<split>.parquet   gold, predicted and part of every scored row
    FOLDER/results.json                       all scores of one revision of the encoder
    FOLDER/base/, control/, compared/         the same of the untrained base, the SimCSE baseline, ``--compare``

A task's outcomes are written before its record, which names their SHA-256: a run killed in between has no record of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from eval.encoders.load import Encoder
from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import EvaluationSettings, task_interval
from eval.tasks.task import Aggregation, Metric
from hub.contract.results import Results, TaskScore, read_results
from hub.contract.shards import read_table
from hub.durable import atomic_path, regular, sha256_file, write_text
from hub.errors import InputError

RESULTS = "results.json"
Data = tuple[str | None, str | None]  # the rows' SHA-256, the Hub dataset's revision
BASE, CONTROL, COMPARED = "base", "control", "compared"


class Record(BaseModel):
    """One task's score and what it holds for: the encoder's revision and settings, the evaluation's, the libraries.

    ``encoder`` is what decides an embedding beside the revision (prompt, lengths, precision); earlier versions wrote a
    hash of that and of the libraries' versions. ``metric`` and ``aggregation`` score the kept outcomes again; metric is
    None where none were kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: TaskScore
    revision: str
    encoder: dict[str, str] | str
    settings: EvaluationSettings
    versions: dict[str, str]
    metric: Metric | None
    aggregation: Aggregation = "all"
    outcomes_sha256: str | None = None  # None: the program that scored kept none

    @property
    def key(self) -> tuple[str, str]:
        """Task and split."""
        return self.score.task, self.score.split


@dataclass(frozen=True)
class Records:
    """The records of one encoder in one folder. Writing is atomic; the runner's lock keeps others out."""

    folder: Path

    def find(self, task: str, split: str) -> Record | None:
        """The record of a task when it and its outcomes are whole; None otherwise: it is to be measured anew."""
        return self._read(self._task(task, split))

    def has(self, task: str, split: str) -> bool:
        """Whether there is a record of a task, whole or not."""
        return self._task(task, split).is_file()

    def files(self) -> Iterator[tuple[str, Record | None]]:
        """Every file's name and record; None: it is damaged, of another form, or without its outcomes."""
        for path in sorted((self.folder / "tasks").glob("*.json")):
            yield path.name, self._read(path)

    def all(self) -> list[Record]:
        """Every whole record, by file name."""
        return [record for _, record in self.files() if record is not None]

    def _read(self, path: Path) -> Record | None:
        try:
            record = Record.model_validate_json(regular(path).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError, UnicodeDecodeError):
            return None
        outcomes = self._outcomes(*record.key)
        is_whole = record.outcomes_sha256 is None or (
            outcomes.is_file() and sha256_file(outcomes) == record.outcomes_sha256
        )
        return record if is_whole and path == self._task(*record.key) else None

    def rewrite(self, record: Record) -> None:
        """Write a record whose outcomes stay as they are."""
        write_text(self._task(*record.key), record.model_dump_json(indent=2) + "\n")

    def write(self, record: Record, outcomes: Outcomes | None) -> Record:
        """Write a task's outcomes, then its record, which is handed back with their SHA-256."""
        if outcomes is not None:
            path = self._outcomes(record.score.task, record.score.split)
            _write_outcomes(path, outcomes)
            record = record.model_copy(update={"outcomes_sha256": sha256_file(path)})
        self.rewrite(record)
        return record

    def remove(self, task: str, split: str) -> None:
        """Forget a task: its score no longer holds."""
        self._task(task, split).unlink(missing_ok=True)
        self._outcomes(task, split).unlink(missing_ok=True)

    def outcomes(self, task: str, split: str) -> Outcomes | None:
        """The scored rows of a task, or None when none were kept."""
        path = self._outcomes(task, split)
        if not path.is_file():
            return None
        table = read_table(path)
        part = tuple(table["part"].to_pylist())
        return Outcomes(table["gold"].to_numpy(), table["predicted"].to_numpy(), () if None in part else part)

    def clear_leftovers(self) -> None:
        """Remove the temporary files of a killed process; call it with the folder locked."""
        for leftover in self.folder.rglob(".*.tmp"):
            leftover.unlink()

    def _task(self, task: str, split: str) -> Path:
        return self.folder / "tasks" / f"{slug(task)}--{split}.json"

    def _outcomes(self, task: str, split: str) -> Path:
        return self.folder / "outcomes" / f"{slug(task)}--{split}.parquet"


@dataclass(frozen=True)
class FinishedEvaluation:
    """A finished evaluation: its results, and the scored rows behind them."""

    results: Results
    records: Records

    def outcomes(self, task: str, split: str) -> Outcomes:
        """The scored rows of a task of ``results``. Raises InputError when they are not there or of another score."""
        scores = {(found.task, found.split): found for found in self.results.scores}
        score, record, place = scores.get((task, split)), self.records.find(task, split), self.records.folder
        hint = "evaluate again: sts-dino score"
        if score is None or record is None:
            raise InputError(place, f"holds no scored rows of {task} {split}", hint=hint)
        if record.revision != self.results.revision or record.score.main_score != score.main_score:
            raise InputError(place, f"the rows of {task} {split} are not those of results.json", hint=hint)
        rows = self.records.outcomes(task, split)
        if rows is None:
            raise InputError(place, f"{task} keeps no scored rows", hint="it cannot be resampled")
        return rows


def read_evaluation(place: str | Path) -> FinishedEvaluation:
    """The evaluation in a folder of records, of a model's run directory, or of a results.json in either.

    Raises InputError when there are no results.
    """
    path = Path(place)
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and (beside(path) / RESULTS).is_file():
        folder = path = beside(path)  # it also has the tasks that the recipe does not name
    results = read_results(folder / RESULTS if path.is_dir() else path)
    return FinishedEvaluation(results, Records(folder if (folder / "tasks").is_dir() else beside(folder)))


def beside(model: Path) -> Path:
    """Where the records of a run directory are: next to it, for what is in it will be published."""
    return model.with_name(f"{model.resolve().name}.evaluation")


def slug(name: str, safe: str = "/") -> str:
    """A task's or model's name as a file name; different names stay different."""
    return quote(name, safe=safe).strip("/").replace("/", "--")


def _write_outcomes(path: Path, outcomes: Outcomes) -> None:
    part = pa.array(outcomes.part or [None] * len(outcomes), pa.string()).dictionary_encode()
    table = pa.table({"gold": outcomes.gold, "predicted": outcomes.predicted, "part": part})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


DECIDING = ("torch", "transformers", "sentence-transformers", "mteb")  # libraries, by their major version
INTERVAL = ("bootstrap_samples", "seed", "interval")  # settings that decide it
SHOWN = 12  # characters of a revision


def why_stale(
    record: Record,
    encoder: Encoder,
    settings: EvaluationSettings,
    versions: Mapping[str, str],
    protocol: str | None = None,
    data: Data | None = None,
) -> str | None:
    """Why a record does not hold for this encoder, these settings and libraries, in words; None when it does.

    ``protocol`` and ``data`` are the task's of today, None where they are not known.
    """
    score = record.score
    if not encoder.pinned:
        return "the encoder declares no revision, so it may have changed"
    if record.revision != encoder.revision:
        return f"it is of other weights (revision {record.revision[:SHOWN]}, now {encoder.revision[:SHOWN]})"
    if encoding := _other_encoding(record, encoder):
        return encoding
    if record.settings.part != settings.part:
        return f"it is of {record.settings.rows}, not of {settings.rows}"
    if score.seeds and score.seeds != settings.probe_seeds:
        was, now = (", ".join(map(str, seeds)) for seeds in (score.seeds, settings.probe_seeds))
        return f"seeds {was}, now {now}"
    if protocol is not None and score.protocol != protocol:
        return f"its protocol was {score.protocol!r}, now {protocol!r}"
    if data is not None and (score.data_sha256, score.data_revision) != data:
        was, now = (one[0] or one[1] or "" for one in ((score.data_sha256, score.data_revision), data))
        return f"its data were others ({was[:SHOWN]}, now {now[:SHOWN]})"
    made = record.versions
    changed = [
        f"{library} {made[library]}, now {versions[library]}"
        for library in DECIDING
        if library in made and library in versions
        if made[library].partition(".")[0] != versions[library].partition(".")[0]
    ]
    return f"it was made with {'; '.join(changed)}" if changed else None


def with_interval(record: Record, records: Records, settings: EvaluationSettings) -> Record:
    """The record with the interval that ``settings`` ask for, made from its kept rows, and written, if it has another.

    A record without kept rows has no interval and comes back as it is.
    """
    same = all(getattr(record.settings, key) == getattr(settings, key) for key in INTERVAL)
    rows = None if same else records.outcomes(*record.key)
    if rows is None or record.metric is None:
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

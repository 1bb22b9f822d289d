"""The files of an evaluation, task by task, so that evaluations can be resumed and compared.

    FOLDER/tasks/<task>--<split>.json         the score, with encoder, settings and libraries
    FOLDER/outcomes/<task>--<split>.parquet   gold, predicted and part of every scored row
    FOLDER/results.json                       all scores of one revision of the encoder
    FOLDER/base/, control/, compared/         such files for base, SimCSE baseline, ``--compare``

A task's outcomes are written before its record, which has the SHA-256 of the outcomes. So a run
killed between the two files has no record of the task.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from sts_dino.eval.encoders.load import Encoder
from sts_dino.eval.scoring.bootstrap import EvaluationSettings, add_interval
from sts_dino.eval.tasks.task import Aggregation, Metric, Outcomes
from sts_dino.hub.contract.results import Results, TaskScore, map_by_task, read_results
from sts_dino.hub.contract.shards import read_table
from sts_dino.hub.durable import hash_file, require_regular_file, write_atomically, write_text
from sts_dino.hub.errors import InputError

RESULTS_FILE = "results.json"
BASE_FOLDER, CONTROL_FOLDER, COMPARED_FOLDER = "base", "control", "compared"
# Characters of an escaped task name in a file name, which has at most 255 with split and suffixes
MAX_TASK_CHARACTERS = 180
# Name of a temporary file of ``write_atomically``: .NAME.16-HEX-DIGITS.tmp
LEFTOVER_PATTERN = f".*.{'[0-9a-f]' * 16}.tmp"


class DataVersion(NamedTuple):
    """Version of the scored data: the SHA-256 of the rows, or the revision of a Hub dataset."""

    sha256: str | None
    revision: str | None = None


class Record(BaseModel, frozen=True, extra="forbid"):
    """A task's score, and the encoder, settings and libraries that the score holds for.

    ``revision`` and ``encoder`` (prompt, lengths, precision) decide the embeddings. ``metric`` and
    ``aggregation`` compute the score from the outcomes, e.g. of a resample. ``metric`` and
    ``outcomes_sha256`` are None where no outcomes were kept.
    """

    score: TaskScore
    revision: str
    encoder: dict[str, str]
    settings: EvaluationSettings
    versions: dict[str, str]
    metric: Metric | None
    aggregation: Aggregation = "all"
    outcomes_sha256: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Task and split."""
        return self.score.task, self.score.split


@dataclass(frozen=True)
class Records:
    """The records of one encoder in one folder.

    Every file is written atomically. The command that scores locks the folder.
    """

    folder: Path

    def find(self, task: str, split: str) -> Record | None:
        """Return the record of a task split when record and outcomes are complete, else None.

        Raises InputError when the file is a pipe, a socket or a device.
        """
        return self._read(self._get_task_path(task, split))

    def has(self, task: str, split: str) -> bool:
        """Return whether there is a record of a task split, complete or not."""
        return self._get_task_path(task, split).is_file()

    def read_files(self) -> Iterator[tuple[str, Record | None]]:
        """Yield the name and record of every record file, sorted by name.

        The record is None when the file is damaged, renamed or of another format, or when the
        outcomes of the record are missing or changed. Raises InputError for a pipe, a socket or a
        device.
        """
        for path in sorted((self.folder / "tasks").glob("*.json")):
            yield path.name, self._read(path)

    def list_records(self) -> list[Record]:
        """Return every complete record, sorted by file name."""
        return [record for _, record in self.read_files() if record is not None]

    def _read(self, path: Path) -> Record | None:
        """Return the record in a file; None without a file, a valid record or intact outcomes.

        Raises InputError for a pipe, a socket or a device.
        """
        try:
            content = require_regular_file(path).read_text(encoding="utf-8")
            record = Record.model_validate_json(content)
        except (FileNotFoundError, ValidationError, UnicodeDecodeError):
            return None
        # A file that was copied or renamed holds the record of another task
        if path != self._get_task_path(*record.key):
            return None
        if record.outcomes_sha256 is not None:
            outcomes = self._get_outcomes_path(*record.key)
            if not outcomes.is_file() or hash_file(outcomes) != record.outcomes_sha256:
                return None
        return record

    def rewrite(self, record: Record) -> None:
        """Write a record and leave its outcomes as they are."""
        write_text(self._get_task_path(*record.key), record.model_dump_json(indent=2) + "\n")

    def write(self, record: Record, outcomes: Outcomes | None) -> Record:
        """Write a task's outcomes, then its record; return the record with the outcomes' SHA-256.

        ``outcomes``: None writes ``record`` alone, and returns it unchanged.
        """
        if outcomes is not None:
            path = self._get_outcomes_path(*record.key)
            _write_outcomes(path, outcomes)
            record = record.model_copy(update={"outcomes_sha256": hash_file(path)})
        self.rewrite(record)
        return record

    def remove(self, task: str, split: str) -> None:
        """Remove the record and outcomes of a task, if there are any."""
        self._get_task_path(task, split).unlink(missing_ok=True)
        self._get_outcomes_path(task, split).unlink(missing_ok=True)

    def read_outcomes(self, task: str, split: str) -> Outcomes | None:
        """Return the outcomes of a task's scored rows; None when no outcomes were kept.

        Raises InputError for a damaged file.
        """
        path = self._get_outcomes_path(task, split)
        if not path.is_file():
            return None
        table = read_table(path)
        part = tuple(table["part"].to_pylist())
        if None in part:  # ``_write_outcomes`` writes None where all rows are one part
            part = ()
        return Outcomes(table["gold"].to_numpy(), table["predicted"].to_numpy(), part)

    def clear_leftovers(self) -> None:
        """Remove the temporary files of a killed process from the folders of these records.

        The folders are ``folder``, ``tasks`` and ``outcomes``. The caller has locked ``folder``.
        It may be any folder of the user: other hidden files stay, and so do other subfolders,
        where another process may write.
        """
        for name in ("", "tasks", "outcomes"):
            for leftover in (self.folder / name).glob(LEFTOVER_PATTERN):
                leftover.unlink()

    def _get_task_path(self, task: str, split: str) -> Path:
        """Return the file of a task's record."""
        name = make_file_name(task, MAX_TASK_CHARACTERS)
        return self.folder / "tasks" / f"{name}--{split}.json"

    def _get_outcomes_path(self, task: str, split: str) -> Path:
        """Return the file of a task's outcomes."""
        name = make_file_name(task, MAX_TASK_CHARACTERS)
        return self.folder / "outcomes" / f"{name}--{split}.parquet"


@dataclass(frozen=True)
class FinishedEvaluation:
    """A finished evaluation: its results, and the records with the outcomes of the rows."""

    results: Results
    records: Records

    def read_outcomes(self, task: str, split: str) -> Outcomes:
        """Return the outcomes of the scored rows of a task of ``results``.

        Raises InputError when they are missing, damaged, were not kept or belong to another score.
        """
        folder = self.records.folder
        hint = "evaluate again: sts-dino score"
        score = map_by_task(self.results.scores).get((task, split))
        record = self.records.find(task, split)
        if score is None or record is None:
            raise InputError(folder, f"holds no scored rows of {task} {split}", hint=hint)
        if record.revision != self.results.revision or record.score.main_score != score.main_score:
            raise InputError(
                folder, f"the rows of {task} {split} are not those of results.json", hint=hint
            )
        outcomes = self.records.read_outcomes(task, split)
        if outcomes is None:
            raise InputError(folder, f"{task} keeps no scored rows", hint="it cannot be resampled")
        return outcomes


def read_evaluation(location: str | Path) -> FinishedEvaluation:
    """Read the evaluation in a folder of records, a model's run directory, or a results.json.

    The records lie beside results.json, or in the records folder of the run directory. A run
    directory's records folder precedes the directory's own results.json. Raises InputError when
    there are no results, or the file has another form.
    """
    # Find results.json
    path = Path(location)
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        if (get_records_folder(path) / RESULTS_FILE).is_file():
            # The records folder also has tasks that the recipe does not name
            folder = get_records_folder(path)
        path = folder / RESULTS_FILE
    results = read_results(path)

    # Find the records: those of a results.json in a run directory lie beside the directory
    if not (folder / "tasks").is_dir():
        folder = get_records_folder(folder)
    return FinishedEvaluation(results, Records(folder))


def get_records_folder(model: Path) -> Path:
    """Return the folder of the records of a run directory: RUN.evaluation beside the directory.

    The run directory itself is published, and the records are not. For a symbolic link the folder
    is beside the link, and RUN is the name of the link's target.
    """
    directory = model.resolve()
    # The parents of the paths "." and ".." are not those of the folders that they stand for
    parent = directory.parent if model.name in ("", "..") else model.parent
    return parent / f"{directory.name}.evaluation"


def make_file_name(name: str, limit: int, safe: str = "/") -> str:
    """Return the name of a task or model as a file name.

    A slash becomes "--", so names with "--" in place of a slash share a file name. Characters are
    escaped as in a URL, unless they are ASCII letters, digits, ``_.-~`` or in ``safe``. An escaped
    name of more than ``limit`` characters is cut there, and gets "-" and 8 hex digits of a hash.
    Names are long because a task of a user's file has the file's name, and an escaped Chinese
    character has nine characters.
    """
    file_name = quote(name, safe=safe).strip("/").replace("/", "--")
    if len(file_name) <= limit:
        return file_name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{file_name[:limit]}-{digest}"


def _write_outcomes(path: Path, outcomes: Outcomes) -> None:
    """Write outcomes as a Parquet file with the columns gold, predicted and part.

    ``part`` is null where all rows are one part.
    """
    part = pa.array(outcomes.part or [None] * len(outcomes), pa.string()).dictionary_encode()
    table = pa.table({"gold": outcomes.gold, "predicted": outcomes.predicted, "part": part})
    with write_atomically(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


# Libraries whose other major version makes a record invalid
DECIDING_LIBRARIES = ("torch", "transformers", "sentence-transformers", "mteb")
INTERVAL_SETTINGS = ("bootstrap_samples", "seed", "interval")  # decide an interval


def find_change(
    record: Record,
    encoder: Encoder,
    settings: EvaluationSettings,
    versions: Mapping[str, str],
    protocol: str | None = None,
    data: DataVersion | None = None,
) -> str | None:
    """Return why a record no longer holds, as a clause after "because"; None when it holds.

    Args:
        record: a record of an earlier run.
        encoder: the encoder to score now.
        settings: the settings of this evaluation.
        versions: library → version now.
        protocol: the protocol of the task now; None: not compared.
        data: the data of the task now; None: not compared.
    """
    if not encoder.pinned:
        return "the encoder declares no revision, so it may have changed"

    # List the facts that must agree: clause, value of the record, value now
    score = record.score
    facts: list[tuple[str, Any, Any]] = [
        ("it is of other weights (revision {:.12}, now {:.12})", record.revision, encoder.revision),
        ("it is of {}, not of {}", record.settings.rows, settings.rows),
    ]
    for name in sorted({*record.encoder, *encoder.settings}):
        values = (record.encoder.get(name), encoder.settings.get(name))
        facts.append((f"{name} was {{!r}}, is {{!r}}", *values))
    if score.seeds:
        facts.append(("its probe seeds were {}, now {}", score.seeds, settings.probe_seeds))
    if protocol is not None:
        facts.append(("its protocol was {!r}, now {!r}", score.protocol, protocol))
    if data is not None:
        was = score.data_sha256 or score.data_revision or ""
        now = data.sha256 or data.revision or ""
        facts.append(("it was scored on other data ({:.12}, now {:.12})", was, now))

    # Return the first difference; of a library, only another major version counts
    for words, was, now in facts:
        if was != now:
            return words.format(was, now)
    for library in DECIDING_LIBRARIES:
        was = record.versions.get(library, "")
        now = versions.get(library, "")
        if was.partition(".")[0] != now.partition(".")[0]:
            return f"it was made with {library} {was}, now {now}"
    return None


def update_interval(record: Record, records: Records, settings: EvaluationSettings) -> Record:
    """Return a record with the interval of ``settings``, and write a record that changed.

    The interval is resampled from the kept rows. A record without kept rows, or whose interval
    has these settings, is returned unchanged. Raises InputError for a damaged file of rows,
    RunError when the rows cannot be resampled.
    """
    if all(getattr(record.settings, key) == getattr(settings, key) for key in INTERVAL_SETTINGS):
        return record
    outcomes = records.read_outcomes(*record.key)
    if outcomes is None or record.metric is None:
        return record
    score = add_interval(record.score, outcomes, record.metric, record.aggregation, settings)
    updated = record.model_copy(update={"score": score, "settings": settings})
    records.rewrite(updated)
    return updated

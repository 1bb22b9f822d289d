"""A downloaded copy of a published dataset: its manifest, its files and their checksums, its raw rows."""

import copy
import hashlib
import json
import re
from typing import NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from .finished_rows import sift
from .published_dataset import SPLITS, config_name

SIFTED = (
    "identical",
    "other_label",
    "not_best",
    "duplicate",
    "over_cap",
)  # reasons of rows that stand in raw and in rejected


class Damage(Exception):
    """Files that are not as published; the message is one line."""


class Misuse(Exception):
    """A command that cannot be carried out; the message is one line."""


class File(NamedTuple):
    """A data file as manifest.json names it."""

    path: str
    sha256: str
    config: str
    split: str
    rows: int

    @property
    def shard(self):
        """Index and total in the file's name."""
        return shard_of(self.path)

    @property
    def version(self):
        """The version that appended the file, as numbers; () for a file of the first one."""
        return version_of(self.path)


NAME = re.compile(r"[a-z]+-(?:v(\d+)\.(\d+)\.(\d+)-)?(\d{5})-of-(\d{5})\.parquet")


def version_of(path):
    """The version in a file's name, as numbers; () where it has none."""
    return tuple(int(number) for number in NAME.fullmatch(path.rsplit("/", 1)[1]).groups()[:3] if number)


def shard_of(path):
    """Index and total in a file's name."""
    return tuple(int(number) for number in NAME.fullmatch(path.rsplit("/", 1)[1]).groups()[3:])


class Repository:
    """A downloaded copy of the dataset of a ``Spec``: its manifest, its files, its raw rows.

    ``seen``: shot count → texts that may stand once in the dataset, for those who look at its parts.
    """

    def __init__(self, spec, directory):
        self.seen, self.version = {}, ()
        self.spec, self.directory, place = spec, directory, directory / "manifest.json"
        try:
            manifest = json.loads(place.read_text(encoding="utf-8"))
            self.complete, self.empty = manifest["complete"], set(manifest["counts"].get("empty_shards", ()))
            self.files = sorted(File(*(file[key] for key in File._fields)) for file in manifest["files"])
            strange = [file.path for file in self.files if not self._is_usual(file)]
            self.files = self.files if strange else sorted(self.files, key=lambda file: (file.version, file.path))
        except OSError as error:
            raise Misuse(f"{place}: {error.strerror}; give the folder of a downloaded copy") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misuse(f"{place}: is no manifest of a dataset ({error!r})") from error
        if manifest.get("name") != spec.name:
            raise Misuse(f"{place}: belongs to {manifest.get('name')!r}, this script to {spec.name!r}")
        if strange:
            raise Misuse(f"{place}: names {strange[0]!r}, which is no file of a config of this dataset")

    def _is_usual(self, file):
        """Whether an entry of manifest.json names a place for the rows of its config and split."""
        if file.config not in self.spec.features or file.split not in SPLITS or not isinstance(file.rows, int):
            return False
        folder, _, name = file.path.rpartition("/")
        return folder == f"data/{file.config}" and name.startswith(f"{file.split}-") and NAME.fullmatch(name)

    def parts(self):
        """The rows of the first version, then those that each later one appended: made by themselves."""
        for version in dict.fromkeys(file.version for file in self.files):
            part = copy.copy(self)
            part.version, part.files = version, [file for file in self.files if file.version == version]
            yield part

    def _raw_path(self, shots, index, total):
        version = f"v{'.'.join(map(str, self.version))}-" if self.version else ""
        return f"data/{config_name('raw', shots)}/train-{version}{index:05d}-of-{total:05d}.parquet"

    def shards(self, config, split=None):
        """The files of a config (and split), in order."""
        return [file for file in self.files if file.config == config and split in (None, file.split)]

    def raw_shards(self, shots):
        """How many raw shards a shot count has, with those that have no rows and so no file."""
        folder, sets = f"data/{config_name('raw', shots)}/", self.spec.sets[shots]
        paths = [path for path in (*(file.path for file in self.files), *self.empty) if path.startswith(folder)]
        named = (path for path in paths if NAME.fullmatch(path[len(folder) :]))
        totals = [shard_of(path)[1] for path in named if version_of(path) == self.version]
        if not self.complete or not totals:
            raise Misuse(f"{self.directory}: the run is not finished, there is nothing to make from raw rows yet")
        total = totals[0]
        if not total or total % sets:
            raise Damage(f"{self.directory}: {total} raw shards are not those of {sets} example sets")
        return total

    def sifted(self, shots, index):
        """Kept and dropped rows of one raw shard."""
        path = self._raw_path(shots, index, self.raw_shards(shots))
        if path in self.empty:
            return [], []
        if path not in {file.path for file in self.files}:
            raise Damage(f"{self.directory / path}: is missing in manifest.json")
        rows = pq.ParquetFile(self.directory / path).read().to_pylist()
        unknown = {str(row["target"]) for row in rows}.difference(self.spec.labels)
        if unknown:
            raise Damage(f"{self.directory / path}: has rows for the unknown label {min(unknown)!r}")
        return sift(self.spec, rows)

    def published(self, config, part):
        """Rows as published: of a split, or those that post-processing dropped (the last shard holds the late ones)."""
        for file in self.shards(config, part if part in SPLITS else None):
            is_last = file.shard[0] + 1 == file.shard[1]
            if part not in SPLITS and self.spec.form == "text" and (part == "late") != is_last:
                continue
            for batch in pq.ParquetFile(self.directory / file.path).iter_batches(1000):
                yield from (row for row in batch.to_pylist() if part in SPLITS or row["reason"] in SIFTED)

    def check(self, files):
        """Raise Damage when files are not as manifest.json says."""
        problems = [(file.path, problem) for file in files for problem in [self._problem(file)] if problem]
        if problems:
            more = f" (and {len(problems) - 1} more such files)" if problems[1:] else ""
            raise Damage(f"{self.directory / problems[0][0]}: {problems[0][1]}{more}; download again")

    def _problem(self, file):
        path = self.directory / file.path
        if not path.is_file():
            return "is missing"
        found = sha256(path)
        if found != file.sha256:
            return f"SHA-256 is {found}, manifest.json says {file.sha256}"
        parquet = pq.ParquetFile(path)
        if parquet.metadata.num_rows != file.rows:
            return f"has {parquet.metadata.num_rows} rows, manifest.json says {file.rows}"
        found, wanted = parquet.schema_arrow, self.spec.features[file.config]
        if not found.equals(wanted.arrow_schema) or datasets.Features.from_arrow_schema(found) != wanted:
            return f"has other columns than the config {file.config!r}"
        return None

    def check_names(self):
        """Raise Damage for files in data/ that manifest.json does not name: loading would read them."""
        named = {file.path for file in self.files}
        for path in sorted(self.directory.glob("data/*/[!.]*")):
            if path.relative_to(self.directory).as_posix() not in named:
                raise Damage(f"{path}: is not named in manifest.json; remove it")

    def table(self, rows, config):
        """Rows as a table of a config."""
        return pa.Table.from_pylist(rows, schema=self.spec.features[config].arrow_schema)


def sha256(path):
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for part in iter(lambda: stream.read(1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()

"""auto-nli: a loading script for `datasets` 2.14 to 3.6, and a check of a downloaded copy.

It stands on the branch `script` of the dataset's repository, beside the files of `main`:

    datasets.load_dataset("<org>/auto-nli", revision="script", trust_remote_code=True)

(2.14 and 2.15 take no `trust_remote_code`.) `datasets` 4 and later run no scripts: they load `main`, as every version
can. With any version, this file is a command for a downloaded copy in DIR, by default the folder of this file:

    python auto-nli.py --verify [DIR]
    python auto-nli.py --rebuild OUT [DIR]

`--verify` holds every file against manifest.json, and the finished rows against those that the raw rows make.
`--rebuild` writes the finished configs again into OUT, from the raw files and manifest.json alone. Exit codes: 0 as
published, 1 damaged, 2 wrong use. Written from the recipe by `python -m release.scripts`.
"""

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

NAME = "auto-nli"
SEED = 42
MAX_PER_LABEL = 1  # texts of one label for a first text
VALIDATION_FRACTION = 0.0  # of the first texts
SETS = {0: 1, 5: 10, 10: 10, 20: 10}  # shot count: example sets
LABELS = [
    "entailment",
    "neutral",
    "contradiction",
]

PROVENANCE = {
    "source_id": datasets.Value("string"),
    "target": datasets.Value("string"),
    "sample": datasets.Value("int32"),
    "attempt": datasets.Value("int32"),
    "seed": datasets.Value("uint64"),
    "log_prob": datasets.Value("float32"),
    "margin": datasets.Value("float32"),
}
EXAMPLE_SET = {"example_set": datasets.Value("int32")}
RAW = {"text1": datasets.Value("string"), "text2": datasets.Value("string"), **PROVENANCE}
FINISHED = {
    "triplet": {
        "anchor": datasets.Value("string"),
        "positive": datasets.Value("string"),
        "negative": datasets.Value("string"),
        "source_id": datasets.Value("string"),
    },
    "pair-class": {
        "premise": datasets.Value("string"),
        "hypothesis": datasets.Value("string"),
        "label": datasets.ClassLabel(names=LABELS),
        **PROVENANCE,
    },
}
CONFIGS = {**FINISHED, "raw": RAW, "rejected": {**RAW, "reason": datasets.Value("string")}}
SPLITS = ("train", "validation", "test")
ROW_GROUP, ROW_GROUP_BYTES = 5000, 64 << 20
SIFTED = ("identical", "duplicate", "over_cap")  # reasons of rows that stand in raw and in rejected


def config_name(base, shots):
    """The config of a shot count, e.g. raw-5shot; the base alone without few-shot examples."""
    return base if shots is None else f"{base}-{shots}shot"


FEATURES = {
    config_name(base, shots): datasets.Features({**columns, **EXAMPLE_SET})
    for shots in SETS
    for base, columns in CONFIGS.items()
}


class PublishedDataset(datasets.ArrowBasedBuilder):
    """The parquet files that manifest.json names, both at the commit of this script."""

    BUILDER_CONFIGS = tuple(datasets.BuilderConfig(name=config) for config in FEATURES)
    DEFAULT_CONFIG_NAME = next(iter(FEATURES))

    def _info(self):
        return datasets.DatasetInfo(features=FEATURES[self.config.name])

    def _split_generators(self, dl_manager):
        with open(dl_manager.download("manifest.json"), encoding="utf-8") as stream:  # noqa: PTH123 - patched to stream
            files = [file for file in json.load(stream)["files"] if file["rows"]]
        own = sorted((file for file in files if file["config"] == self.config.name), key=lambda file: file["path"])
        if not own:
            there = [config for config in FEATURES if any(file["config"] == config for file in files)]
            raise ValueError(f"{NAME}: the config {self.config.name!r} has no rows yet; these have: {there}")
        splits = {name: [file["path"] for file in own if file["split"] == name] for name in SPLITS}
        return [
            datasets.SplitGenerator(name=name, gen_kwargs={"files": dl_manager.download(paths)})
            for name, paths in splits.items()
            if paths
        ]

    def _generate_tables(self, files):
        for number, file in enumerate(files):
            with open(file, "rb") as stream:  # noqa: PTH123 - patched to stream
                for batch, rows in enumerate(pq.ParquetFile(stream).iter_batches(1000)):
                    yield f"{number}_{batch}", pa.Table.from_batches([rows])


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


class Repository:
    """A downloaded copy of the dataset: its manifest, its files, its raw rows."""

    def __init__(self, directory):
        self.directory, place = directory, directory / "manifest.json"
        try:
            manifest = json.loads(place.read_text(encoding="utf-8"))
            self.complete, self.empty = manifest["complete"], set(manifest["counts"].get("empty_shards", ()))
            self.files = sorted(File(*(file[key] for key in File._fields)) for file in manifest["files"])
            strange = [file.path for file in self.files if not _usual(file)]
        except OSError as error:
            raise Misuse(f"{place}: {error.strerror}; give the folder of a downloaded copy") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misuse(f"{place}: is no manifest of a dataset ({error!r})") from error
        if manifest.get("name") != NAME:
            raise Misuse(f"{place}: belongs to {manifest.get('name')!r}, this script to {NAME!r}")
        if strange:
            raise Misuse(f"{place}: names {strange[0]!r}, which is no file of a config of this dataset")

    def shards(self, config, split=None):
        """The files of a config (and split), in order."""
        return [file for file in self.files if file.config == config and split in (None, file.split)]

    def raw_shards(self, shots):
        """How many raw shards a shot count has, with those that have no rows and so no file."""
        files = self.shards(config_name("raw", shots))
        if not self.complete or not files:
            raise Misuse(f"{self.directory}: the run is not finished, there is nothing to make from raw rows yet")
        total = shard_number(files[0])[1]
        if not total or total % SETS[shots]:
            raise Damage(f"{self.directory}: {total} raw shards are not those of {SETS[shots]} example sets")
        return total

    def sifted(self, shots, index):
        """Kept and dropped rows of one raw shard."""
        path = f"data/{config_name('raw', shots)}/train-{index:05d}-of-{self.raw_shards(shots):05d}.parquet"
        if path in self.empty:
            return [], []
        if path not in {file.path for file in self.files}:
            raise Damage(f"{self.directory / path}: is missing in manifest.json")
        rows = pq.ParquetFile(self.directory / path).read().to_pylist()
        unknown = {str(row["target"]) for row in rows}.difference(LABELS)
        if unknown:
            raise Damage(f"{self.directory / path}: has rows for the unknown label {min(unknown)!r}")
        return sift(rows)

    def published(self, config, part):
        """Rows as published: of a split, or those rejected rows that sifting dropped (``sifted``)."""
        for file in self.shards(config, part if part in SPLITS else None):
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
        found, wanted = parquet.schema_arrow, FEATURES[file.config]
        if not found.equals(wanted.arrow_schema) or datasets.Features.from_arrow_schema(found) != wanted:
            return f"has other columns than the config {file.config!r}"
        return None

    def check_names(self):
        """Raise Damage for files in data/ that manifest.json does not name: loading would read them."""
        named = {file.path for file in self.files}
        for path in sorted(self.directory.glob("data/*/[!.]*")):
            if path.relative_to(self.directory).as_posix() not in named:
                raise Damage(f"{path}: is not named in manifest.json; remove it")


def _usual(file):
    """Whether an entry of manifest.json names a place for the rows of its config and split."""
    if file.config not in FEATURES or file.split not in SPLITS or not isinstance(file.rows, int):
        return False
    return re.fullmatch(rf"data/{file.config}/{file.split}-\d{{5}}-of-\d{{5}}\.parquet", file.path)


def shard_number(file):
    """Index and total of a file's name."""
    return tuple(int(number) for number in re.findall(r"\d+", file.path.rsplit("/", 1)[1]))


def sha256(path):
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for part in iter(lambda: stream.read(1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()


def hashed(*identity):
    """64 bits that belong to an identity: BLAKE2b of its parts, joined by the unit separator."""
    text = "\x1f".join(str(part) for part in identity)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def by_split(rows):
    """Rows by the split of their first text, which a hash of it decides."""
    splits = {"train": [], "validation": []}
    for row in rows:
        share = hashed(SEED, "split", row["text1"]) / 2**64
        splits["validation" if share < VALIDATION_FRACTION else "train"].append(row)
    return splits


def sift(raw):
    """Kept and dropped rows of a shard: no text equal to its first text, none twice, so many of a label."""
    kept, dropped, seen, found = [], [], set(), Counter()
    for row in raw:
        cell, text = (row["text1"], row["target"]), (row["text1"], row["target"], row["text2"])
        if row["text1"] == row["text2"]:
            dropped.append({**row, "reason": "identical"})
        elif text in seen:
            dropped.append({**row, "reason": "duplicate"})
        elif found[cell] == MAX_PER_LABEL:
            dropped.append({**row, "reason": "over_cap"})
        else:
            kept.append(row)
            seen.add(text)
            found[cell] += 1
    return kept, dropped


def origin(row, names):
    """The columns of ``names`` that a row has, and its example set if there is one."""
    return {name: row[name] for name in (*names, *EXAMPLE_SET)}


def triplets(rows):
    """The i-th entailed and the i-th contradicting text of each first text."""
    written = {}
    for row in rows:
        written.setdefault(row["text1"], []).append(row)
    for text1, own in written.items():
        positives, negatives = (
            [row["text2"] for row in own if row["target"] == target] for target in ("entailment", "contradiction")
        )
        for positive, negative in zip(positives, negatives):  # noqa: B905 - Python 3.9
            texts = {"anchor": text1, "positive": positive, "negative": negative}
            yield {**texts, **origin(own[0], ["source_id"])}


def classified_pairs(rows):
    """Every text with its class."""
    for row in rows:
        texts = {"premise": row["text1"], "hypothesis": row["text2"], "label": LABELS.index(row["target"])}
        yield {**texts, **origin(row, PROVENANCE)}


def remade(repository):
    """(config, part, rows) as the raw rows make them, one shard at a time, in the order of publication."""
    for shots in SETS:
        for index in range(repository.raw_shards(shots)):
            kept, dropped = repository.sifted(shots, index)
            yield config_name("rejected", shots), "sifted", dropped
            for split, rows in by_split(kept).items():
                yield config_name("triplet", shots), split, list(triplets(rows))
                yield config_name("pair-class", shots), split, list(classified_pairs(rows))


def verify(repository):
    """Check every file, then hold the published rows against those that the raw rows make. Prints what was found."""
    repository.check_names()
    repository.check(repository.files)
    print(f"{len(repository.files)} files: SHA-256, rows and columns are as manifest.json says")
    if not repository.complete:
        print("the run is not finished: there is nothing to make from raw rows yet")
        return
    parts = {config_name(base, shots): SPLITS for base in FINISHED for shots in SETS}
    parts.update({config_name("rejected", shots): ("sifted",) for shots in SETS})
    streams = {(config, part): repository.published(config, part) for config in parts for part in parts[config]}
    counts = Counter()
    for config, part, rows in remade(repository):
        for row in typed(rows, config):
            compare(f"{config}/{part}", counts[config, part], row, next(streams[config, part], None))
            counts[config, part] += 1
    for (config, part), stream in streams.items():
        compare(f"{config}/{part}", counts[config, part], None, next(stream, None))
        if counts[config, part]:
            print(f"{config}/{part}: {counts[config, part]} rows are as the raw rows make them")


def typed(rows, config):
    """Rows as they come back from a parquet file of a config."""
    return pa.Table.from_pylist(rows, schema=FEATURES[config].arrow_schema).to_pylist()


def compare(place, number, made, published):
    """Raise Damage when two rows, or a row and the end of the rows, differ."""
    if made == published:
        return
    if made is None:
        raise Damage(f"{place}: has more than the {number} rows that the raw rows make")
    if published is None:
        raise Damage(f"{place}: has {number} rows, the raw rows make more")
    for name, value in made.items():
        other = published[name]
        if value != other and not (value != value and other != other):  # NaN is not equal to itself
            raise Damage(f"{place}: row {number}: {name} is {other!r}, the raw rows make {value!r}")


def rebuild(repository, out):
    """Write the finished configs under ``out``, from the raw rows, into files as manifest.json names them."""
    if out.exists() and any(out.iterdir()):
        raise Misuse(f"{out}: is not empty; name a new folder")
    repository.check([file for shots in SETS for file in repository.shards(config_name("raw", shots))])
    finished = [config_name(base, shots) for base in FINISHED for shots in SETS]
    files = {(config, split): repository.shards(config, split) for config in finished for split in SPLITS}
    waiting = {place: [] for place in files}
    for config, part, rows in remade(repository):
        if part not in SPLITS:
            continue
        ready = waiting[config, part]
        ready += rows
        while files[config, part] and len(ready) >= files[config, part][0].rows:
            file = files[config, part].pop(0)
            write(out, file, ready[: file.rows])
            del ready[: file.rows]
    for place, ready in waiting.items():
        if ready or files[place]:
            raise Damage(f"{'/'.join(place)}: the raw rows make another number of rows than manifest.json says")


def write(out, file, rows):
    """Write rows as the published file was written, and print whether the bytes are the published ones."""
    path = out / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=FEATURES[file.config].arrow_schema)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for group in row_groups(table):
            writer.write_table(group)
    same = "the published bytes" if sha256(path) == file.sha256 else "not the published bytes (other library versions)"
    print(f"{path}: {len(rows)} rows, {same}")


def row_groups(table):
    """Groups of ``ROW_GROUP`` rows, halved where their texts are too long for the Hub's viewer."""
    start = 0
    while start < len(table):
        group = table.slice(start, ROW_GROUP - start % ROW_GROUP)
        while group.nbytes > ROW_GROUP_BYTES and len(group) > 1:
            group = group.slice(0, len(group) // 2)
        yield group
        start += len(group)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=f"Check a downloaded copy of the dataset {NAME}.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--verify", action="store_true", help="check all files, and the finished rows against raw")
    action.add_argument("--rebuild", metavar="OUT", type=Path, help="write the finished configs again, from raw")
    here = Path(__file__).resolve().parent
    parser.add_argument("directory", metavar="DIR", nargs="?", type=Path, default=here, help="[default: %(default)s]")
    given = parser.parse_args()
    try:
        repository = Repository(given.directory)
        verify(repository) if given.verify else rebuild(repository, given.rebuild)
    except Misuse as error:
        sys.exit(_failed(error, 2))
    except (Damage, OSError, pa.ArrowException) as error:
        sys.exit(_failed(error, 1))


def _failed(error, code):
    print(f"error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()

"""The command of a loading script, for a downloaded copy: ``--verify`` holds every file against manifest.json and the
finished rows against those that the raw rows make; ``--rebuild`` writes the finished configs again from the raw ones.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .downloaded_copy import Damage, Misuse, Repository, sha256
from .finished_rows import remade
from .published_dataset import SPLITS, config_name

ROW_GROUP, ROW_GROUP_BYTES = 5000, 64 << 20


def verify(repository):
    """Check every file, then hold the published rows against those that the raw rows make. Prints what was found."""
    repository.check_names()
    repository.check(repository.files)
    print(f"{len(repository.files)} files: SHA-256, rows and columns are as manifest.json says")
    if not repository.complete:
        print("the run is not finished: there is nothing to make from raw rows yet")
        return
    spec = repository.spec
    parts = {config_name(base, shots): SPLITS for base in spec.finished for shots in spec.sets}
    dropped = ("sifted", "late") if spec.form == "text" else ("sifted",)
    parts.update({config_name("rejected", shots): dropped for shots in spec.sets})
    streams = {(config, part): repository.published(config, part) for config in parts for part in parts[config]}
    counts = Counter()
    for config, part, rows in remade(repository):
        for row in repository.table(rows, config).to_pylist():
            compare(f"{config}/{part}", counts[config, part], row, next(streams[config, part], None))
            counts[config, part] += 1
    for (config, part), stream in streams.items():
        compare(f"{config}/{part}", counts[config, part], None, next(stream, None))
        if counts[config, part]:
            print(f"{config}/{part}: {counts[config, part]} rows are as the raw rows make them")


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
    spec = repository.spec
    repository.check([file for shots in spec.sets for file in repository.shards(config_name("raw", shots))])
    finished = [config_name(base, shots) for base in spec.finished for shots in spec.sets]
    files = {(config, split): repository.shards(config, split) for config in finished for split in SPLITS}
    waiting = {place: [] for place in files}
    for config, part, rows in remade(repository):
        if part not in SPLITS:
            continue
        ready = waiting[config, part]
        ready += rows
        while files[config, part] and len(ready) >= files[config, part][0].rows:
            file = files[config, part].pop(0)
            write(out, file, repository.table(ready[: file.rows], config))
            del ready[: file.rows]
    for place, ready in waiting.items():
        if ready or files[place]:
            raise Damage(f"{'/'.join(place)}: the raw rows make another number of rows than manifest.json says")


def write(out, file, table):
    """Write rows as the published file was written, and print whether the bytes are the published ones."""
    path = out / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for group in row_groups(table):
            writer.write_table(group)
    same = "the published bytes" if sha256(path) == file.sha256 else "not the published bytes (other library versions)"
    print(f"{path}: {len(table)} rows, {same}")


def row_groups(table):
    """Groups of ``ROW_GROUP`` rows, halved where their texts are too long for the Hub's viewer."""
    start = 0
    while start < len(table):
        group = table.slice(start, ROW_GROUP - start % ROW_GROUP)
        while group.nbytes > ROW_GROUP_BYTES and len(group) > 1:
            group = group.slice(0, len(group) // 2)
        yield group
        start += len(group)


def main(spec, here):
    """The command line of the dataset of ``spec``, for a copy that is by default the folder ``here``."""
    parser = argparse.ArgumentParser(description=f"Check a downloaded copy of the dataset {spec.name}.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--verify", action="store_true", help="check all files, and the finished rows against raw")
    action.add_argument("--rebuild", metavar="OUT", type=Path, help="write the finished configs again, from raw")
    parser.add_argument("directory", metavar="DIR", nargs="?", type=Path, default=here, help="[default: %(default)s]")
    given = parser.parse_args()
    try:
        repository = Repository(spec, given.directory)
        verify(repository) if given.verify else rebuild(repository, given.rebuild)
    except Misuse as error:
        sys.exit(_failed(error, 2))
    except (Damage, OSError, pa.ArrowException) as error:
        sys.exit(_failed(error, 1))


def _failed(error, code):
    print(f"error: {error}", file=sys.stderr)
    return code

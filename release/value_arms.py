"""The arms of a training value: what one fixed student is trained on, always the same number of pairs.

``dataset``: pairs of the dataset. ``shuffled``: the same pairs, their scores permuted. ``copies``: their first texts
alone, each its own positive against the others (unsupervised SimCSE, Gao et al. 2021), so no language model's work is
in it. ``people``: pairs of the STS Benchmark's train part with people's scores. Each seed draws pairs of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from hub.client.dataset_reader import FinishedRun, local_run, published_run
from hub.contract.run_dir import Manifest, describe, read_manifest, write_manifest
from hub.contract.schema import ROW_SCHEMAS, features, is_finished
from hub.contract.shards import parquet_schema, read_table, shard_path, write_shard
from hub.errors import InputError

STS, TRIPLET = ROW_SCHEMAS["sts"], ROW_SCHEMAS["triplet"]
CONFIG = "pairs"  # of an arm's run directory
HIGHEST = 5  # of people's scores in the STS Benchmark
Row = dict[str, Any]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs to draw from: first texts, second texts and scores (0 to 1), each of one length, in the data's order."""

    place: str
    firsts: Sequence[str]
    seconds: Sequence[str]
    scores: Sequence[float]

    def draw(self, pairs: int, seed: int) -> list[Row]:
        """So many different rows, drawn at random and shuffled. Raises InputError when there are fewer."""
        if len(self.firsts) < pairs:
            found = f"has {len(self.firsts):,} scored pairs, fewer than the {pairs:,} that every arm is trained on"
            raise InputError(self.place, found, hint=f"give --pairs {len(self.firsts)} or fewer")
        drawn = Random(seed).sample(range(len(self.firsts)), pairs)
        return [dict(zip(STS.columns, (self.firsts[i], self.seconds[i], self.scores[i]), strict=True)) for i in drawn]


@dataclass(frozen=True)
class MeasuredDataset:
    """A dataset whose value is asked for. ``directory``: its run directory, None for one of a Hub."""

    name: str
    config: str
    fingerprint: str
    directory: Path | None
    pairs: ScoredPairs = field(repr=False)


def read_dataset(place: str, config: str | None = None) -> MeasuredDataset:
    """The train split of a finished run's scored pairs: a run directory, or ORG/NAME[@REVISION] of a Hub.

    Raises InputError when there is no such run, no such config, or its rows are no scored pairs.
    """
    directory = Path(place) if Path(place).is_dir() else None
    run = local_run(directory, place) if directory is not None else _of_hub(place)
    if run.manifest.kind != "dataset":
        raise InputError(place, f"is the run of a {run.manifest.kind}", allowed="the run of a dataset")
    finished = list(filter(is_finished, run.configs))
    if config is None and len(finished) != 1:
        raise InputError(place, "which config is trained on?", allowed=finished or "a finished one", hint="--config")
    chosen = config or finished[0]
    if chosen not in run.configs:
        raise InputError(place, f"has no config {chosen!r}", allowed=run.configs)
    folder, shards = run.shards(chosen)
    paths = [folder / shard.path for shard in shards if shard.split in (None, "train")]
    if not paths:
        raise InputError(f"{place} ({chosen})", "has no rows to train on")
    lacking = [column for column in STS.columns if column not in parquet_schema(paths[0]).names]
    if lacking:
        hint = "the value is measured of scored sentence pairs (schema: sts)"
        raise InputError(f"{place} ({chosen})", f"has no column {lacking[0]!r}", allowed=list(STS.columns), hint=hint)
    table = pa.concat_tables([read_table(path, list(STS.columns)) for path in paths])
    firsts, seconds, scores = (table[column].to_pylist() for column in STS.columns)
    pairs = checked(ScoredPairs(f"{place} ({chosen})", firsts, seconds, scores))
    return MeasuredDataset(run.manifest.name, chosen, run.manifest.fingerprint, directory, pairs)


def _of_hub(place: str) -> FinishedRun:
    if place.count("/") != 1:
        hint = "make the dataset first (python -m generation.run RECIPE)"
        raise InputError(
            place, "is no directory here", allowed="a finished run directory, ORG/NAME@REVISION", hint=hint
        )
    repo_id, _, revision = place.partition("@")
    found = published_run(repo_id, revision or None, place)
    if found is None:
        raise InputError(place, "holds no run of this project", allowed="a dataset with its manifest.json")
    return found


def checked(pairs: ScoredPairs) -> ScoredPairs:
    """The pairs. Raises InputError for a text or a score that is missing, or a score outside 0 to 1."""
    for number, row in enumerate(zip(pairs.firsts, pairs.seconds, pairs.scores, strict=True)):
        if not row[0] or not row[1]:
            raise InputError(pairs.place, f"row {number} has an empty text")
        if row[2] is None or not (math.isfinite(row[2]) and 0 <= row[2] <= 1):
            raise InputError(pairs.place, f"row {number} has the score {row[2]}", allowed="0 to 1")
    return pairs


def read_people(path: Path) -> ScoredPairs:
    """People's pairs in the STS Benchmark's layout: columns 5 to 7 are the score (0 to 5) and the two sentences.

    Raises InputError naming the line that is none.
    """
    firsts, seconds, scores = list[str](), list[str](), list[float]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        cells = line.split("\t")
        try:
            scores.append(float(cells[4]) / HIGHEST)
            firsts.append(cells[5].strip())
            seconds.append(cells[6].strip())
        except (IndexError, ValueError):
            raise InputError(f"{path}:{number}", "is no line of the STS Benchmark's layout") from None
    return checked(ScoredPairs(str(path), firsts, seconds, scores))


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same pairs with their scores permuted: what is left is texts and the scores' distribution."""
    scores = [row["score"] for row in rows]
    Random(seed).shuffle(scores)
    return [{**row, "score": score} for row, score in zip(rows, scores, strict=True)]


def copies(rows: Sequence[Row], seed: int, place: str) -> list[Row]:
    """Each row's first text as a triplet: itself as the positive, another first text as the negative.

    Raises InputError when there is one first text alone.
    """
    firsts = [row["sentence1"] for row in rows]
    if len(set(firsts)) < 2:
        raise InputError(place, "has one first text alone: the copies control needs others to tell it from")
    random = Random(seed)
    found = []
    for first in firsts:
        other = random.choice(firsts)
        while other == first:
            other = random.choice(firsts)
        found.append(dict(zip(TRIPLET.columns, (first, first, other), strict=True)))
    return found


def write_pairs(folder: Path, rows: Sequence[Row]) -> Path:
    """A run directory of these rows in ``folder``, named by their content; what is there already is not written again.

    rows: scored pairs or triplets, whichever the first one is.
    """
    digest = hashlib.sha256(repr([list(row.values()) for row in rows]).encode()).hexdigest()
    directory = folder / digest[:16]
    if read_manifest(directory) is None:
        path = shard_path(CONFIG, "train", 0, 1)
        schema = STS if "score" in rows[0] else TRIPLET
        write_shard(directory / path, rows, features(schema.columns))
        entry = describe(directory, path, config=CONFIG, split="train", rows=len(rows))
        manifest = Manifest(kind="dataset", name=CONFIG, version="0.0.0", fingerprint=digest, complete=True)
        write_manifest(directory, manifest.with_files([entry]))
    return directory

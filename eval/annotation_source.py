"""Where the rows come from: a finished dataset run directory, or its copy on a Hub, ``ORG/NAME[@REVISION]``.

A triplet is two questions: anchor and positive (entailment), anchor and negative (contradiction).
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from eval.annotation_sample import Examples, class_scale, inference_scale, score_label, similarity_scale
from hub.errors import InputError, nearest
from hub.recipe import NLI_LABELS
from hub.remote import reading
from hub.run_dir import MANIFEST, Manifest, changed_files, require_complete
from hub.schema import PAIR_CLASS, STS, TRIPLET, base_config

BASES = ("pair-class", "triplet", "postprocessed")  # finished configs; the first that a dataset has is asked about
TEXT_COLUMNS = ("text", "label")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@.+)?")


def read_examples(run: str, config: str | None = None, split: str = "train") -> Examples:
    """All rows of one config and split. Raises InputError when the place is no finished dataset or a shard is damaged,
    RunError when the Hub cannot be read.
    """
    if Path(run).is_dir():
        directory, name = Path(run), Path(run).resolve().name
        manifest = _dataset(directory, run)
        config, shards = _shards(manifest, config, split, run)
    else:
        name = run.partition("@")[0]
        directory, manifest, config, shards = _download(run, config, split)
    damaged = changed_files(directory, manifest.model_copy(update={"files": tuple(shards)}))
    if damaged:
        hint = "run the stage that makes it again"
        raise InputError(run, f"{damaged[0]} is missing or not what its manifest says", hint=hint)
    tables = [pq.read_table(directory / shard.path) for shard in shards]
    return _examples(pa.concat_tables(tables), name, config, split)


def _dataset(directory: Path, place: str) -> Manifest:
    manifest = require_complete(directory)
    if manifest.kind != "dataset":
        raise InputError(place, f"is the run of a {manifest.kind}", allowed="the run of a dataset")
    return manifest


def _shards(manifest: Manifest, config: str | None, split: str, place: str) -> tuple[str, list[Any]]:
    """The config to ask about and its data files of the split."""
    configs = sorted({file.config for file in manifest.files if file.config and base_config(file.config) in BASES})
    if config is None:
        first = next((base for base in BASES if base in map(base_config, configs)), None)
        found = [name for name in configs if base_config(name) == first]
        if len(found) != 1:
            problem = "has several configs" if found else "has no finished config"
            raise InputError(place, problem, allowed=configs, hint="name one: --config")
        config = found[0]
    elif config not in configs:
        guess = nearest(config, configs)
        hint = f"did you mean {guess!r}?" if guess else None
        raise InputError(place, f"has no finished config {config!r}", allowed=configs, hint=hint)
    shards = [file for file in manifest.shards(config) if file.split == split and file.rows]
    if not shards:
        splits = sorted({file.split for file in manifest.shards(config) if file.split})
        raise InputError(f"{place} ({config})", f"has no rows in the split {split!r}", allowed=splits)
    return config, shards


def _download(run: str, config: str | None, split: str) -> tuple[Path, Manifest, str, list[Any]]:
    """The manifest and the shards of a Hub dataset, at the commit that its revision stands for now."""
    if not HUB_ID.fullmatch(run):
        raise InputError(run, "no such directory", allowed="a dataset run directory, or ORG/NAME[@REVISION] of a Hub")
    repo_id, _, revision = run.partition("@")
    with reading(repo_id, revision or None):
        commit = HfApi().dataset_info(repo_id, revision=revision or None).sha
        options: dict[str, Any] = {"repo_type": "dataset", "revision": commit}
        try:
            directory = Path(hf_hub_download(repo_id, MANIFEST, **options)).parent
        except EntryNotFoundError:
            raise InputError(run, f"is no published run (it has no {MANIFEST})") from None
        manifest = _dataset(directory, run)
        config, shards = _shards(manifest, config, split, run)
        for shard in shards:
            hf_hub_download(repo_id, shard.path, **options)
    return directory, manifest, config, shards


def _examples(table: pa.Table, name: str, config: str, split: str) -> Examples:
    """Rows of any finished form. Raises InputError for other columns, and for scores or classes without a scale."""
    place, columns = f"{name} ({config}, {split})", set(table.column_names)
    headings: tuple[str, ...] = ("Premise", "Hypothesis")
    texts: list[tuple[str, ...]]
    if columns.issuperset(STS.columns):
        first, second, scores = _columns(table, STS.columns)
        headings, texts = ("Sentence 1", "Sentence 2"), list(zip(first, second, strict=True))
        scale, labels = similarity_scale(scores, place), [score_label(score) for score in scores]
    elif columns.issuperset(PAIR_CLASS.columns):
        premises, hypotheses, numbers = _columns(table, PAIR_CLASS.columns)
        texts = list(zip(premises, hypotheses, strict=True))
        scale, labels = inference_scale(), [NLI_LABELS[number] for number in numbers]
    elif columns.issuperset(TRIPLET.columns):
        triplets = zip(*_columns(table, TRIPLET.columns), strict=True)
        texts = [(anchor, other) for anchor, positive, negative in triplets for other in (positive, negative)]
        scale, labels = inference_scale(), ["entailment", "contradiction"] * table.num_rows
    elif columns.issuperset(TEXT_COLUMNS):
        names = datasets.Features.from_arrow_schema(table.schema)["label"].names
        single, numbers = _columns(table, TEXT_COLUMNS)
        headings, texts = ("Text",), [(text,) for text in single]
        scale, labels = class_scale(names, place), [names[number] for number in numbers]
    else:
        raise InputError(place, f"has the columns {table.column_names}", allowed="the columns of a finished config")
    return Examples(name, config, split, headings, scale, tuple(texts), tuple(labels))


def _columns(table: pa.Table, names: Iterable[str]) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]

"""A dataset without the rows that occur in evaluation data: a run directory to train on, card and publish.

Only finished configs are written. The new run has the old run's recipe under a name or version of its own. Its
manifest records what was dropped and why (``hub.contract.measured``), as one of its inputs.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from tqdm import tqdm

from eval.audit import command
from eval.audit.evaluation_sentences import Sentences, read_evaluation_sets
from eval.audit.ledger import DROPPED, SCORED, Bookkeeper, Hits, report
from eval.audit.source import BATCH, find_dataset
from eval.tasks.registry import DATASETS
from hub.cli import JsonOption, new_app, say
from hub.contract.measured import INPUT, KINDS, PROVENANCE, Dropped, Kind, Origin, SplitRows
from hub.contract.published_paths import published_path
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import checked, fingerprint, load_recipe, resolved
from hub.contract.run_dir import (
    ARTIFACTS,
    RECIPE,
    File,
    Manifest,
    describe,
    locked,
    require_complete,
    text_sha256,
    write_manifest,
)
from hub.contract.shards import Parts, parquet_schema, shard_tables
from hub.durable import make_folder, rename_folder, write_text
from hub.errors import InputError, did_you_mean

SUFFIX = "-without-evaluation-texts"


def require_new(out: Path) -> None:
    """Raise InputError when something is at ``out`` already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(out, "is there already", hint="choose another --drop, or remove it")


def recipe_of_kept(directory: Path, name: str | None = None, version: str | None = None) -> DatasetRecipe:
    """The recipe of the kept rows; without a name, the dataset's with ``SUFFIX``.

    Raises InputError for a name or version that it cannot have.
    """
    from hub.client.publish import is_later

    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    name, version = name or recipe.name + SUFFIX, version or recipe.version
    if name == recipe.name and not is_later(version, recipe.version):
        problem = f"is not later than the version of the checked dataset ({recipe.name} v{recipe.version})"
        hint = "published rows are never changed: give a later one, or another --drop-name"
        raise InputError(f"--drop-version {version}", problem, hint=hint)
    named = {"name": name, "version": version, "pretty_name": f"{recipe.pretty_name} (without evaluation texts)"}
    return checked(Path("--drop-name, --drop-version"), DatasetRecipe, {**recipe.model_dump(mode="json"), **named})


def command_of(place: str, options: Mapping[str, Path | str | float | None]) -> str:
    """The command that drops the same rows, for the card: the options that were given, and no path of this machine."""
    run = place if (name := published_path(place)) == place else f"{ARTIFACTS}/datasets/{name}"
    words = ["sts-dino", "decontaminate", run]
    for option, value in options.items():
        if value not in (None, ""):
            words += [option, published_path(value.as_posix()) if isinstance(value, Path) else str(value)]
    return shlex.join([*words, "--drop", "OUT"])


def drop(directory: Path, out: Path, recipe: DatasetRecipe, books: Bookkeeper, command_line: str = "") -> Manifest:
    """Write the run in ``directory`` without the rows in ``books.hits``, under ``recipe``.

    Raises InputError when ``out`` is not new, or a config's split has no row left; RunError while another process
    writes it.
    """
    with locked(out):
        require_new(out)
        before, hits = require_complete(directory), books.hits
        for config, split in ((config, split) for config, of in hits.items() for split in of if of[split].all()):
            hint = "use other source sentences, or check and drop less: --sets, --drop-kinds, --drop-splits"
            raise InputError(f"{directory} ({config})", f"every row of {split} is in evaluation data", hint=hint)
        staging = out.with_name(f"{out.name}.partial")  # OUT is there when it is whole
        shutil.rmtree(staging, ignore_errors=True)
        make_folder(staging)
        files = [file for config, of in hits.items() for file in _config(directory, staging, before, config, of)]
        write_text(staging / RECIPE, resolved(recipe))
        manifest = _manifest(before, recipe, _dropped(before, books), command_line).with_files(files)
        write_manifest(staging, manifest)
        rename_folder(staging, out)
        return manifest


def _dropped(before: Manifest, books: Bookkeeper) -> Dropped:
    ledger = books.ledger()

    def counted(reasons: np.ndarray) -> SplitRows:
        found: dict[str, int] = {kind: int((reasons == 1 + KINDS.index(kind)).sum()) for kind in books.kinds}
        return SplitRows(kept=int((reasons == 0).sum()), dropped=found)

    return Dropped(
        dataset=Origin(name=before.name, version=before.version, fingerprint=before.fingerprint),
        kinds=books.kinds,
        evaluation_splits=books.splits,
        evaluation={place: one.sha256 for place, one in ledger.checked.items()},
        not_checked=ledger.not_checked,
        settings=ledger.settings,
        rows={config: {split: counted(of) for split, of in hits.items()} for config, hits in books.hits.items()},
    )


def _manifest(before: Manifest, recipe: DatasetRecipe, dropped: Dropped, command: str) -> Manifest:
    """The manifest without its files. Counts are those of the generation, except that splits count the kept rows."""
    inputs = {**before.inputs, INPUT: dropped.digest()}
    kept = {config: {split: rows.kept for split, rows in found.items()} for config, found in dropped.rows.items()}
    commands = "\n".join(line for line in (before.provenance.get("command"), command) if line)
    changes = {
        "name": recipe.name,
        "version": recipe.version,
        "inputs": inputs,
        "fingerprint": fingerprint(recipe, inputs),
        "recipe_sha256": text_sha256(resolved(recipe)),
        "counts": {**before.counts, "splits": kept},
        "provenance": {**before.provenance, "command": commands, PROVENANCE: dropped.model_dump(mode="json")},
        "files": (),
    }
    return before.model_copy(update=changes)


def _config(directory: Path, out: Path, manifest: Manifest, config: str, hits: Hits) -> list[File]:
    """Write the kept rows of a config, split by split; their manifest entries."""
    from datasets import Features

    shards = [file for file in manifest.shards(config) if file.rows]
    features = Features.from_arrow_schema(parquet_schema(directory / shards[0].path))
    written = []
    for split, reasons in hits.items():
        parts, start = Parts(out, config, split, features), 0
        try:
            for shard in (one for one in shards if (one.split or "train") == split):
                for batch in shard_tables(directory / shard.path, BATCH):
                    kept = reasons[start : start + len(batch)] == 0
                    parts.add(batch.filter(pa.array(kept)).to_pylist())
                    start += len(batch)
            written += [describe(out, path, config=config, split=split, rows=rows) for path, rows in parts.finish()]
        finally:
            parts.discard()
    return written


app = new_app("Find the sentences of evaluation data in a dataset, and drop them.")


def split_list(text: str, allowed: Sequence[str], option: str) -> list[str]:
    """The names in a comma-separated option. Raises InputError for one that is not allowed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise InputError(option, f"unknown name {name!r}", allowed=", ".join(allowed), hint=hint)
    return names


def require_run(place: str, option: str, **parts: str | None) -> None:
    """Raise InputError, before any row is matched, unless ``place`` is a run directory and all of it is checked."""
    if not Path(place).is_dir():
        hint = "get it first: hf download ORG/NAME --repo-type dataset --revision REVISION --local-dir DIR"
        raise InputError(place, f"{option} needs a run directory", hint=hint)
    for name, value in parts.items():
        if value is not None:
            problem = f"is for every {name}, but --{name} {value} is given"
            raise InputError(option, problem, hint=f"leave --{name} out")


@app.command()
def main(
    place: command.PlaceArgument,
    senteval_data: Annotated[Path | None, typer.Option(help="SentEval's directory")] = None,
    sts_data: Annotated[Path | None, typer.Option(help="The STS organisers' directory")] = None,
    sets: Annotated[str, typer.Option(help="Only these data sets, e.g. sts12,mrpc [default: all]")] = "",
    config: Annotated[str | None, typer.Option(help="[default: all that one trains on]")] = None,
    split: Annotated[str | None, typer.Option(help="[default: all]")] = None,
    similarity: Annotated[float, typer.Option(min=0.3, max=1.0, help="Of near matches; lower is slower")] = 0.5,
    drop_to: Annotated[
        Path | None, typer.Option("--drop", metavar="DIR", help="Write the dataset without the matching rows")
    ] = None,
    drop_kinds: Annotated[str, typer.Option(help="Matches to drop")] = ",".join(DROPPED),
    drop_splits: Annotated[str, typer.Option(help="Evaluation splits whose matches are dropped")] = ",".join(SCORED),
    drop_name: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Its name [default: the dataset's, and {SUFFIX}]")
    ] = None,
    drop_version: Annotated[
        str | None, typer.Option(metavar="X.Y.Z", help="Its version [default: the dataset's]")
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Into the run directory, too: its card shows the counts")
    ] = False,
    out: command.OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every text of the dataset RUN against STS, SICK and SentEval sentences.

    Without a directory only the STS Benchmark's validation and test splits are checked, and the ledger says so. A
    Markdown table of the counts is printed and stands beside the ledger.

    Examples:

      sts-dino decontaminate artifacts/datasets/sts-dino-x2 --senteval-data DIR --sts-data DIR2

      sts-dino decontaminate artifacts/datasets/auto-nli --senteval-data DIR --drop artifacts/datasets/clean

      sts-dino decontaminate artifacts/datasets/clean --senteval-data DIR --card
    """
    kinds: list[Kind] = [kind for kind in KINDS if kind in split_list(drop_kinds, KINDS, "--drop-kinds")]
    splits = split_list(drop_splits, ("train", *SCORED), "--drop-splits")
    options = {
        "--senteval-data": senteval_data,
        "--sts-data": sts_data,
        "--sets": sets,
        "--config": config,
        "--similarity": similarity,
        "--drop-kinds": ",".join(kinds),
        "--drop-splits": ",".join(splits),
        "--drop-name": drop_name,
        "--drop-version": drop_version,
    }
    recipe = None
    if drop_to is not None:
        require_new(drop_to)
        require_run(place, "--drop", split=split)
        recipe = recipe_of_kept(Path(place), drop_name, drop_version)
        command.made_folder(drop_to.parent, "--drop")
    if card:
        require_run(place, "--card", config=config, split=split)
    dataset = find_dataset(place)
    configs = [dataset.rows(name, split) for name in ([config] if config else dataset.finished or [None])]
    folder = command.made_folder(out or command.default_folder("quality", dataset.name, config or "all"))
    evaluation = read_evaluation_sets(senteval_data, sts_data, split_list(sets, tuple(DATASETS), "--sets"))
    for name in evaluation.absent:
        say(f"not checked, no files: {name}")
    sentences = Sentences(evaluation.sets, similarity)
    expected = f"{sentences.settings['recall']:.1%} of those with just that similarity are expected to be found"
    say(f"near matches from {similarity:g} on: {expected}")
    books = Bookkeeper(sentences, evaluation, kinds, splits)
    with tqdm(total=sum(rows.total for rows in configs), desc="checking", unit=" rows") as bar:
        for rows in configs:
            books.check(rows, bar.update)
    ledger = books.ledger()
    command.write_report(folder, "ledger", report(ledger), ledger.model_dump(mode="json"), as_json)
    if card:
        say(f"written: {ledger.write(Path(place))}")
        say(f"next: sts-dino card {quote(place)}")
    if drop_to is not None and recipe is not None:
        manifest = drop(Path(place), drop_to, recipe, books, command_of(place, options))
        dropped = sum(int((one > 0).sum()) for hits in books.hits.values() for one in hits.values())
        say(f"written: {drop_to} ({manifest.name} v{manifest.version}), without {dropped:,} rows")
        say(f"next: sts-dino publish {quote(str(drop_to))}")  # it writes the card

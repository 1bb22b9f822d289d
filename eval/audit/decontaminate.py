"""Find and count the rows of a dataset that occur in evaluation data, and drop them.

The counts are a ``sts_dino.hub.contract.measured.Ledger``. The dataset without dropped rows is a
new run directory to train on, card and publish. It has the configs that were checked: by default
all finished ones. Its recipe is that of the checked run under another name or version. Its manifest
holds the record of the dropped rows in the provenance, and the record's SHA-256 among the inputs.
"""

import hashlib
import logging
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray

from sts_dino.eval.audit import command
from sts_dino.eval.audit.evaluation_sentences import (
    EvaluationTexts,
    SentenceIndex,
    read_evaluation_sets,
)
from sts_dino.eval.audit.source import BATCH_ROWS, Batch, Dataset, DatasetRows, find_dataset
from sts_dino.eval.tasks.registry import DATASETS
from sts_dino.hub.cli import JsonOption, make_app
from sts_dino.hub.contract.measured import (
    DROPPED_ROWS_INPUT,
    DROPPED_ROWS_PROVENANCE,
    MATCH_KINDS,
    Checked,
    ConfigCount,
    Dropped,
    Example,
    Ledger,
    MatchKind,
    Origin,
    SplitRows,
)
from sts_dino.hub.contract.published_paths import hide_folders
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import (
    compute_fingerprint,
    format_recipe,
    load_recipe,
    validate_recipe,
)
from sts_dino.hub.contract.run_dir import (
    ARTIFACTS,
    RECIPE,
    File,
    Manifest,
    describe_file,
    give_name,
    hash_text,
    lock_run,
    require_complete,
    write_manifest,
)
from sts_dino.hub.contract.shards import (
    Parts,
    iter_shard_tables,
    read_parquet_schema,
    write_loading_file,
)
from sts_dino.hub.durable import make_folder, rename_folder, write_text
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.untrusted import format_code

logger = logging.getLogger(__name__)

CLEAN_NAME_SUFFIX = "-without-evaluation-texts"
# Splits that scores come from; "all" is the only split of a k-fold task
SCORED_SPLITS = ("all", "validation", "test")
DEFAULT_DROPPED_KINDS: tuple[MatchKind, ...] = ("exact", "normal", "near")
MAX_EXAMPLES = 10  # matches that the ledger shows of every evaluation split and kind
# Columns of a table of matches, a row for each match. "row" is the row number in the dataset's
# split, from 0; "column" the text column; "kind" an index of ``MATCH_KINDS``. The last four columns
# describe the evaluation sentence: "sentence" is its normal form, "place" its split, e.g.
# stsb/test, "place_row" its row from 0, "place_side" its side, 1 or 2.
MATCH_COLUMNS = [
    "row",
    "column",
    "text",
    "label",
    "kind",
    "similarity",
    "sentence",
    "place",
    "place_row",
    "place_side",
]

# Split of the dataset → a number for each row, (rows,): 0 keeps the row, k + 1 drops it for
# MATCH_KINDS[k]
DropReasons = dict[str, NDArray[np.int8]]


class MatchCounter:
    """Counter of the matches of a dataset's rows with evaluation sentences, batch by batch.

    A row is to be dropped if it has a match of ``kinds`` with a sentence of ``splits``; its reason
    is the strongest such match. ``drop_reasons``: config → ``DropReasons`` of the config.

    Args:
        sentences: the index of the evaluation sentences.
        evaluation: the evaluation splits that the index is made of.
        kinds: kinds of matches that drop a row.
        splits: names of evaluation splits, e.g. test, whose matches drop a row.
    """

    def __init__(
        self,
        sentences: SentenceIndex,
        evaluation: EvaluationTexts,
        kinds: Sequence[MatchKind] = DEFAULT_DROPPED_KINDS,
        splits: Sequence[str] = SCORED_SPLITS,
    ):
        self.kinds = tuple(kinds)
        self.splits = tuple(splits)
        self.drop_reasons: dict[str, DropReasons] = {}
        self._sentences = sentences
        self._evaluation = evaluation
        self._checked: list[DatasetRows] = []
        # (what is counted, config, value, kind) → number of rows, e.g. ("label", CONFIG, "neutral",
        # "near"); ("train_only", config) → number of rows
        self._rows = Counter[tuple[str, ...]]()
        # (evaluation split, kind) → normal forms of the matched sentences
        self._matched = defaultdict[tuple[str, MatchKind], set[str]](set)
        # (evaluation split, kind) → the first ``MAX_EXAMPLES`` matches
        self._examples = defaultdict[tuple[str, MatchKind], list[Example]](list)

    def match_config(
        self, rows: DatasetRows, progress: Callable[[int], object] = lambda rows: None
    ) -> None:
        """Match all rows of a config, and add the matches to the counts.

        Args:
            rows: the rows of the config.
            progress: called after each batch with the number of its rows.

        Raises InputError for a damaged shard or a score that is not finite.
        """
        self._checked.append(rows)
        self.drop_reasons[rows.config] = {
            split: np.zeros(count, dtype=np.int8) for split, count in rows.splits.items()
        }
        for batch in rows.read_batches():
            if matches := self._find_matches(batch):
                self._count_matches(rows.config, batch.split, matches)
            progress(len(batch))

    def _find_matches(self, batch: Batch) -> list[tuple[Any, ...]]:
        """Return the values of ``MATCH_COLUMNS`` for each match of a text, row by row.

        The list is empty without matches.
        """
        # Look every distinct text up once
        all_texts = dict.fromkeys(chain.from_iterable(batch.texts.values()))
        matches_of_text = self._sentences.find_matches(list(all_texts))
        matches = dict(zip(all_texts, matches_of_text, strict=True))

        # List the matches row by row
        table: list[tuple[Any, ...]] = []
        labels: Sequence[str | None] = batch.labels or [None] * len(batch)
        for index, row in enumerate(batch.rows.tolist()):
            for column, texts in batch.texts.items():
                text = texts[index]
                for match in matches[text]:
                    match_cells = (
                        MATCH_KINDS.index(match.kind),
                        match.similarity,
                        match.sentence,
                        *match.location,
                    )
                    table.append((row, column, text, labels[index], *match_cells))
        return table

    def _count_matches(self, config: str, split: str, matches: list[tuple[Any, ...]]) -> None:
        """Add the matches of one batch to all counts, drop reasons and examples.

        A batch has all matches of its rows, so the strongest match of a row is known at once.

        Args:
            config: the config of the batch.
            split: the dataset split of the batch.
            matches: the values of ``MATCH_COLUMNS`` of each match, at least one.
        """
        import pandas

        table = pandas.DataFrame(matches, columns=MATCH_COLUMNS)
        evaluation_split = table["place"].str.partition("/")[2]
        scored = table[evaluation_split.isin(SCORED_SPLITS)]

        # Count rows by evaluation split, over all configs. For this config, count rows by text
        # column, by label and in total, from matches with scored splits only
        self._count_strongest(table, "place", config="")
        self._count_strongest(scored, "column", config)
        self._count_strongest(scored, "label", config)
        self._count_strongest(scored.assign(all=""), "all", config)

        # Count the rows that match train splits alone, without short matches, which are by chance
        short = MATCH_KINDS.index("short")
        matched_rows = set(table.loc[table["kind"] < short, "row"])
        scored_rows = set(scored.loc[scored["kind"] < short, "row"])
        self._rows["train_only", config] += len(matched_rows - scored_rows)

        # Mark the rows to drop; a smaller index of ``MATCH_KINDS`` is a stronger kind
        kinds = [MATCH_KINDS.index(kind) for kind in self.kinds]
        dropped = table[evaluation_split.isin(self.splits) & table["kind"].isin(kinds)]
        strongest = dropped.groupby("row")["kind"].min()
        self.drop_reasons[config][split][strongest.index] = 1 + strongest.to_numpy(dtype=np.int8)

        # Keep the matched sentences, and the first examples of each evaluation split and kind
        for (place, kind), matched in table.groupby(["place", "kind"]):
            self._matched[place, MATCH_KINDS[kind]].update(matched["sentence"])
            examples = self._examples[place, MATCH_KINDS[kind]]
            for match in matched.head(MAX_EXAMPLES - len(examples)).to_dict("records"):
                examples.append(_make_example(config, split, match))

    def _count_strongest(self, table: Any, column: str, config: str) -> None:
        """Count the rows with each value of ``column``, by the kind of their strongest match.

        A row counts once for each value that its matches have in ``column``. Among its matches with
        this value, the strongest decides the kind.

        Args:
            table: a DataFrame of matches (``MATCH_COLUMNS``).
            column: the column to group by; matches without a value in it are left out.
            config: the config of the counts; empty: all configs.
        """
        strongest = table.groupby([column, "row"])["kind"].min()
        for (value, _), kind in strongest.items():
            self._rows[column, config, str(value), MATCH_KINDS[kind]] += 1

    def make_ledger(self) -> Ledger:
        """Return the counts of all configs matched so far; at least one must be matched."""
        examples: list[Example] = []
        for key in sorted(self._examples):
            examples.extend(self._examples[key])
        return Ledger(
            dataset=self._checked[-1].name,
            revision=self._checked[-1].revision,
            settings=self._sentences.settings,
            sentences=len(self._sentences),
            checked={
                split.name: self._summarize_split(split.name) for split in self._evaluation.sets
            },
            not_checked=self._evaluation.absent,
            configs={rows.config: self._summarize_config(rows) for rows in self._checked},
            examples=tuple(examples),
        )

    def _get_counts(self, counted: str, config: str, value: str) -> dict[MatchKind, int]:
        """Return kind → number of rows whose strongest match has this kind.

        Args:
            counted: "place" (evaluation split), "all" (total), "column" or "label".
            config: the config; empty for "place".
            value: the evaluation split, column or label; empty for "all".
        """
        return {kind: self._rows[counted, config, value, kind] for kind in MATCH_KINDS}

    def _summarize_config(self, rows: DatasetRows) -> ConfigCount:
        """Return the counts of the config of ``rows``: in total, by text column and by label.

        A label without matches is left out.
        """
        config = rows.config
        labels = sorted({key[2] for key in self._rows if key[:2] == ("label", config)})
        return ConfigCount(
            splits=rows.splits,
            kinds=self._get_counts("all", config, ""),
            train_only=self._rows["train_only", config],
            columns={column: self._get_counts("column", config, column) for column in rows.columns},
            labels={label: self._get_counts("label", config, label) for label in labels},
        )

    def _summarize_split(self, name: str) -> Checked:
        """Return the counts of the evaluation split ``name``, e.g. sts12/test.

        Matches are with any of its text forms; ``texts`` is the number of texts of one form.
        """
        forms = [split for split in self._evaluation.sets if split.name == name]
        return Checked(
            texts=sum(len(side) for side in forms[0].sides),  # all forms have the same rows
            sha256={split.form: split.sha256 for split in forms},
            rows=self._get_counts("place", "", name),
            found={kind: len(self._matched.get((name, kind), ())) for kind in MATCH_KINDS},
        )


def _make_example(config: str, split: str, match: dict[str, Any]) -> Example:
    """Return an example of a match: it has the SHA-256 of the dataset's text, not the text.

    Args:
        config: the config of the dataset.
        split: the dataset split.
        match: ``MATCH_COLUMNS`` → value.
    """
    text = match["text"].encode("utf-8", "surrogatepass")
    return Example(
        config=config,
        split=split,
        row=match["row"],
        column=match["column"],
        text_sha256=hashlib.sha256(text).hexdigest(),
        kind=MATCH_KINDS[match["kind"]],
        similarity=round(match["similarity"], 4),
        place=match["place"],
        place_row=match["place_row"],
        place_side=match["place_side"],
    )


def format_ledger(ledger: Ledger) -> str:
    """Return the ledger as Markdown: counts by config, column, label and evaluation split."""
    # Rows of the tables by config, by column and by label
    configs: list[list[Any]] = []
    columns: list[list[Any]] = []
    labels: list[list[Any]] = []
    for name, config in ledger.configs.items():
        total = sum(config.splits.values())
        configs.append([format_code(name), total, *config.kinds.values(), config.train_only])
        columns += _list_counts(name, config.columns)
        labels += _list_counts(name, config.labels)

    # Rows of the table by evaluation split
    splits: list[list[Any]] = []
    for name, split in ledger.checked.items():
        counts = [split.texts, *split.rows.values(), *split.found.values()]
        splits.append([format_code(name), *counts])
    return command.fill_template(
        "ledger.md.jinja",
        ledger=ledger,
        kinds=list(MATCH_KINDS),
        configs=configs,
        columns=columns,
        labels=labels,
        splits=splits,
    )


def _list_counts(config: str, counts: Mapping[str, Mapping[MatchKind, int]]) -> list[list[Any]]:
    """Return a table row for each column or label of a config: its name, and rows by kind.

    counts: name of the column or label → kind of match → number of rows.
    """
    return [[format_code(f"{config} {name}"), *kinds.values()] for name, kinds in counts.items()]


def require_new_folder(out: Path) -> None:
    """Raise InputError when ``out`` is a file or a folder that is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(out, "is there already", hint="choose another --drop, or remove it")


def make_clean_recipe(
    directory: Path, name: str | None = None, version: str | None = None
) -> DatasetRecipe:
    """Return the recipe of the run without the dropped rows.

    Args:
        directory: the run that was checked.
        name: the new name; None: that of the checked dataset with ``CLEAN_NAME_SUFFIX``.
        version: the new version; None: that of the checked dataset.

    Raises InputError for a name or version that a recipe cannot have, for the checked dataset's
    name with a version that is not later, and when the run's recipe cannot be read.
    """
    from sts_dino.hub.client.publish import is_later

    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    name = name or recipe.name + CLEAN_NAME_SUFFIX
    version = version or recipe.version
    if name == recipe.name and not is_later(version, recipe.version):
        checked_name = f"{recipe.name} v{recipe.version}"
        hint = "published rows are never changed: give a later one, or another --drop-name"
        raise InputError(
            f"--drop-version {version}",
            f"is not later than the version of the checked dataset ({checked_name})",
            hint=hint,
        )
    values = recipe.model_dump(mode="json")
    values["name"] = name
    values["version"] = version
    values["pretty_name"] = f"{recipe.pretty_name} (without evaluation texts)"
    options = Path("--drop-name, --drop-version")  # the place that errors name
    return validate_recipe(options, DatasetRecipe, values)


def format_command(location: str, options: Mapping[str, Path | str | float | None]) -> str:
    """Return the ``sts-dino decontaminate`` command that drops the same rows, for the card.

    A path that is absolute or leads upwards is shortened to its last name; a shortened run is shown
    in the default folder of datasets. The new run's folder is shown as ``OUT``.

    Args:
        location: the run directory as the user named it.
        options: option → value; options whose value is None or empty are left out.
    """
    run = hide_folders(location)
    if run != location:
        # Show the folder that ``sts-dino write`` uses by default
        run = f"{ARTIFACTS}/datasets/{run}"
    arguments = ["sts-dino", "decontaminate", run]
    for option, value in options.items():
        if isinstance(value, Path):
            value = hide_folders(value.as_posix())
        if value is not None and value != "":
            arguments += [option, str(value)]
    return shlex.join([*arguments, "--drop", "OUT"])


def drop_rows(
    directory: Path, out: Path, recipe: DatasetRecipe, counter: MatchCounter, command_line: str = ""
) -> Manifest:
    """Write a run without the rows that match evaluation data, and return its manifest.

    Only the configs and splits that the counter has matched are written.

    Args:
        directory: the run that was checked.
        out: the new run directory: a path that does not exist, or an empty folder.
        recipe: the new run's recipe.
        counter: has the rows to drop, by config and split.
        command_line: the command that the new run's card shows after the command of the
            generation; empty: none.

    Raises InputError when ``out`` is not new, when ``directory`` is not a finished run, when a
    split has no row left, and for a damaged shard. Raises RunError while another process writes
    ``out``, and when ``directory`` no longer has the rows that the counter has matched. Raises
    OSError when the disk fails.
    """
    with lock_run(out):
        require_new_folder(out)
        original = require_complete(directory)
        ledger = counter.make_ledger()
        ledger.require_rows(directory, original)
        _require_rows_left(directory, counter)

        # Write to a folder beside ``out``, which is renamed to ``out`` when it is complete
        staging = out.with_name(f"{out.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        make_folder(staging)
        files: list[File] = []
        for config, reasons in counter.drop_reasons.items():
            files += _write_config(directory, staging, original, config, reasons)
        write_text(staging / RECIPE, format_recipe(recipe))
        dropped = _record_dropped(original, counter, ledger)
        manifest = _make_manifest(original, recipe, dropped, command_line).with_files(files)
        write_loading_file(staging, manifest, recipe.configs)
        write_manifest(staging, manifest)
        rename_folder(staging, out)
        return manifest


def _require_rows_left(directory: Path, counter: MatchCounter) -> None:
    """Raise InputError when ``counter`` would drop every row of a split.

    ``directory``: the checked run, for the error.
    """
    for config, reasons_of_split in counter.drop_reasons.items():
        for split, reasons in reasons_of_split.items():
            if reasons.all():
                raise InputError(
                    f"{directory} ({config})",
                    f"every row of {split} is in evaluation data",
                    hint="use other source sentences, or check and drop less: --sets, "
                    "--drop-kinds, --drop-splits",
                )


def _record_dropped(original: Manifest, counter: MatchCounter, ledger: Ledger) -> Dropped:
    """Return the record of the dropped rows: the data compared, settings, and rows by split.

    Args:
        original: the manifest of the run that was checked.
        counter: has the rows to drop.
        ledger: the ledger of ``counter``.
    """
    rows: dict[str, dict[str, SplitRows]] = {}
    for config, reasons_of_split in counter.drop_reasons.items():
        rows[config] = {
            split: _count_split(reasons, counter.kinds)
            for split, reasons in reasons_of_split.items()
        }
    return Dropped(
        dataset=Origin(
            name=original.name, version=original.version, fingerprint=original.fingerprint
        ),
        kinds=counter.kinds,
        evaluation_splits=counter.splits,
        evaluation={name: split.sha256 for name, split in ledger.checked.items()},
        not_checked=ledger.not_checked,
        settings=ledger.settings,
        rows=rows,
    )


def _count_split(reasons: NDArray[np.int8], kinds: Sequence[MatchKind]) -> SplitRows:
    """Count the rows of a split that are kept, and the rows that each kind of match drops.

    Args:
        reasons: a number for each row, (rows,), as in ``DropReasons``.
        kinds: the kinds of matches that drop rows.
    """
    dropped: dict[str, int] = {
        kind: int((reasons == 1 + MATCH_KINDS.index(kind)).sum()) for kind in kinds
    }
    return SplitRows(kept=int((reasons == 0).sum()), dropped=dropped)


def _make_manifest(
    original: Manifest, recipe: DatasetRecipe, dropped: Dropped, command_line: str
) -> Manifest:
    """Return the manifest of the new run, without files.

    Its counts are those of the generation, except that ``splits`` counts the kept rows.

    Args:
        original: the manifest of the checked run.
        recipe: the new run's recipe.
        dropped: the record of the dropped rows.
        command_line: the command that dropped the rows; empty: none.
    """
    inputs = {**original.inputs, DROPPED_ROWS_INPUT: dropped.compute_digest()}
    split_rows = {
        config: {split: rows.kept for split, rows in splits.items()}
        for config, splits in dropped.rows.items()
    }
    commands = [original.provenance.get("command"), command_line]
    changes = {
        "name": recipe.name,
        "version": recipe.version,
        "inputs": inputs,
        "fingerprint": compute_fingerprint(recipe, inputs),
        "recipe_sha256": hash_text(format_recipe(recipe)),
        "counts": {**original.counts, "splits": split_rows},
        "provenance": {
            **original.provenance,
            "command": "\n".join(line for line in commands if line),
            DROPPED_ROWS_PROVENANCE: dropped.model_dump(mode="json"),
        },
        "files": (),
    }
    return original.model_copy(update=changes)


def _write_config(
    directory: Path, out: Path, manifest: Manifest, config: str, reasons_of_split: DropReasons
) -> list[File]:
    """Write the kept rows of a config, split by split, and return the entries of the new files.

    Args:
        directory: the run that was checked.
        out: the folder to write.
        manifest: the manifest of the checked run.
        config: the config to write; it has rows.
        reasons_of_split: split → a number for each row, (rows,); 0 keeps the row.

    Raises InputError for a damaged shard, OSError when the disk fails.
    """
    from datasets import Features

    shards = [file for file in manifest.shards(config) if file.rows]
    features = Features.from_arrow_schema(read_parquet_schema(directory / shards[0].path))
    files: list[File] = []
    for split, reasons in reasons_of_split.items():
        parts = Parts(out, config, split, features)
        start = 0  # the row number in the split of the next batch's first row
        try:
            for shard in shards:
                if (shard.split or "train") != split:
                    continue
                for batch in iter_shard_tables(directory / shard.path, BATCH_ROWS):
                    is_kept = reasons[start : start + len(batch)] == 0
                    parts.add(batch.filter(pa.array(is_kept)).to_pylist())
                    start += len(batch)
            for path, rows in parts.finish():
                files.append(describe_file(out, path, config=config, split=split, rows=rows))
        finally:
            parts.discard()  # removes unfinished files after an error; finished files stay
    return files


app = make_app("Find the sentences of evaluation data in a dataset, and drop them.")


def split_list(text: str, allowed: Sequence[str], option: str) -> list[str]:
    """Return the names in ``text``, separated by commas; empty names are left out.

    Raises InputError, which names the option, for a name that is not allowed.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise InputError(
                option,
                f"unknown name {name!r}",
                allowed=", ".join(allowed),
                hint=suggest_choice(name, allowed),
            )
    return names


def require_whole_run(location: str, option: str, **parts: str | None) -> None:
    """Raise InputError unless ``location`` is a run directory and the whole run is checked.

    Args:
        location: the dataset as the user named it.
        option: the option that needs the whole run, for the error.
        parts: name → value of the options that check a part of the run (config, split).
    """
    if not Path(location).is_dir():
        raise InputError(
            location,
            f"{option} needs a run directory",
            hint="get it first: hf download ORG/NAME --repo-type dataset --revision REVISION "
            "--local-dir DIR",
        )
    for name, value in parts.items():
        if value is not None:
            problem = f"is for every {name}, but --{name} {value} is given"
            raise InputError(option, problem, hint=f"leave --{name} out")


def _find_rows(dataset: Dataset, config: str | None, split: str | None) -> list[DatasetRows]:
    """Return the rows of ``config``, or of each finished config when ``config`` is None.

    ``split``: the only split to read; None: all splits. Raises InputError for an unknown config or
    split, for a dataset without a finished config and for a damaged shard, RunError when the Hub
    cannot be read.
    """
    if config:
        return [dataset.find_rows(config, split)]
    # Without a finished config, ``find_rows(None)`` raises an error that lists all configs
    names = dataset.finished or [None]
    return [dataset.find_rows(name, split) for name in names]


@app.command()
def main(
    run: command.DatasetArgument,
    senteval_data: Annotated[Path | None, typer.Option(help="SentEval's directory")] = None,
    sts_data: Annotated[Path | None, typer.Option(help="The STS organisers' directory")] = None,
    sets: Annotated[
        str, typer.Option(help="Only these data sets, e.g. sts12,mrpc [default: all]")
    ] = "",
    config: Annotated[str | None, typer.Option(help="[default: all that one trains on]")] = None,
    split: Annotated[str | None, typer.Option(help="[default: all]")] = None,
    similarity: Annotated[
        float, typer.Option(min=0.3, max=1.0, help="Similarity of near matches; lower is slower")
    ] = 0.5,
    drop_to: Annotated[
        Path | None,
        typer.Option("--drop", metavar="DIR", help="Write the dataset without the matching rows"),
    ] = None,
    drop_kinds: Annotated[str, typer.Option(help="Matches to drop")] = ",".join(
        DEFAULT_DROPPED_KINDS
    ),
    drop_splits: Annotated[
        str, typer.Option(help="Evaluation splits whose matches are dropped")
    ] = ",".join(SCORED_SPLITS),
    drop_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Its name [default: the dataset's, and {CLEAN_NAME_SUFFIX}]"
        ),
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

    Without a directory only the STS Benchmark's validation and test splits are checked. The ledger
    lists the checked splits. A Markdown table of its counts is printed and stands beside it.

    Examples:

      sts-dino decontaminate artifacts/datasets/sts-dino-x2 --senteval-data DIR --sts-data DIR2

      sts-dino decontaminate artifacts/datasets/auto-nli --drop artifacts/datasets/clean

      sts-dino decontaminate artifacts/datasets/clean --senteval-data DIR --card
    """
    # Refuse wrong options before a row is read
    listed_kinds = split_list(drop_kinds, MATCH_KINDS, "--drop-kinds")
    kinds: list[MatchKind] = [kind for kind in MATCH_KINDS if kind in listed_kinds]
    splits = split_list(drop_splits, ("train", *SCORED_SPLITS), "--drop-splits")
    named_sets = split_list(sets, tuple(DATASETS), "--sets")
    recipe = None
    if drop_to is not None:
        drop_to = give_name(drop_to)  # files beside it are named after it
        require_new_folder(drop_to)
        for option, names in (("--drop-kinds", kinds), ("--drop-splits", splits)):
            if not names:
                hint = "leave the option out for its default"
                raise InputError(option, "names nothing to drop", hint=hint)
        require_whole_run(run, "--drop", split=split)
        recipe = make_clean_recipe(Path(run), drop_name, drop_version)
        command.make_output_folder(drop_to.parent, "--drop")
    if card:
        require_whole_run(run, "--card", config=config, split=split)

    # Read the dataset's configs and the evaluation sentences
    dataset = find_dataset(run)
    configs = _find_rows(dataset, config, split)
    folder = command.make_output_folder(
        out or command.get_default_folder("quality", dataset.name, config or "all")
    )
    evaluation = read_evaluation_sets(senteval_data, sts_data, named_sets)
    for name in evaluation.absent:
        logger.info(f"not checked, no files: {name}")
    sentences = SentenceIndex(evaluation.sets, similarity)
    logger.info(
        f"near matches from {similarity:g} on: {sentences.settings['recall']:.1%} of those with "
        "just that similarity are expected to be found"
    )

    # Match every row, and write the counts
    counter = MatchCounter(sentences, evaluation, kinds, splits)
    with ProgressBar(
        total=sum(rows.total for rows in configs), desc="checking", unit=" row"
    ) as bar:
        for rows in configs:
            counter.match_config(rows, bar.update)
    ledger = counter.make_ledger()
    facts = ledger.model_dump(mode="json")
    command.write_report(folder, "ledger", format_ledger(ledger), facts, as_json)
    if card:
        logger.info(f"written: {ledger.write(Path(run))}")
        logger.info(f"next: sts-dino card {quote(run)}")

    # Write the dataset without the matching rows
    if drop_to is not None and recipe is not None:
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
        manifest = drop_rows(Path(run), drop_to, recipe, counter, format_command(run, options))
        title = f"{manifest.name} v{manifest.version}"
        dropped = Dropped.model_validate(manifest.provenance[DROPPED_ROWS_PROVENANCE])
        logger.info(f"written: {drop_to} ({title}), without {dropped.total:,} rows")
        logger.info(f"next: sts-dino publish {quote(str(drop_to))}")  # it writes the card

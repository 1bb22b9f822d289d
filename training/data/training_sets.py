"""Training data: pinned Hub datasets, finished run directories and files, whole or streamed.

Only the columns of the example type are kept, because the trainer feeds every other column to the
encoder as text. The rows of a dataset that is read whole stay on disk, memory-mapped. A stream
(``streaming: true``) is shuffled, and its rows are checked when they are read.
"""

import glob
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, IterableDataset

from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.client.fetch import open_hub_dataset, open_local_run, require_known
from sts_dino.hub.contract.recipe import (
    PUBLISHED,
    TYPES_MADE_FROM_ROWS,
    DatasetRecipe,
    Grades,
    TrainingData,
)
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import RECIPE
from sts_dino.hub.contract.shards import convert_reader_errors
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import (
    READERS,
    DecimalMark,
    as_number,
    as_text,
    kind_of,
    open_rows,
    require_column,
)
from sts_dino.training.data.objectives import (
    DOCUMENTS,
    EXAMPLE_TYPES,
    GRADED_PAIR,
    GRADED_TRIPLET,
    SELF_PAIR,
    name_key,
)
from sts_dino.training.data.rows import (
    EXAMPLE_SET_COLUMN,
    NO_ROWS_HINT,
    SOURCE_COLUMNS,
    RowChecks,
    check_rows,
    check_stream,
    choose_text_columns,
    make_graded_rows,
    make_self_pairs,
    read_into_memory,
    require_distinct_rows,
)

logger = logging.getLogger(__name__)

# keys of ``TrainingData`` that a manifest's provenance repeats
MANIFEST_KEYS = {
    "repo_id",
    "revision",
    "path",
    "config",
    "example_type",
    "example_set",
    "loss",
    "columns",
    "grades",
}
# kind of a column → its type in a dataset that is made from a file
DTYPES = {"text": "string", "numbers": "float64", "integers": "int64"}
# example type → what a source sentence must have for a row of it
NEEDED = {
    SELF_PAIR.name: "a text",
    GRADED_PAIR.name: "a positive",
    GRADED_TRIPLET.name: "a positive and a negative",
}
MAX_VALIDATION_ROWS = 10_000  # of a streamed validation split, because it is kept in memory


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset with all splits and columns, and its identity.

    ``splits``: name → rows. ``commit``: the Hub commit; None for local data. ``sha256``: the Hub
    commit, or a digest of the local files. ``license``: the licence of its card or recipe; None
    where they name none.
    """

    splits: Mapping[str, Dataset | IterableDataset]
    commit: str | None
    sha256: str
    license: str | None

    def get_split(self, name: str, where: str) -> Dataset | IterableDataset:
        """Return the rows of a split. Raises InputError naming ``where`` for an unknown name."""
        return self.splits[require_known(name, sorted(self.splits), where, "split")]


@dataclass(frozen=True)
class TrainingSet:
    """A checked training dataset with the columns of its example type alone.

    Attributes:
        name: a unique name in the recipe, without dots.
        spec: the recipe's entry.
        train: the training rows.
        validation: the rows of the dataset's own validation split; None: absent or not used.
        commit: the Hub commit; None for local data.
        sha256: the Hub commit, or a digest of the local files.
        own_license: the licence of the dataset's card or recipe; None where they name none.
        passed_over: the number of source sentences without a row; None for a stream, which is not
            counted. It is 0 for documents, until ``make_trainer`` copies the set with the number of
            documents that are too short.
    """

    name: str
    spec: TrainingData
    train: Dataset | IterableDataset
    validation: Dataset | None
    commit: str | None
    sha256: str
    own_license: str | None
    passed_over: int | None = 0

    @property
    def rows(self) -> int | None:
        """The number of training rows of an epoch; None for a stream, which is not counted."""
        return len(self.train) if isinstance(self.train, Dataset) else None

    @property
    def license(self) -> str | None:
        """The licence of the dataset's card or recipe, else that in the model recipe, else None."""
        return self.own_license or self.spec.license

    def describe(self) -> dict[str, Any]:
        """Return the dataset's provenance for the manifest: recipe keys, commit, splits, licence.

        ``splits``: name → the number of rows that are used, first the training split's, which is
        None for a stream. ``license`` is ``own_license``.
        """
        splits: dict[str, int | None] = {self.spec.split: self.rows}
        if self.validation is not None:
            splits["validation"] = len(self.validation)
        spec = self.spec.model_dump(context=PUBLISHED, include=MANIFEST_KEYS, exclude_none=True)
        return {**spec, "commit": self.commit, "splits": splits, "license": self.own_license}


def load_training_sets(
    specs: tuple[TrainingData, ...], limit: int | None, seed: int = 42, own_validation: bool = True
) -> list[TrainingSet]:
    """Load and check every training dataset of a recipe; return them in the recipe's order.

    Raises InputError for data that cannot be trained on, and for a stream that is not the only
    dataset; RunError when the Hub cannot be read.

    Args:
        specs: the recipe's ``datasets``.
        limit: the number of training rows of each dataset at most, in file order; None: no limit.
        seed: decides the order of streams.
        own_validation: whether the datasets' validation splits are loaded, too.
    """
    for index, spec in enumerate(specs):
        if spec.streaming and len(specs) > 1:
            raise InputError(
                f"datasets.{index}.streaming",
                "a streamed dataset is trained on alone: "
                "the trainer mixes datasets by their lengths",
                hint="remove it, or make the stream the only dataset",
            )
    return [
        load_training_set(spec, f"datasets.{index}", limit, seed, own_validation)
        for index, spec in enumerate(specs)
    ]


def load_training_set(
    spec: TrainingData,
    key: str,
    limit: int | None = None,
    seed: int = 42,
    own_validation: bool = False,
) -> TrainingSet:
    """Load and check one training dataset.

    Raises InputError for data that cannot be trained on, RunError when the Hub cannot be read.

    Args:
        spec: the dataset's entry in the recipe.
        key: the entry's key, e.g. ``datasets.0``, which errors name; its end makes the name unique.
        limit: the number of training rows at most, in file order; None: no limit.
        seed: decides the order of a stream.
        own_validation: whether the dataset's validation split is loaded, too.
    """
    # Open the dataset. A stream reads its rows from the Hub later, so the Hub's errors are
    # converted below, too.
    where = f"{key}: {spec.repo_id or spec.path} ({spec.config})"
    opened = _rename_columns(open_dataset(spec, where), spec, where)
    rows = opened.get_split(spec.split, where)
    where_split = f"{where}, {spec.split}"
    hub_errors: AbstractContextManager[None] = nullcontext()
    if spec.repo_id is not None:
        hub_errors = convert_read_errors(spec.repo_id, spec.revision)

    # Check the training rows, or make them from the dataset's rows.
    passed_over: int | None = 0
    train: Dataset | IterableDataset
    with hub_errors:
        if isinstance(rows, IterableDataset):
            train = check_stream(rows, spec, where_split, limit, seed)
            passed_over = None
        else:
            if spec.example_type in TYPES_MADE_FROM_ROWS:
                train, passed_over = _make_rows(rows, spec, where_split, limit)
            else:
                example_type = EXAMPLE_TYPES[spec.example_type]
                checks = RowChecks(example_type, spec.example_set, where_split, spans=spec.spans)
                train = check_rows(rows, checks, limit)
            require_distinct_rows(train, spec.loss, where_split)
        validation = _load_validation(spec, opened, where) if own_validation else None

    # The key's index makes the name unique. The losses lie in a module by this name, and torch
    # takes no dot there.
    stem = Path(spec.repo_id or spec.path or "").name.replace(".", "-")
    index = key.rsplit(".", 1)[-1]
    return TrainingSet(
        name=f"{stem}-{spec.config}-{index}",
        spec=spec,
        train=train,
        validation=validation,
        commit=opened.commit,
        sha256=opened.sha256,
        own_license=opened.license,
        passed_over=passed_over,
    )


def _rename_columns(opened: OpenedDataset, spec: TrainingData, where: str) -> OpenedDataset:
    """Rename the columns that the recipe names to those of the example type, in every split.

    Of the other columns only ``example_set`` stays, and only if the recipe selects an example set.
    ``opened`` is returned unchanged when the recipe names no columns, and for self-pairs, which
    take texts from any column. Raises InputError naming ``where`` for a column that a split lacks,
    unless it is a stream that does not know its columns yet.
    """
    example_type = EXAMPLE_TYPES[spec.example_type]
    if spec.columns is None or example_type == SELF_PAIR:
        return opened
    new_names = dict(zip(spec.columns, example_type.source_type.columns, strict=True))
    columns = list(new_names)
    if spec.example_set is not None:
        columns.append(EXAMPLE_SET_COLUMN)
    splits = {}
    for split, rows in opened.splits.items():
        for column in columns:
            # A stream may not know its columns before it is read.
            require_column(column, rows.column_names or columns, where)
        splits[split] = rows.select_columns(columns).rename_columns(new_names)
    return replace(opened, splits=splits)


def open_dataset(spec: TrainingData, where: str) -> OpenedDataset:
    """Open the Hub dataset, file or run directory that ``spec`` names.

    Raises InputError when it cannot be opened, RunError when the Hub does not answer. ``where``:
    the dataset that errors name.
    """
    if spec.repo_id is not None:
        return open_hub_splits(spec.repo_id, spec.revision, spec.config, spec.streaming, where)
    path = Path(spec.path or "")
    # A path that does not exist is a missing file by its ending, else a missing folder.
    if path.is_file() or (kind_of(path) in READERS and not path.is_dir()):
        return open_file(path, spec, where)
    return open_run(path, spec.config, spec.streaming, where)


def open_hub_splits(
    repo_id: str, revision: str | None, config: str | None, streaming: bool, where: str
) -> OpenedDataset:
    """Open all splits of a Hub dataset at the commit of its revision.

    Raises InputError for an unknown repository, revision or config and for a dataset that cannot be
    read, RunError when the Hub does not answer.

    Args:
        repo_id: ORG/NAME.
        revision: a commit, a tag or a branch; None: main.
        config: a config; None: ``default``, else the only config.
        streaming: whether the rows are streamed instead of downloaded.
        where: the dataset that errors name.
    """
    dataset = open_hub_dataset(repo_id, revision, where)
    name = _choose_config(config, dataset.call("get_dataset_config_names"), where)
    options = {"streaming": True} if streaming else {}
    splits = dataset.call("load_dataset", name, **options)
    return OpenedDataset(splits, dataset.commit, dataset.commit, dataset.license)


def open_run(directory: Path, config: str, streaming: bool, where: str) -> OpenedDataset:
    """Open all splits of a config in a finished local run directory.

    Raises InputError for a folder that is not a finished run, for a config that is unknown or has
    no rows, and for a shard that is damaged or differs from the manifest. ``where``: the dataset
    that errors name.
    """
    run = open_local_run(directory, where)
    _, shards = run.fetch_shards(_choose_config(config, run.configs, where))
    if not shards:
        raise InputError(where, "has no rows", hint=NO_ROWS_HINT)

    # Load the shards by split; ``datasets`` takes absolute paths.
    files: dict[str, list[str]] = {}
    for shard in shards:
        paths = files.setdefault(shard.split or "train", [])
        paths.append(str((directory / shard.path).resolve()))
    splits = load_shards(files, streaming, where)

    recipe = directory / RECIPE
    licence = load_recipe(recipe, DatasetRecipe).license if recipe.is_file() else None
    return OpenedDataset(splits, None, run.manifest.hash_shards(config), licence)


def open_file(path: Path, spec: TrainingData, where: str) -> OpenedDataset:
    """Open a file that ``sts_dino.hub.text_files`` reads, as a dataset with the split ``train``.

    Without streaming, the rows are written to the cache of ``datasets``. Raises InputError naming
    ``where`` for a missing file or column, for a file that cannot be read or has no rows, and for
    another config or split than ``default`` and ``train``. Raises InputError also for a cell of
    another type than its column needs; the cells of a stream are checked when they are read.
    """
    # Check that the file, its columns and a first row exist.
    if not path.is_file():
        raise InputError(
            where,
            "no such file",
            allowed=f"a run directory, or a file ending in {', '.join(READERS)}",
        )
    if (spec.config, spec.split) != ("default", "train"):
        raise InputError(
            where,
            f"is one file, which has no config {spec.config!r} with split {spec.split!r}",
            allowed="config default, split train",
        )
    names, rows, _ = open_rows(path, where, spec.columns or (), spec.encoding)
    for column in spec.columns or ():
        require_column(column, names, where)
    if next(rows, None) is None:
        raise InputError(where, "has no rows", hint="take a file with at least one")

    # Make a dataset of its rows, with typed cells.
    dtypes = list_column_types(spec, names)
    sha256 = hash_file(path)
    arguments = {
        "path": str(path.absolute()),  # a link keeps its name: the suffix tells the kind of file
        "where": where,
        "dtypes": dtypes,
        "may_be_blank": EXAMPLE_TYPES[spec.example_type].source_type.may_be_blank,
        "encoding": spec.encoding,
        "sha256": sha256,
    }
    features = datasets.Features({name: datasets.Value(dtype) for name, dtype in dtypes.items()})
    dataset_class: Any = IterableDataset if spec.streaming else Dataset
    with convert_reader_errors(where):
        train = dataset_class.from_generator(
            read_typed_rows, features=features, gen_kwargs=arguments
        )
    return OpenedDataset({"train": train}, None, sha256, None)


def list_column_types(spec: TrainingData, names: list[str]) -> dict[str, str]:
    """Return column → dtype for the columns ``names`` of a file, in their order.

    The dtype of texts is string, of scores float64, of class labels and example sets int64. That
    of a column that the training does not read is null.
    """
    kinds = EXAMPLE_TYPES[spec.example_type].source_type.kinds
    if spec.example_type == SELF_PAIR.name:
        kinds = dict.fromkeys(spec.columns or SOURCE_COLUMNS, "text")
    elif spec.columns is not None:  # the file's own names
        kinds = dict(zip(spec.columns, kinds.values(), strict=True))
    if spec.example_set is not None:
        kinds[EXAMPLE_SET_COLUMN] = "integers"
    dtypes = {column: DTYPES[kind] for column, kind in kinds.items()}
    return {name: dtypes.get(name, "null") for name in names}


def read_typed_rows(
    path: str,
    where: str,
    dtypes: dict[str, str],
    may_be_blank: bool,
    encoding: str | None,
    sha256: str,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file in their order, column → cell of the type in ``dtypes``.

    Args:
        path: the file.
        where: the name of the file in errors and in the log.
        dtypes: column → type; a column of the type null is not read, and its cells are None.
        may_be_blank: whether a text may be blank. If so, a row that lacks a column has the text ""
            there. If not, the row is passed over, and the number of such rows is logged at the end.
        encoding: the encoding of a file that is not UTF-8; None: it is recognised.
        sha256: the file's digest. It is not used here: ``datasets`` caches the rows under the
            arguments of this function, and a changed file must not be read from the cache.

    Raises InputError naming ``where`` and the row for a cell of another type, and InputError for a
    file that cannot be read.
    """
    columns = [name for name, dtype in dtypes.items() if dtype != "null"]
    required = set() if may_be_blank else set(columns)
    table = open_rows(Path(path), where, columns, encoding)
    incomplete_rows = 0
    for number, row in table.rows:
        if not row.keys() >= required:
            incomplete_rows += 1
            continue
        where_row = f"{where}:{number}"
        cells: dict[str, Any] = dict.fromkeys(dtypes)  # None in columns that are not read
        for name in columns:
            if dtypes[name] == "string":
                cells[name] = as_text(row.get(name), where_row, name)
            else:
                is_integer = dtypes[name] == "int64"
                cells[name] = _parse_number(
                    row.get(name), where_row, name, table.decimal_mark, is_integer
                )
        yield cells
    if incomplete_rows:
        names = ", ".join(columns)
        logger.info(f"{where}: passed over: {incomplete_rows:,} rows that lack one of {names}")


def _parse_number(
    cell: Any, where: str, name: str, decimal_mark: DecimalMark, is_integer: bool
) -> float | int:
    """Parse the cell of a score, a class label or an example set in the column ``name``.

    Returns an int if ``is_integer``, else a float. Raises InputError naming ``where`` for an empty
    cell, for a boolean, for anything else than a finite number, for a comma that may separate
    thousands, and for a fraction where an integer is needed.
    """
    # JSON's true would be the number 1.
    number = None if isinstance(cell, bool) else as_number(cell, where, name, decimal_mark)
    if number is None:
        value = "empty" if cell in (None, "") else repr(str(cell)[:40])
        raise InputError(where, f"column {name!r} is {value}", allowed="a number")
    if not is_integer:
        return number
    if not number.is_integer():
        raise InputError(where, f"column {name!r} is {str(cell)[:40]!r}", allowed="an integer")
    return int(number)


def load_shards(files: dict[str, list[str]], streaming: bool, where: str) -> Any:
    """Load parquet shards as a dataset with splits.

    Returns a ``DatasetDict``; with ``streaming``, an ``IterableDatasetDict``. ``files``: split →
    absolute paths. Raises InputError naming ``where`` for damaged files, and for a path with
    ``::``.
    """
    patterns: dict[str, list[str]] = {}
    for split, paths in files.items():
        if any("::" in path for path in paths):
            raise InputError(
                where,
                "its path has '::', by which datasets splits a path",
                hint="rename the folder",
            )
        patterns[split] = [glob.escape(path) for path in paths]
    with convert_reader_errors(where):
        return datasets.load_dataset("parquet", data_files=patterns, streaming=streaming)


def _choose_config(config: str | None, configs: list[str], where: str) -> str:
    """Return the config to read: ``config``; for None ``default``, else the only config.

    Raises InputError naming ``where`` when ``config`` is not in ``configs``, and for None when
    several configs have no ``default`` among them.
    """
    if config is None and "default" in configs:
        return "default"
    if config is None and len(configs) > 1:
        raise InputError(where, "has several configs", allowed=configs, hint="name one: config")
    return require_known(config or configs[0], configs, where, "config")


def _make_rows(
    rows: Dataset, spec: TrainingData, where: str, limit: int | None
) -> tuple[Dataset, int]:
    """Make self-pairs, graded pairs or graded triplets from the dataset's ``rows``.

    Returns the made rows, and the number of source sentences without one: 0 for self-pairs.
    ``limit``: the number of made rows at most; None: no limit. Raises InputError naming ``where``
    when ``rows`` lack a column or have a bad cell, and when no row can be made.
    """
    # Check the dataset's rows; self-pairs take the texts of one or more columns. All pairs may have
    # the same score, because graded pairs need positives alone.
    example_type = EXAMPLE_TYPES[spec.example_type]
    source_type = example_type.source_type
    if example_type == SELF_PAIR:
        columns = choose_text_columns(spec.columns, rows.column_names, where)
        source_type = replace(source_type, columns=dict.fromkeys(columns, "string"))
    checks = RowChecks(source_type, spec.example_set, where, may_have_one_target=True)
    checked = check_rows(rows, checks)

    # Make the trainer's rows.
    without_row = 0
    if example_type == SELF_PAIR:
        made = make_self_pairs(checked, limit)
    else:
        grades = spec.grades or Grades()
        made, without_row = make_graded_rows(checked, grades, example_type, limit)
    if len(made) == 0:
        problem = f"no row can be made of it: no source sentence has {NEEDED[spec.example_type]}"
        hint = None if example_type == SELF_PAIR else f"look at {name_key(where, 'grades')}"
        raise InputError(where, problem, hint=hint)
    return made, without_row


def _load_validation(spec: TrainingData, opened: OpenedDataset, where: str) -> Dataset | None:
    """Return the checked split ``validation``, with the columns of the type of the dataset's rows.

    Of a stream, the first ``MAX_VALIDATION_ROWS`` rows are loaded. Returns None when the dataset
    has no such split, when the split is trained on, and for documents and self-pairs, which have no
    two texts to compare. Raises InputError for rows that fail the checks of ``check_rows``.
    """
    example_type = EXAMPLE_TYPES[spec.example_type]
    if example_type in (DOCUMENTS, SELF_PAIR) or spec.split == "validation":
        return None
    if "validation" not in opened.splits:
        return None
    rows = opened.get_split("validation", where)
    where_split = f"{where}, validation"
    if isinstance(rows, IterableDataset):
        rows = read_into_memory(rows.take(MAX_VALIDATION_ROWS), where_split)
    return check_rows(rows, RowChecks(example_type.source_type, spec.example_set, where_split))

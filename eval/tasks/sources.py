"""The sources of evaluation data, and the checked data of a task.

A source is a directory in SentEval's layout or in the STS organisers', or a dataset repository that
holds such files or one ``senteval.tar``. SimCSE's authors publish such an archive:
``princeton-nlp/datasets-for-simcse``. A repository is read at one commit. The rows of all sources
are checked against the same pins. The members of an archive are read in place: nothing is unpacked,
so no name in an archive can reach a file of this machine.
"""

import hashlib
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from sts_dino.eval.tasks.own import CORPUS, QRELS, OwnData
from sts_dino.eval.tasks.registry import find_dataset
from sts_dino.eval.tasks.rows import DataFile, Pins, Rows, check_rows, draw_rows, load_pins
from sts_dino.eval.tasks.task import LAYOUTS, DataSet, Layout, Task
from sts_dino.hub.assets import find_asset
from sts_dino.hub.errors import InputError

SHIPPED_FOLDER = find_asset("stsb")
ARCHIVE_NAME = "senteval.tar"


def list_layout_names(name: str) -> tuple[str, ...]:
    """List the paths at which the layout's file ``name`` may be, relative to the layout's root.

    They are ``name``, and ``name`` without ``downstream/``, as in SimCSE's archive.
    """
    return tuple(dict.fromkeys((name, name.removeprefix("downstream/"))))


def read_shipped(name: str) -> DataFile:
    """Read a file that ships with the project; only the last part of the path ``name`` counts.

    Raises InputError when it is missing.
    """
    path = SHIPPED_FOLDER / Path(name).name  # the shipped folder has no subfolders
    if not path.is_file():
        raise InputError(
            path, "no such data file", hint="it comes with the project: install that again"
        )
    return DataFile(str(path), path.read_bytes())


def read_from_directory(root: Path, option: str, name: str) -> DataFile:
    """Read the file ``name`` of a local directory in SentEval's or the STS organisers' layout.

    In SentEval's layout ``root`` is the folder that holds ``downstream/`` and ``probing/``, or the
    folder ``downstream`` itself. Raises InputError, naming the command's ``option``, when the
    directory or the file is missing.
    """
    if not root.is_dir():
        raise InputError(root, "no such directory", hint=f"check {option}")
    paths = list_layout_paths(root, name)
    for path in paths:
        if path.is_file():
            return DataFile(str(path), path.read_bytes())
    raise InputError(
        paths[0],
        "no such data file",
        hint=f"{option} needs the whole layout: restore the file, or score without its task",
    )


def list_layout_paths(root: Path, name: str) -> list[Path]:
    """List the paths at which the layout's file ``name`` may be, for a directory of a user.

    ``root``: the directory, as in ``read_from_directory``. Where it is ``downstream`` itself, the
    paths begin at its parent.
    """
    # Names start at the parent of ``downstream``, which has ``probing``, too. A symbolic link may
    # have ``probing`` beside its target, or beside itself.
    is_downstream = root.resolve().name == "downstream" and not (root / "downstream").is_dir()
    folders = dict.fromkeys((root.resolve().parent, root.parent)) if is_downstream else (root,)
    return [folder / candidate for folder in folders for candidate in list_layout_names(name)]


def read_from_archive(path: Path, place: str, name: str) -> DataFile:
    """Read the member of an uncompressed tar whose path ends like ``name``; nothing is unpacked.

    The member may lack the ``downstream/`` of ``name`` (``list_layout_names``). ``place``: the
    archive's name in errors. Raises InputError when the archive is damaged or compressed, when no
    member or several members match, and when the member is a link or folder.
    """
    hint = "use a whole archive with one layout of plain files"
    try:
        with tarfile.open(path, "r:") as tar:
            # Require exactly one member
            members = [member for member in tar if _ends_like(member.name, name)]
            if len(members) != 1:
                names = ", ".join(member.name for member in members[:3])
                problem = f"is there {len(members)} times in the archive"
                if names:
                    problem += f": {names}"
                raise InputError(f"{place}: {name}", problem, hint=hint)

            # Read a plain file; ``extractfile`` would follow a link
            member_place = f"{place}: {members[0].name}"
            stream = tar.extractfile(members[0]) if members[0].isfile() else None
            if stream is None:
                raise InputError(member_place, "is not a plain file", hint=hint)
            return DataFile(member_place, stream.read())
    except tarfile.TarError as error:
        raise InputError(place, f"cannot be read as a tar archive: {error}", hint=hint) from error


def _ends_like(path: str, name: str) -> bool:
    """Return whether ``path`` ends with one of the paths that ``list_layout_names`` lists."""
    return any(PurePosixPath(path).match(ending) for ending in list_layout_names(name))


class Repository:
    """The files of a dataset repository at a revision; each is downloaded when it is read."""

    def __init__(self, repo_id: str, revision: str):
        self._repo_id = repo_id
        self._revision = revision
        self._archive: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """Parse ``ORG/NAME@REVISION``. Raises InputError for another form."""
        repo_id, _, revision = text.partition("@")
        if repo_id.count("/") != 1 or not revision:
            raise InputError(
                "--hub-data",
                f"{text!r} is not pinned",
                allowed="ORG/NAME@REVISION",
                hint="name a commit or tag: data that change under a score make it worthless; "
                "mteb/NAME downloads MTEB's",
            )
        return cls(repo_id, revision)

    def read(self, name: str) -> DataFile:
        """Read a file from the repository, or from its ``senteval.tar``.

        The first file that the repository lacks downloads the archive, which is read from then on.
        Raises InputError when neither has the file, when the repository or its revision does not
        exist, and for a damaged archive (``read_from_archive``); RunError when the Hub refuses
        access or does not answer.
        """
        if self._archive is None:
            for candidate in list_layout_names(name):
                path = self._download(candidate)
                if path is not None:
                    return DataFile(f"{self._place}: {candidate}", path.read_bytes())
            self._archive = self._download(ARCHIVE_NAME)
            if self._archive is None:
                raise InputError(
                    f"{self._place}: {name}",
                    "no such data file at this revision",
                    hint=f"the repository needs SentEval's layout, or {ARCHIVE_NAME} with it",
                )
        return read_from_archive(self._archive, f"{self._place}: {ARCHIVE_NAME}", name)

    @cached_property
    def _commit(self) -> str:
        """The commit of the revision, which the first access resolves.

        Raises InputError when the repository or its revision does not exist, RunError when the Hub
        refuses access or does not answer.
        """
        from sts_dino.hub.client.connection import convert_read_errors
        from sts_dino.hub.client.fetch import resolve_commit

        with convert_read_errors(f"dataset {self._repo_id}", self._revision):
            return resolve_commit(self._repo_id, self._revision)

    @cached_property
    def _place(self) -> str:
        """The repository and its commit, for errors."""
        return f"dataset {self._repo_id}@{self._commit[:12]}"

    def _download(self, name: str) -> Path | None:
        """Download a file to the Hub's cache, and return its path; None if there is no such file.

        A commit never changes. So a file in the cache, and a file that the cache records as absent,
        needs no request and works offline. Raises RunError when the Hub does not answer, and the
        errors of ``_commit``.
        """
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        from sts_dino.hub.client.connection import convert_read_errors

        # A path, a mark of absence, or None where the cache has no entry
        cached = try_to_load_from_cache(
            self._repo_id, name, repo_type="dataset", revision=self._commit
        )
        if cached is not None and not isinstance(cached, str):
            return None
        with convert_read_errors(f"dataset {self._repo_id}", self._revision):
            try:
                path = hf_hub_download(
                    self._repo_id, name, repo_type="dataset", revision=self._commit
                )
            # Offline and never downloaded: the repository may have the file
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                return None
        return Path(path)


class Source:
    """The places of evaluation data. ``load`` reads and checks a dataset's rows.

    A directory is the only place of its layout. A pinned Hub repository serves the layouts without
    a directory. The validation and test splits of the STS Benchmark ship with the project, and are
    read there when no directory of their layout is given.
    """

    def __init__(
        self,
        senteval: Path | None = None,
        originals: Path | None = None,
        hub: Repository | None = None,
        *,
        pins: Pins | None = None,
        own: OwnData | None = None,
    ):
        """Store the places of data; nothing is read.

        Args:
            senteval: directory in SentEval's layout.
            originals: directory in the STS organisers' layout.
            hub: dataset repository for the layouts without a directory; None: no repository.
            pins: the pins of rows; None takes the published pins, ``{}`` checks nothing.
            own: tasks and rows of a user's own files; None: no own files.
        """
        self._roots: dict[Layout, Path | None] = {"senteval": senteval, "originals": originals}
        self._repository = hub
        self._pins = load_pins() if pins is None else pins
        self.own = own or OwnData()

    def load(self, dataset: str, splits: Sequence[str]) -> dict[str, Rows]:
        """Load and check split → rows of a dataset, or return a user's own rows.

        ``splits``: those of the dataset, as ``Task.list_splits`` lists them. Raises InputError for
        an unknown dataset, for a dataset without a place (the error names the option), and for a
        missing or altered file (the error names files and rows); RunError when the Hub refuses
        access or does not answer.
        """
        if dataset in self.own.rows:
            return {split: self.own.rows[dataset][split] for split in splits}
        declared = find_dataset(dataset)
        return {split: self._read_rows(declared, split) for split in splits}

    def has(self, dataset: str, split: str) -> bool:
        """Return whether a place is known for the files of a published dataset's split.

        ``load`` checks that the files exist. Raises InputError for an unknown dataset.
        """
        return self._find_reader(find_dataset(dataset), split) is not None

    def _read_rows(self, dataset: DataSet, split: str) -> Rows:
        """Read and check the rows of a published dataset's split from its place.

        Raises the errors of ``load``.
        """
        read_file = self._find_reader(dataset, split)
        if read_file is None:
            option = LAYOUTS[dataset.layout].option
            raise InputError(
                dataset.name,
                "no source of its data is given",
                hint=f"give {option}, or pinned Hub data with --hub-data ORG/NAME@REVISION",
            )
        part = dataset.parts[split]
        files = [read_file(name) for name in part.files]
        place = f"{dataset.name} {split}, {files[0].place}"
        if len(files) > 1:
            place += f" and {len(files) - 1} more files"
        # Pins are on rows, not on bytes: a file with other line ends passes
        return read_checked_rows(dataset, split, files, place, self._pins)

    def _find_reader(self, dataset: DataSet, split: str) -> Callable[[str], DataFile] | None:
        """Return the function that reads a split's files by name; None without a place for them.

        A directory of the layout precedes shipped files, which precede the Hub repository.
        """
        root = self._roots[dataset.layout]
        if root is not None:
            return partial(read_from_directory, root, LAYOUTS[dataset.layout].option)
        if split in dataset.shipped:
            return read_shipped
        return None if self._repository is None else self._repository.read


def read_checked_rows(
    dataset: DataSet, split: str, files: Sequence[DataFile], place: str, pins: Pins
) -> Rows:
    """Parse a split's files, and check the rows against their pin, if there is one.

    ``pins``: dataset → split → pin. Raises InputError, naming ``place``, when the rows differ from
    the pin, and the InputErrors of the split's reader.
    """
    rows = dataset.parts[split].reader(files)
    dataset_pins = pins.get(dataset.name, {})
    check_rows(place, rows, dataset_pins.get(split))
    return rows


# SentEval's example encoders embed this text for a blank line (4 rows of CR, 3 of MPQA)
BLANK_TEXT_REPLACEMENT = "."


@dataclass(frozen=True)
class Entry:
    """A task and the split to score; ``path``: the split's file, where a recipe names one."""

    task: Task
    split: str
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.task.name} {self.split}"


@dataclass(frozen=True)
class TaskData:
    """The checked rows that the score of one split needs: split → rows.

    ``TaskReader`` checks rows, scores and classes, so scoring does not check them again. Scoring
    checks what depends on embeddings, on a limit or on folds: a probe needs finite features, every
    class among the train rows, and rows in every fold; STS needs scores and cosines that vary.
    """

    task: Task
    split: str
    rows: Mapping[str, Rows]

    @property
    def scored(self) -> Rows:
        """The rows of the scored split."""
        return self.rows[self.split]

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole splits that the score depends on; a limit does not change it.

        For several splits it is the hash of the splits' hashes, joined by newlines.
        """
        hashes = [rows.sha256 for rows in self.rows.values()]
        if len(hashes) == 1:
            return hashes[0]
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    def iter_texts(self) -> Iterator[str]:
        """Yield the texts that scoring needs embedded, split by split, repeats included.

        Blank texts are replaced, as probes and searches replace them. STS tasks embed a blank text
        itself when they are scored.
        """
        for rows in self.rows.values():
            for text in rows.texts:
                yield text or BLANK_TEXT_REPLACEMENT


class TaskReader:
    """Reader of the checked data of tasks, which reads each split once and caches it.

    ``limit``: the number of rows that ``seed`` draws from each split; None takes all. The documents
    and judgements of a search are never limited.
    """

    def __init__(self, source: Source, limit: int | None = None, seed: int = 42):
        self.source = source
        self._limit = limit
        self._seed = seed
        self._rows: dict[tuple[str, str, Path | None], Rows] = {}

    def read(self, entry: Entry) -> TaskData:
        """Return the rows of every split that scoring the entry needs, from cache or source.

        With a limit, these are the rows that are drawn from each split. For an entry with a
        ``path``, they are read from this file. Raises the errors of ``Task.list_splits``,
        ``Source.load`` and ``read_named_file``.
        """
        # Load the splits that the cache lacks; a recipe may name the file of the only split
        task = entry.task
        keys = {split: (task.dataset, split, entry.path) for split in task.list_splits(entry.split)}
        missing = [split for split, key in keys.items() if key not in self._rows]
        if entry.path is not None and missing:
            loaded = {entry.split: read_named_file(entry.path, task, entry.split)}
        else:
            loaded = self.source.load(task.dataset, missing)

        # The documents and judgements of a search are not limited
        for split, rows in loaded.items():
            limit = None if split in (CORPUS, QRELS) else self._limit
            self._rows[keys[split]] = draw_rows(rows, limit, self._seed)
        rows_by_split = {split: self._rows[key] for split, key in keys.items()}
        return TaskData(task, entry.split, rows_by_split)


def read_named_file(path: Path, task: Task, split: str) -> Rows:
    """Read the pairs of a split whose published data are one file, from a copy at ``path``.

    Raises InputError when the file is missing, damaged or has other rows, for a task that needs
    more than one file, and for one without a published dataset.
    """
    dataset = find_dataset(task.dataset)
    if len(dataset.parts[split].files) != 1 or task.fitted_on or task.design:
        raise InputError(
            path, f"{task.name} is not read from one file", hint="leave path out of the recipe"
        )
    try:
        file = DataFile(str(path), path.read_bytes())
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(
            path, f"no such data file for {task.name}", hint="the repository keeps it in assets/"
        ) from error
    return read_checked_rows(dataset, split, [file], str(path), load_pins())

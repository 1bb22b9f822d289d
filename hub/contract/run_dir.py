"""The run directory artifacts/<kind>/<name>: its files are published byte for byte.

The directory holds the resolved recipe, the files of the artefact and ``manifest.json``. A file is
finished when the manifest names it with its SHA-256. The manifest is written after the files that
it names, so a crash leaves at worst files without an entry. Timings, the lock and checkpoints are
not published: they lie beside the directory. One file in the directory is not published:
``shards.LOADING_FILE``.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from sts_dino.hub.durable import (
    UNFINISHED_SUFFIXES,
    hash_file,
    make_folder,
    require_regular_file,
    write_text,
)
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.untrusted import load_yaml

logger = logging.getLogger(__name__)

ARTIFACTS = Path("artifacts")
MANIFEST = "manifest.json"
RECIPE = "recipe.yaml"
REPORT = "report.html"
# The beginning of a manifest's input: the run, with its version, whose rows were extended.
APPENDED_INPUT = "appended to v"
LOCK_TIMEOUT_SECONDS = 0.1  # two tries: another process may remove the lock file in between


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class File:
    """A finished file of the artefact. ``config``, ``split`` and ``rows`` are set for data shards.

    A dataclass with slots, because a run has thousands of files and a pydantic model takes three
    times the memory.
    """

    path: str
    bytes: int
    sha256: str
    config: str | None = None
    split: str | None = None
    rows: int | None = None

    @field_validator("path", "config", "split")
    @classmethod
    def _check_inside(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Return ``value``. Raises ValueError for one that leads out of the run directory.

        A manifest may be untrusted. A config is the name of a folder and a split the beginning of a
        file's name, so neither may hold a separator.
        """
        path = PureWindowsPath(value or "")  # it takes / and \ as separators, and knows drives
        is_absolute = bool(path.drive or path.root)
        is_nested_name = info.field_name != "path" and len(path.parts) > 1
        if ".." in path.parts or is_absolute or is_nested_name:
            raise ValueError(f"{info.field_name} {value!r} leads out of the run directory")
        return value


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """The record of a run: its identity, inputs, counts and finished files.

    Every number on a card comes from the manifest or from results.json.
    """

    kind: Literal["dataset", "model"]
    name: str
    version: str
    fingerprint: str  # SHA-256 of everything that decides the rows or weights
    # of recipe.yaml, with the keys that only a card shows: a change makes the card stale
    recipe_sha256: str = ""
    complete: bool = False
    # input file or model → SHA-256; recipe and inputs make the fingerprint
    inputs: dict[str, str] = {}
    contents: dict[str, str] = {}  # the part of an input that was read → SHA-256
    versions: dict[str, str] = {}  # library → version
    counts: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    files: tuple[File, ...] = ()

    def shards(self, config: str) -> list[File]:
        """Return the data files of one config, in path order; [] for a config without any."""
        shards = [file for file in self.files if file.config == config]
        return sorted(shards, key=lambda file: file.path)

    def hash_shards(self, config: str) -> str:
        """Return the SHA-256 over paths and checksums of a config's data files."""
        lines = [f"{file.path} {file.sha256}\n" for file in self.shards(config)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def with_files(self, files: list[File], **changes: Any) -> "Manifest":
        """Return a copy with ``files`` added or replaced by path, all in path order.

        ``changes``: new values of other keys of the manifest.
        """
        merged = {file.path: file for file in (*self.files, *files)}
        ordered = tuple(merged[path] for path in sorted(merged))
        return self.model_copy(update={"files": ordered, **changes})


def describe_file(directory: Path, path: str, **data: Any) -> File:
    """Return the manifest entry of a file on disk.

    ``path``: relative to ``directory``. ``data``: config, split and rows of a shard. Raises OSError
    for a missing file.
    """
    full_path = directory / path
    size = full_path.stat().st_size
    return File(path=path, bytes=size, sha256=hash_file(full_path), **data)


def describe_content(path: str, content: bytes, **data: Any) -> File:
    """Return the manifest entry of a file with the bytes ``content``.

    ``path``: inside the run directory. ``data``: config, split and rows of a shard.
    """
    digest = hashlib.sha256(content).hexdigest()
    return File(path=path, bytes=len(content), sha256=digest, **data)


def format_manifest(manifest: Manifest) -> str:
    """Return manifest.json as it stands on disk and on the Hub."""
    values = manifest.model_dump(mode="json")
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace manifest.json atomically."""
    write_text(directory / MANIFEST, format_manifest(manifest))


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a run directory; None when the directory has no manifest.

    Raises InputError when ``directory`` is a file, and when the manifest is a pipe, a socket or a
    device, or has another form; OSError when it cannot be read.
    """
    path = require_regular_file(directory / MANIFEST)
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        hint = "choose another"
        raise InputError(directory, "is a file", allowed="a run directory", hint=hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])  # empty for a text that is not JSON
        reason = f"{key}: {first['msg']}".removeprefix(": ")
        problem = f"not a manifest: {reason}"
        hint = "restore it, or remove the directory and make the run again"
        # the second type is that of a dataclass, for a key of ``File``
        if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            problem = f"not a manifest of this version: unknown key {key!r}"
            hint = "update sts-dino, if a later version wrote it"
        raise InputError(path, problem, hint=hint) from error


def require_manifest(directory: Path) -> Manifest:
    """Return the manifest of a run directory.

    Raises InputError when the manifest is missing or damaged (``read_manifest``).
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError(
            directory,
            "is not a run directory (no manifest.json)",
            hint="sts-dino write RECIPE makes one of a dataset, "
            "sts-dino train RECIPE of an encoder",
        )
    return manifest


def require_complete(directory: Path) -> Manifest:
    """Return the manifest of a finished run.

    Raises InputError for an unfinished run and for a folder without an intact manifest.
    """
    manifest = require_manifest(directory)
    if not manifest.complete:
        raise InputError(
            directory,
            "the run is not finished",
            hint="run the same stage again: it resumes where it stopped",
        )
    return manifest


def find_changed_files(directory: Path, manifest: Manifest) -> list[str]:
    """Return the paths in the manifest whose file is missing on disk or has other bytes."""
    changed = []
    for file in manifest.files:
        path = directory / file.path
        if not path.is_file() or hash_file(path) != file.sha256:
            changed.append(file.path)
    return changed


def begin(directory: Path, manifest: Manifest, recipe_yaml: str) -> Manifest:
    """Start or resume a run, and return its manifest. The caller holds ``lock_run``.

    A run on disk with the same fingerprint is resumed. Its missing and damaged files have no entry
    in the returned manifest, so the run makes them again. A complete and intact run is returned
    whatever library versions made it; any other run is resumed under its own versions only. When
    only keys changed that decide no row, recipe and manifest are written anew
    (``rewrite_recipe``). Temporary files of a killed process are removed. A directory without a
    manifest may be a user's, so only the temporary file of a manifest is removed there.

    A run of another fingerprint is replaced when it made nothing yet: bad input stopped it, and the
    corrected recipe starts again. Raises InputError when such a run made something, when a run with
    files to make was begun by other versions, for files without a manifest, and for a damaged
    manifest.

    Args:
        directory: the run directory.
        manifest: the manifest of a new run.
        recipe_yaml: the resolved recipe.
    """
    # No living process writes to a run, because the caller holds the lock.
    existing = read_manifest(directory)
    pattern = "**/.*.tmp" if existing is not None else f".{MANIFEST}.*.tmp"
    for leftover in directory.glob(pattern):
        leftover.unlink()

    if existing is not None:
        if existing.fingerprint == manifest.fingerprint:
            return _make_resumed_manifest(directory, existing, manifest, recipe_yaml)
        if has_work(directory, existing):
            raise _make_conflict_error(directory, existing, manifest, recipe_yaml)
    elif directory.exists() and any(directory.iterdir()):
        raise InputError(
            directory, "is not empty and not a run directory", hint="choose another --out"
        )

    make_folder(directory)
    manifest = _with_recipe(manifest, manifest.version, recipe_yaml)
    write_manifest(directory, manifest)
    write_text(directory / RECIPE, recipe_yaml)
    return manifest


def _make_resumed_manifest(
    directory: Path, existing: Manifest, manifest: Manifest, recipe_yaml: str
) -> Manifest:
    """Return the manifest ``existing`` without missing and damaged files, for the new recipe.

    It is unfinished if there are such files. On disk the recipe and its version are replaced
    (``rewrite_recipe``); the entries of missing and damaged files stay in the manifest there until
    the next write. Raises InputError when the run is unfinished or damaged and library versions
    changed. ``manifest``: of a new run, with its versions.
    """
    damaged = set(find_changed_files(directory, existing))
    if damaged or not existing.complete:
        _require_versions(directory, existing, manifest, damaged)
    resumed = rewrite_recipe(directory, existing, manifest.version, recipe_yaml)
    if not damaged:
        return resumed
    intact = tuple(file for file in existing.files if file.path not in damaged)
    return resumed.model_copy(update={"files": intact, "complete": False})


def remove_empty_run(directory: Path) -> None:
    """Remove the manifest and the recipe of a run, and its directory if nothing else is in it."""
    for name in (MANIFEST, RECIPE):
        (directory / name).unlink(missing_ok=True)
    with suppress(OSError):  # the directory holds other files
        directory.rmdir()


def get_base_inputs(manifest: Manifest | None) -> dict[str, str]:
    """Return name → SHA-256 of the input that stands for the run whose rows this run extended.

    {} for a run that extended none, and without a manifest.
    """
    if manifest is None:
        return {}
    return {
        name: digest for name, digest in manifest.inputs.items() if name.startswith(APPENDED_INPUT)
    }


def has_work(directory: Path, manifest: Manifest) -> bool:
    """Return whether a run made anything.

    It did when it is complete, when its manifest names files, when its directory holds more than
    manifest and recipe, and when a work folder (``UNFINISHED_SUFFIXES``) lies beside it.
    """
    if manifest.complete or manifest.files:
        return True
    names = {path.name for path in directory.iterdir()}
    if names - {MANIFEST, RECIPE}:
        return True
    for suffix in UNFINISHED_SUFFIXES:
        if (directory.parent / f"{directory.name}.{suffix}").is_dir():
            return True
    return False


def rewrite_recipe(directory: Path, manifest: Manifest, version: str, recipe_yaml: str) -> Manifest:
    """Replace the recipe of a run on disk by one with the same fingerprint; return the manifest.

    The two recipes may differ in version and in keys that only a card shows. After such a change
    the run's card is stale, and ``sts_dino.hub.client.publish`` refuses it. The caller holds
    ``lock_run``. ``version``: the version in ``recipe_yaml``.
    """
    rewritten = _with_recipe(manifest, version, recipe_yaml)
    if rewritten != manifest:
        write_manifest(directory, rewritten)
        if rewritten.complete:
            logger.info(
                f"{directory}: {RECIPE} changed, its rows or weights stay; the card has to be "
                "written again"
            )
    write_text(directory / RECIPE, recipe_yaml)
    return rewritten


def _with_recipe(manifest: Manifest, version: str, recipe_yaml: str) -> Manifest:
    changes = {"version": version, "recipe_sha256": hash_text(recipe_yaml)}
    return manifest.model_copy(update=changes)


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text file's content."""
    return hashlib.sha256(text.encode()).hexdigest()


def has_current_recipe(directory: Path, manifest: Manifest) -> bool:
    """Whether recipe.yaml has the SHA-256 in the manifest.

    The two differ when a process dies between the two writes of ``rewrite_recipe``.
    """
    path = directory / RECIPE
    return path.is_file() and hash_file(path) == manifest.recipe_sha256


def _make_conflict_error(
    directory: Path, existing: Manifest, manifest: Manifest, recipe_yaml: str
) -> InputError:
    """Make the error for a directory with the run ``existing`` of another recipe or other inputs.

    The error names the first changed input and up to three changed keys of the recipe.
    ``manifest``, ``recipe_yaml``: of the new run.
    """
    changes: list[str] = []
    for name in sorted(existing.inputs.keys() & manifest.inputs.keys()):
        if existing.inputs[name] != manifest.inputs[name]:
            changes.append(f"{name} has changed")
            break
    limits = {"max_bytes": 1 << 20, "max_depth": 20, "max_nodes": 50_000}
    # a recipe that cannot be read has no keys to compare
    with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
        existing_yaml = (directory / RECIPE).read_text(encoding="utf-8")
        existing_tree = load_yaml(existing_yaml, **limits)
        keys = describe_changed_keys(existing_tree, load_yaml(recipe_yaml, **limits))
        changes += [change for change in keys if not change.startswith("version ")][:3]
    run = f"{existing.name} v{existing.version}"
    details = "; ".join([run, *changes])
    hint = "choose another --out, or remove the directory to start again"
    if existing.complete and existing.kind == manifest.kind == "dataset":
        hint += "; --append adds rows to a finished dataset"
    problem = f"holds a run of another recipe or of other inputs ({details})"
    return InputError(directory, problem, hint=hint)


def describe_changed_keys(recipe: Any, new_recipe: Any) -> list[str]:
    """List the keys whose values differ in two recipes' trees: ``KEY VALUE there, VALUE now``.

    VALUE stands for the values in ``recipe`` and in ``new_recipe``.
    """
    return [f"{key} {change}" for key, change in compare_values(recipe, new_recipe).items()]


def compare_values(tree: Any, new_tree: Any) -> dict[str, str]:
    """Map each key whose values differ in two trees, joined by dots, to ``5 there, 10 now``.

    The keys are those of lists (indices from 0) and mappings on all levels. A missing key counts as
    null, which is written as ``unset``. A tree that is no list or mapping has no keys.
    """
    values = dict(_iter_leaves(tree))
    new_values = dict(_iter_leaves(new_tree))
    changes = {}
    for key in values | new_values:
        value = values.get(key)
        new_value = new_values.get(key)
        # The key of a tree that is a single value is "".
        if key and value != new_value:
            changes[key] = f"{_format_value(value)} there, {_format_value(new_value)} now"
    return changes


def _iter_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (keys joined by dots, value) of every value that is not a list or mapping.

    ``path``: the keys above ``tree``, joined by dots.
    """
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    if not isinstance(tree, dict):
        yield path, tree
        return
    for key, value in tree.items():
        yield from _iter_leaves(value, f"{path}.{key}".removeprefix("."))


def _format_value(value: Any) -> str:
    text = "unset" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _require_versions(
    directory: Path, existing: Manifest, manifest: Manifest, damaged: set[str]
) -> None:
    """Raise InputError when the library versions of ``existing`` and ``manifest`` differ.

    ``existing`` is the manifest of a run that has files to make, ``manifest`` that of a new run.
    Rows of two versions in one run could not be reproduced. ``damaged``: the paths of the run's
    missing and damaged files.
    """
    changes = []
    for name in sorted(existing.versions.keys() | manifest.versions.keys()):
        old_version = existing.versions.get(name)
        new_version = manifest.versions.get(name)
        if old_version != new_version:
            changes.append(f"{name} {old_version}, now {new_version}")
    if changes:
        state = "an unfinished run"
        if existing.complete:
            names = ", ".join(sorted(damaged)[:3])
            state = f"a run with missing or damaged files, {len(damaged)} in all ({names}),"
        raise InputError(
            directory,
            f"holds {state} begun by other versions ({', '.join(changes)})",
            hint="go back to those versions to finish it, choose another --out, or remove the "
            "directory to start again",
        )


def give_name(folder: Path) -> Path:
    """Return a folder whose path ends in its name: the full path of ``.`` and ``..``."""
    return folder.resolve() if folder.name in ("", "..") else folder


def find_beside(directory: Path, ending: str) -> Path | None:
    """Return the path of the file or folder ``NAME.ending`` beside a run directory, or None.

    NAME is the directory's name. For a symbolic link, one beside the link is returned before one
    beside its target.
    """
    for place in (give_name(directory), directory.resolve()):
        path = place.parent / f"{place.name}.{ending}"  # with_name refuses "/"
        if path.exists():
            return path
    return None


@contextmanager
def lock_run(directory: Path) -> Iterator[None]:
    """Keep other processes off the run directory while the block runs.

    The lock is the file ``NAME.lock`` beside the directory; the directory itself may be absent. The
    file is removed at the end; a killed process leaves the file behind, unlocked.

    Raises RunError when another process holds the lock, InputError for a work folder that is a
    symbolic link, and OSError when the lock file cannot be made.
    """
    for suffix in UNFINISHED_SUFFIXES:
        work_folder = directory.parent / f"{directory.name}.{suffix}"
        # The link may lead to files that are not the project's.
        if work_folder.is_symlink():
            raise InputError(
                work_folder, "is a symbolic link", allowed="a folder", hint="remove the link"
            )
    path = directory.parent / f"{directory.name}.lock"
    make_folder(directory.parent)
    # touch raises OSError with the reason; filelock would report a lock of another process
    path.touch()
    lock = FileLock(path)
    try:
        lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)
    except Timeout as error:
        raise RunError(
            directory, "another process is working on this run", hint="wait for it, or stop it"
        ) from error
    try:
        yield
    finally:
        # The file is removed before its lock is released. A process that waits for the lock then
        # finds that the file has no name any more, and makes a new file.
        with suppress(PermissionError):  # Windows removes no open file: this one stays, unlocked
            path.unlink(missing_ok=True)
        lock.release()

"""artifacts/<kind>/<name>: the run directory, which is the Hub repository byte for byte.

It holds the resolved recipe, the files of the artefact and ``manifest.json``. A file counts as done when the manifest
names it with its SHA-256; the manifest is replaced after the files it names, so a crash leaves at worst files that
nobody names. What must not be published (timings, the lock, checkpoints) lies beside the directory, not in it.
"""

import glob
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hub import cli
from hub.durable import WORK, make_folder, regular, sha256_file, write_text
from hub.errors import InputError, RunError
from hub.untrusted import load_yaml

ARTIFACTS = Path("artifacts")
MANIFEST = "manifest.json"
RECIPE = "recipe.yaml"
REPORT = "report.html"  # made for people, from what is here and beside it
APPENDED = "appended to v"  # with the version, among a manifest's inputs: the run whose rows these were added to
PATIENCE = 0.1  # seconds; two tries, because a lock may go between its opening and its locking


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class File:
    """A finished file of the artefact. ``config``, ``split`` and ``rows`` are set for data shards.

    A dataclass with slots: a run holds thousands of them, and a model takes three times the memory.
    """

    path: str
    bytes: int
    sha256: str
    config: str | None = None
    split: str | None = None
    rows: int | None = None

    @field_validator("path", "config", "split")
    @classmethod
    def _stays_inside(cls, value: str | None, info: ValidationInfo) -> str | None:
        parts = (value or "").split("/")  # a downloaded manifest is untrusted
        if ".." in parts or (value or "").startswith("/") or (info.field_name != "path" and len(parts) > 1):
            raise ValueError(f"{info.field_name} {value!r} leads out of the run directory")
        return value


class Manifest(BaseModel):
    """What a run knows about itself; every number a card shows is read from here or from results.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["dataset", "model"]
    name: str
    version: str
    fingerprint: str  # what decides the rows or weights: resumed under this
    recipe_sha256: str = ""  # of recipe.yaml, the card's keys included: with another one, the card is written again
    complete: bool = False
    inputs: dict[str, str] = {}  # input file or model → SHA-256; with the recipe, they make the fingerprint
    contents: dict[str, str] = {}  # what was read from the inputs → SHA-256
    versions: dict[str, str] = {}  # library → version
    counts: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    files: tuple[File, ...] = ()

    def shards(self, config: str) -> list[File]:
        """The data files of one config, in path order."""
        return sorted((file for file in self.files if file.config == config), key=lambda file: file.path)

    def with_files(self, files: list[File], **changes: Any) -> "Manifest":
        """A copy with ``files`` added or replaced (by path), kept in path order, and other fields changed."""
        merged = {file.path: file for file in (*self.files, *files)}
        ordered = tuple(merged[path] for path in sorted(merged))
        return self.model_copy(update={"files": ordered, **changes})


def describe(directory: Path, path: str, **data: Any) -> File:
    """The manifest entry of a file that is on disk now."""
    return File(path=path, bytes=(directory / path).stat().st_size, sha256=sha256_file(directory / path), **data)


def described(path: str, content: bytes, **data: Any) -> File:
    """The manifest entry of a file with this content."""
    return File(path=path, bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), **data)


def manifest_text(manifest: Manifest) -> str:
    """manifest.json as it stands on disk and on the Hub."""
    return json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace manifest.json atomically."""
    write_text(directory / MANIFEST, manifest_text(manifest))


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a run directory, or None when there is none. Raises InputError when it is not one."""
    path = regular(directory / MANIFEST)
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InputError(directory, "is a file", allowed="a run directory", hint="choose another") from error
    except ValidationError as error:
        first = error.errors()[0]
        problem, hint = f"not a manifest: {first['msg']}", "restore it, or remove the directory and make the run again"
        if first["type"] == "extra_forbidden":
            problem = f"not a manifest of this version: unknown key {str(first['loc'][-1])!r}"
            hint = "update sts-dino, if a later version wrote it"
        raise InputError(path, problem, hint=hint) from error


def require_manifest(directory: Path) -> Manifest:
    """The manifest of a run directory. Raises InputError when it is missing."""
    manifest = read_manifest(directory)
    if manifest is None:
        hint = "sts-dino write RECIPE makes one of a dataset, sts-dino train RECIPE of an encoder"
        raise InputError(directory, "is not a run directory (no manifest.json)", hint=hint)
    return manifest


def require_complete(directory: Path) -> Manifest:
    """The manifest of a finished run. Raises InputError when it is missing or unfinished."""
    manifest = require_manifest(directory)
    if not manifest.complete:
        hint = "run the same stage again: it resumes where it stopped"
        raise InputError(directory, "the run is not finished", hint=hint)
    return manifest


def changed_files(directory: Path, manifest: Manifest) -> list[str]:
    """Paths the manifest names that are missing on disk or have other bytes."""
    return [
        file.path
        for file in manifest.files
        if not (directory / file.path).is_file() or sha256_file(directory / file.path) != file.sha256
    ]


def begin(directory: Path, manifest: Manifest, recipe_yaml: str) -> Manifest:
    """Start or resume a run: the manifest on disk when it is of the same fingerprint, else ``manifest``.

    Call it with the directory ``locked``. Files damaged since are dropped from the manifest, and made anew. A whole
    run is returned whatever versions made it; an unfinished one resumes under the versions it began with. Where
    only keys changed that decide no row, recipe and manifest are written anew (``rewrite_recipe``).

    Raises InputError when the directory holds a run of another recipe, of other inputs, or one begun by other versions;
    not where nothing was made yet, because bad input stopped that run: it begins again with what was corrected.
    """
    for leftover in directory.rglob(".*.tmp"):  # of a killed process; the caller holds the lock
        leftover.unlink()
    found = read_manifest(directory)
    if found is not None and (found.fingerprint == manifest.fingerprint or has_work(directory, found)):
        if found.fingerprint != manifest.fingerprint:
            raise _of_another_recipe(directory, found, manifest, recipe_yaml)
        broken = set(changed_files(directory, found))
        if broken or not found.complete:
            _require_versions(directory, found, manifest)
        kept = tuple(file for file in found.files if file.path not in broken)
        found = rewrite_recipe(directory, found, manifest.version, recipe_yaml)
        return found if not broken else found.model_copy(update={"files": kept, "complete": False})
    if found is None and directory.exists() and any(directory.iterdir()):
        raise InputError(directory, "is not empty and not a run directory", hint="choose another --out")
    make_folder(directory)
    manifest = _of_recipe(manifest, manifest.version, recipe_yaml)
    write_manifest(directory, manifest)
    write_text(directory / RECIPE, recipe_yaml)
    return manifest


def withdraw(directory: Path) -> None:
    """Remove a run that ``begin`` started and that made nothing; other files stay."""
    for name in (MANIFEST, RECIPE):
        (directory / name).unlink(missing_ok=True)
    with suppress(OSError):  # it holds other files
        directory.rmdir()


def base_inputs(manifest: Manifest | None) -> dict[str, str]:
    """Of a run whose rows were appended to another's: the entry of its inputs with the fingerprint of that one."""
    return {name: digest for name, digest in (manifest.inputs if manifest else {}).items() if name.startswith(APPENDED)}


def has_work(directory: Path, found: Manifest) -> bool:
    """Whether anything was made: files in the directory, or folders beside it, where stages keep work under way."""
    made = {path.name for path in directory.iterdir()} - {MANIFEST, RECIPE}
    beside = directory.parent.glob(f"{glob.escape(directory.name)}.*")
    return bool(found.complete or found.files or made or any(path.is_dir() for path in beside))


def rewrite_recipe(directory: Path, manifest: Manifest, version: str, recipe_yaml: str) -> Manifest:
    """Give a run that is on disk another recipe of its fingerprint: another version, or other keys for its card.

    The card that lies there is stale then: ``hub.client.publish`` refuses it. Call it with the directory ``locked``.
    """
    now = _of_recipe(manifest, version, recipe_yaml)
    if now != manifest:
        write_manifest(directory, now)
        if now.complete:
            cli.say(f"{directory}: {RECIPE} changed, its rows or weights stay; the card has to be written again")
    write_text(directory / RECIPE, recipe_yaml)
    return now


def _of_recipe(manifest: Manifest, version: str, recipe_yaml: str) -> Manifest:
    return manifest.model_copy(update={"version": version, "recipe_sha256": text_sha256(recipe_yaml)})


def text_sha256(text: str) -> str:
    """SHA-256 of a text file's content."""
    return hashlib.sha256(text.encode()).hexdigest()


def holds_recipe(directory: Path, manifest: Manifest) -> bool:
    """Whether recipe.yaml is the one that the manifest names; not so between the two writes of ``rewrite_recipe``."""
    path = directory / RECIPE
    return path.is_file() and sha256_file(path) == manifest.recipe_sha256


def _of_another_recipe(directory: Path, found: Manifest, now: Manifest, recipe_yaml: str) -> InputError:
    """The error that names a changed input and up to three keys of the recipe that lies there that differ."""
    both = sorted(found.inputs.keys() & now.inputs.keys())
    changes = [f"{path} has changed" for path in both if found.inputs[path] != now.inputs[path]][:1]
    limits = {"max_bytes": 1 << 20, "max_depth": 20, "max_nodes": 50_000}
    try:
        kept = (directory / RECIPE).read_text(encoding="utf-8")
        keys = changed_keys(load_yaml(kept, **limits), load_yaml(recipe_yaml, **limits))
        changes += [change for change in keys if not change.startswith("version ")][:3]
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        pass
    what = "; ".join([f"holds a run of another recipe or of other inputs ({found.name} v{found.version}", *changes])
    hint = "choose another --out, or remove the directory to start again"
    if found.complete and found.kind == "dataset":
        hint += "; --append adds rows to a finished dataset"
    return InputError(directory, f"{what})", hint=hint)


def changed_keys(kept: Any, given: Any) -> list[str]:
    """The keys of two recipes, as plain values, that differ: ``KEY VALUE there, VALUE now``, keys joined by dots."""
    return [f"{key} {words}" for key, words in changed_values(kept, given).items()]


def changed_values(before: Any, now: Any) -> dict[str, str]:
    """Keys of two trees, joined by dots, whose values differ → ``5 there, 10 now``."""
    there, here = dict(_leaves(before)), dict(_leaves(now))
    keys = [key for key in {**there, **here} if key and there.get(key) != here.get(key)]
    return {key: f"{_in_words(there.get(key))} there, {_in_words(here.get(key))} now" for key in keys}


def _leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a collection, under its keys joined by dots."""
    if not isinstance(tree, dict | list):
        yield place, tree
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _leaves(value, f"{place}.{key}".removeprefix("."))


def _in_words(value: Any) -> str:
    text = "unset" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _require_versions(directory: Path, found: Manifest, now: Manifest) -> None:
    """Raise InputError when an unfinished run was begun by other versions: no version could make its bytes again."""
    names = sorted(found.versions.keys() | now.versions.keys())
    differ = [name for name in names if found.versions.get(name) != now.versions.get(name)]
    if differ:
        changes = ", ".join(f"{name} {found.versions.get(name)}, now {now.versions.get(name)}" for name in differ)
        hint = "go back to those versions to finish it, choose another --out, or remove the directory to start again"
        raise InputError(directory, f"holds an unfinished run begun by other versions ({changes})", hint=hint)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the run directory for this process. Raises RunError when another process holds it, and InputError for a
    work folder beside it that is a symbolic link.

    The lock is a file beside the directory, which goes with the process that made it, unless that is killed.
    """
    for beside in (directory.with_name(f"{directory.name}.{ending}") for ending in WORK if directory.name):
        if beside.is_symlink():  # others' files may be there
            raise InputError(beside, "is a symbolic link", allowed="a folder", hint="remove the link")
    path = directory.parent / f"{directory.name}.lock"
    make_folder(directory.parent)
    path.touch()  # an OSError says why it cannot be made; filelock would take it for one that another process holds
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout as error:
        raise RunError(directory, "another process is working on this run", hint="wait for it, or stop it") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who opened it meanwhile finds it nameless, and makes its own
        lock.release()

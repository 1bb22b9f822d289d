"""Paths and commands as they are published: no absolute path or home folder of this machine, no server's address.

A path that stays inside the folder where commands are run is published as it is (``assets/demo-lm``), any other by its
last name. The run's fingerprint is of what is published, so a run resumes when its inputs have moved. Where they lie is
noted beside its directory.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import yaml

from hub.contract.run_dir import MANIFEST, RECIPE, read_manifest
from hub.durable import regular, write_text
from hub.errors import InputError

PATH = "path"  # the key of every section that names a local file or folder
ADDRESS = "base_url"  # of a server: often a machine of one's own or of a company
UNTOLD = "http://server.invalid/v1"  # in its place: RFC 2606 keeps that name free for ever
LIBRARIES = ("arguments", "loss_arguments", "quantization")  # a library's own arguments
_SHOWN = 3  # checksums in a message


def published_path(path: str) -> str:
    """A path as others may see it: the last name of one that tells of folders beyond that of the command."""
    windows = PureWindowsPath(path)
    absolute = PurePath(path).is_absolute() or windows.drive or windows.root or path[:1] == "~"
    if not absolute and ".." not in PurePath(path).parts:
        return path
    name = windows.name
    return name if name not in ("", "..", "~") else Path(path).resolve().name


def origin_name(repo_id: str | None, path: str | None) -> str:
    """What a card calls data or a base: the Hub id, else the path as others may see it."""
    return repo_id or published_path(path or "")


def published_value(key: str, value: Any) -> Any:
    """The value of a recipe's key as others may see it."""
    if key in LIBRARIES and isinstance(value, dict):  # some of which are paths
        return {name: published_path(text) if text[:1] in ("/", "~") else text for name, text in value.items()}
    if not isinstance(value, str):
        return value
    return UNTOLD if key == ADDRESS else published_path(value) if key == PATH else value


def published_setting(setting: str) -> str:
    """``KEY=VALUE`` of ``--set`` as others may see it: the command that made a run is in its manifest."""
    if setting.startswith("@"):  # a file of overrides
        return f"@{published_path(setting[1:])}"
    key, _, text = setting.partition("=")
    last = key.split(".")[-1]
    try:
        tree = yaml.load(text, yaml.BaseLoader)  # makes texts only
    except yaml.YAMLError:
        tree = text
    if last in (PATH, ADDRESS) and not isinstance(tree, str):  # a colon in a path makes a mapping of it
        tree = text
    shown = _without_places(tree, last)  # of a quoted path, too
    if shown == tree:
        return setting
    text = shown if isinstance(shown, str) else yaml.safe_dump(shown, default_flow_style=True, width=10**6).strip()
    return f"{key}={text}"


def _without_places(tree: Any, key: str = "") -> Any:
    if isinstance(tree, dict):
        return {name: _without_places(one, name) for name, one in tree.items()}
    if isinstance(tree, list):
        return [_without_places(one) for one in tree]
    return published_value(key, tree)


def command_line(command: str, recipe: Path, limit: int | None, settings: list[str]) -> str:
    """The command that makes an artefact, quoted for a shell: all that decides its bytes, no path of this machine."""
    options = ["--limit", str(limit)] if limit is not None else []
    for setting in settings:
        options += ["--set", published_setting(setting)]
    return shlex.join(["sts-dino", command, published_path(recipe.as_posix()), *options])


def clone_of(root: Path) -> dict[str, str]:
    """``commit`` and, where its origin has a public form, ``url`` of the clone in ``root``; nothing where it is none.

    A commit with changes on top ends in ``-dirty``. An address loses user and password and needs https.
    """
    if git(root, "rev-parse", "--show-toplevel") != str(root.resolve()):  # site-packages in somebody's repository
        return {}
    commit = git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    origin = git(root, "remote", "get-url", "origin")
    address = re.fullmatch(r"(?:https://(?:[^/@]*@)?|git@|ssh://git@)([\w.-]+)[:/]([\w./-]+)", origin)
    url = {"url": f"https://{address[1]}/{address[2]}"} if address else {}
    return {"commit": commit, **url} if commit else {}


def git(root: Path, *words: str) -> str:
    """What git answers in a folder; nothing where it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)  # noqa: S603, S607
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip("\n") if done.returncode == 0 else ""


def _note(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.places.json")


def remember(directory: Path, paths: Mapping[str, str]) -> None:
    """Note beside a run directory, which is published, where its inputs lie that it names by their last name alone.

    ``paths``: those of its recipe (``Strict.local_paths``).
    """
    places = {key: str(Path(path).resolve()) for key, path in paths.items() if published_path(path) != path}
    if places:
        write_text(_note(directory), json.dumps(places, indent=2) + "\n")
    else:
        _note(directory).unlink(missing_ok=True)


def remembered(directory: Path) -> list[str]:
    """The settings that put the noted places back into a run's recipe; none for a run that was made elsewhere."""
    try:
        places = json.loads(regular(_note(directory)).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return [f"{key}={json.dumps(path)}" for key, path in places.items()]


def require_inputs(recipe_path: Path, paths: Mapping[str, str]) -> None:
    """Raise InputError for a recipe whose local ``paths`` are not here, with the places that were looked at.

    Of a published recipe it names the checksums of what they are: the manifest beside it has those. Absolute paths are
    left to the stage's own checks.
    """
    folder = recipe_path.parent
    manifest = read_manifest(folder) if recipe_path.name == RECIPE else None
    for key, path in paths.items():
        if Path(path).exists():
            continue
        if manifest is None and not PurePath(path).is_absolute():
            make = "; make it first (sts-dino write), or name another" if key.startswith("datasets.") else ""
            here = f", and in {Path.cwd()}" if folder.resolve() != Path.cwd() else ""
            hint = f"looked beside the recipe, in {folder.resolve()}{here}{make}"
            raise InputError(f"{recipe_path}:{key}", f"{path}: no such file or folder", hint=hint)
        found = [(name, digest) for name, digest in manifest.inputs.items() if is_of(name, path)] if manifest else []
        if found:
            files = ", ".join(f"{name} with SHA-256 {digest}" for name, digest in found[:_SHOWN])
            more = f" and {len(found) - _SHOWN} more in {MANIFEST}" if len(found) > _SHOWN else ""
            hint = f"put it there, or say where it is: --set {key}=PLACE"
            raise InputError(f"{recipe_path}: {key} {path}", f"is not published; it is {files}{more}", hint=hint)


def is_of(name: str, path: str) -> bool:
    """Whether an input's name in a manifest is of ``path``: the file, a file in the folder, a base or a dataset."""
    return name in (path, f"base:{path}", f"guide:{path}") or name.startswith(
        (f"{path}/", f"dataset:{path}:", f"vocabulary:{path}:")
    )

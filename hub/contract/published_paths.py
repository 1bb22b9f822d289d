"""Paths and commands as they are published: without folders, home or server of this machine.

A relative path without ``..`` is published unchanged (``assets/demo-lm``), any other path by its
last name. The run's fingerprint covers published values alone, so a run resumes after its inputs
have moved. A note beside the run directory holds the full paths.
"""

import json
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, NoReturn

import yaml

from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, Manifest, read_manifest
from sts_dino.hub.durable import require_regular_file, write_text
from sts_dino.hub.errors import InputError

PATH_KEY = "path"  # the key of every section that names a local file or folder
ADDRESS_KEY = "base_url"  # the address of a server, often a private machine
ENDPOINT_KEY = "endpoint"  # the URL of a teacher's embeddings, of which a public host is published
# published in place of a server's address: RFC 2606 reserves the name "invalid"
HIDDEN_ADDRESS = "http://server.invalid/v1"
# keys of recipes that hold arguments under a library's own names
LIBRARY_ARGUMENT_KEYS = ("arguments", "loss_arguments", "quantization")
UNPUBLISHED_KEYS = ("model.server.budget",)  # a user's own limit
# last parts of host names that only a local network knows; arpa: from home.arpa, which RFC 8375
# gives to home networks
_PRIVATE_DOMAINS = (
    *("arpa", "corp", "home", "internal", "intranet", "invalid", "lan", "local", "localdomain"),
    *("localhost", "test"),
)
_MAX_CHECKSUMS = 3  # shown in an error
_FULL_PATH = re.compile(r"[/~]|[A-Za-z]:[/\\]|\\\\")  # the beginning of one, on any system
# the origin of a clone: https, with or without a user, or ssh in git's two forms
_CLONE_ADDRESSES = (
    re.compile(r"(?:https://(?:[^/@]*@)?|ssh://git@)([\w.-]+)/([\w./-]+)"),
    re.compile(r"git@([\w.-]+):([\w./-]+)"),
)


def hide_folders(path: str) -> str:
    """Return the published form of a path.

    It is the last name of a path that is absolute on any system, begins with ``~`` or has ``..``.
    Where such a path ends in ``..``, it is the name of the folder that the path leads to. Any other
    path is unchanged.
    """
    windows_path = PureWindowsPath(path)  # it takes / and \ as separators
    is_absolute = (
        PurePath(path).is_absolute()
        or bool(windows_path.drive or windows_path.root)
        or path.startswith("~")
    )
    if not is_absolute and ".." not in PurePath(path).parts:
        return path
    # The last part is no name, so the folder that the path leads to gives it.
    if windows_path.name in ("", "..", "~"):
        return Path(path).resolve().name
    return windows_path.name


def name_origin(repo_id: str | None, path: str | None) -> str:
    """Return the name of data or a base on a card: the Hub id, else the published path, else ""."""
    return repo_id or hide_folders(path or "")


def find_public_host(url: str) -> str:
    """Return the host of a URL in lower case; "" for an IP address and for a private name.

    A name is private when it has no dot, or when its last part is in ``_PRIVATE_DOMAINS``. The
    result is "", too, for a URL with a user, and for a scheme other than http and https.
    """
    match = re.match(r"https?://([\w.-]+\.([a-z][\w-]*))(:\d*)?(/|$)", url.lower())
    if match is None or match[2] in _PRIVATE_DOMAINS:
        return ""
    return match[1]


def name_inputs(names: Iterable[str]) -> list[str]:
    """Return names of inputs or of models in order, repeated ones numbered: NAME, NAME#2, NAME#3.

    Two inputs may have one name, because folders of one name may lie in different places.
    """
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return numbered


def hide_value(key: str, value: Any) -> Any:
    """Return the value of a recipe's key as it is published.

    - A path, and each argument of a library that begins like a full path: ``hide_folders``.
    - The URL of an endpoint: its scheme and host, where the host is public.
    - Any other URL of an endpoint or a server: ``HIDDEN_ADDRESS``.
    - The value of any other key: unchanged.
    """
    if key in LIBRARY_ARGUMENT_KEYS and isinstance(value, dict):
        arguments = dict(value)
        for name, text in value.items():
            if isinstance(text, str) and _FULL_PATH.match(text):
                arguments[name] = hide_folders(text)
        return arguments
    if key == ADDRESS_KEY and isinstance(value, str):
        return HIDDEN_ADDRESS
    if key == ENDPOINT_KEY and isinstance(value, str):
        host = find_public_host(value)
        return f"{value.partition(':')[0]}://{host}" if host else HIDDEN_ADDRESS
    if key == PATH_KEY and isinstance(value, str):
        return hide_folders(value)
    return value


def hide_setting(setting: str) -> str:
    """Return a value of ``--set`` as a manifest publishes it: ``KEY=VALUE``, or ``@FILE``.

    A value without a path or an address stays as it is. A value that is not YAML counts as one
    text.
    """
    if setting.startswith("@"):  # a file of overrides
        return f"@{hide_folders(setting[1:])}"
    path, _, text = setting.partition("=")
    keys = path.split(".")
    try:
        value = yaml.load(text, yaml.BaseLoader)  # it reads every value as text
    except yaml.YAMLError:
        value = text
    # Hide the value in the sections that its keys name.
    tree = value
    for key in reversed(keys):
        tree = {key: tree}
    hidden = _hide_tree(tree)
    for key in keys:
        hidden = hidden[key]
    if hidden == value:
        return setting
    if not isinstance(hidden, str):
        hidden = yaml.safe_dump(hidden, default_flow_style=True, width=10**6).strip()
    return f"{path}={hidden}"


def _hide_tree(tree: Any, key: str = "") -> Any:
    """Return the value of ``key`` as it is published, with all values nested in it.

    ``key``: "" for the top of a tree and for items of a list.
    """
    hidden = hide_value(key, tree)
    if isinstance(hidden, dict):
        return {name: _hide_tree(value, name) for name, value in hidden.items()}
    if isinstance(hidden, list):
        return [_hide_tree(value) for value in hidden]
    return hidden


def format_command(command: str, recipe: Path, limit: int | None, settings: list[str]) -> str:
    """Return the shell command that makes an artefact, as it is published.

    Paths and addresses of this machine are hidden. ``UNPUBLISHED_KEYS`` are left out.

    Args:
        command: the subcommand of sts-dino, e.g. ``write``.
        recipe: the recipe file.
        limit: the value of ``--limit``; None: it was not given.
        settings: the values of ``--set``.
    """
    arguments = ["sts-dino", command, hide_folders(recipe.as_posix())]
    if limit is not None:
        arguments += ["--limit", str(limit)]
    for setting in settings:
        if setting.partition("=")[0] not in UNPUBLISHED_KEYS:
            arguments += ["--set", hide_setting(setting)]
    return shlex.join(arguments)


def describe_clone(root: Path) -> dict[str, str]:
    """Return ``commit`` and, where its origin is public, ``url`` of the git clone in ``root``.

    A commit with changes on top ends in ``-dirty``. The URL is of https, without user and password.
    It is left out for an origin with a port, or on a host that is not public
    (``find_public_host``). Returns {} where ``root`` is not the top of a clone, e.g. site-packages
    in a repository, and where git fails.
    """
    if Path(run_git(root, "rev-parse", "--show-toplevel")) != root.resolve():
        return {}
    commit = run_git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    if not commit:
        return {}
    origin = run_git(root, "remote", "get-url", "origin")
    for pattern in _CLONE_ADDRESSES:
        address = pattern.fullmatch(origin)
        if address is not None and find_public_host(f"https://{address[1]}"):
            return {"commit": commit, "url": f"https://{address[1]}/{address[2]}"}
    return {"commit": commit}


def run_git(root: Path, *arguments: str) -> str:
    """Return the output of git in the folder ``root``, without line breaks around it.

    "" where git fails, takes more than 10 seconds or is not installed.
    """
    command = ["git", "-C", str(root), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip("\n") if process.returncode == 0 else ""


def _get_note_path(directory: Path) -> Path:
    """Return the file beside a run directory that holds the full paths of its inputs."""
    return directory.with_name(f"{directory.name}.places.json")


def store_input_paths(directory: Path, paths: Mapping[str, str]) -> None:
    """Write a note with the full path of each input that the run names by its last name alone.

    The note lies beside the run directory; without such inputs it is removed. ``paths``: recipe key
    → local path (``Strict.collect_local_paths``).
    """
    full_paths = {
        key: str(Path(path).absolute()) for key, path in paths.items() if hide_folders(path) != path
    }
    note = _get_note_path(directory)
    if full_paths:
        write_text(note, json.dumps(full_paths, indent=2) + "\n")
    else:
        note.unlink(missing_ok=True)


def read_path_settings(directory: Path) -> list[str]:
    """Return ``KEY=PATH`` settings that put the full paths of inputs back into a run's recipe.

    ``store_input_paths`` wrote the note of paths beside ``directory``. The list is empty when the
    note is missing or damaged. Raises InputError for a note that is a pipe, a socket or a device;
    OSError for one that cannot be opened.
    """
    try:
        text = require_regular_file(_get_note_path(directory)).read_text(encoding="utf-8")
        paths = json.loads(text)
    except (FileNotFoundError, ValueError):
        return []
    if not isinstance(paths, dict):
        return []
    return [f"{key}={json.dumps(path)}" for key, path in paths.items()]


def require_inputs(recipe_path: Path, paths: Mapping[str, str]) -> None:
    """Raise InputError for a local path of a recipe that does not exist.

    For the recipe.yaml of a run, the error names the input's checksums from the manifest beside it;
    a path without checksums there passes. For any other recipe, the error names the folders that
    were searched; an absolute path passes, because the stage checks it. Raises InputError, too, for
    a damaged manifest.

    Args:
        recipe_path: the recipe file.
        paths: recipe key → local path (``Strict.collect_local_paths``).
    """
    manifest = read_manifest(recipe_path.parent) if recipe_path.name == RECIPE else None
    for key, path in paths.items():
        if Path(path).exists():
            continue
        if manifest is not None:
            _refuse_unpublished_input(recipe_path, manifest, key, path)
        elif not PurePath(path).is_absolute():
            _refuse_missing_input(recipe_path, key, path)


def _refuse_missing_input(recipe_path: Path, key: str, path: str) -> NoReturn:
    """Raise InputError that names the folders in which the path of ``key`` was searched."""
    folder = recipe_path.parent.resolve()
    hint = f"looked beside the recipe, in {folder}"
    if folder != Path.cwd():
        hint += f", and in {Path.cwd()}"
    if key.startswith("datasets."):
        hint += "; make it first (sts-dino write), or name another"
    raise InputError(f"{recipe_path}:{key}", f"{path}: no such file or folder", hint=hint)


def _refuse_unpublished_input(recipe_path: Path, manifest: Manifest, key: str, path: str) -> None:
    """Raise InputError with the checksums in ``manifest`` of the files that ``path`` stands for.

    Do nothing when the manifest has no such checksums. ``key``: the recipe's key of ``path``.
    """
    files = [
        f"{name} with SHA-256 {digest}"
        for name, digest in manifest.inputs.items()
        if is_input_of(name, path)
    ]
    if not files:
        return
    problem = f"is not published; it is {', '.join(files[:_MAX_CHECKSUMS])}"
    if len(files) > _MAX_CHECKSUMS:
        problem += f" and {len(files) - _MAX_CHECKSUMS} more in {MANIFEST}"
    raise InputError(
        f"{recipe_path}: {key} {path}",
        problem,
        hint=f"put it there, or say where it is: --set {key}=PLACE",
    )


def is_input_of(name: str, path: str) -> bool:
    """Return whether a manifest's input ``name`` was read from ``path`` of a recipe.

    The input is the path itself or a file in it, or a base, a guide, a dataset or a vocabulary.
    """
    prefixes = (f"{path}/", f"dataset:{path}:", f"vocabulary:{path}:")
    return name in (path, f"base:{path}", f"guide:{path}") or name.startswith(prefixes)

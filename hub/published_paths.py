"""What others may see of where inputs lie: names, never a folder of one's own.

A path that stays inside the folder where commands are run is published as it is (``assets/demo-lm``), any other by its
last name. The run's fingerprint is of what is published, so a run goes on when its inputs have moved.
"""

from collections.abc import Iterator
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, TypeVar

import yaml

from hub.recipe_sections import Strict

Section = TypeVar("Section", bound=Strict)
PATH = "path"  # the key of every section that names a local file or folder
LIBRARIES = ("arguments", "loss_arguments", "quantization")  # a library's own arguments


def published_path(path: str) -> str:
    """A path as others may see it."""
    if not is_outside(path):
        return path
    name = PureWindowsPath(path).name
    return name if name not in ("", "..", "~") else Path(path).resolve().name


def origin_name(repo_id: str | None, path: str | None) -> str:
    """What a card calls data or a base: the Hub id, else the path as others may see it."""
    return repo_id or published_path(path or "")


def is_outside(path: str) -> bool:
    """Whether a path tells of folders beyond the one where the command is run."""
    windows = PureWindowsPath(path)
    parts = PurePath(path).parts
    return PurePath(path).is_absolute() or bool(windows.drive or windows.root) or ".." in parts or path[:1] == "~"


def published(section: Section) -> Section:
    """A recipe, or a section of one, as it is published: every local path by what others may see of it."""
    found: Section = _published(section)
    return found


def _published(value: Any, key: str = "") -> Any:
    if isinstance(value, Strict):
        was = {name: getattr(value, name) for name in type(value).model_fields}
        now = {name: _published(one, name) for name, one in was.items()}
        return value.model_copy(update={name: one for name, one in now.items() if one != was[name]})
    if isinstance(value, tuple):
        return tuple(_published(one) for one in value)
    if key in LIBRARIES and isinstance(value, dict):  # some of which are paths
        return {name: published_path(text) if text[:1] in ("/", "~") else text for name, text in value.items()}
    return published_path(value) if key == PATH and isinstance(value, str) else value


def local_paths(recipe: Strict) -> dict[str, str]:
    """Key of the recipe, e.g. ``source.path`` → the local path that it names. A path inside a Hub repo is not one."""
    return dict(_paths(recipe, ""))


def _paths(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from _paths(one, f"{key}.{index}")
    if not isinstance(value, Strict):
        return
    for name in type(value).model_fields:
        one, place = getattr(value, name), f"{key}.{name}".removeprefix(".")
        if name == PATH and isinstance(one, str) and getattr(value, "repo_id", None) is None:
            yield place, one
        yield from _paths(one, place)


def published_setting(setting: str) -> str:
    """``KEY=VALUE`` of ``--set`` as others may see it: the command that made a run is in its manifest."""
    key, equals, text = setting.partition("=")
    if key.split(".")[-1] == PATH:
        return f"{key}{equals}{published_path(text)}"
    try:
        tree = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes texts alone
    except yaml.YAMLError:
        return setting
    shown = _without_places(tree)
    return setting if shown == tree else f"{key}={yaml.safe_dump(shown, default_flow_style=True, width=10**6).strip()}"


def _without_places(tree: Any, key: str = "") -> Any:
    if isinstance(tree, dict):
        return {name: _without_places(one, name) for name, one in tree.items()}
    if isinstance(tree, list):
        return [_without_places(one) for one in tree]
    return published_path(tree) if key == PATH and isinstance(tree, str) else tree

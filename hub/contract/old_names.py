"""Old names of recipe keys: read for one version with a warning, and kept in fingerprints.

To rename a key, add a line to ``KEYS``. The next version removes the reading (``current``), not the table:
a run's fingerprint holds the names that its recipe had when the key was new, so published runs keep theirs.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from hub import cli
from hub.errors import InputError

ITEM = "N"  # any item of a list
KEYS = {"form": "schema", "decoding.floor": "epsilon", f"datasets.{ITEM}.form": "example_type"}
VALUES = {"control": {"copies": "simcse"}}


def current(tree: Any, place: object, quiet: bool = False) -> Any:
    """``tree`` with today's keys and values; one line on stderr for each old one, unless ``quiet``.

    Raises InputError for a section that has a key under both names.
    """
    return _renamed(tree, "", place, quiet)


def current_key(key: str) -> str:
    """A key of ``--set``, e.g. ``decoding.floor``, under today's name; with a warning if it had another."""
    new = KEYS.get(_pattern(key))
    if new is None:
        return key
    _warn("--set", key, new)
    return ".".join(filter(None, (key.rpartition(".")[0], new)))


@cache
def fingerprint_key(key: str) -> str:
    """The last part of a key, e.g. ``decoding.epsilon``, as fingerprints have it."""
    above, _, last = key.rpartition(".")
    names = {new: old.rpartition(".")[2] for old, new in KEYS.items() if old.rpartition(".")[0] == _pattern(above)}
    return names.get(last, last)


def _pattern(key: str) -> str:
    return ".".join(ITEM if part.isdigit() else part for part in key.split("."))


def _renamed(node: Any, key: str, place: object, quiet: bool) -> Any:
    if isinstance(node, list):
        return [_renamed(item, f"{key}.{index}", place, quiet) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        new = VALUES.get(key, {}).get(node) if isinstance(node, str) else None
        if new and not quiet:
            _warn(place, f"{key}: {node}", f"{key}: {new}")
        return new or node
    return dict(_items(node, key, place, quiet))


def _items(node: dict[str, Any], key: str, place: object, quiet: bool) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        inner = f"{key}.{name}".removeprefix(".")
        new = KEYS.get(_pattern(inner))
        if new and new in node:
            raise InputError(f"{place}:{inner}", f"is the old name of {new}, which is given too", hint="remove it")
        if new and not quiet:
            _warn(place, inner, new)
        yield new or name, _renamed(value, inner, place, quiet)


@cache
def _warn(place: object, old: str, new: str) -> None:
    """Print one line, once per process: a command reads a recipe several times."""
    cli.say(f"warning: {place}: {old} is the old name of {new}; the next version no longer reads it")

"""The versions of an artefact, each with one line: ``model_cards/sections/NAME.changes.yaml``, newest first."""

from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from hub.errors import InputError
from model_cards import templates
from model_cards.escape import Markdown, code, table


def change_table(name: str, version: str, complete: bool) -> Markdown | None:
    """The versions up to ``version``; None when the artefact has no file of changes.

    Raises InputError when the file is no such list, or does not tell of a version that is complete.
    """
    path = templates.HERE / "sections" / f"{name}.changes.yaml"
    if not path.is_file():
        return None
    told = read_changes(path)
    if complete and version not in told:
        raise InputError(path, f"tells nothing of version {version}", hint="add one line on top: what is new in it")
    older = {key: line for key, line in told.items() if _order(key) <= _order(version)}
    return (
        table(["version", "what is new"], [[code(f"v{key}"), line] for key, line in older.items()]) if older else None
    )


def read_changes(path: Path) -> dict[str, str]:
    """Version → line. Raises InputError unless the file is a mapping of versions to one line each, newest first."""
    tree = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - it makes text alone
    try:
        told = TypeAdapter(dict[str, str]).validate_python(tree)
        ordered = sorted(told, key=_order, reverse=True)
    except (ValidationError, ValueError) as error:
        raise InputError(path, "is not a mapping of versions to lines", allowed="1.0.0: what is new") from error
    if ordered != list(told):
        raise InputError(path, f"is not in order: {', '.join(told)}", hint="put the newest version on top")
    if wrong := [version for version, line in told.items() if len(line.splitlines()) != 1]:
        raise InputError(path, f"version {wrong[0]} has not one line", hint="say in one line what is new")
    return told


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))

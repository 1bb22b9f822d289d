"""What is new in each version of an artefact, one line each, newest first: ``model_cards/changes.yaml``."""

from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from hub.errors import InputError
from hub.untrusted import Markdown, code, table
from model_cards.shared import templates

FILE = "changes.yaml"


def change_table(name: str, version: str, complete: bool) -> Markdown | None:
    """The versions up to ``version``; None when the file tells nothing of the artefact.

    Raises InputError when it tells it in another form, or does not tell of a version that is complete.
    """
    told = read_changes(name)
    if not told:
        return None
    if complete and version not in told:
        hint = "add one line on top: what is new in it"
        raise InputError(f"{templates.HERE / FILE}: {name}", f"tells nothing of version {version}", hint=hint)
    older = [(key, line) for key, line in told.items() if _order(key) <= _order(version)]
    return table(["version", "what is new"], [[code(f"v{key}"), line] for key, line in older]) if older else None


def read_changes(name: str) -> dict[str, str]:
    """Version → line of one artefact, none where the file has none.

    Raises InputError unless that is a mapping of versions to one line each, newest first.
    """
    path = Path(templates.HERE / FILE)
    tree = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - it makes text alone
    place = f"{path}: {name}"
    try:
        told = TypeAdapter(dict[str, str]).validate_python({name: {}, **tree}[name])
        ordered = sorted(told, key=_order, reverse=True)
    except (ValidationError, ValueError, TypeError) as error:
        raise InputError(place, "is not a mapping of versions to lines", allowed="1.0.0: what is new") from error
    if ordered != list(told):
        raise InputError(place, f"is not in order: {', '.join(told)}", hint="put the newest version on top")
    if wrong := [version for version, line in told.items() if len(line.splitlines()) != 1]:
        raise InputError(place, f"version {wrong[0]} has not one line", hint="say in one line what is new")
    return told


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))

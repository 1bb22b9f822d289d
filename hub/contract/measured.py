"""What is measured of a finished dataset stands in files beside its manifest, made for its rows and for no others."""

import json
import re
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hub.contract.run_dir import REPORT, Manifest, locked, require_complete
from hub.contract.shards import write_text
from hub.errors import InputError, RunError

Form = TypeVar("Form", bound=BaseModel)
HEAD = 20_000  # characters of a report, in which its runs' fingerprints stand


class Frozen(BaseModel):
    """Base of what is measured and of its parts: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_measured(
    directory: Path, manifest: Manifest, name: str, form: type[Form], rows: str, command: str
) -> Form | None:
    """A measured file of a run directory, or None when there is none. ``rows``: its key with the rows' fingerprint.

    Raises InputError, naming the ``command`` that measures again, when it has another form or is of other rows.
    """
    path, hint = directory / name, f"measure again: {command}"
    try:
        found = form.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"has another form than expected: {f'{where}: ' if where else ''}{first['msg']}"
        raise InputError(path, problem, hint=hint) from error
    if getattr(found, rows) != manifest.fingerprint:
        raise InputError(path, "was measured on other rows than the run directory holds", hint=hint)
    return found


def has_report(directory: Path, manifest: Manifest) -> bool:
    """Whether a run directory holds a report. Raises InputError when it tells of other rows or weights."""
    path = directory / REPORT
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as page:
        told = re.search(r'<meta name="fingerprints" content="([0-9a-f ]*)">', page.read(HEAD))
    if told is None or manifest.fingerprint not in told[1].split():
        hint = f"write it again: sts-dino report {directory}, or remove it"
        raise InputError(path, "tells of other rows or weights than the run directory holds", hint=hint)
    return True


def write_measured(directory: Path, name: str, value: BaseModel, fingerprint: str) -> Path:
    """Write a measured file into a run directory, atomically. Raises RunError when its rows are no longer those."""
    with locked(directory):
        if require_complete(directory).fingerprint != fingerprint:
            raise RunError(directory, "its rows changed while they were measured", hint="measure again")
        write_json(directory / name, value)
    return directory / name


def write_json(path: Path, value: BaseModel) -> None:
    """Write a form atomically."""
    write_text(path, json.dumps(value.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")

"""Options, folders and reports that the commands of this package share."""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub.cli import answer, say
from hub.contract.run_dir import ARTIFACTS
from hub.durable import write_text
from hub.errors import InputError
from hub.untrusted import template_environment

if TYPE_CHECKING:
    from jinja2 import Environment

MODEL = "Folder or ORG/NAME[@REVISION]"
PlaceArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or ORG/NAME@REVISION of a Hub")]
ConfigOption = Annotated[str | None, typer.Option("--config", help="Config [default: the one for training]")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the results [default: one in artifacts/]")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random rows")]
NliOption = Annotated[str | None, typer.Option("--nli", help=f"{MODEL} of a cross-encoder for NLI")]
NliLabelsOption = Annotated[
    str | None, typer.Option("--nli-labels", help="Its outputs in order, if its config does not name them")
]


def default_folder(kind: str, name: str, config: str) -> Path:
    """The default folder of measurements, ``artifacts/KIND/...``: outside of the run directory, which is published."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{name}--{config}").strip("-")
    return ARTIFACTS / kind / plain[:100]


def made_folder(folder: Path, option: str = "--out") -> Path:
    """The folder, made now: fails before hours of work when it cannot be written. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror}", hint=f"choose another {option}") from error


def quiet_transformers() -> None:
    """Silence the library's warnings and progress bars while models are loaded."""
    import transformers  # it and torch cost seconds

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@cache
def _environment() -> "Environment":
    from jinja2 import PackageLoader

    return template_environment(PackageLoader("eval.audit"))


def fill(template: str, **context: Any) -> str:
    """A template of ``templates/``, filled, all text escaped (``hub.untrusted``); the result ends with one newline."""
    return _environment().get_template(template).render(context).strip() + "\n"


def write_report(folder: Path, name: str, text: str, facts: dict[str, Any], as_json: bool) -> None:
    """Write ``NAME.md`` and ``NAME.json``, and print one of them. Cells of ``facts`` may be models."""
    write_text(folder / f"{name}.md", text)
    write_text(folder / f"{name}.json", json.dumps(facts, indent=2, ensure_ascii=False, default=vars) + "\n")
    say(f"written: {folder / name}.md and {name}.json")
    answer(text.rstrip(), facts, as_json)

"""Options, output folders and reports of the commands that measure a dataset."""

import json
import logging
import re
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from sts_dino.hub.cli import print_answer
from sts_dino.hub.contract.run_dir import ARTIFACTS
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import make_template_environment

logger = logging.getLogger(__name__)

MODEL_HELP = "Folder or ORG/NAME[@REVISION]"  # of an option that names a model
MAX_FOLDER_CHARACTERS = 100
DatasetArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Run directory, or ORG/NAME@REVISION of a Hub")
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", help="Config [default: the one for training]")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the results [default: one in artifacts/]"),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random rows")]
NliOption = Annotated[
    str | None, typer.Option("--nli", help=f"{MODEL_HELP} of a cross-encoder for NLI")
]
NliLabelsOption = Annotated[
    str | None,
    typer.Option("--nli-labels", help="Its outputs in order, if its config does not name them"),
]


def require_nli_model(nli: str | None, nli_labels: str | None) -> None:
    """Raise InputError for ``--nli-labels`` without ``--nli``."""
    if nli_labels and not nli:
        raise InputError(
            "--nli-labels", "is given without --nli", hint="name the cross-encoder, or leave it out"
        )


def get_default_folder(kind: str, name: str, config: str) -> Path:
    """Return ``artifacts/KIND/NAME--CONFIG``, the default folder of a dataset's measurements.

    The folder lies outside the run directory, because a run directory is published. Characters of
    ``NAME--CONFIG`` other than ASCII letters, digits, "_" and "-" become "-". The result is cut to
    ``MAX_FOLDER_CHARACTERS``.

    Args:
        kind: the kind of the measurements, e.g. quality.
        name: the dataset's name.
        config: the config.
    """
    safe_name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{name}--{config}").strip("-")
    return ARTIFACTS / kind / safe_name[:MAX_FOLDER_CHARACTERS]


def make_output_folder(folder: Path, option: str = "--out") -> Path:
    """Create a folder with its parents, and return ``folder``.

    Commands call this function before hours of work. ``option`` is the command-line option that
    names the folder, for the error. Raises InputError when the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A folder that exists may be read-only
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            folder, f"cannot be written: {error.strerror}", hint=f"choose another {option}"
        ) from error
    return folder


def silence_transformers() -> None:
    """Silence the warnings and progress bars of transformers for the rest of the process."""
    import transformers  # importing transformers and torch takes seconds

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def fill_template(name: str, **context: Any) -> str:
    """Return the file ``name`` of ``templates/`` filled with ``context``, ending with one newline.

    Printed texts are escaped as Markdown, unless they are of the class ``Markdown``. Raises
    TypeError for a printed None or truth value, jinja2.UndefinedError for a missing variable.
    """
    from jinja2 import PackageLoader

    environment = make_template_environment(PackageLoader("sts_dino.eval.audit"))
    return environment.get_template(name).render(context).strip() + "\n"


def write_report(folder: Path, name: str, text: str, facts: dict[str, Any], as_json: bool) -> None:
    """Write or replace ``NAME.md`` and ``NAME.json`` in a folder, and print one of them.

    Args:
        folder: the folder of the two files.
        name: the name of the two files without a suffix.
        text: the Markdown report.
        facts: the JSON document; its values may be pydantic models.
        as_json: print the JSON document instead of the report.
    """
    # ``vars`` turns a pydantic model into its fields
    document = json.dumps(facts, indent=2, ensure_ascii=False, default=vars)
    write_text(folder / f"{name}.md", text)
    write_text(folder / f"{name}.json", document + "\n")
    logger.info(f"written: {folder / name}.md and {name}.json")
    print_answer(text.rstrip(), facts, as_json)

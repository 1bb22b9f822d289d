"""Write the card of a run directory: README.md, its plots in assets/, and for a model .eval_results/.

    sts-dino card artifacts/datasets/NAME [--repo-id ORG/NAME] [--update RECIPE] [--dry-run]

Reads manifest.json, recipe.yaml, what was measured (results.json, value.json ...), the files the manifest names and
``model_cards/sections/``. A finished run gives the same bytes each time: its card holds no date, no timing and no
machine. Only while a run grows does its card tell the time, from the timing that lies beside the run directory.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from hub.cli import DryRunOption, JsonOption, SetOption, answer, new_app, say
from hub.client.plan import MEASURED, facts_digest, stamped
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.results import read_results
from hub.contract.run_dir import RECIPE, Manifest, manifest_text, read_manifest
from hub.durable import atomic_path
from hub.errors import InputError
from hub.untrusted import first_line
from model_cards.dataset.card import dataset_files
from model_cards.dataset.measured import Measured
from model_cards.model.card import RESULTS, model_files
from model_cards.model.eval_results import FOLDER as EVAL_RESULTS
from model_cards.shared.checks import check_identity
from model_cards.update import update_recipe

CARD = "README.md"
ORGANISATION = "sts-dino"
OWNED = ("assets/*.png", f"{EVAL_RESULTS}/*.yaml")  # what a card may leave behind

app = new_app("Write the card of a finished or growing run directory.")


def render(
    directory: Path, repo_id: str | None = None, *, manifest: Manifest | None = None, now: datetime | None = None
) -> dict[str, bytes]:
    """The files of the card, path → content. Writes nothing.

    ``manifest`` (default: the one on disk) may be a snapshot of a run that goes on growing: only files that it names
    are read, and nothing that was measured. ``now`` (UTC; default: this moment) is told by the cards of growing runs
    alone.

    Raises InputError when the directory is no run directory, or when its facts do not agree.
    """
    on_disk, manifest = manifest is None, manifest or _manifest(directory)
    repo_id = checked_repo_id(repo_id or f"{ORGANISATION}/{manifest.name}")
    if manifest.kind == "dataset":
        recipe = load_recipe(directory / RECIPE, DatasetRecipe)
        check_identity(directory, manifest, recipe.name, recipe.version)
        measured = Measured.of(directory, manifest) if on_disk and manifest.complete else Measured()
        files = dataset_files(directory, manifest, recipe, repo_id, now or datetime.now(UTC), measured)
        contents = _contents(directory, MEASURED) if on_disk else []
        return {**files, CARD: _stamped(files[CARD], repo_id, manifest, contents)}
    model_recipe = load_recipe(directory / RECIPE, ModelRecipe)
    check_identity(directory, manifest, model_recipe.name, model_recipe.version)
    files = model_files(directory, _complete(directory, manifest), model_recipe, repo_id)
    return {**files, CARD: _stamped(files[CARD], repo_id, manifest, _contents(directory, MEASURED))}


def _contents(directory: Path, names: Sequence[str]) -> list[bytes | None]:
    """What each file of a run directory holds; None: it is not there."""
    return [path.read_bytes() if (path := directory / name).exists() else None for name in names]


def _stamped(card: bytes, repo_id: str, manifest: Manifest, contents: Sequence[bytes | None]) -> bytes:
    facts = facts_digest(manifest_text(manifest).encode(), *contents)
    return stamped(card.decode(), repo_id, facts).encode()


def _manifest(directory: Path) -> Manifest:
    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError(
            directory, "is not a run directory (no manifest.json)", hint="run the stage that makes it first"
        )
    return manifest


def _complete(directory: Path, manifest: Manifest) -> Manifest:
    if not manifest.complete:
        raise InputError(
            directory, "the run is not finished", hint="run the same stage again: it goes on where it stopped"
        )
    return manifest


def checked_repo_id(repo_id: str) -> str:
    """``repo_id`` when it is a full Hub id. Raises InputError otherwise."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError("--repo-id", first_line(error)) from error
    if repo_id.count("/") != 1:
        raise InputError("--repo-id", f"{repo_id!r} has no organisation", allowed="ORG/NAME")
    return repo_id


def unscored(directory: Path) -> list[str]:
    """The recipe's evaluation tasks without a score in results.json; a group of tasks (no / in its name) is not one."""
    if _manifest(directory).kind != "model" or not (directory / RESULTS).is_file():
        return []
    scores = {(score.task, score.split) for score in read_results(directory / RESULTS).scores}
    scores |= {(task, "test") for task, split in scores if split not in ("train", "validation")}  # folds of its own
    asked = load_recipe(directory / RECIPE, ModelRecipe).evaluation
    return [f"{one.task} {one.split}" for one in asked if "/" in one.task and (one.task, one.split) not in scores]


def write(directory: Path, files: dict[str, bytes]) -> None:
    """Write the card's files, and remove plots and evaluation entries that only an earlier card had."""
    for path, content in sorted(files.items()):
        with atomic_path(directory / path) as temporary:
            temporary.write_bytes(content)
    for pattern in OWNED:
        for old in sorted(directory.glob(pattern)):
            if old.relative_to(directory).as_posix() not in files:
                old.unlink()


def _updated(directory: Path, recipe: Path | None, settings: list[str], dry_run: bool) -> list[str]:
    """What --update changes; nothing without it."""
    if recipe is not None:
        return update_recipe(directory, recipe, settings, dry_run)
    if settings:
        raise InputError("--set", "changes a recipe, and none is read", hint="give one: --update RECIPE")
    return []


@app.command()
def main(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="e.g. artifacts/datasets/NAME")],
    repo_id: Annotated[str | None, typer.Option("--repo-id", help="Hub id [default: sts-dino/NAME]")] = None,
    update: Annotated[
        Path | None,
        typer.Option("--update", metavar="RECIPE", help="Take other words and licences from it first; the rows stay"),
    ] = None,
    settings: SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write README.md (and .eval_results/ for a model) into RUN_DIR.

    With --update, RECIPE may differ from the run's in what decides no row and no weight: the licence, pretty_name,
    descriptions, meanings of labels. recipe.yaml and manifest.json are rewritten with the card.

    Examples:

      sts-dino card artifacts/datasets/sts-dino-x2

      sts-dino card artifacts/datasets/sts-dino-x2 --update recipes/demo/sts-dino-x2.yaml --dry-run
    """
    changes = _updated(run_dir, update, settings, dry_run)
    files = render(run_dir, repo_id)
    if not dry_run:
        write(run_dir, files)
    for task in unscored(run_dir):
        say(f"not on the card: {task} has no score in {run_dir / RESULTS}; run: sts-dino score RECIPE")
    verb, sizes = "would write" if dry_run else "wrote", {path: len(files[path]) for path in sorted(files)}
    lines = [f"{'would change' if dry_run else 'changed'} {change}" for change in changes]
    if not (dry_run and changes):  # the card of the changed recipe is not known before
        lines += [f"{verb} {run_dir / path} ({size} bytes)" for path, size in sizes.items()]
    org = (repo_id or "sts-dino/").partition("/")[0]  # the card is of that place
    then = [f"sts-dino publish {quote(str(run_dir))} --org {quote(org)}"]
    answer(
        "\n".join(lines), {"directory": run_dir, "changes": changes, "bytes": sizes}, as_json, () if dry_run else then
    )

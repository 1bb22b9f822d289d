"""Write the card of a run directory: README.md, DETAILS.md, its plots in assets/, and for a model .eval_results/.

The facts are manifest.json, recipe.yaml, measurements (results.json, value.json ...) and the files of the manifest. A
finished run gives bit-identical cards: they hold no date, no timing and no machine. The card of a growing run has its
progress, from the timing beside the run directory.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from hub.cli import DryRunOption, JsonOption, SetOption, answer, new_app, say
from hub.client.plan import DETAILS, MEASURED, facts_digest, stamped
from hub.contract.licences import check, check_model
from hub.contract.recipe import PUBLISHED, DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import deciding, load_recipe, resolved
from hub.contract.results import read_results
from hub.contract.run_dir import (
    RECIPE,
    Manifest,
    changed_keys,
    locked,
    manifest_text,
    require_complete,
    require_manifest,
    rewrite_recipe,
)
from hub.durable import atomic_path
from hub.errors import InputError
from hub.untrusted import first_line
from model_cards.dataset_card import dataset_files
from model_cards.facts import RESULTS, DatasetFacts, ModelFacts, licensed
from model_cards.manifest import ModelProvenance, read_facts
from model_cards.metadata import FOLDER as EVAL_RESULTS
from model_cards.model_card import model_files, release_name
from model_cards.provenance import change_table

CARD = "README.md"
ORGANISATION = "sts-dino"
OWNED = (DETAILS, "assets/*.png", f"{EVAL_RESULTS}/*.yaml")  # files that an earlier card may have left
_SHOWN = 5  # keys in a message

app = new_app("Write the card of a finished or growing run directory.")


def render(
    directory: Path, repo_id: str | None = None, *, manifest: Manifest | None = None, now: datetime | None = None
) -> dict[str, bytes]:
    """Return the files of the card, path → content. Writes nothing.

    ``manifest`` (default: the one on disk) may be a snapshot of a growing run: the card reads its files alone, and no
    measurements. ``now`` (UTC; default: this moment) appears on the cards of growing runs only.

    Raises InputError when the directory is not a run directory, or when its facts disagree.
    """
    on_disk, manifest = manifest is None, manifest or require_manifest(directory)
    repo_id = checked_repo_id(repo_id or f"{ORGANISATION}/{manifest.name}")
    if manifest.kind == "dataset":
        facts = DatasetFacts.read(directory, manifest, measured=on_disk)
        files = dataset_files(facts, repo_id, now or datetime.now(UTC))
    elif manifest.complete:
        files = model_files(ModelFacts.read(directory, manifest), repo_id)
    else:
        raise InputError(directory, "the run is not finished", hint="run the same stage again: it resumes")
    measured = [directory / name for name in MEASURED] if on_disk or manifest.kind == "model" else []
    contents = [path.read_bytes() if path.exists() else None for path in measured]
    digest = facts_digest(manifest_text(manifest).encode(), *contents)
    return {**files, CARD: stamped(files[CARD].decode(), repo_id, digest).encode()}


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


def require_card(recipe: DatasetRecipe | ModelRecipe, repo_id: str, datasets: Sequence[tuple[str, str]] = ()) -> None:
    """Raise InputError, before a run, when its card and so its release would be refused.

    Reasons: a licence that does not follow from its parts, a version without an entry in ``changes.yaml``, or a name
    that no Hub takes. ``datasets``: names and licences of a model's datasets, once they are read.
    """
    checked_repo_id(repo_id)
    if isinstance(recipe, DatasetRecipe):
        check(recipe)
        change_table(recipe.name, recipe.version, complete=True)
        return
    check_model(recipe, datasets)
    if not recipe.is_baseline:
        change_table(release_name(recipe), recipe.version, complete=True)


def unscored(directory: Path) -> list[str]:
    """The recipe's evaluation tasks without a score in results.json, without groups of tasks (no / in the name)."""
    if require_manifest(directory).kind != "model" or not (directory / RESULTS).is_file():
        return []
    scores = {(score.task, score.split) for score in read_results(directory / RESULTS).scores}
    scores |= {(task, "test") for task, split in scores if split not in ("train", "validation")}  # folds of its own
    tasks = load_recipe(directory / RECIPE, ModelRecipe).evaluation
    return [f"{one.task} {one.split}" for one in tasks if "/" in one.task and (one.task, one.split) not in scores]


def write(directory: Path, files: dict[str, bytes]) -> None:
    """Write the card's files, and remove plots and evaluation entries of an earlier card."""
    for path, content in sorted(files.items()):
        with atomic_path(directory / path) as temporary:
            temporary.write_bytes(content)
    for pattern in OWNED:
        for old in sorted(directory.glob(pattern)):
            if old.relative_to(directory).as_posix() not in files:
                old.unlink()


def update_recipe(directory: Path, recipe_path: Path, settings: list[str], dry_run: bool) -> list[str]:
    """Give a finished run another recipe of the same rows or weights; return every change as text.

    Rewrites manifest and recipe.yaml, unless it is a ``dry_run``; the card is stale until it is rewritten.

    Raises InputError when the run is not finished, a key differs that decides rows or weights, or a licence does not
    follow from the parts; RunError when another process holds the run.
    """
    with locked(directory):
        manifest = require_complete(directory)
        kind: Any = DatasetRecipe if manifest.kind == "dataset" else ModelRecipe
        kept, given = load_recipe(directory / RECIPE, kind), load_recipe(recipe_path, kind, settings)
        if isinstance(given, DatasetRecipe) and given.model.dtype == "auto":  # the run recorded what it resolved to
            given = given.model_copy(update={"model": given.model.model_copy(update={"dtype": kept.model.dtype})})
        found, provenance = changed_keys(deciding(kept), deciding(given)), manifest.provenance
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            problem = f"differs from the run {directory} in keys that decide its content"
            made = f"; the run's command: {provenance['command']}" if provenance.get("command") else ""
            hint = f"start another run, or override the keys: --set KEY=VALUE{made}"
            raise InputError(recipe_path, f"{problem}: {'; '.join(found[:_SHOWN])}{more}", hint=hint)
        trained = () if kind is DatasetRecipe else read_facts(directory, "provenance", provenance, ModelProvenance)
        require_card(given, f"{ORGANISATION}/{given.name}", licensed(given, trained) if trained else ())
        if not dry_run:
            rewrite_recipe(directory, manifest, given.version, resolved(given))
        return changed_keys(*(recipe.model_dump(mode="json", context=PUBLISHED) for recipe in (kept, given)))


@app.command()
def main(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory, e.g. artifacts/datasets/NAME")],
    repo_id: Annotated[str | None, typer.Option(help="Hub id [default: sts-dino/NAME]")] = None,
    update: Annotated[
        Path | None, typer.Option(metavar="RECIPE", help="Corrected texts and licences; rows and weights stay")
    ] = None,
    settings: SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write README.md (and .eval_results/ for a model) into RUN_DIR.

    With --update, RECIPE may change keys that decide no row and no weight: licence, pretty_name, about, descriptions,
    meanings of labels. The command rewrites recipe.yaml and manifest.json with the card.

    Examples:

      sts-dino card artifacts/datasets/sts-dino-x2

      sts-dino card artifacts/datasets/sts-dino-x2 --update recipes/demo/sts-dino-x2.yaml --dry-run
    """
    if settings and update is None:
        raise InputError("--set", "changes a recipe, and none is given", hint="give one: --update RECIPE")
    changes = update_recipe(run_dir, update, settings, dry_run) if update else []
    files = render(run_dir, repo_id)
    if not dry_run:
        write(run_dir, files)
    for task in unscored(run_dir):
        say(f"not on the card: {task} has no score in {run_dir / RESULTS}; run: sts-dino score RECIPE")
    verb, sizes = "would write" if dry_run else "wrote", {path: len(files[path]) for path in sorted(files)}
    lines = [f"{'would change' if dry_run else 'changed'} {change}" for change in changes]
    if not (dry_run and changes):  # the card of the changed recipe is not known yet
        lines += [f"{verb} {run_dir / path} ({size} bytes)" for path, size in sizes.items()]
    org = f" --org {quote(repo_id.partition('/')[0])}" if repo_id else ""  # else the token's user
    then = [f"sts-dino publish {quote(str(run_dir))}{org}"]
    facts = {"directory": run_dir, "changes": changes, "bytes": sizes}
    answer("\n".join(lines), facts, as_json, () if dry_run else then)

"""Write the card of a run directory: README.md, DETAILS.md and plots.

A model's card has evaluation entries in .eval_results/, too.

The facts are manifest.json, recipe.yaml, measurements (results.json, value.json ...) and the files
of the manifest. A finished run gives bit-identical cards: they hold no date, no timing and no
machine. The card of a growing run has its progress, from the timing beside the run directory.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from sts_dino.hub.cli import DryRunOption, JsonOption, SetOption, make_app, print_answer
from sts_dino.hub.client.plan import CARD, DETAILS, add_stamp
from sts_dino.hub.contract.licences import check_dataset, check_model
from sts_dino.hub.contract.recipe import PUBLISHED, DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import format_recipe, get_deciding_values, load_recipe
from sts_dino.hub.contract.run_dir import (
    RECIPE,
    Manifest,
    describe_changed_keys,
    lock_run,
    require_complete,
    require_manifest,
    rewrite_recipe,
)
from sts_dino.hub.durable import write_atomically
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.dataset_card import make_dataset_files
from sts_dino.model_cards.facts import (
    RESULTS,
    SCORE_HINT,
    DatasetFacts,
    ModelFacts,
    ModelProvenance,
    compute_facts_digest,
    list_dataset_licences,
    read_run,
    read_section,
)
from sts_dino.model_cards.metadata import EVAL_RESULTS_FOLDER, is_repo_id
from sts_dino.model_cards.model_card import get_release_name, make_model_files
from sts_dino.model_cards.provenance import format_changes

logger = logging.getLogger(__name__)

DEFAULT_OWNER = "sts-dino"  # of the repository on a card
# patterns of files that an earlier card may have left
CARD_FILE_PATTERNS = (DETAILS, "assets/*.png", f"{EVAL_RESULTS_FOLDER}/*.yaml")
MOST_CHANGED_KEYS = 5  # in a message

app = make_app("Write the card of a finished or growing run directory.")


def render(
    directory: Path,
    repo_id: str | None = None,
    *,
    manifest: Manifest | None = None,
    now: datetime | None = None,
) -> dict[str, bytes]:
    """Make the files of a run's card, path in the run directory → content; write nothing.

    Args:
        directory: a run directory.
        repo_id: the Hub id on the card; None: sts-dino/NAME.
        manifest: a snapshot of a growing run's manifest: only the shards that it names are read,
            and no measurements. None: the manifest on disk.
        now: the time on the card of a growing run (UTC); None: this moment.

    Raises InputError for a bad ``repo_id``, when the directory is not a run directory, when its
    facts disagree or a file cannot be read, for an unfinished model, and for a finished version
    that ``changes.yaml`` lacks, if it lists other versions.
    """
    return render_facts(read_run(directory, manifest), repo_id, now)


def render_facts(
    facts: DatasetFacts | ModelFacts, repo_id: str | None = None, now: datetime | None = None
) -> dict[str, bytes]:
    """Make the files of a run's card, path in the run directory → content; write nothing.

    README.md gets a stamp with the Hub id and the digest of the facts.

    Args:
        facts: the checked facts of the run; a model's run is finished.
        repo_id: the Hub id on the card; None: sts-dino/NAME.
        now: the time on the card of a growing run (UTC); None: this moment.

    Raises InputError for a bad ``repo_id``, for a damaged shard, and for a finished version that
    ``changes.yaml`` lacks, if it lists other versions; OSError for a shard that cannot be opened.
    """
    repo_id = require_repo_id(repo_id or f"{DEFAULT_OWNER}/{facts.manifest.name}")
    if isinstance(facts, DatasetFacts):
        files = make_dataset_files(facts, repo_id, now or datetime.now(UTC))
    else:
        files = make_model_files(facts, repo_id)
    stamped = add_stamp(files[CARD].decode(), repo_id, compute_facts_digest(facts))
    return {**files, CARD: stamped.encode()}


def require_repo_id(repo_id: str) -> str:
    """Return ``repo_id`` unchanged. Raises InputError unless it is a Hub id ORG/NAME."""
    if not is_repo_id(repo_id):
        allowed = (
            "ORG/NAME, each of letters, digits, - _ and ., without -- or .., and without - or . at "
            "its start and end; NAME has at most 96 characters and does not end in .git"
        )
        raise InputError("--repo-id", f"{repo_id!r} is not a Hub id", allowed=allowed)
    return repo_id


def require_card(
    recipe: DatasetRecipe | ModelRecipe, repo_id: str, datasets: Sequence[tuple[str, str]] = ()
) -> None:
    """Raise InputError, before a run starts, if its card could not be written at its end.

    Reasons are a licence that does not follow from the parts, a Hub id that no Hub takes, and a
    version that ``changes.yaml`` lacks although it lists others. A baseline needs no entry.

    Args:
        recipe: the recipe of the run.
        repo_id: the Hub id on the card.
        datasets: (name, licence id) of each training dataset of a model; (): not known yet, so
            their licences are not checked.
    """
    require_repo_id(repo_id)

    # Call what a card calls: only its errors count here.
    if isinstance(recipe, DatasetRecipe):
        check_dataset(recipe)
        format_changes(recipe.name, recipe.version, complete=True)
        return
    check_model(recipe, datasets)
    if not recipe.is_baseline:
        format_changes(get_release_name(recipe), recipe.version, complete=True)


def write(directory: Path, files: dict[str, bytes]) -> None:
    """Write the card's files, and remove files of an earlier card that this one does not have.

    Every file that matches ``CARD_FILE_PATTERNS``, e.g. any PNG file in ``assets``, counts as a
    file of an earlier card. ``files``: path in ``directory`` → content. Existing files are
    replaced, each atomically. Raises OSError when the disk fails.
    """
    for path, content in sorted(files.items()):
        with write_atomically(directory / path) as temporary:
            temporary.write_bytes(content)
    for pattern in CARD_FILE_PATTERNS:
        for file in sorted(directory.glob(pattern)):
            if file.relative_to(directory).as_posix() not in files:
                file.unlink()


def update_recipe(
    directory: Path, recipe_path: Path, settings: list[str], dry_run: bool
) -> list[str]:
    """Replace the recipe of a finished run by another one that gives the same rows or weights.

    Args:
        directory: the run directory; manifest and recipe.yaml are rewritten, the card is not.
        recipe_path: the new recipe.
        settings: overrides KEY=VALUE of the new recipe.
        dry_run: check the new recipe and return the changes, but write nothing.

    Returns a text for each changed key, with both values.

    Raises InputError when the run is not finished, for a recipe that cannot be read, when a key
    differs that decides rows or weights, and for a recipe whose card cannot be written
    (``require_card``). Raises RunError when another process holds the run.
    """
    with lock_run(directory):
        # both recipes
        manifest = require_complete(directory)
        recipe_class: Any = DatasetRecipe if manifest.kind == "dataset" else ModelRecipe
        old = load_recipe(directory / RECIPE, recipe_class)
        new = load_recipe(recipe_path, recipe_class, settings)
        # A run's recipe records the dtype that "auto" stood for.
        if isinstance(new, DatasetRecipe) and new.model.dtype == "auto":
            model = new.model.model_copy(update={"dtype": old.model.dtype})
            new = new.model_copy(update={"model": model})

        # check that rows or weights stay the same, and that the licence follows from the parts
        _require_equal_values(directory, recipe_path, old, new)
        datasets: list[tuple[str, str]] = []
        if isinstance(new, ModelRecipe):
            provenance = read_section(directory, "provenance", manifest.provenance, ModelProvenance)
            datasets = list_dataset_licences(new, provenance)
        require_card(new, f"{DEFAULT_OWNER}/{new.name}", datasets)

        if not dry_run:
            rewrite_recipe(directory, manifest, new.version, format_recipe(new))
        return describe_changed_keys(
            old.model_dump(mode="json", context=PUBLISHED),
            new.model_dump(mode="json", context=PUBLISHED),
        )


def _require_equal_values(
    directory: Path,
    recipe_path: Path,
    old: DatasetRecipe | ModelRecipe,
    new: DatasetRecipe | ModelRecipe,
) -> None:
    """Raise InputError when the recipes differ in a key that decides rows or weights.

    Args:
        directory: the run of the old recipe; the error's hint has the run's command.
        recipe_path: the file of the new recipe, which the error names.
        old: the recipe of the run.
        new: the new recipe.
    """
    changes = describe_changed_keys(get_deciding_values(old), get_deciding_values(new))
    if not changes:
        return
    problem = f"differs from the run {directory} in keys that decide its content: "
    problem += "; ".join(changes[:MOST_CHANGED_KEYS])
    if len(changes) > MOST_CHANGED_KEYS:
        problem += f" and {len(changes) - MOST_CHANGED_KEYS} more"
    hint = "start another run, or override the keys: --set KEY=VALUE"
    command = require_manifest(directory).provenance.get("command")
    if command:
        hint += f"; the run's command: {command}"
    raise InputError(recipe_path, problem, hint=hint)


@app.command()
def main(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Run directory, e.g. artifacts/datasets/NAME")
    ],
    repo_id: Annotated[str | None, typer.Option(help="Hub id [default: sts-dino/NAME]")] = None,
    update: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Corrected texts and licences; rows and weights stay"),
    ] = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write README.md (and .eval_results/ for a model) into RUN_DIR.

    With --update, RECIPE may change keys that decide no row and no weight: licence, pretty_name,
    about, descriptions, meanings of labels. The command rewrites recipe.yaml and manifest.json with
    the card.

    Examples:

      sts-dino card artifacts/datasets/sts-dino-x2

      sts-dino card artifacts/datasets/sts-dino-x2 --update recipes/demo/sts-dino-x2.yaml --dry-run
    """
    if settings and update is None:
        raise InputError(
            "--set", "changes a recipe, and none is given", hint="give one: --update RECIPE"
        )
    if repo_id is not None:  # before anything is rewritten
        require_repo_id(repo_id)
    changes = update_recipe(run_dir, update, settings, dry_run) if update else []
    facts = read_run(run_dir)
    files = render_facts(facts, repo_id)
    if not dry_run:
        write(run_dir, files)
    is_publishable = facts.manifest.complete
    if isinstance(facts, ModelFacts):
        is_publishable = not facts.recipe.is_baseline
        for task in facts.list_unscored_tasks():
            path = run_dir / RESULTS
            logger.info(f"not on the card: {task} has no score in {path}; {SCORE_HINT}")

    # report the files, and the command that comes next
    next_command = f"sts-dino publish {quote(str(run_dir))}"
    if repo_id:  # without it, publish takes the user of the token
        next_command += f" --org {quote(repo_id.partition('/')[0])}"
    sizes = {path: len(files[path]) for path in sorted(files)}
    answer = {"directory": run_dir, "changes": changes, "bytes": sizes}
    text = format_answer(run_dir, changes, sizes, dry_run)
    next_commands = [next_command] if is_publishable and not dry_run else []
    print_answer(text, answer, as_json, next_commands)


def format_answer(run_dir: Path, changes: list[str], sizes: dict[str, int], dry_run: bool) -> str:
    """Format a line for each changed key of the recipe and each file of the card.

    Args:
        run_dir: the run directory.
        changes: a text for each changed key of the recipe.
        sizes: path in the run directory → bytes.
        dry_run: whether nothing was written. With ``changes``, the sizes are then those of a card
            of the old recipe, and the files are left out.
    """
    change_verb = "would change" if dry_run else "changed"
    lines = [f"{change_verb} {change}" for change in changes]
    if not (dry_run and changes):
        write_verb = "would write" if dry_run else "wrote"
        lines += [f"{write_verb} {run_dir / path} ({size} bytes)" for path, size in sizes.items()]
    return "\n".join(lines)

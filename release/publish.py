"""Publish a run directory: sts-dino publish artifacts/datasets/sts-dino-x2 --org ORG --yes

One atomic commit on the parent it was planned on, and the tag v<version>. A dataset's loading
script, for old versions of ``datasets``, goes to the branch ``script``.
"""

import logging
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import Annotated, Any

import typer
from huggingface_hub import HfApi

from sts_dino.hub import cli
from sts_dino.hub.assets import find_dataset_scripts
from sts_dino.hub.client import publish
from sts_dino.hub.client.connection import convert_hub_errors, fetch_account
from sts_dino.hub.client.plan import CARD, Plan, Stamp, read_stamp
from sts_dino.hub.client.publish import parse_version, read_remote_manifest
from sts_dino.hub.client.repository import Repository
from sts_dino.hub.client.retry import LONGEST_OUTAGE_SECONDS, RetryPolicy
from sts_dino.hub.contract.licences import describe_unlicensed_parts
from sts_dino.hub.contract.measured import DROPPED_ROWS_PROVENANCE
from sts_dino.hub.contract.published_paths import name_inputs
from sts_dino.hub.contract.recipe import NAME, DatasetRecipe, get_config_columns
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import (
    RECIPE,
    Manifest,
    lock_run,
    require_complete,
    write_manifest,
)
from sts_dino.hub.text_files import READERS, kind_of
from sts_dino.model_cards.facts import DatasetFacts, ModelFacts, compute_facts_digest
from sts_dino.model_cards.render import render, write
from sts_dino.release.options import PublishOptions, install_patience

logger = logging.getLogger(__name__)

TABLE_WIDTH = 120  # characters of a line in published_configs.py
VERSION_TAG = re.compile(r"v\d+\.\d+\.\d+", re.ASCII)

app = cli.make_app(__doc__)


@app.command()
@cli.unpack_option_groups
def main(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Finished run directories")
    ],
    options: PublishOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Publish finished runs to the Hub that HF_ENDPOINT names.

    Without --yes nothing is sent to the Hub: the plan is printed.

    New repositories are private; --public makes them public. Files that the Hub has are not sent
    again, a tag never moves, and changes made by hand stay without --force. The card is written
    first, with or without --yes, if the run has none for the owner (--org) or its facts have
    changed. An encoder's card names the datasets of this owner that it was trained on.

    Examples:

      sts-dino publish artifacts/datasets/sts-dino-x2 --org my-org

      sts-dino publish artifacts/datasets/sts-dino-x2 --org my-org --yes
    """
    # Publish datasets first ("dataset" < "model"): a model's card names the commits of its datasets
    manifests = {directory: require_complete(directory) for directory in directories}
    # a model's rows may come from datasets of this call: write_card looks for them by these names
    dataset_names = [item.name for item in manifests.values() if item.kind == "dataset"]
    plans = []
    for directory in sorted(directories, key=lambda directory: manifests[directory].kind):
        write_card(directory, options, dataset_names=dataset_names)
        plans.append(publish_run(directory, options))

    # Print the plans
    text = "\n\n".join(plan.format_text(options.yes) for plan in plans)
    facts = [plan.describe() for plan in plans]
    next_commands = [] if options.yes else [format_command(directories, options)]
    cli.print_answer(text, facts if len(facts) > 1 else facts[0], as_json, next_commands)


def format_command(directories: list[Path], options: PublishOptions) -> str:
    """Format the command that carries out a printed plan.

    ``--force`` is not proposed: the user shall look at the changes made by hand first.
    """
    words = ["sts-dino", "publish", *(str(directory) for directory in directories)]
    if options.org:
        words += ["--org", options.org]
    if options.public is not None:
        words.append("--public" if options.public else "--private")
    if options.longest != LONGEST_OUTAGE_SECONDS:
        words += ["--patience", f"{options.longest:g}"]
    return shlex.join([*words, "--yes"])


def write_card(
    directory: Path,
    options: PublishOptions,
    dataset_names: Sequence[str] = (),
) -> None:
    """Write the card of a finished run for the Hub repository of the publication.

    Args:
        directory: the run directory.
        options: the options of the publication; ``org`` names the repository's owner.
        dataset_names: names of the datasets that the same command publishes.

    A card that a person edited stays: the publication refuses it. With ``options.yes`` a model's
    manifest records its published datasets first. Raises InputError for an unfinished run and for
    facts that disagree. Raises RunError when the Hub does not name the token's user, which is asked
    without ``org``, when the published datasets cannot be read, or when another process works on
    the run.
    """
    # Read the stamp of the card on disk, if there is one; an edited card has none, and stays
    name = require_complete(directory).name
    patience = install_patience(options.longest)
    action = "ask who the token belongs to"
    with convert_hub_errors(action):
        owner = options.org or patience.call_until_done(action, lambda: fetch_account(HfApi()).name)
    repo_id = f"{owner}/{name}"
    card = directory / CARD
    stamp = None
    if card.is_file():
        stamp = read_stamp(card.read_bytes().decode("utf-8", "replace"))
        if stamp is None:
            return

    # Write the card unless it is up to date
    if options.yes:
        record_published_datasets(directory, owner, patience, dataset_names)
    facts = warn_of_unlicensed_parts(directory)
    if stamp != Stamp(repo_id, compute_facts_digest(facts)):
        write(directory, render(directory, repo_id))


def warn_of_unlicensed_parts(directory: Path) -> DatasetFacts | ModelFacts:
    """Log a warning that names the parts of a finished run without a licence, if there are any.

    Returns the facts of the run; the run's files are not compared with the manifest. Raises
    InputError for an unfinished run, and for facts that disagree.
    """
    manifest = require_complete(directory)
    kind = DatasetFacts if manifest.kind == "dataset" else ModelFacts
    facts = kind.read(directory, manifest)
    assert facts.verdict is not None
    note = describe_unlicensed_parts(facts.verdict.parts)
    if note:
        logger.warning(f"{directory}: {note}")
    return facts


def record_published_datasets(
    directory: Path, owner: str, patience: RetryPolicy, dataset_names: Sequence[str] = ()
) -> None:
    """Record in a model's manifest where the Hub has the datasets that it was trained on.

    The entries of ``provenance.datasets`` get repository, tag and commit where the owner has
    published the same rows. Nothing is done for a dataset, or for a model without training data.

    Args:
        directory: a finished run directory.
        owner: the user or organisation to publish under.
        patience: the retry policy.
        dataset_names: further datasets of the owner that may have the model's training rows; those
            with the names of the training folders are searched in any case.

    Raises InputError for an unfinished run, RunError when the Hub cannot be read or another process
    works on the run.
    """
    manifest = require_complete(directory)
    if manifest.kind == "dataset" or not manifest.provenance["datasets"]:
        return
    action = f"find the datasets of {manifest.name}"
    with convert_hub_errors(action):
        datasets = patience.call_until_done(
            action, lambda: find_published_datasets(manifest, owner, dataset_names)
        )
    if datasets != manifest.provenance["datasets"]:
        provenance = {**manifest.provenance, "datasets": datasets}
        with lock_run(directory):
            write_manifest(directory, manifest.model_copy(update={"provenance": provenance}))


def find_published_datasets(
    manifest: Manifest, owner: str, dataset_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a model's ``provenance.datasets``, each entry with the place of its rows on the Hub.

    An entry whose rows the owner has not published is unchanged. If the Hub has this version of the
    model, its manifest's entries are returned, because a tag does not move. If that manifest is
    missing or malformed, is of another run, or lists another number of datasets, the local entries
    are returned unchanged.

    Args:
        manifest: the model's manifest.
        owner: the user or organisation whose repositories are searched.
        dataset_names: datasets to search besides those with the names of the training folders.

    Raises the errors of the Hub's client library.
    """
    api = HfApi()
    recorded: list[dict[str, Any]] = manifest.provenance["datasets"]

    # Take the record of a published version of the model
    model = Repository(api, f"{owner}/{manifest.name}", "model")
    tags = model.list_tags() if model.get_branch() is not None else {}
    tag = f"v{manifest.version}"
    if tag in tags:
        published = read_remote_manifest(model, model.get_commit(tags[tag]))
        if published is None or published.fingerprint != manifest.fingerprint:
            return recorded
        datasets = published.provenance.get("datasets")
        if isinstance(datasets, list) and len(datasets) == len(recorded):
            return datasets
        return recorded

    # Find the published datasets by the rows of the config that the model was trained on. A file of
    # rows, which a user trained on, is not a dataset of a Hub.
    input_names = name_inputs(
        f"dataset:{entry.get('path', entry.get('repo_id'))}:{entry['config']}" for entry in recorded
    )
    entries = []
    for entry, input_name in zip(recorded, input_names, strict=True):
        path = Path(entry.get("path") or "")
        digest = manifest.inputs.get(input_name)
        location: dict[str, str] = {}
        if digest is not None and path.name and kind_of(path) not in READERS:
            names = [name for name in (path.name, *dataset_names) if re.fullmatch(NAME, name)]
            location = find_published_rows(api, owner, names, entry["config"], digest)
        entries.append({**entry, **location})
    return entries


def find_published_rows(
    api: HfApi, owner: str, names: Sequence[str], config: str, digest: str
) -> dict[str, str]:
    """Find the published version of a dataset whose config has exactly the given rows.

    The first dataset of ``names`` with such a version counts, and its latest such version.

    Args:
        api: the Hub's client.
        owner: the user or organisation of the datasets.
        names: the names of the datasets to search, in this order.
        config: the config.
        digest: the hash of the rows (``Manifest.hash_shards``).

    Returns repo_id, revision (the version's tag) and commit; {} without such a version.
    """
    for name in dict.fromkeys(names):
        repository = Repository(api, f"{owner}/{name}", "dataset")
        commits = repository.list_tags() if repository.get_branch() is not None else {}
        versions = filter(VERSION_TAG.fullmatch, commits)
        for tag in sorted(versions, key=parse_version, reverse=True):
            published = read_remote_manifest(repository, repository.get_commit(commits[tag]))
            if published is not None and published.hash_shards(config) == digest:
                return {"repo_id": repository.repo_id, "revision": tag, "commit": commits[tag]}
    return {}


def publish_run(directory: Path, options: PublishOptions) -> Plan:
    """Plan the publication of a finished run and, with ``options.yes``, carry it out.

    Returns the plan. Raises InputError for a run that cannot be published: unfinished, a baseline,
    with changed files or without a current card. Raises RunError when the Hub refuses or does not
    answer.
    """
    patience = install_patience(options.longest)
    with convert_hub_errors(f"publish {directory}"):
        script = build_loading_script(directory)
        publication = publish.Options(options.public, options.force, script, patience)
        return publish.publish_run(HfApi(), directory, options.org, options.yes, publication)


def build_loading_script(directory: Path) -> dict[str, str]:
    """Return the files of the branch ``script`` that load a finished dataset: name → text.

    The result is empty for a model, for a decontaminated dataset, and, with a warning, for a
    dataset with a dot in its name, which no Python module can have. Raises InputError for an
    unfinished run.
    """
    manifest = require_complete(directory)
    if manifest.kind == "model" or DROPPED_ROWS_PROVENANCE in manifest.provenance:
        return {}
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    if not recipe.has_script:
        logger.warning(
            f"no loading script for datasets below 4: {recipe.name!r} has a dot, "
            "which no module can have"
        )
        return {}
    return format_script_files(recipe)


def format_script_files(recipe: DatasetRecipe) -> dict[str, str]:
    """Return the loading script of a dataset and the table of its configs: file name → text."""
    script = (find_dataset_scripts() / "loading_script.py").read_text(encoding="utf-8")
    configs = {config: get_config_columns(config, recipe) for config in recipe.configs}
    docstring = '"""Config → column → type; the first config is the default."""'
    table = f"CONFIGS = {pformat(configs, width=TABLE_WIDTH, sort_dicts=False)}\n"
    return {f"{recipe.name}.py": script, "published_configs.py": f"{docstring}\n\n{table}"}

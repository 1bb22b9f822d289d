"""The origin of a run on its page: papers to cite, changes of versions, how to reproduce it."""

import re
from collections.abc import Collection
from pathlib import PurePath
from shlex import quote
from typing import Any

import yaml

from sts_dino.hub.client.publish import parse_version
from sts_dino.hub.contract.published_paths import hide_folders, is_input_of
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import READERS
from sts_dino.hub.untrusted import Markdown, format_code, format_table
from sts_dino.model_cards import renderer
from sts_dino.model_cards.facts import CodeFacts, DatasetProvenance, ModelProvenance, Upstream

BIBTEX_ENTRIES = (renderer.DATA / "citations.bib").read_text(encoding="utf-8").strip().split("\n\n")
DINO, AUTO_NLI, PROMPT_EOL, DECLUTR, SIMCSE, GUIDANCE = BIBTEX_ENTRIES
CHANGES_FILE = "changes.yaml"
CLONE_FOLDER = "assets/"  # folder of files in a clone of the project
# keys of a model recipe whose path is a run directory or, with a suffix, a file of rows
RUN_DIRECTORY_KEY = re.compile(r"datasets\.\d+\.path|base\.vocabulary\.path")
DOWNLOAD_FOLDER = "published"  # for a published recipe, in the printed commands
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
MOST_LISTED_PACKAGES = 5  # of more packages, a card has the number and one name
COMMAND_OF_KIND = {"dataset": "write", "model": "train"}
UNKNOWN_ORIGIN = Markdown("not recorded; ask the publisher")


def format_citations(
    methods: Collection[str], debiased: bool, prompted: bool = False, guided: bool = False
) -> str:
    """Format the BibTeX entries of the papers behind a dataset or model.

    Args:
        methods: tags of methods; those of dino, auto-nli, declutr and simcse have a paper.
        debiased: whether texts were generated with self-debiasing (DINO).
        prompted: whether the encoder reads sentences in a prompt (PromptEOL).
        guided: whether texts were generated with guidance.
    """
    conditions = {
        DINO: "dino" in methods or debiased,
        AUTO_NLI: "auto-nli" in methods,
        PROMPT_EOL: prompted,
        DECLUTR: "declutr" in methods,
        SIMCSE: "simcse" in methods,
        GUIDANCE: guided,
    }
    return "\n\n".join(entry for entry, is_cited in conditions.items() if is_cited)


def format_changes(name: str, version: str, complete: bool) -> Markdown | None:
    """Format the changes up to ``version`` as a table; None without any in ``changes.yaml``.

    Args:
        name: the dataset or model.
        version: the version of the run.
        complete: whether the run is finished; ``changes.yaml`` may lack the version of a run that
            is not.

    Raises InputError when ``changes.yaml`` lists versions of ``name``, but not that of a finished
    run.
    """
    changes = read_changes(name)
    if not changes:
        return None
    if complete and version not in changes:
        hint = "add one line on top: what is new in it"
        raise InputError(
            f"{renderer.DATA / CHANGES_FILE}: {name}",
            f"has no entry for version {version}",
            hint=hint,
        )
    rows: list[list[Any]] = [
        [format_code(f"v{key}"), line]
        for key, line in changes.items()
        if parse_version(key) <= parse_version(version)
    ]
    return format_table(["version", "what is new"], rows) if rows else None


def read_changes(name: str) -> dict[str, str]:
    """Read the changes of the dataset or model ``name``: version → line, in the file's order.

    The file lists the newest version first. Empty when it does not list ``name``.
    """
    # BaseLoader keeps versions as text: 1.10 is not the number 1.1
    tree = yaml.load(
        (renderer.DATA / CHANGES_FILE).read_text(encoding="utf-8"), Loader=yaml.BaseLoader
    )
    return tree.get(name, {})


def describe_reproduction(
    manifest: Manifest,
    recipe: DatasetRecipe | ModelRecipe,
    provenance: DatasetProvenance | ModelProvenance,
    repo_id: str,
) -> dict[str, Any]:
    """Return the variables of ``reproduce.md.jinja``.

    They are ``command`` and ``commit`` of the run (None without a clone), ``commands`` that repeat
    the run on another machine, and ``local_inputs``, the table of local files that the run reads.

    Args:
        manifest: the manifest of the run.
        recipe: the recipe of the run.
        provenance: the provenance in the manifest.
        repo_id: the Hub repository of the published run.
    """
    tag = f"v{recipe.version}" if manifest.complete else None
    return {
        "command": provenance.command,
        "commit": provenance.code.commit if provenance.code else None,
        "commands": format_commands(repo_id, tag, manifest, provenance.code),
        "local_inputs": format_local_inputs(
            recipe, manifest, provenance, repo_id.partition("/")[0]
        ),
    }


def format_commands(
    repo_id: str, tag: str | None, manifest: Manifest, code: CodeFacts | None
) -> str:
    """Format the shell commands that repeat a run on an empty machine.

    Args:
        repo_id: the Hub repository of the published run.
        tag: the tag of the finished run; None while the run grows, which has no tag.
        manifest: the manifest of the run, whose ``kind`` decides the stage.
        code: the clone of the run; when it or its URL is None, no command clones the project.
    """
    # commands that clone the project at the run's commit
    lines = []
    if code and code.url:
        lines += [
            f"git clone {quote(code.url)} sts-dino && cd sts-dino",
            # a clone with uncommitted changes is recorded as COMMIT-dirty
            f"git checkout {quote(code.commit.removesuffix('-dirty'))}",
            "pip install -e . -c constraints.txt",
        ]

    # the published recipe, and the stage that reads it
    kind = "--repo-type dataset " if manifest.kind == "dataset" else ""
    revision = f"--revision {tag} " if tag else ""
    lines.append(
        f"hf download {repo_id} {RECIPE} {MANIFEST} {kind}{revision}--local-dir {DOWNLOAD_FOLDER}"
    )
    stage = COMMAND_OF_KIND[manifest.kind]
    lines.append(f"sts-dino {stage} {DOWNLOAD_FOLDER}/{RECIPE}")
    return "\n".join(lines)


def format_local_inputs(
    recipe: DatasetRecipe | ModelRecipe,
    manifest: Manifest,
    provenance: DatasetProvenance | ModelProvenance,
    owner: str,
) -> Markdown | None:
    """Format a table of the local files and folders that a run reads; None without any.

    Args:
        recipe: names the local paths.
        manifest: has the SHA-256 of a file, or of a folder's first weights file; a path without a
            SHA-256 is left out.
        provenance: has the origin of the language model's or base encoder's folder, and the
            published training datasets.
        owner: the Hub user or organisation of the published run.
    """
    origins = _describe_origins(recipe, provenance)
    # published form of a local path → training dataset that is on the Hub by now
    published = {}
    if isinstance(provenance, ModelProvenance):
        published = {item.path: item for item in provenance.datasets if item.repo_id}

    # a row for each local path of the recipe whose digest the manifest has
    rows = []
    for key, path in recipe.collect_local_paths().items():
        digest = find_input_digest(path, manifest)
        if digest is None:
            continue
        name = hide_folders(path)
        if path.startswith(CLONE_FOLDER):
            origin = Markdown("in the clone")
        elif name in published:
            dataset = published[name]
            repo_id = format_code(f"{dataset.repo_id}@{dataset.revision}")
            origin = Markdown(f"the published dataset {repo_id}")
        elif RUN_DIRECTORY_KEY.fullmatch(key) and not _is_table(path):
            repo_id = format_code(f"{owner}/{PurePath(name).name}")
            origin = Markdown(f"a dataset; if it was published with the encoder, {repo_id}")
        else:
            origin = origins.get(key) or UNKNOWN_ORIGIN
        rows.append([format_code(key), format_code(name), format_code(digest), origin])
    return format_table(["key", "name", "SHA-256", "origin"], rows) if rows else None


def _is_table(path: str) -> bool:
    """Return whether a path ends as a file of rows does; a run's name may hold a dot, too."""
    return path.lower().removesuffix(".gz").endswith(tuple(READERS))


def _describe_origins(
    recipe: DatasetRecipe | ModelRecipe, provenance: DatasetProvenance | ModelProvenance
) -> dict[str, Any]:
    """Return the recorded origins of local files: key of the recipe → description.

    A recipe has either ``model.path`` or ``base.path``. Both keys get the origin that
    ``provenance`` has for that folder; without an origin there, both are left out.
    """
    origins: dict[str, Any] = {}
    if isinstance(recipe, DatasetRecipe):
        origins["source.path"] = recipe.source.description
        if recipe.few_shot:
            origins["few_shot.examples.path"] = recipe.few_shot.examples.description
    if isinstance(provenance, ModelProvenance):
        upstream = provenance.base.upstream
    else:
        upstream = provenance.model.upstream
    if upstream:
        origins["model.path"] = describe_upstream(upstream)
        origins["base.path"] = origins["model.path"]
    return origins


def find_input_digest(path: str, manifest: Manifest) -> str | None:
    """Find the SHA-256 of a local file, or of the first file of weights in a local folder.

    ``path``: the file or folder as the recipe names it. Files are sorted by name. Returns None when
    the manifest records no such digest.
    """
    for name, digest in sorted(manifest.inputs.items()):
        is_in_folder = name.startswith(f"{path}/")
        if is_input_of(name, path) and (not is_in_folder or name.endswith(WEIGHT_SUFFIXES)):
            return digest
    return None


def describe_upstream(upstream: Upstream) -> Markdown:
    """Describe the origin of a model's folder: published model, facts, packages, command.

    For example: `ORG/MODEL` (licence `mit`), made from `package 1.0` by `command`. Facts that are
    not recorded, and an empty list of packages, are left out.
    """
    # the packages that had the weights
    packages = [format_code(f"{name} {version}") for name, version in upstream.packages.items()]
    if len(packages) > MOST_LISTED_PACKAGES:
        packages = [Markdown(f"{len(packages)} packages such as {packages[0]}")]
    origin = f" from {', '.join(packages)}" if packages else ""

    # what is recorded of the model
    facts = {
        "licence": upstream.license,
        "SHA-256": upstream.sha256,
        "revision": upstream.revision,
        "weights": upstream.converted_from,
    }
    details = ", ".join(f"{name} {format_code(value)}" for name, value in facts.items() if value)
    suffix = f" ({details})" if details else ""
    maker = format_code(upstream.made_by)
    return Markdown(f"{format_code(upstream.model)}{suffix}, made{origin} by {maker}")

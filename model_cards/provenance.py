"""The origin of a run on its page: papers to cite, changes of each version, and the way to reproduce it."""

import re
from collections.abc import Collection
from pathlib import PurePath
from shlex import quote
from typing import Any

import yaml

from hub.contract.published_paths import is_of, published_path
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from hub.errors import InputError
from hub.untrusted import Markdown, code, table
from model_cards import renderer
from model_cards.manifest import CodeFacts, DatasetProvenance, ModelProvenance, Upstream

ENTRIES = (renderer.DATA / "citations.bib").read_text(encoding="utf-8").strip().split("\n\n")
DINO, AUTO_NLI, PROMPT_EOL, DECLUTR, SIMCSE, GUIDANCE = ENTRIES
CHANGES = "changes.yaml"
IN_THE_CLONE = "assets/"  # the project's own files
RUN_DIRECTORY = re.compile(r"datasets\.\d+\.path|base\.vocabulary\.path")  # a file of rows has a suffix
FOLDER = "published"
WEIGHTS = (".safetensors", ".gguf")
MOST_PACKAGES = 5  # that a card lists one by one
STAGES = {"dataset": "write", "model": "train"}  # by kind of run
UNKNOWN = Markdown("not recorded; ask the publisher")


def cited(methods: Collection[str], debiased: bool, prompted: bool = False, guided: bool = False) -> str:
    """BibTeX of these methods (dino, auto-nli, declutr, simcse), of self-debiasing, a prompt and guidance."""
    wanted = {
        DINO: "dino" in methods or debiased,
        AUTO_NLI: "auto-nli" in methods,
        PROMPT_EOL: prompted,
        DECLUTR: "declutr" in methods,
        SIMCSE: "simcse" in methods,
        GUIDANCE: guided,
    }
    return "\n\n".join(entry for entry, is_cited in wanted.items() if is_cited)


def change_table(name: str, version: str, complete: bool) -> Markdown | None:
    """The changes of the versions up to ``version``; None for an artefact without entries in ``data/changes.yaml``.

    Raises InputError when a complete version has none.
    """
    changes = read_changes(name)
    if not changes:
        return None
    if complete and version not in changes:
        hint = "add one line on top: what is new in it"
        raise InputError(f"{renderer.DATA / CHANGES}: {name}", f"has no entry for version {version}", hint=hint)
    older = [(key, line) for key, line in changes.items() if _order(key) <= _order(version)]
    return table(["version", "what is new"], [[code(f"v{key}"), line] for key, line in older]) if older else None


def read_changes(name: str) -> dict[str, str]:
    """Version → line of one artefact, newest first; empty where the file has none."""
    tree = yaml.load((renderer.DATA / CHANGES).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return {name: {}, **tree}[name]


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def reproduction(
    manifest: Manifest, recipe: DatasetRecipe | ModelRecipe, provenance: DatasetProvenance | ModelProvenance, repo: str
) -> dict[str, Any]:
    """Template variables of ``reproduce.md.jinja``: the run's own command, and the commands on another machine."""
    tag = f"v{recipe.version}" if manifest.complete else None
    return {
        "command": provenance.command,
        "commit": provenance.code.commit if provenance.code else None,
        "commands": commands(repo, tag, manifest, provenance.code),
        "local_inputs": local_inputs(recipe, manifest, provenance, repo.partition("/")[0]),
    }


def commands(repo_id: str, tag: str | None, manifest: Manifest, made_in: CodeFacts | None) -> str:
    """Shell lines from an empty machine to the run. ``tag``: of the finished run; None while it grows."""
    clone: tuple[str, ...] = ()
    if made_in and made_in.url:
        checkout = f"git checkout {quote(made_in.commit.removesuffix('-dirty'))}"
        clone = (f"git clone {quote(made_in.url)} sts-dino && cd sts-dino", checkout)
        clone += ("pip install -e . -c constraints.txt",)
    kind = "--repo-type dataset " if manifest.kind == "dataset" else ""
    revision = f"--revision {tag} " if tag else ""
    download = f"hf download {repo_id} {RECIPE} {MANIFEST} {kind}{revision}--local-dir {FOLDER}"
    return "\n".join((*clone, download, f"sts-dino {STAGES[manifest.kind]} {FOLDER}/{RECIPE}"))


def local_inputs(
    recipe: DatasetRecipe | ModelRecipe, manifest: Manifest, provenance: DatasetProvenance | ModelProvenance, owner: str
) -> Markdown | None:
    """The unpublished files and folders of a run: key, name, SHA-256, origin. None without any."""
    origins: dict[str, Any] = {}
    if isinstance(recipe, DatasetRecipe):
        origins["source.path"] = recipe.source.description
        origins["few_shot.examples.path"] = recipe.few_shot.examples.description if recipe.few_shot else None
    upstream = provenance.base if isinstance(provenance, ModelProvenance) else provenance.model
    origins |= dict.fromkeys(("model.path", "base.path"), made_from(upstream.upstream))

    def origin(key: str, path: str) -> Any:
        if path.startswith(IN_THE_CLONE):
            return Markdown("in the clone")
        if RUN_DIRECTORY.fullmatch(key) and not PurePath(path).suffix:
            name = code(f"{owner}/{PurePath(published_path(path)).name}")
            return Markdown(f"a dataset; if it was published with the encoder, {name}")
        return origins.get(key) or UNKNOWN

    rows = [
        [code(key), code(published_path(path)), code(digest), origin(key, path)]
        for key, path in recipe.local_paths().items()
        if (digest := input_digest(path, manifest)) is not None
    ]
    return table(["key", "name", "SHA-256", "origin"], rows) if rows else None


def input_digest(path: str, manifest: Manifest) -> str | None:
    """SHA-256 of a recipe's local path: of the file, or of the weights in a folder; None: unknown."""
    found = {name: digest for name, digest in sorted(manifest.inputs.items()) if is_of(name, path)}
    inside = [name for name in found if not name.startswith(f"{path}/") or name.endswith(WEIGHTS)]
    return found[inside[0]] if inside else None


def made_from(upstream: Upstream | None) -> Markdown | None:
    """The origin of a language model's folder; None where it is not recorded."""
    if upstream is None:
        return None
    packages = [code(f"{name} {version}") for name, version in upstream.packages.items()]
    if len(packages) > MOST_PACKAGES:
        packages = [Markdown(f"{len(packages)} packages such as {packages[0]}")]
    origin = f" from {', '.join(packages)}" if packages else ""
    facts = (("licence", upstream.license), ("SHA-256", upstream.sha256), ("revision", upstream.revision))
    more = ", ".join(f"{name} {code(value)}" for name, value in facts if value)
    return Markdown(f"{code(upstream.model)}{f' ({more})' if more else ''}, made{origin} by {code(upstream.made_by)}")

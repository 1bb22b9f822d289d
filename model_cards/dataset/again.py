"""How a stranger makes a dataset again: where the code is had, the commands, and what is read and not published."""

from shlex import quote

from hub.contract.published_paths import local_paths
from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from hub.markdown import Markdown, code, inline, table
from model_cards.shared.facts import DatasetProvenance

IN_THE_CLONE = "assets/"  # what the project's own files stand under
FOLDER = "published"
WEIGHTS = (".safetensors", ".gguf")


def commands(repo_id: str, tag: str | None, provenance: DatasetProvenance) -> str:
    """Shell lines that lead from nothing to the run. ``tag``: of the finished dataset; None while it grows."""
    revision = f" --revision {tag}" if tag else ""
    return "\n".join(
        (
            *clone(provenance),
            f"hf download {repo_id} {RECIPE} {MANIFEST} --repo-type dataset{revision} --local-dir {FOLDER}",
            f"python -m generation.run {FOLDER}/{RECIPE}",
        )
    )


def clone(provenance: DatasetProvenance) -> tuple[str, ...]:
    """The lines that bring the code; nothing where the run was made outside of a clone of known address."""
    found = provenance.code
    if found is None or found.url is None:
        return ()
    return (
        f"git clone {quote(found.url)} sts-dino && cd sts-dino",
        f"git checkout {quote(found.commit)}",
        "pip install -e . -c constraints.txt",
    )


def local_inputs(recipe: DatasetRecipe, manifest: Manifest, provenance: DatasetProvenance) -> Markdown | None:
    """Files and folders that the run read from a disk: key, name, SHA-256, what it is. None where there are none."""
    about = {"source.path": recipe.source.description}
    if recipe.few_shot:
        about["few_shot.examples.path"] = recipe.few_shot.examples.description
    rows = list[list[str]]()
    for key, path in local_paths(recipe).items():
        digest = _digest(path, manifest)
        if digest is None:
            continue
        told = inline(about.get(key, ""))
        if key == "model.path":
            told = _of_model(provenance)
        if path.startswith(IN_THE_CLONE):
            told = Markdown("in the clone")
        rows.append([code(key), code(path), code(digest), told])
    return table(["key", "name", "SHA-256", "what it is, and where it is had"], rows) if rows else None


def _digest(path: str, manifest: Manifest) -> str | None:
    """Of a file itself, of a folder that of its weights."""
    inside = [name for name in sorted(manifest.inputs) if name.startswith(f"{path}/") and name.endswith(WEIGHTS)]
    name = path if path in manifest.inputs else next(iter(inside), None)
    return None if name is None else manifest.inputs[name]


def _of_model(provenance: DatasetProvenance) -> Markdown:
    upstream = provenance.model.upstream
    if upstream is None:
        return Markdown("the generator's weights; whoever published the dataset knows where from")
    packages = ", ".join(code(f"{name} {version}") for name, version in upstream.packages.items())
    return Markdown(f"{code(upstream.model)}, made from {packages} by {code(upstream.made_by)}")

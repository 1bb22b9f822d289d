"""What a dataset's run read from a disk and does not publish, as its card lists it."""

from hub.contract.published_paths import local_paths
from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import Manifest
from hub.untrusted import Markdown, code, inline, table
from model_cards.shared.again import IN_THE_CLONE, input_digest, made_from
from model_cards.shared.facts import DatasetProvenance


def local_inputs(recipe: DatasetRecipe, manifest: Manifest, provenance: DatasetProvenance) -> Markdown | None:
    """Files and folders that the run read from a disk: key, name, SHA-256, what it is. None where there are none."""
    about = {"source.path": recipe.source.description}
    if recipe.few_shot:
        about["few_shot.examples.path"] = recipe.few_shot.examples.description
    rows = list[list[str]]()
    for key, path in local_paths(recipe).items():
        digest = input_digest(path, manifest)
        if digest is None:
            continue
        told = inline(about.get(key, ""))
        if key == "model.path":
            unknown = Markdown("the generator's weights; whoever published the dataset knows where from")
            told = made_from(provenance.model.upstream) or unknown
        if path.startswith(IN_THE_CLONE):
            told = Markdown("in the clone")
        rows.append([code(key), code(path), code(digest), told])
    return table(["key", "name", "SHA-256", "what it is, and where it is had"], rows) if rows else None

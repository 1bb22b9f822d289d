"""A finished run directory made by hand: real recipe, real shards, a stamped card; and what a Hub
has of it.
"""

from pathlib import Path

from huggingface_hub import HfApi

from sts_dino.hub.client.plan import add_stamp, hash_facts
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import MANIFEST, Manifest
from sts_dino.hub.contract.schema import STS, build_features
from sts_dino.hub.contract.shards import write_shard
from sts_dino.hub.durable import write_text

ROW = {
    "sentence1": "a",
    "sentence2": "b",
    "score": 0.9,
    "source_id": "1",
    "target": "1",
    "sample": 0,
    "attempt": 0,
}


def finished_run(
    directory: Path,
    version: str = "0.1.0",
    shards: int = 2,
    org: str = "acme",
    text: str = "A",
    seed: int = 0,
) -> Path:
    """(Over)write a finished run of ``shards`` shards in ``directory``, whose name is the
    artefact's.

    Each version is a run of its own, unless ``seed`` is given.
    """
    number = int(version.replace(".", ""))
    settings = [f"name={directory.name}", f"version={version}", f"seed={seed or number}"]
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, settings)
    paths = [f"data/postprocessed/train-{i:05d}-of-{shards:05d}.parquet" for i in range(shards)]
    for path in directory.rglob("*.parquet"):
        path.unlink()
    for i, path in enumerate(paths):
        row = ROW | {"seed": i, "log_prob": -1.0, "margin": None, "sentence2": f"{text} {i}"}
        write_shard(directory / path, [row], build_features({**STS.columns, **STS.provenance}))
    write_text(directory / "recipe.yaml", format_recipe(recipe))
    manifest = Manifest(
        kind="dataset",
        name=directory.name,
        version=version,
        fingerprint=compute_fingerprint(recipe, {}),
        recipe_sha256=run_dir.hash_text(format_recipe(recipe)),
        complete=True,
    )
    described = [
        run_dir.describe_file(directory, p, config="postprocessed", split="train", rows=1)
        for p in paths
    ]
    run_dir.write_manifest(directory, manifest.with_files(described))
    write_card(directory, org)
    return directory


def write_card(directory: Path, org: str = "acme", text: str = "A card") -> None:
    """A small card with its stamp."""
    facts = hash_facts((directory / MANIFEST).read_bytes(), None)
    card = f"---\nlicense: cc0-1.0\n---\n# {text}\n"
    write_text(directory / "README.md", add_stamp(card, f"{org}/{directory.name}", facts))


def files(api: HfApi, repo: str, revision: str | None = None) -> set[str]:
    """The paths of a dataset repository, but for the Hub's own."""
    return set(api.list_repo_files(repo, repo_type="dataset", revision=revision)) - {
        ".gitattributes"
    }


def hub_file(api: HfApi, repo: str, path: str, revision: str | None = None) -> bytes:
    """A file of a dataset repository."""
    return Path(
        api.hf_hub_download(repo, path, repo_type="dataset", revision=revision)
    ).read_bytes()

"""A run that was made once, laid out again as it stood after each step: what a publisher sees while
a dataset grows.
"""

import shutil
from pathlib import Path

import pytest
from tiny_lm import make_lm

from sts_dino.generation.pipeline import job
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, Manifest
from sts_dino.hub.durable import write_text

RECIPE_FILE = Path("recipes/demo/sts-dino-x2.yaml")
# six shards
SMALL = ["source.limit=24", "shard_size=4", "decoding.max_new_tokens=6", "decoding.max_attempts=3"]


class Growth:
    """The directory of a finished run and its manifests in the order in which they were written."""

    def __init__(self, whole: Path, manifests: list[tuple[str, str]]):
        self.whole, self._steps = whole, manifests

    def __len__(self) -> int:
        return len(self._steps)

    def words(self, artifacts: Path, *options: str) -> list[str]:
        """The arguments of a release of the same run, to the organisation acme."""
        settings = [f"model.path={self.whole.parent / 'lm'}", *SMALL]
        fixed = [
            "--org",
            "acme",
            "--yes",
            "--artifacts",
            str(artifacts),
            "--commits-per-hour",
            "128",
        ]
        return [
            str(RECIPE_FILE),
            *fixed,
            *options,
            *(word for setting in settings for word in ("--set", setting)),
        ]

    def manifest(self, step: int) -> Manifest:
        return Manifest.model_validate_json(self._steps[step][0])

    def lay(self, directory: Path, step: int) -> None:
        """Bring ``directory`` (or make it) to a step: files first, then the manifest, as the
        generator does.
        """
        text, timing = self._steps[step]
        for path in (RECIPE, *(file.path for file in self.manifest(step).files)):
            target = directory / path
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(f".{target.name}.1.tmp")
                shutil.copyfile(self.whole / path, partial)
                partial.replace(target)
        if timing:
            write_text(directory.parent / f"{directory.name}.timing.json", timing)
        write_text(directory / MANIFEST, text)


def record(folder: Path, *settings: str) -> Growth:
    """Run the real generation with a random tiny language model in ``folder``; remember every
    manifest it writes.
    """
    recipe = load_recipe(
        RECIPE_FILE, DatasetRecipe, [f"model.path={make_lm(folder / 'lm')}", *SMALL, *settings]
    )
    whole, steps = folder / recipe.name, list[tuple[str, str]]()
    timing, write = folder / f"{recipe.name}.timing.json", run_dir.write_manifest

    def remember(directory: Path, manifest: Manifest) -> None:
        write(directory, manifest)
        steps.append(
            (run_dir.format_manifest(manifest), timing.read_text() if timing.exists() else "")
        )

    with pytest.MonkeyPatch.context() as patch, run_dir.lock_run(whole):
        patch.setattr(run_dir, "write_manifest", remember)
        job.generate(recipe, whole, f"sts-dino write {RECIPE_FILE}")
    return Growth(whole, steps)

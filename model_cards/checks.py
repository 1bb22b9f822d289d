"""Consistency checks of a run directory: numbers that disagree stop its card.

requested = kept + rejected             in total, for every label and for every shot count
totals    = the sums over the labels, and over the shot counts
reasons   = the rejected of a label     and their sums over the labels, where they are recorded
lengths   = the kept of a label         where they are recorded
splits    = the rows of the shards that the manifest names
versions  = first texts, texts and rows of the whole, where rows were appended
shards    = the bytes the manifest names
dropped   = what the fingerprint was made with, and kept = the rows of the files
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hub.contract.decontamination import INPUT, PROVENANCE, Dropped
from hub.contract.recipe import ModelRecipe
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest, changed_files
from hub.errors import InputError

if TYPE_CHECKING:
    from model_cards.facts import Counts, DatasetCounts, VersionFacts


def check_identity(directory: Path, manifest: Manifest, name: str, version: str) -> None:
    """Manifest and recipe must speak of the same artefact."""
    if (manifest.name, manifest.version) != (name, version):
        raise InputError(
            directory / RECIPE,
            f"is the recipe of {name} v{version}, but the manifest is of {manifest.name} v{manifest.version}",
        )


def check_files(directory: Path, manifest: Manifest) -> None:
    """Every file of the manifest has its SHA-256; of a growing run, whose files are not read, its size."""
    if manifest.complete:
        changed = changed_files(directory, manifest)
    else:
        sizes = {file.path: file.bytes for file in manifest.files}
        changed = [path for path, size in sizes.items() if not _has_size(directory / path, size)]
    if changed:
        problem = "is missing or is not the file the manifest names"
        raise InputError(directory / changed[0], problem, hint="run the stage again")


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def check_training(directory: Path, trained: bool, recipe: ModelRecipe) -> None:
    """Manifest and recipe must agree on whether there was a training."""
    if trained == recipe.is_baseline:
        found = "records a training" if trained else "records no training"
        kind = "a baseline" if recipe.is_baseline else "a model to train"
        raise InputError(directory / MANIFEST, f"{found}, but the recipe is of {kind}", hint="run the stage again")


def check_counts(directory: Path, counts: DatasetCounts) -> None:
    """The sums of the counts. Raises InputError with both sides of the first sum that fails."""
    place = directory / MANIFEST
    rejected = sum(counts.rejected.values())
    _equal(place, "requested", counts.requested, "kept + rejected", counts.kept + rejected)
    parts: dict[str, Mapping[str, Counts]] = {"by_label": counts.by_label, "variants": counts.variants}
    for name, part in parts.items():
        for key, row in part.items():
            _equal(place, f"{name}.{key}.requested", row.requested, "its kept + rejected", row.kept + row.rejected)
        for key, total in (("requested", counts.requested), ("kept", counts.kept), ("rejected", rejected)):
            if part or name == "by_label":
                _equal(place, key, total, f"the sum over {name}", sum(getattr(row, key) for row in part.values()))
    check_reasons(place, counts)
    check_lengths(place, counts)


def check_lengths(place: Path, counts: DatasetCounts) -> None:
    """The lengths of each label are as many as its kept texts."""
    lengths = counts.token_lengths.by_label if counts.token_lengths else {}
    for label, found in lengths.items():
        kept = counts.by_label[label].kept if label in counts.by_label else 0
        _equal(place, f"by_label.{label}.kept", kept, f"the sum of token_lengths.by_label.{label}", sum(found.values()))


def check_reasons(place: Path, counts: DatasetCounts) -> None:
    """The rejection reasons of each label against the totals; old manifests have no reasons by label."""
    if not any(row.reasons for row in counts.by_label.values()):
        return
    for label, row in counts.by_label.items():
        _equal(place, f"by_label.{label}.rejected", row.rejected, "the sum of its reasons", sum(row.reasons.values()))
    summed: Counter[str] = Counter()
    for row in counts.by_label.values():
        summed.update(row.reasons)
    for reason in sorted({*summed, *counts.rejected}):
        found = counts.rejected.get(reason, 0)
        _equal(place, f"rejected.{reason}", found, "the sum over by_label", summed[reason])


def check_splits(directory: Path, counts: DatasetCounts, manifest: Manifest) -> None:
    """The rows of each config and split against the rows of its shards."""
    claimed = {(config, split): rows for config, splits in counts.splits.items() for split, rows in splits.items()}
    _same_rows(directory / MANIFEST, "splits", claimed, manifest)


def check_history(directory: Path, counts: DatasetCounts, history: Sequence[VersionFacts]) -> None:
    """The versions of a dataset add up to the whole."""
    place = directory / MANIFEST
    for name, whole in (("first_texts", counts.sources), ("requested", counts.requested), ("kept", counts.kept)):
        if history:
            _equal(
                place, f"history.{name}", sum(getattr(one, name) for one in history), "that of the whole dataset", whole
            )
    for config, splits in counts.splits.items() if history else ():
        added = sum(one.rows.get(config, 0) for one in history)
        _equal(place, f"history.rows.{config}", added, "the rows of the whole dataset", sum(splits.values()))


def check_dropped(directory: Path, dropped: Dropped, manifest: Manifest) -> None:
    """The dropped rows are those of the run's fingerprint, and the kept rows are those of the files."""
    place = directory / MANIFEST
    if manifest.inputs.get(INPUT) != dropped.digest():
        found = f"provenance.{PROVENANCE} differs from the digest in inputs"
        raise InputError(place, found, hint="drop again: sts-dino decontaminate RUN --drop DIR")
    kept = {(config, split): rows.kept for config, splits in dropped.rows.items() for split, rows in splits.items()}
    _same_rows(place, PROVENANCE, kept, manifest)


def _same_rows(place: Path, key: str, claimed: dict[tuple[str, str], int], manifest: Manifest) -> None:
    """(config, split) → claimed rows, against those of the shards in the manifest."""
    found: Counter[tuple[str, str]] = Counter()
    for file in manifest.files:
        if file.config is not None and file.split is not None:
            found[file.config, file.split] += file.rows or 0
    for part in sorted({*claimed, *found}):
        _equal(place, f"{key}.{'.'.join(part)}", claimed.get(part, 0), "the rows of its files", found[part])


def _equal(place: Path, left: str, left_value: int, right: str, right_value: int) -> None:
    if left_value != right_value:
        raise InputError(
            place,
            f"{left} is {left_value}, but {right} is {right_value}",
            hint="numbers that disagree stop the card: run the stage again",
        )

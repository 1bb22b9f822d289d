"""The plots of a dataset card, and the table of text lengths beside them, from the manifest and the finished shards."""

from collections import Counter
from pathlib import Path

from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import Manifest
from hub.contract.schema import base_config
from hub.contract.shards import read_table
from hub.untrusted import Markdown, code, inline, table
from model_cards.dataset.samples import targets_of
from model_cards.dataset.tables import label_names
from model_cards.shared.configs import ordered_shards
from model_cards.shared.facts import DatasetCounts, TextLengths

LABELS, LENGTHS = "assets/labels.png", "assets/lengths.png"
QUANTILES = (0.05, 0.5, 0.95)


def dataset_pictures(
    directory: Path, manifest: Manifest, recipe: DatasetRecipe, counts: DatasetCounts
) -> dict[str, bytes]:
    """The plots of a finished dataset, path → PNG; that of the lengths only where the manifest has them."""
    from model_cards.shared.plots import label_plot, length_plot  # matplotlib takes a second to import

    outcomes = {
        name: {"kept": counts.by_label[name].kept, "rejected": counts.by_label[name].rejected}
        for name in label_names(recipe, counts)
    }
    rows = rows_by_label(directory, manifest, recipe)
    pictures = {LABELS: label_plot(outcomes, rows, recipe.dataset_schema.labelled)}
    if counts.token_lengths:
        pictures[LENGTHS] = length_plot(_in_order(recipe, counts.token_lengths), length_unit(counts.token_lengths))
    return pictures


def rows_by_label(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> dict[str, dict[str, int]]:
    """Label → split → rows of the finished config that has labels, all shot counts together."""
    found: dict[str, Counter[str]] = {target: Counter() for target in targets_of(recipe)}
    for config in recipe.configs:
        if base_config(config) == recipe.dataset_schema.labelled:
            for file in ordered_shards(manifest, config):
                targets = read_table(directory / file.path, ["target"]).column("target")
                for entry in targets.value_counts().to_pylist():
                    found.setdefault(entry["values"], Counter())[str(file.split)] += entry["counts"]
    return {target: dict(splits) for target, splits in found.items() if splits}


def length_unit(lengths: TextLengths) -> str:
    """What lengths are counted in."""
    return f"{lengths.unit} of {lengths.tokenizer}" if lengths.tokenizer else lengths.unit


def _in_order(recipe: DatasetRecipe, lengths: TextLengths) -> dict[str, dict[int, int]]:
    """The lengths of the labels that have any, in the recipe's order (the manifest's is alphabetical)."""
    names = [label.name for label in recipe.written_labels]
    return {name: lengths.by_label[name] for name in names if lengths.by_label.get(name)}


def length_table(recipe: DatasetRecipe, lengths: TextLengths) -> Markdown:
    """Quantiles of the length of the kept texts of every label."""
    rows = [
        [code(name), sum(found.values()), *(quantile(found, share) for share in QUANTILES)]
        for name, found in _in_order(recipe, lengths).items()
    ]
    shares = [f"{share:.0%} are no longer than" for share in QUANTILES]
    return table(["label", "texts", *shares], list(rows))


def length_note(lengths: TextLengths) -> Markdown:
    """In words, what the lengths are counted in."""
    if lengths.tokenizer is None:
        return Markdown(f"{inline(lengths.unit)} between white space")
    return Markdown(f"{inline(lengths.unit)} of the tokenizer of {code(lengths.tokenizer)}, without special ones")


def quantile(counts: dict[int, int], share: float) -> int:
    """The smallest length that at least ``share`` of the texts do not exceed."""
    wanted, seen = share * sum(counts.values()), 0
    for size in sorted(counts):
        seen += counts[size]
        if seen >= wanted:
            return size
    raise ValueError("no texts")

"""The Hub configs of a dataset as they lie in its run directory: which exist, their splits, sizes and features."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.run_dir import File, Manifest
from hub.contract.schema import SPLITS, base_config
from hub.contract.shards import AGAIN, read_table, reading_rows
from hub.errors import InputError


@dataclass(frozen=True)
class Split:
    """One split of one config, measured: ``data_bytes`` uncompressed, ``file_bytes`` on disk.

    ``paths`` holds its shards that have rows; ``gaps`` says that it has others too.
    """

    name: str
    rows: int
    data_bytes: int
    file_bytes: int
    paths: list[str]
    gaps: bool


def ordered_shards(manifest: Manifest, config: str) -> list[File]:
    """The shards of a config in the order of splits (train first), then of paths."""
    order = {split: index for index, split in enumerate(SPLITS)}
    return sorted(manifest.shards(config), key=lambda file: (order.get(file.split or "", len(order)), file.path))


def existing_configs(recipe: DatasetRecipe, manifest: Manifest) -> list[str]:
    """The recipe's configs that have rows, in the recipe's order."""
    return [config for config in recipe.configs if any(file.rows for file in manifest.shards(config))]


def measure(directory: Path, manifest: Manifest, config: str) -> list[Split]:
    """The splits of a config, in the usual order, measured by reading its shards.

    Of a growing run the footers alone are read, because a card is written at each of its commits: the size of the data
    is then that of the uncompressed parquet pages, and not of arrow's buffers in memory.

    Raises InputError when a shard has another number of rows than the manifest says.
    """
    size = _read_size if manifest.complete else _footer_size
    sizes: dict[str, int] = {}
    splits: dict[str, list[File]] = {}
    for file in ordered_shards(manifest, config):
        rows, sizes[file.path] = size(directory / file.path)
        if rows != file.rows:
            raise InputError(directory / file.path, f"has {rows} rows, but the manifest says {file.rows}")
        splits.setdefault(str(file.split), []).append(file)
    return [_split(name, files, sizes) for name, files in splits.items() if any(file.rows for file in files)]


def _split(name: str, files: list[File], sizes: dict[str, int]) -> Split:
    filled = [file for file in files if file.rows]
    return Split(
        name,
        rows=sum(file.rows or 0 for file in files),
        data_bytes=sum(sizes[file.path] for file in files),
        file_bytes=sum(file.bytes for file in filled),
        paths=[file.path for file in filled],
        gaps=len(filled) < len(files),
    )


def _read_size(path: Path) -> tuple[int, int]:
    table = read_table(path)
    return table.num_rows, table.nbytes


def _footer_size(path: Path) -> tuple[int, int]:
    with reading_rows(path, AGAIN):
        footer = pq.read_metadata(path)
    return footer.num_rows, sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


def default_config(configs: Iterable[str], recipe: DatasetRecipe) -> str:
    """What a load without a config name gives: the recipe's first config or, until that is there, a raw one.

    ``configs`` are those that exist; at least one.
    """
    existing = sorted(configs, key=recipe.configs.index)
    raw = [config for config in existing if base_config(config) == "raw"]
    return existing[0] if existing[0] == recipe.configs[0] else [*raw, *existing][0]


def data_files(config: str, splits: list[Split]) -> list[dict[str, Any]]:
    """The ``data_files`` entry of a config: a pattern for each split.

    A split with empty shards is listed file by file: datasets 5.2 cannot read a parquet file without rows.
    """
    patterns = {split.name: f"data/{config}/{split.name}-*.parquet" for split in splits}
    return [{"split": one.name, "path": one.paths if one.gaps else patterns[one.name]} for one in splits]


def dataset_info(config: str, splits: list[Split], recipe: DatasetRecipe) -> dict[str, Any]:
    """The ``dataset_info`` entry of a config, in the Hub's own YAML form.

    ``load_dataset`` refuses other numbers of rows than these, so a commit holds the card and the shards it counts.
    """
    import datasets
    from datasets.info import DatasetInfosDict
    from datasets.splits import SplitDict, SplitInfo
    from huggingface_hub import DatasetCardData

    told = [SplitInfo(split.name, num_bytes=split.data_bytes, num_examples=split.rows) for split in splits]
    info = datasets.DatasetInfo(
        features=config_features(config, recipe),
        splits=SplitDict({split.name: split for split in told}),
        download_size=sum(split.file_bytes for split in splits),
        dataset_size=sum(split.data_bytes for split in splits),
    )
    card = DatasetCardData()
    DatasetInfosDict({config: info}).to_dataset_card_data(card)
    keys = ("config_name", "features", "splits", "download_size", "dataset_size")
    return {key: card["dataset_info"][key] for key in keys}

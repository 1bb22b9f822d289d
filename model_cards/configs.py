"""The Hub configs of a dataset as they lie in its run directory: which exist, their splits, sizes and features."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
from datasets.info import DatasetInfosDict
from datasets.splits import SplitDict, SplitInfo
from huggingface_hub import DatasetCardData

from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.row_errors import reading_rows
from hub.run_dir import File, Manifest
from hub.schema import SPLITS, base_config, config_features
from hub.shards import AGAIN, read_table


@dataclass(frozen=True)
class Split:
    """One split of one config, measured: ``data_bytes`` uncompressed, ``file_bytes`` on disk.

    ``paths`` holds its shards that have rows; ``gaps`` says that it has others too.
    """

    name: str
    rows: int = 0
    data_bytes: int = 0
    file_bytes: int = 0
    paths: tuple[str, ...] = ()
    gaps: bool = False

    def with_shard(self, file: File, rows: int, data_bytes: int) -> "Split":
        """The split with one more shard."""
        return Split(
            self.name,
            self.rows + rows,
            self.data_bytes + data_bytes,
            self.file_bytes + (file.bytes if rows else 0),
            self.paths + ((file.path,) if rows else ()),
            self.gaps or not rows,
        )


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
    splits: dict[str, Split] = {}
    for file in ordered_shards(manifest, config):
        rows, data_bytes = (_read_size if manifest.complete else _footer_size)(directory / file.path)
        if rows != file.rows:
            raise InputError(directory / file.path, f"has {rows} rows, but the manifest says {file.rows}")
        name = str(file.split)
        splits[name] = splits.get(name, Split(name)).with_shard(file, rows, data_bytes)
    return [split for split in splits.values() if split.rows]


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
    return [
        {
            "split": split.name,
            "path": list(split.paths) if split.gaps else f"data/{config}/{split.name}-*.parquet",
        }
        for split in splits
    ]


def dataset_info(config: str, splits: list[Split], recipe: DatasetRecipe) -> dict[str, Any]:
    """The ``dataset_info`` entry of a config, in the Hub's own YAML form.

    ``load_dataset`` refuses other numbers of rows than these, so a commit holds the card and the shards it counts.
    """
    table = SplitDict(
        {split.name: SplitInfo(split.name, num_bytes=split.data_bytes, num_examples=split.rows) for split in splits}
    )
    info = datasets.DatasetInfo(
        features=config_features(config, recipe),
        splits=table,
        download_size=sum(split.file_bytes for split in splits),
        dataset_size=sum(split.data_bytes for split in splits),
    )
    return _card_form(config, info, ("config_name", "features", "splits", "download_size", "dataset_size"))


def _card_form(config: str, info: datasets.DatasetInfo, keys: tuple[str, ...]) -> dict[str, Any]:
    card = DatasetCardData()
    DatasetInfosDict({config: info}).to_dataset_card_data(card)
    return {key: card["dataset_info"][key] for key in keys}

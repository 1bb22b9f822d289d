"""The Hub configs of a dataset as they lie in its run directory: which exist, their splits, sizes and features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.info import DatasetInfosDict
from datasets.splits import SplitDict, SplitInfo
from huggingface_hub import DatasetCardData

from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.run_dir import File, Manifest
from hub.schema import SPLITS, config_features


@dataclass(frozen=True)
class Split:
    """One split of one config, measured: ``arrow_bytes`` in memory, ``file_bytes`` on disk.

    ``paths`` holds its shards that have rows; ``gaps`` says that it has others too.
    """

    name: str
    rows: int = 0
    arrow_bytes: int = 0
    file_bytes: int = 0
    paths: tuple[str, ...] = ()
    gaps: bool = False

    def with_shard(self, file: File, shard: pa.Table) -> "Split":
        """The split with one more shard."""
        return Split(
            self.name,
            self.rows + shard.num_rows,
            self.arrow_bytes + shard.nbytes,
            self.file_bytes + (file.bytes if shard.num_rows else 0),
            self.paths + ((file.path,) if shard.num_rows else ()),
            self.gaps or not shard.num_rows,
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

    Raises InputError when a shard has another number of rows than the manifest says.
    """
    splits: dict[str, Split] = {}
    for file in ordered_shards(manifest, config):
        shard = pq.ParquetFile(directory / file.path).read()
        if shard.num_rows != file.rows:
            raise InputError(directory / file.path, f"has {shard.num_rows} rows, but the manifest says {file.rows}")
        name = str(file.split)
        splits[name] = splits.get(name, Split(name)).with_shard(file, shard)
    return [split for split in splits.values() if split.rows]


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


def dataset_info(config: str, splits: list[Split], complete: bool, recipe: DatasetRecipe) -> dict[str, Any]:
    """The ``dataset_info`` entry of a config, in the Hub's own YAML form.

    While a run grows it holds the features only: ``load_dataset`` refuses data of another size than the card says.
    """
    features = config_features(config, recipe)
    if not complete:
        return _card_form(config, datasets.DatasetInfo(features=features), ("config_name", "features"))
    table = SplitDict(
        {split.name: SplitInfo(split.name, num_bytes=split.arrow_bytes, num_examples=split.rows) for split in splits}
    )
    info = datasets.DatasetInfo(
        features=features,
        splits=table,
        download_size=sum(split.file_bytes for split in splits),
        dataset_size=sum(split.arrow_bytes for split in splits),
    )
    return _card_form(config, info, ("config_name", "features", "splits", "download_size", "dataset_size"))


def _card_form(config: str, info: datasets.DatasetInfo, keys: tuple[str, ...]) -> dict[str, Any]:
    card = DatasetCardData()
    DatasetInfosDict({config: info}).to_dataset_card_data(card)
    return {key: card["dataset_info"][key] for key in keys}

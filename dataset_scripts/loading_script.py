"""Load a dataset of sts-dino with `datasets` 2.14 to 3.6: the files that manifest.json names.

The branch `script` of a dataset's repository holds this file as `<repository name>.py`, the table
of its configs as `published_configs.py`, and the files of `main`:

    datasets.load_dataset("<org>/<name>", revision="script", trust_remote_code=True)

(2.14 and 2.15 take no `trust_remote_code`.) `datasets` 4 and later run no scripts. Every version
loads `main`.
"""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from .published_configs import CONFIGS

SPLITS = ("train", "validation", "test")


BATCH_ROWS = 1000


def make_feature(column_type):
    """Make the feature of a column.

    ``column_type``: a tuple of class names, a struct's fields as name → type, or the name of an
    arrow type.
    """
    if isinstance(column_type, tuple):
        return datasets.ClassLabel(names=list(column_type))
    if isinstance(column_type, dict):
        return {name: make_feature(field) for name, field in column_type.items()}
    return datasets.Value(column_type)


class PublishedDataset(datasets.ArrowBasedBuilder):
    """Builder of the parquet files that manifest.json names, at the commit of this script."""

    # a class attribute, as the library has it
    BUILDER_CONFIGS = [datasets.BuilderConfig(name=name) for name in CONFIGS]  # noqa: RUF012
    DEFAULT_CONFIG_NAME = next(iter(CONFIGS))

    def _info(self):
        """Return the features of the config's columns."""
        features = make_feature(CONFIGS[self.config.name])
        return datasets.DatasetInfo(features=datasets.Features(features))

    def _split_generators(self, dl_manager):
        """Return the splits of the config that have rows, with their downloaded shards.

        ``dl_manager`` downloads files of the repository. Raises ValueError, which names the configs
        with rows, when this config has none.
        """
        # the library replaces open() so that a file can be streamed
        with open(dl_manager.download("manifest.json"), encoding="utf-8") as stream:  # noqa: PTH123
            manifest = json.load(stream)

        # config → split → paths of the shards with rows
        paths = {config: {split: [] for split in SPLITS} for config in CONFIGS}
        for file in sorted(manifest["files"], key=lambda file: file["path"]):
            if file["rows"] and file["config"] in paths:
                paths[file["config"]][file["split"]].append(file["path"])

        splits = paths[self.config.name]
        if not any(splits.values()):
            with_rows = [config for config in CONFIGS if any(paths[config].values())]
            problem = f"the config {self.config.name!r} has no rows yet; these have: {with_rows}"
            raise ValueError(f"{manifest['name']}: {problem}")
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"files": dl_manager.download(shards)})
            for split, shards in splits.items()
            if shards
        ]

    def _generate_tables(self, files):
        """Yield (key, table) of at most ``BATCH_ROWS`` rows from parquet files, in order.

        ``files``: the local paths of the files. A key is distinct for each table.
        """
        for number, file in enumerate(files):
            # the library replaces open() so that a file can be streamed
            with open(file, "rb") as stream:  # noqa: PTH123
                batches = pq.ParquetFile(stream).iter_batches(BATCH_ROWS)
                for batch_number, batch in enumerate(batches):
                    yield f"{number}_{batch_number}", pa.Table.from_batches([batch])

"""Load a dataset of sts-dino with `datasets` 2.14 to 3.6: the files that manifest.json names.

The branch `script` of a dataset's repository holds this file as `<repository name>.py`, the table of its configs as
`published_configs.py`, and the files of `main`:

    datasets.load_dataset("<org>/<name>", revision="script", trust_remote_code=True)

(2.14 and 2.15 take no `trust_remote_code`.) `datasets` 4 and later run no scripts. Every version loads `main`.
"""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from .published_configs import CONFIGS

SPLITS = ("train", "validation", "test")


def feature(column_type):
    """The feature of a column type: an arrow type's name, class names, or the types of a struct's fields."""
    if isinstance(column_type, tuple):
        return datasets.ClassLabel(names=list(column_type))
    if isinstance(column_type, dict):
        return {name: feature(field) for name, field in column_type.items()}
    return datasets.Value(column_type)


class PublishedDataset(datasets.ArrowBasedBuilder):
    """Builder of the parquet files that manifest.json names, at the commit of this script."""

    BUILDER_CONFIGS = [datasets.BuilderConfig(name=name) for name in CONFIGS]  # noqa: RUF012 - as the library has it
    DEFAULT_CONFIG_NAME = next(iter(CONFIGS))

    def _info(self):
        columns = CONFIGS[self.config.name]
        return datasets.DatasetInfo(features=datasets.Features({name: feature(of) for name, of in columns.items()}))

    def _split_generators(self, dl_manager):
        with open(dl_manager.download("manifest.json"), encoding="utf-8") as stream:  # noqa: PTH123 - patched to stream
            manifest = json.load(stream)
        files = [file for file in manifest["files"] if file["rows"]]
        own = sorted((file for file in files if file["config"] == self.config.name), key=lambda file: file["path"])
        if not own:
            published = [config for config in CONFIGS if any(file["config"] == config for file in files)]
            place = f"{manifest['name']}: the config {self.config.name!r}"
            raise ValueError(f"{place} has no rows yet; these have: {published}")
        splits = {name: [file["path"] for file in own if file["split"] == name] for name in SPLITS}
        return [
            datasets.SplitGenerator(name=name, gen_kwargs={"files": dl_manager.download(paths)})
            for name, paths in splits.items()
            if paths
        ]

    def _generate_tables(self, files):
        for number, file in enumerate(files):
            with open(file, "rb") as stream:  # noqa: PTH123 - patched to stream
                for batch, rows in enumerate(pq.ParquetFile(stream).iter_batches(1000)):
                    yield f"{number}_{batch}", pa.Table.from_batches([rows])

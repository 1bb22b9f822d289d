"""sts-dino-x2: a loading script for `datasets` 2.14 to 3.6, and a check of a downloaded copy.

It stands on the branch `script` of the dataset's repository, with the modules it imports, beside the files of `main`:

    datasets.load_dataset("<org>/sts-dino-x2", revision="script", trust_remote_code=True)

(2.14 and 2.15 take no `trust_remote_code`.) `datasets` 4 and later run no scripts: they load `main`, as every version
can. With any version it is a command for a downloaded copy in DIR, by default the folder of this file:

    python sts-dino-x2.py --verify [DIR]
    python sts-dino-x2.py --rebuild OUT [DIR]

Exit codes: 0 as published, 1 damaged, 2 wrong use. Written from the recipe by `sts-dino loading-scripts`.
"""

import sys
import types
from pathlib import Path

if __name__ == "__main__":  # run as a command: the modules beside this file are a package
    __package__ = "dataset_copy"
    sys.modules[__package__] = types.ModuleType(__package__)
    sys.modules[__package__].__path__ = [str(Path(__file__).resolve().parent)]

# The library copies the modules that a script imports itself, so all are here. It takes a comment behind one for a URL.
from .downloaded_copy import Repository
from .finished_rows import remade
from .published_dataset import ParquetBuilder, Spec
from .verify_copy import main

SPEC = Spec(
    name="sts-dino-x2",
    form="sts",
    seed=42,
    sets={None: 1},
    labels=["1", "0.5", "0"],
    max_per_label=2,
    validation_fraction=0.1,
    sources=False,
    scores={"1": 1.0, "0.5": 0.5, "0": 0.0},
    smoothing=0.2,
    sampled_negatives=2,
)


class PublishedDataset(ParquetBuilder):
    """The parquet files that manifest.json names, both at the commit of this script."""

    SPEC = SPEC
    BUILDER_CONFIGS = SPEC.configs
    DEFAULT_CONFIG_NAME = SPEC.configs[0].name


if __name__ == "__main__":
    main(SPEC, Path(__file__).resolve().parent)

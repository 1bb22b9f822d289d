"""Load what was published, by repo id, as a user would: sts-dino verify ORG MODEL DATASET...

Only ``datasets`` and ``sentence-transformers`` read the artefacts, no code of this project. They
get an empty cache in a temporary folder, so that everything comes from the Hub; the user's own
caches are not touched. Prints one JSON object.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.hub import cli

app = cli.make_app(__doc__)
# Variables that name a cache outside HF_HOME
_CACHES = (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_XET_CACHE",
    "HF_MODULES_CACHE",
    "SENTENCE_TRANSFORMERS_HOME",
)


@contextmanager
def use_empty_cache() -> Iterator[Path]:
    """Set HF_HOME to an empty temporary folder, and yield it; the user's login stays in use.

    Only libraries that are imported inside the block use the folder. At the end of the block the
    folder is removed, and all environment variables are restored.
    """
    environment = dict(os.environ)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hf_home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    os.environ.setdefault("HF_TOKEN_PATH", str(hf_home / "token"))
    for name in _CACHES:
        os.environ.pop(name, None)
    try:
        with tempfile.TemporaryDirectory(prefix="sts-dino-verify-") as folder:
            os.environ["HF_HOME"] = folder
            yield Path(folder)
    finally:
        os.environ.clear()
        os.environ.update(environment)


def count_dataset_rows(repo_id: str) -> dict[str, dict[str, int]]:
    """Return config → split → number of rows of a dataset.

    The first row of each split is also read by streaming. Raises SystemExit if it differs, and the
    errors of ``datasets``.
    """
    from datasets import get_dataset_config_names, load_dataset

    rows: dict[str, dict[str, int]] = {}
    for config in get_dataset_config_names(repo_id):
        tables = load_dataset(repo_id, config)
        streams = load_dataset(repo_id, config, streaming=True)
        for split, table in tables.items():
            if len(table) and next(iter(streams[split])) != table[0]:
                raise SystemExit(f"{repo_id} {config}/{split}: streaming gives another first row")
            rows.setdefault(config, {})[str(split)] = len(table)
    return rows


def compute_similarities(repo_id: str) -> dict[str, float]:
    """Return two cosines of a model, rounded to three decimals.

    ``similar``: of two sentences about a flute. ``other``: of one of them and another topic.
    """
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(repo_id, trust_remote_code=False)
    sentence = encoder.encode(["A man is playing a flute."])
    candidates = encoder.encode(["A man plays the flute.", "Stocks fell sharply on Monday."])
    cosines = encoder.similarity(sentence, candidates)[0].tolist()
    return {"similar": round(cosines[0], 3), "other": round(cosines[1], 3)}


@app.command()
def main(
    org: Annotated[str, typer.Argument(help="The organisation on the Hub")],
    model: Annotated[str, typer.Argument(help="Name of a published encoder")],
    datasets: Annotated[list[str], typer.Argument(help="Names of published datasets")],
) -> None:
    """Load everything by name and print what was found."""
    with use_empty_cache():
        rows = {name: count_dataset_rows(f"{org}/{name}") for name in datasets}
        similarities = compute_similarities(f"{org}/{model}")
        print(json.dumps({"datasets": rows, **similarities}))

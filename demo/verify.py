"""Load what was published, by repo id, as a user would: sts-dino verify ORG MODEL DATASET...

Nothing of ours reads anything: datasets and sentence-transformers alone must do. They get an empty cache in a temporary
folder, so that everything comes from the Hub; the caches of the person who runs this stay as they are. Prints one JSON
object.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hub import cli

app = cli.new_app(__doc__)
# A cache that is named by one of these is used in place of the one below HF_HOME.
_CACHES = (
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "HF_XET_CACHE", "HF_MODULES_CACHE"),
    "SENTENCE_TRANSFORMERS_HOME",
)


@contextmanager
def empty_cache() -> Iterator[Path]:
    """A temporary HF_HOME with nothing in it, for libraries that are imported inside; the login stays in use."""
    before = dict(os.environ)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("HF_TOKEN_PATH", str(Path(os.environ.get("HF_HOME") or caches / "huggingface") / "token"))
    for name in _CACHES:
        os.environ.pop(name, None)
    try:
        with tempfile.TemporaryDirectory(prefix="sts-dino-verify-") as folder:
            os.environ["HF_HOME"] = folder
            yield Path(folder)
    finally:
        os.environ.clear()
        os.environ.update(before)


def dataset_rows(repo_id: str) -> dict[str, dict[str, int]]:
    """Rows of every config and split, loaded whole; the first row of each is also read by streaming and compared."""
    from datasets import get_dataset_config_names, load_dataset

    rows: dict[str, dict[str, int]] = {}
    for config in get_dataset_config_names(repo_id):
        whole, stream = load_dataset(repo_id, config), load_dataset(repo_id, config, streaming=True)
        for split, table in whole.items():
            if len(table) and next(iter(stream[split])) != table[0]:
                raise SystemExit(f"{repo_id} {config}/{split}: streaming gives another first row")
            rows.setdefault(config, {})[str(split)] = len(table)
    return rows


def similarities(repo_id: str) -> dict[str, float]:
    """Cosines of a model by repo id: of two sentences about a flute, and of one of them and stock prices."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(repo_id, trust_remote_code=False)
    texts = ["A man is playing a flute.", "A man plays the flute.", "Stocks fell sharply on Monday."]
    similar, other = encoder.similarity(encoder.encode(texts[:1]), encoder.encode(texts[1:]))[0].tolist()
    return {"similar": round(similar, 3), "other": round(other, 3)}


@app.command()
def main(
    org: Annotated[str, typer.Argument(help="The organisation on the Hub")],
    model: Annotated[str, typer.Argument(help="Name of a published encoder")],
    datasets: Annotated[list[str], typer.Argument(help="Names of published datasets")],
) -> None:
    """Load everything by name and print what was found."""
    with empty_cache():
        found = {name: dataset_rows(f"{org}/{name}") for name in datasets}
        print(json.dumps({"datasets": found, **similarities(f"{org}/{model}")}))

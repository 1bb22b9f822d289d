"""Load what was published, by repo id, as a user would: python -m demo.verify ORG MODEL DATASET...

Nothing of ours is imported: datasets and sentence-transformers alone must do. Prints one JSON object.
"""

import json
import os
import shutil
import sys
from pathlib import Path

shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)  # an empty cache: everything must come from the Hub

from datasets import get_dataset_config_names, load_dataset  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402


def dataset_rows(repo_id: str) -> dict[str, dict[str, int]]:
    """Rows of every config and split, loaded whole; the first row of each is also read by streaming and compared."""
    rows: dict[str, dict[str, int]] = {}
    for config in get_dataset_config_names(repo_id):
        whole, stream = load_dataset(repo_id, config), load_dataset(repo_id, config, streaming=True)
        for split, table in whole.items():
            if len(table) and next(iter(stream[split])) != table[0]:
                raise SystemExit(f"{repo_id} {config}/{split}: streaming gives another first row")
            rows.setdefault(config, {})[str(split)] = len(table)
    return rows


def main(org: str, model: str, *datasets: str) -> None:
    """Load everything and print what was found."""
    encoder = SentenceTransformer(f"{org}/{model}")
    texts = ["A man is playing a flute.", "A man plays the flute.", "Stocks fell sharply on Monday."]
    similar, other = encoder.similarity(encoder.encode(texts[:1]), encoder.encode(texts[1:]))[0].tolist()
    found = {name: dataset_rows(f"{org}/{name}") for name in datasets}
    print(json.dumps({"datasets": found, "similar": round(similar, 3), "other": round(other, 3)}))
    shutil.rmtree(Path(os.environ["HF_HOME"]), ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

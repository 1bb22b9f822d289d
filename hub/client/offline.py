"""The commit that a revision stands for, and the data that were prepared at it, also with HF_HUB_OFFLINE.

``datasets`` by itself takes, without a Hub, what it prepared last: of any commit.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from hub.durable import write_text


def commit_of(repo_id: str, revision: str | None, kind: str = "dataset") -> str:
    """The commit that a revision stands for now; with HF_HUB_OFFLINE, that it stood for when it was last asked for.

    A dataset's commit is itself; a model's is asked for, because the client gives half a model without a Hub. Raises
    LocalEntryNotFoundError when it was never asked for.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.file_download import repo_folder_name

    name = revision or "main"
    if re.fullmatch(r"[0-9a-f]{40}", name) and (kind == "dataset" or constants.HF_HUB_OFFLINE):
        return name
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo_id, repo_type=kind))
    kept = folder / "refs" / name  # where the client keeps it, too
    if not constants.HF_HUB_OFFLINE:
        commit = HfApi().repo_info(repo_id, repo_type=kind, revision=revision).sha or ""
        if name != commit:
            write_text(kept, commit)
        return commit
    if not kept.is_file():
        raise LocalEntryNotFoundError(f"{repo_id}: {name} was never downloaded")
    return kept.read_text(encoding="utf-8")


def prepared_configs(repo_id: str, commit: str) -> dict[str, Path]:
    """Config → the folder that ``datasets`` prepared at this commit. Raises LocalEntryNotFoundError for none."""
    import datasets
    from datasets.naming import camelcase_to_snakecase

    owner, _, name = repo_id.rpartition("/")
    root = Path(datasets.config.HF_DATASETS_CACHE, "___".join(filter(None, (owner, camelcase_to_snakecase(name)))))
    found = {path.parts[-3]: path for path in root.glob(f"*/*/{commit}") if path.is_dir()}
    if not found:
        raise LocalEntryNotFoundError(f"{repo_id}: nothing was prepared at {commit}")
    return found


def prepared(
    repo_id: str, commit: str, config: str | None = None, split: str | None = None, streaming: bool = False
) -> Any:
    """What ``load_dataset`` gave at this commit. Raises LocalEntryNotFoundError for what it did not prepare."""
    from datasets.packaged_modules.cache.cache import Cache

    found = prepared_configs(repo_id, commit)
    config = config or ("default" if len(found) > 1 else next(iter(found)))
    if config not in found:
        raise LocalEntryNotFoundError(f"{repo_id}: {config} was not prepared at {commit}")
    name = repo_id.rpartition("/")[2]
    cache = Cache(repo_id=repo_id, dataset_name=name, config_name=config, version=found[config].parts[-2], hash=commit)
    return cache.as_streaming_dataset(split) if streaming else cache.as_dataset(split)


PREPARED: dict[str, Callable[..., Any]] = {"load_dataset": prepared, "get_dataset_config_names": prepared_configs}

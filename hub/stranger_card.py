"""Limits on the YAML front matter of a downloaded dataset card, checked before a library parses it.

``datasets`` parses the front matter of every dataset it loads, without limits: some hundred bytes of aliases or merges
take it minutes and all memory, some hundred levels end it with a traceback.
"""

from pathlib import Path

import yaml
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from hub import safe_yaml
from hub.errors import InputError

LIMITS = {"max_bytes": 10 << 20, "max_depth": 50, "max_nodes": 1_000_000}
_STANDALONE = ".huggingface.yaml"


def check_dataset_card(repo_id: str, revision: str) -> None:
    """InputError when the metadata of a Hub's dataset breaks a limit; what is wrong otherwise, ``datasets`` says."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    for name in ("README.md", _STANDALONE):
        try:
            path = hf_hub_download(repo_id, name, repo_type="dataset", revision=revision)
        except LocalEntryNotFoundError:
            if constants.HF_HUB_OFFLINE:  # then ``datasets`` takes rows that it prepared before
                continue
            raise
        except EntryNotFoundError:
            continue
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        found = REGEX_YAML_BLOCK.search(text)
        _check(text if name == _STANDALONE else found.group(2) if found else "", f"dataset {repo_id}: {name}")


def _check(metadata: str, place: str) -> None:
    try:
        safe_yaml.load(metadata, **LIMITS)
    except safe_yaml.UnsafeYaml as error:
        hint = "it would stop the library that reads it: use another revision, or download its files and name them"
        raise InputError(place, f"its metadata has {error.problem}", hint=hint) from None
    except yaml.YAMLError:
        pass

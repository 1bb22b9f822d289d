"""README front matter: what a card says about its repo, and what is wrong with it."""

import math
import re
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

from hub import safe_yaml

_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
# The largest front matter on the Hub, the results of leaderboards, has some 200 kB.
_LIMITS = {"max_bytes": 1 << 20, "max_depth": 64, "max_nodes": 100_000}
_MAX_BYTES = 4 << 20
_TEXTS = ("language", "license", "datasets", "base_model", "metrics")
_LISTS = ("tags", "task_categories", "task_ids", "size_categories", "configs", "model-index")
# https://huggingface.co/docs/hub/repositories-licenses: whatever is not in this list is "other", with a license_name.
LICENCES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0
artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0
epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research
intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql
ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1
llama3.2 llama3.3 llama4 grok2-community gemma unknown other
""".split()  # noqa: SIM905 (as a list it would take eighty lines)
_DATASET_TAGS = ("task_categories", "task_ids", "language", "license", "size_categories")
_MAX_CONFIGS, _MAX_PATTERNS, _MAX_TEXT = 20, 100, 200
_MAX_ERROR, _MAX_ERRORS = 500, 20
_MAX_TRIES = 500_000  # of a pattern with a path: half a second


class Config(NamedTuple):
    """A config of a dataset: its name, and the parquet files of each split."""

    name: str
    splits: dict[str, list[str]]


class CardProblem(Exception):
    """The front matter cannot be used."""


def read_metadata(text: str) -> dict | None:
    """The front matter as plain JSON values; None without one; ``CardProblem`` when it is broken."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        return None
    try:
        metadata = _plain(safe_yaml.load(found.group(1), **_LIMITS))
    except yaml.YAMLError as error:
        raise CardProblem(f"YAML Metadata Error: {str(error)[:_MAX_ERROR]}") from error
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise CardProblem("YAML Metadata Error: the front matter must be a mapping")
    return metadata


def _plain(value: object) -> object:
    """``value`` as JSON can hold it (dates become text)."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def body(text: str) -> str:
    """A card without its front matter."""
    found = _FRONT_MATTER.match(text)
    return text[found.end() :] if found else text


def configs(metadata: dict, paths: list[str]) -> list[Config]:
    """The configs that a card names, as far as they have parquet files, the default first; else one of the first file.

    What it takes too many tries to match is left out.
    """
    parquet = [path for path in paths if path.endswith(".parquet")]
    listed, found, left = metadata.get("configs"), [], _MAX_TRIES
    known = [config for config in listed if isinstance(config, dict)] if isinstance(listed, list) else []
    for config in sorted(known[:_MAX_CONFIGS], key=lambda config: config.get("default") is not True):
        splits: dict[str, list[str]] = {}
        for split, pattern in _data_files(config.get("data_files")):
            left -= len(parquet)
            if left >= 0 and (fits := [path for path in parquet if fnmatchcase(path, pattern)]):
                splits[split] = list(dict.fromkeys([*splits.get(split, []), *fits]))
        if splits:
            found.append(Config(str(config.get("config_name"))[:_MAX_TEXT], splits))
    return found or [Config("default", {"": [path]}) for path in parquet[:1]]


def _data_files(value: object) -> list[tuple[str, str]]:
    """(split, pattern) pairs in all forms that cards use: one pattern, patterns, or splits with patterns."""
    pairs = []
    for item in value if isinstance(value, list) else [value]:
        split, patterns = (item.get("split"), item.get("path")) if isinstance(item, dict) else ("train", item)
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            pairs.append((str(split)[:_MAX_TEXT], str(pattern)[:_MAX_TEXT]))
    return pairs[:_MAX_PATTERNS]


def problems(text: str) -> tuple[list[str], list[str]]:
    """(errors, warnings) of a card."""
    try:
        metadata = read_metadata(text)
    except CardProblem as problem:
        return [str(problem)], []
    if not metadata:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [f'"{key}" must be an array' for key in _LISTS if not isinstance(metadata.get(key, []), list)]
    for key in (*_TEXTS, "tags", "task_categories", "task_ids", "size_categories"):
        values = metadata.get(key) or []
        for item in values if isinstance(values, list) else [values]:
            if not isinstance(item, str):
                errors.append(f'"{key}" must be text, found {item!r} (quote it if YAML took it for something else)')
    if not set(_texts(metadata, "license")) <= set(LICENCES):
        errors.append(f'"license" must be one of [{", ".join(LICENCES)}]')
    configs = metadata.get("configs") or []
    for config in configs if isinstance(configs, list) else []:
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            errors.append('each of "configs" must have a "config_name" that is text')
    return [error[:_MAX_ERROR] for error in errors[:_MAX_ERRORS]], []


@lru_cache(maxsize=512)
def stored_metadata(readme: Path) -> dict:
    """The front matter of a stored README ({} when absent or broken). Blobs never change, so it is kept."""
    if readme.stat().st_size > _MAX_BYTES:
        return {}
    try:
        return read_metadata(readme.read_text(encoding="utf-8", errors="replace")) or {}
    except CardProblem:
        return {}


def tags(kind: str, metadata: dict) -> list[str]:
    """The tags the Hub derives from a card."""
    found: list[str] = []
    if kind == "dataset":
        found = [f"{key}:{value}" for key in _DATASET_TAGS for value in _texts(metadata, key)]
        return [*found, *_texts(metadata, "tags")]
    found = [*_texts(metadata, "library_name"), *_texts(metadata, "tags"), *_texts(metadata, "pipeline_tag")]
    found += [f"dataset:{value}" for value in _texts(metadata, "datasets")]
    found += [f"base_model:{value}" for value in _texts(metadata, "base_model")]
    found += [*_texts(metadata, "language"), *(f"license:{value}" for value in _texts(metadata, "license"))]
    return list(dict.fromkeys(found))


def _texts(metadata: dict, key: str) -> list[str]:
    value = metadata.get(key) or []
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]

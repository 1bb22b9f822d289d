"""Word lists written for this project: synonyms, exchangeable words, verbs. The data are in words.yaml."""

from pathlib import Path

import yaml


def listed(block: str) -> list[str]:
    """The words of a block of text; the entries of a block with bars."""
    return [" ".join(entry.split()) for entry in block.split("|")] if "|" in block else block.split()


def _groups(block: str) -> list[list[str]]:
    return [[w.replace("_", " ") for w in line.split()] for line in block.strip().splitlines()]


_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SYNONYMS, SWAPS = _groups(_DATA["synonyms"]), _groups(_DATA["swaps"])
PHRASES: list[tuple[str, str]] = [(one, other) for one, other in _DATA["phrases"]]
ADJECTIVES, VERBS = frozenset(listed(_DATA["adjectives"])), listed(_DATA["verbs"])
HYPERNYMS: dict[str, str] = _DATA["hypernyms"]
NUMBERS: dict[str, str] = _DATA["numbers"]

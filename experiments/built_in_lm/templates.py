"""Questions, answers and headlines from templates, so that the model also meets text that is no caption and no article.

A template set says one thing in several ways: two sentences of one set with the same fillers are paraphrases, of
another set with the same fillers related, of other fillers and another set unrelated. The data are in templates.yaml.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

import yaml

from experiments.built_in_lm.rules import listed

_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_LISTS = {name: listed(block) for name, block in _DATA["fillers"].items()}
_COUNTRIES = _LISTS["place"][:42]
_TASKS = [f"{action} my {thing}" for action in _LISTS.pop("action") for thing in _LISTS["thing"]]
FILLERS: dict[str, list[str]] = {
    **_LISTS,
    "country": _COUNTRIES,
    "other": _COUNTRIES,
    "rival": _LISTS["team"],
    "do": _TASKS + _LISTS["skill"] * 20,
    "count": [str(n) for n in range(2, 60)],
    "percent": [str(n) for n in range(1, 30)],
}
SETS: list[list[str]] = _DATA["sets"]
_KEYS = [sorted({name for _, name, _, _ in Formatter().parse(group[0]) if name}) for group in SETS]


@dataclass(frozen=True)
class Filled:
    """A template set with its fillers: everything needed to say the same again in other words."""

    group: int
    fillers: dict[str, str]
    variant: int
    text: str


def reworded(first: Filled, rng: random.Random) -> Filled:
    """The same said in another way."""
    return say(first.group, first.fillers, rng, first.variant)


def say(
    group: int, fillers: dict[str, str], rng: random.Random, unlike: int | None = None, variant: int | None = None
) -> Filled:
    """One sentence of a set: of a given variant, or of any but ``unlike``."""
    options = [n for n in range(len(SETS[group])) if n != unlike]
    variant = rng.choice(options) if variant is None else variant
    text = SETS[group][variant].format(**fillers)
    return Filled(group, fillers, variant, text[:1].upper() + text[1:])


def draw(rng: random.Random, group: int | None = None) -> Filled:
    """A random sentence, of a given set if one is given."""
    group = rng.randrange(len(SETS)) if group is None else group
    return say(group, {key: rng.choice(FILLERS[key]) for key in _KEYS[group]}, rng)


def related(first: Filled, rng: random.Random, other_set: float = 0.6) -> Filled:
    """Half the same: other fillers in the same set, or the same fillers in another set."""
    shared = [g for g, keys in enumerate(_KEYS) if g != first.group and set(keys) & set(_KEYS[first.group])]
    if shared and rng.random() < other_set:
        group = rng.choice(shared)
        new = draw(rng, group).fillers
        return say(group, {**new, **{k: v for k, v in first.fillers.items() if k in new}}, rng)
    changed = rng.choice(_KEYS[first.group])
    return say(first.group, {**first.fillers, changed: rng.choice(FILLERS[changed])}, rng, variant=first.variant)


def unrelated(first: Filled, rng: random.Random) -> Filled:
    """Another set without a common filler."""
    while True:
        second = draw(rng)
        if second.group != first.group and not set(second.fillers.values()) & set(first.fillers.values()):
            return second

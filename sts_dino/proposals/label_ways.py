"""Ways to generate the texts of labels with a server, which cannot self-debias.

``plain`` is one request for each text. ``contrast`` is one request for the texts of all labels.
``best-of-n`` generates several texts of each label, and an encoder chooses among them. ``sts-dino
experiment chat-ways`` compares them (``experiments/results/chat_ways.json``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sts_dino.hub.contract.recipe import X1

PLAIN = "plain"
CONTRAST = "contrast"
BEST_OF_N = "best-of-n"
WAYS = (PLAIN, CONTRAST, BEST_OF_N)
# of the recipes that sts-dino new and adapt propose: the highest label agreement (docs/backends.md)
DEFAULT_WAY = BEST_OF_N

CANDIDATES = 4  # texts of a label among which the encoder chooses
SPARE_ATTEMPTS = 4  # for texts that are rejected
COUNTS = {2: "two", 3: "three"}  # numbers of labels in the instruction
# label → the key of its text in the JSON, and what the instruction says of it
CONTRAST_KEYS = {
    "1": ("same_meaning", "means the same thing"),
    "0.5": ("somewhat_similar", "is only somewhat similar"),
    "0": ("different_topic", "is on a completely different topic"),
}


def make_contrast(labels: Sequence[str]) -> dict[str, Any]:
    """Return the section ``model.server.contrast`` for two or three labels of ``CONTRAST_KEYS``.

    The instruction is English for texts of any language: the examples show the language.
    """
    keys: dict[str, str] = {}
    meanings: list[str] = []
    for label in labels:
        key, meaning = CONTRAST_KEYS[label]
        keys[label] = key
        meanings.append(f"{key}: {meaning}.")
    instruction = (
        f'Text: "{X1}"\nWrite {COUNTS[len(labels)]} texts of the same kind, in the same language. '
        f"{' '.join(meanings)}"
    )
    return {"instruction": instruction, "keys": keys}


def make_way(
    way: str,
    labels: Sequence[str],
    has_schema: bool = True,
    candidates: int = CANDIDATES,
    encoder: Mapping[str, str] | None = None,
    choices: int = 1,
) -> dict[str, Any]:
    """Return the keys of a recipe that make a way, each with its value; None removes a key.

    A single label is generated as ``plain`` in any way, and so are the labels of a server without
    JSON in place of ``contrast``.

    Args:
        way: one of ``WAYS``.
        labels: the labels whose texts are generated.
        has_schema: whether the server answers with JSON by a schema.
        candidates: texts of each label for ``best-of-n``.
        encoder: keys of the section ``selection`` that name the encoder; None: the default encoder.
        choices: texts of one request (the request's field n) for ``best-of-n``.
    """
    settings: dict[str, Any] = {
        "model.server.contrast": None,
        "model.server.choices": 1,
        "selection": None,
        "decoding.max_attempts": 1 + SPARE_ATTEMPTS,
    }
    if way == CONTRAST and has_schema and len(labels) > 1:
        settings["model.server.contrast"] = make_contrast(labels)
    if way == BEST_OF_N and len(labels) > 1:
        settings["model.server.choices"] = choices
        settings["selection"] = {"candidates": candidates, **(encoder or {})}
        settings["decoding.max_attempts"] = candidates + SPARE_ATTEMPTS
    return settings

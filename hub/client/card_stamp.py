"""Integrity stamp in the last line of a card: its repository, a digest of its facts, a checksum of its text.

The publisher reads it in both directions. On this disk, a card whose facts are not those of the run directory is stale
and is not published. On the Hub, a card whose text is not the one that was stamped was edited by a person and is not
overwritten silently.
"""

import hashlib
import re
from dataclasses import dataclass

OTHERS = ("repeats", "value", "fidelity", "decontamination", "report")  # files beside results, as plan.MEASURED
_LINE = re.compile(r"<!-- sts-dino: (?P<repo_id>\S+) facts (?P<facts>[0-9a-f]{64}) text (?P<text>[0-9a-f]{64}) -->\n\Z")


@dataclass(frozen=True)
class Stamp:
    """The repository id a card was written for, and the digest of the facts it was written from."""

    repo_id: str
    facts: str


def facts_digest(manifest: bytes, results: bytes | None = None, *others: bytes | None) -> str:
    """SHA-256 over what a card is written from: manifest.json and, where there are any, the measured files.

    Those are a model's results.json, and ``others`` in the order of ``OTHERS`` (the last ones may be left out).
    """
    parts = [hashlib.sha256(content).hexdigest() for content in (manifest, results) if content is not None]
    for name, content in zip(OTHERS, others, strict=False):
        if content is not None:
            parts.append(f"{name} {hashlib.sha256(content).hexdigest()}")
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def stamped(text: str, repo_id: str, facts: str) -> str:
    """``text`` with the stamp as its last line."""
    text = text.rstrip("\n") + "\n\n"
    return f"{text}<!-- sts-dino: {repo_id} facts {facts} text {_digest(repo_id, facts, text)} -->\n"


def read_stamp(card: str) -> Stamp | None:
    """The stamp of a card; None when it has none, or when its text was changed after it was stamped."""
    found = _LINE.search(card)
    if found is None or _digest(found["repo_id"], found["facts"], card[: found.start()]) != found["text"]:
        return None
    return Stamp(found["repo_id"], found["facts"])


def restamped(card: str, facts: str) -> str | None:
    """A stamped card, said to be of other facts; None when it has no stamp of its own."""
    found, stamp = _LINE.search(card), read_stamp(card)
    return stamped(card[: found.start()], stamp.repo_id, facts) if found and stamp else None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

"""Kinds of sources and backends of language models: what each needs and can do, declared once.

To add one, declare it here and register its implementation: ``generation.inputs.sources.SOURCES``,
``generation.backends.registry``.
"""

from dataclasses import dataclass
from typing import Literal

SourceName = Literal["file", "hub", "model"]
BackendName = Literal["engine", "openai"]


@dataclass(frozen=True)
class SourceFacts:
    """A kind of source: the keys it needs; ``generated``: the model writes the sentences and nothing is read."""

    needs: tuple[str, ...]
    generated: bool = False


SOURCES: dict[SourceName, SourceFacts] = {
    "file": SourceFacts(needs=("path",)),
    "hub": SourceFacts(needs=("repo_id", "revision")),
    "model": SourceFacts(needs=("limit",), generated=True),
}


@dataclass(frozen=True)
class BackendFacts:
    """Capabilities of a backend.

    ``local``: the model's weights are read in this process, so dtype, threads and pinned origin decide texts.
    ``can_debias``: draws a token from the answers to several prompts (self-debiasing, guidance). ``can_score``: gives
    a text's log-likelihood under other prompts. ``can_trace``: shows every token's probabilities.
    """

    local: bool
    can_debias: bool
    can_score: bool
    can_trace: bool


BACKENDS: dict[BackendName, BackendFacts] = {
    "engine": BackendFacts(local=True, can_debias=True, can_score=True, can_trace=True),
    "openai": BackendFacts(local=False, can_debias=False, can_score=False, can_trace=False),
}


def backends_that(capability: str) -> str:
    """The names of the backends with a capability, for messages."""
    return ", ".join(name for name, facts in BACKENDS.items() if getattr(facts, capability))

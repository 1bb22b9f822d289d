"""What a writer's tokens cost: said at the end of a run, and kept beside its directory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hub import cli
from hub.shards import write_text


@runtime_checkable
class Metered(Protocol):
    """A writer that counts what it used, e.g. because somebody has to pay for it."""

    @property
    def usage(self) -> dict[str, Any]:
        """Sums over the whole run: answers, prompt_tokens, completion_tokens, uncounted, cost."""
        ...


@contextmanager
def told_usage(writer: object, directory: Path) -> Iterator[None]:
    """Run a block; then say what a metered writer used, also when the block fails. Other writers say nothing."""
    try:
        yield
    finally:
        if isinstance(writer, Metered):
            usage = writer.usage
            write_text(directory.with_name(f"{directory.name}.usage.json"), json.dumps(usage) + "\n")
            cli.say(sentence(usage))


def sentence(usage: dict[str, Any]) -> str:
    """The usage of a run in one line."""
    tokens = f"{usage['prompt_tokens']:,} prompt and {usage['completion_tokens']:,} completion tokens"
    missing = f" ({usage['uncounted']:,} answers came without a count)" if usage["uncounted"] else ""
    cost = "" if usage["cost"] is None else f", cost {usage['cost']:.4f}"
    return f"used so far: {usage['answers']:,} answers, {tokens}{missing}{cost}"

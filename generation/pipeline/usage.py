"""What a writer's tokens cost: said at the end of a run, and kept beside its directory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hub import cli
from hub.durable import write_text


@contextmanager
def told_usage(writer: object, directory: Path) -> Iterator[None]:
    """Run a block; then say what a writer with ``usage`` (a server's) used, also when the block fails."""
    try:
        yield
    finally:
        if usage := getattr(writer, "usage", None):
            write_text(directory.with_name(f"{directory.name}.usage.json"), json.dumps(usage) + "\n")
            cli.say(sentence(usage))


def sentence(usage: dict[str, Any]) -> str:
    """The usage of a run in one line."""
    tokens = f"{usage['prompt_tokens']:,} prompt and {usage['completion_tokens']:,} completion tokens"
    missing = f" ({usage['uncounted']:,} answers came without a count)" if usage["uncounted"] else ""
    cost = "" if usage["cost"] is None else f", cost {usage['cost']:.4f}"
    return f"used so far: {usage['answers']:,} answers, {tokens}{missing}{cost}"

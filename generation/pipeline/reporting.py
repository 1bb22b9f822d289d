"""What a run reports, none of which decides a row: progress and timing, the cost of a server, provenance."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from generation.inputs.prompts import Prompts
from generation.pipeline.tasks import Executor, TaskResult
from hub import cli
from hub.contract.published_paths import published_path
from hub.contract.recipe import DatasetRecipe
from hub.durable import write_text
from hub.process import peak_rss_mb
from hub.untrusted import upstream_of

SHOWN = 4  # nodes in the bar; the others are summed
SAVE_EVERY = 5.0  # seconds


class Progress:
    """A bar over the texts that a run wants, with accepted texts per second of every node.

    ``NAME.timing.json`` beside the run directory keeps seconds (summed over all workers and starts) and rows; it is not
    published. Use it as a context manager.
    """

    def __init__(self, name: str, total: int, done: int, directory: Path):
        self._bar = tqdm(total=total, initial=done, unit="text", desc=name, file=sys.stderr)
        self._done, self._started, self._saved = done, time.monotonic(), 0.0
        self._by_node = Counter[str]()
        self.path = directory.with_name(f"{directory.name}.timing.json")
        self.seconds, self.rows = 0.0, 0
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):  # of a killed process
            leftover.unlink()
        if self.path.is_file():
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self.seconds, self.rows = found["seconds"], found["rows"]

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        if kind is None:
            self.save()

    def tick(self, texts: int) -> None:
        """Count accepted texts of a shard that this process is generating."""
        self._bar.update(texts)

    def shard(self, result: TaskResult, wanted: int) -> None:
        """Count a whole shard with its ``wanted`` texts, accepted or not."""
        self.seconds += result.seconds
        self.rows += result.rows
        self._done += wanted
        self._by_node[result.node] += result.rows
        if len(self._by_node) > 1 or result.node:
            self._bar.set_postfix_str(self.rates(), refresh=False)
        self._bar.update(self._done - self._bar.n)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def rates(self) -> str:
        """Accepted texts per second, node by node, the busiest first."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        nodes = self._by_node.most_common()
        shown = [f"{node} {rows / seconds:.3g}/s" for node, rows in nodes[:SHOWN]]
        rest = sum(rows for _, rows in nodes[SHOWN:])
        return ", ".join([*shown, *([f"{len(nodes) - SHOWN} more {rest / seconds:.3g}/s"] if rest else [])])

    def save(self) -> None:
        """Save the sums."""
        self._saved = time.monotonic()
        record = {"seconds": round(self.seconds, 3), "rows": self.rows, "peak_rss_mb": peak_rss_mb()}
        write_text(self.path, json.dumps(record) + "\n")


@contextmanager
def report_usage(writer: object, directory: Path) -> Iterator[None]:
    """Run a block; then print and keep the ``usage`` of a writer that has one (a server), also when the block fails."""
    try:
        yield
    finally:
        if usage := getattr(writer, "usage", None):
            write_text(directory.with_name(f"{directory.name}.usage.json"), json.dumps(usage) + "\n")
            tokens = f"{usage['prompt_tokens']:,} prompt and {usage['completion_tokens']:,} completion tokens"
            missing = f" ({usage['uncounted']:,} answers came without a count)" if usage["uncounted"] else ""
            cost = "" if usage["cost"] is None else f", cost {usage['cost']:.4f}"
            cli.say(f"used so far: {usage['answers']:,} answers, {tokens}{missing}{cost}")


def provenance(
    recipe: DatasetRecipe,
    executor: Executor,
    prompts: Prompts,
    inputs: dict[str, str],
    command: str,
    code: dict[str, str],
) -> dict[str, Any]:
    """Provenance section of a manifest: command, model, source, examples; no key that the card may correct later.

    ``code``: the clone of the run's first start (``hub.contract.published_paths.clone_of``).
    """
    model = recipe.model
    weights = [digest for path, digest in inputs.items() if path.endswith((".safetensors", ".gguf"))]
    examples = prompts.provenance()
    if recipe.few_shot:
        examples["examples"]["sha256"] = inputs.get(published_path(str(recipe.few_shot.examples.path)))
    return {
        "command": command,
        "model": {
            "id": model.repo_id or (model.path and published_path(model.path)),
            "revision": model.revision,
            "sha256": weights[0] if weights else None,
            **executor.describe(),
            **upstream_of(model.path),
        },
        "source": {"sha256": inputs.get(published_path(str(recipe.source.path)))},
        **examples,
        **({"code": code} if code else {}),
    }

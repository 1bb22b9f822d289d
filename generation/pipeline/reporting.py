"""What a run reports, none of which decides a row: progress and timing, the cost of a server, provenance."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
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

SECONDS = 60.0  # between two lines of a log file
LINE = "{desc}: {n_fmt} of {total_fmt} texts, {remaining} left"


class Progress(AbstractContextManager["Progress"]):
    """A bar over the texts that a run wants, in a log file a line a minute; a context manager.

    ``in_progress``: the work on unfinished texts, as a number of texts. ``NAME.timing.json`` beside the run directory,
    unpublished, sums seconds and rows over all workers and starts.
    """

    def __init__(self, name: str, total: int, done: int, directory: Path, in_progress: Callable[[], float]):
        self._to_file, self._total, self._done = not sys.stderr.isatty(), total, done
        self._in_progress = in_progress
        form: dict[str, Any] = {"file": io.StringIO(), "bar_format": LINE} if self._to_file else {"file": sys.stderr}
        self._bar = tqdm(total=total, initial=done, unit="text", desc=name, **form)
        self._ended, self._thread = Event(), Thread(target=self._repeat, daemon=True)
        self.path = directory.with_name(f"{directory.name}.timing.json")
        self.seconds, self.rows = 0.0, 0
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):  # of a killed process
            leftover.unlink()
        if self.path.is_file():
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self.seconds, self.rows = found["seconds"], found["rows"]
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._show()
        self._bar.close()

    def _repeat(self) -> None:
        while not self._ended.wait(SECONDS if self._to_file else 1.0):
            self._show()

    def _show(self) -> None:
        self._bar.n = max(self._bar.n, min(self._total, int(self._done + self._in_progress())))
        self._bar.refresh()
        if self._to_file:
            cli.say(str(self._bar))

    def tick(self, texts: int) -> None:
        """Count texts that are accepted or given up."""
        self._done += texts

    def shard(self, result: TaskResult) -> None:
        """Record the seconds and rows of a shard."""
        self.seconds += result.seconds
        self.rows += result.rows
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

"""Reports of a run, none of which decides a row.

Before the run: the provenance of its manifest, and the tokens and the price of a server's texts.
While it runs: progress and timing. At its end: what the server's answers used.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import ceil
from pathlib import Path
from threading import Event, Thread
from typing import Any

from sts_dino.generation.backends.dialects import make_body
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.pipeline.tasks import Executor, TaskResult
from sts_dino.generation.rows.attempts import make_text_request
from sts_dino.generation.rows.selection import download_selector
from sts_dino.hub.contract.licences import read_card_licences
from sts_dino.hub.contract.packaged import ENCODERS
from sts_dino.hub.contract.published_paths import hide_folders
from sts_dino.hub.contract.recipe import DatasetRecipe, Server
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.process import measure_peak_rss_mb
from sts_dino.hub.untrusted import join_lines, read_upstream

logger = logging.getLogger(__name__)

UPDATE_SECONDS = 1.0  # between two updates of the bar
COST_LINE = "the server's texts: "
FEWEST_ANSWERS = 10  # stored requests for a mean number of tokens; with fewer, it is estimated
MOST_SAMPLED = 50  # source sentences whose prompts are measured
BYTES_PER_TOKEN = 4  # of English prompts, roughly; other languages have fewer
ANSWER_TOKENS_SHARE = 0.5  # estimated mean length of an answer, as a share of the longest allowed


class Progress(AbstractContextManager["Progress"]):
    """A progress bar over the texts of a run, and the record of the seconds that they take.

    The record, ``NAME.timing.json`` beside the run directory, sums seconds and rows over all
    workers and starts. It is not published. A new object reads the record of earlier starts, and a
    thread updates the bar until the ``with`` block ends. Raises InputError for a damaged record.

    Args:
        name: the dataset's name.
        total: number of texts of the whole run.
        done_texts: number of texts that earlier starts generated.
        directory: the run directory.
        measure_in_progress: returns the work on unfinished texts, as a number of texts.
    """

    def __init__(
        self,
        name: str,
        total: int,
        done_texts: int,
        directory: Path,
        measure_in_progress: Callable[[], float],
    ):
        # read the sums of earlier starts
        self.path = directory.with_name(f"{directory.name}.timing.json")
        self.seconds = 0.0
        self.rows = 0
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):  # of a killed process
            leftover.unlink()
        if self.path.is_file():
            try:
                record = json.loads(self.path.read_text(encoding="utf-8"))
                self.seconds = float(record["seconds"])
                self.rows = int(record["rows"])
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise InputError(
                    self.path, "is damaged", hint="remove it: it holds the cost alone"
                ) from error

        # show the bar
        self._total = total
        self._done = done_texts
        self._measure_in_progress = measure_in_progress
        self._bar = ProgressBar(total=total, initial=done_texts, unit="text", desc=name)
        self._ended = Event()
        self._thread = Thread(target=self._update_until_end, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._update_bar()
        self._bar.close()

    def _update_until_end(self) -> None:
        while not self._ended.wait(UPDATE_SECONDS):
            self._update_bar()

    def _update_bar(self) -> None:
        """Show the work done, as a number of texts; the bar never goes back or beyond its total."""
        texts = int(self._done + self._measure_in_progress())
        self._bar.n = max(self._bar.n, min(self._total, texts))
        self._bar.refresh()

    def count_texts(self, texts: int) -> None:
        """Add a number of texts that were just accepted or given up."""
        self._done += texts

    def add_shard(self, result: TaskResult) -> None:
        """Add the seconds and rows of a shard to the record, and write it."""
        self.seconds += result.seconds
        self.rows += result.rows
        record = {
            "seconds": round(self.seconds, 3),
            "rows": self.rows,
            "peak_rss_mb": measure_peak_rss_mb(),
        }
        write_text(self.path, json.dumps(record) + "\n")


def report_cost(
    prompts: Prompts, sentences: Sequence[SourceSentence], total: int, usage: Mapping[str, Any]
) -> None:
    """Log the number of a run's requests to a server, their tokens and their price.

    Nothing is logged without a server. Requests for further attempts at rejected texts are not
    counted. A warning is logged if the budget is too small.

    Args:
        prompts: the prompts of the recipe.
        sentences: some source sentences of the run, whose prompts are measured.
        total: the number of all source sentences.
        usage: the counts of a server's stored answers; empty: none are stored.
    """
    # take texts and tokens per request from the stored requests, or estimate tokens from bytes
    recipe = prompts.recipe
    server = recipe.model.server
    if server is None:
        return
    texts_per_request: float = server.choices
    stored_requests = usage.get("counted_requests", 0)
    if stored_requests >= FEWEST_ANSWERS:
        # fewer texts than ``choices`` if the server gave fewer
        texts_per_request = min(server.choices, usage["answers"] / stored_requests)
        counted_answers = max(1, usage["answers"] - usage["uncounted"])
        prompt_tokens = usage["prompt_tokens"] / stored_requests
        completion_tokens = usage["completion_tokens"] / counted_answers * texts_per_request
    else:
        prompt_tokens, completion_tokens = _estimate_tokens(prompts, server, sentences)

    # count the requests
    if server.contrast is not None:
        texts_per_request = len(recipe.written_labels)
    texts = total * len(recipe.variants) * recipe.texts_per_source_sentence
    requests = ceil(texts / texts_per_request)
    line = (
        f"{COST_LINE}about {requests:,} requests, {requests * prompt_tokens:,.0f} prompt and "
        f"{requests * completion_tokens:,.0f} generated tokens, rejected texts apart"
    )
    answered = usage.get("answers", 0)
    if answered:
        line += f"; {answered:,} are answered and not paid for again"
    if server.price_per_million is None:
        logger.info(f"{line}; the price is not known (--price-in, --price-out)")
        return

    # compute the price, and compare it with the budget
    prompt_price, completion_price = server.price_per_million
    price = prompt_tokens * prompt_price + completion_tokens * completion_price
    cost = requests * price / 1e6
    line += f"; about {cost:.4f} at the given prices"
    if server.budget is not None:
        line += f", budget {server.budget:g}"
    logger.info(line)
    if server.budget is not None and cost > server.budget:
        logger.warning(
            f"{COST_LINE}the budget {server.budget:g} is not enough: the run stops there, and the "
            "same command with a larger one resumes it"
        )


def _estimate_tokens(
    prompts: Prompts, server: Server, sentences: Sequence[SourceSentence]
) -> tuple[float, float]:
    """Return the mean number of prompt tokens and of generated tokens of a request.

    Prompt tokens follow from the bytes of the first ``MOST_SAMPLED`` sentences' requests; they are
    0 without sentences. Generated tokens follow from the longest answer that is allowed.
    """
    recipe = prompts.recipe
    lengths: list[int] = []
    most_tokens = recipe.decoding.max_new_tokens
    variant = recipe.variants[0]
    for sentence in sentences[:MOST_SAMPLED]:
        sentence_variant = prompts.choose_variant(variant, sentence.text)
        for label in recipe.written_labels:
            request = make_text_request(prompts, label, sentence.text, sentence_variant, seed=0)
            body = make_body(recipe.model, server, request, recipe.decoding)
            most_tokens = server.choices * body["max_tokens"]  # the same for each request
            messages = body.get("messages") or body["prompt"]
            lengths.append(len(json.dumps(messages, ensure_ascii=False).encode()))
    mean_length = sum(lengths) / max(1, len(lengths))
    return mean_length / BYTES_PER_TOKEN, ANSWER_TOKENS_SHARE * most_tokens


@contextmanager
def report_usage(writer: object, directory: Path) -> Iterator[None]:
    """Run a block, then log and store what a server's answers have used, also if the block fails.

    The counts go to ``NAME.usage.json`` beside the run directory; nothing is logged or stored for a
    writer without counts. A warning is logged if the server changed its model. Raises OSError when
    the disk fails.

    Args:
        writer: the writer; its attribute ``usage`` is a mapping of counts, or missing (an engine).
        directory: the run directory.
    """
    try:
        yield
    finally:
        usage = getattr(writer, "usage", None)
        if usage:
            path = directory.with_name(f"{directory.name}.usage.json")
            write_text(path, json.dumps(usage) + "\n")
            logger.info(f"used so far: {_describe_usage(usage)}")
            models = usage["models"]
            if len(models) > 1:
                listed = ", ".join(f"{join_lines(name)} ({n:,})" for name, n in models.items())
                logger.warning(
                    f"the server changed the model between answers: {listed}; a dated name of a "
                    "model does not change"
                )


def _describe_usage(usage: dict[str, Any]) -> str:
    """Return answers, tokens and, if it is known, cost of a server in one line.

    ``usage``: the counts of the writer.
    """
    tokens = (
        f"{usage['prompt_tokens']:,} prompt and {usage['completion_tokens']:,} completion tokens"
    )
    text = f"{usage['answers']:,} answers, {tokens}"
    if usage["uncounted"]:
        text += f" ({usage['uncounted']:,} answers came without a count)"
    if usage["cost"] is not None:
        text += f", cost {usage['cost']:.4f}"
    return text


def make_provenance(
    recipe: DatasetRecipe,
    executor: Executor,
    prompts: Prompts,
    inputs: dict[str, str],
    command: str,
    code: dict[str, str],
) -> dict[str, Any]:
    """Return the provenance of a manifest: command, model, source, examples and code.

    Keys that a card may correct later are not part of the provenance.

    Args:
        recipe: the dataset's recipe.
        executor: describes the model.
        prompts: describe the few-shot examples.
        inputs: published path → SHA-256 of the local inputs.
        command: the command line of the run's first start.
        code: the clone of the run's first start (``published_paths.describe_clone``); empty: none.

    Raises the errors of ``Executor.describe`` and ``download_selector``.
    """
    # describe model and source, which every dataset has
    model = recipe.model
    provenance: dict[str, Any] = {
        "command": command,
        "model": {
            "id": model.repo_id or (model.path and hide_folders(model.path)),
            "revision": model.revision,
            "sha256": find_weights_digest(model.path, inputs),
            **executor.describe(),
            **read_upstream(model.path),
        },
        "source": {"sha256": inputs.get(hide_folders(str(recipe.source.path)))},
        **prompts.describe_examples(),
    }

    # add the encoder that chooses, the file of few-shot examples and the clone, if there are any
    if recipe.selection is not None:
        provenance["selection"] = describe_selector(recipe, inputs)
    if recipe.few_shot:
        path = hide_folders(str(recipe.few_shot.examples.path))
        provenance["examples"]["sha256"] = inputs.get(path)
    if code:
        provenance["code"] = code
    return provenance


def find_weights_digest(folder: object, inputs: Mapping[str, str]) -> str | None:
    """Return the SHA-256 of the weights in a folder, of the first file if there are several.

    None for a folder without weights among the inputs, such as that of a model on a Hub.

    Args:
        folder: the model's folder; None for a model on a Hub.
        inputs: published path → SHA-256 of the local inputs.
    """
    prefix = f"{hide_folders(str(folder))}/"
    for path, digest in inputs.items():
        if path.startswith(prefix) and path.endswith((".safetensors", ".gguf")):
            return digest
    return None


def describe_selector(recipe: DatasetRecipe, inputs: Mapping[str, str]) -> dict[str, str | None]:
    """Return the facts of the encoder of ``selection`` that a card names.

    Keys: ``id``, ``revision`` (None: a local folder), ``license`` (None: its card names none) and
    ``sha256`` of its weights (None: an encoder on a Hub). Local weights of an encoder of ``sts-dino
    lm`` are recognised, and get its id, revision and licence. ``inputs``: published path → SHA-256
    of the local inputs. Raises InputError and RunError as ``download_selector``.
    """
    section = recipe.selection
    assert section is not None, "the recipe has a selection"
    folder = download_selector(recipe)
    sha256 = find_weights_digest(folder, inputs)
    for model in ENCODERS.values():
        if sha256 in model.identities.values():
            repo_id, _, revision = (model.hub or model.upstream).partition("@")
            facts = {"id": repo_id, "revision": revision or None, "license": model.license}
            return {**facts, "sha256": sha256}

    card_licences = read_card_licences(folder / "README.md")
    return {
        "id": section.repo_id or hide_folders(str(folder)),
        "revision": section.revision,
        "license": card_licences[0].id if card_licences else None,
        "sha256": sha256,
    }

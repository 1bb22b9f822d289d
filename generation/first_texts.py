"""The first texts of a run: given by a source, or written by the model itself (DINO's STS-x1x2)."""

import json
from collections import Counter
from collections.abc import Iterator

from tqdm import tqdm

from generation.attempts import Row
from generation.dataset_run import DatasetRun
from generation.prompts import Prompts
from generation.randomness import row_seed
from generation.scratch import FirstTexts, Scratch
from generation.sources import FirstText, GivenTexts, SeenTexts, text_problem
from generation.writer import Completion, Request, Settings, Writer, complete
from hub import cli
from hub.errors import InputError
from hub.recipe import DatasetRecipe

ROUND = 4096  # completions asked for between two files of the scratch folder, at most
LEAST = 64  # and at least: smaller batches cost as much
FIRST_TEXTS = "first texts"  # their entry among the manifest's contents


def prepare(run: DatasetRun, scratch: Scratch, writer: Writer, prompts: Prompts) -> FirstTexts:
    """The run's first texts, from the scratch folder if an earlier start left them there.

    Raises InputError when there are none, or when the source gives others than at the run's beginning.
    """
    texts = scratch.first_texts()
    if run.recipe.source.kind == "model":
        if not run.has_sources():
            texts = None
            _write_sources(run, scratch, writer, prompts)
        texts = texts or scratch.keep(_published(run), run.recipe.shard_size, {})
    elif texts is None:
        given = GivenTexts(run.recipe, writer.count_tokens)
        bar = tqdm(given, unit="text", desc=f"{run.recipe.name} sources", delay=1)
        texts = scratch.keep(bar, run.recipe.shard_size, given.skipped)
    if run.manifest.contents.get(FIRST_TEXTS, texts.sha256) != texts.sha256:
        place = run.recipe.source.path or run.recipe.source.repo_id
        hint = "pin source.revision to a commit, or remove the run directory to start again"
        raise InputError(place, "gives other first texts than when this run began", hint=hint)
    run.record([], contents={FIRST_TEXTS: texts.sha256})
    run.count(sources=texts.total, **({} if run.recipe.source.kind == "model" else {"sources_skipped": texts.skipped}))
    return texts


def _published(run: DatasetRun) -> Iterator[FirstText]:
    return (FirstText(row["source_id"], row["text"]) for row in run.rows("sources"))


def _write_sources(run: DatasetRun, scratch: Scratch, writer: Writer, prompts: Prompts) -> None:
    """Have the model write the first texts, then publish them as the config ``sources``."""
    recipe = run.recipe
    rejected = _write_rounds(recipe, scratch, writer, prompts)
    total = sum(one.accepted for one in scratch.notes.rounds)
    if not total:
        raise InputError("source", f"the model wrote no usable first text (rejected: {dict(rejected)})")
    if total < (recipe.source.limit or 0):
        asked = sum(one.asked for one in scratch.notes.rounds)
        cli.say(
            f"warning: {recipe.name}: the model wrote {total} of the {recipe.source.limit} first texts wanted: "
            f"{asked} attempts (decoding.max_attempts for each) are used up; rejected: {json.dumps(rejected)}"
        )
    run.write_sources(rows for _, rows in scratch.rounds())
    run.count(sources=total, sources_rejected=rejected)


def _write_rounds(recipe: DatasetRecipe, scratch: Scratch, writer: Writer, prompts: Prompts) -> dict[str, int]:
    """Ask in rounds until ``source.limit`` distinct texts are there or ``max_attempts`` times as many were asked for.

    What a round asks for follows from the rounds before it, so a killed run goes on after its last whole round to the
    same texts. Returns how many completions were rejected, by reason.
    """
    scratch.drop_damaged_rounds()
    limit, seen = recipe.source.limit or 0, SeenTexts()
    most, asked, accepted, rejected = limit * recipe.decoding.max_attempts, 0, 0, Counter[str]()
    with tqdm(total=limit, unit="text", desc=f"{recipe.name} x1", delay=1) as bar:
        for one, rows in scratch.rounds():
            for row in rows:
                seen.add(row["text"])
            asked, accepted, rejected = asked + one.asked, accepted + one.accepted, rejected + Counter(one.rejected)
        bar.update(accepted)
        while accepted < limit and asked < most:
            numbers = range(asked, asked + min(ROUND, max(limit - accepted, LEAST), most - asked))
            rows, reasons = _one_round(recipe, writer, prompts, numbers, limit - accepted, seen)
            scratch.add_round(rows, len(numbers), reasons)
            asked, accepted, rejected = asked + len(numbers), accepted + len(rows), rejected + reasons
            bar.update(len(rows))
    return dict(sorted(rejected.items()))


def _one_round(
    recipe: DatasetRecipe, writer: Writer, prompts: Prompts, numbers: range, missing: int, seen: SeenTexts
) -> tuple[list[Row], Counter[str]]:
    """Rows of the config ``sources`` from the completions of ``numbers``, and the others counted by reason.

    The labels' instructions take turns, cut after the quotation mark that opens the first text; nucleus sampling at
    ``source.top_p`` without top-k (DINO sections 3 and 4).
    """
    labels = [recipe.labels[number % len(recipe.labels)] for number in numbers]
    requests = [
        Request(prompts.first_text_prefix(label), (), row_seed(recipe.seed, "x1", number))
        for number, label in zip(numbers, labels, strict=True)
    ]
    settings = Settings(0.0, 1.0, 0, recipe.source.top_p, recipe.decoding.max_new_tokens)
    rows, reasons = list[Row](), Counter[str]()
    completions = complete(writer, requests, settings, recipe.decoding.batch_size)
    for number, label, request, completion in zip(numbers, labels, requests, completions, strict=True):
        reason = completion.problem or ("not_needed" if len(rows) == missing else None)
        reason = reason or text_problem(completion.text, recipe.premise_tokens, writer.count_tokens)
        reason = reason or (None if seen.add(completion.text) else "duplicate")
        if reason:
            reasons[reason] += 1
        else:
            rows.append(_source_row(number, label.name, request, completion))
    return rows, reasons


def _source_row(number: int, instruction: str, request: Request, completion: Completion) -> Row:
    return {
        "source_id": f"{number:06d}",
        "text": completion.text,
        "instruction": instruction,
        "seed": request.seed,
        "log_prob": completion.log_prob,
    }

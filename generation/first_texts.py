"""The first texts of a run: given by a source, or written by the model itself (DINO's STS-x1x2)."""

import json
from collections import Counter
from collections.abc import Iterator

from tqdm import tqdm

from generation.crew import Crew
from generation.dataset_run import DatasetRun
from generation.scratch import FirstTexts, Scratch
from generation.sources import FirstText, GivenTexts, SeenTexts
from generation.tasks import Made, Row, WriteFirstTexts
from hub import cli
from hub.errors import InputError
from hub.recipe import DatasetRecipe

ROUND = 4096  # completions between two files of the scratch folder, at most; with very many texts, rounds
LEAST = 64  # and at least: smaller batches cost as much
FIRST_TEXTS = "first texts"  # their entry among the manifest's contents


def prepare(run: DatasetRun, scratch: Scratch, crew: Crew) -> FirstTexts:
    """The run's first texts, from the scratch folder if an earlier start left them there.

    Raises InputError when there are none, or when the source gives others than at the run's beginning.
    """
    texts = scratch.first_texts()
    if run.recipe.source.kind == "model":
        if not run.has_sources():
            texts = None
            _write_sources(run, scratch, crew)
        texts = texts or scratch.keep(_published(run), run.recipe.shard_size, {})
    elif texts is None:
        given = GivenTexts(run.recipe, crew.count_tokens)
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


def _write_sources(run: DatasetRun, scratch: Scratch, crew: Crew) -> None:
    """Have the model write the first texts, then publish them as the config ``sources``."""
    recipe = run.recipe
    rejected = _write_rounds(recipe, scratch, crew)
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


def _write_rounds(recipe: DatasetRecipe, scratch: Scratch, crew: Crew) -> dict[str, int]:
    """Take texts in the order of their numbers until ``source.limit`` distinct ones are there or the numbers end.

    There are ``max_attempts`` numbers for every text wanted. A number's text depends on nothing else, so a crew may
    write some that turn out not to be needed, and a killed run goes on after its last whole round to the same texts.
    Returns how many completions were rejected, by reason.
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
        if accepted < limit:
            size = round_size(limit)
            tasks = (WriteFirstTexts(range(n, min(n + size, most))) for n in range(asked, most, size))
            for made in _in_order(crew.work(tasks), asked):
                rows, reasons = _distinct(made.facts, limit - accepted, seen)
                scratch.add_round(rows, len(made.facts), reasons)
                accepted, rejected = accepted + len(rows), rejected + reasons
                bar.update(len(rows))
                if accepted == limit:
                    break
    return dict(sorted(rejected.items()))


def round_size(limit: int) -> int:
    """Numbers in a round: few enough that little is written in vain, enough for a batch, and never many rounds."""
    return max(LEAST, min(ROUND, limit // 8), limit // ROUND)


def _in_order(found: Iterator[Made], first: int) -> Iterator[Made]:
    """Rounds in the order of their numbers, from ``first`` on; those that come early wait."""
    waiting = dict[int, Made]()
    for made in found:
        waiting[made.task.numbers.start] = made  # type: ignore[union-attr]  # no other task was given
        while first in waiting:
            made = waiting.pop(first)
            first = made.task.numbers.stop  # type: ignore[union-attr]
            yield made


def _distinct(found: list[Row], missing: int, seen: SeenTexts) -> tuple[list[Row], Counter[str]]:
    """Rows of the config ``sources`` from a round's texts, and the others counted by reason."""
    rows, reasons = list[Row](), Counter[str]()
    for candidate in found:
        row = {name: value for name, value in candidate.items() if name != "reason"}
        reason = candidate["reason"] or ("not_needed" if len(rows) == missing else None)
        reason = reason or (None if seen.add(row["text"]) else "duplicate")
        if reason:
            reasons[reason] += 1
        else:
            rows.append(row)
    return rows, reasons

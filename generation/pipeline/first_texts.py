"""The first texts of a run: given by a source, or written by the model itself (DINO's STS-x1x2)."""

import json
from collections import Counter
from collections.abc import Iterator

from tqdm import tqdm

from generation.inputs.prompts import ContextRoom, Prompts
from generation.inputs.sources import FirstText, GivenTexts, SeenTexts, is_generated
from generation.pipeline.executor import Executor
from generation.run_state.base_run import BaseRun
from generation.run_state.directory import DatasetRun
from generation.run_state.scratch import FirstTexts, Scratch
from generation.run_state.tasks import Row, TaskResult, WriteFirstTexts
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.contract.schema import DUPLICATE, NOT_NEEDED
from hub.errors import InputError

ROUND = 4096  # completions between two files of the scratch folder, at most; with very many texts, rounds
LEAST = 64  # and at least: smaller batches cost as much
FIRST_TEXTS = "first texts"  # their entry among the manifest's contents


def prepare(run: DatasetRun, scratch: Scratch, executor: Executor, prompts: Prompts) -> FirstTexts:
    """The run's first texts, from the scratch folder if an earlier start left them there.

    Raises InputError when there are none, or when the source gives others than at the run's beginning.
    """
    texts = scratch.first_texts()
    if is_generated(run.recipe.source):
        if not run.has_sources():
            texts = None
            _write_sources(run, scratch, executor)
        written = (FirstText(row["source_id"], row["text"]) for row in run.rows("sources"))
        texts = texts or scratch.keep(written, run.recipe.shard_size, {})
    elif texts is None:
        given = GivenTexts(run.recipe, executor.count_tokens, ContextRoom(prompts, executor).lack)
        bar = tqdm(given, unit="text", desc=f"{run.recipe.name} sources", delay=1)
        new = run.base.new_among(bar, run.recipe.source.path or run.recipe.source.repo_id) if run.base else bar
        texts = scratch.keep(new, run.recipe.shard_size, given.skipped)
    if run.manifest.contents.get(FIRST_TEXTS, texts.sha256) != texts.sha256:
        place = run.recipe.source.path or run.recipe.source.repo_id
        hint = "pin source.revision to a commit, or remove the run directory to start again"
        raise InputError(place, "gives other first texts than when this run began", hint=hint)
    run.record([], contents={FIRST_TEXTS: texts.sha256})
    run.count(sources=texts.total, **({} if is_generated(run.recipe.source) else {"sources_skipped": texts.skipped}))
    return texts


def _write_sources(run: DatasetRun, scratch: Scratch, executor: Executor) -> None:
    recipe = run.recipe
    rejected = _write_rounds(recipe, scratch, executor, run.base)
    wanted = _wanted(recipe, run.base)
    total = sum(one.accepted for one in scratch.notes.rounds)
    if not total:
        raise InputError("source", f"the model wrote no usable first text (rejected: {dict(rejected)})")
    if total < wanted:
        asked = sum(one.asked for one in scratch.notes.rounds)
        cli.say(
            f"warning: {recipe.name}: the model wrote {total} of the {wanted} first texts wanted: "
            f"{asked} attempts (decoding.max_attempts for each) are used up; rejected: {json.dumps(rejected)}"
        )
    run.write_sources(rows for _, rows in scratch.rounds())
    run.count(sources=total, sources_rejected=rejected)


def _wanted(recipe: DatasetRecipe, base: BaseRun | None) -> int:
    """How many first texts the model is to write: all, or those beyond the ones of the run that rows are added to."""
    return (recipe.source.limit or 0) - (base.first_texts if base else 0)


def _write_rounds(
    recipe: DatasetRecipe, scratch: Scratch, executor: Executor, base: BaseRun | None = None
) -> dict[str, int]:
    """Take texts in the order of their numbers until as many distinct ones as wanted are there or the numbers end.

    There are ``max_attempts`` numbers for every text wanted. A number's text depends on nothing else, so some may be
    written that turn out not to be needed, and a killed run goes on after its last whole round to the same texts.
    Returns how many completions were rejected, by reason.
    """
    scratch.drop_damaged_rounds()
    taken = _AcceptedTexts(recipe, scratch, base)
    with tqdm(total=taken.limit, initial=taken.accepted, unit="text", desc=f"{recipe.name} x1", delay=1) as bar:
        while taken.accepted < taken.limit and taken.asked < taken.most:
            for candidates in _in_order(executor.run_tasks(taken.wanted()), taken.asked, scratch):
                bar.update(taken.take(candidates))
                if taken.accepted == taken.limit:
                    break
    return dict(sorted(taken.rejected.items()))


class _AcceptedTexts:
    """Distinct first texts accepted so far, in rounds of the scratch folder, and how many are wanted next.

    Where rows are added to the run ``base``, its texts are known already and numbers go on after its last.
    """

    def __init__(self, recipe: DatasetRecipe, scratch: Scratch, base: BaseRun | None):
        self.limit, self._scratch, self._seen = _wanted(recipe, base), scratch, SeenTexts()
        self.first = base.asked if base else 0
        self.most, self.asked, self.accepted = self.first + self.limit * recipe.decoding.max_attempts, self.first, 0
        self.rejected = Counter[str]()
        for row in base.rows("sources", ("text",)) if base else ():
            self._seen.add(row["text"])
        for one, rows in scratch.rounds():
            for row in rows:
                self._seen.add(row["text"])
            self._count(one.asked, one.accepted, Counter(one.rejected))

    def wanted(self) -> Iterator[WriteFirstTexts]:
        """Rounds from the first one that is missing to the one that is probably the last.

        Looked at anew whenever a worker is free, so that at the end not every worker writes texts in vain.
        """
        size, start = round_size(self.limit), self.asked
        while start < min(self.most, self._probably()):
            yield WriteFirstTexts(range(start, min(start + size, self.most)))
            start += size

    def take(self, candidates: list[Row]) -> int:
        """Keep the next round; how many of its texts were taken."""
        rows, reasons = _distinct(candidates, self.limit - self.accepted, self._seen)
        self._scratch.add_round(rows, len(candidates), reasons)
        self._count(len(candidates), len(rows), reasons)
        return len(rows)

    def _probably(self) -> float:
        """How many numbers will be needed if texts are taken as often as so far."""
        share = (self.asked - self.first) / self.accepted if self.accepted else 1
        return self.asked + (self.limit - self.accepted) * share

    def _count(self, asked: int, accepted: int, rejected: Counter[str]) -> None:
        self.asked += asked
        self.accepted += accepted
        self.rejected += rejected


def round_size(limit: int) -> int:
    """Numbers in a round: few enough that little is written in vain, enough for a batch, and never many rounds."""
    return max(LEAST, min(ROUND, limit // 8), limit // ROUND)


def _in_order(results: Iterator[TaskResult], number: int, scratch: Scratch) -> Iterator[list[Row]]:
    """The rows of rounds in the order of their numbers, from ``number`` on.

    Those that come early wait in the scratch folder: while one worker lags, the others may write millions.
    """
    try:
        for result in results:
            start = result.task.numbers.start  # type: ignore[union-attr]  # no other task was given
            if start != number:
                scratch.set_aside(start, result.facts)
                continue
            rows: list[Row] | None = result.facts
            while rows:
                yield rows
                number += len(rows)
                rows = scratch.take_back(number)
    finally:
        scratch.drop_set_aside()


def _distinct(found: list[Row], missing: int, seen: SeenTexts) -> tuple[list[Row], Counter[str]]:
    """Rows of the config ``sources`` from a round's texts, and the others counted by reason."""
    rows, reasons = list[Row](), Counter[str]()
    for candidate in found:
        row = {name: value for name, value in candidate.items() if name != "reason"}
        reason = candidate["reason"] or (NOT_NEEDED.name if len(rows) == missing else None)
        reason = reason or (None if seen.add(row["text"]) else DUPLICATE.name)
        if reason:
            reasons[reason] += 1
        else:
            rows.append(row)
    return rows, reasons

"""The end of a run: raw shards to finished configs, group by group, and the counts that the card shows.

Sampled negatives (DINO section 4: "for each x1, we sample two x2's from other dataset entries") would need all second
sentences at once. Instead, those of a shard come from partner shards: the one half the source away, since sources are
often ordered by topic, then those after it, until the split has ``POOL`` pairs or ``PARTNERS`` shards were read. Within
the pool a hash of (seed, source sentence, number) chooses.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from generation.inputs.sources import SeenTexts
from generation.pipeline import tasks
from generation.pipeline.directory import DatasetRun
from generation.pipeline.tasks import Executor, FinishGroup, Group, Read, Row, Shard, TaskResult, with_files
from generation.rows import pairs
from generation.rows.counts import WORDS, Tally, TextLength
from generation.rows.filters import filtered
from hub.contract.recipe import DatasetRecipe, config_features, config_name, verified_columns
from hub.contract.run_dir import File
from hub.contract.schema import DUPLICATE, SAMPLED
from hub.contract.shards import Parts, read_shard
from hub.errors import RunError

POOL = 256  # pairs that sampled negatives are chosen from, if so many can be had
PARTNERS = 16  # shards read for them, at most


class RawRows:
    """The rows of finished shards. ``empty``: files that were not written, for want of rows."""

    def __init__(self, recipe: DatasetRecipe, read: Read, empty: frozenset[str]):
        self.recipe, self._read, self._empty = recipe, read, empty
        self.pairs = lru_cache(maxsize=PARTNERS)(self._pairs)

    def all(self, shard: Shard, columns: Sequence[str] | None = None, rejected: bool = False) -> list[Row]:
        """All raw, or all rejected, rows of a shard."""
        path = tasks.paths(self.recipe, shard)[rejected]
        return [] if path in self._empty else read_shard(self._read(path), columns)

    def pool(self, shard: Shard, split: str) -> list[pairs.Pair]:
        """The (text1, text2) of one split that a shard's sampled negatives are chosen from."""
        found = list[pairs.Pair]()
        for partner in partners(shard):
            found += self.pairs(partner)[split]
            if len(found) >= POOL:
                break
        return found

    def _pairs(self, shard: Shard) -> dict[str, list[pairs.Pair]]:
        columns = ("text1", "text2", "target", *verified_columns("raw", self.recipe))
        kept, _ = filtered(self.all(shard, columns), self.recipe)
        splits = pairs.by_split(kept, self.recipe)
        return {name: [(row["text1"], row["text2"]) for row in rows] for name, rows in splits.items()}


def partners(shard: Shard) -> list[Shard]:
    """The shards that sampled negatives of ``shard`` may come from, the first one first."""
    steps = range(min(shard.blocks, PARTNERS))
    blocks = [(shard.block + shard.blocks // 2 + step) % shard.blocks for step in steps]
    return [Shard(shard.variant, block, shard.blocks) for block in blocks]


def finish_group(
    recipe: DatasetRecipe, task: FinishGroup, read: Read, length: Callable[[str], int], seen: SeenTexts | None = None
) -> tuple[TaskResult, list[Row]]:
    """Finish a group: its result (facts: ``Tally.parts``), and the rows rejected as duplicates of an earlier shard's.

    ``seen``: the (text, label) of all earlier shards, for the schema ``text``.
    """
    raw, tally, shots = RawRows(recipe, read, task.empty), Tally(), task.group.shots
    files, late = dict[str, list[Row]](), list[Row]()
    for shard in task.group.shards:
        tally.reject(shots, raw.all(shard, ("target", "reason"), rejected=True))
        rows = raw.all(shard)
        tally.verify(shots, rows, recipe)
        kept = pairs.scored(filtered(rows, recipe)[0], rows, recipe)
        if seen is not None:
            new = [seen.add(f"{row['target']}\n{row['text2']}") for row in kept]
            late += [{**row, "reason": DUPLICATE} for row, is_new in zip(kept, new, strict=True) if not is_new]
            kept = [row for row, is_new in zip(kept, new, strict=True) if is_new]
        tally.keep(shots, kept, length)
        for split, of_split in pairs.by_split(kept, recipe).items():
            pool = raw.pool(shard, split) if recipe.dataset_schema.sampled_negatives else []
            for config, finished in pairs.finished_rows(of_split, pool, recipe).items():
                if finished:
                    files.setdefault(task.group.path(config, split), []).extend(finished)
                tally.sampled += sum(row.get("target") == SAMPLED for row in finished)
    tally.reject(shots, late)
    return with_files(TaskResult(key=task.key, task=task, facts=tally.parts()), recipe, files), late


def files_read(recipe: DatasetRecipe, group: Group) -> set[str]:
    """Every file that finishing a group may read."""
    own = {path for shard in group.shards for path in tasks.paths(recipe, shard)}
    if not recipe.dataset_schema.sampled_negatives:
        return own
    far = {partner for shard in group.shards for partner in partners(shard)}
    return own | {tasks.paths(recipe, partner)[0] for partner in far}


def finish(
    run: DatasetRun, blocks: int, sources: int, length: TextLength = WORDS, executor: Executor | None = None
) -> None:
    """Write the finished configs from the raw shards, count everything, mark the run complete.

    ``executor`` does it group by group, and counts lengths as ``length`` does; without one this process does. A group
    that an earlier start finished from the same raw files is kept.

    Raises RunError when a label has no row left.
    """
    tally, files = Tally(), list[File]()
    distinct = run.recipe.dataset_schema.distinct
    for result in _texts(run, blocks, length) if distinct else _groups(run, blocks, length, executor):
        tally.add(result.facts)
        files += result.files
    if run.base is None:  # else the dataset has rows of every label
        _check_labels(run, tally)
    run.record(files)
    before, splits = run.manifest.counts, dict[str, Counter[str]]()
    for file in run.manifest.files:
        if file.config and file.split and file.rows is not None:
            splits.setdefault(file.config, Counter())[file.split] += file.rows
    kept = ("sources_skipped", "sources_rejected", "empty_shards")
    counts = {name: before[name] for name in kept if before.get(name)}
    run.record([], counts={**counts, "sources": sources, **tally.counts(run.recipe, length), "splits": splits})
    run.record([], complete=True)


def _groups(run: DatasetRun, blocks: int, length: TextLength, executor: Executor | None) -> Iterator[TaskResult]:
    """Every group, those first that an earlier start finished from the same raw files."""
    raw = run.raw_digest()
    done = run.finished_groups(raw)
    yield from done.values()
    left = (task for group in tasks.groups(run.recipe, blocks) if (task := _task(run, group)).key not in done)
    read = run.directory.joinpath
    here = (finish_group(run.recipe, task, read, length.of)[0] for task in left)
    for result in executor.run_tasks(left) if executor else here:
        yield run.journalled(result.with_(raw=raw))


def _task(run: DatasetRun, group: Group) -> FinishGroup:
    return FinishGroup(group, frozenset(run.empty & files_read(run.recipe, group) if run.empty else ()))


def _texts(run: DatasetRun, blocks: int, length: TextLength) -> Iterator[TaskResult]:
    """Finish the text form here and in order: whether a text stands in an earlier shard, only one who saw them knows.

    The late ones are in one file of rejected rows after the shards'. Nothing is journalled: a new start has to see
    all rows again.
    """
    seen, late = SeenTexts(), dict[int | None, Parts]()
    try:
        for task in (_task(run, group) for group in tasks.groups(run.recipe, blocks)):
            shots = task.group.shots
            if shots not in late:
                seen, late[shots] = _seen_before(run, shots), _late_parts(run, shots, blocks)
            result, duplicates = finish_group(run.recipe, task, run.directory.joinpath, length.of, seen)
            late[shots].add(duplicates)
            yield run.place(result)
        for parts in late.values():
            yield TaskResult(key="late", files=tuple(run.named(parts)), facts=Tally().parts())
    finally:
        for parts in late.values():
            parts.discard()


def _seen_before(run: DatasetRun, shots: int | None) -> SeenTexts:
    """The (text, label) that the run has before its first shard: those of the run that its rows are added to."""
    seen = SeenTexts()
    if run.base is not None:
        config = config_name(run.recipe.dataset_schema.labelled, shots)
        for row in run.base.rows(config, ("text", "target")):
            seen.add(f"{row['target']}\n{row['text']}")
    return seen


def _late_parts(run: DatasetRun, shots: int | None, blocks: int) -> Parts:
    config = config_name("rejected", shots)
    before = blocks * sum(variant.shots == shots for variant in run.recipe.variants)
    return Parts(run.directory, config, "train", config_features(config, run.recipe), None, before)


def _check_labels(run: DatasetRun, tally: Tally) -> None:
    for shots in dict.fromkeys(variant.shots for variant in run.recipe.variants):
        for label in run.recipe.written_labels:
            if tally.kept[shots, label.name]:
                continue
            reasons = {r: n for (count, name, r), n in tally.rejected.items() if (count, name) == (shots, label.name)}
            asked = "" if shots is None else f" at {shots} shots"
            problem = f"no row is left of it{asked} (rejected: {dict(sorted(reasons.items()))})"
            hint = "use a stronger model, other instructions or more source sentences"
            raise RunError(f"{run.directory}: label {label.name!r}", problem, hint=hint)

"""The end of a run: raw shards to finished configs, group by group, and the counts that the card shows."""

from collections.abc import Iterator

from generation.inputs.sources import SeenTexts
from generation.pipeline.executor import Executor
from generation.pipeline.group_rows import files_read, finish_group, text_identity
from generation.rows.counts import WORDS, Tally, TextLength
from generation.run_state import layout
from generation.run_state.directory import DatasetRun
from generation.run_state.journal import TaskRecord
from generation.run_state.layout import Group
from generation.run_state.tasks import FinishGroup
from hub.contract.recipe import config_features, config_name
from hub.contract.run_dir import File
from hub.contract.shards import Parts
from hub.errors import RunError


def finish(
    run: DatasetRun, blocks: int, sources: int, length: TextLength = WORDS, executor: Executor | None = None
) -> None:
    """Write the finished configs from the raw shards, count everything, mark the run complete.

    ``executor`` does it group by group, and counts lengths as ``length`` does; without one this process does. A group
    that an earlier start finished from the same raw files is not made again.

    Raises RunError when a label has no row left.
    """
    tally, files = Tally(), list[File]()
    found = (
        _texts(run, blocks, length) if run.recipe.dataset_schema.distinct else _groups(run, blocks, length, executor)
    )
    for record in found:
        tally.add(record.facts)
        files += record.files
    if run.base is None:  # else the dataset has rows of every label
        _check_labels(run, tally)
    run.record(files)
    before = run.manifest.counts
    kept = ("sources_skipped", "sources_rejected", "empty_shards")
    counts = {name: before[name] for name in kept if before.get(name)}
    run.record([], counts={**counts, "sources": sources, **tally.counts(run.recipe, length), "splits": _splits(run)})
    run.record([], complete=True)


def _groups(run: DatasetRun, blocks: int, length: TextLength, executor: Executor | None) -> Iterator[TaskRecord]:
    """Every group, those first that an earlier start finished from the same raw files."""
    raw = run.raw_digest()
    done = run.finished_groups(raw)
    yield from done.values()
    tasks = (task for group in layout.groups(run.recipe, blocks) if (task := _task(run, group)).key not in done)
    read = run.directory.joinpath
    here = (finish_group(run.recipe, task, read, length.of).result for task in tasks)
    for result in executor.run_tasks(tasks) if executor else here:
        yield run.journalled(result, raw)


def _task(run: DatasetRun, group: Group) -> FinishGroup:
    return FinishGroup(group, run.empty_among(lambda: files_read(run.recipe, group)))


def _texts(run: DatasetRun, blocks: int, length: TextLength) -> Iterator[TaskRecord]:
    """Finish the text form here and in order: whether a text stands in an earlier shard, only one who saw them knows.

    The late ones stand in one file of rejected rows after the shards'. Nothing is journalled: a new start has to see
    all rows again.
    """
    seen, late = SeenTexts(), dict[int | None, Parts]()
    try:
        for task in (_task(run, group) for group in layout.groups(run.recipe, blocks)):
            shots = task.group.shots
            if shots not in late:
                seen, late[shots] = _seen_before(run, shots), _late_parts(run, shots, blocks)
            found = finish_group(run.recipe, task, run.directory.joinpath, length.of, seen)
            late[shots].add(found.late)
            run.place(found.result)
            yield TaskRecord.of(found.result)
        for parts in late.values():
            files, nothing = tuple(run.named(parts)), Tally().parts()
            yield TaskRecord(task="late", files=files, empty=(), facts=nothing, rows=0, seconds=0.0, node="")
    finally:
        for parts in late.values():
            parts.discard()


def _seen_before(run: DatasetRun, shots: int | None) -> SeenTexts:
    """The (text, label) that the run has before its first shard: those of the run that its rows are added to."""
    seen = SeenTexts()
    if run.base is not None:
        config = config_name(run.recipe.dataset_schema.labelled, shots)
        for row in run.base.rows(config, ("text", "target")):
            seen.add(text_identity(row["text"], row["target"]))
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
            raise RunError(
                f"{run.directory}: label {label.name!r}",
                f"no row is left of it{asked} (rejected: {dict(sorted(reasons.items()))})",
                hint="use a stronger model, other instructions or more first texts",
            )


def _splits(run: DatasetRun) -> dict[str, dict[str, int]]:
    """Config → split → rows, from the manifest's files."""
    splits: dict[str, dict[str, int]] = {}
    for file in run.manifest.files:
        if file.config and file.split and file.rows is not None:
            config = splits.setdefault(file.config, {})
            config[file.split] = config.get(file.split, 0) + file.rows
    return splits

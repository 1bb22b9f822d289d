"""The end of a run: raw shards to finished configs, group by group, and the counts that the card shows."""

from collections.abc import Iterator

from generation import layout
from generation.crew import Crew
from generation.dataset_run import DatasetRun
from generation.group_rows import Distinct, files_read, finished_group
from generation.journal import GroupEntry
from generation.layout import Group
from generation.tally import WORDS, Tally, TextLength
from generation.tasks import FinishGroup, Made
from generation.worker import pieces_of
from hub.errors import RunError
from hub.recipe import config_name
from hub.run_dir import File
from hub.schema import config_features
from hub.shards import Parts


def finish(run: DatasetRun, blocks: int, sources: int, length: TextLength = WORDS, crew: Crew | None = None) -> None:
    """Write the finished configs from the raw shards, count everything, mark the run complete.

    ``crew`` does it group by group, and counts lengths as ``length`` does; without one this process does. A group that
    an earlier start finished from the same raw files is not made again.

    Raises RunError when a label has no row left.
    """
    tally, files = Tally(), list[File]()
    found = _texts(run, blocks, length) if run.recipe.form == "text" else _groups(run, blocks, length, crew)
    for entry in found:
        tally.add(entry.facts)
        files += entry.files
    _check_labels(run, tally)
    run.record(files)
    before = run.manifest.counts
    kept = ("sources_skipped", "sources_rejected", "empty_shards")
    counts = {name: before[name] for name in kept if before.get(name)}
    run.record([], counts={**counts, "sources": sources, **tally.counts(run.recipe, length), "splits": _splits(run)})
    run.record([], complete=True)


def _groups(run: DatasetRun, blocks: int, length: TextLength, crew: Crew | None) -> Iterator[GroupEntry]:
    """Every group, those first that an earlier start finished from the same raw files."""
    raw, done = run.raw_digest(), set[str]()
    for entry in run.groups.entries() if run.groups else ():
        if entry.raw == raw and entry.task not in done and run.holds(entry.files):
            done.add(entry.task)
            yield entry
    tasks = (task for group in layout.groups(run.recipe, blocks) if (task := _task(run, group)).key not in done)
    for made in crew.work(tasks) if crew else _here(run, tasks, length):
        entry = _entry(run, made, raw)
        if run.groups:
            run.groups.append(entry)
        yield entry


def _entry(run: DatasetRun, made: Made, raw: str) -> GroupEntry:
    return GroupEntry(task=made.task.key, raw=raw, files=tuple(run.place(made)), facts=made.facts)


def _task(run: DatasetRun, group: Group) -> FinishGroup:
    return FinishGroup(group, run.empty_among(lambda: files_read(run.recipe, group)))


def _here(run: DatasetRun, tasks: Iterator[FinishGroup], length: TextLength) -> Iterator[Made]:
    for task in tasks:
        rows, tally = finished_group(run.recipe, task, run.directory.joinpath, length.of)
        yield Made(task, pieces_of(run.recipe, rows), facts=tally.parts())


def _texts(run: DatasetRun, blocks: int, length: TextLength) -> Iterator[GroupEntry]:
    """Finish the text form here and in order: whether a text stands in an earlier shard, only one who saw them knows.

    The late ones stand in one file of rejected rows after the shards'. Nothing is journalled: a new start has to see
    all rows again.
    """
    distinct, late = Distinct(), dict[int | None, Parts]()
    try:
        for task in (_task(run, group) for group in layout.groups(run.recipe, blocks)):
            shots = task.group.shots
            if shots not in late:
                distinct, late[shots] = Distinct(), _late_parts(run, shots, blocks)
            rows, tally = finished_group(run.recipe, task, run.directory.joinpath, length.of, distinct.new)
            tally.reject(shots, distinct.late)
            late[shots].add(distinct.late)
            distinct.late = []
            yield _entry(run, Made(task, pieces_of(run.recipe, rows), facts=tally.parts()), "")
        for parts in late.values():
            yield GroupEntry(task="late", raw="", files=tuple(run.named(parts)), facts=Tally().parts())
    finally:
        for parts in late.values():
            parts.discard()


def _late_parts(run: DatasetRun, shots: int | None, blocks: int) -> Parts:
    config = config_name("rejected", shots)
    before = blocks * sum(variant.shots == shots for variant in run.recipe.variants)
    return Parts(run.directory, config, "train", config_features(config, run.recipe), None, before)


def _check_labels(run: DatasetRun, tally: Tally) -> None:
    for shots in dict.fromkeys(variant.shots for variant in run.recipe.variants):
        for label in run.recipe.labels:
            if not tally.kept[shots, label.name]:
                reasons = {
                    r: n for (count, name, r), n in tally.rejected.items() if (count, name) == (shots, label.name)
                }
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

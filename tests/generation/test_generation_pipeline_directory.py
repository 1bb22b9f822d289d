"""A run directory while it is written: journal, manifest when due, kill -9 at every step, a full
disk, finishing.
"""

import errno
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from commit_history import contents
from small_runs import small_recipe
from test_generation_pipeline_finish import row

from sts_dino.generation.pipeline import finish, source_sentences
from sts_dino.generation.pipeline import tasks as layout
from sts_dino.generation.pipeline.directory import DatasetRun, append_line
from sts_dino.generation.pipeline.source_sentences import Scratch, prepare_sentences
from sts_dino.generation.pipeline.tasks import (
    TaskResult,
    WriteShard,
    WriteSourceSentences,
    make_shard_result,
)
from sts_dino.generation.rows import pairs
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe_file import format_recipe
from sts_dino.hub.contract.run_dir import Manifest, find_changed_files, read_manifest
from sts_dino.hub.contract.schema import SAMPLED
from sts_dino.hub.contract.shards import read_shard

RECIPE = small_recipe("sts", shard_size=4)


def begun(folder: Path, recipe=RECIPE) -> DatasetRun:
    """A run's first start, or the next one."""
    manifest = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f")
    found = run_dir.begin(folder / "run", manifest, format_recipe(recipe))
    return DatasetRun(folder / "run", recipe, found, folder / "run.scratch" / "journal.jsonl")


def written(shard: layout.Shard) -> TaskResult:
    """Four source sentences with a text of every label; odd blocks have a reject, the third has no
    raw row.
    """
    raw = [
        row(first, f"{label.name} of {first}", label.name)
        for first in range(4 * shard.block, 4 * shard.block + 4)
        for label in RECIPE.labels
        if shard.block != 3
    ]
    failed = [row(4 * shard.block, "open", "1", reason="not_closed")] * (shard.block % 2)
    return make_shard_result(RECIPE, WriteShard(shard, ()), raw, failed)


def whole(folder: Path, blocks: int, made: list[TaskResult]) -> dict[str, str]:
    """Begin or go on, write what is missing, finish; the directory's files."""
    run = begun(folder)
    missing = set(run.find_missing_shards(layout.list_shards(RECIPE, blocks)))
    for one in made:
        if one.task.shard in missing:
            run.add_shard(one, blocks)
    run.write_progress(blocks)
    finish.finish(run, blocks, 4 * blocks)
    return contents(folder / "run")


@pytest.fixture(scope="module")
def made() -> list[TaskResult]:
    return [written(shard) for shard in layout.list_shards(RECIPE, 5)]


def killed_at(step: int, work) -> int:
    """Do ``work`` in a forked process that kills itself before its n-th step on disk; the steps
    that it did.
    """
    heard, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(heard)
        done = 0

        def counted(function):
            def call(*arguments, **more):
                nonlocal done
                if done == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1
                os.write(tell, b".")
                return function(*arguments, **more)

            return call

        os.fsync, os.replace, os.unlink = counted(os.fsync), counted(os.replace), counted(os.unlink)
        for name in ("replace", "write_bytes", "write_text", "unlink", "open"):
            setattr(Path, name, counted(getattr(Path, name)))
        try:
            work()
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(heard, "rb") as pipe:
        steps = len(pipe.read())
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 0 or steps == step
    return steps


@pytest.mark.slow("kills a run again and again, to the same bytes")
def test_killed_at_every_step_it_goes_on_to_the_same_bytes(made, tmp_path, monkeypatch):
    """kill -9 between journal line, files, manifest, finished groups: every seventh step of a small
    run.
    """
    monkeypatch.setattr(layout, "count_shards_per_group", lambda recipe: 2)
    # a killed process needs none; a step all the same
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    expected = whole(tmp_path / "expected", 5, made)
    steps = killed_at(-1, lambda: whole(tmp_path / "counted", 5, made))
    assert contents(tmp_path / "counted" / "run") == expected and steps > 60
    for step in range(0, steps, 7):  # a shard's steps are no multiple of it
        folder = tmp_path / f"killed-{step}"
        assert killed_at(step, lambda folder=folder: whole(folder, 5, made)) == step
        manifest = read_manifest(folder / "run") if (folder / "run").is_dir() else None
        assert manifest is None or not find_changed_files(folder / "run", manifest), (
            "a manifest names whole files alone"
        )
        assert killed_at(max(1, steps // 2), lambda folder=folder: whole(folder, 5, made)) <= steps
        assert whole(folder, 5, made) == expected, f"killed before step {step}"


@pytest.mark.parametrize("damage", ["torn", "zeros", "lost file", "changed file", "leads out"])
def test_what_the_journal_cannot_prove_is_written_anew(damage, made, tmp_path, monkeypatch):
    expected = whole(tmp_path / "expected", 5, made)
    monkeypatch.setattr(DatasetRun, "_is_manifest_due", lambda self: False)
    folder = tmp_path / "damaged"
    run = begun(folder)
    for one in made[:3]:
        run.add_shard(one, 5)
    journal, last = (
        run._journal,
        run.directory / layout.make_shard_paths(RECIPE, made[2].task.shard)[0],
    )
    content = journal.read_bytes()
    if damage == "torn":
        journal.write_bytes(content[:-20])
    elif damage == "zeros":
        journal.write_bytes(content[: content.rindex(b"\n") + 1] + bytes(100))
    elif damage == "lost file":
        last.unlink()
    elif damage == "changed file":
        last.write_bytes(last.read_bytes()[:-1])
    else:
        journal.write_bytes(content.replace(b"data/raw/train-00002", b"../../raw/train-00002"))
    again = begun(folder)
    assert [shard.block for shard in again.find_missing_shards(layout.list_shards(RECIPE, 5))] == [
        2,
        3,
        4,
    ]
    again.add_shard(made[3], 5)  # after a torn line, a line of its own
    assert [
        shard.block for shard in begun(folder).find_missing_shards(layout.list_shards(RECIPE, 5))
    ] == [
        2,
        4,
    ]
    assert whole(folder, 5, made) == expected


def test_the_journal_of_another_run_is_not_taken_up(tmp_path):
    record = TaskResult(key="source-sentences-0-4", empty=("data/raw/x.parquet",))
    for key, there in (("one run", True), ("", False), ("another", False)):
        scratch = Scratch(tmp_path / "run", key or "one run")
        scratch.store_sentences([], 4, {})
        append_line(scratch.journal, record)
        if not key:
            (scratch.directory / "notes.json").unlink()  # whose it is, nobody knows
        assert Scratch(tmp_path / "run", "one run").journal.exists() == there


def test_a_full_disk_under_the_journal_is_an_error_with_its_name_and_loses_one_shard(
    made, tmp_path, monkeypatch
):
    """The disk is full half-way through a line: a limit on file sizes stands in for it, so the line
    is really torn.
    """
    expected = whole(tmp_path / "expected", 5, made)
    monkeypatch.setattr(DatasetRun, "_is_manifest_due", lambda self: False)
    run = begun(tmp_path / "full")
    run.add_shard(made[0], 5)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    record = made[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (run._journal.stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            append_line(run._journal, record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(run._journal)
    again = begun(tmp_path / "full")
    assert [shard.block for shard in again.find_missing_shards(layout.list_shards(RECIPE, 5))] == [
        1,
        2,
        3,
        4,
    ]
    assert whole(tmp_path / "full", 5, made) == expected


def test_a_shard_made_again_may_change_between_rows_and_no_rows(tmp_path):
    run = begun(tmp_path)
    shard = layout.list_shards(RECIPE, 1)[0]
    raw, rejected = layout.make_shard_paths(RECIPE, shard)
    full = make_shard_result(RECIPE, WriteShard(shard, ()), [row(0, "a", "1")], [])
    for one, empty in (
        (full, rejected),
        (make_shard_result(RECIPE, WriteShard(shard, ()), [], [row(0, "x", "1", reason="r")]), raw),
    ):
        run.add_shard(one, 1)
        run.write_progress(1)
        assert run.manifest.counts["empty_shards"] == [empty]
        assert {file.path for file in run.manifest.files} == {raw, rejected} - {empty}


def test_groups_that_were_finished_are_not_finished_again_unless_a_raw_file_changed(
    made, tmp_path, monkeypatch
):
    monkeypatch.setattr(layout, "count_shards_per_group", lambda recipe: 2)
    expected = whole(tmp_path / "expected", 5, made)
    asked, real = [], finish.finish_group

    def two(recipe, task, *more):
        asked.append(task.group.index)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(recipe, task, *more)

    monkeypatch.setattr(finish, "finish_group", two)
    for change, indices in (("none", [2]), ("lost", [1, 2]), ("raw", [0, 1, 2])):
        asked.clear()
        with pytest.raises(KeyboardInterrupt):
            whole(tmp_path / change, 5, made)
        asked[:] = ["again"] * 10
        if change == "lost":
            (tmp_path / change / "run/data/postprocessed/train-00001-of-00003.parquet").unlink()
        if change == "raw":
            run = begun(tmp_path / change)
            run.add_shard(make_shard_result(RECIPE, made[0].task, [row(0, "other", "1")], []), 5)
            run.write_progress(5)
            finish.finish(run, 5, 20)
        else:
            assert whole(tmp_path / change, 5, made) == expected
        assert asked[10:] == indices


def test_finished_by_groups_the_rows_are_those_of_one_pass(made, tmp_path, monkeypatch):
    """All rows in order, their sampled negatives among them, whether a group is one shard or the
    whole run.
    """
    rows = {}
    for size in (1, 2, 100):
        monkeypatch.setattr(layout, "count_shards_per_group", lambda recipe, size=size: size)
        folder = tmp_path / str(size)
        whole(folder, 5, made)
        run = begun(folder)
        for split in ("train", "validation"):
            paths = sorted(f.path for f in run.manifest.shards("postprocessed") if f.split == split)
            rows[size, split] = [one for path in paths for one in read_shard(run.directory / path)]
        counts = {**run.manifest.counts}
        assert rows.setdefault("counts", counts) == counts
    reader = finish.RawRows(
        RECIPE, (tmp_path / "1" / "run").joinpath, frozenset(rows["counts"]["empty_shards"])
    )
    for split in ("train", "validation"):
        assert rows[1, split] == rows[2, split] == rows[100, split]
        single = []
        for shard in layout.list_shards(RECIPE, 5):
            kept = pairs.split_rows(
                filter_rows(reader.read(layout.make_shard_paths(RECIPE, shard).raw), RECIPE)[0],
                RECIPE,
            )[split]
            single += pairs.make_scored_pairs(kept, reader.collect_pool(shard, split), RECIPE)
        assert rows[1, split] == [{**one, "score": pytest.approx(one["score"])} for one in single]
        assert any(one["target"] == SAMPLED for one in single)


class Writes:
    """An executor that generates numbered sentences, some twice, and returns rounds in a given
    order.
    """

    def __init__(self, order):
        self.order, self.given = order, []

    def run_tasks(self, tasks, tick=lambda _: None):
        waiting = []
        for task in tasks:
            self.given.append(task.numbers)
            waiting.append(task)
            if len(waiting) == 5:
                yield from map(self._made, self.order(waiting))
                waiting = []
        yield from map(self._made, self.order(waiting))

    def _made(self, task: WriteSourceSentences) -> TaskResult:
        facts = [
            {
                "source_id": f"{n:06d}",
                "text": f"“{n - n % 3 // 2}”",
                "instruction": "gut",
                "seed": n,
                "log_prob": -n / 7,
                "reason": "empty" if n % 5 == 0 else None,
            }
            for n in task.numbers
        ]
        return TaskResult(key=task.key, task=task, facts=facts)


def test_source_sentences_do_not_depend_on_the_order_of_rounds_and_few_are_generated_in_vain(
    tmp_path,
):
    recipe = small_recipe(
        "text", source={**small_recipe("text").source.model_dump(), "limit": 1_000}
    )

    def generated(name, order):
        run, executor = begun(tmp_path / name, recipe), Writes(order)
        prepare_sentences(run, Scratch(run.directory, "key"), executor, None)
        rows, rejected = list(run.read_rows("sources")), run.manifest.counts["sources_rejected"]
        assert len(rows) == len({one["text"] for one in rows}) == 1_000
        return rows, rejected, max((numbers.stop for numbers in executor.given), default=0)

    rows, rejected, most = generated("in order", list)
    assert generated("reversed", lambda tasks: tasks[::-1])[:2] == (rows, rejected)
    asked = len(rows) + sum(rejected.values())
    assert most <= asked + 8 * source_sentences.choose_round_size(1_000), (
        "no further ahead than workers are busy"
    )
    run = tmp_path / "in order" / "run"
    shutil.rmtree(run)
    for path in sorted((tmp_path / "in order" / "run.scratch").glob("round-*.json"))[3::2]:
        path.unlink()
    assert generated("in order", lambda tasks: tasks[::-1])[:2] == (rows, rejected)

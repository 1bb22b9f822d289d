"""What an evaluation leaves on disk: resumed after kill -9, valid for what decides a score, read
back by others.
"""

import multiprocessing
import os
import secrets
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from senteval_layout import bag_of_words, one_task, write_senteval

from sts_dino.eval.compare.tables import format_results
from sts_dino.eval.encoders.load import wrap
from sts_dino.eval.runs.job import find_sibling_model
from sts_dino.eval.runs.records import (
    Record,
    Records,
    get_records_folder,
    read_evaluation,
)
from sts_dino.eval.runs.score import (
    add_earlier_records,
    list_versions,
    make_results,
    measure_rows,
    score_tasks,
)
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.tasks.sources import Source, TaskReader
from sts_dino.eval.tasks.task import Outcomes
from sts_dino.hub.contract.results import TaskScore, write_results
from sts_dino.hub.contract.run_dir import Manifest, write_manifest
from sts_dino.hub.errors import InputError

ENTRIES = [
    one_task(name) for name in ("sts12/all", "sts12/mean", "sts13/wmean", "sick-r-tokenised/cosine")
]
SETTINGS = EvaluationSettings(bootstrap_samples=50)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"), rows=20)


def encoder(revision="r1"):
    return wrap(bag_of_words, "words", revision)


def score_all(folder, root, entries=ENTRIES, settings=SETTINGS, revision="r1"):
    data = TaskReader(Source(senteval=root, pins={}), settings.limit, settings.seed)
    return score_tasks(
        entries, data, encoder(revision), Records(folder), settings, folder / "embeddings"
    )


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    """A finished evaluation: its folder and what came of it."""
    folder = tmp_path_factory.mktemp("whole") / "words"
    return folder, score_all(folder, root)


def without_seconds(record):
    return record.model_copy(update={"score": record.score.model_copy(update={"seconds": {}})})


@pytest.fixture
def measured_tasks(monkeypatch):
    """The names of the tasks that are measured from now on."""
    names = []
    monkeypatch.setattr(
        "sts_dino.eval.runs.score.measure_rows",
        lambda data, *more: names.append(data.task.name) or measure_rows(data, *more),
    )
    return names


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"revision": "r2"}, 4),
        ({"settings": SETTINGS.model_copy(update={"limit": 9})}, 4),
        (
            {
                "entries": [
                    replace(ENTRIES[0], task=replace(ENTRIES[0].task, protocol="another")),
                    *ENTRIES[1:],
                ]
            },
            1,
        ),
        ({"root": "other data"}, 2),
        ({"revision": None}, 4),  # it may have changed
    ],
)
def test_whatever_decides_a_score_makes_it_be_measured_anew(
    root, tmp_path, measured_tasks, change, anew
):
    first = change if change.get("revision", "r1") is None else {}
    score_all(tmp_path / "words", root, **first)
    measured_tasks.clear()
    if "root" in change:
        other = write_senteval(tmp_path / "senteval", rows=20)
        gold = other / "downstream/STS/STS12-en-test/STS.gs.MSRpar.txt"
        gold.write_text("1.5\n" + gold.read_text().partition("\n")[2])
        change = {"root": other}
    score_all(tmp_path / "words", **({"root": root} | change))
    assert len(measured_tasks) == anew


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        ("tasks/sts12--mean--test.json", lambda content: content[:40]),
        ("outcomes/sts12--mean--test.parquet", lambda content: content[:100]),
        ("outcomes/sts12--mean--test.parquet", None),
    ],
)
def test_a_damaged_task_is_measured_anew_and_no_other(root, tmp_path, measured_tasks, path, damage):
    first = score_all(tmp_path / "words", root)
    file = tmp_path / "words" / path
    file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
    measured_tasks.clear()
    again = score_all(tmp_path / "words", root)
    assert measured_tasks == ["sts12/mean"]
    assert list(map(without_seconds, again.records)) == list(map(without_seconds, first.records))


def _killed(folder, root, write, path):
    """In a process of its own: die of kill -9 when ``write`` reaches a file of this name."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    records = sys.modules["sts_dino.eval.runs.records"]
    plain = getattr(records, write)

    def deadly(target, *arguments):
        if target.name == path:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_name(f".{path}.{secrets.token_hex(8)}.tmp").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(target, *arguments)

    setattr(records, write, deadly)
    score_all(folder, root)


@pytest.mark.parametrize(
    ("write", "path", "done"),
    [
        ("_write_outcomes", "sts12--all--test.parquet", []),
        # its outcomes are there, its record is not
        ("write_text", "sts12--mean--test.json", ["sts12/all"]),
    ],
)
def test_a_killed_run_goes_on_at_the_task_it_was_at(
    whole, root, tmp_path, measured_tasks, write, path, done
):
    folder = tmp_path / "words"
    process = multiprocessing.get_context("fork").Process(
        target=_killed, args=(folder, root, write, path)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    Records(folder).clear_leftovers()
    assert not list(folder.rglob(".*.tmp"))
    measured_tasks.clear()
    again = score_all(folder, root)
    assert [entry.task.name for entry in ENTRIES if entry.task.name not in measured_tasks] == done
    assert list(map(without_seconds, again.records)) == list(map(without_seconds, whole[1].records))


def test_other_hidden_files_of_a_folder_are_no_leftovers(tmp_path):
    leftover = tmp_path / "tasks" / ".sts12--all--test.json.0123456789abcdef.tmp"
    others = [tmp_path / ".notes.tmp", tmp_path / "mine" / ".report.docx.tmp"]
    # a process may write it now: the folder of the evaluation may hold its run directory
    others.append(tmp_path / "models" / ".manifest.json.0123456789abcdef.tmp")
    for path in (leftover, *others):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    Records(tmp_path).clear_leftovers()
    assert [path.exists() for path in (leftover, *others)] == [False, True, True, True]


def test_an_evaluation_is_read_from_its_folder_its_file_or_a_run_directory(whole, root, tmp_path):
    folder, scored = whole
    results = make_results(scored)
    write_results(folder / "results.json", results)
    model = tmp_path / "model"
    model.mkdir()
    write_manifest(
        model,
        Manifest(kind="model", name="tiny", version="0.1.0", fingerprint="abc", complete=True),
    )
    score_all(get_records_folder(model), root)
    write_results(model / "results.json", results)
    for place in (folder, folder / "results.json", model, str(model / "results.json")):
        found = read_evaluation(place)
        assert found.results == results
        assert len(found.read_outcomes("sts12/all", "test")) == results.scores[0].n
    more = results.model_copy(update={"seed": 7})
    write_results(
        get_records_folder(model) / "results.json", more
    )  # of other tasks than its recipe's as well
    assert read_evaluation(model).results == more


@pytest.mark.parametrize(("here", "path"), [("", "."), ("inner", "..")])
def test_the_files_beside_the_current_folder_are_found(tmp_path, monkeypatch, here, path):
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "run.base").mkdir()
    monkeypatch.chdir(tmp_path / "run" / here)
    assert get_records_folder(Path(path)) == tmp_path / "run.evaluation"
    assert find_sibling_model(path, "base") == str(tmp_path / "run.base")
    with pytest.raises(InputError, match="no results yet"):
        read_evaluation(path)


def test_outcomes_of_another_score_are_not_handed_out(whole, root, tmp_path):
    folder = tmp_path / "words"
    scored = score_all(folder, root)
    results = make_results(scored)
    write_results(folder / "results.json", results)
    score_all(folder, root, revision="r2")
    with pytest.raises(
        InputError,
        match=r"the rows of sts12/all test are not those of results.json; evaluate again",
    ):
        read_evaluation(folder).read_outcomes("sts12/all", "test")
    with pytest.raises(InputError, match=r"holds no scored rows of mr/senteval all"):
        read_evaluation(folder).read_outcomes("mr/senteval", "all")
    with pytest.raises(InputError, match=r"no results yet"):
        read_evaluation(tmp_path)


def test_names_become_file_names_that_stay_apart_and_inside_the_folder(tmp_path):
    store = Records(tmp_path / "store")
    names = ["mteb/MTEB(eng, v2)", "mteb/../../x", "mteb/a b", "mteb/a_b", "sts12/all"]
    known = {"protocol": "p", "split": "test", "main_metric": "m", "n": 2, "data_revision": "a/b@c"}
    for place, name in enumerate(names):
        score = TaskScore(task=name, main_score=place, **known)
        record = Record(
            score=score, revision="r", encoder={}, settings=SETTINGS, versions={}, metric=None
        )
        store.write(record, Outcomes(np.zeros(2), np.ones(2)) if place % 2 else None)
    assert {one.score.task: one.score.main_score for one in store.list_records()} == dict(
        zip(names, range(5), strict=True)
    )
    folders = {path.parent for path in tmp_path.rglob("*.*") if path.is_file()}
    assert folders == {store.folder / "tasks", store.folder / "outcomes"}
    assert store.read_outcomes("mteb/a b", "test") is None


THREE = [ENTRIES[0], *ENTRIES[2:]]
NOW = list_versions()


def run(folder, root, settings=SETTINGS, entries=THREE, revision="r1"):
    """One run of these tasks: what results.json says afterwards."""
    return make_results(add_earlier_records(score_all(folder, root, entries, settings, revision)))


def with_versions(monkeypatch, **others):
    """Other libraries than the ones installed, e.g. ``numpy="2.0.0"``."""
    found = NOW | {name.replace("_", "-"): version for name, version in others.items()}
    monkeypatch.setattr("sts_dino.eval.runs.score.list_versions", lambda of_mteb=False: found)


@pytest.mark.parametrize("change", [{"bootstrap_samples": 80}, {"seed": 7}])
def test_other_intervals_are_made_from_the_kept_rows(root, tmp_path, measured_tasks, change):
    run(tmp_path / "kept", root)
    settings = SETTINGS.model_copy(update=change)
    fresh = run(tmp_path / "fresh", root, settings)
    measured_tasks.clear()
    again = run(tmp_path / "kept", root, settings, THREE[:1])  # the others were not asked for
    assert measured_tasks == []
    ends = {score.task: score.interval() for score in fresh.scores}
    assert {score.task: score.interval() for score in again.scores} == ends
    assert (again.bootstrap_samples, again.seed) == (settings.bootstrap_samples, settings.seed)
    assert run(tmp_path / "kept", root, settings, THREE[:1]) == again


def test_a_bca_interval_of_an_earlier_version_is_made_again(root, tmp_path, measured_tasks):
    fresh = run(tmp_path / "kept", root)
    records = Records(tmp_path / "kept")
    for one in records.list_records():
        old = one.settings.model_copy(update={"interval": "bca"})
        records.rewrite(
            one.model_copy(
                update={"settings": old, "score": one.score.model_copy(update={"low": 0.0})}
            )
        )
    measured_tasks.clear()
    assert run(tmp_path / "kept", root).scores == fresh.scores and measured_tasks == []


def test_a_patch_release_forgets_nothing_and_is_told(root, tmp_path, measured_tasks, monkeypatch):
    first = run(tmp_path / "words", root)
    with_versions(monkeypatch, numpy="99.0.1", python="3.12.9")
    measured_tasks.clear()
    more = [*THREE[:1], one_task("sts12/mean")]
    again = run(tmp_path / "words", root, entries=more)
    assert measured_tasks == ["sts12/mean"]
    reported = {score.task: score.versions for score in again.scores}
    assert set(reported) == {score.task for score in first.scores} | {"sts12/mean"}
    assert reported["sts12/mean"] == {} and again.versions["numpy"] == "99.0.1"
    before = {"numpy": NOW["numpy"], "python": NOW["python"]}
    assert all(reported[entry.task.name] == before for entry in THREE)
    names = "sts12/all test, sts13/wmean test, sick-r-tokenised/cosine test"
    assert f"made with python {NOW['python']}, numpy {NOW['numpy']}: {names}" in format_results(
        again
    )


def test_a_major_release_makes_every_score_stale(
    root, tmp_path, measured_tasks, monkeypatch, capsys
):
    """So that a gain never sets one major version against another: those not asked for are left
    out, and said.
    """
    run(tmp_path / "words", root)
    with_versions(monkeypatch, transformers="99.1.0")
    measured_tasks.clear()
    again = run(tmp_path / "words", root, entries=THREE[:1])
    assert (
        measured_tasks == ["sts12/all"] and [score.task for score in again.scores] == measured_tasks
    )
    said, why = (
        capsys.readouterr().err,
        f"because it was made with transformers {NOW['transformers']}, now 99.1.0",
    )
    assert (
        f"sts12/all test: measured again, {why}" in said
        and f"results.json: sts13/wmean test, {why}" in said
    )

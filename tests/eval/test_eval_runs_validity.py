"""Only what decides a score makes it be measured anew; what no longer counts is told with its reason."""

import json
from dataclasses import replace

import pytest
from senteval_layout import bag_of_words, write_senteval

from eval.encoders.load import wrap
from eval.runs.job import one_task
from eval.runs.records import Records, why_stale
from eval.runs.score import evaluate, everything, summarise, versions
from eval.runs.table import table
from eval.scoring.measure import measure
from eval.statistics.scores import EvaluationSettings
from eval.tasks.rows import Pins
from eval.tasks.sources import Source, TaskData

ENTRIES = [one_task(name) for name in ("sts12/all", "sts13/wmean", "sick-r-tokenised/cosine")]
SETTINGS = EvaluationSettings(bootstrap_samples=50)
NOW = versions()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"), rows=20)


def encoder(revision="r1"):
    return wrap(bag_of_words, "words", revision)


def run(folder, root, settings=SETTINGS, entries=ENTRIES, of=None):
    """One run of these tasks: what results.json says afterwards."""
    of, store = of or encoder(), Records(folder)
    data = TaskData(Source(senteval=root, pins=Pins()), settings.limit, settings.seed)
    scored = evaluate(entries, data, of, store, settings, folder / "embeddings")
    return summarise(everything(scored, settings), None, settings)


@pytest.fixture
def measured(monkeypatch):
    """The names of the tasks that are measured from now on."""
    names = []
    monkeypatch.setattr("eval.runs.score.measure", lambda task, *more: names.append(task.name) or measure(task, *more))
    return names


def with_versions(monkeypatch, **others):
    """Other libraries than the ones installed, e.g. ``numpy="2.0.0"``."""
    found = NOW | {name.replace("_", "-"): version for name, version in others.items()}
    for module in ("evaluate", "summary"):
        monkeypatch.setattr(f"eval.runs.{module}.versions", lambda of_mteb=False: found)


@pytest.mark.parametrize("change", [{"bootstrap_samples": 80}, {"seed": 7}, {"interval": "bca"}])
def test_other_intervals_are_made_from_the_kept_rows(root, tmp_path, measured, change):
    run(tmp_path / "kept", root)
    settings = SETTINGS.model_copy(update=change)
    fresh = run(tmp_path / "fresh", root, settings)
    measured.clear()
    again = run(tmp_path / "kept", root, settings, ENTRIES[:1])  # the others were not asked for
    assert measured == []
    ends = {score.task: score.interval() for score in fresh.scores}
    assert {score.task: score.interval() for score in again.scores} == ends
    assert (again.bootstrap_samples, again.interval, again.seed) == (
        settings.bootstrap_samples,
        settings.interval,
        settings.seed,
    )
    assert run(tmp_path / "kept", root, settings, ENTRIES[:1]) == again


def test_a_patch_release_forgets_nothing_and_is_told(root, tmp_path, measured, monkeypatch):
    first = run(tmp_path / "words", root)
    with_versions(monkeypatch, numpy="99.0.1", python="3.12.9")
    measured.clear()
    more = [*ENTRIES[:1], one_task("sts12/mean")]
    again = run(tmp_path / "words", root, entries=more)
    assert measured == ["sts12/mean"]
    told = {score.task: score.versions for score in again.scores}
    assert set(told) == {score.task for score in first.scores} | {"sts12/mean"}
    assert told["sts12/mean"] == {} and again.versions["numpy"] == "99.0.1"
    before = {"numpy": NOW["numpy"], "python": NOW["python"]}
    assert all(told[entry.task.name] == before for entry in ENTRIES)
    names = "sts12/all test, sts13/wmean test, sick-r-tokenised/cosine test"
    assert f"made with python {NOW['python']}, numpy {NOW['numpy']}: {names}" in table(again)


def test_a_major_release_measures_what_is_asked_for_and_keeps_the_rest(root, tmp_path, measured, monkeypatch, capsys):
    run(tmp_path / "words", root)
    with_versions(monkeypatch, transformers="99.1.0")
    measured.clear()
    again = run(tmp_path / "words", root, entries=ENTRIES[:1])
    assert measured == ["sts12/all"]
    assert [bool(score.versions) for score in again.scores] == [False, True, True]
    said = f"sts12/all test: measured anew, for it was made with transformers {NOW['transformers']}, now 99.1.0"
    assert said in capsys.readouterr().err


def test_a_gain_never_sets_one_major_version_against_another(root, tmp_path, monkeypatch, capsys):
    """A run with a new major version was killed when it had scored the model, and not yet its base."""
    data, sides = TaskData(Source(senteval=root, pins=Pins())), []
    run(tmp_path / "base", root, of=encoder("base"))
    with_versions(monkeypatch, torch="99.0.0")
    run(tmp_path / "model", root, entries=ENTRIES[:1])
    for name in ("model", "base"):
        of, store = encoder("r1" if name == "model" else name), Records(tmp_path / name)
        scored = evaluate(ENTRIES[1:], data, of, store, SETTINGS, tmp_path / name / "embeddings")
        sides.append(everything(scored, SETTINGS))
    capsys.readouterr()
    told = summarise(*sides, SETTINGS)
    assert [score.task for score in told.scores] == ["sts13/wmean", "sick-r-tokenised/cosine", "sts12/all"]
    assert (
        [gain.task for gain in told.gains]
        == [score.task for score in told.base_scores]
        == ["sts13/wmean", "sick-r-tokenised/cosine"]
    )
    assert f"no gain on sts12/all test, for the base's score: it was made with torch {NOW['torch']}, now 99.0.0" in (
        capsys.readouterr().err
    )


def test_every_task_that_is_dropped_is_told_with_the_reason(root, tmp_path, capsys):
    run(tmp_path / "words", root)
    capsys.readouterr()
    result = run(tmp_path / "words", root, entries=ENTRIES[:1], of=encoder("r2"))
    assert [score.task for score in result.scores] == ["sts12/all"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "results.json" in line or "anew" in line]
    place = f"not in {tmp_path / 'words' / 'results.json'}"
    assert lines == [
        "sts12/all test: measured anew, for it is of other weights (revision r1, now r2)",
        f"{place}: sick-r-tokenised/cosine test, for it is of other weights (revision r1, now r2)",
        f"{place}: sts13/wmean test, for it is of other weights (revision r1, now r2)",
    ]


def test_a_damaged_record_is_told(root, tmp_path, capsys):
    run(tmp_path / "words", root)
    (tmp_path / "words" / "tasks" / "sts13--wmean--test.json").write_text("{")
    (tmp_path / "words" / "outcomes" / "sick-r-tokenised--cosine--test.parquet").unlink()
    capsys.readouterr()
    assert len(run(tmp_path / "words", root, entries=ENTRIES[:1]).scores) == 1
    said = capsys.readouterr().err
    assert "sts13--wmean--test.json, for it is damaged" in said
    assert "sick-r-tokenised--cosine--test.json, for it is damaged" in said
    run(tmp_path / "words", root)
    assert "sts13/wmean test: measured anew, for its record is damaged" in capsys.readouterr().err


@pytest.fixture(scope="module")
def record(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "words"
    run(folder, root, entries=ENTRIES[:1])
    (found,) = Records(folder).all()
    return found


def test_seeds_of_probes_decide_the_scores_that_have_some(record):
    other = SETTINGS.model_copy(update={"probe_seeds": (7,)})
    assert why_stale(record, encoder(), other) is None
    probe = record.model_copy(update={"score": record.score.model_copy(update={"seeds": (1111,)})})
    assert why_stale(probe, encoder(), SETTINGS) is None
    assert why_stale(probe, encoder(), other) == "seeds 1111, now 7"


@pytest.mark.parametrize(
    ("settings", "protocol", "data", "why"),
    [
        ({}, "another", None, "its protocol was "),
        ({}, None, ("f" * 64, None), "its data were others ("),
        ({"limit": 9}, None, None, "it is of all rows, not of 9 rows of each split, drawn with seed 42"),
    ],
)
def test_whatever_decides_a_score_is_named(record, settings, protocol, data, why):
    assert why_stale(record, encoder(), SETTINGS.model_copy(update=settings), protocol, data).startswith(why)


def test_prompt_and_precision_decide_and_the_libraries_that_embed_do_not(record):
    one = replace(encoder(), settings={"prompt": "", "dtype": "float32"}, versions={"torch": "2.1.0"})
    kept = record.model_copy(update={"encoder": one.settings})
    assert why_stale(kept, replace(one, versions={"torch": "2.1.1"}), SETTINGS) is None
    half = replace(one, settings={"prompt": "", "dtype": "bfloat16"})
    assert why_stale(kept, half, SETTINGS) == "dtype was 'float32', is 'bfloat16'"
    assert one.key != replace(one, versions={"torch": "2.1.1"}).key  # embeddings are kept apart


def test_a_record_of_an_earlier_version_holds_as_long_as_its_libraries(record):
    one = replace(encoder(), versions={"torch": "2.1.0"})
    earlier = record.model_copy(update={"encoder": one.key})
    assert why_stale(earlier, one, SETTINGS) is None
    assert "other libraries" in why_stale(earlier, replace(one, versions={"torch": "2.1.1"}), SETTINGS)
    assert json.loads(earlier.model_dump_json())["encoder"] == one.key

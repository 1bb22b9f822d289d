"""Evaluations side by side, and variants over seeds: one protocol a row, files that untrusted names
cannot break.
"""

import csv
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from planted_evaluations import SETTINGS, evaluation, measured, planted

from sts_dino.eval.compare.plots import MAX_NAME_CHARACTERS, _name_measurements
from sts_dino.eval.compare.run import compare, compare_evaluations, make_labels
from sts_dino.eval.compare.seeds import (
    compare_variants,
    find_split,
    resample_seeds,
)
from sts_dino.eval.compare.tables import (
    escape_csv_cell,
    format_text,
    format_verdicts_csv,
    make_result_tables,
)
from sts_dino.eval.runs.records import read_evaluation
from sts_dino.eval.scoring.paired import Measurement
from sts_dino.eval.tasks.registry import DEFINITIONS
from sts_dino.hub.contract.measured import VariantPlan
from sts_dino.hub.errors import InputError
from sts_dino.hub.plot_style import shorten_name

TASKS = ("sts12/all", "stsb/cosine", "mr/senteval", "sts12/mean")
EVIL = '_a|b<script>x</script>\\end{tabular}$&%#^~`=[l](http://e.vil)"\n\u202e"'


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> list[Path]:
    """Three models: the second better on two tasks, the third with a hostile name, fewer tasks and
    an MTEB score.
    """
    folder = tmp_path_factory.mktemp("evaluations")
    first = evaluation(folder / "a", "org/first", {task: planted(task, 0.80) for task in TASKS})
    better = {task: planted(task, 0.90 if index % 2 else 0.801) for index, task in enumerate(TASKS)}
    second = evaluation(folder / "b", "org/second", better)
    of_mteb = {
        "task": "mteb/STS12",
        "protocol": "STS12 as MTEB defines it",
        "low": None,
        "high": None,
    }
    mteb = measured("stsb/cosine", planted("stsb/cosine", 0.7)).model_copy(update=of_mteb)
    third = evaluation(
        folder / "c", EVIL, {task: planted(task, 0.75) for task in TASKS[:2]}, more=(mteb,)
    )
    return [first, second, third]


@pytest.fixture(scope="module")
def written(places, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("comparison")
    compare(places, out)
    return out


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_every_file_is_written_and_whole(written):
    pairs = [f"differences-{number}.{kind}" for number in (1, 2, 3) for kind in ("png", "svg")]
    tables = ["comparison.md", "differences.csv", "scores.csv"]
    assert sorted(path.name for path in written.iterdir()) == sorted(
        [*tables, *pairs, "scores.png", "scores.svg"]
    )
    for path in written.glob("*.png"):
        height, width = matplotlib.image.imread(path).shape[:2]
        assert 600 < width < 720 and height > 200  # legible on a telephone, too
    found = ElementTree.parse(written / "differences-1.svg").iter(
        "{http://www.w3.org/2000/svg}text"
    )
    assert {"worse", "not significant", *TASKS} <= {
        text for element in found for text in element.itertext()
    }


def test_the_same_evaluations_give_the_same_bytes_with_scores_in_full_precision(
    written, places, tmp_path
):
    compare(places, tmp_path)
    for path in written.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    shown = {
        row["task"]: row for row in read(written / "scores.csv") if row["model"] == "org/first"
    }
    for score in read_evaluation(places[0]).results.scores:
        row = shown[score.task]
        assert (float(row["score"]), float(row["low"])) == (score.main_score, score.low)
        assert (row["protocol"], row["data"]) == (score.protocol, score.data_sha256)


def test_planted_differences_are_found_and_planted_ties_are_not(written):
    reported = {
        (row["model"], row["against"], row["task"]): row
        for row in read(written / "differences.csv")
    }
    verdicts = {task: reported["org/first", "org/second", task]["verdict"] for task in TASKS}
    assert verdicts == dict.fromkeys(TASKS, "not significant") | dict.fromkeys(
        ("stsb/cosine", "sts12/mean"), "worse"
    )
    tests = {task: reported["org/first", "org/second", task]["test"] for task in TASKS}
    assert tests == dict.fromkeys(TASKS, "bootstrap z") | {"mr/senteval": "McNemar's exact test"}
    assert all(float(row["p_holm"]) >= float(row["p"]) for row in reported.values())


@dataclass
class NamedEvaluation:
    """What a label is made of: the model's name and revision."""

    model: str
    revision: str = "0123456789abcdef"

    @property
    def results(self):
        return self


def test_each_evaluation_has_a_label_of_its_own():
    names = ["a (2)", "a", "b", "b", "b@01234567"]
    labels = make_labels([NamedEvaluation(name) for name in names])
    assert labels == ["a (2)", "a", "b@01234567", "b@01234567 (2)", "b@01234567 (3)"]


def test_a_limit_another_split_or_other_data_is_another_row(places, tmp_path):
    part = SETTINGS.model_copy(update={"limit": 100})
    rows = {
        "sts12/all": planted("sts12/all", 0.8),
        "stsb/cosine": planted("stsb/cosine", 0.8, rows=100),
    }
    limited = evaluation(tmp_path / "limited", "org/limited", rows, part)
    whole = evaluation(
        tmp_path / "other", "org/other", {"sts12/all": planted("sts12/all", 0.8, rows=300)}
    )
    validation = read_evaluation(places[0])
    found = compare_evaluations(
        [validation, read_evaluation(places[1]), read_evaluation(limited), read_evaluation(whole)]
    )
    lines = [line for line in found.rows if line.measurement.task == "sts12/all"]
    assert [sorted(line.scores) for line in lines] == [
        ["org/first", "org/second"],
        ["org/limited"],
        ["org/other"],
    ]
    assert {(one.first, one.second) for one in found.verdicts} == {("org/first", "org/second")}
    reported = " ".join(found.describe_mismatches())
    assert "ONLY 100 rows" in reported and "n: 400 and 300" in reported


def test_two_trials_on_the_same_rows_compare_and_say_so_everywhere(tmp_path):
    """Limited models share measurements, and nothing may look like a score of the task."""
    part = SETTINGS.model_copy(update={"limit": 100})
    rows = {
        quality: {"stsb/cosine": planted("stsb/cosine", quality, rows=100)}
        for quality in (0.7, 0.9)
    }
    places = [
        evaluation(tmp_path / str(quality), f"org/{quality}", one, part)
        for quality, one in rows.items()
    ]
    compare(places, tmp_path / "out")
    reported = "ONLY 100 rows of each split, drawn with seed 42"
    # scores, differences
    assert (tmp_path / "out" / "comparison.md").read_text().count(f"{reported}, a trial") == 2
    for name in ("scores.csv", "differences.csv"):
        assert {row["limit"] for row in read(tmp_path / "out" / name)} == {reported}
    for name in ("scores.svg", "differences-1.svg"):
        assert "stsb/cosine (100 rows drawn)" in (tmp_path / "out" / name).read_text()


def test_nothing_in_common_is_an_error_that_names_both_protocols(places, tmp_path):
    other = evaluation(tmp_path / "x", "org/other", {"sts12/wmean": planted("sts12/wmean", 0.8)})
    found = (
        r"org/first has sts12/all test.*one correlation over.*"
        r"org/other has sts12/wmean.*mean weighted"
    )
    with pytest.raises(InputError, match=found) as raised:
        compare([places[0], other], tmp_path / "out")
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()


def test_scores_without_rows_are_not_tested_and_say_so(places, tmp_path):
    mteb = [
        score for score in read_evaluation(places[2]).results.scores if score.task == "mteb/STS12"
    ]
    other = evaluation(tmp_path / "d", "org/d", {}, more=tuple(mteb))
    found = compare_evaluations([read_evaluation(places[2]), read_evaluation(other)])
    assert [(one.measurement.task, one.difference.tested) for one in found.verdicts] == [
        ("mteb/STS12", None)
    ]
    shown = "\n".join(format_text(sheet) for sheet in make_result_tables(found))
    assert "not tested: the scored rows of one were not kept" in shown
    header = format_verdicts_csv(found)
    assert pd.read_csv(StringIO(header)).columns[-2:].tolist() == ["verdict", "limit"], header


def test_an_average_of_validation_tasks_leaves_out_a_model_with_other_rows(tmp_path):
    name = "validation-senteval"
    tasks = next(definition.tasks for definition in DEFINITIONS if definition.name == name)
    rows = {task: planted(task, 0.8, rows=200) for task in tasks}
    other_rows = rows | {"sst2/senteval-validation": planted(tasks[0], 0.8, rows=100)}
    first = evaluation(tmp_path / "a", "org/first", rows)
    second = evaluation(tmp_path / "b", "org/second", other_rows)
    found = compare_evaluations([read_evaluation(first), read_evaluation(second)])
    averages = {row.average.name: sorted(row.scores) for row in found.averages}
    assert averages[name] == ["org/first"]


def test_a_note_on_seeds_stands_only_at_pairs_with_several_seeds(tmp_path):
    rows = planted("stsb/cosine", 0.8)
    seeds = {"task": "mteb/STS12", "seeds": (1, 2)}
    of_seeds = measured("stsb/cosine", rows).model_copy(update=seeds)
    folders = [
        evaluation(tmp_path / name, f"org/{name}", {"stsb/cosine": rows}, more=more)
        for name, more in (("a", ()), ("b", (of_seeds,)), ("c", (of_seeds,)))
    ]
    found = compare_evaluations([read_evaluation(folder) for folder in folders])
    notes = {table.title: " ".join(table.notes) for table in make_result_tables(found)}
    with_note = [title for title, note in notes.items() if "a mean over several seeds" in note]
    assert with_note == ["Differences: org/b minus org/c"]


def test_markdown_renders_the_hostile_name_as_text(written):
    source = (written / "comparison.md").read_text(encoding="utf-8")
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(source)
    assert "<script>" not in page and 'e.vil"' not in page and "<a " not in page
    assert "_a|b&lt;script&gt;x&lt;/script&gt;\\end{tabular}$" in page
    assert page.count("<table>") == source.count("\n| --- |")
    widths = {
        row.count("<td") for row in re.findall(r"<tr>(.*?)</tr>", page.split("<h2>")[1], re.S)[1:]
    }
    assert widths == {7}  # task, split, metric, rows and three models


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "a=1"])
def test_csv_cells_are_no_formulas(name):
    assert escape_csv_cell(name) == ("a=1" if name == "a=1" else f"'{name.strip()}")


SEED_TASKS = ("sts12/all", "stsb-tokenised/cosine")


def folders(tmp_path, name, qualities, rows=300):
    """Evaluations of one variant by seed: the better, the higher the quality that is planted."""
    return tuple(
        str(
            evaluation(
                tmp_path / f"{name}-{n}",
                name,
                {task: planted(task, quality, rows) for task in SEED_TASKS},
            )
        )
        for n, quality in enumerate(qualities)
    )


def plan(variants, **changes):
    given = {
        "tasks": SEED_TASKS,
        "split": "test",
        "samples": 400,
        "variants": variants,
        "control": "copies",
    } | changes
    return VariantPlan.model_validate(given)


def test_a_better_arm_is_better_by_a_paired_interval_and_a_like_one_is_not(tmp_path):
    variants = {
        "untrained": folders(tmp_path, "untrained", [0.3]),
        "copies": folders(tmp_path, "copies", [0.60, 0.61, 0.62]),
        "dataset": folders(tmp_path, "dataset", [0.70, 0.71, 0.72]),
        "shuffled": folders(tmp_path, "shuffled", [0.62, 0.60, 0.61]),
    }
    found = compare_variants(plan(variants)).variants
    better, like, own = found["dataset"], found["shuffled"], found["copies"]
    assert better.over_simcse.low > 0
    assert like.over_simcse.low < 0 < like.over_simcse.high
    assert own.over_simcse is None
    assert better.over_simcse.score == pytest.approx(better.average.score - own.average.score)
    assert better.average.score == pytest.approx(np.mean(list(better.tasks.values())))
    assert better.average.low < better.average.score < better.average.high
    width = better.over_simcse.high - better.over_simcse.low  # what both variants share cancels
    assert width < better.average.high - better.average.low
    assert compare_variants(plan(variants)) == compare_variants(plan(variants))


def test_the_spread_over_seeds_is_that_of_a_mean():
    """Scores that no row moves: the deviation is the sample deviation over the root of the number
    of seeds.
    """
    values, samples = np.array([70.0, 71.0, 75.0]), 20_000
    drawn = resample_seeds(np.repeat(values[:, None], samples, axis=1), 1)
    assert drawn.std() == pytest.approx(values.std(ddof=1) / np.sqrt(3), rel=0.02)
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.05)
    assert (resample_seeds(values[None, :1] * np.ones((1, 5)), 1) == 70).all()


def test_other_rows_and_missing_tasks_are_refused(tmp_path):
    copies = folders(tmp_path, "copies", [0.6])
    with pytest.raises(
        InputError, match="scored on different rows; score all variants on the same data"
    ):
        compare_variants(
            plan({"copies": copies, "dataset": folders(tmp_path, "short", [0.6], rows=200)})
        )
    with pytest.raises(InputError, match="holds no scored rows of sts13/all"):
        compare_variants(plan({"copies": copies}, tasks=("sts13/all",)))


def test_a_task_that_cuts_its_own_folds_is_read_under_its_own_split():
    assert (
        find_split("mr/senteval", "test") == "all"
        and find_split("trec/lbfgs-validation", "test") == "train"
    )
    assert (
        find_split("stsb/cosine", "validation") == "validation"
        and find_split("sst2/lbfgs", "test") == "test"
    )


def test_a_long_name_with_an_underscore_keeps_the_limit():
    assert shorten_name("_short", 12) == " _short"
    assert [len(shorten_name(f"_{'a' * 30}", limit)) for limit in (12, 13)] == [12, 12]


def test_long_names_of_measurements_keep_the_number_of_rows():
    facts = {"split": "test", "metric": "spearman", "protocol": "p", "data": "d"}
    tasks = [Measurement(task="pairs-of-" + "a" * 80, n=n, **facts) for n in (40, 41)]
    names = _name_measurements(tasks)
    assert [name[-10:] for name in names] == [" (40 rows)", " (41 rows)"]
    assert all(len(name) <= MAX_NAME_CHARACTERS for name in names)

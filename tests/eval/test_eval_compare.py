"""eval.compare.run: finished evaluations side by side, like beside like, in files that untrusted names cannot break."""

import csv
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from planted_evaluations import SETTINGS, evaluation, measured, planted

from eval.compare.model import compared, labels
from eval.compare.run import compare, folder_name
from eval.compare.tables import csv_cell, latex, markdown, plotted, result_tables, short_names, text
from eval.runs.records import FinishedEvaluation, read_evaluation
from hub.errors import InputError

TASKS = ("sts12/all", "stsb/cosine", "mr/senteval", "sts12/mean")
EVIL = '_a|b<script>x</script>\\end{tabular}$&%#^~`=[l](http://e.vil)"\n\u202e"'


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> list[Path]:
    """Three models: the second better on two tasks, the third with a hostile name, fewer tasks and an MTEB score."""
    folder = tmp_path_factory.mktemp("evaluations")
    first = evaluation(folder / "a", "org/first", {task: planted(task, 0.80) for task in TASKS})
    better = {task: planted(task, 0.90 if index % 2 else 0.801) for index, task in enumerate(TASKS)}
    second = evaluation(folder / "b", "org/second", better)
    mteb = measured("stsb/cosine", planted("stsb/cosine", 0.7)).model_copy(
        update={"task": "mteb/STS12", "protocol": "STS12 as MTEB defines it", "low": None, "high": None}
    )
    third = evaluation(folder / "c", EVIL, {task: planted(task, 0.75) for task in TASKS[:2]}, more=(mteb,))
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
    tables = ["comparison.md", "comparison.tex", "differences.csv", "papers.csv", "scores.csv"]
    assert sorted(path.name for path in written.iterdir()) == sorted([*tables, *pairs, "scores.png", "scores.svg"])
    for path in written.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_scores_are_those_of_the_evaluations(written, places):
    rows = read(written / "scores.csv")
    for place, name in zip(places[:2], ("org/first", "org/second"), strict=True):
        told = {row["task"]: row for row in rows if row["model"] == name}
        for score in read_evaluation(place).results.scores:
            row = told[score.task]
            assert (float(row["score"]), float(row["low"]), float(row["high"])) == (
                score.main_score,
                score.low,
                score.high,
            )
            assert row["protocol"] == score.protocol and row["data"] == score.data_sha256


def test_planted_differences_are_found_and_planted_ties_are_not(written):
    told = {(row["model"], row["against"], row["task"]): row for row in read(written / "differences.csv")}
    assert {task: told["org/first", "org/second", task]["verdict"] for task in TASKS} == {
        "sts12/all": "not separable",
        "stsb/cosine": "worse",
        "mr/senteval": "not separable",
        "sts12/mean": "worse",
    }
    tests = {task: told["org/first", "org/second", task]["test"] for task in TASKS}
    assert tests == {
        "sts12/all": "jackknife z",
        "stsb/cosine": "jackknife z",
        "mr/senteval": "McNemar's exact test",
        "sts12/mean": "jackknife z",
    }
    assert all(float(row["p_holm"]) >= float(row["p"]) for row in told.values())


def test_what_is_printed_has_scores_verdicts_and_the_rule(places, tmp_path, capsys):
    compare(places[:2], tmp_path)
    out, err = capsys.readouterr()
    assert "org/first minus org/second" in out and "not separable" in out and "Holm" in out
    assert re.search(r"stsb/cosine +test +worse +-\d", out)
    assert str(tmp_path) in err


def test_a_limit_another_split_or_other_data_is_another_row(places, tmp_path):
    part = SETTINGS.model_copy(update={"limit": 100})
    rows = {"sts12/all": planted("sts12/all", 0.8), "stsb/cosine": planted("stsb/cosine", 0.8, rows=100)}
    limited = evaluation(tmp_path / "limited", "org/limited", rows, part)
    whole = evaluation(tmp_path / "other", "org/other", {"sts12/all": planted("sts12/all", 0.8, rows=300)})
    validation = read_evaluation(places[0])
    found = compared([validation, read_evaluation(places[1]), read_evaluation(limited), read_evaluation(whole)])
    lines = [line for line in found.lines if line.measurement.task == "sts12/all"]
    assert [sorted(line.scores) for line in lines] == [["org/first", "org/second"], ["org/limited"], ["org/other"]]
    assert {(one.first, one.second) for one in found.verdicts} == {("org/first", "org/second")}
    told = " ".join(found.unlike())
    assert "ONLY 100 rows" in told and "n: 400 and 300" in told
    assert all("org/limited" not in one.ours for one in found.beside)  # nor beside a paper


def test_two_trials_on_the_same_rows_compare_and_say_so_everywhere(tmp_path):
    """Models that were both limited share measurements: nothing may look like a score of the task."""
    part = SETTINGS.model_copy(update={"limit": 100})
    rows = {quality: {"stsb/cosine": planted("stsb/cosine", quality, rows=100)} for quality in (0.7, 0.9)}
    places = [evaluation(tmp_path / str(quality), f"org/{quality}", one, part) for quality, one in rows.items()]
    compare(places, tmp_path / "out")
    told = "ONLY 100 rows of each split, drawn with seed 42"
    for name in ("comparison.md", "comparison.tex"):
        assert (tmp_path / "out" / name).read_text().count(f"{told}, a trial") == 2  # scores, differences
    for name in ("scores.csv", "differences.csv"):
        assert {row["limit"] for row in read(tmp_path / "out" / name)} == {told}
    for name in ("scores.svg", "differences-1.svg"):
        assert "stsb/cosine (100 rows drawn)" in (tmp_path / "out" / name).read_text()
    assert "100 drawn" in text(result_tables(compared([read_evaluation(place) for place in places]))[0])
    again = evaluation(tmp_path / "seed", "org/seed", rows[0.7], part.model_copy(update={"seed": 7}))
    with pytest.raises(InputError, match=r"seed 42. and .*seed 7"):
        compare([places[0], again], tmp_path / "none")


def test_other_versions_of_libraries_are_told(places, tmp_path):
    other = read_evaluation(places[1])
    results = other.results.model_copy(update={"versions": {"python": "3.12"}})
    found = compared([read_evaluation(places[0]), FinishedEvaluation(results, other.records)])
    assert found.versions == ("python: 3.11 (org/first), 3.12 (org/second)",)
    assert "not made with the same libraries: python: 3.11" in text(result_tables(found)[0])


def test_an_average_over_part_of_the_data_stands_beside_no_paper(tmp_path):
    years = [f"sts{year}/mean" for year in range(12, 17)]
    rows = {task: planted(task, 0.8, rows=60) for task in years}
    for name, settings in (("whole", SETTINGS), ("part", SETTINGS.model_copy(update={"limit": 60}))):
        places = [evaluation(tmp_path / f"{name}{index}", f"org/{index}", rows, settings) for index in (1, 2)]
        found = compared([read_evaluation(place) for place in places])
        assert [line.name for line in found.averages] == ["dino-sts12-16-mean"]
        columns = {column.name for one in found.beside if one.paper.key == "dino" for column in one.columns}
        assert columns == ({"STS12", "STS13", "STS14", "STS15", "STS16", "Avg."} if name == "whole" else set())


@pytest.mark.parametrize("kind", ["limit", "task"])
def test_nothing_in_common_is_an_error_that_names_both_protocols(places, tmp_path, kind):
    if kind == "limit":
        part = SETTINGS.model_copy(update={"limit": 100})
        other = evaluation(tmp_path / "x", "org/limited", {"sts12/all": planted("sts12/all", 0.8, rows=100)}, part)
        told = ["sts12/all test: protocol: .STS12", "fitted on top. and .STS12", "ONLY 100 rows of each split"]
    else:
        other = evaluation(tmp_path / "x", "org/other", {"sts12/wmean": planted("sts12/wmean", 0.8)})
        told = ["org/first has sts12/all test", "one correlation over", "org/other has sts12/wmean", "mean weighted"]
    with pytest.raises(InputError) as raised:
        compare([places[0], other], tmp_path / "out")
    assert all(re.search(part, str(raised.value)) for part in told), raised.value
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()


def test_papers_stand_beside_the_same_protocol_alone(written):
    rows = read(written / "papers.csv")
    columns = {row["column"] for row in rows}
    assert columns == {
        "Schick and Schütze 2021, section 4, table 1: STS12",
        "Schick and Schütze 2021, section 4, table 1: STSb",
        "Schick and Schütze 2021, section 4, table 2: STSb",
        "Schick and Schütze 2021, appendix C, table 5: STS12",
        "Sato et al. 2024, section 4.2, table 2: STS12",
        "Sato et al. 2024, appendix C, table 5: MR",
        "Giorgi et al. 2021, section 5.1, table 2: MR",
        "Giorgi et al. 2021, section 5.1, table 2: STS12",
    }
    told = {(row["row"], row["column"].split(", ", 1)[1]): row["value"] for row in rows}
    assert told["DINO (STS-x2)", "section 4, table 1: STS12"] == "70.27"
    assert told["DeCLUTR-base", "section 5.1, table 2: STS12"] == "63.56"
    assert {row["task"] for row in rows if row["row"] == "DeCLUTR-base"} == {"sts12/mean", "mr/senteval"}


def test_scores_without_rows_are_not_tested_and_say_so(places, tmp_path):
    mteb = [score for score in read_evaluation(places[2]).results.scores if score.task == "mteb/STS12"]
    other = evaluation(tmp_path / "d", "org/d", {}, more=tuple(mteb))
    found = compared([read_evaluation(places[2]), read_evaluation(other)])
    assert [(one.measurement.task, one.why) for one in found.untested] == [
        ("mteb/STS12", "the scored rows of one were not kept")
    ]
    assert found.verdicts == ()
    assert "not tested" in "\n".join(text(sheet) for sheet in result_tables(found))


def test_means_over_seeds_say_on_which_rows_they_are_tested(places):
    first, second = (read_evaluation(place) for place in places[:2])
    assert "first seed" not in "\n".join(text(sheet) for sheet in result_tables(compared([first, second])))
    scores = tuple(score.model_copy(update={"seeds": (1111, 1112)}) for score in first.results.scores)
    several = FinishedEvaluation(first.results.model_copy(update={"scores": scores}), first.records)
    assert "first seed" in "\n".join(text(sheet) for sheet in result_tables(compared([several, second])))


def test_markdown_renders_the_hostile_name_as_text(written):
    source = (written / "comparison.md").read_text(encoding="utf-8")
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(source)
    assert "<script>" not in page and 'e.vil"' not in page and "<a " not in page
    assert "_a|b&lt;script&gt;x&lt;/script&gt;\\end{tabular}$" in page
    assert page.count("<table>") == source.count("\n| --- |")
    widths = {row.count("<td") for row in re.findall(r"<tr>(.*?)</tr>", page.split("<h2>")[1], re.S)[1:]}
    assert widths == {7}  # task, split, metric, rows and three models


def test_latex_has_no_live_character_of_the_hostile_name(written):
    source = (written / "comparison.tex").read_text(encoding="utf-8")
    assert r"\end{tabular}$" not in source and r"\textbackslash{}end\{tabular\}\$\&\%\#" in source
    assert source.count(r"\begin{tabular}") == source.count(r"\end{tabular}") == source.count(r"\toprule")
    body = source.split(r"\toprule")[1].split(r"\bottomrule")[0]
    cells = {len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line.endswith(r"\\")}
    assert cells == {6}
    unbalanced = re.sub(r"\\[\\{}]", "", source)
    assert unbalanced.count("{") == unbalanced.count("}")


def test_csv_cells_are_no_formulas():
    assert [csv_cell(name) for name in ("=1+1", "+1", "-1", "@x", " =1", "\t=1", "a=1")] == [
        *("'=1+1", "'+1", "'-1", "'@x", "'=1", "'=1", "a=1"),
    ]


def test_escapes_show_hidden_characters_and_keep_plain_names():
    assert markdown("a\u202eb\x00") == "a\ufffdb\ufffd"
    assert markdown("sts12/all") == "sts12/all" and latex("λ = 0") == r"$\lambda$ = 0"
    assert plotted("_x") == " _x" and len(plotted("a" * 100)) == 40


def test_labels_are_distinct():
    class One:
        def __init__(self, model: str, revision: str):
            self.results = type("R", (), {"model": model, "revision": revision})

    found = labels([One("a", "1" * 40), One("a", "2" * 40), One("a", "2" * 40), One("b", "3")])
    assert found == ["a@11111111", "a@22222222", "a@22222222 (2)", "b"]
    assert labels([One("a\n\x1b[31m", "1")]) == ["a \ufffd[31m"]


@pytest.mark.parametrize("count", [0, 1])
def test_one_evaluation_is_no_comparison(places, count):
    with pytest.raises(InputError, match="two evaluations or more"):
        compare(places[:count])


def test_the_same_evaluation_twice_is_refused(places):
    with pytest.raises(InputError, match="given twice"):
        compare([places[0], places[1], places[0]])


def test_rows_of_another_score_are_refused(places, tmp_path):
    """Stale rows would give a verdict on numbers that are not those shown."""
    place = evaluation(tmp_path / "e", "org/e", {"stsb/cosine": planted("stsb/cosine", 0.8)})
    results = place / "results.json"
    results.write_text(results.read_text().replace('"revision": "rrrr', '"revision": "ssss'))
    with pytest.raises(InputError, match="not those of results"):
        compare([places[0], place], tmp_path / "out")


def test_a_default_folder_is_safe_and_distinct():
    assert re.fullmatch(r"a-b--model-[0-9a-f]{8}", folder_name(["../a/b", "///"]))
    assert len(folder_name(["x" * 300, "y" * 300])) < 100
    assert folder_name(["a/b", "c"]) != folder_name(["a-b", "c"])


def test_columns_have_short_names_unless_two_would_be_alike():
    models = ["org/a@" + "0" * 40, "b", "x/c", "y/c", "org/d@v1.0.0"]
    assert list(short_names(models).values()) == ["a@0000000", "b", "x/c", "y/c", "d@v1.0.0"]

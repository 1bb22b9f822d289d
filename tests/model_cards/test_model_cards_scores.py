"""The scores on a model's card: families apart, intervals or none, averages, parts, protocols, all of it escaped."""

from pathlib import Path
from typing import Any

import pytest
from test_model_cards_model_papers import of_paper
from test_model_cards_numbers import table_with, tables
from test_model_cards_runs import card_of, model_run, score

from eval.tasks.registry import TASKS
from eval.tasks.task import Task
from hub.contract.measured import REPEATS, RepeatScore, Run, repeats_of, write_repeats
from hub.contract.results import RULE, Average, Gain, Limit, Part, TaskScore, read_results, write_results
from hub.errors import InputError
from model_cards.model.families import EARLIER_PROBING, OTHER, families, title


def scored(task: Task, split: str | None = None, **changes: Any) -> TaskScore:
    """A score of a task as the evaluation declares it."""
    facts = {
        "task": task.name,
        "protocol": task.protocol,
        "main_metric": task.metric,
        "unit": task.unit,
        "family": task.family,
    }
    return score(split or task.default_split).model_copy(update=facts | changes)


def scored_run(directory: Path, scores: list[TaskScore], run: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A finished model with these results."""
    model_run(directory, (score(),), **(run or {}))
    results = read_results(directory / "results.json")
    write_results(directory / "results.json", results.model_copy(update={"scores": tuple(scores), **changes}))
    return directory


def test_every_task_of_the_evaluation_has_a_family() -> None:
    scores = [scored(task) for task in TASKS.values()]
    assert not [one.task for one in scores if title(one.task, one.main_metric, one.family).startswith(OTHER)]
    for name, family in families(scores).items():
        alike = {
            (TASKS[one.task].metric, TASKS[one.task].aggregation, TASKS[one.task].mode, TASKS[one.task].family)
            for one in family
        }
        assert len(alike) == 1, name
    assert sum(map(len, families(scores).values())) == len(TASKS)


def test_results_without_a_family_are_filed_as_those_that_tell_it() -> None:
    assert set(EARLIER_PROBING) <= {task.dataset for task in TASKS.values() if task.family == "probing"}
    for task in TASKS.values():
        assert title(task.name, "accuracy") == title(task.name, "accuracy", task.family)
    assert title("new/senteval", "accuracy", "probing") == title("wc/senteval", "accuracy")


def test_unlike_numbers_are_in_tables_of_their_own(tmp_path: Path) -> None:
    names = ["sts12/mean", "sts12/all", "mr/lbfgs", "mr/senteval", "stsb/cosine", "wc/senteval", "stsb/regression"]
    card = card_of(scored_run(tmp_path / "run", [scored(TASKS[name]) for name in names]))
    found = [[row[0] for row in rows[1:]] for rows in tables(card) if rows[0][:2] == ["task", "split"]]
    assert found == [
        ["sts12/all", "stsb/cosine"],
        ["sts12/mean"],
        ["stsb/regression"],
        ["mr/senteval"],
        ["mr/lbfgs"],
        ["wc/senteval"],
    ]
    assert "those of two tables do not compare" in card
    assert "those of two tables" not in card_of(model_run(tmp_path / "one", (score(),)))


def test_rows_are_counted_in_their_unit(tmp_path: Path) -> None:
    scores = [scored(TASKS["mr/senteval"], n=10_662), scored(TASKS["mrpc/senteval"], n=1725)]
    directory = scored_run(tmp_path / "run", scores)
    assert [row[2] for row in table_with(card_of(directory), "task", "split", "rows")] == [
        "10,662 sentences",
        "1,725 pairs",
    ]
    one = scored_run(tmp_path / "one", scores[:1])
    assert [row[2] for row in table_with(card_of(one), "task", "split", "sentences")] == ["10,662"]


def test_a_score_without_an_interval_says_so_and_is_never_called_unmeasured(tmp_path: Path) -> None:
    facts = {
        "task": "mteb/STS17",
        "low": None,
        "high": None,
        "data_sha256": None,
        "data_revision": f"mteb/x@{'a' * 40}",
    }
    after = score().model_copy(update=facts)
    before = after.model_copy(update={"main_score": 60.123})
    card = card_of(scored_run(tmp_path / "run", [after], base_scores=(before,)))
    (row,) = table_with(card, "task", "split")
    assert row[3:] == ["60.12 (no interval)", "70.12 (no interval)", "+10.00 (no interval)"]
    assert f"Data: `mteb/x@{'a' * 40}`." in card and '"No interval": the program' in card
    alone = card_of(scored_run(tmp_path / "alone", [after], base_scores=()))
    assert table_with(alone, "task", "split")[0][3::2] == ["not run", "not run"]
    gain = Gain(task="mteb/STS17", split="test", difference=10.0, low=9.0, high=11.0)
    paired = card_of(scored_run(tmp_path / "paired", [after], base_scores=(before,), gains=(gain,)))
    assert table_with(paired, "task", "split")[0][-1] == "+10.00 (+9.00 to +11.00)"
    assert "not separable" not in paired  # results from before there were verdicts


def test_a_gain_has_the_verdict_of_a_comparison_with_its_rule(tmp_path: Path) -> None:
    """One task of many may exclude 0 by chance: the interval alone would be read as a gain."""
    facts = {"test": "jackknife z", "p": 0.04, "p_holm": 0.2, "verdict": "not separable"}
    gain = Gain(task="stsb/cosine", split="test", difference=1.0, low=0.1, high=1.9, **facts)
    card = card_of(scored_run(tmp_path / "run", [score()], base_scores=(score(),), gains=(gain,)))
    assert table_with(card, "task", "split")[0][-1] == "+1.00 (+0.10 to +1.90), not separable"
    assert f"A gain is {RULE}." in " ".join(card.split())


@pytest.mark.parametrize(("method", "words"), [("percentile", "percentile bootstrap"), ("bca", "accelerated (BCa)")])
def test_the_kind_of_interval_is_told(tmp_path: Path, method: str, words: str) -> None:
    assert words in card_of(scored_run(tmp_path / "run", [score()], interval=method))


def test_a_trial_is_no_card(tmp_path: Path) -> None:
    part = Limit(rows=50, seed=42)
    directory = scored_run(tmp_path / "run", [score().model_copy(update={"limit": part})])
    with pytest.raises(InputError, match=r"results\.json: is a trial: ONLY 50 rows of each split, drawn with seed 42"):
        card_of(directory)


def test_scores_that_were_made_with_other_libraries_say_so(tmp_path: Path) -> None:
    after = score().model_copy(update={"versions": {"numpy": "2.4.5"}})
    card = card_of(scored_run(tmp_path / "run", [after], versions={"numpy": "2.4.6"}))
    assert "than the last one (numpy 2.4.6):\n\n- `stsb/cosine test`: numpy 2.4.5" in card
    assert "than the last one" not in card_of(scored_run(tmp_path / "same", [score()]))


def test_averages_stand_under_their_names_beside_the_papers(tmp_path: Path) -> None:
    years = tuple(f"sts{year}/mean" for year in range(12, 17))
    average = Average(name="dino-sts12-16-mean", definition="mean over *STS12-16*", score=71.0, tasks=years)
    directory = scored_run(tmp_path / "run", [scored(TASKS[year]) for year in years], of_paper(), averages=(average,))
    card = card_of(directory)
    assert table_with(card, "average") == [["dino-sts12-16-mean", "5", "71.00", "72.50", "mean over *STS12-16*"]]
    assert "mean over &#42;STS12-16&#42;" in card
    assert [row[-1] for row in table_with(card, "task", "split")] == ["65.30", "71.80", "72.70", "75.90", "76.90"]
    assert 'appendix C, table 5, row "DINO (STS-x2)"' in card and "table 1," not in card  # nothing of table 1 is shown


def test_parts_are_told_once_a_data_set(tmp_path: Path) -> None:
    parts = {"MSRpar": Part(score=50.0, n=750), "a|b<c>": Part(score=60.5, n=10)}
    scores = [scored(TASKS[f"sts12/{name}"], parts=parts) for name in ("all", "mean", "wmean")]
    card = card_of(scored_run(tmp_path / "run", scores))
    assert table_with(card, "data set", "split", "part") == [
        ["sts12", "test", "MSRpar", "750", "50.00"],
        ["sts12", "test", "a|b<c>", "10", "60.50"],
    ]
    assert "<c>" not in card and "<summary>Scores of the parts" in card


def test_many_protocols_are_folded_away_and_seeds_are_told(tmp_path: Path) -> None:
    probes = [scored(TASKS[f"{name}/senteval"], seeds=(1111, 1112)) for name in ("mr", "cr", "subj", "mpqa")]
    few = card_of(scored_run(tmp_path / "few", probes))
    assert "Seeds of the head: 1111, 1112, whose mean is shown." in few and "<details>" not in few
    more = card_of(scored_run(tmp_path / "more", [*probes, *(scored(TASKS[f"sts{y}/all"]) for y in range(12, 17))]))
    assert "<summary>What each task is</summary>\n\n- `sts" in more.replace("- `mr", "- `sts")
    assert more.count("<details>") == more.count("</details>") == 1


def test_the_spread_over_trainings_keeps_unlike_numbers_apart(tmp_path: Path) -> None:
    directory = scored_run(tmp_path / "run", [scored(TASKS["sts12/all"]), scored(TASKS["sts12/mean"])])
    scores = tuple(RepeatScore(task=f"sts12/{name}", split="test", main_score=50.0) for name in ("mean", "all"))
    runs = [Run(value=seed, fingerprint="f" * 64, version="0.3.0", scores=scores) for seed in (1, 2)]
    write_repeats(directory / REPEATS, repeats_of("tiny-encoder", "seed", runs))
    found = [rows[1:] for rows in tables(card_of(directory)) if "trainings" in rows[0]]
    assert [[row[0] for row in rows] for rows in found] == [["sts12/all"], ["sts12/mean"]]


def test_a_stranger_s_words_do_nothing_in_a_card(tmp_path: Path) -> None:
    wild = score().model_copy(
        update={"task": "mteb/`<img src=x>", "protocol": "</details><script>*x*|y", "main_metric": "[a](http://x)"}
    )
    card = card_of(scored_run(tmp_path / "run", [wild]))
    assert not any(word in card.split("---\n", 2)[2] for word in ("<img", "<script", "</details>", "](http://x)"))

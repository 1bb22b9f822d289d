"""The model card: its numbers are those of results and manifest; adapters, documents, baselines,
several trainings.
"""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from card_runs import (
    card_of,
    dataset_run,
    edit,
    front,
    model_provenance,
    model_recipe,
    model_run,
    score,
    scored_run,
    table_with,
    tables,
)
from command_outcomes import outcome_of
from huggingface_hub import EvalResultEntry, HfApi, ModelCard, parse_eval_result_entries
from markdown_it import MarkdownIt
from test_cards_dataset import PNG
from tiny_bases import make_mlm
from training_inputs import write_recipe

from sts_dino.eval.tasks.registry import TASKS
from sts_dino.eval.tasks.task import Task
from sts_dino.hub.client.plan import Stamp, hash_facts, read_stamp
from sts_dino.hub.client.publish import check_run, publish_run
from sts_dino.hub.contract.licences import load_licences as licences
from sts_dino.hub.contract.measured import REPEATS, Repeats, RepeatScore, Run, write_json
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe, load_recipe
from sts_dino.hub.contract.results import (
    VERDICT_RULE,
    Average,
    Gain,
    Limit,
    Part,
    Results,
    TaskScore,
)
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, read_manifest
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError
from sts_dino.model_cards import render as card_command
from sts_dino.model_cards.facts import read_run
from sts_dino.model_cards.metadata import BENCHMARKS, build_model_index, make_eval_result_files
from sts_dino.model_cards.model_card import get_release_name
from sts_dino.model_cards.provenance import format_changes
from sts_dino.model_cards.render import render, write
from sts_dino.model_cards.scores import (
    OTHER,
    find_reproduced_row,
    group_by_title,
    load_paper_rows,
    make_title,
)
from sts_dino.training.loop.job import prepare
from sts_dino.training.loop.train import run_training

PROMPT = 'This sentence : "[X]" means in one word:"'
LLAMA = {"repo_id": "some/llama", "revision": "e" * 40, "pooling": "lasttoken", "prompt": PROMPT}
LLAMA |= {"dtype": "bfloat16", "license": "llama2"}
LORA = {"r": 64, "alpha": 16, "dropout": 0.05}
CACHED = {
    "loss": "CachedMultipleNegativesRankingLoss",
    "loss_arguments": {"scale": "20", "mini_batch_size": "16"},
}
TRIPLETS = {
    "repo_id": "org/nli",
    "revision": "v1.0.0",
    "config": "triplet-5shot",
    "example_set": 3,
    **CACHED,
}
TRIPLETS |= {"example_type": "triplet"}
STSB = {"repo_id": "mteb/stsbenchmark-sts", "revision": "b" * 40}
DOCUMENTS = {
    **{"repo_id": "org/web", "revision": "d" * 40, "config": "plain_text", "streaming": True},
    **{
        "example_type": "documents",
        "loss": "DeclutrLoss",
        "loss_arguments": {"temperature": "0.05"},
    },
    "spans": {"min_length": 16, "max_length": 64, "strategy": "subsumed", "min_document": 512},
}
SCORES = (score(), score("validation", 60.0, 1500))


def trained_on(spec: dict[str, Any], rows: int | None, license: str) -> dict[str, Any]:
    """The manifest's record of a dataset."""
    kept = {
        key: value
        for key, value in spec.items()
        if key not in ("loss_arguments", "spans", "streaming")
    }
    return {**kept, "commit": "c" * 40, "splits": {"train": rows}, "license": license}


def family_run(
    directory: Path, data: list[dict[str, Any]], training: dict[str, Any] | None, **changes: Any
) -> Path:
    """A finished run with these datasets in its manifest, and a small training with other facts
    (None: no training).
    """
    model_run(directory, SCORES, **changes)
    found = None if training is None else model_provenance()["training"] | training
    recipe = load_recipe(directory / RECIPE, ModelRecipe)
    digests = {
        "fingerprint": compute_fingerprint(recipe, {}),
        "recipe_sha256": hash_file(directory / RECIPE),
    }
    return edit(directory, provenance={"datasets": data, "training": found}, **digests)


def adapter_run(directory: Path, **changes: Any) -> Path:
    prompted = {
        "license": "llama2",
        "base": LLAMA,
        "lora": LORA,
        "datasets": [TRIPLETS],
        "validation": [STSB],
    }
    training = {"batch_size": 256, "processes": 4}
    return family_run(
        directory, [trained_on(TRIPLETS, 64_000, "mixed")], training, **{**prompted, **changes}
    )


def test_a_card_names_the_teacher_its_licence_and_what_it_read(tmp_path: Path) -> None:
    taught = {
        **{"path": "taught/pairs.parquet", "config": "default", "example_type": "sts"},
        **{"loss": "CorrelationLoss", "license": "cc-by-sa-4.0"},
        "teacher": {"repo_id": "some/teacher", "revision": "f" * 40, "license": "gemma"},
    }
    recorded = trained_on({key: taught[key] for key in taught if key != "teacher"}, 4_800, "mit")
    directory = family_run(tmp_path / "run", [recorded], {}, datasets=[taught], license="gemma")
    card = card_of(directory)
    assert "A larger encoder, `some/teacher`, was its teacher" in card
    assert "scores by the teacher `some/teacher`" in card
    assert "may hold human-labelled pairs" in card
    assert "- Teacher: some/teacher (" in card and "Gemma Terms of Use" in card
    assert "A sentence encoder trained without labels." in card and "language model" not in card


@pytest.mark.parametrize("config", ["default", "triplet", "triplet-5shot", "postprocessed"])
def test_a_card_says_that_texts_were_generated_only_of_a_generated_config(tmp_path, config):
    data = {**TRIPLETS, "config": config, "example_set": None}
    card = card_of(family_run(tmp_path / "run", [trained_on(data, 90, "mit")], {}, datasets=[data]))
    is_generated = config in ("triplet-5shot", "postprocessed")
    assert ("trained on generated, labelled texts" in card) == is_generated
    assert ("A language model generated and labelled" in card) == is_generated
    assert ("trained on labelled texts" in card) != is_generated


def scored(task: Task, split: str | None = None, **changes: Any) -> TaskScore:
    """A score of a task as the evaluation declares it."""
    facts = {
        "task": task.name,
        "protocol": task.protocol,
        "main_metric": task.metric,
        "unit": task.unit,
    }
    return score(split or task.default_split).model_copy(
        update=facts | {"family": task.family} | changes
    )


def test_front_matter_and_evaluation_entries_are_the_hubs(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", SCORES)
    files, card = render(directory), card_of(directory)
    data = front(card)
    assert (data["library_name"], data["pipeline_tag"]) == (
        "sentence-transformers",
        "sentence-similarity",
    )
    assert (data["base_model"], data["datasets"]) == ("some/base", ["sts-dino/tiny-sts"])
    assert ModelCard(card).data.to_dict() == data
    assert sorted(files) == [
        ".eval_results/stsb.yaml",
        "DETAILS.md",
        "README.md",
        "assets/training.png",
    ]
    write(directory, files)
    assert (
        files == render(model_run(tmp_path / "again", SCORES))
        and (directory / ".eval_results/stsb.yaml").is_file()
    )
    stamp = hash_facts(
        (directory / MANIFEST).read_bytes(), (directory / "results.json").read_bytes()
    )
    assert read_stamp(files["README.md"].decode()) == Stamp("sts-dino/tiny-encoder", stamp)
    (directory / "results.json").unlink()
    assert "has not been evaluated yet" in card_of(directory)


def test_every_number_of_a_model_card_is_in_its_results_and_manifest(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", SCORES)
    card, given = card_of(directory), model_provenance()["training"]
    before, after = "40.00 [39.00, 41.00]", "70.12 [69.12, 71.12]"
    assert table_with(card, "task", "split") == [
        ["stsb/cosine", "test", "1,379", before, after, "+30.12 [no interval]"],
        ["stsb/cosine", "validation", "1,500", "-", "60.00 [59.00, 61.00]", "-"],
    ]
    facts = {"steps": "40", "epochs": "1", "batch size": "32", "seed": "42", "selected step": "30"}
    chosen = "chosen by Spearman's correlation on validation: 0.75: 0.51, 1: 0.5"
    facts["weights"] = f"0.75 of the trained weights and 0.25 of those before training, {chosen}"
    assert facts.items() <= dict(table_with(card, "training")).items()
    shown = {int(step): loss for step, loss in table_with(card, "step", "loss")}
    curve = dict(map(tuple, given["loss_curve"]))
    assert shown == {step: f"{curve[step]:.4f}" for step in shown} and {0, 39} < set(shown)
    assert dict(table_with(card, "argument")) == {
        name: str(value) for name, value in given["arguments"].items()
    }
    (row,) = table_with(card, "dataset", "revision")
    assert row[1] == "v1.2.0 (cccccccccccc)" and row[-1] == "train 1,200, validation 3"


def test_directories_of_the_training_stage_get_a_card(tmp_path: Path) -> None:
    baseline = write_recipe(tmp_path, datasets=[], arguments={})
    run_training(prepare(baseline, tmp_path / "baseline", None, []), "sts-dino train recipe.yaml")
    assert list(render(tmp_path / "baseline")) == ["README.md"]
    # names the licence of the pairs
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe)
    write_text(
        tmp_path / "pairs" / RECIPE, format_recipe(recipe.model_copy(update={"license": "mit"}))
    )
    pairs = {"path": str(tmp_path / "pairs"), "config": "postprocessed"}
    simcse = {
        "example_type": "self-pair",
        "loss": "MultipleNegativesRankingLoss",
        "columns": ["sentence1"],
    }
    guide = {"path": str(make_mlm(tmp_path / "guide")), "license": "cc-by-nc-4.0"}
    graded = {"example_type": "graded-pair", "loss": "GISTEmbedLoss", "guide": guide}
    path = write_recipe(tmp_path, datasets=[pairs | simcse, pairs | graded], license="cc-by-nc-4.0")
    run_training(prepare(path, tmp_path / "tiny", None, []), "sts-dino train recipe.yaml")
    card, training = (
        card_of(tmp_path / "tiny"),
        read_manifest(tmp_path / "tiny").provenance["training"],
    )
    facts = dict(table_with(card, "training"))
    assert facts["selected step"] == str(training["best_step"]) and facts["batch size"] == "16"
    assert float(facts["Spearman's correlation at that step"]) == pytest.approx(
        training["validation_score"], abs=1e-3
    )
    assert "labelled texts and with unsupervised SimCSE" in card and "Guide of the loss" in card


def test_missing_facts_unfinished_models_and_results_of_others_or_part_of_the_data_are_refused(
    tmp_path: Path,
) -> None:
    for changes, message in (
        ({"command": None}, "provenance.command: "),
        ({"training": None}, "records no training"),
    ):
        with pytest.raises(InputError, match=message):
            render(edit(model_run(tmp_path / "lacking"), provenance=changes))
    with pytest.raises(InputError, match="another version of this model"):
        card_of(scored_run(tmp_path / "other", [score()], fingerprint="0" * 64))
    trial = score().model_copy(update={"limit": Limit(rows=50, seed=42)})
    with pytest.raises(
        InputError,
        match=r"results\.json: is a trial: ONLY 50 rows of each split, drawn with seed 42",
    ):
        card_of(scored_run(tmp_path / "trial", [trial]))
    with pytest.raises(InputError, match="not finished"):
        card_of(edit(model_run(tmp_path / "run"), complete=False))


def test_the_command_writes_and_plans(tmp_path: Path) -> None:
    directory = dataset_run(tmp_path / "run", "sts")
    assert outcome_of(card_command, directory, "--dry-run").printed.startswith("would write")
    assert not (directory / "README.md").exists()
    assert outcome_of(card_command, directory, "--repo-id", "org/other").code == 0
    assert 'load_dataset("org/other")' in (directory / "README.md").read_text(encoding="utf-8")
    for repo_id in ("name", "a/b/c", 'x"/y', "a/b-", "a/b.git"):
        error = outcome_of(card_command, directory, "--repo-id", repo_id).error
        assert "--repo-id" in error and "without - or . at its start and end" in error


def test_tasks_of_the_recipe_without_a_score_are_reported(tmp_path: Path) -> None:
    names = [
        ("stsb/cosine", "test"),
        ("stsb/cosine", "validation"),
        ("cr/senteval", "test"),
        ("sts", "test"),
    ]
    tasks = [{"task": task, "split": split} for task, split in names]
    folds = score("all").model_copy(update={"task": "cr/senteval"})
    scored_run = read_run(model_run(tmp_path / "run", (score(), folds), evaluation=tasks))
    assert scored_run.list_unscored_tasks() == ["stsb/cosine validation"]
    # the card says that nothing was scored
    assert read_run(model_run(tmp_path / "none", evaluation=tasks)).list_unscored_tasks() == []


def test_every_task_of_the_evaluation_has_a_family() -> None:
    scores = [scored(task) for task in TASKS.values()]
    assert not [
        one.task
        for one in scores
        if make_title(one.task, one.main_metric, one.family).startswith(OTHER)
    ]
    for name, family in group_by_title(scores).items():
        tasks = [TASKS[one.task] for one in family]
        assert (
            len({(task.metric, task.aggregation, task.mode, task.family) for task in tasks}) == 1
        ), name
    assert sum(map(len, group_by_title(scores).values())) == len(TASKS)


def test_scores_that_do_not_compare_are_in_tables_of_their_own(tmp_path: Path) -> None:
    names = [
        "sts12/mean",
        "sts12/all",
        "mr/lbfgs",
        "mr/senteval",
        "stsb/cosine",
        "wc/senteval",
        "stsb/regression",
    ]
    card = card_of(scored_run(tmp_path / "run", [scored(TASKS[name]) for name in names]))
    found = [
        [row[0] for row in rows[1:]] for rows in tables(card) if rows[0][:2] == ["task", "split"]
    ]
    families = [
        ["sts12/all", "stsb/cosine"],
        ["sts12/mean"],
        ["stsb/regression"],
        ["mr/senteval"],
        ["mr/lbfgs"],
    ]
    assert (
        found == [*families, ["wc/senteval"]] and "scores of two tables are not comparable" in card
    )


def test_a_score_without_an_interval_says_so(tmp_path: Path) -> None:
    facts = {"task": "mteb/STS17", "low": None, "high": None, "data_sha256": None}
    after = score().model_copy(update={**facts, "data_revision": f"mteb/x@{'a' * 40}"})
    before = after.model_copy(update={"main_score": 60.123})
    card = card_of(scored_run(tmp_path / "run", [after], base_scores=(before,)))
    (row,) = table_with(card, "task", "split")
    assert row[3:] == ["60.12 [no interval]", "70.12 [no interval]", "+10.00 [no interval]"]
    assert f"Data: `mteb/x@{'a' * 40}`." in card and '"No interval": the program' in card


def test_a_gain_has_its_interval_and_the_verdict_of_a_comparison_with_its_rule(
    tmp_path: Path,
) -> None:
    """One task of many may exclude 0 by chance: the interval alone would be read as a gain."""
    facts = {"test": "bootstrap z", "p": 0.04, "p_holm": 0.2, "verdict": "better"}
    gain = Gain(task="stsb/cosine", split="test", difference=1.0, low=0.1, high=1.9, **facts)
    sides = {"base_scores": (score(),), "control_scores": (score(),), "over_control": (gain,)}
    base = {"repo_id": "some/base", "revision": "0123abc", "license": "mit"}
    for modules, start in (
        ("transformer", "before training"),
        ("sentence-transformer", "as published"),
    ):
        run = {"base": base | {"modules": modules}}
        card = card_of(scored_run(tmp_path / modules, [score()], run, gains=(gain,), **sides))
        columns = (
            "task",
            "split",
            "pairs",
            start,
            "SimCSE baseline",
            "trained",
            "gain",
            "gain over SimCSE",
        )
        assert table_with(card, *columns)[0][3:] == 3 * ["70.12 [69.12, 71.12]"] + 2 * [
            "+1.00 [+0.10, +1.90] better"
        ]
        assert f"**Verdict: on `stsb/cosine test` better than the encoder {start}.**" in card
        assert "**Verdict: on `stsb/cosine test` better than the SimCSE baseline.**" in card
        worse = gain.model_copy(update={"verdict": "not significant"})
        card_without_gain = card_of(
            scored_run(tmp_path / f"{modules}-same", [score()], run, gains=(worse,), **sides)
        )
        sentence = f"on `stsb/cosine test` not significantly different from the encoder {start}. "
        sentence += f"No gain over the encoder {start} is shown"
        assert sentence in card_without_gain
        keeps = modules == "sentence-transformer"
        assert ("is shown: keep that one." in card_without_gain) == keeps
    assert f"A gain is {VERDICT_RULE}." in " ".join(card.split()) and "unsupervised SimCSE" in card
    earlier = gain.model_copy(update={"verdict": None})
    card = card_of(
        scored_run(tmp_path / "earlier", [score()], base_scores=(score(),), gains=(earlier,))
    )
    assert (
        table_with(card, "task", "split")[0][-1] == "+1.00 [+0.10, +1.90]"
        and "A gain is" not in card
    )


def test_a_verdict_on_own_pairs_names_the_pairs_that_it_would_need(tmp_path: Path) -> None:
    facts = {"task": "mine_1.csv/cosine", "protocol": "own pairs: cosine", "n": 40}
    own = score().model_copy(update=facts)
    seen = {"difference": 1.8, "low": -9.2, "high": 12.8}
    gain = Gain(task=own.task, split="test", verdict="not significant", **seen)
    public = gain.model_copy(update={"task": "stsb/cosine"})
    sides = {"gains": (gain, public), "base_scores": (own, score())}
    base = {"repo_id": "some/base", "revision": "0123abc", "license": "mit"}
    run = {"base": base | {"modules": "sentence-transformer", "prompt": "query: [X]"}}
    card = card_of(scored_run(tmp_path / "run", [own, score()], run, **sides))
    assert "`encode` adds the prompt below" in card and "PromptEOL" not in card
    assert "| prompt around a sentence | `query: [X]` |" in card
    (verdict,) = (line for line in card.splitlines() if line.startswith("**Verdict"))
    assert (
        unescape(verdict)
        .replace("\\", "")
        .endswith(
            "is shown: keep that one. mine_1.csv/cosine: a difference of +1.80 needs about 3,100 "
            "judged pairs to be significant (80 % power); there are 40.**"
        )
    )
    assert "--" not in verdict and verdict.count("power") == 1
    better = gain.model_copy(update={"verdict": "better"})
    card = card_of(scored_run(tmp_path / "better", [own], run, **sides | {"gains": (better,)}))
    assert "power" not in card


def test_a_card_says_what_the_encoder_gains_and_loses_elsewhere_over_the_download(
    tmp_path: Path,
) -> None:
    """Few tasks by name, of many the mean; without a user's own files, and only over a finished
    encoder.
    """
    transfer = [f"{name}/lbfgs" for name in ("mr", "cr", "trec")]
    scores = [
        score(),
        *(score().model_copy(update={"task": task, "family": "transfer"}) for task in transfer),
    ]
    scores.append(
        score().model_copy(update={"task": "mine.csv/cosine", "protocol": "own pairs: cosine"})
    )
    facts = {"split": "test", "low": -1.9, "high": -0.1}
    gains = [Gain(task=one.task, difference=-1.0, verdict="better", **facts) for one in scores]
    gains[2] = gains[2].model_copy(
        update={"verdict": "worse", "difference": -2.5, "low": -3.4, "high": -1.6}
    )
    sides = {
        "gains": tuple(gains),
        "base_scores": (scores[-1].model_copy(update={"main_score": 70.0}),),
    }
    start = {"base": {"repo_id": "some/base", "revision": "0123abc", "license": "mit"}}
    card = card_of(scored_run(tmp_path / "lm", scores, start, **sides))
    assert "Elsewhere" not in card
    start["base"]["modules"] = "sentence-transformer"
    card = card_of(scored_run(tmp_path / "encoder", scores, start, **sides))
    line = next(
        line
        for line in card.splitlines()
        if line.startswith("Elsewhere, over the encoder as published: ")
    )
    assert (
        "stsb/cosine test -1.00 [-1.90, -0.10] better; mean of 3 transfer tasks -1.50 [-2.02, -0.98], "
        in unescape(line)
    )
    assert "significantly worse on cr/lbfgs" in line and "mine" not in line


def test_other_libraries_parts_protocols_and_seeds_are_on_the_card(tmp_path: Path) -> None:
    after = score().model_copy(update={"versions": {"numpy": "2.4.5"}})
    card = card_of(scored_run(tmp_path / "run", [after], versions={"numpy": "2.4.6"}))
    assert "than the last one (numpy 2.4.6):\n\n- `stsb/cosine test`: numpy 2.4.5" in card
    parts = {"MSRpar": Part(score=50.0, n=750), "a|b<c>": Part(score=60.5, n=10)}
    scores = [scored(TASKS[f"sts12/{name}"], parts=parts) for name in ("all", "mean", "wmean")]
    card = card_of(scored_run(tmp_path / "parts", scores))
    assert table_with(card, "data set", "split", "part") == [
        ["sts12", "test", "MSRpar", "750", "50.00"],
        ["sts12", "test", "a|b<c>", "10", "60.50"],
    ]
    assert "<c>" not in card and "<summary>Scores of the parts" in card
    more = card_of(
        scored_run(tmp_path / "more", [scored(TASKS["mr/senteval"], seeds=(1111, 1112))])
    )
    assert "Seeds of the head: 1111, 1112; the score is their mean." in more


def test_untrusted_words_do_nothing_in_a_card(tmp_path: Path) -> None:
    update = {
        "task": "mteb/`<img src=x>",
        "protocol": "</details><script>*x*|y",
        "main_metric": "[a](http://x)",
    }
    card = card_of(scored_run(tmp_path / "run", [score().model_copy(update=update)]))
    assert not any(
        word in card.split("---\n", 2)[2]
        for word in ("<img", "<script", "</details>", "](http://x)")
    )


def test_the_loss_is_drawn_and_the_same_each_time(tmp_path: Path) -> None:
    directory, training = model_run(tmp_path / "run"), model_provenance()["training"]
    parts = {"contrastive": [[0, 0.5], [39, 0.1]], "mlm": [[0, 0.5], [39, 0.2]]}
    training |= {"validation_curve": [[10, 0.4], [30, 0.5]], "loss_parts": parts}
    plain, files = render(directory), render(edit(directory, provenance={"training": training}))
    assert files["assets/training.png"].startswith(PNG) and files == render(directory)
    assert files["assets/training.png"] != plain["assets/training.png"]
    edit(directory, provenance={"training": training | {"loss_curve": []}})
    assert list(render(directory)) == ["README.md", "DETAILS.md"] and "training.png" not in card_of(
        directory
    )
    assert len(card_of(directory).partition("# Details of")[0].split("---\n", 2)[2].split()) <= 700


def test_the_card_of_an_adapter(tmp_path: Path) -> None:
    rounded = {
        **LLAMA,
        "quantization": {"quant_method": "bitsandbytes_4bit", "load_in_4bit": "true"},
    }
    card = card_of(adapter_run(tmp_path / "run", base=rounded))
    data = front(card)
    assert (data["base_model"], data["base_model_relation"]) == ("some/llama", "adapter")
    assert {"peft", "lora", "auto-nli"} <= set(data["tags"]) and ModelCard(
        card
    ).data.to_dict() == data
    base = dict(table_with(card, "base encoder"))
    assert (
        base["prompt around a sentence"] == PROMPT
        and base["number format of its weights"] == "bfloat16"
    )
    assert "Spearman's correlation on mteb/stsbenchmark-sts (validation)" in card
    said = card.split("## Licence and attribution\n")[1]  # Llama 2's notice goes with its adapter
    assert (licences()["llama2"].notice or "missing").split(",")[0] in said
    assert "some/llama: the Llama 2 Community License and its acceptable use policy apply." in said
    assert base["quantization"] == "quant_method=bitsandbytes_4bit, load_in_4bit=true"


def test_a_merged_model_needs_no_base_and_has_the_changes_of_its_adapter(tmp_path: Path) -> None:
    merged = {
        "lora": {**LORA, "release": "merged"},
        "name": "prompteol-auto-nli-0shot-merged",
        "version": "1.0.0",
    }
    directory = adapter_run(tmp_path / "run", **merged)
    card, recipe = card_of(directory), load_recipe(directory / RECIPE, ModelRecipe)
    assert front(card)["base_model_relation"] == "finetune"
    assert "merged into the weights" in card and "holds an adapter alone" not in card
    assert str(format_changes(get_release_name(recipe), recipe.version, complete=True)) in card


def test_the_card_of_an_encoder_trained_on_documents(tmp_path: Path) -> None:
    training = {"best_step": None, "validation_metric": None, "validation_score": None}
    changes = {
        "datasets": [DOCUMENTS],
        "slanted_triangular": {"cut_fraction": 0.1},
        "batch_size": 16,
    }
    card = card_of(
        family_run(tmp_path / "run", [trained_on(DOCUMENTS, None, "cc0-1.0")], training, **changes)
    )
    assert table_with(card, "dataset", "revision")[0][-2:] == [
        "DeclutrLoss(temperature=0.05)",
        "train streamed",
    ]
    spans, facts = dict(table_with(card, "spans")), dict(table_with(card, "training"))
    assert (
        spans["words of a span"] == "16 to 64"
        and spans["anchors of a document"] == "2, lengths by Beta(4, 2)"
    )
    assert (
        not {"selected step", "checkpoint selected by"} & set(facts)
        and "the selected step" not in card
    )
    assert (
        "DeCLUTR: Deep Contrastive Learning" in card
        and front(card)["base_model_relation"] == "finetune"
    )


def repeated(directory: Path, version: str = "0.3.0") -> None:
    runs = []
    for seed, value in ((1, 70.0), (2, 71.0), (3, 75.0)):
        scores = (RepeatScore(task="stsb/cosine", split="test", main_score=value),)
        runs.append(Run(value=seed, fingerprint=str(seed) * 64, version=version, scores=scores))
    write_json(directory / REPEATS, Repeats(model="tiny-encoder", over="seed", runs=runs))


def test_the_spread_over_several_trainings(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(),))
    repeated(directory)
    card = card_of(directory)
    assert "The same recipe with other seeds (1, 2, 3)." in card
    assert "the intervals on the card" in " ".join(card.split())
    (row,) = table_with(card, "task", "split", "trainings")
    assert row == ["stsb/cosine", "test", "3", "72.00 ± 2.65", "70.00 to 75.00"]
    repeated(directory, version="0.2.0")
    with pytest.raises(InputError, match="has trainings of"):
        render(directory)


def test_a_baselines_card_has_no_training_and_is_not_published(tmp_path: Path) -> None:
    directory = family_run(tmp_path / "run", [], None, datasets=[], license="mit")
    files = render(directory, "acme/tiny-encoder")
    assert sorted(files) == [".eval_results/stsb.yaml", "README.md"]
    card = files["README.md"].decode()
    assert "base_model_relation" not in front(card)
    assert "## Training" not in card and "is not published" in card
    write(directory, files)
    with pytest.raises(InputError, match="is a baseline, which is not published"):
        publish_run(HfApi("http://127.0.0.1:9"), directory, "acme", yes=True)
    assert check_run(adapter_run(tmp_path / "adapter")).name == "tiny-encoder"
    # so its publication is not proposed
    assert "next:" not in outcome_of(card_command, directory).stderr
    assert "next: sts-dino publish" in outcome_of(card_command, tmp_path / "adapter").stderr


DATA = {"config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}
ROBERTA = {"repo_id": "FacebookAI/roberta-base", "revision": "e" * 40, "license": "mit"}


def of_paper(
    dataset: str = "sts-dino-x2", revision: str = "v1.0.0", **changes: Any
) -> dict[str, Any]:
    """Changes that make the tiny model's recipe the paper's."""
    data = {"repo_id": f"org/{dataset}", "revision": revision, **DATA}
    return {"base": ROBERTA, "datasets": [data], **changes}


PAPER_LLAMA = {**LLAMA, "repo_id": "meta-llama/Llama-2-7b-hf", "dtype": "float32"}
PAPER_TRIPLETS = {**TRIPLETS, "repo_id": "org/auto-nli", "config": "triplet-10shot"}
PAPER_EOL = {"base": PAPER_LLAMA, "datasets": [PAPER_TRIPLETS], "limit": 64_000}


def test_a_papers_recipe_finds_its_row() -> None:
    rows = [row for row in load_paper_rows() if (row.dataset or "").startswith("sts-dino")]
    assert len(rows) == len({row.dataset for row in rows}) == 6
    for row in rows:
        assert row.dataset and find_reproduced_row(model_recipe(**of_paper(row.dataset))) == row
    found = find_reproduced_row(model_recipe(**PAPER_EOL))
    assert found and found.row == "PromptEOL+CSE-Llama-2-7b (n=10)" and found.mean_of
    untrained = find_reproduced_row(model_recipe(base=PAPER_LLAMA, datasets=[]))
    assert untrained and untrained.row == "PromptEOL-Llama-2-7b" and not untrained.mean_of


def test_any_other_recipe_has_no_row() -> None:
    for changes in (
        of_paper(revision="v0.1.0"),  # a demonstration
        of_paper("sts-dino-x3"),
        of_paper(base={**ROBERTA, "pooling": "cls"}),
        {"base": ROBERTA, "datasets": [{**of_paper()["datasets"][0], "loss": "CoSENTLoss"}]},
        {**PAPER_EOL, "limit": None},
        {
            "base": ROBERTA,
            "datasets": of_paper()["datasets"] + of_paper("sts-dino-x1x2")["datasets"],
        },
        {"base": ROBERTA, "datasets": [{"path": "artifacts/datasets/sts-dino-x2", **DATA}]},
    ):
        assert find_reproduced_row(model_recipe(**changes)) is None, changes


def test_the_papers_number_stands_beside_the_same_measurement_alone(tmp_path: Path) -> None:
    scores = (score(), score("validation", 60.0, 1500))
    card = card_of(model_run(tmp_path / "run", scores, **of_paper()))
    assert [row[-1] for row in table_with(card, "task", "split")] == ["77.82", ""]
    assert 'Schick and Schütze 2021, section 4, table 1, row "DINO (STS-x2)"' in card


def test_the_papers_averages_stand_beside_ours(tmp_path: Path) -> None:
    years = tuple(f"sts{year}/mean" for year in range(12, 17))
    average = Average(
        name="dino-sts12-16-mean", definition="mean over *STS12-16*", score=71.0, tasks=years
    )
    named = [score().model_copy(update={"task": year}) for year in years]
    card = card_of(scored_run(tmp_path / "run", named, of_paper(), averages=(average,)))
    assert table_with(card, "average") == [
        ["dino-sts12-16-mean", "5", "71.00", "72.50", "mean over *STS12-16*"]
    ]
    assert "mean over &#42;STS12-16&#42;" in card
    assert [row[-1] for row in table_with(card, "task", "split")] == [
        "65.30",
        "71.80",
        "72.70",
        "75.90",
        "76.90",
    ]


SHA256 = "a" * 64


def score_of(task: str, n: int, **changes: Any) -> TaskScore:
    return score(pairs=n).model_copy(update={"task": task, "data_sha256": SHA256} | changes)


def results(*scores: TaskScore) -> Results:
    return Results(
        model="m", revision="r", bootstrap_samples=10, seed=0, versions={}, scores=scores
    )


def entry(text: str) -> EvalResultEntry:
    (found,) = parse_eval_result_entries(yaml.safe_load(text))
    return found


def test_a_whole_test_set_becomes_an_entry_under_mtebs_ids_and_nothing_else_does() -> None:
    for task, known in BENCHMARKS.items():
        files = make_eval_result_files(results(score_of(task, known.test_pairs)))
        found = entry(files[f".eval_results/{known.file}.yaml"])
        assert (found.dataset_id, found.task_id, found.value) == (
            known.dataset_id,
            known.task_id,
            70.12,
        )
        assert (
            found.notes == f"spearman x 100; rows with SHA-256 {SHA256}"
            and found.dataset_revision is None
        )
    validation = score_of("stsb/cosine", 1500, split="validation")
    assert (
        make_eval_result_files(
            results(score_of("sts12/mean", 3108), score_of("sts12/all", 100), validation)
        )
        == {}
    )
    named = score_of(
        "mteb/STS12", 3108, data_revision="mteb/sts12-sts@abc", main_metric="cosine_spearman"
    )
    for scores in ((score_of("sts12/all", 3108), named), (named, score_of("sts12/all", 3108))):
        (text,) = make_eval_result_files(results(*scores)).values()
        assert entry(text).dataset_revision == "abc"


def test_unlike_protocols_stay_apart_in_the_model_index() -> None:
    scores = (
        score_of("sts12/all", 3108),
        score_of("sts12/mean", 3108, main_score=60.0),
        score_of("mr/senteval", 10662, split="all", main_metric="accuracy", unit="sentences"),
    )
    (model,) = build_model_index("m", results(*scores))
    assert [
        (one["dataset"]["type"], one["task"]["type"], len(one["metrics"]))
        for one in model["results"]
    ] == [
        ("mteb/sts12-sts", "sentence-similarity", 1),
        ("sts12/mean", "sentence-similarity", 1),
        ("mr/senteval", "text-classification", 1),
    ]


def test_a_card_says_that_a_sentence_is_its_own_positive(tmp_path):
    spec = {**TRIPLETS, "example_type": "graded-triplet", "grades": {"positives": "itself"}}
    changes = {"license": "mit", "datasets": [spec]}
    card = card_of(family_run(tmp_path / "run", [trained_on(spec, 64, "mit")], {}, **changes))
    assert "graded-triplet: each source sentence with itself, negative 0 to 0.6" in card
    assert "its own positive under dropout, as in unsupervised SimCSE" in card
    assert front(card)["tags"][-2:] == ["dino", "simcse"]
    assert card.index("schick-schutze-2021-generating") < card.index("gao-etal-2021-simcse")
    changes["datasets"] = [{**TRIPLETS, "config": "query-triplet-5shot", "example_set": None}]
    card = card_of(
        family_run(
            tmp_path / "search", [trained_on(changes["datasets"][0], 64, "mit")], {}, **changes
        )
    )
    assert front(card)["tags"][-1] == "dino" and "sato-etal-2024-auto-nli" not in card


HOSTILE = (
    "x|</td><script>alert(1)</script> [l](javascript:1) ![i](http://a.b/c)\n# h\n---\n**b**\u202e"
)


def test_hostile_texts_of_manifest_and_results_change_no_structure(tmp_path: Path) -> None:
    part = Part(n=3, score=4.0)
    facts = {"protocol": HOSTILE, "data_revision": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    own = score().model_copy(update={"task": HOSTILE, "parts": {HOSTILE: part}, **facts})
    gain = Gain(task=HOSTILE, split=HOSTILE, difference=-1.0, low=-2.0, high=-0.1, verdict="worse")
    sides = {"base_scores": (own,), "gains": (gain,), "over_control": (gain,)}
    directory = scored_run(tmp_path / "run", [own], **sides, control_scores=(own,))
    manifest = json.loads((directory / "manifest.json").read_text())
    provenance = manifest["provenance"]
    upstream = dict.fromkeys(("model", "made_by", "license", "sha256", "revision"), HOSTILE)
    provenance["base"] = {"sha256": HOSTILE, "upstream": upstream | {"packages": {HOSTILE: "1"}}}
    provenance |= {"command": HOSTILE, "code": {"commit": HOSTILE, "url": HOSTILE}}
    for dataset in provenance["datasets"]:
        dataset |= dict.fromkeys(("repo_id", "revision", "commit", "config", "loss"), HOSTILE)
    provenance["training"] |= {"validation_metric": HOSTILE, "arguments": {HOSTILE: HOSTILE}}
    (directory / "manifest.json").write_text(json.dumps(manifest))

    files = render(directory)
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    for name in ("README.md", "DETAILS.md"):
        text = files[name].decode()
        assert "\u202e" not in text
        body = text.split("\n---\n", 1)[1] if name == "README.md" else text
        for token in parser.parse(body):
            assert token.type != "hr" and "script" not in token.content[:8], token
            for child in token.children or []:
                assert child.type != "html_inline" or child.content in ("<code>", "</code>")
                target = str(child.attrs.get("href") or child.attrs.get("src") or "")
                assert "javascript" not in target and "a.b" not in target
    metadata = front(files["README.md"].decode())
    assert "datasets" not in metadata and metadata["license"] == "apache-2.0"
    names = [result["dataset"]["name"] for result in metadata["model-index"][0]["results"]]
    assert all("\n" not in dataset_name for dataset_name in names)

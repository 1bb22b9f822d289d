"""The experiment on domains: its files, its plan, and a whole tiny run."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tiny_lm import make_tokenizer

from sts_dino.experiments import domains
from sts_dino.experiments.domains import PLAN, DomainPlan, DomainResult, extract_domain
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.measured import Estimate
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml
from sts_dino.hub.errors import InputError
from sts_dino.training.data.objectives import LOSSES

SENTENCES = (find_asset("source-sentences") / "wikipedia.txt").read_text("utf-8").splitlines()
WORDS_4_TO_40 = [text for text in SENTENCES if 4 <= len(text.split()) <= 40]


@pytest.fixture
def data(tmp_path):
    """A folder with one domain: twelve judged pairs, then sixty without a score."""
    texts = WORDS_4_TO_40[:144]
    lines = [f"{texts[row]}\t{texts[row + 72]}\tsource" for row in range(72)]
    lines.append(f"{texts[0]}\ttoo short")  # a judged sentence, and one of two words
    scores = [str(row % 6) for row in range(12)] + [""] * 61
    folder = tmp_path / "data" / "sts-original" / "STS16"
    folder.mkdir(parents=True)
    (folder / "STS2016.input.headlines.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "STS2016.gs.headlines.txt").write_text("\n".join(scores) + "\n", "utf-8")
    return tmp_path / "data"


def test_a_domains_sentences_stand_in_no_judged_pair(data, tmp_path):
    plan = DomainPlan.model_validate(read_yaml(PLAN))
    domain = extract_domain("headlines", data, tmp_path, plan)
    header, *rows = domain.pairs.read_text("utf-8").splitlines()
    assert header.split("\t") == ["sentence1", "sentence2", "score"] and len(rows) == 12
    judged = {text for row in rows for text in row.split("\t")[:2]}
    sentences = domain.taught_sentences.read_text("utf-8").splitlines()
    assert len(sentences) == len(set(sentences)) == 120 and not judged & set(sentences)
    assert "too short" not in sentences
    few = plan.model_copy(update={"sentences": 10})
    short = extract_domain("headlines", data, tmp_path, few)
    assert short.sentences.read_text("utf-8").splitlines() == sentences[:10]
    with pytest.raises(InputError, match="no such file"):
        extract_domain("forums", data, tmp_path, plan)


def test_a_domain_of_damaged_files_is_refused(data, tmp_path):
    plan = DomainPlan.model_validate(read_yaml(PLAN))
    pairs = data / "sts-original" / "STS16" / "STS2016.input.headlines.txt"
    lines = pairs.read_text("utf-8").split("\n")
    pairs.write_text("\n".join(lines[1:]), "utf-8")
    with pytest.raises(InputError, match="has 72 lines, its file of scores 73"):
        extract_domain("headlines", data, tmp_path, plan)
    pairs.write_text("\n".join(["no second sentence", *lines[1:]]), "utf-8")
    with pytest.raises(InputError, match=r"headlines\.txt, line 1: has no second sentence"):
        extract_domain("headlines", data, tmp_path, plan)
    pairs.write_bytes("un café".encode("latin-1"))
    with pytest.raises(InputError, match=r"headlines\.txt: is not UTF-8 \(byte 6\)"):
        extract_domain("headlines", data, tmp_path, plan)


def test_a_line_separator_within_a_sentence_ends_no_line(data, tmp_path):
    plan = DomainPlan.model_validate(read_yaml(PLAN))
    pairs = data / "sts-original" / "STS16" / "STS2016.input.headlines.txt"
    text = pairs.read_text("utf-8")
    pairs.write_text(text.replace(" ", "\u2028", 1), "utf-8")
    domain = extract_domain("headlines", data, tmp_path, plan)
    pairs.write_text(text, "utf-8")
    plain = extract_domain("headlines", data, tmp_path / "plain", plan)
    assert domain.pairs.read_bytes() == plain.pairs.read_bytes()


def test_the_table_goes_to_standard_output(data, tmp_path, monkeypatch, capsys):
    scores = {"as published": {"headlines": 71.25}, "the teacher": {"headlines": 80.0}}
    over_first = {"the teacher": Estimate(score=8.75, low=8, high=9.5)}
    result = DomainResult(scores=scores, over_first=over_first, seeds=1, seconds={})
    monkeypatch.setattr(domains.DomainMaker, "score_row", lambda *_: [])
    monkeypatch.setattr(domains, "compare_rows", lambda *_: result)
    places = {"data": data, "file": PLAN, "folder": tmp_path / "steps"}
    domains.main(["headlines", "headlines"], **places, out=None, rows=[*scores], seeds=1)
    table = capsys.readouterr().out
    assert "| trained on | headlines | mean |" in table
    assert "| 80.0 | 80.0 | 8.75 [8.00, 9.50] |" in table


def test_a_language_has_files_of_its_own(tmp_path):
    plan = DomainPlan.model_validate(read_yaml(PLAN))
    source = tmp_path / "languages" / "ja-jsts"
    source.mkdir(parents=True)
    pairs = "sentence1\tsentence2\tscore\n猫がいる。\t犬がいる。\t2.0\n"
    (source / "pairs.tsv").write_text(pairs, "utf-8")
    with pytest.raises(InputError, match="no such file"):
        extract_domain("ja-jsts", tmp_path, tmp_path / "out", plan)
    texts = [f"文{number}です。" for number in range(30)]  # without spaces: one word each
    (source / "sentences.txt").write_text("\n".join(texts), "utf-8")
    domain = extract_domain("ja-jsts", tmp_path, tmp_path / "out", plan)
    assert domain.pairs.read_text("utf-8") == pairs
    assert sorted(domain.taught_sentences.read_text("utf-8").splitlines()) == sorted(texts)


SETTINGS_PLAN = PLAN.with_name("domain_settings.yaml")


def test_the_settings_that_are_changed_are_those_of_the_taught_row():
    rows = {row.name: row for row in DomainPlan.model_validate(read_yaml(PLAN)).rows}
    taught = rows["teacher, base and pairs"]
    published, first, *changed = DomainPlan.model_validate(read_yaml(SETTINGS_PLAN)).rows
    assert published.datasets == () and first.settings == taught.settings
    assert {str(row.datasets) for row in (first, *changed)} == {str(taught.datasets)}
    assert all(row.settings != taught.settings for row in changed)


@pytest.mark.parametrize("file", [PLAN, SETTINGS_PLAN], ids=str)
def test_every_row_of_a_plan_is_a_training_that_the_stage_takes(file):
    plan = DomainPlan.model_validate(read_yaml(file))
    assert set(plan.choice) < set(domains.SUBSETS) and len(domains.SUBSETS) == 9
    for row in plan.rows:
        load_recipe(plan.student, ModelRecipe, row.settings)
        for section in row.datasets:
            spec = TrainingData.model_validate({**section, "license": "unlicensed"})
            examples = [examples.name for examples in LOSSES[spec.loss].example_types]
            assert spec.example_type in examples, row.name


def test_recipes_of_a_killed_command_are_written_anew(data, tmp_path, monkeypatch):
    plan = domains.validate_plan(domains.DomainPlan, read_yaml(PLAN), PLAN)
    maker = domains.DomainMaker(plan, domains.Steps(tmp_path), "builtin", "teacher", [], None)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("A boat.\n")
    domain = SimpleNamespace(name="headlines", sentences=sentences)
    found = []

    def run_once(kind, key, command, title, out):
        encoder_recipe = out.with_suffix(".encoder.yaml")
        if kind == "recipe":
            found.append(out.exists() or encoder_recipe.exists())
            for path in (out, encoder_recipe):
                path.parent.mkdir(exist_ok=True)
                path.write_text("of a command that is killed")
        return 0.0

    monkeypatch.setattr(maker.steps, "run_once", run_once)
    maker._generate(domain)
    maker._generate(domain)
    monkeypatch.setattr(maker.steps, "is_finished", lambda *_: True)
    maker._generate(domain)
    assert found == [False, False, True]


@pytest.mark.slow("seven commands")
def test_a_tiny_run_compares_its_rows_and_runs_each_step_once(data, tmp_path, forked):
    folders = []
    for name in ("student", "teacher"):
        words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
        folders.append(tmp_path / name)
        SentenceTransformer(modules=[words]).save_pretrained(str(folders[-1]))
    tree = read_yaml(Path("recipes/small/minilm-sts-dino.yaml"))
    tree["base"] = {
        **{"path": str(folders[0]), "modules": "sentence-transformer"},
        **{"max_seq_length": "64", "license": "apache-2.0"},
    }
    student = tmp_path / "student.yaml"
    student.write_text(yaml.safe_dump(tree), "utf-8")
    plan = read_yaml(PLAN) | {"student": str(student)}
    further = {
        **{"name": "further", "says": "trained further", "from_start": True},
        **{"set": ["arguments.max_steps=2", "arguments.save_steps=2"]},
        "datasets": [
            {
                **{"path": "{joined_alone}", "config": "default", "example_type": "sts"},
                **{"loss": "CorrelationLoss"},
            }
        ],
    }
    plan["rows"] = [*plan["rows"], further]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), "utf-8")

    rows = ["as published", "the teacher", "teacher, sentences alone"]
    arguments = {
        **{"names": ["headlines"], "data": data, "out": tmp_path / "out.json", "rows": rows},
        **{"lm": "builtin", "teacher": str(folders[1]), "seeds": 2, "settings": []},
        **{"file": tmp_path / "plan.yaml", "folder": tmp_path / "steps"},
    }
    domains.main(**arguments)
    result = DomainResult.model_validate_json((tmp_path / "out.json").read_bytes())
    assert list(result.scores) == rows and result.seeds == 2
    difference = result.over_first["teacher, sentences alone"]
    scores = [result.scores[name]["headlines"] for name in (rows[2], rows[0])]
    assert difference.score == pytest.approx(scores[0] - scores[1])
    assert difference.low <= difference.score <= difference.high

    steps = {path: path.stat().st_mtime_ns for path in (tmp_path / "steps/steps").iterdir()}
    assert len(steps) == 7  # taught pairs, two trainings, four scores
    domains.main(**arguments)
    assert steps == {path: path.stat().st_mtime_ns for path in (tmp_path / "steps/steps").iterdir()}
    assert json.loads((tmp_path / "out.json").read_text())["scores"] == result.scores

    # a trained encoder as the start of further rows
    start = next((tmp_path / "steps/encoders").glob("*/manifest.json")).parent
    further_rows = ["as published", "taught start", "further"]
    domains.main(**{**arguments, "rows": further_rows, "start": start, "seeds": 1})
    result = DomainResult.model_validate_json((tmp_path / "out.json").read_bytes())
    assert list(result.scores) == further_rows
    recipes = [
        load_recipe(path, ModelRecipe)
        for path in (tmp_path / "steps/encoders").glob("*/recipe.yaml")
    ]
    bases = sorted(recipe.base.path for recipe in recipes)
    assert bases == sorted([start.name, "student", "student"])
    facts = [path.read_text("utf-8") for path in (tmp_path / "steps/taught").glob("*/teach.json")]
    assert any(f'"requested": "{folders[1]}"' in text and start.name in text for text in facts)
    with pytest.raises(InputError, match=r"--start: is missing; .*'taught start' .*run directory"):
        domains.main(**{**arguments, "rows": further_rows})

    # a start that was trained again in the same folder runs its rows again
    before = set((tmp_path / "steps/steps").iterdir())
    other = next(
        path.parent
        for path in (tmp_path / "steps/encoders").glob("*/manifest.json")
        if path.read_bytes() != (start / "manifest.json").read_bytes()
    )
    shutil.rmtree(start)
    shutil.copytree(other, start)
    domains.main(**{**arguments, "rows": further_rows, "start": start, "seeds": 1})
    added = {
        path.name.partition("-")[0] for path in set((tmp_path / "steps/steps").iterdir()) - before
    }
    assert added == {"taught", "encoder", "scores"}

    # fewer sentences than the plan's
    few = {"sentences": 30, "rows": ["as published"], "out": None}
    domains.main(**{**arguments, **few})
    sentences = tmp_path / "steps/data/headlines/taught_sentences.txt"
    assert len(sentences.read_text("utf-8").splitlines()) == 30

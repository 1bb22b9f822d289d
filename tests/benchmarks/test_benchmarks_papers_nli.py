"""Auto-NLI's experiments: people's triplets are read, what is made is made once, hypotheses are judged and shown."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from forked_python import python_in

from benchmarks.better_pairs.steps import Steps
from benchmarks.papers import page as pages
from benchmarks.papers.__main__ import PLAN
from benchmarks.papers.auto_nli import label_agreement, people
from benchmarks.papers.auto_nli.judge import Hypothesis, Judge, Told
from benchmarks.papers.encoders import Seeds
from benchmarks.papers.made import Made
from benchmarks.papers.plan import Effect, Experiment, Papers, read_papers
from benchmarks.papers.runner import Experiments
from benchmarks.papers.spread import over_sets
from benchmarks.papers.training_data import finished_config, first_texts
from hub.contract.results import read_results
from hub.contract.run_dir import require_complete
from hub.errors import InputError

PAPERS = read_papers(PLAN)
PROMPT = (
    'Generate one sentence that logically {} "{}" in the form of a statement beginning with "Answer:". Answer: "{}".'
)


@pytest.fixture
def data(tmp_path) -> Path:
    """Few-shot prompts and a part of SNLI, as the data folder has them."""
    texts = {
        "entails": ["A man runs", 'He said "no"', "Dogs bark"],
        "contradicts": ["A man sleeps", "He agreed", "Dogs sleep"],
    }
    premises = ["A man runs fast.", 'He said "no" to the plan.', "Two dogs bark loudly now, again."]
    for verb, name in (("entails", "entailment"), ("contradicts", "contradiction")):
        path = tmp_path / "prompts/5-shot/a" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [PROMPT.format(verb, *pair) for pair in zip(premises, texts[verb], strict=True)]
        path.write_text("\n".join(lines).removesuffix("."))
    snli = tmp_path / "SNLI"
    snli.mkdir()
    rows = [
        ("entailment", "p1", "e1"),
        ("neutral", "p1", "n1"),
        ("contradiction", "p1", "c1"),
        ("entailment", "p2", "e2"),
    ]
    for place, name in enumerate(("labels", "s1", "s2")):
        (snli / f"{name}.dev").write_text("\n".join(row[place] for row in rows) + "\n")
    return tmp_path


def write(place, out, **more):
    people.main(place, out=out, **{"rows": None, "seed": 42, "words": None, "senteval": None} | more)


def test_people_s_triplets_are_read_from_prompts_and_from_snli(data, tmp_path):
    write(data / "prompts", tmp_path / "x.jsonl")
    found = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert found[0] == {"premise": "A man runs fast.", "entailment": "A man runs", "contradiction": "A man sleeps"}
    assert found[1]["premise"] == 'He said "no" to the plan.' and found[1]["entailment"] == 'He said "no"'
    write(data / "prompts", tmp_path / "short.jsonl", words=7)
    assert len((tmp_path / "short.jsonl").read_text().splitlines()) == 1
    assert people.triplets(people.labelled_pairs(data / "SNLI/dev")) == [("p1", "e1", "c1")]
    write(data / "SNLI/dev", tmp_path / "run")
    assert [(file.config, file.rows) for file in require_complete(tmp_path / "run").files] == [("pairs", 1)]
    with pytest.raises(InputError, match=r"has no file s1\.test"):
        people.labelled_pairs(data / "SNLI/test")


def test_what_is_made_is_made_once_for_the_same_words_and_data(data, tmp_path, monkeypatch):
    ran = []

    def stage(self, words, note):
        ran.append(words)
        Path(words[-1]).parent.mkdir(parents=True, exist_ok=True)
        Path(words[-1]).write_text("x")
        return 1.0

    monkeypatch.setattr(Steps, "_run", stage)
    words = ["benchmarks.papers.auto_nli.people", "<data>/SNLI/dev", "--out", "<out>"]
    made = Made({"a.jsonl": words}, Steps(tmp_path / "steps"), data)
    first = made.filled("examples.path=<made:a.jsonl>")
    assert made.filled("examples.path=<made:a.jsonl>") == first and len(ran) == 1 and first.endswith("/a.jsonl")
    (data / "SNLI/s1.dev").write_text("other\n")
    assert made.filled("examples.path=<made:a.jsonl>") != first and len(ran) == 2
    told = "python -m benchmarks.papers.auto_nli.people '<data>/SNLI/dev' --out '<made:a.jsonl>'"
    assert made.commands(["x <made:a.jsonl>", "<made:a.jsonl>"]) == [told]
    with pytest.raises(InputError, match="reads the data folder"):
        Made({"a.jsonl": words}, Steps(tmp_path), None).find("a.jsonl")
    tree = PAPERS.model_dump(by_alias=True) | {"made": {}}
    with pytest.raises(ValueError, match="nothing that is made is called"):
        Papers.model_validate(tree)


def hypotheses(own: list[bool], example_sets: int = 1) -> list[Hypothesis]:
    """One premise each, an entailed and a contradicting text; ``own``: of each premise."""
    return [
        Hypothesis(f"premise {place}", f"text <b> {place}", label, f"{place:03}", number, 0.9 if good else 0.1)
        for number in range(example_sets)
        for place, good in enumerate(own)
        for label in ("entailment", "contradiction")
    ]


def test_a_judge_learns_what_embeddings_tell_and_embeds_each_text_once():
    asked = []

    def embed(texts):
        asked.extend(texts)
        vectors = np.array([[1.0, 0.2 if "not" in text else 0.0, len(text) / 99] for text in texts], dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    pairs = [
        (f"p{i}", f"{'not' if i % 2 else 'yes'} {i}", "contradiction" if i % 2 else "entailment") for i in range(400)
    ]
    judge = Judge(embed).train(pairs)
    assert judge.accuracy(pairs) > 0.9 and len(asked) == len(set(asked)) == 800
    assert judge.classes([]) == [] and max(judge.cosines(pairs)) <= 1.0001


def test_agreement_is_measured_over_premises_and_sets_with_paired_differences():
    texts = {"0-shot": hypotheses([False, True]), "5-shot": hypotheses([True, True], 3)}
    texts[label_agreement.PEOPLE] = [Hypothesis("p", "t", label, "p", 0) for label in people.LABELS]
    told = {name: [Told("entailment", 0.5) for _ in of] for name, of in texts.items()}
    found = label_agreement.measured(texts, told, ("a note",), 1)
    row = found.rows["5-shot"]
    assert row["Entailment"].score == 100 and row["Contradiction"].score == 0 and row["Entailment, words"].score == 3
    assert found.rows["0-shot"]["Entailment, by the LM itself"].score == 50
    assert "Entailment, by the LM itself" not in found.rows[label_agreement.PEOPLE]
    moved = {(one.better, one.than, one.column): one.difference for one in found.differences}
    assert moved["5-shot", "0-shot", "Entailment, by the LM itself"].score == 50
    assert (label_agreement.PEOPLE, "5-shot", "Entailment") in moved
    assert "premise 0" in found.pages[0] and "premise 1" not in found.pages[0] and "<b>" not in found.pages[0]
    assert found.plots["auto-nli-lengths"] == label_agreement.measured(texts, told, (), 1).plots["auto-nli-lengths"]
    assert label_agreement.neutral(texts, told).endswith("0% (0-shot), 0% (5-shot), 0% (Manual NLI dataset).")


def test_the_page_has_the_paper_s_shares_in_points():
    effect = Effect(says="", better="few", than="none", column="Entailment")
    rows = {"none": "0-shot", "few": "5-shot"}
    one = Experiment(name="x", paper="auto-nli", table=1, title="", measure=("x",), beside=rows, effects=(effect,))
    assert pages.printed_row(one, "none") == {"Entailment": pytest.approx(16), "Contradiction": pytest.approx(88.8)}
    assert pages.printed_difference(one, effect) == pytest.approx(70.7) and not pages.printed_row(one, "nothing")


def score(encoder: Path) -> float:
    """The one score of an evaluated encoder."""
    return read_results(encoder / "results.json").scores[0].main_score


@pytest.mark.slow("writes with the built-in language model and trains")
def test_each_training_reads_an_example_set_of_its_own(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", python_in(dict(os.environ)))
    tree = yaml.safe_load((PLAN / "dino.yaml").read_text())
    texts = {"path": "assets/demo-data/premises.txt", "checked": False, "texts": 6}
    texts |= {"license": "cc-by-sa-3.0", "dataset_license": "mixed-non-commercial", "description": "sentences"}
    tree["pairs"] |= {"first_texts": {"stsb": texts}}
    columns = "{entailment: entailment, contradiction: contradiction}"
    examples = f"{{kind: file, path: <made:x.jsonl>, texts: {columns}, description: x, license: cc0-1.0}}"
    few = f'few_shot={{shots: [1], sets: 2, end: \'".\', separator: "\\n", examples: {examples}}}'
    settings = [few, "postprocess.validation_fraction=0", "verification={}"]
    tree["pairs"]["arms"] = [
        {"name": "one", "group": "g", "varies": "", "recipe": "recipes/demo/auto-nli.yaml", "set": settings}
    ]
    tree["made"] = {"x.jsonl": ["benchmarks.papers.auto_nli.people", str(data / "prompts"), "--out", "<out>"]}
    short = ["arguments.max_steps=2", "arguments.save_steps=2", "batch_size=2"]
    student = {"says": "", "recipe": "recipes/value/value-student-triplets.yaml", "pairs": "one"}
    tree["encoders"] = [
        {**student, "name": "nli", "example_sets": 2, "set": [*short, "datasets.0.example_type=triplet"]},
        {**student, "name": "copies", "copies": True, "set": short},
    ]
    column = {"dev": {"tasks": ["stsb/cosine"], "split": "validation"}}
    rows = {"nli": None, "copies": None}
    tree["experiments"] = [{"name": "x", "paper": "auto-nli", "title": "x", "rows": rows, "own_columns": column}]
    tree["pairs"]["stages"]["small"] |= {"training_seeds": 2}
    runner = Experiments(Papers.model_validate(tree), Steps(tmp_path / "steps"), None)
    result = runner.run(runner.papers.experiments[0])
    run = runner.dataset("one").directory
    assert finished_config(run) == "triplet-1shot" and 0 < len(first_texts(run)) <= 6
    seeds = Seeds((42,), 2)
    trees = runner.encoders.trees(runner.papers.encoder("nli"), seeds)
    assert [tree["datasets"][0]["example_set"] for tree in trees] == ["0", "1"]
    columns = runner.papers.experiments[0].own_columns
    folders = runner.encoders.scored(runner.papers.encoder("nli"), [*columns.values()], seeds).folders
    assert "± " in result.measured.notes[0] and len(set(map(score, folders))) == 2
    assert over_sets(columns, {"nli": folders}) == result.measured.notes[0]

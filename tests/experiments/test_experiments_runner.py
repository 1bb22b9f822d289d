"""The runner of experiments: steps run once, survive kills, and the datasets, encoders and measurements are right."""

import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from forked_python import python_in
from small_runs import FEW_SHOT, small_recipe, small_run

from experiments.command import PLANS, main
from experiments.files import Files
from experiments.measures import auto_nli, dino, human_nli
from experiments.measures.auto_nli import Hypothesis, Judge, Judged
from experiments.plan import Plan, Seeds, read_plan
from experiments.result import Measured, read_result
from experiments.runner import Runner
from experiments.source_sentences import main as draw_sentences
from experiments.source_sentences import sentences
from experiments.steps import Made, Steps
from experiments.variants import finished_config, source_sentences
from hub.assets import asset
from hub.contract.measured import Estimate
from hub.contract.run_dir import require_complete
from hub.contract.shards import read_table
from hub.errors import InputError, RunError

ROOT = Path(__file__).parents[2]
DEV = (ROOT / "assets/stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def command(tmp_path, monkeypatch):
    """``command(code)``: ``sts-dino`` of child processes becomes this Python code."""
    monkeypatch.chdir(tmp_path)  # -m looks in the current folder first
    return lambda code: (tmp_path / "sts_dino.py").write_text(code)


def test_a_step_runs_once_and_again_when_its_output_is_removed(tmp_path, command):
    steps, out = Steps(tmp_path), tmp_path / "out.json"
    command("import sys, time\nwhile time.process_time() < 0.3: pass\nopen(sys.argv[1], 'a').write('x')\n")
    for _ in range(2):
        assert steps.once("kind", "key", [str(out)], "variant", out) >= 0.29 and out.read_text() == "x"
    out.unlink()
    steps.once("kind", "key", [str(out)], "variant", out)
    assert out.read_text() == "x"
    command("raise SystemExit(2)")
    with pytest.raises(InputError, match=r"variant: word failed.*run the same command again to resume"):
        steps.once("kind", "other", ["word"], "variant", out)


def test_files_are_written_once_from_what_they_name(tmp_path, monkeypatch):
    ran = []

    def run(self, words, note):
        ran.append(words)
        Path(words[-1]).parent.mkdir(exist_ok=True, parents=True)
        Path(words[-1]).write_text("")
        return 2.0

    monkeypatch.setattr(Steps, "_run", run)
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("a")
    words = {"text.txt": ("one", "<data>/x", "<out>"), "model": ("two", "<file:text.txt>", "<out>")}
    files = Files(words, Steps(tmp_path), data)
    found = files.find("model")
    assert [line[0] for line in ran] == ["one", "two"] and found.seconds == 4
    assert ran[0][1:] == [str(data / "x"), str(files.find("text.txt").path)]
    assert ran[1][1] == files.filled("<file:text.txt>") and len(ran) == 2
    assert files.seconds(["base.path=<file:model>", "x"]) == 4
    (data / "x").write_text("b")
    assert files.find("model").path != found.path
    with pytest.raises(InputError, match="reads the data folder"):
        Files(words, Steps(tmp_path / "new"), None).find("text.txt")


def test_source_sentences_are_drawn_by_seed_without_evaluation_sentences(tmp_path):
    known = [line.split("\t")[5] for line in DEV if 6 <= len(line.split("\t")[5].split()) <= 12][:20]
    own = [f"The {word} committee of harbour {number} met twice." for number, word in enumerate(["north"] * 30)]
    with gzip.open(tmp_path / "texts.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*known, "A heading", 'She said "no" to all of it twice.', *own]))

    def draw(name, texts, seed, without=()):
        out = tmp_path / name
        draw_sentences(tmp_path / "texts.txt.gz", out, [], texts, seed, False, None, [tmp_path / w for w in without])
        return out.read_text().split("\n")[:-1], json.loads(out.with_suffix(".json").read_bytes())

    drawn = {seed: draw(f"{seed}.txt", 10, seed) for seed in (1, 2)}
    assert all(len(texts) == 10 and set(texts) <= set(own) for texts, _ in drawn.values())
    assert drawn[1][0] != drawn[2][0] and drawn[1][1]["checked"] == ["stsb/validation", "stsb/test"]
    assert sum(draw("all.txt", 100, 1)[1]["left_out"].values()) == len(set(known))
    assert draw("rest.txt", 100, 1, ["all.txt"])[0] == [""]
    with pytest.raises(InputError, match="--without"):
        draw("none.txt", 100, 1, ["missing.txt"])
    with pytest.raises(InputError, match="no such file"):
        sentences(tmp_path / "nothing.txt", [])
    new = "main\tfile\t2012\t1\t4.000\tThe ferry to the outer islands was late.\tThe island ferry came in late."
    (tmp_path / "pairs.csv").write_text("\n".join([DEV[0], new]), encoding="utf-8")
    draw_sentences(tmp_path / "pairs.csv", tmp_path / "gold.jsonl", [], 10, 1, True, None)
    rows = [json.loads(line) for line in (tmp_path / "gold.jsonl").read_text().splitlines()]
    assert [(row["sentence1"][:9], row["score"]) for row in rows] == [("The ferry", 0.8)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A plan on the built-in language model: two variants, five encoders, a handful of steps."""
    place = tmp_path_factory.mktemp("papers")
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())
    texts = {
        "path": str(asset("source-sentences/wikipedia.txt").resolve()),
        "checked": False,
        "license": "cc-by-sa-3.0",
    }
    decoding = ["decoding.samples=1", "postprocess.validation_fraction=0"]
    tree["datasets"] |= {
        "sources": {"stsb": texts | {"dataset_license": "mixed-non-commercial", "description": "sentences"}},
        "texts": 12,
        "seeds": {"data": [42, 43], "trainings": 1},
        "variants": [
            {"name": "x2", "says": "", "recipe": "recipes/demo/sts-dino-x2.yaml", "set": decoding},
            {"name": "plain", "says": "", "same_texts": "x2", "set": ["postprocess.smoothing=0"]},
        ],
    }
    steps = ["arguments.max_steps=4", "arguments.save_steps=4", "batch_size=4"]
    encoder = {"says": "", "recipe": "recipes/value/value-student-dropout.yaml", "set": steps}
    tree["encoders"] = [
        {**encoder, "name": "untrained", "trained": False, "set": []},
        {**encoder, "name": "simcse", "dataset": "x2", "baseline": "simcse"},
        {**encoder, "name": "shuffled", "dataset": "x2", "baseline": "shuffled"},
        {**encoder, "name": "x2", "dataset": "x2"},
        {**encoder, "name": "plain", "dataset": "plain"},
    ]
    column = {"dev": {"tasks": ["stsb/cosine"], "split": "validation"}}
    rows = dict.fromkeys(one["name"] for one in tree["encoders"])
    effect = {"says": "it trains", "better": "x2", "than": "untrained", "column": "dev"}
    one = {"name": "tiny", "paper": "dino", "title": "tiny", "rows": rows, "own_columns": column, "effects": [effect]}
    words = ["measure", "<dataset:x2>", "<out>"]
    measured = {"name": "measured", "paper": "dino", "title": "measured", "measure": words}
    tree["experiments"] = [one | {"data_seeds": 2}, measured]
    (place / "plan.yaml").write_text(yaml.safe_dump(tree))
    return place


@pytest.fixture
def forked(monkeypatch):
    """Stages are forked from a process that has imported the libraries."""
    monkeypatch.setattr(sys, "executable", python_in(dict(os.environ)))


def run(place):
    options = {"every": False, "listed": False, "page_too": False, "settings": [], "data": None}
    places = {"file": place / "plan.yaml", "folder": place / "steps", "results": place, "page": place / "page.md"}
    main(["tiny"], **options, **places)
    return read_result(place / "tiny.json")


@pytest.mark.slow("generates with the built-in language model and trains")
def test_an_experiment_resumes_after_a_kill_and_a_second_run_computes_nothing(tiny, forked, monkeypatch):
    whole, ran = Steps._run, []
    counted = Measured(rows={"x": {"n": Estimate(score=1, low=1, high=1)}}, notes=("a note",), plots={"p": "<svg/>"})

    def step(self, words, note):
        ran.append(words[0] if words[0] != "experiment" else words[1])
        if ran.count("train") == 3 and words[0] == "train" and "killed" not in ran:
            ran.append("killed")
            raise RunError(words[0], "was killed")
        if words[0] == "measure":
            assert Path(words[1], "manifest.json").is_file()
            Path(words[2]).parent.mkdir(exist_ok=True)
            Path(words[2]).write_text(counted.model_dump_json())
            return 3.0
        return whole(self, words, note)

    monkeypatch.setattr(Steps, "_run", step)
    with pytest.raises(RunError, match="1 of 1 failed"):
        run(tiny)
    assert not (tiny / "tiny.json").exists()
    result = run(tiny)
    found = Counter(ran)
    assert (found["write"], found["refinish"]) == (2, 2)
    assert (found["train"], found["score"]) == (9 + 1, 9)  # one was killed
    assert result.measured.rows.keys() == {"untrained", "simcse", "shuffled", "x2", "plain"}
    found = result.measured.differences[0].difference
    both = [result.measured.rows[name]["dev"].score for name in ("x2", "untrained")]
    assert found.low < found.score == pytest.approx(both[0] - both[1]) and found.score != 0
    assert result.sizes["x2"]["source sentences"] == 12 and result.seconds > 0
    assert "it trains" in (tiny / "page.md").read_text()
    ran.clear()
    assert run(tiny).measured == result.measured and ran == []
    plan = read_plan(tiny / "plan.yaml")
    runner, seeds = Runner(plan, Steps(tiny / "steps"), None), Seeds(data=(42,), trainings=1)
    pairs, shuffled = (
        read_table(directory / file.path, ["sentence1", "sentence2", "score"]).to_pylist()
        for data in (runner.encoders.trees(plan.encoder(name), seeds)[0]["datasets"][0] for name in ("x2", "shuffled"))
        for directory in (Path(data["path"]),)
        for file in require_complete(directory).files
        if file.config == data["config"]
    )
    assert pairs != shuffled and sorted(one["score"] for one in pairs) == sorted(one["score"] for one in shuffled)
    assert [one["sentence2"] for one in pairs] == [one["sentence2"] for one in shuffled]
    measured = runner.run(plan.experiments[1])  # a measurement reads datasets by name
    assert measured.measured == counted and measured.seconds >= 3 and ran == ["measure"]


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
    (tmp_path / "SNLI").mkdir()
    rows = [("entailment", "p1", "e1"), ("neutral", "p1", "n1"), ("contradiction", "p1", "c1")]
    rows.append(("entailment", "p2", "e2"))
    for place, name in enumerate(("labels", "s1", "s2")):
        (tmp_path / "SNLI" / f"{name}.dev").write_text("\n".join(row[place] for row in rows) + "\n")
    return tmp_path


def test_human_annotated_triplets_are_read_from_prompts_and_from_snli(data, tmp_path):
    def write(place, out, **more):
        human_nli.main(place, out=out, **{"rows": None, "seed": 42, "words": None, "senteval": None} | more)

    write(data / "prompts", tmp_path / "x.jsonl")
    found = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert found[0] == {"premise": "A man runs fast.", "entailment": "A man runs", "contradiction": "A man sleeps"}
    assert found[1]["premise"] == 'He said "no" to the plan.' and found[1]["entailment"] == 'He said "no"'
    write(data / "prompts", tmp_path / "short.jsonl", words=7)
    assert len((tmp_path / "short.jsonl").read_text().splitlines()) == 1
    assert human_nli.triplets(human_nli.labelled_pairs(data / "SNLI/dev")) == [("p1", "e1", "c1")]
    write(data / "SNLI/dev", tmp_path / "run")
    assert [(file.config, file.rows) for file in require_complete(tmp_path / "run").files] == [("pairs", 1)]
    with pytest.raises(InputError, match=r"has no file s1\.test"):
        human_nli.labelled_pairs(data / "SNLI/test")


def hypotheses(own, example_sets=1):
    """One premise each, an entailed and a contradicting text; ``own``: of each premise."""
    return [
        Hypothesis(f"premise {place}", f"text <b> {place}", label, f"{place:03}", number, 0.9 if good else 0.1)
        for number in range(example_sets)
        for place, good in enumerate(own)
        for label in ("entailment", "contradiction")
    ]


def test_a_judge_learns_from_embeddings_and_embeds_each_text_once():
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        vectors = np.array([[1.0, 0.2 if "not" in text else 0.0, len(text) / 99] for text in texts], dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    pairs = [
        (f"p{i}", f"{'not' if i % 2 else 'yes'} {i}", "contradiction" if i % 2 else "entailment") for i in range(400)
    ]
    judge = Judge(embed).train(pairs)
    assert judge.accuracy(pairs) > 0.9 and len(embedded) == len(set(embedded)) == 800
    assert judge.judged([]) == [] and max(one.cosine for one in judge.judged(pairs)) <= 1.0001


def test_label_agreement_is_over_premises_and_sets_with_paired_differences():
    texts = {"0-shot": hypotheses([False, True]), "5-shot": hypotheses([True, True], 3)}
    texts[auto_nli.HUMAN] = [Hypothesis("p", "t", label, "p", 0) for label in human_nli.LABELS]
    judged = {name: [Judged("entailment", 0.5) for _ in of] for name, of in texts.items()}
    found = auto_nli.measured(texts, judged, ("a note",))
    row = found.rows["5-shot"]
    assert row["Entailment"].score == 100 and row["Contradiction"].score == 0 and row["Entailment, words"].score == 3
    assert found.rows["0-shot"]["Entailment, by the LM itself"].score == 50
    assert "Entailment, by the LM itself" not in found.rows[auto_nli.HUMAN]
    moved = {(one.better, one.than, one.column): one.difference for one in found.differences}
    assert moved["5-shot", "0-shot", "Entailment, by the LM itself"].score == 50
    assert (auto_nli.HUMAN, "5-shot", "Entailment") in moved
    assert "premise 0" in found.pages[0] and "<b>" not in found.pages[0]


def test_the_confusion_matrix_has_percentages_of_labels_and_intervals_over_source_sentences():
    cosines, gold = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert dino.similarities(cosines, gold, [-0.5, 0.1, 0.5, 0.9, 1.5]).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    scores, judged = np.array([0.1, 0.1, 0.1, 0.1, 0.9, 0.9]), np.array([0.0, 0.2, 0.3, 0.8, 0.55, 0.4])
    sources = ["a", "b", "c", "d", "a", "b"]
    found = dino.confusion(scores, judged, sources)
    assert {row: {name: one.score for name, one in of.items()} for row, of in found.items()} == {
        "judged 0.1": {"0.1": 75.0, "0.9": 50.0},
        "judged 0.9": {"0.1": 25.0, "0.9": 50.0},
    }
    one = found["judged 0.1"]["0.1"]
    assert one.low < one.score < one.high <= 100
    tenfold = dino.confusion(np.repeat(scores, 10), np.repeat(judged, 10), [s for s in sources for _ in range(10)])
    assert tenfold == found  # ten copies of a pair under one source sentence add nothing


def test_each_training_reads_an_example_set_of_its_own(tmp_path, monkeypatch):
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())
    encoder = {"says": "", "recipe": "recipes/value/value-student-triplets.yaml", "dataset": "x2", "example_sets": 2}
    tree["encoders"] = [{**encoder, "name": "nli", "set": ["datasets.0.example_type=triplet"]}]
    experiment = {"name": "x", "paper": "auto-nli", "title": "x", "rows": {"nli": None}}
    runner = Runner(Plan.model_validate(tree | {"experiments": [experiment]}), Steps(tmp_path), None)
    directory = tmp_path / "nli"
    small_run(directory, small_recipe("nli", few_shot=FEW_SHOT | {"shots": [5]}))
    monkeypatch.setattr(runner.datasets, "find", lambda name, seed: Made(directory, 0.0))
    assert finished_config(directory) == "triplet-5shot" and 0 < len(source_sentences(directory)) <= 90
    trees = runner.encoders.trees(runner.plan.encoder("nli"), Seeds(data=(42,), trainings=3))
    assert [one["datasets"][0]["example_set"] for one in trees] == ["0", "1", "0"]

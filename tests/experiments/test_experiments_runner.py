"""The runner of experiments: steps run once, survive kills, and make the right artefacts."""

import gzip
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from small_runs import FEW_SHOT, small_recipe, small_run

from sts_dino.experiments.command import PLANS, main
from sts_dino.experiments.plan import Encoder, Seeds, read_plan
from sts_dino.experiments.runner import EncoderMaker, Runner, read_result
from sts_dino.experiments.steps import Steps
from sts_dino.experiments.variants import draw_source_sentences as draw_sentences
from sts_dino.experiments.variants import (
    get_finished_config,
    read_finished_rows,
    read_sentences,
    read_source_sentences,
)
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.contract.shards import read_table
from sts_dino.hub.errors import InputError, RunError

ROOT = Path(__file__).parents[2]
DEV = (ROOT / "assets/stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def command(tmp_path, monkeypatch):
    """``command(code)``: ``sts-dino`` of child processes becomes this Python code."""
    monkeypatch.chdir(tmp_path)  # -m looks in the current folder first
    return lambda code: (tmp_path / "sts_dino.py").write_text(code)


def test_a_step_runs_once_and_again_when_its_output_is_removed(tmp_path, command):
    steps, out = Steps(tmp_path), tmp_path / "out.json"
    command(
        "import sys, time\n"
        "while time.process_time() < 0.3: pass\n"
        "open(sys.argv[1], 'a').write('x')\n"
    )
    for _ in range(2):
        assert steps.run_once("kind", "key", [str(out)], "variant", out) >= 0.29
        assert out.read_text() == "x"
    out.unlink()
    steps.run_once("kind", "key", [str(out)], "variant", out)
    assert out.read_text() == "x"
    command("raise SystemExit(2)")
    with pytest.raises(
        InputError, match=r"variant: word failed.*run the same command again to resume"
    ):
        steps.run_once("kind", "other", ["word"], "variant", out)


def test_source_sentences_are_drawn_by_seed_without_evaluation_sentences(tmp_path):
    known = [line.split("\t")[5] for line in DEV if 6 <= len(line.split("\t")[5].split()) <= 12][
        :20
    ]
    own = [
        f"The {word} committee of harbour {number} met twice."
        for number, word in enumerate(["north"] * 30)
    ]
    with gzip.open(tmp_path / "texts.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*known, "A heading", 'She said "no" to all of it twice.', *own]))

    def draw(name, texts, seed, without=()):
        out = tmp_path / name
        draw_sentences(
            tmp_path / "texts.txt.gz",
            out,
            [],
            texts,
            seed,
            False,
            None,
            [tmp_path / w for w in without],
        )
        return out.read_text().split("\n")[:-1], json.loads(out.with_suffix(".json").read_bytes())

    drawn = {seed: draw(f"{seed}.txt", 10, seed) for seed in (1, 2)}
    assert all(len(texts) == 10 and set(texts) <= set(own) for texts, _ in drawn.values())
    assert drawn[1][0] != drawn[2][0] and drawn[1][1]["checked"] == ["stsb/validation", "stsb/test"]
    assert sum(draw("all.txt", 100, 1)[1]["left_out"].values()) == len(set(known))
    assert draw("rest.txt", 100, 1, ["all.txt"])[0] == [""]
    with pytest.raises(InputError, match="--without"):
        draw("none.txt", 100, 1, ["missing.txt"])
    with pytest.raises(InputError, match="no such file"):
        read_sentences(tmp_path / "nothing.txt", [])
    texts = "The ferry to the outer islands was late.\tThe island ferry came in late."
    new = f"main\tfile\t2012\t1\t4.000\t{texts}"
    (tmp_path / "pairs.csv").write_text("\n".join([DEV[0], new]), encoding="utf-8")
    draw_sentences(tmp_path / "pairs.csv", tmp_path / "gold.jsonl", [], 10, 1, True, None)
    rows = [json.loads(line) for line in (tmp_path / "gold.jsonl").read_text().splitlines()]
    assert [(row["sentence1"][:9], row["score"]) for row in rows] == [("The ferry", 0.8)]
    (tmp_path / "pairs.csv").write_text("not a table")
    with pytest.raises(InputError, match=r"^--pairs: .*pairs\.csv, line 1: has 1 tab-separated"):
        draw_sentences(tmp_path / "pairs.csv", tmp_path / "gold.jsonl", [], 10, 1, True, None)


def test_a_damaged_archive_and_a_file_in_place_of_the_counts_are_refused(tmp_path):
    content = gzip.compress(b"The ferry to the outer islands was late.\n")
    (tmp_path / "captions.en.gz").write_bytes(content[:-12])
    with pytest.raises(InputError, match=r"captions\.en\.gz: cannot be read"):
        read_sentences(tmp_path / "captions.en.gz", [])
    with pytest.raises(InputError, match=r"--out .*out\.json: is the file of the counts"):
        draw_sentences(tmp_path / "captions.en.gz", tmp_path / "out.json")
    # the counts, too, would replace the sentences
    for name, out in {"own.json": "own.txt", "own.txt": "own.txt"}.items():
        (tmp_path / name).write_text('[{"text": "The ferry to the islands was late."}]')
        with pytest.raises(InputError, match=rf"--out .*own\.txt: would replace .*{name}"):
            draw_sentences(tmp_path / name, tmp_path / out, ["text"])
    (tmp_path / "latin.txt").write_bytes("Le café de la gare.\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"--without .*latin\.txt: is not UTF-8 \(byte 6\)"):
        draw_sentences(tmp_path / "own.txt", tmp_path / "o.txt", without=[tmp_path / "latin.txt"])


def test_a_missing_data_folder_is_found_before_a_step_runs(tmp_path):
    with pytest.raises(InputError, match=r"--data .*nowhere: no such folder"):
        main(["dino-2"], data=tmp_path / "nowhere", settings=[], folder=tmp_path / "steps")


def test_rows_without_a_column_are_refused(tmp_path):
    small_run(tmp_path / "nli", small_recipe("nli"))
    with pytest.raises(InputError, match=r"has no column 'score'; needs scored pairs"):
        read_finished_rows(tmp_path / "nli", ["premise", "score"], "needs scored pairs")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A plan on the built-in language model: two variants, five encoders, a handful of steps."""
    place = tmp_path_factory.mktemp("papers")
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())
    path = str(find_asset("source-sentences/wikipedia.txt").resolve())
    texts = {"path": path, "checked": False, "license": "cc-by-sa-3.0"}
    decoding = ["decoding.samples=1", "postprocess.validation_fraction=0"]
    tree["datasets"] |= {
        "sources": {
            "stsb": texts | {"dataset_license": "mixed-non-commercial", "description": "sentences"}
        },
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
    one = {
        "name": "tiny",
        "paper": "dino",
        "title": "tiny",
        "rows": rows,
        "own_columns": column,
        "effects": [effect],
    }
    one |= {
        "data_seeds": 2,
        "judges": {"words": "python:sts_dino.experiments.baselines:random_words"},
    }
    tree["experiments"] = [one | {"parameters": {"x2": 4.5}}]
    (place / "plan.yaml").write_text(yaml.safe_dump(tree))
    return place


def run(place):
    options = {
        "run_every": False,
        "list_only": False,
        "write_page": False,
        "settings": [],
        "data": None,
    }
    places = {
        "file": place / "plan.yaml",
        "folder": place / "steps",
        "results": place,
        "page": place / "page.md",
    }
    main(["tiny"], **options, **places)
    return read_result(place / "tiny.json")


@pytest.mark.slow("generates with the built-in language model and trains")
def test_an_experiment_resumes_after_a_kill_and_a_second_run_computes_nothing(
    tiny, forked, monkeypatch
):
    whole, ran = Steps._run_command, []

    def step(self, words):
        ran.append(words[0] if words[0] != "experiment" else words[1])
        if ran.count("train") == 3 and words[0] == "train" and "killed" not in ran:
            ran.append("killed")
            raise RunError(words[0], "was killed")
        return whole(self, words)

    monkeypatch.setattr(Steps, "_run_command", step)
    with pytest.raises(RunError, match="1 of 1 failed"):
        run(tiny)
    assert not (tiny / "tiny.json").exists()
    result = run(tiny)
    found = Counter(ran)
    assert (found["write"], found["refinish"]) == (2, 2)
    assert (found["train"], found["score"]) == (9 + 1, 9)  # one was killed
    assert result.measured.rows.keys() == {"untrained", "simcse", "shuffled", "x2", "plain"}
    plain, untrained = (result.measured.rows[name].keys() for name in ("plain", "untrained"))
    assert (
        "dev over plain" in untrained - plain and {"agreement, words", "kept"} <= plain - untrained
    )
    found = result.measured.differences[0].difference
    both = [result.measured.rows[name]["dev"].score for name in ("x2", "untrained")]
    assert found.low < found.score == pytest.approx(both[0] - both[1]) and found.score != 0
    assert result.sizes["x2"]["source sentences"] == 12 and result.seconds > 0
    assert "it trains" in (tiny / "page.md").read_text() and (tiny / "results/tiny.svg").is_file()
    ran.clear()
    assert run(tiny).measured == result.measured and ran == []
    plan = read_plan(tiny / "plan.yaml")
    runner, seeds = Runner(plan, Steps(tiny / "steps"), None), Seeds(data=(42,), trainings=1)
    pairs, shuffled = (
        read_table(directory / file.path, ["sentence1", "sentence2", "score"]).to_pylist()
        for data in (
            runner.encoders.make_recipes(plan.get_encoder(name), seeds)[0]["datasets"][0]
            for name in ("x2", "shuffled")
        )
        for directory in (Path(data["path"]),)
        for file in require_complete(directory).files
        if file.config == data["config"]
    )
    assert pairs != shuffled and sorted(one["score"] for one in pairs) == sorted(
        one["score"] for one in shuffled
    )
    assert [one["sentence2"] for one in pairs] == [one["sentence2"] for one in shuffled]


def test_local_folders_replace_the_base_that_the_settings_name(tmp_path):
    maker = EncoderMaker(SimpleNamespace(steps=None), ["@assets/offline.yaml"])

    def find_base(recipe: str, setting: str) -> dict:
        (tmp_path / "recipe.yaml").write_text(recipe)
        encoder = Encoder(
            name="e", says="e", recipe=tmp_path / "recipe.yaml", trained=False, set=(setting,)
        )
        return maker.make_recipes(encoder, Seeds(data=(42,), trainings=1))[0]["base"]

    hub = "repo_id: google/gemma-3-270m"
    assert find_base(f"base: {{{hub}}}\n", "base={path: /x}") == {"path": "/x"}
    assert "repo_id" not in find_base("base: {path: /x}\n", f"base={{{hub}}}")
    assert find_base("base: all-minilm-l6-v2\n", "name=e") == "all-minilm-l6-v2"


def test_the_source_sentences_of_a_dataset_are_those_of_its_finished_config(tmp_path):
    small_run(tmp_path / "nli", small_recipe("nli", few_shot=FEW_SHOT | {"shots": [5]}))
    assert (
        get_finished_config(tmp_path / "nli") == "triplet-5shot"
        and 0 < len(read_source_sentences(tmp_path / "nli")) <= 90
    )

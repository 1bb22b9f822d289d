"""Questions from rows of every schema; answers survive kill -9, a full disk and two processes."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import yaml
from annotation_examples import INFERENCE, SCORES, examples
from small_runs import small_recipe, small_run
from training_inputs import sts_rows, triplet_rows, write_dataset

from sts_dino.eval.audit.source import find_rows
from sts_dino.eval.audit.survey import (
    ANSWERS_FILE,
    AnswerStore,
    Survey,
    draw_rows,
    get_words,
    load_page_words,
    normalize_name,
    read_examples,
)
from sts_dino.hub.contract import schema as contract
from sts_dino.hub.contract.schema import PAIR, PAIR_CLASS, TRIPLET
from sts_dino.hub.errors import InputError
from sts_dino.proposals.recipes import load_languages


def examples_of(place, config=None, language=None):
    return read_examples(find_rows(str(place), config, "train"), language)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for schema in ("sts", "nli", "text"):
        small_run(folder / schema, small_recipe(schema))
    return folder


def test_each_example_type_is_asked_about_on_its_own_scale(runs, tmp_path):
    pairs = examples_of(runs / "sts")
    assert pairs.scale.labels == SCORES and pairs.headings == ("Sentence 1", "Sentence 2")
    assert {*pairs.labels} == {*SCORES} and all(first != second for first, second in pairs.texts)
    classes = examples_of(runs / "nli", "pair-class-5shot")
    assert (
        classes.scale.labels == ("entailment", "neutral", "contradiction")
        and not classes.scale.ordered
    )
    assert {*classes.labels} == {"entailment", "contradiction"}, (
        "the generator writes two, people choose of three"
    )
    single = examples_of(runs / "text")
    assert single.headings == ("Text",) and {*single.labels} <= {*single.scale.labels}
    rows = [
        {key: row[key] for key in ("anchor", "positive", "negative", "source_id")}
        for row in triplet_rows(3)
    ]
    triplets = examples_of(write_dataset(tmp_path / "t", {"train": rows}, "triplet", TRIPLET))
    assert triplets.texts[:2] == (
        (rows[0]["anchor"], rows[0]["positive"]),
        (rows[0]["anchor"], rows[0]["negative"]),
    )
    assert triplets.labels == ("entailment", "contradiction") * 3


def test_people_read_the_recipes_words_for_labels_and_the_page_in_the_datasets_language(
    runs, tmp_path
):
    usual, copy = examples_of(runs / "sts"), shutil.copytree(runs / "sts", tmp_path / "sts")
    recipe = yaml.safe_load((copy / "recipe.yaml").read_text(encoding="utf-8"))

    def changed(asked=None, **keys):
        (copy / "recipe.yaml").write_text(
            yaml.safe_dump(recipe | keys, allow_unicode=True), encoding="utf-8"
        )
        found = examples_of(copy, language=asked)
        assert (found.scale.labels, found.sha256) == (usual.scale.labels, usual.sha256)
        return found

    own = [
        {**label, "meaning": "fragen dasselbe"} if label["score"] == 1 else label
        for label in recipe["labels"]
    ]
    meanings = changed(labels=own).scale.meanings
    assert meanings == (*usual.scale.meanings[:3], "fragen dasselbe"), "smoothed from 1 to 0.9"
    german = changed(language="de")
    assert german.headings == ("Satz 1", "Satz 2") and german.scale.question.startswith(
        "Wie ähnlich"
    )
    assert changed("en", language="de").scale == changed(language="it").scale == usual.scale


def test_the_page_speaks_five_of_the_languages_that_prompts_are_in():
    def shape(words):
        """Keys and placeholders, at every level."""
        if isinstance(words, dict):
            return {key: shape(value) for key, value in words.items()}
        return sorted(re.findall(r"{\w+}", str(words)))

    spoken = load_page_words()
    assert {"en", "de", "es", "fr", "zh"} <= spoken.keys() <= load_languages().keys()
    assert all(shape(words) == shape(spoken["en"]) for words in spoken.values())
    assert get_words("de-AT") is spoken["de"] and get_words("yue") is spoken["en"]


def test_labels_that_nobody_could_choose_are_refused(tmp_path):
    one = [{**row, "score": 0.5} for row in sts_rows(4)]
    with pytest.raises(InputError, match="has 1 distinct scores; allowed: 2 to 9"):
        examples_of(write_dataset(tmp_path / "one", {"train": one}))
    pair = {
        "premise": "p",
        "hypothesis": "h",
        "source_id": "s",
        "target": "t",
        "sample": 0,
        "attempt": 0,
        "seed": 1,
    }
    rows = [{**pair, "label": label, "log_prob": 0.0, "margin": None} for label in (0, None)]
    features = contract.build_features({**PAIR_CLASS.columns, **PAIR_CLASS.provenance})
    with pytest.raises(
        InputError, match=r"row 1: has the label 'no label'; allowed: \['entailment'"
    ):
        examples_of(
            write_dataset(tmp_path / "null", {"train": rows}, "pair-class", PAIR_CLASS, features)
        )


def test_rows_without_labels_are_refused(tmp_path):
    row = {"anchor": "a", "positive": "b", **dict.fromkeys(PAIR.provenance)}
    with pytest.raises(InputError, match="has no labels to compare answers with"):
        examples_of(write_dataset(tmp_path / "pairs", {"train": [row]}, "pair", PAIR))


def test_scores_of_another_range_have_no_meanings_of_the_page(tmp_path):
    rows = [{**row, "score": number} for number, row in enumerate(sts_rows(6))]
    scale = examples_of(write_dataset(tmp_path / "human", {"train": rows})).scale
    assert scale.labels == ("0", "1", "2", "3", "4", "5")
    assert scale.meanings == ("",) * 6


EXAMPLES = examples(SCORES)
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/eval")
from annotation_examples import SCORES, examples
from sts_dino.eval.audit.survey import AnswerStore
store = AnswerStore(Path(sys.argv[1]), examples(SCORES))
for row in range(int(sys.argv[3])):
    store.add(sys.argv[2], row, "0.5")
    print(row, flush=True)
"""


def test_the_last_answer_counts_and_the_history_stays(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    for name, row, label in [
        ("ann", 2, "0"),
        ("bob", 2, "0.9"),
        ("ann", 0, "0.5"),
        ("ann", 2, "0.1"),
    ]:
        store.add(name, row, label)
    again = AnswerStore(tmp_path, EXAMPLES)
    assert [*again.read_answers().items()] == [("ann", {2: "0.1", 0: "0.5"}), ("bob", {2: "0.9"})]
    with closing(sqlite3.connect(tmp_path / ANSWERS_FILE)) as table:
        labels, times = zip(
            *table.execute("SELECT label, time FROM answers ORDER BY number"), strict=True
        )
    assert labels == ("0", "0.9", "0.5", "0.1") and times[0].endswith("+00:00")


def test_names_are_values_and_never_paths_or_statements(tmp_path):
    store = AnswerStore(tmp_path / "answers", EXAMPLES)
    names = ["../../etc/x", "a'); drop table answers; --", "名前", "null"]
    for name in names:
        store.add(name, 1, "0")
    assert list(store.read_answers()) == names and [path.name for path in tmp_path.rglob("*")] == [
        "answers",
        ANSWERS_FILE,
    ]
    assert normalize_name("  Zoe\u0308 \n\u202e Müller\x00 ") == "zoë müller"
    assert normalize_name("ＡＮＡ") == normalize_name("ana") == normalize_name("Ana\u200b")
    for name in ("", "\u200b", "x" * 61):
        with pytest.raises(InputError, match=r"name: has .* allowed: 1 to 60"):
            normalize_name(name)


def test_another_file_or_answers_about_other_rows_are_refused_and_left_alone(tmp_path):
    AnswerStore(tmp_path, EXAMPLES)
    for other in (examples(["0", "0.1", "0.5", "0.5"]), examples(["neutral"], INFERENCE)):
        with pytest.raises(InputError, match=r"holds answers about other rows .*--out"):
            AnswerStore(tmp_path, other)
    (tmp_path / ANSWERS_FILE).write_text(
        "my notes, not a database, and long enough to be looked at as one " * 20
    )
    with pytest.raises(InputError, match="is not a file of answers"):
        AnswerStore(tmp_path, EXAMPLES)
    assert (tmp_path / ANSWERS_FILE).read_text().startswith("my notes")


def test_a_database_of_another_program_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / ANSWERS_FILE)) as database:
        database.execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(InputError, match="is not a file of answers: it has the tables notes"):
        AnswerStore(tmp_path, EXAMPLES)


def test_every_answer_that_was_confirmed_survives_kill_9_while_another_process_writes(tmp_path):
    killed, other = (
        subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, *words], stdout=subprocess.PIPE, text=True
        )
        for words in (("ann", "1000000"), ("bob", "40"))
    )
    confirmed = [int(killed.stdout.readline()) for _ in range(25)]
    killed.send_signal(signal.SIGKILL)
    confirmed += [
        int(line) for line in killed.communicate()[0].splitlines() if line.strip().isdigit()
    ]
    assert other.wait(60) == 0
    found = AnswerStore(tmp_path, EXAMPLES).read_answers()
    assert set(confirmed) <= found["ann"].keys() and len(found["ann"]) <= len(confirmed) + 1
    assert found["bob"] == dict.fromkeys(range(40), "0.5")


def test_a_full_disk_refuses_the_answer_and_keeps_the_others(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    store.add("ann", 0, "0.9")
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({store.path.stat().st_size + 8192},) * 2)\n"
    ) + WRITER.replace('"0.5")\n    print', '"0.5" * 999)\n    print')
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, "bob", "1000"], capture_output=True, text=True
    )
    assert (
        done.returncode == 1
        and "RunError" in done.stderr
        and "no earlier answer is lost" in done.stderr
    )
    kept = done.stdout.split()
    assert (
        kept
        and list(store.read_answers()["bob"]) == list(range(len(kept)))
        and store.read_answers()["ann"] == {0: "0.9"}
    )
    store.add("bob", 999, "0")
    assert store.read_answers()["bob"][999] == "0"


def test_answers_of_an_earlier_version_are_read(tmp_path):
    """Its file had a table of the annotators who had seen the results."""
    AnswerStore(tmp_path, EXAMPLES).add("Ann", 0, "0.9")  # that version kept the spelling
    with sqlite3.connect(tmp_path / ANSWERS_FILE) as database:
        database.execute(
            "CREATE TABLE finished (annotator TEXT PRIMARY KEY, last INTEGER, time TEXT)"
        )
        database.execute("INSERT INTO finished VALUES ('Ann', 1, '')")
    assert AnswerStore(tmp_path, EXAMPLES).read_answers() == {"ann": {0: "0.9"}}
    AnswerStore(tmp_path, EXAMPLES).add("ann", 0, "0")  # as this version stores the name
    assert AnswerStore(tmp_path, EXAMPLES).read_answers() == {"ann": {0: "0"}}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
def test_answers_are_for_their_owner_alone(tmp_path):
    earlier = os.umask(0)
    try:
        AnswerStore(tmp_path, EXAMPLES).add("ann", 0, "0.9")
    finally:
        os.umask(earlier)
    assert (tmp_path / ANSWERS_FILE).stat().st_mode & 0o777 == 0o600


def test_a_larger_sample_opens_new_pairs_and_two_tabs_share_the_answers(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    few, more = (Survey(EXAMPLES, 0, draw_rows(EXAMPLES, count, seed=0), store) for count in (2, 4))
    assert (
        few.store_answer("ann", 1, "0.5") == 0
        and few.store_answer("ann", 0, "0") == 1
        and few.find_next_open("ann") == 2
    )
    assert (
        more.rows[:2] == few.rows
        and more.find_next_open("ann") == 2
        and more.find_next_open("bob") == 0
    )
    assert more.store_answer("ann", 2, "0.5") == 3 and few.store_answer("ann", 0, "0") == 1, (
        "the same answer twice"
    )
    assert [*more.read_answers()["ann"].values()] == ["0", "0.5", "0.5"]
    with pytest.raises(InputError, match=r"is '0' at 2; allowed: .* at 0 to 1$"):
        few.store_answer("ann", 2, "0")

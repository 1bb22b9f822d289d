"""sts-dino new: a corpus described, and a recipe that the stages take as it is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from command_outcomes import outcome_of

from generation import run as write
from generation.plan import plan
from generation.run import is_question
from hub.assets import asset
from hub.contract import licences
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from hub.word_overlap import word_overlap
from sts_dino import api, new
from sts_dino.proposals.corpus import KINDS, find_column, profile
from sts_dino.proposals.recipes import choose_generator, languages

pytest_plugins = ["local_hub"]
ENGLISH = ["How do I reset my password?", "Where is my order now?", "Which card can I pay with today?"]
GERMAN = ["Wie setze ich mein Passwort zurück?", "Wo ist meine Bestellung gerade?", "Mit welcher Karte zahle ich?"]


def written(tmp_path, lines, name="corpus.txt"):
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def run(*words):
    return outcome_of(new, *words)


@pytest.mark.parametrize(
    ("corpus", "stem"),
    [("März.txt", "marz"), ("Straße 5.csv", "strasse-5"), ("Łódź.txt", "lodz"), ("日本.txt", "corpus")],
)
def test_a_name_keeps_its_letters_without_their_accents(corpus, stem):
    assert new.stem_of(corpus) == stem


def test_a_profile_counts_what_is_unusable_by_its_first_fault(tmp_path):
    faults = ["", "  ", "broken \ufffd text here", "a\x07bell rings here", "word " * 300, ENGLISH[0]]
    found = profile(written(tmp_path, [*ENGLISH, *faults, 'It says "no" to me']))
    assert (found.rows, found.usable, found.quoted, found.whole) == (10, 4, 1, True)
    assert (found.empty, found.broken, found.overlong, found.repeated) == (2, 2, 1, 1)
    assert found.words == (5, 5, 6) and found.language == "en"


def test_what_was_read_is_printed_and_many_rows_passed_over_are_a_warning(tmp_path, capsys):
    path = written(tmp_path, [*ENGLISH, "\u202ewhere", "", "", ENGLISH[0]], "a.txt")
    done = run(path, "--out", tmp_path / "r.yaml", *LM)
    read, *texts, warning = done.stderr.splitlines()[:5]
    over = "2 empty, 1 broken, 1 repeated (57% of the rows)"
    assert read == f"read a.txt: 7 rows, 3 usable; passed over: {over}" and texts == [f'  "{one}"' for one in ENGLISH]
    assert warning == f"warning: a.txt: rows are passed over: {over}"
    capsys.readouterr()
    plan(load_recipe(tmp_path / "r.yaml", DatasetRecipe, ["premise_tokens=[3, 7]"]), tmp_path / "out")  # of the model's
    assert "length" in capsys.readouterr().err.splitlines()[-1]


def test_a_proposal_counts_tokens_as_a_run_does(tmp_path):
    long = "Pneumonoultramicroscopicsilicovolcanoconiosis electroencephalographically floccinaucinihilipilification"
    path, recipe = written(tmp_path, [*ENGLISH, f"{long} {long}"]), tmp_path / "r.yaml"
    done = run(path, "--out", recipe, *LM)
    assert "4 rows, 3 usable; passed over: 1 length (25% of the rows)" in done.stderr.splitlines()[0]
    assert "; the recipe's premise_tokens bound the length" in done.stderr.splitlines()[4]
    path.write_text("one\ntwo\n")
    refused = run(path, "--out", tmp_path / "none.yaml", *LM, "--language", "en")
    assert refused.code == 2 and "has no usable text" in refused.error and "{'length': 2}" in refused.error
    assert not list(tmp_path.glob("none*"))


@pytest.mark.parametrize("kind", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_chat_template_is_proposed_as_a_line_that_works(tmp_path, kind):
    template, folder = "<|{{ messages[0].role }}|>{{ messages[0].content }}", tmp_path / "chat"
    shutil.copytree(asset("demo-lm"), folder)
    kept = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = template if kind.endswith(".jinja") else json.dumps(kept | {"chat_template": template})
    (folder / kind).write_text(text, encoding="utf-8")
    recipe = tmp_path / "r.yaml"
    done = run(written(tmp_path, ENGLISH), "--out", recipe, "--lm", folder, "--lm-license", "mit")
    assert done.code == 0 and "the model has a chat template" in done.printed
    assert not load_recipe(recipe, DatasetRecipe).model.chat_template
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("# chat_template", "chat_template"), encoding="utf-8")
    assert "'us' 'er' '|' '>' 'T" in plan(load_recipe(recipe, DatasetRecipe), tmp_path / "out")


def test_a_language_is_recognised_or_given(tmp_path):
    path = written(tmp_path, GERMAN)
    assert (profile(path).language, profile(path).in_language) == ("de", 1.0)
    assert profile(path, language="fr").in_language == 0


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_column_of_texts_is_found_in_every_kind_of_file(tmp_path, suffix):
    table = pa.table({"id": ["1", "2", "3"], "utterance": ENGLISH, "label": ["a", "b", "c"]})
    path = tmp_path / f"corpus{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(one) + "\n" for one in table.to_pylist()))
    else:
        csv.write_csv(table, path)
    assert find_column(path, None) == "utterance" and find_column(path, "label") == "label"
    assert profile(path).usable == 3
    assert run(path, "--out", tmp_path / "r.yaml", "--lm", "builtin").code == 0
    assert load_recipe(tmp_path / "r.yaml", DatasetRecipe).source.columns == ("utterance",)


LM, MODEL = ["--lm", "builtin"], ["--lm", asset("demo-lm"), "--lm-license", "mit"]


def test_examples_that_are_there_are_not_replaced(tmp_path):
    mine = asset("examples/sts.tsv").read_text(encoding="utf-8") + "Mine.\tMine, too.\tIt is mine.\tRain.\n"
    (tmp_path / "r.examples.tsv").write_text(mine, encoding="utf-8")
    path = written(tmp_path, ENGLISH)
    done = run(path, "--out", tmp_path / "r.yaml", "--lm", asset("demo-lm"), "--lm-license", "mit")
    assert done.code == 0 and (tmp_path / "r.examples.tsv").read_text(encoding="utf-8") == mine
    assert f"; your examples in {tmp_path / 'r.examples.tsv'} stay" in done.stderr
    examples = load_recipe(tmp_path / "r.yaml", DatasetRecipe).few_shot.examples
    assert (examples.license, examples.description) == ("unlicensed", "examples of the corpus's owner")


TITLES = ["Repairing a leaking roof", "History of the steam engine", "Storm damage on the coast"]
OF_ENGLISH = "3 texts, English, questions (100% end in a question mark; another kind: --kind): "


@pytest.mark.parametrize(
    ("lines", "options", "said", "instruction", "examples"),
    [
        (ENGLISH, [], f"{OF_ENGLISH}instructions and examples are those for", "two questions", "questions.tsv"),
        (ENGLISH, ["--kind", "tickets"], "are those for English tickets", "two customer requests", "tickets.tsv"),
        (ENGLISH, ["--lm", "builtin"], f"{OF_ENGLISH}instructions are those for English st", "two sentences", None),
        (TITLES, [], "English, titles (100% have at most 12 words and no full stop;", "two titles", "titles.tsv"),
        (TITLES, ["--language", "fr"], "are those for French statements (none for titles)", "phrases", "sts.fr.tsv"),
        (GERMAN, [], "are those for German questions", "zwei Fragen", "questions.de.tsv"),
        (["猫睡在炉子旁边。"], [], "Chinese, statements (0% end in", "两个意思相同的句子", "sts.zh.tsv"),
        (["Il mercato apre alle otto."], [], "the English ones, to translate (none for it)", "two sentences", None),
    ],
)
def test_language_and_kind_choose_instructions_and_examples(tmp_path, lines, options, said, instruction, examples):
    path, recipe, beside = written(tmp_path, lines), tmp_path / "r.yaml", tmp_path / "r.examples.tsv"
    shutil.copy(asset("examples/titles.tsv"), beside)  # of an earlier choice: not the user's
    done = run(path, "--out", recipe, *([] if "--lm" in options else MODEL), *options)
    assert done.code == 0 and said in done.stderr
    found = load_recipe(recipe, DatasetRecipe)
    assert instruction in found.labels[0].instruction and (found.few_shot is None) == (examples is None)
    assert examples is None or beside.read_bytes() == asset(f"examples/{examples}").read_bytes()


def test_an_unknown_kind_is_refused(tmp_path):
    refused = run(written(tmp_path, ENGLISH), "--out", tmp_path / "r.yaml", *LM, "--kind", "question")
    assert refused.code == 2 and "--kind: no kind 'question'; allowed: statements, questions" in refused.error


@pytest.mark.parametrize(("lines", "words"), [(ENGLISH, "Task: Write two"), (GERMAN, "Aufgabe: Schreibe zwei")])
def test_the_recipe_is_taken_as_it_is_from_any_folder(tmp_path, monkeypatch, lines, words):
    corpus, folder = written(tmp_path, lines), tmp_path / "recipes"
    options = ["--lm", asset("demo-lm"), "--lm-license", "mit", "--license", "mit"]
    done = run(corpus, "--out", folder / "mine.yaml", *options)
    assert done.code == 0 and "# corpus.txt: 3 usable texts in its 3 rows;" in done.printed
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(folder / "mine.yaml", DatasetRecipe)
    assert Path(recipe.source.path) == corpus and Path(recipe.few_shot.examples.path) == folder / "mine.examples.tsv"
    assert licences.check(recipe).licence.id == recipe.license == "mit"
    shown = plan(recipe, tmp_path / "out")
    assert "texts: 9 wanted, 3 of label 1, 3 of label" in shown and words in shown
    assert recipe.labels[0].meaning == languages()[recipe.language]["1 means"]
    filters = ("example_copy", "prompt_echo", "control_characters", "too_long", "wrong_language")
    assert recipe.postprocess.reject == filters


def test_a_files_name_stays_within_the_recipes_comment(tmp_path):
    corpus = written(tmp_path, ENGLISH).rename(tmp_path / "a\nseed: 7\nx.txt")
    assert run(corpus, "--out", tmp_path / "r.yaml", *LM).code == 0
    recipe = load_recipe(tmp_path / "r.yaml", DatasetRecipe)
    assert (recipe.seed, recipe.source.path) == (42, str(corpus)) and "\n" not in recipe.source.description


def test_the_built_in_model_is_shown_no_examples_and_json_has_the_profile(tmp_path):
    done = run(written(tmp_path, ENGLISH), "--out", tmp_path / "r.yaml", *LM, "--json")
    facts = json.loads(done.printed)
    assert (facts["usable"], facts["language"], facts["recipe"]) == (3, "en", str(tmp_path / "r.yaml"))
    recipe = load_recipe(tmp_path / "r.yaml", DatasetRecipe)
    assert recipe.few_shot is None and recipe.decoding.decay_constant == 100 and not list(tmp_path.glob("*.tsv"))
    assert recipe.license == "mixed-non-commercial"


CODE = [line for line in Path("hub/durable.py").read_text(encoding="utf-8").splitlines() if line.strip()]
SPANISH = ["¿Cómo puedo cambiar mi contraseña?", "¿Dónde está mi pedido ahora?"]
CHINESE = ["我怎样重置密码？", "订单在哪里？"]


@pytest.mark.parametrize("lines", [GERMAN, SPANISH, CHINESE, CODE], ids=["de", "es", "zh", "code"])
def test_the_built_in_model_is_refused_for_what_it_does_not_write(tmp_path, monkeypatch, lines):
    monkeypatch.chdir(tmp_path)
    corpus, recipe = written(tmp_path, lines), tmp_path / "r.yaml"
    refused = run(corpus, "--out", recipe, *LM)
    sure, unsure = "100% of its texts are recognised as", "no language is clear (code, mixed?): "
    assert refused.code == 2 and (unsure if lines is CODE else sure) in refused.error
    with pytest.raises(InputError, match=r"writes English sentences alone; .*sts-dino lm.*--lm FOLDER"):
        api.write_pairs(lines, name="texts", lm="builtin")
    assert not recipe.exists()
    assert run(corpus, "--out", recipe, *LM, "--language", "en").code == 0, "as the user says"
    recipe.write_text(recipe.read_text().replace("language: en", "language: de"))
    assert "the built-in model writes English sentences alone" in outcome_of(write, recipe, "--dry-run").error


def test_every_language_has_its_instructions_and_examples():
    named = list[str]()
    for code, words in languages().items():
        assert "statements" in words
        for kind in words.keys() & {*KINDS}:
            asked = [words[kind][label] for label in ("1", "0.5", "0")]
            assert all('"<X1>"' in one and one.endswith((': "', '："')) for one in asked), (code, kind)
            named.append(words[kind]["examples"])
            header, *rows = asset(f"examples/{named[-1]}").read_text(encoding="utf-8").splitlines()
            cells = [cell for row in rows for cell in row.split("\t")]
            assert header == "text1\t1\t0.5\t0" and len(rows) == 20 and len({*cells}) == 80, (code, kind)
            assert all(map(is_question, cells)) == (kind == "questions"), (code, kind)
            assert all(word_overlap(*row.split("\t")[:2]) <= 0.75 for row in rows), (code, kind)
    assert {path.name for path in asset("examples").glob("*.tsv")} == {*named, "search.tsv"}


def test_without_gemma_here_and_without_assets_the_hub_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert choose_generator(None, None).section["license"] == "cc-by-nc-sa-4.0"
    monkeypatch.setattr("sts_dino.proposals.recipes.BUILT_IN", tmp_path / "none")
    assert choose_generator(None, None).section["repo_id"] == "google/gemma-3-270m"
    with pytest.raises(InputError, match="licence of x/y is not known"):
        choose_generator("x/y", None)


def test_a_place_that_is_no_file_may_be_of_a_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org/here").touch()
    assert new.is_on_hub("org/name") and new.is_on_hub("org/name.v2@refs/pr/1")
    assert not any(map(new.is_on_hub, ["org/here", "data/questions.csv", "./org/name", "/org/name", "name", "a/b/c"]))


OF_HUB = """
import json, sys
from pathlib import Path
from hub.errors import InputError
from sts_dino.new import CorpusChoices, propose

for number, (place, options) in enumerate(json.loads(sys.argv[1])):
    try:
        facts = propose(place, recipe := Path(f"r{number}.yaml"), "pairs", CorpusChoices(lm="builtin", **options))
        print(json.dumps([facts["source"], facts["usable"], facts["whole"], recipe.read_text()]))
    except InputError as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.slow("a fresh process, and a Hub")
def test_a_dataset_of_a_hub_is_pinned_where_it_was_looked_at(local_hub, hub_api, repo, tmp_path):
    folder = tmp_path / "up"
    (folder / "data").mkdir(parents=True)
    for name, rows in (
        ("train-00000-of-00002", ENGLISH),
        ("train-00001-of-00002", GERMAN),
        ("test-00000-of-00001", GERMAN),
    ):
        pq.write_table(pa.table({"id": range(3), "question": rows}), folder / f"data/{name}.parquet")
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Questions\n")
    commit = hub_api.upload_folder(repo_id=repo, folder_path=folder, repo_type="dataset").oid
    refusals = [("@v9", {}, "v9"), ("", {"config": "defualt"}, "no config 'defualt'")]
    refusals += [("", {"split": "tran"}, "no split 'tran'"), ("", {"column": "questions"}, "not in the data")]
    asked = [(f"{repo}@main", {"language": "en"})]
    asked += [(f"{repo}@{commit}", {"split": "test", "corpus_license": "mit", "language": "en"})]
    asked += [(repo + place, options) for place, options, _ in refusals]
    environment = local_hub.client_environment(tmp_path / "home") | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", OF_HUB, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    main, test, *refused = map(json.loads, done.stdout.splitlines())
    where = {"kind": "hub", "repo_id": repo, "revision": commit, "config": "default"}
    assert main[:3] == [{**where, "splits": ["train"], "license": "cc-by-4.0"}, 6, True]
    assert test[:3] == [{**where, "splits": ["test"], "license": "mit"}, 3, True] and "language: en" in test[3]
    assert f"{repo}: main is {commit} now; the recipe pins that" in done.stderr.splitlines()
    recipe = load_recipe(tmp_path / "r0.yaml", DatasetRecipe)
    assert (recipe.source.repo_id, recipe.source.columns) == (repo, ("question",))
    assert all(problem in said for said, (_, _, problem) in zip(refused, refusals, strict=True))
    assert not list(tmp_path.glob("r[2-9].yaml"))

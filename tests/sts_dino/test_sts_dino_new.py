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

from sts_dino import api, check, new
from sts_dino.generation import run as write
from sts_dino.generation.inputs.sources import SOURCES
from sts_dino.generation.plan import describe_plan
from sts_dino.generation.run import is_question
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.hub.word_overlap import compute_word_overlap
from sts_dino.proposals import corpus as corpora
from sts_dino.proposals.corpus import KINDS, find_columns, is_passage, measure_file
from sts_dino.proposals.recipes import choose_generator, load_languages

pytest_plugins = ["local_hub"]
ENGLISH = [
    "How do I reset my password?",
    "Where is my order now?",
    "Which card can I pay with today?",
]
GERMAN = [
    "Wie setze ich mein Passwort zurück?",
    "Wo ist meine Bestellung gerade?",
    "Mit welcher Karte zahle ich?",
]


def written(tmp_path, lines, name="corpus.txt"):
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def run(*words):
    return outcome_of(new, *words)


@pytest.mark.parametrize(
    ("corpus", "stem"),
    [
        ("März.txt", "marz"),
        ("Straße 5.csv", "strasse-5"),
        ("Łódź.txt", "lodz"),
        ("日本.txt", "corpus"),
        ("org/Wiki-1.5@v1.0", "wiki-1-5"),
        ("Þing í Garður.csv.gz", "thing-i-gardur"),
        ("b" * 120 + ".txt", "b" * 80),
    ],
)
def test_a_name_keeps_its_letters_without_their_accents(corpus, stem):
    assert new.make_corpus_name(corpus) == stem


def test_a_profile_counts_what_is_unusable_by_its_first_fault(tmp_path):
    faults = [
        "",
        "  ",
        "broken \ufffd text here",
        "a\x07bell rings here",
        "word " * 300,
        ENGLISH[0],
    ]
    found = measure_file(written(tmp_path, [*ENGLISH, *faults, 'It says "no" to me']))
    assert (found.rows, found.usable, found.quoted, found.whole) == (10, 4, 1, True)
    assert found.faults == {"empty": 2, "broken": 2, "multiline": 0, "overlong": 1, "repeated": 1}
    assert found.words == (5, 5, 6) and found.language == "en"


def test_what_was_read_is_printed_and_many_rows_passed_over_are_a_warning(tmp_path, capsys):
    path = written(tmp_path, [*ENGLISH, "\u202ewhere", "", "", ENGLISH[0]], "a.txt")
    done = run(path, "--out", tmp_path / "r.yaml", *LM)
    model, read, *texts, warning = done.stderr.splitlines()[:6]
    assert model.startswith("language model: the built-in demonstration model")
    over = "2 empty, 1 broken, 1 repeated (57% of the rows)"
    assert read == f"read a.txt: 7 rows, 3 usable; passed over: {over}" and texts == [
        f'  "{one}"' for one in ENGLISH
    ]
    assert warning == f"warning: a.txt: rows are passed over: {over}"
    capsys.readouterr()
    # of the model's
    describe_plan(
        load_recipe(tmp_path / "r.yaml", DatasetRecipe, ["premise_tokens=[3, 7]"]), tmp_path / "out"
    )
    assert "length" in capsys.readouterr().err.splitlines()[-1]


def test_the_recipe_counts_rows_of_several_lines_among_the_others(tmp_path):
    path = tmp_path / "a.csv"
    rows = "".join(f"{text}\n" for text in ENGLISH)
    path.write_text(f'text\n{rows}"a text\nof two lines"\n', encoding="utf-8")
    run(path, "--out", tmp_path / "r.yaml", *LM)
    text = (tmp_path / "r.yaml").read_text(encoding="utf-8")
    assert "3 usable texts in its 4 rows (the others: 1 multiline);" in text


@pytest.mark.parametrize(("rows", "limit"), [(4, 3), (3, 50)])
def test_only_a_corpus_that_was_counted_lowers_the_limit(tmp_path, monkeypatch, rows, limit):
    monkeypatch.setattr(corpora, "PROFILED_ROWS", rows)
    recipe = tmp_path / "r.yaml"
    lines = [*ENGLISH, ENGLISH[0]]  # four rows, three of which are usable
    done = run(written(tmp_path, lines), "--out", recipe, *LM, "--limit", "50")
    assert done.code == 0
    assert load_recipe(recipe, DatasetRecipe).source.limit == limit


def test_a_proposal_counts_tokens_as_a_run_does(tmp_path):
    long = "Pneumonoultramicroscopicsilicovolcanoconiosis electroencephalographically "
    long += "floccinaucinihilipilification"
    path, recipe = written(tmp_path, [*ENGLISH, f"{long} {long}"]), tmp_path / "r.yaml"
    done = run(path, "--out", recipe, *LM)
    assert (
        "4 rows, 3 usable; passed over: 1 length (25% of the rows)" in done.stderr.splitlines()[1]
    )
    assert "; the recipe's premise_tokens bound the length" in done.stderr.splitlines()[5]
    path.write_text("one\ntwo\n")
    refused = run(path, "--out", tmp_path / "none.yaml", *LM, "--language", "en")
    assert (
        refused.code == 2
        and "has no usable text" in refused.error
        and "{'length': 2}" in refused.error
    )
    assert not list(tmp_path.glob("none*"))


@pytest.mark.parametrize("kind", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_chat_template_is_proposed_as_a_line_that_works(tmp_path, kind):
    template, folder = "<|{{ messages[0].role }}|>{{ messages[0].content }}", tmp_path / "chat"
    shutil.copytree(find_asset("demo-lm"), folder)
    kept = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = template if kind.endswith(".jinja") else json.dumps(kept | {"chat_template": template})
    (folder / kind).write_text(text, encoding="utf-8")
    recipe = tmp_path / "r.yaml"
    done = run(written(tmp_path, ENGLISH), "--out", recipe, "--lm", folder, "--lm-license", "mit")
    assert done.code == 0 and "the model has a chat template" in done.printed
    assert not load_recipe(recipe, DatasetRecipe).model.chat_template
    recipe.write_text(
        recipe.read_text(encoding="utf-8").replace("# chat_template", "chat_template"),
        encoding="utf-8",
    )
    assert "'us' 'er' '|' '>' 'T" in describe_plan(
        load_recipe(recipe, DatasetRecipe), tmp_path / "out"
    )


def test_a_language_is_recognised_or_given(tmp_path):
    path = written(tmp_path, GERMAN)
    assert (measure_file(path).language, measure_file(path).in_language) == ("de", 1.0)
    assert measure_file(path, language="fr").in_language == 0


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
    assert find_columns(path, None) == ("utterance",) and find_columns(path, "label") == ("label",)
    assert measure_file(path).usable == 3
    assert run(path, "--out", tmp_path / "r.yaml", "--lm", "builtin").code == 0
    assert load_recipe(tmp_path / "r.yaml", DatasetRecipe).source.columns == ("utterance",)


LM, MODEL = ["--lm", "builtin"], ["--lm", find_asset("demo-lm"), "--lm-license", "mit"]


def test_examples_that_are_there_are_not_replaced(tmp_path):
    mine = (
        find_asset("examples/sts.tsv").read_text(encoding="utf-8")
        + "Mine.\tMine, too.\tIt is mine.\tRain.\n"
    )
    (tmp_path / "r.examples.tsv").write_text(mine, encoding="utf-8")
    path = written(tmp_path, ENGLISH)
    done = run(
        path, "--out", tmp_path / "r.yaml", "--lm", find_asset("demo-lm"), "--lm-license", "mit"
    )
    assert done.code == 0 and (tmp_path / "r.examples.tsv").read_text(encoding="utf-8") == mine
    assert f"; your examples in {tmp_path / 'r.examples.tsv'} stay" in done.stderr
    examples = load_recipe(tmp_path / "r.yaml", DatasetRecipe).few_shot.examples
    assert (examples.license, examples.description) == (
        "unlicensed",
        "examples of the corpus's owner",
    )


TITLES = ["Repairing a leaking roof", "History of the steam engine", "Storm damage on the coast"]
OF_ENGLISH = "3 texts, English, questions (100% end in a question mark; another kind: --kind): "


@pytest.mark.parametrize(
    ("lines", "options", "said", "instruction", "examples"),
    [
        (
            ENGLISH,
            [],
            f"{OF_ENGLISH}instructions and examples are those for",
            "two questions",
            "questions.tsv",
        ),
        (
            ENGLISH,
            ["--kind", "tickets"],
            "are those for English tickets",
            "two customer requests",
            "tickets.tsv",
        ),
        (
            ENGLISH,
            ["--lm", "builtin"],
            f"{OF_ENGLISH}instructions are those for English st",
            "two sentences",
            None,
        ),
        (
            TITLES,
            [],
            "English, titles (100% have at most 12 words and no full stop;",
            "two titles",
            "titles.tsv",
        ),
        (
            TITLES,
            ["--language", "fr"],
            "are those for French statements (none for titles)",
            "phrases",
            "sts.fr.tsv",
        ),
        (GERMAN, [], "are those for German questions", "zwei Fragen", "questions.de.tsv"),
        (
            ["猫睡在炉子旁边。"],
            [],
            "Chinese, statements (0% end in",
            "两个意思相同的句子",
            "sts.zh.tsv",
        ),
        (
            ["Jag är trött."],
            [],
            "the English ones, to translate (none for sv)",
            "two sentences",
            None,
        ),
    ],
)
def test_language_and_kind_choose_instructions_and_examples(
    offline, tmp_path, lines, options, said, instruction, examples
):
    path, recipe, beside = (
        written(tmp_path, lines),
        tmp_path / "r.yaml",
        tmp_path / "r.examples.tsv",
    )
    shutil.copy(find_asset("examples/titles.tsv"), beside)  # of an earlier choice: not the user's
    done = run(path, "--out", recipe, *([] if "--lm" in options else MODEL), *options)
    assert done.code == 0 and said in done.stderr
    found = load_recipe(recipe, DatasetRecipe)
    assert instruction in found.labels[0].instruction and (found.few_shot is None) == (
        examples is None
    )
    assert (
        examples is None or beside.read_bytes() == find_asset(f"examples/{examples}").read_bytes()
    )


def test_an_unknown_kind_is_refused(tmp_path):
    refused = run(
        written(tmp_path, ENGLISH), "--out", tmp_path / "r.yaml", *LM, "--kind", "question"
    )
    assert (
        refused.code == 2
        and "--kind: no kind 'question'; allowed: statements, questions" in refused.error
    )


@pytest.mark.parametrize(
    ("lines", "words"), [(ENGLISH, "Task: Write two"), (GERMAN, "Aufgabe: Schreibe zwei")]
)
def test_the_recipe_is_taken_as_it_is_from_any_folder(offline, tmp_path, monkeypatch, lines, words):
    corpus, folder = written(tmp_path, lines), tmp_path / "recipes"
    # the model's README.md has this licence
    options = ["--lm", find_asset("demo-lm"), "--lm-license", "cc-by-nc-sa-4.0", "--license", "mit"]
    done = run(corpus, "--out", folder / "mine.yaml", *options)
    assert done.code == 0 and "# corpus.txt: 3 usable texts in its 3 rows;" in done.printed
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(folder / "mine.yaml", DatasetRecipe)
    assert (
        Path(recipe.source.path) == corpus
        and Path(recipe.few_shot.examples.path) == folder / "mine.examples.tsv"
    )
    assert licences.check_dataset(recipe).licence.id == recipe.license == "cc-by-nc-sa-4.0"
    shown = describe_plan(recipe, tmp_path / "out")
    assert "texts: 9 wanted, 3 of label 1, 3 of label" in shown and words in shown
    assert recipe.labels[0].meaning == load_languages()[recipe.language]["1 means"]
    filters = ("example_copy", "prompt_echo", "control_characters", "too_long", "wrong_language")
    assert recipe.postprocess.reject == filters


def test_a_files_name_stays_within_the_recipes_comment(tmp_path):
    corpus = written(tmp_path, ENGLISH).rename(tmp_path / "a\nseed: 7\nx.txt")
    assert run(corpus, "--out", tmp_path / "r.yaml", *LM).code == 0
    recipe = load_recipe(tmp_path / "r.yaml", DatasetRecipe)
    assert (recipe.seed, recipe.source.path) == (
        42,
        str(corpus),
    ) and "\n" not in recipe.source.description


def test_the_built_in_model_is_shown_no_examples_and_json_has_the_profile(tmp_path):
    done = run(written(tmp_path, ENGLISH), "--out", tmp_path / "r.yaml", *LM, "--json")
    facts = json.loads(done.printed)
    assert (facts["usable"], facts["language"], facts["recipe"]) == (
        3,
        "en",
        str(tmp_path / "r.yaml"),
    )
    recipe = load_recipe(tmp_path / "r.yaml", DatasetRecipe)
    assert (
        recipe.few_shot is None
        and recipe.decoding.decay_constant == 100
        and not list(tmp_path.glob("*.tsv"))
    )
    assert recipe.license == "mixed-unlicensed-non-commercial"


CODE = [
    line for line in Path("hub/durable.py").read_text(encoding="utf-8").splitlines() if line.strip()
]
SPANISH = ["¿Cómo puedo cambiar mi contraseña?", "¿Dónde está mi pedido ahora?"]
CHINESE = ["我怎样重置密码？", "订单在哪里？"]


@pytest.mark.parametrize("lines", [GERMAN, SPANISH, CHINESE, CODE], ids=["de", "es", "zh", "code"])
def test_the_built_in_model_is_refused_for_what_it_does_not_write(tmp_path, monkeypatch, lines):
    monkeypatch.chdir(tmp_path)
    corpus, recipe = written(tmp_path, lines), tmp_path / "r.yaml"
    refused = run(corpus, "--out", recipe, *LM)
    sure, unsure = "100% of its texts are recognised as", "no language is clear (code, mixed?): "
    assert refused.code == 2 and (unsure if lines is CODE else sure) in refused.error
    with pytest.raises(
        InputError, match=r"writes English sentences alone; .*sts-dino lm.*--lm FOLDER"
    ):
        api.write_pairs(lines, name="texts", lm="builtin")
    assert not recipe.exists()
    assert run(corpus, "--out", recipe, *LM, "--language", "en").code == 0, "as the user says"
    recipe.write_text(recipe.read_text().replace("language: en", "language: de"))
    assert (
        "the built-in model writes English sentences alone"
        in outcome_of(write, recipe, "--dry-run").error
    )


def test_every_language_has_its_instructions_and_examples():
    named = list[str]()
    for code, words in load_languages().items():
        assert "statements" in words
        for kind in words.keys() & {*KINDS}:
            asked = [words[kind][label] for label in ("1", "0.5", "0")]
            assert all('"<X1>"' in one and one.endswith((': "', '："')) for one in asked), (
                code,
                kind,
            )
            named.append(words[kind]["examples"])
            header, *rows = (
                find_asset(f"examples/{named[-1]}").read_text(encoding="utf-8").splitlines()
            )
            cells = [cell for row in rows for cell in row.split("\t")]
            assert header == "text1\t1\t0.5\t0" and len(rows) == 20 and len({*cells}) == 80, (
                code,
                kind,
            )
            assert all(map(is_question, cells)) == (kind == "questions"), (code, kind)
            assert all(compute_word_overlap(*row.split("\t")[:2]) <= 0.75 for row in rows), (
                code,
                kind,
            )
    assert {path.name for path in find_asset("examples").glob("*.tsv")} == {*named, "search.tsv"}


def test_without_gemma_here_and_without_assets_the_hub_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert choose_generator(None, None).section["license"] == "cc-by-nc-sa-4.0"
    monkeypatch.setattr("sts_dino.proposals.recipes.BUILT_IN", tmp_path / "none")
    assert choose_generator(None, None).section["repo_id"] == "google/gemma-3-270m"
    with pytest.raises(InputError, match="licence of x/y is not known"):
        choose_generator("x/y", None)


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "gpt-4o-mini", "gemma3", "model.gguf", "mistral:7b", "a b", "GPT-5@v1"]
)
def test_a_name_of_no_model_is_one_line_that_says_what_lm_takes(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for license_id in (None, "mit"):
        with pytest.raises(InputError) as caught:
            choose_generator(name, license_id)
        said = str(caught.value)
        assert said.startswith(f"--lm: no model '{name}'; allowed: ") and "\n" not in said
        assert "FILE.gguf, NAME@URL of an OpenAI-compatible server, a folder, ORG/NAME" in said
        api = f"a model behind an API is --lm {name.partition('@')[0]}@https://HOST/v1"
        assert said.endswith(api) or "did you mean" in said


@pytest.mark.parametrize("path", ["./none", "/none/here", "models/none.gguf", "a/b/c"])
def test_a_missing_folder_or_file_is_named_before_a_licence_is_asked_for(
    path, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^--lm: no model '{path}'; allowed: .*, a folder"):
        choose_generator(path, None)


@pytest.mark.parametrize("name", ["gemma", "builtin", "qwen2.5-coder-0.5b-instruct", None])
def test_a_licence_of_a_model_whose_licence_is_known_is_refused(name):
    with pytest.raises(InputError, match=r"--lm-license: is mit, and the licence of .* is known"):
        choose_generator(name, "mit")


def test_a_name_that_no_dataset_can_have_and_a_damaged_recipe_are_named(tmp_path):
    done = run(written(tmp_path, ENGLISH), "--out", tmp_path / "r.yaml", "--name", "My Pairs", *LM)
    assert done.code == 2 and "--name: 'My Pairs' cannot be a name; allowed: lower-" in done.stderr
    recipe = tmp_path / "damaged.yaml"
    recipe.write_bytes(b"\xe9")
    with pytest.raises(InputError, match=r"damaged\.yaml: is not UTF-8"):
        new.propose(tmp_path / "corpus.txt", recipe, "pairs", new.CorpusChoices(lm="builtin"))


def test_a_place_that_is_no_file_may_be_of_a_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org/here").touch()
    assert new.is_on_hub("org/name") and new.is_on_hub("org/name.v2@refs/pr/1")
    assert not any(
        map(
            new.is_on_hub,
            ["org/here", "data/questions.csv", "./org/name", "/org/name", "name", "a/b/c"],
        )
    )


OF_HUB = """
import json, logging, sys
from pathlib import Path
from sts_dino.hub.errors import InputError
from sts_dino.new import CorpusChoices, propose

logging.basicConfig(level="INFO", format="%(message)s")
for number, (place, options) in enumerate(json.loads(sys.argv[1])):
    try:
        recipe = Path(f"r{number}.yaml")
        facts = propose(place, recipe, "pairs", CorpusChoices(lm="builtin", **options)).facts
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
        pq.write_table(
            pa.table({"id": range(3), "question": rows}), folder / f"data/{name}.parquet"
        )
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Questions\n")
    commit = hub_api.upload_folder(repo_id=repo, folder_path=folder, repo_type="dataset").oid
    refusals = [("@v9", {}, "v9"), ("", {"config": "defualt"}, "no config 'defualt'")]
    refusals += [
        ("", {"split": "tran"}, "no split 'tran'"),
        ("", {"column": "questions"}, "not in the data"),
    ]
    asked = [(f"{repo}@main", {"language": "en"})]
    asked += [(f"{repo}@{commit}", {"split": "test", "corpus_license": "mit", "language": "en"})]
    asked += [(repo + place, options) for place, options, _ in refusals]
    environment = local_hub.client_environment(tmp_path / "home") | {
        "PYTHONPATH": str(Path(__file__).parents[2])
    }
    command = [sys.executable, "-c", OF_HUB, json.dumps(asked)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    main, test, *refused = map(json.loads, done.stdout.splitlines())
    where = {"kind": "hub", "repo_id": repo, "revision": commit, "config": "default"}
    assert main[:3] == [{**where, "splits": ["train"], "license": "cc-by-4.0"}, 6, True]
    assert (
        test[:3] == [{**where, "splits": ["test"], "license": "mit"}, 3, True]
        and "language: en" in test[3]
    )
    assert f"{repo}: main is {commit} now; the recipe pins that" in done.stderr.splitlines()
    recipe = load_recipe(tmp_path / "r0.yaml", DatasetRecipe)
    assert (recipe.source.repo_id, recipe.source.columns) == (repo, ("question",))
    assert all(problem in said for said, (_, _, problem) in zip(refused, refusals, strict=True))
    assert not list(tmp_path.glob("r[2-9].yaml"))


def test_a_german_export_is_proposed_with_its_columns_and_encoding(tmp_path):
    rows = [f"Wie weit fährt Bus {n}?;Führt Linie {n} über Köln?;4,5" for n in range(20)]
    path = tmp_path / "export.csv"
    path.write_bytes("\r\n".join(["frage_a;frage_b;bewertung", *rows]).encode("cp1252"))
    recipe = tmp_path / "r.yaml"
    options = ("--columns", "frage_a,frage_b", "--language", "en", *LM)
    done = run(path, "--out", recipe, *options)
    assert done.code == 0, done.stderr
    assert "is read as cp1252" in done.stderr
    assert "column frage_a, frage_b: 40 rows, 40 usable" in done.stderr
    source = load_recipe(recipe, DatasetRecipe).source
    assert (source.columns, source.encoding) == (("frage_a", "frage_b"), "cp1252")
    (rows_read,) = [list(rows) for _, rows in SOURCES[source.kind](source)]
    assert rows_read[0] == ("Wie weit fährt Bus 0?", "Führt Linie 0 über Köln?")


def test_a_text_of_several_lines_is_called_so(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text\n"One line.\nAnother line."\n' + "".join(f"{t}\n" for t in ENGLISH))
    profile = measure_file(path)
    assert (profile.faults["multiline"], profile.faults["overlong"], profile.usable) == (1, 0, 3)


@pytest.mark.parametrize(
    ("labels", "generated", "counter_prompts"),
    [("0.5", ["0.5"], ["1"]), ("0, 1.0", ["1", "0"], ["0.5"]), ("1,0.5", ["1", "0.5"], [])],
)
def test_labels_that_are_left_out_are_counter_prompts_alone(
    tmp_path, labels, generated, counter_prompts
):
    recipe = tmp_path / "r.yaml"
    done = run(written(tmp_path, ENGLISH), "--out", recipe, *MODEL, "--labels", labels)
    assert done.code == 0
    found = load_recipe(recipe, DatasetRecipe)
    assert [label.name for label in found.written_labels] == generated
    assert [label.name for label in found.labels if not label.written] == counter_prompts
    for label in found.written_labels:
        counters = ["1", "0.5", "0"][: ["1", "0.5", "0"].index(label.name)]
        assert list(label.counter_labels) == counters


def test_pairs_that_train_no_encoder_have_no_recipe_of_one(tmp_path):
    path = written(tmp_path, ENGLISH)
    done = run(path, "--out", tmp_path / "r.yaml", *LM, "--labels", "1")
    assert done.code == 0 and "no recipe of an encoder is written: " in done.stderr
    assert (tmp_path / "r.yaml").exists() and not (tmp_path / "r.encoder.yaml").exists()


@pytest.mark.parametrize("labels", ["2", "", "1;0", "nan", "1,,0"])
def test_an_unknown_label_is_refused(tmp_path, labels):
    path = written(tmp_path, ENGLISH)
    refused = run(path, "--out", tmp_path / "r.yaml", *LM, "--labels", labels)
    assert refused.code == 2 and "--labels: has no label" in refused.error
    assert "allowed: some of 1, 0.5, 0" in refused.error and not (tmp_path / "r.yaml").exists()


PASSAGE = "The ferry leaves the northern pier at nine in the morning. " * 4


def test_passages_are_recognised_and_search_is_named(tmp_path):
    passages = [f"Route {number}. {PASSAGE}" for number in range(6)]
    done = run(written(tmp_path, [*passages, *ENGLISH]), "--out", tmp_path / "r.yaml", *LM)
    assert "warning: 67% of the texts are passages" in done.stderr
    assert "docs/search.md" in done.stderr and done.code == 0
    tickets = [f"My order {number} has not come. Where is it? Please help." for number in range(9)]
    done = run(written(tmp_path, tickets, "t.txt"), "--out", tmp_path / "t.yaml", *LM)
    assert done.code == 0 and "are passages" not in done.stderr

    # Longer ones are no source sentences at all.
    refused = run(written(tmp_path, [p * 6 for p in passages], "long.txt"), *LM)
    assert refused.code == 2 and "(6 overlong)" in refused.error
    assert "they are passages: for search over passages" in refused.error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The boat leaves at nine. " * 9, True),
        ("The boat leaves at nine.\nTickets are sold on board. " * 5, True),
        ("渡轮早上九点从北码头出发。" * 6, True),
        ("नाव नौ बजे निकलती है। " * 12, True),
        ("أين طلبي؟ وصلت السفينة. " * 12, True),
        ("The committee " * 30 + "agreed.", False),
        ("My order has not come. Where is it? Please help me.", False),
        ("Mr. Smith met Dr. Jones on the pier.", False),
        ("It costs 3.5 dollars and 4.2 euros in the shop.", False),
        ("渡轮早上九点从北码头出发。", False),
    ],
)
def test_a_passage_has_several_sentences_and_many_words(text, expected):
    assert is_passage(text) == expected


def test_check_shows_a_prompt_a_label_and_the_command_that_follows(tmp_path):
    recipe = tmp_path / "my r.yaml"
    texts = [f"The ferry number {number} leaves at nine." for number in range(12)]
    assert run(written(tmp_path, texts), "--out", recipe, *LM).code == 0
    short = outcome_of(check, recipe, "--set", "seed=7")
    every = outcome_of(check, recipe, "--more-prompts")
    assert short.printed.count("\n--- ") == 3 and every.printed.count("\n--- ") == 15
    assert short.stderr.splitlines()[-1] == f"next: sts-dino write '{recipe}' --set seed=7"

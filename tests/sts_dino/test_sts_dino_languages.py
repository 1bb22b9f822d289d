"""The languages that recipes are proposed in: their examples, and what recognises them."""

import shutil

import py3langid
import pytest
from command_outcomes import outcome_of
from transformers import AutoTokenizer

from sts_dino import new
from sts_dino.generation.inputs.sources import find_text_problem
from sts_dino.generation.rows.filters import is_foreign
from sts_dino.generation.run import is_question
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.word_overlap import compute_word_overlap
from sts_dino.proposals.corpus import measure_file
from sts_dino.proposals.recipes import load_languages

pytest_plugins = ["local_hub"]
LANGUAGES = load_languages()
LABELS = ("1", "0.5", "0")
SETS = [(code, kind) for code in LANGUAGES for kind in ("statements", "questions")]


@pytest.fixture(scope="module")
def polyglot_model(tmp_path_factory):
    """The built-in model with a tokenizer that has words of every language."""
    folder = shutil.copytree(find_asset("demo-lm"), tmp_path_factory.mktemp("lm") / "polyglot-lm")
    texts = [cell for one in SETS for row in read_examples(*one) for cell in row]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = len(tokenizer) - 100  # special tokens come on top
    tokenizer.train_new_from_iterator(texts, size).save_pretrained(folder)
    return folder


def read_examples(code, kind):
    path = find_asset(f"examples/{LANGUAGES[code][kind]['examples']}")
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    assert header == "text1\t1\t0.5\t0"
    return [row.split("\t") for row in rows]


@pytest.mark.parametrize(("code", "kind"), SETS)
def test_twenty_rows_are_valid_and_distinct(code, kind):
    rows = read_examples(code, kind)
    cells = [cell for row in rows for cell in row]
    assert [len(row) for row in rows] == [4] * 20 and len({*cells}) == 80
    assert not any(cell != cell.strip() or find_text_problem(cell, None, len) for cell in cells)
    overlaps = [[compute_word_overlap(row[0], cell) for cell in row[1:]] for row in rows]
    assert all(paraphrase <= 0.75 for paraphrase, _, _ in overlaps)
    assert all(unrelated <= 0.35 for _, _, unrelated in overlaps)
    assert all(is_question(cell) == (kind == "questions") for cell in cells)


@pytest.mark.parametrize(("code", "kind"), SETS)
def test_the_examples_are_recognised_as_their_language(code, kind):
    cells = [cell for row in read_examples(code, kind) for cell in row]
    recognised = sum(py3langid.classify(cell)[0] == code for cell in cells)
    assert recognised >= 0.9 * len(cells)
    assert not any(is_foreign(cell, code) for cell in cells)


@pytest.mark.parametrize(("code", "kind"), SETS)
def test_the_proposed_recipe_has_instructions_and_examples(
    offline, tmp_path, polyglot_model, code, kind
):
    rows = read_examples(code, kind)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{row[0]}\n" for row in rows), encoding="utf-8")
    profile = measure_file(corpus)
    assert (profile.language, profile.kind, profile.usable) == (code, kind, 20)
    assert profile.words[2] >= 5

    options = ["--out", tmp_path / "r.yaml", "--lm", polyglot_model, "--lm-license", "mit"]
    done = outcome_of(new, corpus, *options)
    words = LANGUAGES[code]
    assert done.code == 0 and f"are those for {words['name']} {kind}" in done.stderr
    recipe = load_recipe(tmp_path / "r.yaml", DatasetRecipe)
    assert recipe.language == code
    assert [label.instruction for label in recipe.labels] == [words[kind][one] for one in LABELS]
    assert [label.meaning for label in recipe.labels] == [words[f"{one} means"] for one in LABELS]
    examples = find_asset(f"examples/{words[kind]['examples']}")
    assert (tmp_path / "r.examples.tsv").read_bytes() == examples.read_bytes()


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("駅はどこですか。", True),
        ("もう帰りますか", True),
        ("明日は晴れるか。", True),
        ("この町はとても静か", False),
        ("駅は遠いです。", False),
        ("أين المحطة؟", True),
        ("المحطة بعيدة.", False),
        ("역이 어디예요?", True),
        ("स्टेशन कहाँ है?", True),
        ("स्टेशन दूर है।", False),
    ],
)
def test_questions_end_in_the_marks_of_their_language(text, asks):
    assert is_question(text) == asks


@pytest.mark.parametrize("line", ["स्टेशन दूर है।", "駅は遠いです。", "المحطة بعيدة جدًا."])
def test_sentences_of_few_words_are_no_titles(tmp_path, line):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{line}\n", encoding="utf-8")
    assert measure_file(corpus).kind == "statements"

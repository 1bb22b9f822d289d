"""Rejection reasons: copies of the prompt, words, languages, duplicates."""

from pathlib import Path

import pytest

from generation.inputs.examples import Example
from generation.rows.filters import ALIKE, InstructionText, TextFilters, deduplicated, is_foreign
from hub.contract.recipe import RECOGNISED, DatasetRecipe, Variant
from hub.contract.recipe_file import fingerprint, load_recipe
from hub.errors import InputError
from hub.word_overlap import word_overlap, words
from model_cards.dataset_card import REASONS, SOURCE_REASONS

NLI = load_recipe(Path("recipes/datasets/auto-nli.yaml"), DatasetRecipe)
DEMO = Path("recipes/demo/sts-dino-x2.yaml")
STS = load_recipe(DEMO, DatasetRecipe)
REVIEWS = load_recipe(Path("recipes/datasets/movie-reviews.yaml"), DatasetRecipe)
SETS = {
    5: [
        {
            "entailment": [Example(0, "Fun for adults and children.", "Fun for both.")],
            "contradiction": [Example(0, "Fun for adults and children.", "No fun for children, 3 or 4.")],
        },
        {"entailment": [Example(1, "Two dogs.", "Dogs!")], "contradiction": [Example(1, "Two dogs.", "...")]},
    ]
}


def reason(text: str, label: str = "contradiction", variant: Variant = Variant(5, 0), **changes: object) -> str | None:  # noqa: B008
    recipe = NLI.model_copy(update={"postprocess": NLI.postprocess.model_copy(update=changes)})
    return TextFilters(recipe, SETS).reason(text, label, variant)


@pytest.mark.parametrize(
    "text", ["No fun for children, 3 or 4.", "no fun for  children 3 or 4", "Fun for adults and children"]
)
def test_a_text_of_its_prompts_examples_is_a_copy(text):
    """Examples of another label, another set or with another number are not part of this prompt."""
    assert reason(text) == "example_copy"
    assert reason(text, reject=("prompt_words",)) is None
    for other in ("Fun for both.", "No fun for children, 3 or 5.", "No fun for children.", "Two dogs."):
        assert reason(other) is None
    assert reason(text, variant=Variant(0, 0)) is None and reason("...", variant=Variant(5, 1)) is None


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (NLI, "Answer:"),
        (NLI, "in the form of a statement beginning with"),
        (NLI, "Generate one sentence that logically contradicts"),
        (NLI, "a statement beginning with \u201cAnswer"),
        (STS, "Sentence 2:"),
        (STS, "Task: Write two sentences that mean the same thing."),
        (REVIEWS, "Write a review for a bad movie. Movie:"),
    ],
)
def test_a_text_of_the_prompts_own_words_is_a_copy(recipe, text):
    copies = TextFilters(recipe, {})
    assert copies.reason(text, recipe.labels[0].name, recipe.variants[0]) == "prompt_words"
    assert copies.source_sentence_reason(text) == "prompt_words"


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (NLI, "The answer is no."),
        (NLI, "Answer: the dog sleeps."),
        (STS, "Two sentences."),
        (STS, "A man is writing two letters."),
        (REVIEWS, "This is a review for a bad movie."),
        (REVIEWS, "🎬"),
    ],
)
def test_a_text_with_some_words_of_the_prompt_is_none(recipe, text):
    assert TextFilters(recipe, {}).reason(text, recipe.labels[0].name, recipe.variants[0]) is None


def choosing(*reasons: str, recipe: DatasetRecipe = STS) -> TextFilters:
    chosen = recipe.postprocess.model_copy(update={"reject": reasons})
    return TextFilters(recipe.model_copy(update={"postprocess": chosen}), {})


@pytest.mark.parametrize(
    ("text1", "text", "echo"),
    [
        ("The task took long.", "Task", False),
        ("Sentence 2 is longer than sentence 1.", "Sentence 2", False),
        ("Compare sentences that mean the same thing.", "Sentences that mean the same thing.", False),
        ("A dog barks.", "Sentence 2:", True),
        ("The task took long.", "Task: Write two sentences that mean the same thing.", True),
    ],
)
def test_words_of_the_source_sentence_are_no_echo_of_the_instruction(text1, text, echo):
    filters, ways = choosing("prompt_echo"), (STS.labels[0].name, STS.variants[0], text1)
    assert filters.reason(text, *ways) == ("prompt_echo" if echo else None)
    assert choosing("prompt_words").reason(text, *ways) == "prompt_words", "published recipes keep their rows"
    assert filters.source_sentence_reason(text) == "prompt_echo"


def test_broken_and_foreign_texts_are_rejected_where_the_recipe_says_so():
    broken, foreign = "A man \ufffd plays.", "Ein Mann spielt im Park auf einer alten Flöte."
    assert {choosing().source_sentence_reason(text) for text in (broken, foreign)} == {None}
    filters = choosing("control_characters", "wrong_language")
    assert filters.source_sentence_reason(broken) == "control_characters"
    assert filters.source_sentence_reason(foreign) == "wrong_language"
    assert filters.source_sentence_reason("A man plays an old flute in the park.") is None
    german = choosing("wrong_language", recipe=STS.model_copy(update={"language": "de"}))
    assert german.source_sentence_reason(foreign) is None


def test_the_language_decides_rows_only_where_others_are_rejected():
    chosen = ["postprocess.reject=[wrong_language]"]
    english, german = (load_recipe(DEMO, DatasetRecipe, [*chosen, f"language={code}"]) for code in ("en", "de"))
    assert fingerprint(english, {}) != fingerprint(german, {})
    assert fingerprint(STS, {}) == fingerprint(STS.model_copy(update={"language": "de"}), {})
    with pytest.raises(InputError, match="wrong_language cannot be found where language is 'multilingual'"):
        load_recipe(DEMO, DatasetRecipe, [*chosen, "language=multilingual"])
    with pytest.raises(InputError, match="choose one"):
        load_recipe(DEMO, DatasetRecipe, ["postprocess.reject=[prompt_words, prompt_echo]"])


def test_a_vowel_of_an_indic_script_makes_another_word():
    """It is a combining mark, which Python's ``\\w`` leaves out: there, "kī" and "kā" were one word."""
    assert words("यह लड़की है।") != words("यह लड़का है।") and len(words("विद्यार्थी")) == 1
    assert not InstructionText(['विद्यार्थी के बारे में लिखो: "']).holds("विद्यार्थी")


def test_a_source_sentence_separates_the_words_around_it():
    scaffold = InstructionText(['Say that <X1> is wrong now: "'])
    assert scaffold.holds("is wrong now") and scaffold.holds("Say that")
    assert not scaffold.holds("that is wrong now") and not scaffold.holds("")


def raw(text1: str, text2: str, target: str = "1", attempt: int = 0) -> dict:
    return {"text1": text1, "text2": text2, "target": target, "attempt": attempt}


def test_every_dropped_row_has_a_reason_and_the_order_stays():
    rows = [raw("a", "a"), raw("a", "b"), raw("a", "b", attempt=1), raw("a", "b", "0"), raw("a", "c"), raw("a", "d")]
    kept, dropped = deduplicated(rows, max_per_label=2)
    assert [(row["text2"], row["target"]) for row in kept] == [("b", "1"), ("b", "0"), ("c", "1")]
    assert [row["reason"] for row in dropped] == ["identical", "duplicate", "over_cap"]
    assert len(kept) + len(dropped) == len(rows)


def test_the_card_describes_every_reason():
    own = {"prompt_words", "prompt_echo", "control_characters", "wrong_language"}
    assert own | {"example_copy", "near_copy", "overlap"} <= REASONS.keys()
    assert own | {"too_long"} <= SOURCE_REASONS.keys()


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("A man plays a flute.", "a man plays a FLUTE", 1.0),
        ("A man plays a flute.", "A flute plays a man!", 1.0),  # order does not count
        ("A man plays a flute.", "The man plays.", 2 / 6),
        ("a a b", "a b b", 2 / 4),  # bags, not sets
        ("...", "!", 1.0),
        ("...", "One.", 0.0),
    ],
)
def test_word_overlap_is_jaccards_index_of_bags_of_words(one, other, shared):
    assert word_overlap(one, other) == word_overlap(other, one) == pytest.approx(shared)


def overlapping(near_copy: float | None, *bands: tuple[float, float] | None) -> DatasetRecipe:
    labels = [label.model_copy(update={"overlap": band}) for label, band in zip(STS.labels, bands, strict=True)]
    rules = STS.postprocess.model_copy(update={"near_copy": near_copy})
    return STS.model_copy(update={"postprocess": rules, "labels": tuple(labels)})


def test_near_copies_and_texts_outside_their_labels_band_have_reasons_of_their_own():
    recipe = overlapping(0.8, None, (0.2, 0.6), (0.0, 0.1))
    same, half, none = recipe.labels
    filters, first = TextFilters(recipe, {}), "A man plays a flute."
    assert filters.overlap_reason("a man plays a flute!", first, same) == "near_copy"
    assert filters.overlap_reason("A man plays a red flute.", first, same) == "near_copy"  # 5 of 6
    assert filters.overlap_reason("A man plays the flute.", first, same) is None  # 4 of 6
    assert filters.overlap_reason("A man plays the flute.", first, half) == "overlap"
    assert filters.overlap_reason("A man sings.", first, half) is None
    assert filters.overlap_reason("It rains.", first, half) == "overlap"
    assert filters.overlap_reason("It rains.", first, none) is filters.overlap_reason("It rains.", first, same) is None
    assert filters.overlap_reason("A dog.", first, none) == "overlap"
    assert {filters.overlap_reason(first, first, label) for label in recipe.labels} == {None}  # identical


def test_the_languages_that_a_recipe_may_name_are_those_of_the_classifier():
    import py3langid

    assert {code for code, _ in py3langid.rank("any text")} - {"zxx"} == RECOGNISED
    assert frozenset().union(*ALIKE) <= RECOGNISED


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Kovačević joined a Sarajevo-based rock band Zabranjeno Pušenje in 1986.", "en"),  # names
        ("In 2019, Tukura represented Taraba state at the Miss Nigeria pageant.", "en"),  # Pidgin to the classifier
        ("ok", "en"),
        ("", "en"),
        ("En gammel mann mater duer i parken.", "da"),  # Norwegian and Danish are written alike
    ],
)
def test_names_numbers_and_languages_alike_are_not_foreign(text, language):
    assert not is_foreign(text, language)


@pytest.mark.parametrize(
    ("text", "own", "others"),
    [
        ("Der Film dauert fast drei Stunden.", "de", ("en", "nl", "fr")),
        ("两个女孩在阳台上下棋。", "zh", ("en", "ja")),
        ("Поезд отправляется в восемь.", "ru", ("en", "de")),
    ],
)
def test_a_sentence_is_foreign_to_every_language_but_its_own(text, own, others):
    assert [is_foreign(text, language) for language in others] == [True] * len(others)
    assert not is_foreign(text, own)

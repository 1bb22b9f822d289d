"""Rejection reasons: copies of the prompt, words, languages, duplicates."""

from pathlib import Path

import pytest

from sts_dino.generation.inputs.examples import Example
from sts_dino.generation.rows.filters import (
    ALIKE,
    InstructionText,
    TextFilters,
    filter_rows,
    is_foreign,
)
from sts_dino.hub.contract.recipe import RECOGNISED_LANGUAGES, DatasetRecipe, Variant
from sts_dino.hub.contract.recipe_file import compute_fingerprint, load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.hub.word_overlap import compute_word_overlap, split_words
from sts_dino.model_cards.dataset_card import REASON_MEANINGS, SOURCE_REASON_MEANINGS

NLI = load_recipe(Path("recipes/datasets/auto-nli.yaml"), DatasetRecipe)
DEMO = Path("recipes/demo/sts-dino-x2.yaml")
STS = load_recipe(DEMO, DatasetRecipe)
REVIEWS = load_recipe(Path("recipes/datasets/movie-reviews.yaml"), DatasetRecipe)
SETS = {
    5: [
        {
            "entailment": [Example(0, "Fun for adults and children.", "Fun for both.")],
            "contradiction": [
                Example(0, "Fun for adults and children.", "No fun for children, 3 or 4.")
            ],
        },
        {
            "entailment": [Example(1, "Two dogs.", "Dogs!")],
            "contradiction": [Example(1, "Two dogs.", "...")],
        },
    ]
}


def choosing(*reasons: str, recipe: DatasetRecipe = STS) -> TextFilters:
    chosen = recipe.postprocess.model_copy(update={"reject": reasons})
    return TextFilters(recipe.model_copy(update={"postprocess": chosen}), {})


def test_a_text_of_its_prompts_examples_is_a_copy():
    """Examples of another label, another set or with another number are not part of this prompt."""
    filters, label = TextFilters(NLI, SETS), NLI.labels[-1]
    assert label.name == "contradiction"
    for text in (
        "No fun for children, 3 or 4.",
        "no fun for  children 3 or 4",
        "Fun for adults and children",
    ):
        assert filters.find_reason(text, "x", label, Variant(5, 0)) == "example_copy"
        assert filters.find_reason(text, "x", label, Variant(0, 0)) is None
        assert (
            choosing("prompt_words", recipe=NLI).find_reason(text, "x", label, Variant(5, 0))
            is None
        )
    for other in (
        "Fun for both.",
        "No fun for children, 3 or 5.",
        "No fun for children.",
        "Two dogs.",
    ):
        assert filters.find_reason(other, "x", label, Variant(5, 0)) is None
    assert filters.find_reason("...", "x", label, Variant(5, 1)) is None


QUESTIONS = (
    ("Can I drink the tap water in Lisbon?", "Is the water from the tap in Lisbon safe?"),
    ("Do I need a visa to travel to Japan?", "Which season is best for a journey to Japan?"),
    ("How long does an egg have to boil?", "How many minutes does an egg need in boiling water?"),
    ("大雪把山口封了两天，学生们走路上学。", "因为下大雪，山路有两天不能通行。"),
    ("How To Fix A Roof", "Repairing A Leaking Roof At Home"),  # title case: no names
    ("I like my new tablet.", "The Tablet was cheap, and the tablet works."),
)


@pytest.mark.parametrize(
    ("text", "source", "leaked"),
    [
        ("Where can I buy a ticket in Lisbon?", "Where are tickets sold?", True),
        ("Is there a hotel near Lisbon, too?", "Hotels?", True),
        ("How do I get a visa for Japan?", "What do I need for my trip?", True),
        ("What is the weather like in Japan?", "How warm is it in Japan now?", False),
        ("Where can I buy a ticket in Porto?", "Where are tickets sold?", False),
        ("How many minutes should an egg be in boiling water?", "Where is the bus?", True),
        ("How many minutes does the bus need?", "When does the bus arrive?", False),
        ("Eggs need some minutes in boiling water.", "Minutes in boiling water.", False),
        ("因为下大雪，山路有两天很危险。", "路况怎么样？", True),
        ("山路有雪。", "路况怎么样？", False),
        ("因为下大雪，山路有两天很危险。", "因为下大雪，山路有两天关闭。", False),
        ("My House Needs A New Roof", "Houses", False),
        ("The Tablet is good.", "A phone.", False),
        ("lisbon is what the file is named.", "A file.", False),  # no name in lower case
    ],
)
def test_what_only_the_examples_say_is_a_leak(text, source, leaked):
    label = NLI.labels[-1]
    examples = tuple(Example(row, *pair) for row, pair in enumerate(QUESTIONS))
    filters = TextFilters(NLI, {5: [{label.name: examples}]})
    expected = "example_leak" if leaked else None
    assert filters.find_reason(text, source, label, Variant(5, 0)) == expected
    assert filters.find_reason(text, source, label, Variant(0, 0)) is None, "no examples"
    german = TextFilters(
        NLI.model_copy(update={"language": "de"}), {5: [{label.name: examples[:1]}]}
    )
    assert german.find_reason("Wo ist Lisbon?", "x", label, Variant(5, 0)) is None
    without = choosing("prompt_words", recipe=NLI)
    assert without.find_reason(text, source, label, Variant(5, 0)) is None


@pytest.mark.parametrize(
    ("recipe", "text", "copied"),
    [
        (NLI, "Answer:", True),
        (NLI, "in the form of a statement beginning with", True),
        (STS, "Sentence 2:", True),
        (REVIEWS, "Write a review for a bad movie. Movie:", True),
        (NLI, "The answer is no.", False),
        (NLI, "Answer: the dog sleeps.", False),
        (STS, "A man is writing two letters.", False),
        (REVIEWS, "This is a review for a bad movie.", False),
    ],
)
def test_a_text_of_the_prompts_own_words_is_a_copy_and_one_with_some_of_them_is_not(
    recipe, text, copied
):
    reason = "prompt_words" if copied else None
    assert (
        TextFilters(recipe, {}).find_reason(text, "x", recipe.labels[0], recipe.variants[0])
        == reason
    )
    assert TextFilters(recipe, {}).find_reason(text) == reason, (
        "a source sentence that the model writes"
    )


@pytest.mark.parametrize(
    ("text1", "text", "echo"),
    [
        ("The task took long.", "Task", False),
        (
            "Compare sentences that mean the same thing.",
            "Sentences that mean the same thing.",
            False,
        ),
        ("A dog barks.", "Sentence 2:", True),
        ("The task took long.", "Task: Write two sentences that mean the same thing.", True),
    ],
)
def test_words_of_the_source_sentence_are_no_echo_of_the_instruction(text1, text, echo):
    asked = (text, text1, STS.labels[0], STS.variants[0])
    assert choosing("prompt_echo").find_reason(*asked) == ("prompt_echo" if echo else None)
    assert choosing("prompt_words").find_reason(*asked) == "prompt_words", (
        "published recipes keep their rows"
    )
    assert choosing("prompt_echo").find_reason(text) == "prompt_echo"


def test_broken_and_foreign_texts_are_rejected_where_the_recipe_says_so():
    broken, foreign = "A man \ufffd plays.", "Ein Mann spielt im Park auf einer alten Flöte."
    assert {choosing().find_reason(text) for text in (broken, foreign)} == {None}
    filters = choosing("control_characters", "wrong_language")
    found = [
        filters.find_reason(text)
        for text in (broken, foreign, "A man plays an old flute in the park.")
    ]
    assert found == ["control_characters", "wrong_language", None]
    german = choosing("wrong_language", recipe=STS.model_copy(update={"language": "de"}))
    assert german.find_reason(foreign) is None


def test_the_language_decides_rows_only_where_others_are_rejected():
    chosen = ["postprocess.reject=[wrong_language]"]
    english, german = (
        load_recipe(DEMO, DatasetRecipe, [*chosen, f"language={code}"]) for code in ("en", "de")
    )
    assert compute_fingerprint(english, {}) != compute_fingerprint(german, {})
    assert compute_fingerprint(STS, {}) == compute_fingerprint(
        STS.model_copy(update={"language": "de"}), {}
    )
    with pytest.raises(
        InputError, match="wrong_language cannot be found where language is 'multilingual'"
    ):
        load_recipe(DEMO, DatasetRecipe, [*chosen, "language=multilingual"])
    with pytest.raises(InputError, match="choose one"):
        load_recipe(DEMO, DatasetRecipe, ["postprocess.reject=[prompt_words, prompt_echo]"])


def test_a_vowel_of_an_indic_script_makes_another_word():
    """It is a combining mark, which Python's ``\\w`` leaves out: there, "kī" and "kā" were one
    word.
    """
    assert (
        split_words("यह लड़की है।") != split_words("यह लड़का है।") and len(split_words("विद्यार्थी")) == 1
    )
    assert not InstructionText(['विद्यार्थी के बारे में लिखो: "']).is_copied_by("विद्यार्थी")


def test_a_source_sentence_separates_the_words_around_it():
    scaffold = InstructionText(['Say that <X1> is wrong now: "'])
    assert scaffold.is_copied_by("is wrong now") and scaffold.is_copied_by("Say that")
    assert not scaffold.is_copied_by("that is wrong now") and not scaffold.is_copied_by("")


def test_every_rejected_row_has_a_reason_and_the_order_stays():
    pairs = [("a", "1"), ("b", "1"), ("b", "1"), ("b", "0"), ("c", "1"), ("d", "1")]
    rows = [
        {"text1": "a", "text2": text, "target": target, "attempt": n}
        for n, (text, target) in enumerate(pairs)
    ]
    rules = STS.postprocess.model_copy(update={"max_per_label": 2})
    kept, dropped = filter_rows(rows, STS.model_copy(update={"postprocess": rules}))
    assert [row["attempt"] for row in kept] == [1, 3, 4]
    assert [(row["attempt"], row["reason"]) for row in dropped] == [
        (0, "identical"),
        (2, "duplicate"),
        (5, "over_cap"),
    ]


def test_the_card_describes_every_reason():
    own = {"prompt_words", "prompt_echo", "control_characters", "wrong_language"}
    assert "example_leak" in REASON_MEANINGS
    assert own | {"example_copy", "near_copy", "overlap"} <= REASON_MEANINGS.keys()
    assert own | {"too_long"} <= SOURCE_REASON_MEANINGS.keys()


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("A man plays a flute.", "A flute plays a man!", 1.0),  # order does not count
        ("A man plays a flute.", "The man plays.", 2 / 6),
        ("a a b", "a b b", 2 / 4),  # bags, not sets
        ("...", "!", 1.0),
        (
            "猫睡在暖气上。",
            "猫，睡在炉子上！",
            4 / 8,
        ),  # a character is a word where no space parts words
        ("ネコが寝る", "ネコは寝る。", 4 / 6),
    ],
)
def test_word_overlap_is_jaccards_index_of_bags_of_words(one, other, shared):
    assert (
        compute_word_overlap(one, other)
        == compute_word_overlap(other, one)
        == pytest.approx(shared)
    )


def test_near_copies_and_texts_outside_their_labels_band_have_reasons_of_their_own():
    bands, first = (None, (0.2, 0.6), (0.0, 0.1)), "A man plays a flute."
    labels = [
        label.model_copy(update={"overlap": band})
        for label, band in zip(STS.labels, bands, strict=True)
    ]
    rules = STS.postprocess.model_copy(update={"near_copy": 0.8, "reject": ()})
    filters = TextFilters(
        STS.model_copy(update={"postprocess": rules, "labels": tuple(labels)}), {}
    )
    for text, reasons in {
        "a man plays a flute!": ("near_copy", "near_copy", "near_copy"),
        "A man plays a red flute.": ("near_copy", "near_copy", "near_copy"),  # 5 of 6
        "A man plays the flute.": (None, "overlap", "overlap"),  # 4 of 6
        "A man sings.": (None, None, "overlap"),
        "It rains.": (None, "overlap", None),
        first: (None, None, None),  # identical
    }.items():
        assert (
            tuple(filters.find_reason(text, first, label, STS.variants[0]) for label in labels)
            == reasons
        ), text


def test_the_languages_that_a_recipe_may_name_are_those_of_the_classifier():
    import py3langid

    assert {code for code, _ in py3langid.rank("any text")} - {"zxx"} == RECOGNISED_LANGUAGES
    assert frozenset().union(*ALIKE) <= RECOGNISED_LANGUAGES


def test_a_sentence_is_foreign_to_every_language_but_its_own_and_those_alike():
    for text, own, others in (
        ("Der Film dauert fast drei Stunden.", "de", ("en", "nl", "fr")),
        ("Поезд отправляется в восемь.", "ru", ("en", "de")),
        # names
        ("Kovačević joined a Sarajevo-based rock band Zabranjeno Pušenje in 1986.", "en", ()),
        ("En gammel mann mater duer i parken.", "da", ()),  # Norwegian and Danish are written alike
        ("", "en", ()),
    ):
        assert [is_foreign(text, language) for language in (own, *others)] == [
            False,
            *(True for _ in others),
        ]

"""wrong_language: what is recognised, on texts that the classifier alone gets wrong, too."""

import pytest

from generation.rows.filters import ALIKE, is_foreign
from hub.contract.dataset_sections import RECOGNISED


def test_the_languages_that_a_recipe_may_name_are_those_of_the_classifier():
    import py3langid

    assert {code for code, _ in py3langid.rank("any text")} - {"zxx"} == RECOGNISED
    assert frozenset().union(*ALIKE) <= RECOGNISED


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Kovačević joined a Sarajevo-based rock band Zabranjeno Pušenje in 1986.", "en"),  # names
        ("Mohammad Qoli Salim Tehrani", "en"),
        ("In 2019, Tukura represented Taraba state at the Miss Nigeria pageant.", "en"),  # Pidgin to the classifier
        ("ok", "en"),
        ("12:30", "en"),
        ("...", "de"),
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
        ("The film lasts almost three hours.", "en", ("de", "nl", "fr", "zh")),
        ("两个女孩在阳台上下棋。", "zh", ("en", "ja")),
        ("Поезд отправляется в восемь.", "ru", ("en", "de")),
    ],
)
def test_a_sentence_is_foreign_to_every_language_but_its_own(text, own, others):
    assert [is_foreign(text, language) for language in others] == [True] * len(others)
    assert not is_foreign(text, own)

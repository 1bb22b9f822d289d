"""The annotation page's words in the dataset's language: buttons, questions, headings and usual meanings of labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

ENGLISH = "en"


@dataclass(frozen=True)
class PageWords:
    """What the page says, as ``words.yaml`` beside this has it; braces hold what is filled in."""

    title: str
    instructions: str
    name: str
    name_info: str
    start: str
    place: str
    answered: str
    back: str
    forward: str
    all_answered: str
    still_back: str
    then_final: str
    show: str
    restarted: str
    similarity: str
    inference: str
    which_class: str
    sentence: str
    premise: str
    hypothesis: str
    text: str
    meanings: Mapping[str, str]

    def headings(self, example_type: str) -> tuple[str, ...]:
        """What the texts of a row are called."""
        if example_type == "text":
            return (self.text,)
        scored = f"{self.sentence} 1", f"{self.sentence} 2"
        return scored if example_type == "sts" else (self.premise, self.hypothesis)


@cache
def page_words() -> dict[str, PageWords]:
    """Language (ISO 639) → the page's words, for the languages that it speaks."""
    text = (files("eval.audit.annotation") / "words.yaml").read_text(encoding="utf-8")
    found = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes texts alone
    return {language: PageWords(**words) for language, words in found.items()}


def words_in(language: str) -> PageWords:
    """The page's words in a language such as de or de-AT; in English where it does not speak it."""
    spoken = page_words()
    return spoken.get(language) or spoken.get(language.partition("-")[0]) or spoken[ENGLISH]

"""One concept, one word: the words that this project no longer uses, and how often each folder
still has them.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from legibility import list_tracked_files

WORDS = yaml.safe_load(Path(__file__).with_name("language.yaml").read_text(encoding="utf-8"))
OLD = {re.compile(word, re.IGNORECASE): new for word, new in WORDS["old_words"].items()}
SUFFIXES = {".py", ".md", ".jinja", ".yaml", ".toml", ".svg"}
SKIPPED = tuple(WORDS["not_checked"])  # pages and data that keep the past or quote papers
FILES = [
    path for path in list_tracked_files() if path.suffix in SUFFIXES or path.name == "Makefile"
]
TEXTS = {
    path: path.read_text(encoding="utf-8") for path in FILES if not str(path).startswith(SKIPPED)
}
FOLDERS = sorted({path.parts[0] for path in TEXTS})


def old_words(text: str) -> list[str]:
    """Each old word that a text has, with the word to write."""
    return [
        f"{found[0]!r}: write {new!r}" for word, new in OLD.items() for found in word.finditer(text)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_old_words_are_gone(folder):
    found = {
        str(path): words
        for path, text in TEXTS.items()
        if path.parts[0] == folder and (words := old_words(text))
    }
    count = Counter({path: len(words) for path, words in found.items()})
    most = {path: found[path][:5] for path, _ in count.most_common(5)}
    assert count.total() <= WORDS["still_there"].get(folder, 0), most


def test_an_old_word_is_found():
    assert old_words("The first texts are told apart") and not old_words(
        "The source sentences differ"
    )

"""How often ``wrong_language`` errs: python -m benchmarks.generation.wrong_language

Every text is held against the recipe languages: fair ones that are called foreign (its own language), and foreign ones
that are found (every other). Sentences of English Wikipedia are full of names, so they are the hard case; their first
four words are harder. Beside the rule that filters stands the classifier alone, which calls foreign what it puts first.
"""

import csv
import importlib.metadata
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from generation.rows import filters as language
from hub.cli import new_app, run

WIKIPEDIA = Path("assets/first-texts/wikipedia.txt")
BY_HAND = {"en": Path("assets/examples/sts.tsv"), "de": Path("assets/examples/sts.de.tsv")}
OTHERS = Path("benchmarks/data/languages.tsv")

app = new_app(__doc__)


@app.command()
def main(out: Annotated[Path | None, typer.Option("--out", help="Write the figures there, too")] = None) -> None:
    """Measure and print as JSON."""
    text = json.dumps(measure(), indent=2, ensure_ascii=False)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")


def measure() -> dict[str, Any]:
    """Texts and how many of them are called foreign, by corpus and by rule."""
    wikipedia = WIKIPEDIA.read_text(encoding="utf-8").splitlines()
    beginnings = [" ".join(text.split()[:4]) for text in wikipedia]
    texts = sentences()
    of_own = {code: [(text, code) for text in found] for code, found in texts.items()}
    of_others = {
        code: [(text, recipe) for recipe in texts if recipe != code for text in found] for code, found in texts.items()
    }
    fair = {
        "English Wikipedia, sentences": rates([(text, "en") for text in wikipedia]),
        "English Wikipedia, four words": rates([(text, "en") for text in beginnings]),
        **{f"{code}, by hand": rates(pairs) for code, pairs in of_own.items()},
    }
    found = {f"{code}, to every other language": rates(pairs) for code, pairs in of_others.items()}
    settings = {"margin": language.MARGIN, "of_other_words": language.OF_OTHER_WORDS}
    classifier = f"py3langid {importlib.metadata.version('py3langid')}"
    return {"classifier": classifier, **settings, "fair_texts": fair, "foreign_texts": found}


def sentences() -> dict[str, list[str]]:
    """Sentences written by hand, by language."""
    found = dict[str, list[str]]()
    for code, path in BY_HAND.items():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        found[code] = [cell for row in rows for cell in row]
    with OTHERS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            found.setdefault(row["language"], []).append(row["text"])
    return found


def rates(pairs: list[tuple[str, str]]) -> dict[str, int]:
    """How many of (text, recipe's language) the rule calls foreign, and the classifier alone."""
    return {
        "texts": len(pairs),
        "rule": sum(language.is_foreign(*pair) for pair in pairs),
        "classifier_alone": sum(_put_first_otherwise(*pair) for pair in pairs),
    }


def _put_first_otherwise(text: str, own: str) -> bool:
    import py3langid

    return str(py3langid.classify(text)[0]) != own


if __name__ == "__main__":
    run(app)

"""The papers are cited alike in the cards and in CITATION.cff."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from model_cards.shared.citations import AUTO_NLI, DECLUTR, DINO, GUIDANCE, PROMPT_EOL, SIMCSE, cited

ROOT = Path(__file__).parents[2]


def references() -> dict[str, dict[str, Any]]:
    """The references of CITATION.cff by title."""
    tree = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "license"} <= set(tree)
    return {entry["title"]: entry for entry in tree["references"]}


@pytest.mark.parametrize("entry", [DINO, AUTO_NLI, PROMPT_EOL, DECLUTR, SIMCSE, GUIDANCE])
def test_a_cited_paper_is_in_the_citation_file(entry: str) -> None:
    fields = dict(re.findall(r"  (\w+) = \{(.*)\},", entry))
    reference = references()[fields["title"]]
    assert str(reference["year"]) == fields["year"]
    names = [f"{author['family-names']}, {author['given-names']}" for author in reference["authors"]]
    assert fields["author"].replace('{\\"u}', "ü").split(" and ") == names


def test_a_card_cites_the_methods_it_used() -> None:
    assert cited({"dino"}, debiased=False) == DINO
    assert cited({"auto-nli"}, debiased=False) == AUTO_NLI
    assert cited({"auto-nli"}, debiased=True) == f"{DINO}\n\n{AUTO_NLI}"
    assert cited({"auto-nli"}, debiased=False, prompted=True) == f"{AUTO_NLI}\n\n{PROMPT_EOL}"
    assert cited({"declutr"}, debiased=False) == DECLUTR
    assert cited({"dino", "simcse"}, debiased=False) == f"{DINO}\n\n{SIMCSE}"
    assert cited({"dino"}, debiased=True, guided=True) == f"{DINO}\n\n{GUIDANCE}"
    assert cited({"dino", "auto-nli"}, debiased=True) == f"{DINO}\n\n{AUTO_NLI}"

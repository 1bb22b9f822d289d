"""model_cards.dataset.tables and the checks behind them: texts by label, by shot count and by reason."""

from pathlib import Path
from typing import Any

import pytest
from test_model_cards_runs import FEW_SHOT, card_of, dataset_run

from hub.contract.run_dir import read_manifest, write_manifest
from hub.errors import InputError
from model_cards.render import render

FEW = {"few_shot": FEW_SHOT}


def run_with(directory: Path, form: str = "sts", changes: dict[str, Any] | None = None, **counts: Any) -> Path:
    """A finished run with some of its counts replaced."""
    directory = dataset_run(directory, form, changes=changes)
    manifest = read_manifest(directory)
    assert manifest is not None
    write_manifest(directory, manifest.model_copy(update={"counts": {**manifest.counts, **counts}}))
    return directory


def by_label(**reasons: dict[str, int]) -> dict[str, Any]:
    """Counts of the two labels, 7 requested each, with the reasons of each."""
    return {
        name.removeprefix("_"): {"requested": 7, "kept": 5, "rejected": 2, "reasons": found}
        for name, found in reasons.items()
    }


def test_reasons_are_told_label_by_label(tmp_path):
    counts = {
        "rejected": {"identical": 1, "not_closed": 3},
        "by_label": by_label(_1={"identical": 1, "not_closed": 1}, _0={"not_closed": 2}),
    }
    card = card_of(run_with(tmp_path / "run", **counts))
    assert "| reason | meaning | `1` | `0` | all |" in card
    assert "| `not_closed` | no closing quotation mark within the token limit | 1 | 2 | 3 |" in card
    assert "| `identical` | the second text repeats the first | 1 | 0 | 1 |" in card


def test_without_reasons_by_label_the_totals_are_told(tmp_path):
    card = card_of(run_with(tmp_path / "run"))
    assert "| reason | meaning | texts |" in card


def test_a_reason_of_tomorrow_is_shown_without_a_meaning(tmp_path):
    counts = {"rejected": {"new": 4}, "by_label": by_label(_1={"new": 2}, _0={"new": 2})}
    assert "| `new` |  | 2 | 2 | 4 |" in card_of(run_with(tmp_path / "run", **counts))


def test_shot_counts_are_told(tmp_path):
    variants = {
        "0shot": {"requested": 4, "kept": 2, "rejected": 2},
        "5shot": {"requested": 10, "kept": 8, "rejected": 2},
    }
    card = card_of(run_with(tmp_path / "run", "nli", FEW, variants=variants))
    assert "| `0shot` | 4 | 2 | 2 |\n| `5shot` | 10 | 8 | 2 |" in card


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            {"by_label": by_label(_1={"not_closed": 1}, _0={"not_closed": 2})},
            r"by_label.1.rejected is 2, but the sum of its reasons is 1",
        ),
        (
            {"by_label": by_label(_1={"not_closed": 2}, _0={"not_closed": 2})},
            r"rejected.line_break is 2, but the sum over by_label is 0",
        ),
        (
            {"variants": {"0shot": {"requested": 14, "kept": 10, "rejected": 3}}},
            r"variants.0shot.requested is 14, but its kept \+ rejected is 13",
        ),
        (
            {"variants": {"0shot": {"requested": 13, "kept": 10, "rejected": 3}}},
            "requested is 14, but the sum over variants is 13",
        ),
    ],
)
def test_counts_that_disagree_are_refused(tmp_path, counts, message):
    with pytest.raises(InputError, match=message):
        render(run_with(tmp_path / "run", **counts))

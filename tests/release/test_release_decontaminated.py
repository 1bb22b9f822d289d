"""A dataset without the rows whose texts are in evaluation data: checked, dropped and carded."""

import json
import re
from pathlib import Path

import pytest
import small_runs
from card_runs import tables
from small_runs import small_recipe, small_run

from sts_dino.eval.audit.decontaminate import main as decontaminate
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.contract.shards import read_table
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.render import render, write
from sts_dino.release.publish import build_loading_script

LINES = [
    line.split("\t")
    for line in Path("assets/stsb/sts-test.csv").read_text("utf-8").splitlines()[:2]
]
# an exact match and one in normal form, as source sentences
PLANTED = {3: LINES[0][5], 40: LINES[1][5].upper() + "!!"}
DEFAULTS = {
    "senteval_data": None,
    "sts_data": None,
    "sets": "",
    "config": None,
    "split": None,
    "similarity": 0.5,
}


@pytest.fixture
def whole(tmp_path, monkeypatch) -> Path:
    """A finished dataset with two source sentences of the STS Benchmark's test part in it."""
    plain = small_runs.source_sentence
    monkeypatch.setattr(
        small_runs, "source_sentence", lambda number: PLANTED.get(number) or plain(number)
    )
    small_run(tmp_path / "small-sts", small_recipe("sts"))
    return tmp_path / "small-sts"


def without(
    whole: Path, out: Path, kinds: str = "exact,normal,near", **named: str | None
) -> Manifest:
    """The command, then the card."""
    dropping = {"drop_to": out, "drop_kinds": kinds, "drop_splits": "test,validation,all"}
    named = {"drop_name": None, "drop_version": None} | named
    decontaminate(run=str(whole), out=out.parent / "ledger", **DEFAULTS, **dropping, **named)
    manifest = run_dir.require_complete(out)
    write(out, render(out, f"acme/{manifest.name}"))
    return manifest


def test_its_card_says_what_was_left_out_and_no_script_would_make_those_rows(whole, tmp_path):
    before, directory = run_dir.require_complete(whole), tmp_path / "clean"
    manifest = without(whole, directory)
    assert manifest.name == "small-sts-without-evaluation-texts" and manifest.version == "1.2.0"
    assert {file.config for file in manifest.files} == {"postprocessed"}  # finished rows alone
    texts = [
        read_table(directory / file.path, ["sentence1", "sentence2"]) for file in manifest.files
    ]
    left = {text for table in texts for column in table.columns for text in column.to_pylist()}
    assert not left & set(PLANTED.values())
    short, details = (
        (directory / name).read_text(encoding="utf-8") for name in ("README.md", "DETAILS.md")
    )
    card, total = short + details, 0
    ((names, *removed),) = [table for table in tables(details) if "rows before" in table[0]]
    for row in (dict(zip(names, cells, strict=True)) for cells in removed):
        kinds = [int(row[f"dropped: {kind}"]) for kind in ("exact", "normal", "near")]
        assert int(row["rows before"]) == before.counts["splits"]["postprocessed"][row["split"]]
        assert int(row["rows before"]) == sum(kinds) + int(row["kept"])
        assert int(row["kept"]) == manifest.counts["splits"]["postprocessed"][row["split"]]
        total += sum(kinds)
    assert (
        f"is `small-sts` v1.2.0 without {total} rows whose text occurs in evaluation data" in card
        and total > 2
    )
    assert (
        "compared with `stsb/test`, `stsb/validation`; a" in card
        and "rows are in the config `rejected`" not in card
    )
    assert "**before** rows were removed" in card and 'revision="script"' not in card
    assert "sts-dino decontaminate" in card and str(tmp_path) not in card
    # it would make finished rows from raw ones, which are not there
    assert build_loading_script(directory) == {}


def test_numbers_that_were_changed_afterwards_stop_the_card(whole, tmp_path):
    manifest = without(whole, tmp_path / "clean")
    changed = json.loads((tmp_path / "clean" / "manifest.json").read_text())
    changed["provenance"]["decontamination"]["rows"]["postprocessed"]["train"]["dropped"][
        "exact"
    ] += 1
    run_dir.write_manifest(tmp_path / "clean", Manifest.model_validate(changed))
    with pytest.raises(
        InputError, match=re.escape("provenance.decontamination differs from the digest in inputs")
    ):
        render(tmp_path / "clean")
    run_dir.write_manifest(tmp_path / "clean", manifest)
    assert render(tmp_path / "clean")

"""A dataset without the rows whose texts are in evaluation data: checked, dropped, carded, published, loaded."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
from small_runs import small_recipe, small_run

from eval.audit.decontaminate import main as decontaminate
from hub.client.publish import Options, publish
from hub.contract import run_dir
from hub.contract.run_dir import Manifest
from hub.errors import InputError
from model_cards.render import render, write
from release.publish import loading_script

pytest_plugins = ["local_hub"]
LINES = [line.split("\t") for line in Path("assets/stsb/sts-test.csv").read_text("utf-8").splitlines()[:2]]
PLANTED = {3: LINES[0][5], 40: LINES[1][5].upper() + "!!"}  # an exact match and one in normal form, as source sentences
DEFAULTS = {"senteval_data": None, "sts_data": None, "sets": "", "config": None, "split": None, "similarity": 0.5}
LOAD = """
import json, sys
from datasets import get_dataset_config_names, load_dataset
repo, revision = sys.argv[1:]
configs = get_dataset_config_names(repo, revision=revision)
print(json.dumps({c: {s: r.to_list() for s, r in load_dataset(repo, c, revision=revision).items()} for c in configs}))
"""


@pytest.fixture
def whole(tmp_path, monkeypatch) -> Path:
    """A finished dataset with two source sentences of the STS Benchmark's test part in it."""
    plain = small_runs.source_sentence
    monkeypatch.setattr(small_runs, "source_sentence", lambda number: PLANTED.get(number) or plain(number))
    small_run(tmp_path / "small-sts", small_recipe("sts"))
    return tmp_path / "small-sts"


def without(whole: Path, out: Path, kinds: str = "exact,normal,near", **named: str | None) -> Manifest:
    """The command, then the card."""
    dropping = {"drop_to": out, "drop_kinds": kinds, "drop_splits": "test,validation,all"}
    named = {"drop_name": None, "drop_version": None} | named
    decontaminate(place=str(whole), out=out.parent / "ledger", **DEFAULTS, **dropping, **named)
    manifest = run_dir.require_complete(out)
    write(out, render(out, f"acme/{manifest.name}"))
    return manifest


def published(directory: Path, api, force: bool = False) -> str:
    return publish(api, directory, "acme", True, Options(force=force, script=loading_script(directory))).repo_id


def table_after(card: str, heading: str) -> list[dict[str, str]]:
    section = card.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def texts(rows: list[dict]) -> set[str]:
    return {text for row in rows for text in (row["sentence1"], row["sentence2"])}


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_it_goes_to_a_hub_and_its_card_says_what_was_left_out(whole, hub_api, local_hub, tmp_path):
    before = run_dir.require_complete(whole)
    manifest = without(whole, tmp_path / "clean")
    repo = published(tmp_path / "clean", hub_api)
    assert repo == "acme/small-sts-without-evaluation-texts"

    environment = local_hub.client_environment(tmp_path / "home")
    words = [sys.executable, "-c", LOAD, repo, "v1.2.0"]
    loaded = json.loads(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
    assert loaded.keys() == {"postprocessed"}  # finished rows alone
    splits = loaded["postprocessed"]
    assert {split: len(rows) for split, rows in splits.items()} == manifest.counts["splits"]["postprocessed"]
    assert not set(PLANTED.values()) & texts([row for rows in splits.values() for row in rows])

    card = (tmp_path / "clean" / "README.md").read_text(encoding="utf-8")
    total = 0
    for row in table_after(card, "Removed rows"):
        kinds = [int(row[f"dropped: {kind}"]) for kind in ("exact", "normal", "near")]
        assert int(row["rows before"]) == before.counts["splits"]["postprocessed"][row["split"]]
        assert int(row["rows before"]) == sum(kinds) + int(row["kept"]) and int(row["kept"]) == len(
            splits[row["split"]]
        )
        total += sum(kinds)
    assert f"is `small-sts` v1.2.0 without {total} rows whose text occurs in evaluation data" in card and total > 2
    assert "compared with `stsb/test`, `stsb/validation`; a" in card and "rows are in the config `rejected`" not in card
    assert "**before** rows were removed" in card and 'revision="script"' not in card
    assert "sts-dino decontaminate" in card and str(tmp_path) not in card
    branches = {ref.name for ref in hub_api.list_repo_refs(repo, repo_type="dataset").branches}
    assert branches == {"main"}  # no script: it would make finished rows from raw ones, which are not there


def test_numbers_that_were_changed_afterwards_stop_the_card(whole, tmp_path):
    manifest = without(whole, tmp_path / "clean")
    changed = json.loads((tmp_path / "clean" / "manifest.json").read_text())
    changed["provenance"]["decontamination"]["rows"]["postprocessed"]["train"]["dropped"]["exact"] += 1
    run_dir.write_manifest(tmp_path / "clean", Manifest.model_validate(changed))
    with pytest.raises(InputError, match=re.escape("provenance.decontamination differs from the digest in inputs")):
        render(tmp_path / "clean")
    run_dir.write_manifest(tmp_path / "clean", manifest)
    assert render(tmp_path / "clean")

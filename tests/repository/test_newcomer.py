"""A newcomer's path: an empty folder, four commands and the installation, no file written by hand.

The installation itself, and 300 sentences, are ``python -m benchmarks.newcomer``'s: it takes minutes.
"""

import re
import sys

import pytest
from forked_python import python_in

from benchmarks.newcomer import CORPUS, ORG, ROOT, Words, walk
from hub_server.process import LocalHub

SENTENCES, JUDGED = 60, 30


@pytest.mark.slow("writes, trains, scores and publishes in processes of their own")
def test_a_newcomer_comes_from_sentences_to_a_published_encoder_in_four_commands(tmp_path, monkeypatch):
    texts = CORPUS.read_text(encoding="utf-8").splitlines()[:SENTENCES]
    folder = tmp_path / "empty"
    folder.mkdir()
    with LocalHub(tmp_path / "hub", orgs=[ORG]) as hub:
        monkeypatch.setattr(sys, "executable", python_in(hub.client_environment() | {"PYTHONPATH": str(ROOT)}))
        found = walk(folder, texts, Words(), JUDGED, hub, installed=True)
    assert found["commands"] == 4
    assert found["rows"] > SENTENCES and found["dimension"] > 0
    for encoder in ("texts-encoder", "texts-encoder.base", "all-MiniLM-L6-v2"):
        assert re.search(rf"{re.escape(encoder)} \| -?\d+\.\d \[-?\d+\.\d, -?\d+\.\d\]", found["agreement"]), found
    made = found["made"]
    assert made["rows"].keys() == made["kept"].keys() == {"1", "0.5", "0"} and made["median_cosine"].keys() == {
        *("untrained", "trained")
    }
    assert [one["encoder"] for one in made["written_by_hand"]][:2] == ["trained", "copies control"]
    assert made["scores"]["trained"].keys() == {"stsb/cosine validation"} and made["step_seconds"]["write"] > 0
    page = (folder / "made/report.html").read_text(encoding="utf-8")
    assert "texts-encoder" in page and "<script" not in page
    assert not (folder / "made/.adapt.lock").exists()

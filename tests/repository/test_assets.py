"""What the repository ships, checked against the original data where they are (STS_DINO_DATA), and in itself."""

import json
import os
from pathlib import Path

import pytest

from experiments.built_in_lm.corpus import normalise, read_corpus

DATA = Path(os.environ.get("STS_DINO_DATA", "no data"))
original = pytest.mark.skipif(not DATA.is_dir(), reason="STS_DINO_DATA does not name the original data")


def test_source_sentences_are_no_sentences_of_the_evaluation_files():
    """The demo is scored on sentences that are not among its source sentences."""
    lines = Path("assets/demo-data/x1.tsv").read_text(encoding="utf-8").splitlines()[1:]
    first = {normalise(line.split("\t")[0]) for line in lines}
    scored = set()
    for name in ("sts-dev.csv", "sts-test.csv"):
        rows = [line.split("\t") for line in Path("assets/stsb", name).read_text(encoding="utf-8").split("\n") if line]
        scored |= {normalise(sentence) for row in rows for sentence in row[5:7]}
    assert len(lines) == 1200 and len(scored) > 5000 and not first & scored


def test_recipes_published_before_the_rename_still_find_their_source_sentences():
    old = [path for path in Path("assets").iterdir() if path.is_symlink()]
    assert [(path / "wikipedia.txt").is_file() for path in old] == [True]


@original
def test_shipped_files_are_the_original_ones():
    theirs, names = DATA / "sts-original/STSBenchmark", ("sts-dev.csv", "sts-test.csv", "LICENSE.txt", "readme.txt")
    shipped = {Path("assets/stsb") / name: theirs / name for name in names}
    assert [ours for ours, other in shipped.items() if ours.read_bytes() != other.read_bytes()] == []


@pytest.mark.slow("reads whole evaluation sets")
@original
def test_the_language_models_text_holds_no_sentence_of_an_evaluation_set():
    """STS12-16, the STS Benchmark and SICK, read here by other code than the corpus uses."""
    evaluation = set()
    for path in (DATA / "sts-original").rglob("*"):
        if path.suffix in (".txt", ".csv") and ("input" in path.name or path.name.startswith(("sts-", "SICK_"))):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                evaluation |= {normalise(cell) for cell in line.split("\t") if len(cell.split()) > 2}
    corpus = read_corpus(DATA)
    texts = [caption for image in corpus.images for caption in image] + corpus.prose
    texts += [text for row in (*corpus.nli, *corpus.fewshot) for text in row[1:]]
    assert len(evaluation) > 25_000 and len(texts) > 140_000
    wikipedia = Path("assets/source-sentences/wikipedia.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(wikipedia)) == len(wikipedia) == 3000
    assert not [text for text in texts if normalise(text) in evaluation][:5]
    removed = json.loads(Path("assets/demo-lm/training.json").read_text())["evaluation_sentences_removed"]
    assert removed == {source: corpus.removed.get(source, 0) for source in removed}

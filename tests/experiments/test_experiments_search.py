"""Training rows of the search experiment: passages, queries and baselines of a finished run."""

import json
from types import SimpleNamespace

import numpy as np
from small_runs import small_recipe, small_run

from sts_dino.experiments.search import build_variants, draw_passages
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.contract.schema import get_base_config


def vowels(texts):
    return np.array(
        [[text.count(letter) + 0.1 for letter in "aeiou0123456789"] for text in texts],
        dtype=np.float32,
    )


def test_passages_are_the_first_words_of_long_documents(tmp_path):
    texts = [
        "too short",
        *(f'"{number}" said he. ' + "and more words " * 40 for number in range(9)),
    ]
    lines = [
        json.dumps({"_id": str(number), "title": "t", "text": text})
        for number, text in enumerate(texts)
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    found = draw_passages(tmp_path / "corpus.jsonl", 5)
    assert len(set(found)) == 5 and all(
        len(text.split()) == 90 and text[0] == "'" for text in found
    )
    assert (
        found
        == draw_passages(tmp_path / "corpus.jsonl", 9)[:5]
        != draw_passages(tmp_path / "corpus.jsonl", 5, seed=1)
    )


def test_every_row_of_the_table_is_made_of_one_run(tmp_path):
    small_run(tmp_path, small_recipe("search"))
    base = SimpleNamespace(base=SimpleNamespace(location="python:test_experiments_search:vowels"))
    found = build_variants(tmp_path, ["One sentence. And the rest. Of it.", "No end"], base)
    counts = {get_base_config(file.config or ""): 0 for file in require_complete(tmp_path).files}
    for file in require_complete(tmp_path).files:
        counts[get_base_config(file.config or "")] += file.rows or 0
    assert (
        len(found["queries"]) == counts["pair"]
        and len(found["hard-negative queries"]) == counts["query-triplet"]
    )
    assert found["inverse cloze"] == [("One sentence.", "And the rest. Of it.")]
    queries, kept, shuffled = (
        found[name] for name in ("queries", "queries, round trip", "shuffled passages")
    )
    assert 0 < len(kept) < counts["pair"] and {*kept} < {*queries}
    for column in (0, 1):
        assert sorted(row[column] for row in shuffled) == sorted(row[column] for row in queries)
    assert shuffled != queries

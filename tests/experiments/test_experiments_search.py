"""Training rows of the search experiment: passages, queries and baselines of a finished run."""

import json

import numpy as np
import pytest
from small_runs import small_recipe, small_run

from sts_dino.experiments import search
from sts_dino.experiments.search import build_variants, draw_inverse_cloze, draw_passages
from sts_dino.experiments.steps import Steps
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.contract.schema import get_base_config
from sts_dino.hub.errors import InputError

VOWELS = "python:test_experiments_search:vowels"
LENGTHS = "python:test_experiments_search:lengths"


def lengths(texts):
    return np.array([[len(text), len(text.split()), 1] for text in texts], dtype=np.float32)


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
    found = build_variants(tmp_path, VOWELS)
    counts = {get_base_config(file.config or ""): 0 for file in require_complete(tmp_path).files}
    for file in require_complete(tmp_path).files:
        counts[get_base_config(file.config or "")] += file.rows or 0
    assert (
        len(found["queries"]) == counts["pair"]
        and len(found["hard-negative queries"]) == counts["query-triplet"]
    )
    cloze = draw_inverse_cloze(["One sentence. And the rest. Of it.", "No end"])
    assert cloze == [("One sentence.", "And the rest. Of it.")]
    queries, kept, shuffled = (
        found[name] for name in ("queries", "queries, round trip", "shuffled passages")
    )
    assert 0 < len(kept) < counts["pair"] and {*kept} < {*queries}
    for column in (0, 1):
        assert sorted(row[column] for row in shuffled) == sorted(row[column] for row in queries)
    assert shuffled != queries


def test_each_query_has_its_own_passage_the_nearest_and_random_ones(tmp_path):
    pairs = [(f"query a{number}", f"passage {'aeiou' * number}") for number in range(30)]
    pairs.append(("another query", pairs[0][1]))
    examples = search.score_candidates(pairs, VOWELS, LENGTHS, tmp_path)
    assert len(examples) == len(pairs) * search.CANDIDATES
    scores = [score for _, _, score in examples]
    assert all(0 <= score <= 1 for score in scores) and len(set(scores)) > 100
    for query, own in pairs:
        candidates = {passage: score for other, passage, score in examples if other == query}
        assert own in candidates and len(candidates) == search.CANDIDATES
        ranked = list(candidates.values())[1 : search.NEAREST]
        assert ranked == sorted(ranked, reverse=True)
        assert min(ranked) >= max(list(candidates.values())[search.NEAREST :])
    assert examples == search.score_candidates(pairs, VOWELS, LENGTHS, tmp_path)


def test_few_passages_are_all_candidates(tmp_path):
    pairs = [("a question", "a passage"), ("oh, a second", "oh, another one")]
    examples = search.score_candidates(pairs, VOWELS, LENGTHS, tmp_path)
    assert [example[:2] for example in examples] == [
        (pairs[0][0], pairs[0][1]),
        (pairs[0][0], pairs[1][1]),
        (pairs[1][0], pairs[1][1]),
        (pairs[1][0], pairs[0][1]),
    ]


def test_rows_are_chosen_by_name(tmp_path):
    assert search.choose_rows(None, tmp_path) == list(search.ROWS)
    without = search.choose_rows(None, None)
    assert set(search.ROWS) - set(without) == {search.PARAPHRASES}
    with pytest.raises(InputError, match="--sts"):
        search.choose_rows([search.PARAPHRASES], None)
    with pytest.raises(InputError, match="inverse"):
        search.choose_rows(["inverse clozes"], None)
    types = [
        search.find_example_type(row) for row in (("a", "b"), ("a", "b", "c"), ("a", "b", 0.5))
    ]
    assert types == ["pair", "triplet", "sts"]


def make_collection(folder, document):
    (folder / "corpus.jsonl").write_text(json.dumps({"_id": "d", "title": "", "text": document}))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "which one"}))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")


def test_a_collection_without_its_files_or_passages_is_refused(tmp_path):
    steps = Steps(tmp_path / "steps")
    with pytest.raises(InputError, match=r"queries\.jsonl: no such file"):
        search.Search(steps, tmp_path, [], VOWELS)
    make_collection(tmp_path, "too short to be a passage")
    found = search.Search(steps, tmp_path, ["@assets/offline.yaml"], VOWELS)
    with pytest.raises(InputError, match="gives no training rows for the row 'inverse cloze'"):
        found.make_rows([search.CLOZE], 10, None)
    with pytest.raises(InputError, match="for the row 'inverse cloze, teacher'"):
        found.make_rows(["inverse cloze, teacher"], 10, None)


def test_a_server_is_no_row_of_the_table(tmp_path):
    with pytest.raises(InputError, match="is a server, which cannot be scored"):
        search.main(tmp_path, tmp_path / "out.json", teacher="m@http://127.0.0.1:1/v1", mixed=None)


def test_scores_are_those_of_the_collection(tmp_path, monkeypatch):
    outs = []
    monkeypatch.setattr(Steps, "run_once", lambda *arguments: outs.append(arguments[-1]))
    for document in ("one document", "one document", "another document"):
        make_collection(tmp_path, document)
        search.Search(Steps(tmp_path), tmp_path, ["@assets/offline.yaml"], VOWELS).score(VOWELS)
    assert outs[0] == outs[1] != outs[2]

"""Rows that training does not see: the printed lines, the manifest and the card say how many it
saw, or it refuses.
"""

import json

import pytest
from training_inputs import sts_rows, write_recipe

from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.errors import InputError
from sts_dino.training.run import describe_run, main

RANKING = {"example_type": "triplet", "loss": "MultipleNegativesRankingLoss"}
TRIPLET = {"anchor": "a dog runs", "positive": "a dog is running", "negative": "a cat sleeps"}
OTHER = {**TRIPLET, "anchor": "two men cook"}


def jsonl(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path), "config": "default"}


def scored(count):
    return [
        {key: row[key] for key in ("sentence1", "sentence2", "score")} for row in sts_rows(count)
    ]


COSINE = {"example_type": "sts", "loss": "CosineSimilarityLoss"}
GRADED = {"example_type": "graded-pair", "loss": "MultipleNegativesRankingLoss"}


@pytest.mark.parametrize(
    ("rows", "spec", "changes", "seen", "said"),
    [
        (
            scored(19),
            COSINE,
            {"dataloader_drop_last": "true"},
            10,
            "19 rows, 1 steps, 10 distinct rows seen",
        ),
        (
            scored(3),
            COSINE,
            {},
            3,
            "rows.jsonl: a batch has at most 3 rows, fewer than batch_size 10",
        ),
        (scored(32), COSINE, {"max_steps": "2"}, 20, "32 rows, 2 steps, 20 distinct rows seen"),
        (
            scored(2) * 8,
            COSINE,
            {"num_train_epochs": "2"},
            2,
            "16 rows, 4 steps, 2 distinct rows seen",
        ),
        (
            scored(12),
            COSINE,
            {"num_train_epochs": "2"},
            12,
            "12 rows, 4 steps, 12 distinct rows seen",
        ),
        (scored(12), GRADED, {}, 4, "8 source sentences or documents are passed over"),
        (
            [TRIPLET, OTHER],
            RANKING | {"streaming": "true"},
            {"max_steps": "2"},
            None,
            "a stream, 2 steps",
        ),
    ],
)
def test_a_run_says_how_many_distinct_rows_it_saw(tmp_path, rows, spec, changes, seen, said):
    arguments = {"report_to": "none", "learning_rate": "1e-3", "num_train_epochs": "1", **changes}
    recipe = write_recipe(
        tmp_path, datasets=[jsonl(tmp_path, rows) | spec], batch_size="10", arguments=arguments
    )
    main(recipe, out=tmp_path / "out")
    manifest = require_complete(tmp_path / "out")
    assert manifest.counts["seen_rows"] == seen
    assert said in "\n".join(describe_run(tmp_path / "out", manifest))


@pytest.mark.parametrize(
    ("rows", "spec", "arguments", "message"),
    [
        ([TRIPLET], RANKING, {}, "has 1 distinct row, and MultipleNegativesRankingLoss compares"),
        ([TRIPLET] * 8, RANKING, {}, "has 1 distinct row"),
        ([TRIPLET] * 8, RANKING | {"streaming": "true"}, {"max_steps": "2"}, "has 1 distinct row"),
        ([{"text": "one"}] * 3, GRADED | {"example_type": "self-pair"}, {}, "has 1 distinct row"),
        (
            scored(9),
            COSINE,
            {"dataloader_drop_last": "true"},
            "dataloader_drop_last: drops all 9 rows of",
        ),
    ],
)
def test_rows_that_teach_nothing_are_refused_before_anything_is_written(
    tmp_path, rows, spec, arguments, message
):
    recipe = write_recipe(
        tmp_path, datasets=[jsonl(tmp_path, rows) | spec], batch_size="10", arguments=arguments
    )
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=message) as refused:
        main(recipe, out=tmp_path / "out")
    assert "\n" not in str(refused.value) and sorted(tmp_path.iterdir()) == before

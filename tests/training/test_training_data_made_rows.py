"""Forms that are made from a dataset's rows: texts with themselves, pairs and triplets of graded pairs; row weights."""

from itertools import pairwise

import pytest
import torch
from tiny_bases import make_llama, make_mlm
from training_inputs import PROVENANCE, data_spec, sts_rows, write_dataset, write_recipe

from hub.contract.recipe import Encoder, Grades, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from training.data.training_sets import load_all
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder, has_dropout
from training.loop.job import prepare
from training.loop.train import make_trainer, train, untrained_encoder
from training.loop.trainer import TextCollator, TokenDropout

QUIET = {"report_to": "none", "logging_steps": "2", "num_train_epochs": "1", "learning_rate": "1e-3"}
RANKING = "MultipleNegativesRankingLoss"


def graded(*pairs):
    """Rows of (source sentence, second text, score)."""
    return [{"sentence1": a, "sentence2": b, "score": score, **PROVENANCE} for a, b, score in pairs]


ROWS = graded(
    ("x", "far", 0.1),
    ("x", "half", 0.5),
    ("x", "near", 0.9),
    ("y", "near y", 0.9),
    ("x", "nearer", 0.9),
    ("y", "y far", 0.1),
    ("y", "near y", 0.5),  # a text written for both labels
    ("z", "only far", 0.1),
    ("v", "only near", 0.9),
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("d") / "pairs", {"train": ROWS, "validation": sts_rows(6)})


def loaded(path, form, limit=None, **changes):
    (found,) = load_all((data_spec(path, example_type=form, loss=RANKING, **changes),), limit)
    return found


def made(path, form, **changes):
    return [tuple(row.values()) for row in loaded(path, form, **changes).train]


def test_each_distinct_text_is_paired_with_itself(pairs):
    assert made(pairs, "self-pair") == [("x", "x"), ("y", "y"), ("z", "z"), ("v", "v")]
    both = made(pairs, "self-pair", columns=("sentence1", "sentence2"))
    assert both[:4] == [("x", "x"), ("far", "far"), ("half", "half"), ("near", "near")]
    assert len(both) == len(set(both)) == 4 + 8
    assert made(pairs, "self-pair", limit=2) == [("x", "x"), ("y", "y")]
    found = loaded(pairs, "self-pair", columns=("sentence2",))
    assert found.train.column_names == ["anchor", "positive"]
    assert found.validation is None  # its scores are labels
    assert found.describe()["columns"] == ("sentence2",)
    assert "columns" not in loaded(pairs, "self-pair").describe()


def test_each_positive_takes_a_hard_negative_of_its_source_sentence_the_hardest_first(pairs):
    assert made(pairs, "graded-triplet") == [("x", "near", "half"), ("x", "nearer", "far"), ("y", "near y", "y far")]
    assert loaded(pairs, "graded-triplet").passed_over == 2  # z has no positive, v no negative
    grades = Grades(negative_from=0.4)
    assert made(pairs, "graded-triplet", grades=grades) == [("x", "near", "half"), ("x", "nearer", "half")]
    grades = Grades(negative_to=0.3)
    assert made(pairs, "graded-triplet", grades=grades)[:2] == [("x", "near", "far"), ("x", "nearer", "far")]
    assert made(pairs, "graded-triplet", limit=1) == [("x", "near", "half")]
    found = loaded(pairs, "graded-triplet", grades=grades)
    assert found.train.column_names == ["anchor", "positive", "negative"]
    assert len(found.validation) == 6 and found.validation.column_names == ["sentence1", "sentence2", "score"]
    assert found.describe()["grades"] == {"positive_from": 0.75, "negative_from": 0.0, "negative_to": 0.3}


def test_positives_alone_are_pairs(pairs):
    wanted = [("x", "near"), ("x", "nearer"), ("y", "near y"), ("v", "only near")]
    assert made(pairs, "graded-pair") == wanted
    assert made(pairs, "graded-pair", grades=Grades(positive_from=0.9)) == wanted  # 0.9 as float32 is less than 0.9


def recipe(folder, *datasets, **changes):
    if not (folder / "pairs").exists():  # three pairs of each source sentence
        rows = sts_rows(96)
        rows = [{**row, "sentence1": rows[index // 3 * 3]["sentence1"]} for index, row in enumerate(rows)]
        write_dataset(folder / "pairs", {"train": rows})
    here = {"path": str(folder / "pairs"), "config": "postprocessed"}
    return write_recipe(folder, datasets=[{**here, **item} for item in datasets], **{"arguments": QUIET, **changes})


def test_a_guide_is_pinned_and_not_trained(tmp_path):
    make_mlm(tmp_path / "guide")
    guide = {"path": str(tmp_path / "guide"), "license": "cc-by-nc-sa-4.0"}
    data = {"example_type": "graded-triplet", "loss": "GISTEmbedLoss", "guide": guide}
    with pytest.raises(InputError, match=r"does not cover its parts; allowed: cc-by-nc"):  # it taught the encoder
        prepare(recipe(tmp_path, data), tmp_path / "out", None, [])
    path = recipe(tmp_path, data | {"guide": guide | {"license": "mit"}})
    job = prepare(path, tmp_path / "out", None, [])
    assert job.begin().inputs["guide:guide"] == job.guides[0].sha256
    encoder = build_encoder(job.recipe.base, job.base)
    trainer = make_trainer(job, encoder, "f")
    (loss,) = trainer.loss.values()
    before = {name: weight.clone() for name, weight in loss.guide.state_dict().items()}
    trainer.train()
    assert not trainer.loss_parameters  # no checkpoint holds the guide
    assert not loss.guide.training
    assert all(torch.equal(weight, before[name]) for name, weight in loss.guide.state_dict().items())
    assert load_recipe(path, ModelRecipe).datasets[0].guide.path == str(tmp_path / "guide")


PROMPT = 'This text: "[X]" is:"'
TEXTS = [f"a man plays the flute {word} on the old red beach" for word in ("twice", "", "with two dogs and a cat")]


def encoder_of(folder, kind):
    if kind == "static":
        spec = {"path": str(make_mlm(folder / "lm")), "modules": "static"}
    elif kind == "mlm":
        spec = {"path": str(make_mlm(folder / "lm"))}
    else:
        spec = {"path": str(make_llama(folder / "lm")), "pooling": "lasttoken", "prompt": PROMPT}
    encoder = Encoder(**spec, license="mit")
    return build_encoder(encoder, find_base(encoder))


def tokens(features, column="anchor"):
    """The ids of each text in a batch."""
    ids = features[f"{column}_input_ids"]
    if f"{column}_offsets" in features:
        bounds = [*features[f"{column}_offsets"].tolist(), len(ids)]
        return [ids[first:last].tolist() for first, last in pairwise(bounds)]
    mask = features[f"{column}_attention_mask"].bool()
    return [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]


def is_part(part, whole):
    """Whether ``part`` is ``whole`` with some elements left out, in order."""
    rest = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.parametrize("kind", ["static", "mlm", "prompted"])
def test_a_share_of_the_tokens_is_left_out_and_never_what_stands_around_a_text(tmp_path, kind):
    encoder = encoder_of(tmp_path, kind)
    rows = [{"anchor": text, "positive": text} for text in TEXTS for _ in range(100)]
    whole = tokens(TextCollator(encoder.preprocess)(rows))
    noise = TokenDropout(encoder.preprocess, 0.3, seed=1, pad=1)
    batch = TextCollator(encoder.preprocess, token_dropout=noise)(rows)
    around = {"static": (0, 0), "mlm": (1, 1)}.get(kind, (noise.before, noise.after))
    assert (noise.before, noise.after) == around and (kind != "prompted" or min(around) >= 3)
    gone = there = 0
    for column in ("anchor", "positive"):
        for left, ids in zip(tokens(batch, column), whole, strict=True):
            before, after = noise.before, len(ids) - noise.after
            assert left[:before] == ids[:before] and left[len(left) - noise.after :] == ids[after:]
            inner = left[before : len(left) - noise.after]
            assert len(inner) > 0 and is_part(inner, ids[before:after])
            gone, there = gone + len(ids) - len(left), there + after - before
    assert 0.28 < gone / there < 0.32
    assert tokens(batch) != tokens(batch, "positive")  # the two sides of a text
    if kind != "static":
        mask = batch["anchor_attention_mask"]
        assert (mask.diff(dim=1) <= 0).all() and mask.any(dim=0).all()  # padding behind, no column of it alone
        assert set(batch["anchor_input_ids"][mask == 0].tolist()) <= {1}
    most = TokenDropout(encoder.preprocess, 0.99, seed=1)
    batch = TextCollator(encoder.preprocess, token_dropout=most)(rows)
    assert min(len(ids) for ids in tokens(batch)) == sum(around) + 1  # never all of a text


def test_the_draw_is_the_batch_s_own(tmp_path):
    """Whatever was drawn before: a resumed run skips batches, and loaders read ahead."""
    preprocess = encoder_of(tmp_path, "static").preprocess
    rows = [{"anchor": text} for text in TEXTS * 5]
    noises = [TokenDropout(preprocess, 0.3, seed) for seed in (1, 1, 2)]
    first, again, other = (TextCollator(preprocess, token_dropout=noise) for noise in noises)
    drawn = tokens(first(rows))
    torch.manual_seed(5)
    again(rows[3:])
    assert tokens(again(rows)) == drawn != tokens(other(rows))
    assert tokens(first(rows[1:])) != drawn[1:]


def test_a_self_pair_needs_dropout_in_the_encoder_or_of_tokens(tmp_path, capsys):
    data = {"path": str(tmp_path / "pairs"), "config": "postprocessed", "example_type": "self-pair"}
    data |= {"loss": "MultipleNegativesRankingLoss"}
    assert has_dropout(encoder_of(tmp_path, "mlm"))
    static = {"path": str(tmp_path / "lm"), "modules": "static", "license": "mit"}
    for rate in ("0", "0.3"):
        recipe = write_recipe(tmp_path, datasets=[data], base=static, token_dropout=rate)
        job = prepare(recipe, tmp_path / rate, None, ["arguments.max_steps=1"])
        trainer = make_trainer(job, untrained_encoder(job), "f")
        batch = next(iter(trainer.get_train_dataloader()))
        same = batch["anchor_input_ids"].tolist() == batch["positive_input_ids"].tolist()
        train(job, "f")
        assert ("has no dropout" in capsys.readouterr().err) == same == (rate == "0")

"""Token dropout: which tokens may go, how many do, and that the draw is a batch's own."""

from itertools import pairwise

import pytest
import torch
from tiny_bases import make_llama, make_mlm
from training_inputs import write_recipe

from hub.contract.recipe import Encoder
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder, has_dropout
from training.loop.job import prepare
from training.loop.train import make_trainer, train, untrained_encoder
from training.loop.trainer import TextCollator, TokenDropout

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


@pytest.mark.parametrize("kind", ["static", "prompted"])
def test_never_all_of_a_text(tmp_path, kind):
    encoder = encoder_of(tmp_path, kind)
    noise = TokenDropout(encoder.preprocess, 0.99, seed=1)
    batch = TextCollator(encoder.preprocess, token_dropout=noise)([{"anchor": text} for text in TEXTS * 50])
    assert {len(ids) for ids in tokens(batch)} >= {noise.before + noise.after + 1}
    assert min(len(ids) for ids in tokens(batch)) == noise.before + noise.after + 1
    empty = TextCollator(encoder.preprocess, token_dropout=noise)([{"anchor": ""}, {"anchor": "a"}])
    assert len(tokens(empty)) == 2


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
    assert tokens(first(rows[1:]))[0] != drawn[1] or tokens(first(rows[1:])) != drawn[1:]  # another batch, another draw


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

"""Caption-image retrieval against a plain computation and the toolkit procedure."""

import numpy as np
import pytest
import torch
from senteval_layout import bag_of_words

from eval.scoring import retrieval as ranking_model
from eval.scoring.retrieval import EncodedSplit, Projections, RankingSettings, measure_retrieval, ranks, train
from eval.tasks.registry import find_task
from eval.tasks.rows import Rows

SMALL = RankingSettings(dimension=24, batch=32, contrasts=8, passes=6, fold=40)
IMAGES = {"train": 160, "validation": 80, "test": 80}


def planted(noise: float, dimension: int = 16) -> dict[str, Rows]:
    """Images whose features are a linear map of what their five captions say, plus noise."""
    random = np.random.default_rng(5)
    linear = random.standard_normal((32, dimension))
    splits = {}
    for split, count in IMAGES.items():
        said = [" ".join(random.choice([f"w{word}" for word in range(60)], 6, replace=False)) for _ in range(count)]
        features = bag_of_words(said, 32) @ linear + noise * random.standard_normal((count, dimension))
        rows = [(f"{said[image]} extra{number}", image) for image in range(count) for number in range(5)]
        splits[split] = Rows.of(rows, features=features.astype(np.float32))
    return splits


def embed(texts):
    return bag_of_words(texts, 32)


def encoded(noise: float) -> dict[str, EncodedSplit]:
    return {
        split: EncodedSplit(torch.tensor(of.features), torch.tensor(embed(of.first)), torch.tensor(of.target))
        for split, of in planted(noise).items()
    }


def test_a_planted_linear_map_is_found_and_scored_by_the_mean_of_six_recalls():
    measured = measure_retrieval(find_task("coco/retrieval"), planted(0.1), embed, (1111,), SMALL)
    assert measured.score > 85
    assert measured.other["image_to_text_median_rank"] == measured.other["text_to_image_median_rank"] == 1
    assert {name: rows for name, (_, rows) in measured.parts.items()} == {"image_to_text": 80, "text_to_image": 400}
    outcomes, part = measured.outcomes, np.array(measured.outcomes.part)
    six = []
    for direction in ("image_to_text", "text_to_image"):
        of = outcomes.predicted[part == direction]
        for cut in (1, 5, 10):
            six.append(100 * sum(rank < cut for rank in of) / len(of))
            assert measured.other[f"{direction}_recall@{cut}"] == pytest.approx(six[-1])
    assert measured.score == pytest.approx(sum(six) / 6)
    assert outcomes.gold[part == "text_to_image"].tolist() == [caption // 5 for caption in range(400)]


def test_ranks_equal_a_plain_computation():
    random, model = np.random.default_rng(0), Projections(7, 9, 5)
    features, sentences = random.standard_normal((20, 7)), random.standard_normal((100, 9))
    side = EncodedSplit(
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(sentences, dtype=torch.float32),
        torch.arange(100) // 5,
    )
    of_images, of_captions = ranks(model, side, fold=10)
    with torch.inference_mode():
        left, right = model.images(side.images).numpy(), model.captions(side.captions).numpy()
    for fold in range(2):
        for image in range(10 * fold, 10 * fold + 10):
            order = sorted(range(50 * fold, 50 * fold + 50), key=lambda caption: -float(left[image] @ right[caption]))
            assert of_images[image] == min(order.index(own) for own in range(5 * image, 5 * image + 5))
        for caption in range(50 * fold, 50 * fold + 50):
            order = sorted(range(10 * fold, 10 * fold + 10), key=lambda image: -float(left[image] @ right[caption]))
            assert of_captions[caption] == order.index(caption // 5)


def plain_pass(side: EncodedSplit, settings: RankingSettings, seed: int) -> list[torch.nn.Linear]:
    """One pass, pair by pair, as the toolkit describes it: every contrast projected beside its own anchor."""
    drawn = np.random.RandomState(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        maps = [torch.nn.Linear(width.shape[1], settings.dimension) for width in (side.images, side.captions)]
    optimizer = torch.optim.Adam([weight for linear in maps for weight in linear.parameters()])
    order, n = list(drawn.permutation(len(side.captions))), settings.batch

    def project(linear, rows):
        return (projected := linear(rows)) / projected.norm(dim=1, keepdim=True)

    for start in range(0, len(order), n):
        batch, rest = order[start : start + n], order[:start] + order[start + n :]
        wrong_images, wrong_captions = (drawn.choice(rest, settings.contrasts * len(batch)) for _ in range(2))
        anchors = torch.tensor(batch).repeat_interleave(settings.contrasts)
        image, other_image = (project(maps[0], side.images[side.image_of[rows]]) for rows in (anchors, wrong_images))
        caption, other_caption = (project(maps[1], side.captions[rows]) for rows in (anchors, wrong_captions))
        right = (image * caption).sum(1)
        hinges = torch.relu(0.2 - right + (image * other_caption).sum(1))
        hinges = hinges + torch.relu(0.2 - right + (caption * other_image).sum(1))
        optimizer.zero_grad()
        hinges.sum().backward()
        optimizer.step()
    return maps


def test_a_pass_equals_the_plain_procedure():
    side = encoded(1.0)["validation"]
    settings = RankingSettings(dimension=12, batch=32, contrasts=6, passes=1, fold=40)
    model, _ = train(side, side, settings, seed=1111)
    image, caption = plain_pass(side, settings, seed=1111)
    assert torch.allclose(model.of_image.weight, image.weight, atol=1e-5)
    assert torch.allclose(model.of_caption.bias, caption.bias, atol=1e-5)


def test_training_ends_with_the_fourth_pass_that_is_no_improvement_and_keeps_the_best(monkeypatch):
    sides, scores = encoded(30.0), []

    def kept(*arguments):
        found = ranks(*arguments)
        scores.append(np.mean([100 * np.mean(side < cut) for side in found for cut in (1, 5, 10)]))
        return found

    monkeypatch.setattr(ranking_model, "ranks", kept)
    settings = RankingSettings(dimension=8, batch=64, contrasts=4, fold=40)
    model, best = train(sides["train"], sides["validation"], settings, seed=1)
    stale = [score <= max(scores[:number], default=-1) for number, score in enumerate(scores)]
    assert len(scores) < settings.passes == 21 and sum(stale) == 4 and stale[-1]
    assert kept(model, sides["validation"], 40) and scores[-1] == pytest.approx(best) == max(scores)


def test_equal_vectors_earn_nothing():
    side = EncodedSplit(torch.ones(6, 3), torch.ones(30, 4), torch.arange(30) // 5)
    of_images, of_captions = ranks(Projections(3, 4, 2), side, fold=6)
    assert set(of_images) == {25} and set(of_captions) == {5}

"""Each objective is right, against an independent reading of its source; names are upstream's."""

import copy
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tiny_bases import make_mlm
from torch import distributed
from training_inputs import model_recipe

from hub.contract.recipe import TrainingData
from hub.errors import InputError
from training.encoder.bases import Base
from training.losses.losses import LOSSES, build_loss, check_losses, loss_arguments

ANCHORS = [
    "a man plays a flute",
    "two dogs",
    "a woman cooks in the red house",
    "blue car",
    "an old cat runs",
    "x",
    "y z",
]
POSITIVES = ["a man is playing music", "dogs", "someone cooks", "a car that is blue", "a cat is running", "x x", "z"]
NEGATIVES = ["nobody plays", "two cats", "a woman eats", "red car", "a young dog sleeps on the beach", "w", "y"]
TEXTS = (ANCHORS, POSITIVES, NEGATIVES)


def spec(loss, form="triplet", **arguments):
    return TrainingData(path="d", config="c", example_type=form, loss=loss, loss_arguments=arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_mlm(tmp_path_factory.mktemp("mlm"))


@pytest.fixture
def encoder(folder):
    """A small RoBERTa under mean pooling in float64, dropout off."""
    transformer = Transformer(str(folder), processor_kwargs={"padding_side": "right"}, max_seq_length=64)
    return SentenceTransformer(modules=[transformer, Pooling(32, "mean")]).double().eval()


def build(encoder, loss, form="triplet", processes=1, guide=None, **arguments):
    return build_loss(spec(loss, form, **arguments), encoder, Base(Path("none"), None, "0" * 64), processes, guide)


def features(encoder, columns=TEXTS):
    return [encoder.preprocess(list(texts)) for texts in columns]


def embed(encoder, columns=TEXTS):
    return [encoder(item)["sentence_embedding"] for item in features(encoder, columns)]


def gradients(encoder, loss):
    """Every parameter's gradient of ``loss``, flat."""
    encoder.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in encoder.parameters() if weight.grad is not None])


def same(encoder, loss, reference):
    """Assert that two losses have the same value and gradients."""
    assert loss.item() == pytest.approx(reference.item(), rel=1e-10)
    found, wanted = gradients(encoder, loss), gradients(encoder, reference)
    assert wanted.norm() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-10)


def info_nce(anchors, positives, negatives, temperature=0.05):
    """-log of the positive's share among all positives and hard negatives of the batch (Auto-NLI, PromptEOL+CSE)."""
    total = 0
    for row, anchor in enumerate(anchors):
        cosines = [torch.dot(anchor, other) / anchor.norm() / other.norm() for other in (*positives, *negatives)]
        weights = torch.stack([torch.exp(cosine / temperature) for cosine in cosines])
        total = total - torch.log(weights[row] / weights.sum())
    return total / len(anchors)


CACHED = {"mini_batch_size": "3"}
RANKING = [("MultipleNegativesRankingLoss", {}), ("CachedMultipleNegativesRankingLoss", CACHED)]


@pytest.mark.parametrize(("name", "arguments"), RANKING)
def test_info_nce_with_in_batch_and_hard_negatives_at_temperature_005(encoder, name, arguments):
    same(encoder, build(encoder, name, **arguments)(features(encoder), None), info_nce(*embed(encoder)))


def pairs(encoder, scores):
    return embed(encoder, TEXTS[:2]), torch.tensor(scores, dtype=torch.float64)


SCORES = [0.9, 0.1, 0.5, 0.5, 0.1, 0.9, 0.0]


def ordered(similarities, scores, scale=20.0):
    """log(1 + Σ exp(scale · (s_j - s_i))) over all pairs with score_i > score_j (Huang et al. 2024)."""
    total = torch.ones((), dtype=torch.float64)
    for high, first in zip(scores, similarities, strict=True):
        for low, second in zip(scores, similarities, strict=True):
            if high > low:
                total = total + torch.exp(scale * (second - first))
    return torch.log(total)


def angle(left, right):
    """|Re + Im| of the quotient of two complex vectors, whose halves are real and imaginary parts (Li and Li 2024)."""
    z, w = (torch.complex(*side.chunk(2, dim=1)) for side in (left, right))
    quotient = (z * w.conj()).sum(dim=1) / (z.abs().square().sum(1).sqrt() * w.abs().square().sum(1).sqrt())
    return (quotient.real + quotient.imag).abs()


@pytest.mark.parametrize(("name", "similarity"), [("CoSENTLoss", torch.cosine_similarity), ("AnglELoss", angle)])
def test_losses_on_the_order_of_scores(encoder, name, similarity):
    (left, right), scores = pairs(encoder, SCORES)
    reference = ordered(similarity(left, right), SCORES)
    loss = build(encoder, name, "sts")(features(encoder, TEXTS[:2]), scores)
    same(encoder, loss, reference)


def test_softmax_classifies_both_embeddings_and_their_difference(encoder):
    torch.manual_seed(5)
    loss = build(encoder, "SoftmaxLoss", "pair-class")
    assert loss.classifier.weight.shape == (3, 96)
    loss.classifier.double()
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    value = loss(features(encoder, TEXTS[:2]), labels)
    left, right = embed(encoder, TEXTS[:2])
    logits = torch.cat([left, right, (left - right).abs()], dim=1) @ loss.classifier.weight.T + loss.classifier.bias
    shares = torch.exp(logits) / torch.exp(logits).sum(dim=1, keepdim=True)
    reference = -torch.log(shares[torch.arange(7), labels]).mean()
    same(encoder, value, reference)
    assert loss.classifier.weight.grad.norm() > 0


def test_squares_of_the_cosine(encoder):
    (left, right), scores = pairs(encoder, SCORES)
    squares = (torch.cosine_similarity(left, right) - scores) ** 2
    loss = build(encoder, "CosineSimilarityLoss", "sts")(features(encoder, TEXTS[:2]), scores)
    assert loss.item() == pytest.approx(squares.mean().item(), rel=1e-6)


@pytest.fixture
def guide(encoder):
    """Another encoder of the same tokenizer."""
    other = copy.deepcopy(encoder)
    generator = torch.Generator().manual_seed(1)
    for weight in other.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return other


GUIDED = [("GISTEmbedLoss", {}), ("CachedGISTEmbedLoss", CACHED)]


@pytest.mark.parametrize(("name", "arguments"), GUIDED)
@pytest.mark.parametrize(("margin", "kept"), [("0", slice(0, 3)), ("0.05", slice(0, 2))])
def test_the_guide_masks_the_negatives_that_it_finds_nearer_than_the_positive(
    encoder, guide, name, arguments, margin, kept
):
    """Solatorio 2024, section 3: all of anchors, positives and negatives, at temperature 0.01; here also of pairs."""
    columns, masked = TEXTS[kept], 0
    anchors, positives, *negatives = embed(encoder, columns)
    with torch.no_grad():
        seen = embed(guide, columns)
    reference = torch.zeros((), dtype=torch.float64)
    for row in range(len(anchors)):
        bound = torch.cosine_similarity(seen[0][row], seen[1][row], dim=0) - float(margin)
        terms = [torch.cosine_similarity(anchors[row], positives[row], dim=0)]
        compared = [(0, 0), (0, 1), (1, 1), *((0, 2) for _ in negatives)]  # a side of the row, a side of others
        sides = [anchors, positives, *negatives]
        for own, theirs in compared:
            for other in range(len(anchors)):
                if (own, theirs, other) == (0, 1, row):
                    continue
                if torch.cosine_similarity(seen[own][row], seen[theirs][other], dim=0) > bound:
                    masked += 1
                    continue
                terms.append(torch.cosine_similarity(sides[own][row], sides[theirs][other], dim=0))
        reference = reference - torch.log_softmax(torch.stack(terms) / 0.01, 0)[0] / len(anchors)
    assert 2 * len(anchors) < masked  # more than each text's likeness to itself
    form = "triplet" if negatives else "self-pair"
    before = {key: weight.clone() for key, weight in guide.state_dict().items()}
    loss = build(encoder, name, form, guide=guide, margin=margin, **arguments)
    same(encoder, loss(features(encoder, columns), None), reference)
    assert all(weight.grad is None and not weight.requires_grad for weight in guide.parameters())
    assert all(torch.equal(weight, before[key]) for key, weight in guide.state_dict().items())


IN_BATCH = {
    "CoSENTLoss": ("sts", {}),
    "AnglELoss": ("sts", {}),
    "MultipleNegativesRankingLoss": ("triplet", {}),
    "CachedMultipleNegativesRankingLoss": ("triplet", {"mini_batch_size": "2"}),
    "GISTEmbedLoss": ("triplet", {}),
    "CachedGISTEmbedLoss": ("triplet", {"mini_batch_size": "2"}),
}


def shared(encoder, name, processes, rows=slice(0, 6)):
    """The value of a loss of ``IN_BATCH`` on these rows."""
    form, arguments = IN_BATCH[name]
    guide = copy.deepcopy(encoder) if LOSSES[name].guided else None
    columns = [texts[rows] for texts in (TEXTS if form == "triplet" else TEXTS[:2])]
    scores = torch.tensor(SCORES[rows]).double() if form == "sts" else None  # float32, as losses make them
    return build(encoder, name, form, processes, guide, **arguments)(features(encoder, columns), scores)


def on_one_of_two_processes(rank, folder, out):
    """Each loss on this process's half of the batch; its value and gradients, averaged over both as DDP does."""
    distributed.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=2)
    transformer = Transformer(str(folder), processor_kwargs={"padding_side": "right"}, max_seq_length=64)
    encoder = SentenceTransformer(modules=[transformer, Pooling(32, "mean")]).double().eval()
    results = {}
    for name in IN_BATCH:
        value = shared(encoder, name, 2, slice(3 * rank, 3 * rank + 3))
        mean, found = value.detach().clone(), gradients(encoder, value)
        for tensor in (mean, found):
            distributed.all_reduce(tensor)
        results[name] = {"loss": mean / 2, "gradients": found / 2}
    if rank == 0:
        torch.save(results, out / "results.pt")
    distributed.destroy_process_group()


def test_two_processes_compare_the_rows_of_the_whole_batch(encoder, folder, tmp_path):
    torch.multiprocessing.start_processes(
        on_one_of_two_processes, (folder, tmp_path), nprocs=2, start_method="fork", join=True
    )
    results = torch.load(tmp_path / "results.pt")
    for name in IN_BATCH:
        alone = shared(encoder, name, 1)
        assert results[name]["loss"].item() == pytest.approx(alone.item(), rel=1e-10), name
        torch.testing.assert_close(results[name]["gradients"], gradients(encoder, alone), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("loss", "name", "text", "message"),
    [
        ("MultipleNegativesRankingLoss", "scal", "20", r"p.loss_arguments.scal: is not .*did you mean 'scale'"),
        ("MultipleNegativesRankingLoss", "temperature", "0.05", r"not an argument .*; scale is 1 / temperature"),
        ("CachedMultipleNegativesRankingLoss", "mini_batch_size", "many", r"valid integer.*found 'many'"),
        ("CoSENTLoss", "scale", "nan", r"is nan; allowed: a positive number"),
        ("MultipleNegativesRankingLoss", "gather_across_devices", "true", r"is set by this stage; remove it"),
        ("GISTEmbedLoss", "margin", "-1", r"loss_arguments.margin: is -1; allowed: 0 or a positive number"),
    ],
)
def test_loss_arguments_that_cannot_be_used(loss, name, text, message):
    with pytest.raises(InputError, match=message):
        loss_arguments(spec(loss, LOSSES[loss].examples[0].name, **{name: text}), "p")


GUIDE = {"guide": {"path": "d", "license": "mit"}}


@pytest.mark.parametrize(
    ("loss", "form", "keys", "message"),
    [
        ("AnglELoss", "sts", {"weights": "w"}, r"0.weights: is no longer supported"),
        ("CoSENTLoss", "sts", GUIDE, r"p:datasets.0.guide: CoSENTLoss has no .*'GISTEmbedLoss'"),
        ("CosineSimilarityLoss", "triplet", {}, r"0.loss: .*does not learn from example type triplet; allowed: "),
        ("GISTEmbedLoss", "self-pair", {}, r"loss_arguments.margin: is 0: a text is most similar .*margin: 0.1"),
    ],
)
def test_keys_that_do_not_go_with_the_loss(loss, form, keys, message):
    data = TrainingData(path="d", config="c", example_type=form, loss=loss, **keys)
    with pytest.raises(InputError, match=message):
        check_losses(model_recipe(data, batch_size="8"), "p")
        loss_arguments(data, "p:datasets.0")

"""Each objective is right, against an independent reading of its source, DeCLUTR's included; names
are upstream's.
"""

import copy
import math
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from test_training_data_spans import SPANS, documents
from tiny_bases import make_llama, make_mlm
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from sts_dino.hub.contract.recipe import Encoder, TrainingData
from sts_dino.hub.errors import InputError
from sts_dino.training.data.objectives import LOSSES, parse_loss_arguments
from sts_dino.training.data.spans import SpanCollator, make_span_rows
from sts_dino.training.encoder.bases import Base, find_base
from sts_dino.training.encoder.encoder import build_encoder
from sts_dino.training.loop.losses import DeclutrLoss, build_loss, load_head

ANCHORS = [
    "a man plays a flute",
    "two dogs",
    "a woman cooks in the red house",
    "blue car",
    "an old cat runs",
    "x",
    "y z",
]
POSITIVES = [
    "a man is playing music",
    "dogs",
    "someone cooks",
    "a car that is blue",
    "a cat is running",
    "x x",
    "z",
]
NEGATIVES = [
    "nobody plays",
    "two cats",
    "a woman eats",
    "red car",
    "a young dog sleeps on the beach",
    "w",
    "y",
]
TEXTS = (ANCHORS, POSITIVES, NEGATIVES)


def spec(loss, form="triplet", **arguments):
    return TrainingData(
        path="d", config="c", example_type=form, loss=loss, loss_arguments=arguments
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_mlm(tmp_path_factory.mktemp("mlm"))


@pytest.fixture
def encoder(folder):
    """A small RoBERTa under mean pooling in float64, dropout off."""
    transformer = Transformer(
        str(folder), processor_kwargs={"padding_side": "right"}, max_seq_length=64
    )
    return SentenceTransformer(modules=[transformer, Pooling(32, "mean")]).double().eval()


def build(encoder, loss, form="triplet", processes=1, guide=None, **arguments):
    typed = parse_loss_arguments(spec(loss, form, **arguments), "datasets")
    base = Base(Path("none"), None, "0" * 64)
    return build_loss(loss, typed, encoder, base, processes, guide)


def features(encoder, columns=TEXTS):
    return [encoder.preprocess(list(texts)) for texts in columns]


def embed(encoder, columns=TEXTS):
    return [encoder(item)["sentence_embedding"] for item in features(encoder, columns)]


def gradients(encoder, loss):
    """Every parameter's gradient of ``loss``, flat."""
    encoder.zero_grad()
    loss.backward()
    return torch.cat(
        [weight.grad.flatten() for weight in encoder.parameters() if weight.grad is not None]
    )


def same(encoder, loss, reference):
    """Assert that two losses have the same value and gradients."""
    assert loss.item() == pytest.approx(reference.item(), rel=1e-10)
    found, wanted = gradients(encoder, loss), gradients(encoder, reference)
    assert wanted.norm() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-10)


def info_nce(anchors, positives, negatives, temperature=0.05):
    """-log of the positive's share among all positives and hard negatives of the batch (Auto-NLI,
    PromptEOL+CSE).
    """
    total = 0
    for row, anchor in enumerate(anchors):
        cosines = [
            torch.dot(anchor, other) / anchor.norm() / other.norm()
            for other in (*positives, *negatives)
        ]
        weights = torch.stack([torch.exp(cosine / temperature) for cosine in cosines])
        total = total - torch.log(weights[row] / weights.sum())
    return total / len(anchors)


CACHED = {"mini_batch_size": "3"}
RANKING = [("MultipleNegativesRankingLoss", {}), ("CachedMultipleNegativesRankingLoss", CACHED)]


@pytest.mark.parametrize(("name", "arguments"), RANKING)
def test_info_nce_with_in_batch_and_hard_negatives_at_temperature_005(encoder, name, arguments):
    same(
        encoder,
        build(encoder, name, **arguments)(features(encoder), None),
        info_nce(*embed(encoder)),
    )


def pairs(encoder, scores):
    return embed(encoder, TEXTS[:2]), torch.tensor(scores, dtype=torch.float64)


SCORES = [0.9, 0.1, 0.5, 0.5, 0.1, 0.9, 0.0]


def ordered(similarities, scores, scale=20.0):
    """log(1 + Σ exp(scale · (s_j - s_i))) over all pairs with score_i > score_j (Huang et al.
    2024).
    """
    total = torch.ones((), dtype=torch.float64)
    for high, first in zip(scores, similarities, strict=True):
        for low, second in zip(scores, similarities, strict=True):
            if high > low:
                total = total + torch.exp(scale * (second - first))
    return torch.log(total)


def angle(left, right):
    """|Re + Im| of the quotient of two complex vectors, whose halves are real and imaginary parts
    (Li and Li 2024).
    """
    z, w = (torch.complex(*side.chunk(2, dim=1)) for side in (left, right))
    quotient = (z * w.conj()).sum(dim=1) / (
        z.abs().square().sum(1).sqrt() * w.abs().square().sum(1).sqrt()
    )
    return (quotient.real + quotient.imag).abs()


@pytest.mark.parametrize(
    ("name", "similarity"), [("CoSENTLoss", torch.cosine_similarity), ("AnglELoss", angle)]
)
def test_losses_on_the_order_of_scores(encoder, name, similarity):
    (left, right), scores = pairs(encoder, SCORES)
    reference = ordered(similarity(left, right), SCORES)
    loss = build(encoder, name, "sts")(features(encoder, TEXTS[:2]), scores)
    same(encoder, loss, reference)


def test_the_correlation_with_a_teachers_cosines(encoder):
    (left, right), scores = pairs(encoder, SCORES)
    cosines = torch.cosine_similarity(left, right)
    reference = 1 - torch.corrcoef(torch.stack([cosines, scores]))[0, 1]
    loss = build(encoder, "CorrelationLoss", "sts")
    same(encoder, loss(features(encoder, TEXTS[:2]), scores), reference)
    # neither the scale nor the zero of the teacher's cosines matters
    moved = loss(features(encoder, TEXTS[:2]), 0.3 * scores + 0.4)
    assert moved.item() == pytest.approx(reference.item(), rel=1e-9)
    equal = loss(features(encoder, TEXTS[:2]), torch.full_like(scores, 0.5))
    assert equal.item() == pytest.approx(1.0)


def test_softmax_classifies_both_embeddings_and_their_difference(encoder):
    torch.manual_seed(5)
    loss = build(encoder, "SoftmaxLoss", "pair-class")
    assert loss.classifier.weight.shape == (3, 96)
    loss.classifier.double()
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    value = loss(features(encoder, TEXTS[:2]), labels)
    left, right = embed(encoder, TEXTS[:2])
    logits = (
        torch.cat([left, right, (left - right).abs()], dim=1) @ loss.classifier.weight.T
        + loss.classifier.bias
    )
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
def test_the_guide_masks_negatives_nearer_than_the_positive(
    encoder, guide, name, arguments, margin, kept
):
    """Solatorio 2024, section 3: all of anchors, positives and negatives, at temperature 0.01; here
    also of pairs.
    """
    columns, masked = TEXTS[kept], 0
    anchors, positives, *negatives = embed(encoder, columns)
    with torch.no_grad():
        seen = embed(guide, columns)
    reference = torch.zeros((), dtype=torch.float64)
    for row in range(len(anchors)):
        bound = torch.cosine_similarity(seen[0][row], seen[1][row], dim=0) - float(margin)
        terms = [torch.cosine_similarity(anchors[row], positives[row], dim=0)]
        # a side of the row, a side of others
        compared = [(0, 0), (0, 1), (1, 1), *((0, 2) for _ in negatives)]
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
    "CorrelationLoss": ("sts", {}),
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
    # float32, as losses make them
    scores = torch.tensor(SCORES[rows]).double() if form == "sts" else None
    return build(encoder, name, form, processes, guide, **arguments)(
        features(encoder, columns), scores
    )


def on_one_of_two_processes(rank, folder, out):
    """Each loss on this process's half of the batch; its value and gradients, averaged over both as
    DDP does.
    """
    distributed.init_process_group(
        "gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=2
    )
    transformer = Transformer(
        str(folder), processor_kwargs={"padding_side": "right"}, max_seq_length=64
    )
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
    # "spawn": a fork of a process that has run torch on several threads can wait for ever
    multiprocessing.start_processes(
        on_one_of_two_processes, args=(folder, tmp_path), nprocs=2, start_method="spawn"
    )
    results = torch.load(tmp_path / "results.pt")
    for name in IN_BATCH:
        alone = shared(encoder, name, 1)
        assert results[name]["loss"].item() == pytest.approx(alone.item(), rel=1e-10), name
        torch.testing.assert_close(
            results[name]["gradients"], gradients(encoder, alone), rtol=1e-7, atol=1e-10
        )


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_loss(folder, seed=0, **settings):
    """DeCLUTR's loss around the tiny RoBERTa in ``folder``, which is made unless it is there."""
    if not folder.exists():
        make_mlm(folder, seed, **NO_DROPOUT)
    spec = Encoder(path=str(folder), max_seq_length=32, license="apache-2.0")
    base = find_base(spec)
    return DeclutrLoss(build_encoder(spec, base), load_head(base), **settings)


def batch_of(loss, rows, seed=1):
    """Features of ``rows`` documents, as the trainer hands them to the loss."""
    tokenizer = loss.model.tokenizer
    cut = make_span_rows(Dataset.from_list(documents(rows)), tokenizer, SPANS, seed, 32).rows
    batch = SpanCollator(tokenizer)([cut[k] for k in range(rows)])
    names = ("input_ids", "attention_mask")
    return [{name: batch[f"{side}_{name}"] for name in names} for side in ("anchors", "positives")]


def reference_nt_xent(anchors, positives, temperature):
    """Section 3.1's equation, point by point, and the mean over the 2AN points."""
    points = [*anchors, *positives]
    an = len(anchors)

    def similarity(u, v):
        return u @ v / (u.norm() * v.norm())

    def ell(i, j):
        others = [
            torch.exp(similarity(points[i], points[k]) / temperature)
            for k in range(2 * an)
            if k != i
        ]
        return -torch.log(torch.exp(similarity(points[i], points[j]) / temperature) / sum(others))

    return sum(ell(i, i + an) + ell(i + an, i) for i in range(an)) / (2 * an)


def test_a_points_partner_is_the_mean_of_its_anchors_positives(tmp_path):
    loss = make_loss(tmp_path / "base", mlm_probability=0.0).eval()
    anchors, positives = batch_of(loss, 3)
    parts = loss([anchors, positives])
    flat = [
        {name: value.flatten(0, 1) for name, value in spans.items()}
        for spans in (anchors, positives)
    ]
    embedded = [loss.model(spans)["sentence_embedding"] for spans in flat]
    partners = torch.stack([(embedded[1][2 * k] + embedded[1][2 * k + 1]) / 2 for k in range(6)])
    torch.testing.assert_close(parts["contrastive"], reference_nt_xent(embedded[0], partners, 0.05))
    assert parts["mlm"] == 0  # nothing is masked


def test_the_masked_language_loss_is_transformers_own(tmp_path):
    """Loss and loss_gradients of RobertaForMaskedLM on the same masked ids and targets, padding
    included.
    """
    loss = make_loss(tmp_path / "base").eval()
    anchors = {name: value.flatten(0, 1) for name, value in batch_of(loss, 4)[0].items()}
    torch.manual_seed(3)
    ids, targets = loss.mask_tokens(anchors["input_ids"], anchors["attention_mask"])
    assert (anchors["attention_mask"] == 0).any() and (targets != -100).sum() > 5
    masked = {**anchors, "input_ids": ids}
    ours = loss.compute_parts(dict(masked), targets, dict(masked))["mlm"]
    ours.backward()
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "base").eval()
    theirs = model(**masked, labels=targets).loss
    theirs.backward()
    torch.testing.assert_close(ours, theirs)
    own, whole = loss.model[0].model, model.roberta
    head = dict(loss.head.model.named_parameters())
    for name, parameter in model.lm_head.named_parameters():
        torch.testing.assert_close(head[f"lm_head.{name}"].grad, parameter.grad)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(own.get_parameter(name).grad, parameter.grad)


def test_masks_are_the_papers_and_leave_padding_and_special_tokens_alone(tmp_path):
    loss = make_loss(tmp_path / "base")
    ids = torch.randint(5, 300, (400, 64))
    attention = torch.ones_like(ids)
    ids[:, 0], ids[:, 40], ids[:, 41:], attention[:, 41:] = 0, 2, 1, 0
    ids[:, 50] = 7  # padding may hold anything
    torch.manual_seed(1)
    masked, targets = loss.mask_tokens(ids, attention)
    chosen = targets != -100
    assert not chosen[:, 0].any() and not chosen[:, 40:].any()
    assert torch.equal(masked[~chosen], ids[~chosen]) and torch.equal(targets[chosen], ids[chosen])
    as_mask = (masked[chosen] == loss.model.tokenizer.mask_token_id).double()
    as_it_was = (masked[chosen] == ids[chosen]).double()
    within_4_deviations(chosen[:, 1:40].double().mean(), 0.15, 400 * 39)
    within_4_deviations(as_mask.mean(), 0.8 + 0.1 / 330, len(as_mask))
    within_4_deviations(as_it_was.mean(), 0.1 + 0.1 / 330, len(as_it_was))
    torch.manual_seed(1)
    assert torch.equal(loss.mask_tokens(ids, attention)[0], masked)
    assert not torch.equal(loss.mask_tokens(ids, attention)[0], masked)


def within_4_deviations(share, expected, count):
    assert abs(float(share) - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_a_base_without_a_head_is_refused(tmp_path):
    make_mlm(tmp_path / "whole")
    AutoModel.from_pretrained(tmp_path / "whole", add_pooling_layer=False).save_pretrained(
        tmp_path / "bare"
    )
    AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "bare")
    with pytest.raises(
        InputError, match=r"lack the masked language head \(lm_head.bias\); allowed: a base"
    ):
        make_loss(tmp_path / "bare")
    make_llama(tmp_path / "llama")
    with pytest.raises(InputError, match=r"no masked language model can be loaded: .*LlamaConfig"):
        make_loss(tmp_path / "llama")


def parts_of(loss, batch, targets_seed=7):
    """Masked inputs of ``batch``, the same for the whole batch and its shares."""
    flat = [{name: value.flatten(0, 1) for name, value in spans.items()} for spans in batch]
    torch.manual_seed(targets_seed)
    ids, targets = loss.mask_tokens(flat[0]["input_ids"], flat[0]["attention_mask"])
    return {**flat[0], "input_ids": ids}, targets, flat[1]


def loss_gradients(loss):
    return {
        name.replace("model.module.", "model."): p.grad.clone()
        for name, p in loss.named_parameters()
    }


def one_of_two(rank, folder):
    """A process with half of the batch; the first one saves the mean loss and gradients."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    loss = make_loss(folder / "base", gather_across_devices=True)
    anchors, targets, positives = parts_of(loss, batch_of(loss, 6))
    share = slice(rank * 6, rank * 6 + 6), slice(rank * 12, rank * 12 + 12)
    anchors = {name: value[share[0]] for name, value in anchors.items()}
    positives = {name: value[share[1]] for name, value in positives.items()}
    own = [p for name, p in loss.named_parameters() if name.startswith("head.")]
    loss.model = DistributedDataParallel(loss.model)
    parts = loss.compute_parts(anchors, targets[share[0]], positives)
    sum(parts.values()).backward()
    values = torch.stack([value.detach() for value in parts.values()])
    for tensor in (values, *(parameter.grad for parameter in own)):  # as the trainer does
        torch.distributed.all_reduce(tensor)
        tensor /= 2
    if rank == 0:
        torch.save({"values": values, **loss_gradients(loss)}, folder / "two.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_loss_and_gradients_of_one(tmp_path):
    loss = make_loss(tmp_path / "base")
    batch = parts_of(loss, batch_of(loss, 6))
    counts = [(part != -100).sum() for part in batch[1].chunk(2)]
    assert counts[0] != counts[1]  # else a mean of means would pass
    parts = loss.compute_parts(*batch)
    sum(parts.values()).backward()
    multiprocessing.start_processes(one_of_two, args=(tmp_path,), nprocs=2, start_method="spawn")
    both = torch.load(tmp_path / "two.pt")
    torch.testing.assert_close(
        both.pop("values"), torch.stack([value.detach() for value in parts.values()])
    )
    alone = loss_gradients(loss)
    assert set(both) == set(alone)
    for name in alone:
        torch.testing.assert_close(both[name], alone[name], rtol=1e-4, atol=1e-6, msg=name)

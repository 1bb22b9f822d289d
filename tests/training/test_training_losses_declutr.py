"""Against the paper's equations and transformers' own masked language models, and in the trainer."""

import math

import pytest
import torch
from datasets import Dataset
from test_training_data_spans import SPANS, documents
from tiny_bases import make_llama, make_mlm
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from hub.contract.recipe import Encoder
from hub.errors import InputError
from training.data.spans import SpanCollator, span_rows
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder
from training.losses.modules import DeclutrLoss, load_head, nt_xent

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
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
    cut = span_rows(Dataset.from_list(documents(rows)), tokenizer, SPANS, seed, 32).rows
    batch = SpanCollator(tokenizer)([cut[k] for k in range(rows)])
    return [
        {name: batch[f"{side}_{name}"] for name in ("input_ids", "attention_mask")} for side in ("anchors", "positives")
    ]


def reference_nt_xent(anchors, positives, temperature):
    """Section 3.1's equation, point by point, and the mean over the 2AN points."""
    points = [*anchors, *positives]
    an = len(anchors)

    def similarity(u, v):
        return u @ v / (u.norm() * v.norm())

    def ell(i, j):
        others = [torch.exp(similarity(points[i], points[k]) / temperature) for k in range(2 * an) if k != i]
        return -torch.log(torch.exp(similarity(points[i], points[j]) / temperature) / sum(others))

    return sum(ell(i, i + an) + ell(i + an, i) for i in range(an)) / (2 * an)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_nt_xent_is_the_papers_equation(temperature):
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(5, 8, generator=generator) + 1 for _ in range(2)]
    results = []
    for function in (nt_xent, reference_nt_xent):
        leaves = [side.clone().requires_grad_() for side in sides]
        value = function(*leaves, temperature)
        value.backward()
        results.append((value.detach(), leaves[0].grad, leaves[1].grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_points_partner_is_the_mean_of_its_anchors_positives(tmp_path):
    loss = make_loss(tmp_path / "base", mlm_probability=0.0).eval()
    anchors, positives = batch_of(loss, 3)
    parts = loss([anchors, positives])
    flat = [{name: value.flatten(0, 1) for name, value in spans.items()} for spans in (anchors, positives)]
    embedded = [loss.model(spans)["sentence_embedding"] for spans in flat]
    partners = torch.stack([(embedded[1][2 * k] + embedded[1][2 * k + 1]) / 2 for k in range(6)])
    torch.testing.assert_close(parts["contrastive"], reference_nt_xent(embedded[0], partners, 0.05))
    assert parts["mlm"] == 0  # nothing is masked


def test_the_masked_language_loss_is_transformers_own(tmp_path):
    """Loss and gradients of RobertaForMaskedLM on the same masked ids and targets, padding included."""
    loss = make_loss(tmp_path / "base").eval()
    anchors = {name: value.flatten(0, 1) for name, value in batch_of(loss, 4)[0].items()}
    torch.manual_seed(3)
    ids, targets = loss.mask(anchors["input_ids"], anchors["attention_mask"])
    assert (anchors["attention_mask"] == 0).any() and (targets != -100).sum() > 5
    masked = {**anchors, "input_ids": ids}
    ours = loss.parts(dict(masked), targets, dict(masked))["mlm"]
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
    masked, targets = loss.mask(ids, attention)
    chosen = targets != -100
    assert not chosen[:, 0].any() and not chosen[:, 40:].any()
    assert torch.equal(masked[~chosen], ids[~chosen]) and torch.equal(targets[chosen], ids[chosen])
    as_mask = (masked[chosen] == loss.model.tokenizer.mask_token_id).double()
    as_it_was = (masked[chosen] == ids[chosen]).double()
    within_4_deviations(chosen[:, 1:40].double().mean(), 0.15, 400 * 39)
    within_4_deviations(as_mask.mean(), 0.8 + 0.1 / 330, len(as_mask))
    within_4_deviations(as_it_was.mean(), 0.1 + 0.1 / 330, len(as_it_was))
    torch.manual_seed(1)
    assert torch.equal(loss.mask(ids, attention)[0], masked)
    assert not torch.equal(loss.mask(ids, attention)[0], masked)


def within_4_deviations(share, expected, count):
    assert abs(float(share) - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_a_base_without_a_head_is_refused(tmp_path):
    make_mlm(tmp_path / "whole")
    AutoModel.from_pretrained(tmp_path / "whole", add_pooling_layer=False).save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "bare")
    with pytest.raises(
        InputError, match=r"its weights lack the masked language head \(lm_head.bias\); allowed: a base"
    ):
        make_loss(tmp_path / "bare")
    make_llama(tmp_path / "llama")
    with pytest.raises(InputError, match=r"no masked language model can be loaded: .*LlamaConfig"):
        make_loss(tmp_path / "llama")


def parts_of(loss, batch, targets_seed=7):
    """Masked inputs of ``batch``, the same for the whole batch and its shares."""
    flat = [{name: value.flatten(0, 1) for name, value in spans.items()} for spans in batch]
    torch.manual_seed(targets_seed)
    ids, targets = loss.mask(flat[0]["input_ids"], flat[0]["attention_mask"])
    return {**flat[0], "input_ids": ids}, targets, flat[1]


def gradients(loss):
    return {name.replace("model.module.", "model."): p.grad.clone() for name, p in loss.named_parameters()}


def one_of_two(rank, folder):
    """A process with half of the batch; the first one saves the mean loss and its gradients."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    loss = make_loss(folder / "base", gather_across_devices=True)
    anchors, targets, positives = parts_of(loss, batch_of(loss, 6))
    share = slice(rank * 6, rank * 6 + 6), slice(rank * 12, rank * 12 + 12)
    anchors = {name: value[share[0]] for name, value in anchors.items()}
    positives = {name: value[share[1]] for name, value in positives.items()}
    own = [p for name, p in loss.named_parameters() if name.startswith("head.")]
    loss.model = DistributedDataParallel(loss.model)
    parts = loss.parts(anchors, targets[share[0]], positives)
    sum(parts.values()).backward()
    values = torch.stack([value.detach() for value in parts.values()])
    for tensor in (values, *(parameter.grad for parameter in own)):  # as the trainer does
        torch.distributed.all_reduce(tensor)
        tensor /= 2
    if rank == 0:
        torch.save({"values": values, **gradients(loss)}, folder / "two.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_loss_and_gradients_of_one(tmp_path):
    loss = make_loss(tmp_path / "base")
    batch = parts_of(loss, batch_of(loss, 6))
    counts = [(part != -100).sum() for part in batch[1].chunk(2)]
    assert counts[0] != counts[1]  # else a mean of means would pass
    parts = loss.parts(*batch)
    sum(parts.values()).backward()
    multiprocessing.start_processes(one_of_two, args=(tmp_path,), nprocs=2, start_method="fork")
    both = torch.load(tmp_path / "two.pt")
    torch.testing.assert_close(both.pop("values"), torch.stack([value.detach() for value in parts.values()]))
    alone = gradients(loss)
    assert set(both) == set(alone)
    for name in alone:
        torch.testing.assert_close(both[name], alone[name], rtol=1e-4, atol=1e-6, msg=name)

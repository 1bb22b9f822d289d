from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from tiny_bases import make_llama, make_mlm
from torch.autograd.graph import saved_tensors_hooks
from training_inputs import model_recipe

from hub.contract.recipe import ModelRecipe
from training.encoder.bases import Base
from training.encoder.encoder import build_encoder
from training.losses.losses import build_loss
from training.memory import LiveBytes, MemoryEstimate, memory_estimate

ROWS, LENGTH = 8, 48
LORA = {"r": "4", "alpha": "8", "dropout": "0.05"}
DOCUMENTS = {
    "example_type": "documents",
    "loss": "DeclutrLoss",
    "spans": {"unit": "tokens", "min_length": "8", "max_length": "46", "min_document": "400"},
}
CACHED = {"loss": "CachedMultipleNegativesRankingLoss", "loss_arguments": {"mini_batch_size": "2"}}


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    """Wide enough for tensors to outweigh what a step makes besides them, e.g. masks."""
    folder = tmp_path_factory.mktemp("bases")
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3}
    return {"roberta": make_mlm(folder / "roberta", **sizes), "llama": make_llama(folder / "llama", **sizes)}


def recipe(base: dict | None = None, data: dict | None = None, **changes) -> ModelRecipe:
    sts = {"path": "pairs", "config": "c", "example_type": "sts", "loss": "CosineSimilarityLoss"}
    given = {"repo_id": "a/b", "revision": "main", "max_seq_length": str(LENGTH), "license": "mit"}
    return model_recipe(sts | (data or {}), base=given | (base or {}), **changes)


def triplets(base: dict | None = None, lora: dict | None = None, **data) -> ModelRecipe:
    return recipe(base, {"example_type": "triplet", "loss": "MultipleNegativesRankingLoss", **data}, lora=lora)


def estimated(chosen: ModelRecipe, folder: Path, **arguments) -> MemoryEstimate:
    given = SentenceTransformerTrainingArguments("unused", report_to="none", use_cpu=True, **arguments)
    return memory_estimate(chosen, Base(folder, None, ""), ROWS, given)


def batch(*shape: int) -> dict[str, torch.Tensor]:
    """Token ids; with one place padded, because a batch without padding has no mask, which is a little less."""
    mask = torch.ones(shape, dtype=torch.long)
    mask.view(-1)[LENGTH - 1] = 0
    return {"input_ids": torch.randint(5, 300, shape), "attention_mask": mask}


def real_step(
    chosen: ModelRecipe, folder: Path, shapes: list[tuple[int, ...]], half=False, checkpointed=False
) -> tuple[int, int, int]:
    """Bytes that the real encoder's forward and backward pass under its real loss hold: at most, and what autograd
    saves; and the bytes of its parameters.
    """
    encoder = build_encoder(chosen.base, Base(folder, None, ""), chosen.lora).train()
    if checkpointed:
        encoder.gradient_checkpointing_enable(None, every_n_layers=1, offload=False)
    loss = build_loss(chosen.datasets[0], encoder, Base(folder, None, ""))
    parameters = {id(parameter): parameter for parameter in loss.parameters()}.values()
    saved: dict[int, torch.UntypedStorage] = {}
    weights = {parameter.untyped_storage()._cdata for parameter in parameters}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with LiveBytes([*parameters, *encoder.buffers()]) as live:
        with torch.autocast("cpu", torch.bfloat16, enabled=half), saved_tensors_hooks(note, lambda kept: kept):
            features = [batch(*shape) for shape in shapes]
            value = loss(features, torch.rand(ROWS))
        kept = sum(storage.nbytes() for key, storage in saved.items() if key not in weights)
        saved.clear()
        del features  # as the trainer does
        (sum(value.values()) if isinstance(value, dict) else value).backward()
    return live.peak, kept, sum(p.numel() * p.element_size() for p in parameters)


PAIR, TRIPLETS, SPANS = [(ROWS, LENGTH)] * 2, [(ROWS, LENGTH)] * 3, [(ROWS, 2, LENGTH), (ROWS, 4, LENGTH)]
LAST = {"pooling": "lasttoken"}
REAL = pytest.mark.slow("measures the memory of real training steps")


@pytest.mark.parametrize(
    ("chosen", "base", "shapes", "arguments"),
    [
        pytest.param(triplets(LAST | {"dtype": "bfloat16"}, LORA), "llama", TRIPLETS, {}, marks=REAL),
        pytest.param(recipe(data=DOCUMENTS), "roberta", SPANS, {}, marks=REAL),
        (recipe(), "roberta", PAIR, {"bf16": True}),
        pytest.param(triplets(LAST, LORA), "llama", TRIPLETS, {"activation_checkpointing": True}, marks=REAL),
        pytest.param(triplets(LAST, LORA, **CACHED), "llama", TRIPLETS, {}, marks=REAL),
    ],
)
def test_a_step_holds_what_the_real_one_holds(bases, chosen, base, shapes, arguments):
    half, checkpointed = bool(arguments.get("bf16")), bool(arguments.get("activation_checkpointing"))
    peak, saved, weights = real_step(chosen, bases[base], shapes, half, checkpointed)
    found, plain = estimated(chosen, bases[base], **arguments), estimated(chosen, bases[base])
    cached = "Cached" in chosen.datasets[0].loss
    within = 0.05 if cached or checkpointed else 0.03 if half else 0.04
    assert found.total - found.optimizer == pytest.approx(weights + peak, rel=within)
    if half:
        assert found.activations < 0.9 * plain.activations
    elif not cached and not checkpointed:
        assert saved < found.activations < 1.3 * saved


def test_accumulated_gradients_stand_beside_the_activations(bases):
    once = estimated(recipe(), bases["roberta"])
    twice = estimated(recipe(), bases["roberta"], gradient_accumulation_steps=2)
    assert twice.total == once.weights + once.optimizer + once.gradients + twice.activations
    assert once.total < twice.total

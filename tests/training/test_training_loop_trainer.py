"""The trainer: a killed run ends like one that was let run, several processes like one, and what it
refuses.
"""

import json
import math
import random
import shutil
import time

import pytest
import torch
from killing import killed_training, launched, trained
from safetensors.torch import load_file
from tiny_bases import make_llama, make_mlm
from training_inputs import (
    document_data,
    labelled_data,
    model_recipe,
    sts_rows,
    triplet_data,
    write_dataset,
    write_recipe,
)

from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.errors import InputError, RunError
from sts_dino.training.loop.distributed import (
    get_process_count,
    get_process_index,
    report_once,
)
from sts_dino.training.loop.files import (
    find_newest_usable,
    load_weights,
    mark_complete,
    save_weights,
)
from sts_dino.training.loop.job import (
    build_trainer_arguments,
    describe_arguments,
    parse_arguments,
    prepare,
    split_batch,
)
from sts_dino.training.loop.train import build_untrained_encoder, make_trainer, train
from sts_dino.training.loop.trainer import SharedBatches, compute_slanted_triangle
from sts_dino.training.run import main

QUIET = {"report_to": "none", "logging_steps": "3"}
STEPS = {
    **QUIET,
    "save_strategy": "steps",
    "eval_strategy": "steps",
    "save_steps": "4",
    "eval_steps": "4",
}


def cosine(folder):
    """With validation pairs, so that a checkpoint and the share of a merge are chosen."""
    return write_recipe(
        folder, merge="auto", arguments=STEPS | {"num_train_epochs": "3", "learning_rate": "1e-3"}
    )


def adapter(folder):
    """A LoRA adapter with dropout, trained by gradient caching."""
    base = {"path": str(make_llama(folder / "llama")), "pooling": "lasttoken", "license": "mit"}
    data = triplet_data(folder, loss="CachedMultipleNegativesRankingLoss")
    return write_recipe(
        folder,
        base=base,
        lora={"r": "4", "alpha": "8", "dropout": "0.1", "release": "merged"},
        merge="0.5",
        datasets=[data | {"loss_arguments": {"mini_batch_size": "4"}}],
        arguments=STEPS | {"num_train_epochs": "4", "learning_rate": "1e-2"},
    )


def declutr(folder, streaming="true"):
    """Spans of streamed documents, dropout and masks, and a head that is the loss's own."""
    base = make_mlm(folder / "mlm")
    return write_recipe(
        folder,
        base={"path": str(base), "max_seq_length": "16", "license": "mit"},
        datasets=[document_data(folder, streaming=streaming)],
        batch_size="4",
        slanted_triangular={},
        arguments=STEPS | {"max_steps": "20", "learning_rate": "1e-2"},
    )


def made_rows(folder):
    """Pairs made from other rows, the untrained encoder as guide, and token dropout."""
    here = {
        "path": str(write_dataset(folder / "pairs", {"train": sts_rows(96)})),
        "config": "postprocessed",
    }
    itself = {
        "example_type": "self-pair",
        "loss": "GISTEmbedLoss",
        "loss_arguments": {"margin": "0.1"},
    }
    graded = {"example_type": "graded-pair", "loss": "MultipleNegativesRankingLoss"}
    steps = {
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": "4",
        "num_train_epochs": "4",
    }
    arguments = QUIET | steps | {"learning_rate": "1e-3"}
    return write_recipe(
        folder, datasets=[here | itself, here | graded], token_dropout="0.2", arguments=arguments
    )


KILLED = [(cosine, (4, 12), 1), (adapter, (12,), 1), (declutr, (8,), 2), (made_rows, (8,), 1)]


@pytest.mark.slow("kills a run again and again, to the same bytes")
@pytest.mark.parametrize(("family", "steps", "processes"), KILLED)
def test_a_run_killed_at_any_moment_ends_in_the_same_bytes(tmp_path, family, steps, processes):
    """Weights, curves, choice of the checkpoint: killed, twice at most, a moment after some
    checkpoint appeared.
    """
    recipe, exits = family(tmp_path), [0] * processes
    assert (
        trained([str(recipe), "--out", str(tmp_path / "whole")], processes, tmp_path / "log")
        == exits
    )
    command, places = [str(recipe), "--out", str(tmp_path / "cut")], tmp_path / "cut.checkpoints"
    generator = random.Random(family.__name__)

    def reached(step):
        if any(int(path.name.split("-")[1]) >= step for path in places.glob("checkpoint-*")):
            time.sleep(generator.random() / 20)
            return True
        return False

    for step in steps:
        log, out = tmp_path / f"killed{step}", tmp_path / "cut"
        killed_training(command, processes, log, lambda step=step: reached(step), out)
    assert trained(command, processes, tmp_path / "again") == exits
    assert json.loads((tmp_path / "cut.timing.json").read_text())["resumed_from_step"] > 0
    files = {file.path: file.sha256 for file in require_complete(tmp_path / "whole").files}
    assert {file.path: file.sha256 for file in require_complete(tmp_path / "cut").files} == files
    for name in ("model.safetensors", "manifest.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (
            name
        )


def trainer_of(recipe, folder, settings=()):
    job = prepare(recipe, folder / "out", None, list(settings))
    encoder = build_untrained_encoder(job)
    return make_trainer(job, encoder, "fingerprint")


@pytest.mark.parametrize("limit", [1, 2])
def test_until_a_checkpoint_is_marked_there_is_one_to_go_on_from(tmp_path, monkeypatch, limit):
    """Upstream removes the old ones first, so a kill between the two made training begin anew."""
    trainer = trainer_of(cosine(tmp_path), tmp_path, [f"arguments.save_total_limit={limit}"])
    places, copy, seen = tmp_path / "out.checkpoints", tmp_path / "copy", []

    def look(checkpoint, *arguments):
        shutil.copytree(places, copy)
        found = find_newest_usable(copy, "fingerprint")
        seen.append(found and found.name)
        shutil.rmtree(copy)
        mark_complete(checkpoint, *arguments)

    monkeypatch.setattr("sts_dino.training.loop.trainer.mark_complete", look)
    trainer.train()
    last = trainer.state.global_step // 4
    assert seen[:last] == [None, *(f"checkpoint-{4 * number}" for number in range(1, last))]
    best = trainer.state.best_global_step
    kept = sorted(int(path.name[11:]) for path in places.glob("checkpoint-*"))
    assert best in kept and trainer.state.global_step in kept and limit <= len(kept) <= 2 * limit


def test_a_run_that_was_moved_after_its_last_step_still_ends_with_its_best_weights(tmp_path):
    """The state names the best checkpoint by its old path, which upstream would forget."""
    recipe = cosine(tmp_path)
    trainer = trainer_of(recipe, tmp_path / "before")
    trainer.train()
    best = trainer.state.best_global_step
    places = tmp_path / "after" / "out.checkpoints"
    places.parent.mkdir()
    (tmp_path / "before" / "out.checkpoints").rename(places)
    moved = train(prepare(recipe, tmp_path / "after" / "out", None, []), "fingerprint")
    assert best < moved.state.global_step == moved.first_step
    saved = load_file(places / f"checkpoint-{best}" / "student.safetensors")
    assert all(
        torch.equal(parameter.detach().cpu(), saved[name])
        for name, parameter in moved.encoder_parameters.items()
    )


def test_a_tied_weight_is_the_students_alone(tmp_path):
    trainer = trainer_of(declutr(tmp_path), tmp_path)
    embeddings = trainer.model.transformers_model.get_input_embeddings().weight
    assert all(parameter is not embeddings for parameter in trainer.loss_parameters.values())
    assert sum("decoder.weight" in name for name in trainer.loss_parameters) == 0
    optimised = {
        id(parameter)
        for group in trainer.create_optimizer().param_groups
        for parameter in group["params"]
    }
    assert optimised == {
        id(p) for p in [*trainer.encoder_parameters.values(), *trainer.loss_parameters.values()]
    }


def test_documents_in_memory_have_the_parts_of_the_loss_in_the_manifest(tmp_path):
    recipe = declutr(tmp_path, streaming="false")
    main(recipe, out=tmp_path / "out", settings=["arguments.max_steps=6"])
    manifest = require_complete(tmp_path / "out")
    training = manifest.provenance["training"]
    parts = training["loss_parts"]
    assert set(parts) == {"contrastive", "mlm"}
    for (step, loss), *values in zip(training["loss_curve"], *parts.values(), strict=True):
        assert {at for at, _ in values} == {step}
        assert sum(value for _, value in values) == pytest.approx(loss, abs=1e-3)
    # the triangle took their place
    assert not {"lr_scheduler_type", "warmup_steps"} & set(training["arguments"])
    assert manifest.counts["training_rows"] == 12
    assert not [file for file in manifest.files if "loss" in file.path]


def test_weights_of_another_shape_are_not_broadcast(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    save_weights(tmp_path, {"head": torch.nn.Parameter(torch.ones(1, 3))}, "loss.safetensors")
    with pytest.raises(RunError, match=r"other parameters than are trained \(head\)"):
        load_weights(tmp_path, {"head": weight}, "loss.safetensors")
    assert not weight.any()


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    trainer = trainer_of(cosine(tmp_path), tmp_path)
    next(iter(trainer.encoder_parameters.values())).data[0] = math.inf
    with pytest.raises(RunError, match="the weights are no longer finite"):
        trainer._save(str(tmp_path / "checkpoint"))
    assert not (tmp_path / "checkpoint").exists()


def test_the_last_step_is_evaluated_though_it_is_no_multiple(tmp_path):
    """Else a run shorter than eval_steps would choose nothing, and say nothing."""
    trainer = trainer_of(
        write_recipe(tmp_path, arguments=STEPS | {"eval_steps": "50", "save_steps": "50"}), tmp_path
    )
    trainer.train()
    scored = [
        entry["step"] for entry in trainer.state.log_history if "eval_sequential_score" in entry
    ]
    assert scored == [6] == [trainer.state.best_global_step]


def test_accumulated_steps_make_the_same_batch(tmp_path):
    """The mean over parts is the mean over the whole."""
    write_dataset(tmp_path / "pairs", {"train": sts_rows(96)})
    recipe = write_recipe(
        tmp_path, arguments=QUIET | {"optim": "sgd", "learning_rate": "0.1"}, batch_size="32"
    )
    trainers = [
        trainer_of(recipe, tmp_path, [f"arguments.gradient_accumulation_steps={parts}"])
        for parts in (1, 4)
    ]
    for trainer in trainers:
        trainer.train()
        assert (trainer.state.global_step, trainer.state.best_global_step) == (3, None)
    for whole, parts in zip(
        *(trainer.encoder_parameters.values() for trainer in trainers), strict=True
    ):
        assert torch.allclose(whole, parts, atol=1e-5)


def recipe_of(**data):
    return model_recipe(
        {"path": "d", "config": "c", "example_type": "sts", "loss": "CoSENTLoss", **data}
    )


def test_no_in_a_recipe_is_false(tmp_path):
    path = write_recipe(tmp_path, arguments={"bf16": "NO"})
    path.write_text(path.read_text().replace("bf16: 'NO'", "bf16: no"))
    assert parse_arguments(load_recipe(path, ModelRecipe).arguments, "p") == {"bf16": False}


def test_the_checkpoint_is_chosen_by_validation_where_there_is_one_so_what_is_evaluated_is_saved(
    tmp_path,
):
    steps = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 4}
    chosen = build_trainer_arguments(steps, [], tmp_path, True, "p")
    assert chosen.save_steps == 4 and chosen.load_best_model_at_end
    assert chosen.metric_for_best_model == "eval_sequential_score"
    last = build_trainer_arguments({}, [], tmp_path, False, "p")
    assert not last.load_best_model_at_end
    assert describe_arguments(last, recipe_of())["lr_scheduler_type"] == "linear"


def equation_3(t, steps, cut_fraction, ratio):
    cut = math.floor(steps * cut_fraction)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_fraction - 1))
    return (1 + p * (ratio - 1)) / ratio


@pytest.mark.parametrize("given", [(100, 0.1, 32), (40, 0.25, 10), (1000, 0.1, 2)])
def test_it_is_the_papers_equation(given):
    for t in range(given[0] + 1):
        assert compute_slanted_triangle(t, *given) == pytest.approx(equation_3(t, *given))


@pytest.mark.parametrize("steps", [1, 3, 15, 19, 101, 31117])
def test_it_stays_between_the_ends_with_any_number_of_steps(steps):
    """Also where the cut is not whole: the equation itself falls below zero there (15 steps: by
    step 15).
    """
    shares = [compute_slanted_triangle(t, steps, 0.1, 32) for t in range(steps + 1)]
    cut = math.floor(steps * 0.1)
    assert shares[cut] == max(shares) == 1
    assert shares[-1] == min(shares) == pytest.approx(1 / 32)
    assert shares[: cut + 1] == sorted(shares[: cut + 1])
    assert shares[cut:] == sorted(shares[cut:], reverse=True)
    assert equation_3(15, 15, 0.1, 32) < 0


# Adam blows noise up
PLAIN = {"optim": "sgd", "learning_rate": "0.1", "report_to": "none", "logging_steps": "1"}


def furthest(first, second):
    """The largest difference between two models' weights."""
    first, second = (load_file(directory / "model.safetensors") for directory in (first, second))
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.fixture
def folder(tmp_path):
    # no validation: near-equal scores would tip the choice
    write_dataset(tmp_path / "pairs", {"train": sts_rows(100)})
    return tmp_path


@pytest.mark.slow("trains in two processes")
@pytest.mark.parametrize("streamed", [True, False])
def test_two_processes_end_in_the_weights_of_one_and_the_main_one_alone_writes(folder, streamed):
    """A stream past its end (7 steps of 32 rows, of 100), or two datasets with a last, smaller
    batch (of 4 or 6).
    """
    pairs = {"path": str(folder / "pairs"), "config": "postprocessed", "example_type": "sts"}
    two = [pairs | {"loss": "CoSENTLoss"}, labelled_data(folder)]
    data = [pairs | {"loss": "CosineSimilarityLoss", "streaming": "true"}] if streamed else two
    arguments = PLAIN | {"report_to": "tensorboard"} | ({"max_steps": "7"} if streamed else {})
    recipe = write_recipe(folder, batch_size="32", arguments=arguments, datasets=data)
    one, two = folder / "by1", folder / "by2"
    assert trained([str(recipe), "--out", str(one)], 1, folder / "log1") == [0], (
        folder / "log1.err"
    ).read_text()
    code = launched([str(recipe), "--out", str(two)], 2, folder / "log")  # as torchrun does
    assert code == 0, (folder / "log.err").read_text()
    assert furthest(one, two) < 1e-5 < furthest(one, folder / "by1.base")
    facts = [require_complete(out).provenance["training"] for out in (one, two)]
    assert [(fact["processes"], fact["steps"]) for fact in facts] == [(1, 7), (2, 7)]
    first, second = (torch.tensor(fact["loss_curve"]) for fact in facts)
    assert torch.allclose(first, second, atol=1e-4)
    assert (folder / "log.out").read_text().count(", 7 steps") == 1
    assert (folder / "log.err").read_text().count("training: step 7 of 7") == 1
    assert len(list((folder / "by2.logs").iterdir())) == 1
    assert not (folder / "by2.checkpoints").exists()


@pytest.mark.slow("trains in two processes")
def test_an_error_ends_the_group_with_one_message(folder):
    recipe = write_recipe(folder, arguments=PLAIN)
    words = [str(recipe), "--out", str(folder / "out"), "--set", "arguments.weight_decay=1e30"]
    first, second = trained(words, 2, folder / "log")
    said = (folder / "log.err").read_text()
    assert first == 1 and second != 0
    assert said.count("error: ") == 1 and "training, step" in said and "Traceback" not in said


def test_an_empty_variable_of_a_launcher_is_an_unset_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    assert (get_process_index(), get_process_count()) == (0, 1)


def test_the_end_of_another_process_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(
            RunError, match="another process of this run has ended; its own message says why"
        ),
        report_once(),
    ):
        raise RuntimeError(
            "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:59062."
        )
    with pytest.raises(RuntimeError, match="of another kind"), report_once():
        raise RuntimeError("of another kind")


@pytest.mark.slow("trains in two processes")
def test_a_run_may_go_on_with_another_number_of_processes(folder):
    recipe = write_recipe(
        folder, arguments=PLAIN | {"num_train_epochs": "3", "save_strategy": "epoch"}
    )
    assert trained([str(recipe), "--out", str(folder / "whole")], 1, folder / "log") == [0]
    marks = folder / "cut.checkpoints"
    command = [str(recipe), "--out", str(folder / "cut")]
    killed_training(
        command,
        2,
        folder / "killed",
        lambda: any(marks.glob("checkpoint-*/whole.json")),
        folder / "cut",
    )
    assert trained(command, 1, folder / "again") == [0]
    assert "2 processes wrote it, now there are 1" in (folder / "again.err").read_text()
    assert furthest(folder / "whole", folder / "cut") < 1e-5


def test_shares_are_even_and_cover_the_batch():
    class Whole:
        batch_size, drop_last = 4, False

        def __iter__(self):
            yield from ([0, 1, 2, 3], [4, 5, 6], [7])

        def __len__(self):
            return 3

    first, second = (SharedBatches(Whole(), process, 2) for process in (0, 1))
    assert list(first) == [[0, 1], [4], [7]]
    assert list(second) == [[2, 3], [5], [7]]
    assert len(first) == 3 and first.batch_size == 2
    halves = SharedBatches(Whole(), 1, 2, accumulated=2)
    # fewer rows than the four shares: all of them
    assert list(halves) == [[1], [3], [4, 5, 6], [4, 5, 6], [7], [7]]
    assert len(halves) == 6


@pytest.mark.parametrize(
    ("size", "processes", "accumulated", "allowed"), [(30, 4, 1, "28 or 32"), (2, 2, 2, "e.g. 4")]
)
def test_a_batch_that_does_not_divide_names_the_nearest_that_do(
    size, processes, accumulated, allowed
):
    with pytest.raises(InputError, match=allowed):
        split_batch(size, processes, accumulated, "recipe.yaml:batch_size")
    assert split_batch(32, 4, 2, "recipe.yaml:batch_size") == 4

"""Trainer arguments: upstream's names, the nearest right one for a typo; the slanted triangle of the learning rate."""

import math

import pytest
from training_inputs import model_recipe, write_recipe

from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from training.loop.arguments import check_together, reported, trainer_arguments, typed_arguments
from training.loop.trainer import slanted_triangular


def recipe(**data):
    return model_recipe({"path": "d", "config": "c", "example_type": "sts", "loss": "CoSENTLoss", **data})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("max_steps", "many", "p.max_steps: Input should be a valid integer.*'many'"),
        ("output_dir", "x", "p.output_dir: is set by --out"),
        ("learning_rate", "inf", "p.learning_rate: is inf; allowed: a positive number"),
        ("max_steps", "0", "p.max_steps: is 0; allowed: a positive number"),
        ("dataloader_num_workers", "-1", "p.dataloader_num_workers: is -1; allowed: 0 or a positive number"),
        ("fsdp", "full_shard", "p.fsdp: is not supported: each process holds the whole encoder"),
    ],
)
def test_arguments_that_cannot_be_used(name, text, message):
    with pytest.raises(InputError, match=message):
        typed_arguments({name: text}, "p")


def test_arguments_that_do_not_go_together(tmp_path):
    with pytest.raises(InputError, match=r"a checkpoint is chosen only if it is evaluated"):
        trainer_arguments(recipe(), {"eval_strategy": "no"}, tmp_path, 1, True, "p")
    with pytest.raises(InputError, match=r"p: .*nonesuch"):
        trainer_arguments(recipe(), {"lr_scheduler_type": "nonesuch"}, tmp_path, 1, True, "p")
    given = {"max_steps": 5, "batch_sampler": "no_duplicates"}  # which upstream would pass over for a stream
    with pytest.raises(InputError, match=r"p:arguments.batch_sampler: chooses among rows by their texts"):
        check_together(recipe(streaming=True), given, "p")


def test_no_in_a_recipe_is_false(tmp_path):
    path = write_recipe(tmp_path, arguments={"bf16": "NO"})
    path.write_text(path.read_text().replace("bf16: 'NO'", "bf16: no"))
    assert typed_arguments(load_recipe(path, ModelRecipe).arguments, "p") == {"bf16": False}


def test_what_is_evaluated_is_saved(tmp_path):
    steps = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 4}
    chosen, _ = trainer_arguments(recipe(), steps, tmp_path, 1, True, "p")
    assert chosen.save_steps == 4
    with pytest.raises(InputError, match=r"p.save_steps: is 8, but eval_steps is 4"):
        trainer_arguments(recipe(), steps | {"save_steps": 8}, tmp_path, 1, True, "p")


def test_the_checkpoint_is_chosen_by_validation_where_there_is_one(tmp_path):
    chosen, _ = trainer_arguments(recipe(), {}, tmp_path, 1, True, "p")
    assert chosen.load_best_model_at_end
    assert chosen.metric_for_best_model == "eval_sequential_score"
    last, _ = trainer_arguments(recipe(), {}, tmp_path, 1, False, "p")
    assert not last.load_best_model_at_end
    assert reported(last, recipe())["lr_scheduler_type"] == "linear"


def equation_3(t, steps, cut_fraction, ratio):
    cut = math.floor(steps * cut_fraction)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_fraction - 1))
    return (1 + p * (ratio - 1)) / ratio


@pytest.mark.parametrize("given", [(100, 0.1, 32), (40, 0.25, 10), (1000, 0.1, 2)])
def test_it_is_the_papers_equation(given):
    for t in range(given[0] + 1):
        assert slanted_triangular(t, *given) == pytest.approx(equation_3(t, *given))


@pytest.mark.parametrize("steps", [1, 3, 15, 19, 101, 31117])
def test_it_stays_between_the_ends_with_any_number_of_steps(steps):
    """Also where the cut is not whole: the equation itself falls below zero there (15 steps: by step 15)."""
    shares = [slanted_triangular(t, steps, 0.1, 32) for t in range(steps + 1)]
    cut = math.floor(steps * 0.1)
    assert shares[cut] == max(shares) == 1
    assert shares[-1] == min(shares) == pytest.approx(1 / 32)
    assert shares[: cut + 1] == sorted(shares[: cut + 1])
    assert shares[cut:] == sorted(shares[cut:], reverse=True)
    assert equation_3(15, 15, 0.1, 32) < 0

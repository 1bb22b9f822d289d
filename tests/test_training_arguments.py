"""training.arguments: names are upstream's; a wrong one is answered with the nearest right one."""

import pytest

from hub.errors import InputError
from hub.recipe import ModelRecipe
from training.arguments import check_together, reported, trainer_arguments, typed_arguments


def recipe(**changes):
    base = {"path": "b", "license": "mit"}
    data = {"path": "d", "config": "c", "form": "sts", "loss": "CoSENTLoss", **changes.pop("data", {})}
    names = {"kind": "model", "name": "m", "version": "0.1.0", "pretty_name": "M", "license": "mit"}
    return ModelRecipe(**names, base=base, datasets=[data], **changes)


def test_arguments_get_the_types_of_their_fields():
    texts = {"learning_rate": "2e-5", "bf16": "no", "max_steps": "7", "warmup_steps": "0.1", "optim": "adamw_torch"}
    typed = typed_arguments(texts, "p")
    assert typed == {"learning_rate": 2e-5, "bf16": False, "max_steps": 7, "warmup_steps": 0.1, "optim": "adamw_torch"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("learning_rat", "1", "p.learning_rat: is not a trainer argument; did you mean 'learning_rate'"),
        ("max_steps", "many", "p.max_steps: Input should be a valid integer.*'many'"),
        ("output_dir", "x", "p.output_dir: is set by --out"),
        ("seed", "1", "p.seed: is set by the recipe's seed"),
        ("per_device_train_batch_size", "8", "is set by the recipe's batch_size"),
        ("push_to_hub", "true", "p.push_to_hub: is set by this stage"),
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
    with pytest.raises(InputError, match=r"p.max_steps: d is streamed, so how many steps an epoch has is not known"):
        check_together(recipe(data={"streaming": True}), {}, "p")


def test_the_checkpoint_is_chosen_by_validation_where_there_is_one(tmp_path):
    chosen, _ = trainer_arguments(recipe(), {}, tmp_path, 1, True, "p")
    assert chosen.load_best_model_at_end
    assert chosen.metric_for_best_model == "eval_sequential_score"
    last, _ = trainer_arguments(recipe(), {}, tmp_path, 1, False, "p")
    assert not last.load_best_model_at_end
    assert reported(last)["lr_scheduler_type"] == "linear"

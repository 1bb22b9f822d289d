"""training.losses and training.arguments: names are upstream's; a wrong one is answered with the nearest right one."""

import pytest

from hub.errors import InputError
from training.arguments import reported, trainer_arguments, typed_arguments
from training.losses import check_loss


def test_every_loss_takes_its_forms_only():
    assert check_loss("CoSENTLoss", "sts", "p").forms == ("sts",)
    with pytest.raises(InputError, match=r"p.loss: CosineSimilarityLoss does not learn from the triplet form; allowed"):
        check_loss("CosineSimilarityLoss", "triplet", "p")
    with pytest.raises(InputError, match=r"pair-class form; allowed: none yet"):
        check_loss("CoSENTLoss", "pair-class", "p")


def test_an_unknown_loss_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown loss 'CoSENTLos'.*did you mean 'CoSENTLoss'"):
        check_loss("CoSENTLos", "sts", "p")


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
        ("report_to", "all", "p.report_to: is set by this stage"),
    ],
)
def test_arguments_that_cannot_be_used(name, text, message):
    with pytest.raises(InputError, match=message):
        typed_arguments({name: text}, "p")


def test_arguments_that_do_not_go_together(tmp_path):
    with pytest.raises(InputError, match=r"a checkpoint is chosen only if it is evaluated"):
        trainer_arguments({"eval_strategy": "no"}, tmp_path, 1, True, "p")
    with pytest.raises(InputError, match=r"p: .*nonesuch"):
        trainer_arguments({"lr_scheduler_type": "nonesuch"}, tmp_path, 1, True, "p")


def test_the_checkpoint_is_chosen_by_validation_where_there_is_one(tmp_path):
    with_validation = trainer_arguments({}, tmp_path, 1, True, "p")
    assert with_validation.load_best_model_at_end
    assert with_validation.metric_for_best_model == "eval_sequential_score"
    without = trainer_arguments({}, tmp_path, 1, False, "p")
    assert not without.load_best_model_at_end
    assert reported(without)["lr_scheduler_type"] == "linear"
    assert without.report_to == []

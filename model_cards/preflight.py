"""Preflight of a card: what would refuse it and the recipe tells already, before anything is made."""

from hub.contract.licences import check, check_model
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from model_cards.model.card import told_under
from model_cards.render import checked_repo_id
from model_cards.shared.changes import change_table


def require_card(recipe: DatasetRecipe | ModelRecipe, repo_id: str) -> None:
    """Raise InputError when the finished artefact could have no card, and so no release.

    That is: a licence that does not follow from its parts, a version that ``model_cards/sections`` does not tell of, or
    a name that no Hub takes. What a model's datasets allow is asked again when they are read (``training.loop.job``).
    """
    checked_repo_id(repo_id)
    if isinstance(recipe, DatasetRecipe):
        check(recipe)
        change_table(recipe.name, recipe.version, complete=True)
        return
    check_model(recipe, ())
    if not recipe.is_baseline:
        change_table(told_under(recipe), recipe.version, complete=True)

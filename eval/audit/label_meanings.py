"""What a run's recipe says its labels mean to people (``labels[].meaning``), under the labels that its rows have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError


@dataclass(frozen=True)
class LabelMeanings:
    """Label → what it means in words, and the dataset's language (ISO 639); None where no recipe tells."""

    of: Mapping[str, str] = field(default_factory=dict)
    language: str | None = None


def score_label(score: float) -> str:
    """A similarity score as people see it: 0.9 for the float32 0.89999998."""
    return f"{score:g}"


def label_meanings(recipe: DatasetRecipe) -> dict[str, str]:
    """Label → meaning, for the labels that have one: a class's name, or a score as rows have it, smoothed.

    Labels of one score share their words.
    """
    found = dict[str, list[str]]()
    for label in recipe.written_labels:
        if label.meaning is not None:
            score = recipe.postprocess.smoothed(label.score or 0.0)
            found.setdefault(score_label(score) if recipe.dataset_schema.scored else label.name, []).append(
                label.meaning
            )
    return {name: "; ".join(meanings) for name, meanings in found.items()}


def published_meanings(path: Path | None) -> LabelMeanings:
    """The meanings in a run's recipe.yaml; none where there is no recipe, or one of another version of this project."""
    try:
        if path is None:
            raise InputError("recipe.yaml", "is not published with the dataset, or not downloaded")
        recipe = load_recipe(path, DatasetRecipe)
        return LabelMeanings(label_meanings(recipe), recipe.language)
    except InputError as error:
        cli.say(f"labels are told in the usual words: {error}")
        return LabelMeanings()

"""A dataset card's table of training value: what one fixed student scored after each arm, beside the copies control."""

from hub.markdown import Markdown, inline, table
from hub.training_value import Arm, TrainingValue

TRAINED_ON: dict[Arm, str] = {
    "untrained": "nothing (untrained)",
    "shuffled": "pairs of this dataset, their scores shuffled",
    "copies": "copies of the first texts (no language model)",
    "dataset": "**pairs of this dataset**",
    "people": "pairs that people wrote or chose, and scored",
}


def value_table(value: TrainingValue) -> Markdown:
    """One row an arm: its mean over tasks, and the paired difference to the copies control."""
    rows = [
        [Markdown(TRAINED_ON[arm]), Markdown(found.average), Markdown(found.over_copies or "-")]
        for arm, found in value.arms.items()
    ]
    rows += [
        [Markdown(TRAINED_ON[arm]), inline(f"not trained: {why}"), Markdown("-")] for arm, why in value.skipped.items()
    ]
    return table(["trained on", "Spearman x 100", "over the copies"], rows)

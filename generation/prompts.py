"""First text x label → prompt and counter-prompts (DINO section 3, figure 2)."""

from hub.recipe import X1, DatasetRecipe, Label, Variant


class Prompts:
    """Every prompt of a recipe."""

    def __init__(self, recipe: DatasetRecipe):
        self.labels = {label.name: label for label in recipe.labels}

    def of(self, label: Label, text1: str, variant: Variant) -> tuple[str, tuple[str, ...]]:
        """The prompt of ``label`` for a first text, and those its completion must not fit (CL(y), in recipe order)."""
        counters = tuple(self._fill(self.labels[name], text1) for name in label.counter_labels)
        return self._fill(label, text1), counters

    def prefixes(self, variant: Variant) -> tuple[str, ...]:
        """What the prompts of a variant begin with, whatever the first text: one for each label."""
        return tuple(self.first_text_prefix(label) for label in self.labels.values())

    def first_text_prefix(self, label: Label) -> str:
        """The instruction up to and including the quotation mark that opens the first text (DINO section 3)."""
        return label.instruction[: label.instruction.index(X1)]

    def _fill(self, label: Label, text1: str) -> str:
        return label.instruction.replace(X1, text1)


def load_prompts(recipe: DatasetRecipe) -> Prompts:
    """The prompts of a recipe."""
    return Prompts(recipe)

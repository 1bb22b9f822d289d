"""First text x label → prompt and counter-prompts (DINO section 3, figure 2)."""

from collections.abc import Sequence

from hub.recipe import X1, Label


def fill(label: Label, text1: str) -> str:
    """The label's instruction with the first text in its place; it ends in the opening quotation mark."""
    return label.instruction.replace(X1, text1)


def prompts(label: Label, labels: Sequence[Label], text1: str) -> tuple[str, tuple[str, ...]]:
    """The prompt of ``label`` for a first text, and those its completion must not fit (CL(y), in recipe order)."""
    by_name = {other.name: other for other in labels}
    return fill(label, text1), tuple(fill(by_name[name], text1) for name in label.counter_labels)


def first_text_prefix(label: Label) -> str:
    """The instruction up to and including the quotation mark that opens the first text (DINO section 3)."""
    return label.instruction[: label.instruction.index(X1)]

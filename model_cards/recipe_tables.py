"""What a dataset card says of its recipe: the constants in force, and what follows from them."""

from typing import Any

from hub.recipe import DatasetRecipe
from model_cards.escape import Markdown, code, table


def is_debiased(recipe: DatasetRecipe) -> bool:
    """Is any label written against counter-labels?"""
    return recipe.decoding.decay_constant > 0 and any(label.counter_labels for label in recipe.labels)


def is_exact(recipe: DatasetRecipe) -> bool:
    """Does the recipe give the same bytes on every machine? Only fp32 on a CPU promises that."""
    model = recipe.model
    on_cpu = model.device == "cpu" and model.device_map is None and model.quantization is None
    return model.backend == "engine" and model.dtype == "float32" and on_cpu


def decoding_table(recipe: DatasetRecipe) -> Markdown:
    """The decoding constants, under their names in the recipe."""
    decoding = recipe.decoding
    rows: list[list[Any]] = []
    if is_debiased(recipe):
        rows += [["decay constant λ", decoding.decay_constant], ["floor ε", decoding.floor]]
    rows += [
        ["top-k", decoding.top_k or "off"],
        ["top-p", decoding.top_p],
        ["new tokens, at most", decoding.max_new_tokens],
        ["a text ends at", "the end of its line" if decoding.text_end == "line" else "its closing quotation mark"],
        [f"texts wanted per first text{', example set' if recipe.few_shot else ''} and label", decoding.samples],
        ["attempts, at most", decoding.max_attempts],
        ["number format", recipe.model.dtype if recipe.model.backend != "openai" else "the server's"],
        ["seed", recipe.seed],
    ]
    if recipe.source.kind == "model":
        rows.append(["top-p for first texts (no top-k)", recipe.source.top_p])
    return table(["constant", "value"], rows)


def example_table(recipe: DatasetRecipe) -> Markdown | None:
    """How many examples stand in a prompt and in how many sets. None without a few-shot section."""
    if recipe.few_shot is None:
        return None
    rows: list[list[Any]] = [
        [code(f"{shots}shot"), shots, recipe.few_shot.sets if shots else 0] for shots in recipe.few_shot.shots
    ]
    return table(["configs ending in", "examples in a prompt", "example sets"], rows)


def postprocess_table(recipe: DatasetRecipe) -> Markdown:
    """The constants of post-processing that apply to the recipe's form."""
    chosen = recipe.postprocess
    rows: list[list[Any]] = []
    if recipe.form == "sts":
        rows += [["label smoothing", chosen.smoothing], ["sampled negatives per first text", chosen.sampled_negatives]]
    if recipe.form == "nli":
        rows.append(["triplets whose positive is their negative", "kept" if chosen.equal_triplets else "left out"])
    rows += [
        ["copies that are rejected", ", ".join(chosen.reject) or "none"],
        ["texts per first text and label, at most", chosen.max_per_label],
        ["fraction of first texts in validation", chosen.validation_fraction],
    ]
    if recipe.premise_tokens is not None:
        rows.append(["tokens of a first text", "{} to {}".format(*recipe.premise_tokens)])
    return table(["constant", "value"], rows)

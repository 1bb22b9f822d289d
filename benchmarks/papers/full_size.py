"""The experiments at the papers' size: recipes, commands and a rough estimate of GPU-hours. Runs nothing."""

from collections.abc import Sequence
from typing import Any

from benchmarks.papers.plan import Experiment, FullRecipe
from benchmarks.trials import table
from hub.contract.recipe_file import read_yaml

PEAK = {"half": 989e12, "float32": 67e12}  # FLOP/s of an H100 SXM, dense, by its data sheet; float32 without TF32
USED = {"dataset": 0.1, "model": 0.3}  # of the peak: decoding waits for memory. Both are assumed, not measured
PASSES = {"dataset": 2, "model": 6}  # FLOP per parameter and token: forward alone; forward and backward
COMMANDS = {
    "dataset": ("python -m generation.run {}",),
    "model": ("python -m training.run {}", "python -m eval.run {} --tasks papers --senteval-data DIR --sts-data DIR"),
}


def gpu_hours(one: FullRecipe) -> float:
    """H100 hours of a recipe, by its FLOP and an assumed share of the peak: good to a factor of three at best."""
    tree = read_yaml(one.recipe)
    flop = PASSES[tree["kind"]] * one.parameters * one.sequences * one.tokens
    return flop / (PEAK[_precision(tree)] * USED[tree["kind"]]) / 3600


def _precision(tree: dict[str, Any]) -> str:
    model = tree.get("model") or tree.get("base") or {}
    arguments = tree.get("arguments") or {}
    is_half = model.get("dtype") in ("bfloat16", "float16") or arguments.get("bf16") == "true"
    return "half" if is_half else "float32"


def plan(experiments: Sequence[Experiment]) -> str:
    """The plan of experiments as text. A recipe that several need is counted once in the sum."""
    parts, hours = list[str](), dict[str, float]()
    for experiment in experiments:
        full = experiment.full_size
        lines = [f"# {experiment.name}: {experiment.title}", f"Cost, in the paper's words: {full.said}"]
        rows = []
        for one in full.recipes:
            hours[str(one.recipe)] = gpu_hours(one)
            rows.append([one.recipe, one.why, f"{hours[str(one.recipe)]:,.1f}"])
        if rows:
            lines += ["", table(["recipe", "counted", "H100 hours, estimated"], rows, names=2), ""]
            kinds = [(one.recipe, read_yaml(one.recipe)["kind"]) for one in full.recipes]
            lines += [command.format(recipe) for recipe, kind in kinds for command in COMMANDS[kind]]
        lines += [f"lacks: {one}" for one in full.lacks]
        parts.append("\n".join(lines))
    total = f"All recipes, each once: {sum(hours.values()):,.0f} H100 hours, estimated to a factor of three."
    return "\n\n".join([*parts, total])

"""How a row came about: sts-dino explain RUN_DIR SOURCE_ID/TARGET/ATTEMPT

Prints the prompt, the counter-prompts and, for every token, its probability under the own prompt, under the best
counter-prompt, after debiasing and after top-k and top-p; with guidance also the plain prompt, the probability under it
and after guidance. Then the engine writes the row again: text and outcome must
be the same, and the statistics but for rounding.

The id of a row are its columns: source_id, target and attempt, e.g. 000014/0.5/1; with few-shot examples also the
shot count of the config and example_set, e.g. 000014/entailment/0/20shot-3.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow.parquet as pq
import typer

from generation.backends.protocol import Completion, Request
from generation.dry_run import visible
from generation.inputs.prompts import load_prompts
from generation.inputs.sources import FirstText
from generation.pipeline.code_digest import versions
from generation.rows.attempts import text_request, text_seed
from hub import cli
from hub.contract import run_dir
from hub.contract.backends import backends_that
from hub.contract.published_paths import remembered, require_inputs
from hub.contract.recipe import DatasetRecipe, Variant, config_name
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest
from hub.contract.schema import COMPLETION
from hub.contract.shards import AGAIN, reading_rows
from hub.errors import InputError, RunError

if TYPE_CHECKING:
    from generation.backends.trace import Step

app = cli.new_app(__doc__)
Row = dict[str, Any]
PROBLEMS = [reason.name for reason in COMPLETION]
ROUNDING = 1e-4  # nats: rows keep float32, and another processor or bfloat16 moves sums in their last bits


@dataclass(frozen=True)
class RowId:
    """Which completion of which variant."""

    source_id: str
    target: str
    attempt: int
    variant: Variant

    def __str__(self) -> str:
        few_shot = f"/{self.variant.shots}shot-{self.variant.example_set}" if self.variant.shots is not None else ""
        return f"{self.source_id}/{self.target}/{self.attempt}{few_shot}"


@dataclass(frozen=True)
class Explanation:
    """A row, what it was written from, its tokens, and what the engine makes of the same request now."""

    row_id: RowId
    config: str
    row: Row
    request: Request
    steps: "list[Step]"
    traced: str  # the text of ``steps``
    regenerated: Completion

    @property
    def differences(self) -> list[str]:
        """Where the row cannot be written again; empty: it is identical (statistics up to ``ROUNDING``)."""
        row, now = self.row, self.regenerated
        problem = row.get("reason") if row.get("reason") in PROBLEMS else None  # the others were found later
        found = {
            "text2": (row["text2"], now.text),
            "text2, token by token": (row["text2"], self.traced),
            "problem": (problem, now.problem),
            "log_prob": (row["log_prob"], now.log_prob),
            "margin": (row["margin"], now.margin),
        }
        return [
            f"{name} was {was!r} and is {is_now!r}" for name, (was, is_now) in found.items() if not _same(was, is_now)
        ]


def parse_row_id(text: str, recipe: DatasetRecipe) -> RowId:
    """A row id of a recipe. Raises InputError that says how ids are made and which labels and variants there are."""
    labels = "|".join(re.escape(label.name) for label in recipe.written_labels)
    form = rf"(?P<source>.+)/(?P<target>{labels})/(?P<attempt>\d+)"
    few_shot = recipe.few_shot is not None
    found = re.fullmatch(form + (r"/(?P<shots>\d+)shot-(?P<set>\d+)" if few_shot else ""), text)
    variant = Variant(int(found["shots"]), int(found["set"])) if found and few_shot else Variant(None, 0)
    if found is None or variant not in recipe.row_variants:
        names = " | ".join(label.name for label in recipe.written_labels)
        allowed = f"SOURCE_ID/TARGET/ATTEMPT{'/<SHOTS>shot-<EXAMPLE_SET>' if few_shot else ''} with TARGET {names}"
        if few_shot:
            allowed += f" and one of {', '.join(f'{v.shots}shot-{v.example_set}' for v in recipe.row_variants)}"
        hint = "take them from the columns source_id, target and attempt of a row of raw or rejected"
        raise InputError(f"row id {text!r}", "is none of this run", allowed=allowed, hint=hint)
    return RowId(found["source"], found["target"], int(found["attempt"]), variant)


def find_row(directory: Path, manifest: Manifest, row_id: RowId) -> tuple[str, Row]:
    """The config and the row of an id, from raw, else from rejected. Raises InputError when there is none."""
    wanted: list[tuple[str, str, Any]] = [
        (name, "=", getattr(row_id, name)) for name in ("source_id", "target", "attempt")
    ]
    if row_id.variant.shots is not None:
        wanted.append(("example_set", "=", row_id.variant.example_set))
    for config in (config_name(base, row_id.variant.shots) for base in ("raw", "rejected")):
        for file in manifest.shards(config):
            with reading_rows(directory / file.path, AGAIN):
                rows = pq.read_table(directory / file.path, filters=wanted, partitioning=None).to_pylist()
            if rows:
                return config, rows[0]
    hint = "it was not asked for, or its shard is not written yet" if not manifest.complete else "it was not asked for"
    raise InputError(f"{directory}: row {row_id}", "stands neither in raw nor in rejected", hint=hint)


def explain(directory: Path, text: str, places: Sequence[str] = ()) -> Explanation:
    """Trace a row of a run and write it again. ``places``: settings that say where unpublished inputs lie.

    Raises:
        InputError: no run, no such row, or a backend whose probabilities cannot be seen.
        RunError: the row's seed or prompt is not what the recipe gives today.
    """
    manifest = run_dir.read_manifest(directory)
    if manifest is None or manifest.kind != "dataset":
        raise InputError(directory, "is no run directory of a dataset", hint="run: sts-dino write RECIPE")
    recipe = load_recipe(directory / run_dir.RECIPE, DatasetRecipe, [*remembered(directory), *places])
    require_inputs(directory / run_dir.RECIPE, recipe, unneeded=("source.path",))
    if not recipe.model.facts.can_trace:
        problem = f"backend {recipe.model.backend!r} reports no token probabilities"
        raise InputError(directory, problem, allowed=backends_that("can_trace"))
    row_id = parse_row_id(text, recipe)
    config, row = find_row(directory, manifest, row_id)
    prompts = load_prompts(recipe)
    label = prompts.labels[row_id.target]
    first = FirstText(row_id.source_id, row["text1"])
    seed = text_seed(recipe, row_id.variant, first, label.name, row_id.attempt)
    if seed != row["seed"]:
        raise RunError(
            f"{directory}: row {row_id}", f"its seed was {row['seed']} and is {seed}", hint=_changes(manifest)
        )
    request = text_request(prompts, label, first.text, row_id.variant, seed)

    from generation.backends.trace import Tracer

    tracer, settings = Tracer(recipe.model), recipe.decoding
    steps, traced = tracer.trace(request, settings)
    prefixes = prompts.prefixes(row_id.variant)
    regenerated = tracer.regenerate(request, settings, recipe.decoding.batch_size, prefixes)
    return Explanation(row_id, config, row, request, steps, traced, regenerated)


def _same(was: object, is_now: object) -> bool:
    if isinstance(was, float) and isinstance(is_now, float):
        return math.isclose(was, is_now, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return was == is_now


def _changes(manifest: Manifest) -> str:
    now = versions()
    changed = [f"{name} {was}, now {now.get(name)}" for name, was in manifest.versions.items() if now.get(name) != was]
    if changed:
        return "since the run these have changed: " + "; ".join(changed)
    return (
        "only float32 on a CPU promises a row's bytes by itself; elsewhere they depend on the batch it was written in"
    )


def rendered(explanation: Explanation) -> str:
    """The explanation for a terminal. Nothing a model wrote can move its cursor."""
    row = explanation.row
    lines = [f"row {visible(str(explanation.row_id))} of {explanation.config}", "--- prompt"]
    lines.append(visible(explanation.request.prompt))
    for counter in explanation.request.counter_prompts:
        lines += ["--- counter-prompt: the text must not fit", visible(counter)]
    if explanation.request.plain_prompt is not None:
        lines += ["--- plain prompt: guidance leads away from it", visible(explanation.request.plain_prompt)]
    lines += ["--- tokens", _table(explanation.steps), "--- row"]
    lines += [f"{name}: {visible(str(value))}" for name, value in row.items()]
    return "\n".join(lines)


def _table(steps: "list[Step]") -> str:
    """A line for each token. δ = p - p(counter), α = what debiasing multiplies p, or what guidance gives, by."""
    heads = {"p": 8, "p(counter)": 10, "δ": 8, "p(plain)": 8, "guided": 8, "α": 8, "debiased": 8, "sampled": 8}
    if all(step.plain is None for step in steps):
        heads = {name: width for name, width in heads.items() if name not in ("p(plain)", "guided")}
    lines = [f"{'token':<20} " + " ".join(f"{name:>{width}}" for name, width in heads.items())]
    for step in steps:
        cells = {
            "p": f"{step.own:.4f}",
            "p(counter)": "-" if step.counter is None else f"{step.counter:.4f}",
            "δ": "-" if step.delta is None else f"{step.delta:+.4f}",
            "p(plain)": "-" if step.plain is None else f"{step.plain:.4f}",
            "guided": "-" if step.guided is None else f"{step.guided:.4f}",
            "α": f"{step.alpha:.4f}",
            "debiased": f"{step.debiased:.4f}",
            "sampled": f"{step.sampled:.4f}",
        }
        token = visible(repr(step.token))
        lines.append(f"{token:<20} " + " ".join(f"{cells[name]:>{width}}" for name, width in heads.items()))
    return "\n".join(lines)


def facts(explanation: Explanation) -> dict[str, Any]:
    """The explanation for machines."""
    return {
        "row_id": str(explanation.row_id),
        "config": explanation.config,
        "row": explanation.row,
        "prompt": explanation.request.prompt,
        "counter_prompts": explanation.request.counter_prompts,
        "plain_prompt": explanation.request.plain_prompt,
        "tokens": [asdict(step) for step in explanation.steps],
        "regenerated": asdict(explanation.regenerated),
        "identical": not explanation.differences,
        "differences": explanation.differences,
    }


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory of a dataset")],
    row_id: Annotated[str, typer.Argument(metavar="ROW_ID", help="e.g. 000014/0.5/1")],
    as_json: cli.JsonOption = False,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
) -> None:
    """Explain a row of raw or rejected, and write it again. Exit code 1 when another text comes of it.

    Examples:

      sts-dino explain artifacts/datasets/sts-dino-x2 000014/0.5/1
    """
    explanation = explain(directory, row_id, settings)
    cli.answer(rendered(explanation), facts(explanation), as_json)
    if explanation.differences:
        manifest = run_dir.read_manifest(directory)
        raise RunError(
            f"{directory}: row {explanation.row_id}",
            "cannot be written again: " + visible("; ".join(explanation.differences)),
            hint=_changes(manifest) if manifest else None,
        )
    cli.say("written again by the engine: identical")

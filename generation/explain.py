"""How a row was generated: sts-dino explain RUN_DIR SOURCE_ID/TARGET/ATTEMPT

Prints the prompts and every token's probability under each, after debiasing, and after top-k and top-p. Then the engine
generates the row again: the text must be the same, and the statistics up to rounding.

A row id consists of source_id, target and attempt, e.g. 000014/0.5/1; with few-shot examples also of the config's shot
count and example_set, e.g. 000014/entailment/0/20shot-3.
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
from generation.inputs.prompts import load_prompts
from generation.inputs.sources import SourceSentence
from generation.pipeline.code_digest import versions
from generation.rows.attempts import text_request, text_seed
from hub import cli
from hub.contract import run_dir
from hub.contract.published_paths import remembered, require_inputs
from hub.contract.recipe import DatasetRecipe, Variant, backends_that, config_name
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest
from hub.contract.schema import COMPLETION
from hub.contract.shards import AGAIN, reading_rows
from hub.errors import InputError, RunError
from hub.untrusted import printable

if TYPE_CHECKING:
    from generation.backends.trace import Step

app = cli.new_app(__doc__)
Row = dict[str, Any]
ROUNDING = 1e-4  # nats: rows keep float32, and another processor or bfloat16 moves sums in their last bits
_COLUMNS = {  # heading → attribute of a step
    "p": "own",
    "p(counter)": "counter",
    "δ": "delta",
    "p(plain)": "plain",
    "guided": "guided",
    "α": "alpha",
    "debiased": "debiased",
    "sampled": "sampled",
}


@dataclass(frozen=True)
class RowId:
    """Identity of a completion: source sentence, label, attempt, and variant of the prompt."""

    source_id: str
    target: str
    attempt: int
    variant: Variant

    def __str__(self) -> str:
        few_shot = f"/{self.variant.shots}shot-{self.variant.example_set}" if self.variant.shots is not None else ""
        return f"{self.source_id}/{self.target}/{self.attempt}{few_shot}"


@dataclass(frozen=True)
class Explanation:
    """A row, its request, its tokens, and what the engine generates for the same request now."""

    row_id: RowId
    config: str
    row: Row
    request: Request
    steps: "list[Step]"
    traced: str  # the text of ``steps``
    regenerated: Completion
    changes: str = ""  # versions that changed since the run
    read: str = ""  # the tokens of the prompt

    @property
    def differences(self) -> list[str]:
        """Where the row differs from its regeneration; empty for an identical one (statistics up to ``ROUNDING``)."""
        row, now = self.row, self.regenerated
        problem = row.get("reason") if row.get("reason") in COMPLETION else None  # other reasons are found later
        found = [
            ("text2", row["text2"], now.text),
            ("text2, token by token", row["text2"], self.traced),
            ("problem", problem, now.problem),
            ("log_prob", row["log_prob"], now.log_prob),
            ("margin", row["margin"], now.margin),
        ]
        return [f"{name} was {was!r} and is {is_now!r}" for name, was, is_now in found if not _same(was, is_now)]

    def __str__(self) -> str:
        """The explanation for a terminal, without control characters."""
        lines = [f"row {self.row_id} of {self.config}", "--- prompt", self.request.prompt]
        lines += ["--- prompt as tokens; control tokens have no quotation marks", self.read]
        for counter in self.request.counter_prompts:
            lines += ["--- counter-prompt: the text must not fit", counter]
        if self.request.plain_prompt is not None:
            lines += ["--- plain prompt: guidance leads away from it", self.request.plain_prompt]
        lines += ["--- tokens", _table(self.steps), "--- row"]
        return printable("\n".join([*lines, *(f"{name}: {value}" for name, value in self.row.items())]))

    def facts(self) -> dict[str, Any]:
        """The explanation as JSON."""
        prompts = {name: getattr(self.request, name) for name in ("prompt", "counter_prompts", "plain_prompt")}
        now = {"tokens": [asdict(step) for step in self.steps], "regenerated": asdict(self.regenerated)}
        result = {"identical": not self.differences, "differences": self.differences}
        row = {"row_id": str(self.row_id), "config": self.config, "row": self.row, "prompt_as_tokens": self.read}
        return {**row, **prompts, **now, **result}


def parse_row_id(text: str, recipe: DatasetRecipe) -> RowId:
    """A row id of a recipe. Raises InputError that shows the form of ids, and the recipe's labels and variants."""
    labels = "|".join(re.escape(label.name) for label in recipe.written_labels)
    few_shot = recipe.few_shot is not None
    pattern = rf"(?P<source>.+)/(?P<target>{labels})/(?P<attempt>\d+)"
    found = re.fullmatch(pattern + (r"/(?P<shots>\d+)shot-(?P<set>\d+)" if few_shot else ""), text)
    variant = Variant(int(found["shots"]), int(found["set"])) if found and few_shot else Variant(None, 0)
    if found is None or variant not in recipe.row_variants:
        names = " | ".join(label.name for label in recipe.written_labels)
        allowed = f"SOURCE_ID/TARGET/ATTEMPT{'/<SHOTS>shot-<EXAMPLE_SET>' if few_shot else ''} with TARGET {names}"
        if few_shot:
            allowed += f" and one of {', '.join(f'{v.shots}shot-{v.example_set}' for v in recipe.row_variants)}"
        hint = "take them from the columns source_id, target and attempt of a row of raw or rejected"
        raise InputError(f"row id {text!r}", "not found in this run", allowed=allowed, hint=hint)
    return RowId(found["source"], found["target"], int(found["attempt"]), variant)


def find_row(directory: Path, manifest: Manifest, row_id: RowId) -> tuple[str, Row]:
    """The config and the row of an id, from raw, else from rejected. Raises InputError for a missing row."""
    wanted: list[Any] = [(name, "=", getattr(row_id, name)) for name in ("source_id", "target", "attempt")]
    if row_id.variant.shots is not None:
        wanted.append(("example_set", "=", row_id.variant.example_set))
    for config in (config_name(base, row_id.variant.shots) for base in ("raw", "rejected")):
        for file in manifest.shards(config):
            with reading_rows(directory / file.path, AGAIN):
                rows = pq.read_table(directory / file.path, filters=wanted, partitioning=None).to_pylist()
            if rows:
                return config, rows[0]
    hint = "it was not requested" if manifest.complete else "it was not requested, or its shard is not written yet"
    raise InputError(f"{directory}: row {row_id}", "is neither in raw nor in rejected", hint=hint)


def first_row_id(directory: Path) -> str:
    """The id of the first raw row of a run directory. Raises InputError when it is missing."""
    manifest = run_dir.read_manifest(directory)
    for file in manifest.files if manifest else ():
        base, _, shots = str(file.config).partition("-")
        if base == "raw":
            row = next(pq.ParquetFile(directory / file.path).iter_batches(batch_size=1)).to_pylist()[0]
            few_shot = f"/{shots}-{row['example_set']}" if shots else ""
            return f"{row['source_id']}/{row['target']}/{row['attempt']}{few_shot}"
    raise InputError(directory, "has no raw row", allowed="the run directory of a dataset")


def explain(directory: Path, text: str, places: Sequence[str] = ()) -> Explanation:
    """Trace a row of a run and generate it again. ``places``: settings with the paths of unpublished inputs.

    Raises InputError for no run, no such row, or a backend that reports no token probabilities; RunError when today's
    recipe gives another seed than the row's.
    """
    manifest = run_dir.read_manifest(directory)
    if manifest is None or manifest.kind != "dataset":
        raise InputError(directory, "is not a run directory of a dataset", hint="run: sts-dino write RECIPE")
    recipe = load_recipe(directory / run_dir.RECIPE, DatasetRecipe, [*remembered(directory), *places])
    require_inputs(
        directory / run_dir.RECIPE, {key: path for key, path in recipe.local_paths().items() if key != "source.path"}
    )
    if not recipe.model.facts.can_trace:
        problem = f"backend {recipe.model.backend!r} reports no token probabilities"
        raise InputError(directory, problem, allowed=backends_that("can_trace"))
    row_id = parse_row_id(text, recipe)
    config, row = find_row(directory, manifest, row_id)
    prompts = load_prompts(recipe)
    label, first = prompts.labels[row_id.target], SourceSentence(row_id.source_id, row["text1"])
    seed = text_seed(recipe, row_id.variant, first, label.name, row_id.attempt)
    if seed != row["seed"]:
        problem = f"its seed was {row['seed']} and is {seed}"
        raise RunError(f"{directory}: row {row_id}", problem, hint=_changes(manifest))
    request, settings = text_request(prompts, label, first.text, row_id.variant, seed), recipe.decoding

    from generation.backends.trace import Tracer

    tracer = Tracer(recipe.model)
    (steps, traced), read = tracer.trace(request, settings), tracer.shown_tokens(request.prompt)
    regenerated = tracer.regenerate(request, settings, settings.batch_size, prompts.prefixes(row_id.variant))
    return Explanation(row_id, config, row, request, steps, traced, regenerated, _changes(manifest), read)


def _same(was: object, is_now: object) -> bool:
    if isinstance(was, float) and isinstance(is_now, float):
        return math.isclose(was, is_now, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return was == is_now


def _changes(manifest: Manifest) -> str:
    now = versions()
    changed = [f"{name} {was}, now {now.get(name)}" for name, was in manifest.versions.items() if now.get(name) != was]
    if changed:
        return "since the run these have changed: " + "; ".join(changed)
    return "only float32 on a CPU makes a row independent of its batch"


def _table(steps: "list[Step]") -> str:
    """A line for each token. δ = p - p(counter); debiasing multiplies p, or the guided probability, by α."""
    guided = any(step.plain is not None for step in steps)
    columns = {head: name for head, name in _COLUMNS.items() if guided or name not in ("plain", "guided")}
    rows = [("token", *columns)]
    for step in steps:
        numbers = [getattr(step, name) for name in columns.values()]
        rows.append((repr(step.token), *("-" if number is None else f"{number:.4f}" for number in numbers)))
    return cli.aligned(rows, right=range(1, 1 + len(columns)))


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory of a dataset")],
    row_id: Annotated[
        str | None, typer.Argument(metavar="[ROW_ID]", help="e.g. 000014/0.5/1 [default: the first row]")
    ] = None,
    as_json: cli.JsonOption = False,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
) -> None:
    """Explain a row of raw or rejected, and generate it again. Exit code 1 for another text.

    Examples:

      sts-dino explain artifacts/datasets/sts-dino-x2 000014/0.5/1
    """
    explanation = explain(directory, row_id or first_row_id(directory), settings)
    cli.answer(str(explanation), explanation.facts(), as_json)
    if explanation.differences:
        problem = "cannot be generated again: " + printable("; ".join(explanation.differences))
        raise RunError(f"{directory}: row {explanation.row_id}", problem, hint=explanation.changes)
    cli.say("generated again by the engine: identical")

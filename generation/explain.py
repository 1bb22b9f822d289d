"""How a row was generated: sts-dino explain RUN_DIR SOURCE_ID/TARGET/ATTEMPT

Prints the prompts and every token's probability: under the prompt, the strongest counter-prompt and
the plain prompt, after debiasing, and after top-k and top-p. Then the engine generates the row
again: the text must be equal, and the statistics equal up to rounding.

A row id consists of source_id, target and attempt, e.g. 000014/0.5/1; with few-shot examples also
of the config's shot count and example_set, e.g. 000014/entailment/0/20shot-3.
"""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow.parquet as pq
import typer

from sts_dino.generation.backends.protocol import Completion, Request
from sts_dino.generation.inputs.prompts import load_prompts
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.pipeline.code_digest import get_versions
from sts_dino.generation.rows.attempts import compute_text_seed, make_text_request
from sts_dino.hub import cli
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.published_paths import read_path_settings, require_inputs
from sts_dino.hub.contract.recipe import (
    LOCAL_BACKEND,
    DatasetRecipe,
    Variant,
    format_config_name,
)
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.contract.schema import COMPLETION
from sts_dino.hub.contract.shards import RERUN_HINT, convert_reader_errors
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.scores import align_columns
from sts_dino.hub.untrusted import strip_controls

if TYPE_CHECKING:
    from sts_dino.generation.backends.trace import Step

logger = logging.getLogger(__name__)

app = cli.make_app(__doc__)
Row = dict[str, Any]
# Most difference of two equal statistics, absolute (nats) or relative: rows keep float32, and
# another processor or bfloat16 changes the last bits of a sum.
TOLERANCE = 1e-4
GUIDANCE_COLUMNS = {"p(plain)": "plain", "guided": "guided"}
STEP_COLUMNS = {  # heading → attribute of a step
    "p": "own",
    "p(counter)": "counter",
    "δ": "delta",
    **GUIDANCE_COLUMNS,
    "α": "alpha",
    "debiased": "debiased",
    "sampled": "sampled",
}


@dataclass(frozen=True)
class RowId:
    """Identity of a completion: source sentence, label, attempt, and variant of the prompt."""

    source_id: str
    target: str  # name of the label
    attempt: int  # from 0
    variant: Variant

    def __str__(self) -> str:
        text = f"{self.source_id}/{self.target}/{self.attempt}"
        if self.variant.shots is None:
            return text
        return f"{text}/{self.variant.shots}shot-{self.variant.example_set}"


@dataclass(frozen=True)
class Explanation:
    """A row, its request, its tokens, and what the engine generates for the same request today."""

    row_id: RowId
    config: str  # the Hub config that has the row, e.g. raw
    row: Row
    request: Request
    steps: "list[Step]"
    traced_text: str  # the text of ``steps``
    regenerated: Completion
    changes: str = ""  # what may have changed a text since the run (``describe_changes``)
    prompt_tokens: str = ""  # the prompt's tokens as text

    @property
    def differences(self) -> list[str]:
        """How today's text and statistics differ from the row's, a phrase for each; empty: equal.

        Statistics may differ by ``TOLERANCE``.
        """
        problem = self.row.get("reason")
        if problem not in COMPLETION:
            problem = None  # a filter rejected the text, not the engine
        regenerated = self.regenerated
        values = [
            ("text2", self.row["text2"], regenerated.text),
            ("text2, token by token", self.row["text2"], self.traced_text),
            ("problem", problem, regenerated.problem),
            ("log_prob", self.row["log_prob"], regenerated.log_prob),
            ("margin", self.row["margin"], regenerated.margin),
        ]
        return [
            f"{name} was {earlier!r} and is {current!r}"
            for name, earlier, current in values
            if not is_equal(earlier, current)
        ]

    def __str__(self) -> str:
        """The explanation for a terminal, without control characters."""
        lines = [f"row {self.row_id} of {self.config}", "--- prompt", self.request.prompt]
        lines += [
            "--- prompt as tokens; control tokens have no quotation marks",
            self.prompt_tokens,
        ]
        for counter_prompt in self.request.counter_prompts:
            lines += ["--- counter-prompt: the text must not fit", counter_prompt]
        if self.request.plain_prompt is not None:
            lines += ["--- plain prompt: guidance leads away from it", self.request.plain_prompt]
        lines += ["--- tokens", format_steps(self.steps), "--- row"]
        lines += [f"{name}: {value}" for name, value in self.row.items()]
        return strip_controls("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        differences = self.differences
        return {
            "row_id": str(self.row_id),
            "config": self.config,
            "row": self.row,
            "prompt_as_tokens": self.prompt_tokens,
            "prompt": self.request.prompt,
            "counter_prompts": self.request.counter_prompts,
            "plain_prompt": self.request.plain_prompt,
            "tokens": [asdict(step) for step in self.steps],
            "regenerated": asdict(self.regenerated),
            "identical": not differences,
            "differences": differences,
        }


def is_equal(earlier: object, current: object) -> bool:
    """Return whether two values are equal; floats may differ by ``TOLERANCE``."""
    if isinstance(earlier, float) and isinstance(current, float):
        return math.isclose(earlier, current, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return earlier == current


def format_steps(steps: "list[Step]") -> str:
    """Format the steps of a text as a table, one line for each token, under a heading.

    δ = p - p(counter); debiasing multiplies p, or the guided probability, by α. The columns of
    guidance are left out without guidance. A number that a step lacks is ``-``.
    """
    columns = dict(STEP_COLUMNS)
    if all(step.plain is None for step in steps):
        for heading in GUIDANCE_COLUMNS:
            del columns[heading]
    rows = [("token", *columns)]
    for step in steps:
        cells = [repr(step.token)]
        for name in columns.values():
            number = getattr(step, name)
            cells.append("-" if number is None else f"{number:.4f}")
        rows.append(tuple(cells))
    return align_columns(rows, right=range(1, 1 + len(columns)))


def parse_row_id(text: str, recipe: DatasetRecipe) -> RowId:
    """Parse ``SOURCE_ID/TARGET/ATTEMPT`` or ``SOURCE_ID/TARGET/ATTEMPT/<SHOTS>shot-<EXAMPLE_SET>``.

    Raises InputError for another format, and for a label or variant that the recipe lacks.
    """
    # Describe the row ids of the recipe: without few-shot examples they name no variant
    labels = [label.name for label in recipe.written_labels]
    row_format = "SOURCE_ID/TARGET/ATTEMPT"
    requirement = f"TARGET {' | '.join(labels)}"
    variants = {"": Variant(None, 0)}
    variant_pattern = "(?P<variant>)"
    if recipe.few_shot is not None:
        row_format += "/<SHOTS>shot-<EXAMPLE_SET>"
        variants = {f"{row.shots}shot-{row.example_set}": row for row in recipe.row_variants}
        requirement += f" and one of {', '.join(variants)}"
        variant_pattern = f"/(?P<variant>{'|'.join(variants)})"

    # nine digits: a larger number does not fit the int32 of the row's column
    label_pattern = "|".join(map(re.escape, labels))
    pattern = rf"(?P<source>.+)/(?P<target>{label_pattern})/(?P<attempt>\d{{1,9}}){variant_pattern}"
    match = re.fullmatch(pattern, text)
    if match is None:
        raise InputError(
            f"row id {text!r}",
            "not found in this run",
            allowed=f"{row_format} with {requirement}",
            hint="copy source_id, target and attempt from a row of the config raw or rejected",
        )
    variant = variants[match["variant"]]
    return RowId(match["source"], match["target"], int(match["attempt"]), variant)


def find_row(directory: Path, manifest: Manifest, row_id: RowId) -> tuple[str, Row]:
    """Return the config and the row with this id, from the raw rows, else from the rejected rows.

    ``manifest``: that of ``directory``. Raises InputError for a missing row, and for a shard that
    is missing or damaged.
    """
    # look for the row in raw, then in rejected; a shot count has configs of its own
    filters: list[Any] = [
        ("source_id", "=", row_id.source_id),
        ("target", "=", row_id.target),
        ("attempt", "=", row_id.attempt),
    ]
    if row_id.variant.shots is not None:
        filters.append(("example_set", "=", row_id.variant.example_set))
    for base in ("raw", "rejected"):
        config = format_config_name(base, row_id.variant.shots)
        for file in manifest.shards(config):
            path = directory / file.path
            with convert_reader_errors(path, RERUN_HINT):
                rows = pq.read_table(path, filters=filters, partitioning=None).to_pylist()
            if rows:
                return config, rows[0]

    # say why it may be missing
    hint = "it was not requested"
    if not manifest.complete:
        hint += ", or its shard is not written yet"
    raise InputError(f"{directory}: row {row_id}", "is neither in raw nor in rejected", hint=hint)


def find_first_row_id(directory: Path) -> str:
    """Return the id of the first raw row of a run directory.

    Raises InputError when the directory has no manifest or no raw row, and for a file that is
    missing or damaged.
    """
    manifest = run_dir.read_manifest(directory)
    for file in manifest.files if manifest else ():
        base, _, shots = str(file.config).partition("-")  # raw, or raw-20shot
        if base == "raw":
            # a shard has at least one row: files without rows are not made
            path = directory / file.path
            if not path.is_file():
                raise InputError(path, "no such file", hint=RERUN_HINT)
            with convert_reader_errors(path, RERUN_HINT):
                first_batch = next(pq.ParquetFile(path).iter_batches(batch_size=1))
            row = first_batch.to_pylist()[0]
            row_id = f"{row['source_id']}/{row['target']}/{row['attempt']}"
            return f"{row_id}/{shots}-{row['example_set']}" if shots else row_id
    raise InputError(directory, "has no raw row", allowed="the run directory of a dataset")


def explain_row(directory: Path, row_id_text: str, places: Sequence[str] = ()) -> Explanation:
    """Trace a row of a run token by token, and have the engine generate it again.

    Args:
        directory: the run directory of a dataset.
        row_id_text: the row id as the user gave it.
        places: settings ``KEY.KEY=PATH`` with the paths of unpublished inputs.

    Raises InputError for a directory without a dataset, a missing row or input, a damaged shard, or
    a backend that reports no token probabilities. Raises RunError when the recipe gives another
    seed than the row has. Also raises what ``Tracer`` and its methods raise.
    """
    # Read the run and find the row.
    manifest = run_dir.read_manifest(directory)
    if manifest is None or manifest.kind != "dataset":
        raise InputError(
            directory, "is not a run directory of a dataset", hint="run: sts-dino write RECIPE"
        )
    recipe = load_run_recipe(directory, places)
    row_id = parse_row_id(row_id_text, recipe)
    config, row = find_row(directory, manifest, row_id)

    # Make its request as the run did.
    prompts = load_prompts(recipe)
    label = prompts.labels[row_id.target]
    sentence = SourceSentence(row_id.source_id, row["text1"])
    seed = compute_text_seed(recipe, row_id.variant, sentence, label.name, row_id.attempt)
    if seed != row["seed"]:
        raise RunError(
            f"{directory}: row {row_id}",
            f"its seed was {row['seed']} and is {seed}",
            hint="the recipe of the run decides it, and the version that made the run: leave out "
            "--set, restore recipe.yaml, or install that version",
        )
    request = make_text_request(prompts, label, sentence.text, row_id.variant, seed)

    # Trace the text token by token, and have the engine generate it again.
    from sts_dino.generation.backends.trace import Tracer

    tracer = Tracer(recipe.model)
    settings = recipe.decoding
    steps, traced_text = tracer.trace(request, settings)
    prefixes = prompts.list_prefixes(row_id.variant)
    return Explanation(
        row_id=row_id,
        config=config,
        row=row,
        request=request,
        steps=steps,
        traced_text=traced_text,
        regenerated=tracer.regenerate(request, settings, settings.batch_size, prefixes),
        changes=describe_changes(manifest),
        prompt_tokens=tracer.format_tokens(request.prompt),
    )


def load_run_recipe(directory: Path, places: Sequence[str]) -> DatasetRecipe:
    """Load the recipe of a run, with the paths of its inputs.

    ``places``: settings ``KEY.KEY=PATH`` that replace these paths. Raises InputError for an
    unusable recipe, for a missing input other than the source, and for a model that reports no
    token probabilities.
    """
    path = directory / run_dir.RECIPE
    recipe = load_recipe(path, DatasetRecipe, [*read_path_settings(directory), *places])
    inputs = recipe.collect_local_paths()
    inputs.pop("source.path", None)
    require_inputs(path, inputs)
    if not recipe.model.is_local:
        raise InputError(
            directory,
            f"backend {recipe.model.backend!r} reports no token probabilities",
            allowed=LOCAL_BACKEND,
        )
    return recipe


def describe_changes(manifest: Manifest) -> str:
    """Return, as a phrase, what may have changed a text since a run.

    It names each version that differs from today's. If none does, the text's batch is the cause.
    """
    current_versions = get_versions()
    changes = [
        f"{name} {version}, now {current_versions.get(name)}"
        for name, version in manifest.versions.items()
        if current_versions.get(name) != version
    ]
    if changes:
        return "since the run these have changed: " + "; ".join(changes)
    return "only float32 on a CPU makes a row independent of its batch"


@app.command()
def main(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Run directory of a dataset")
    ],
    row_id: Annotated[
        str | None,
        typer.Argument(metavar="[ROW_ID]", help="e.g. 000014/0.5/1 [default: the first row]"),
    ] = None,
    as_json: cli.JsonOption = False,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
) -> None:
    """Explain a row of raw or rejected, and generate it again. Exit code 1 if the results differ.

    Examples:

      sts-dino explain artifacts/datasets/sts-dino-x2 000014/0.5/1
    """
    explanation = explain_row(directory, row_id or find_first_row_id(directory), settings)
    cli.print_answer(str(explanation), explanation.to_json(), as_json)
    if explanation.differences:
        differences = strip_controls("; ".join(explanation.differences))
        row_name = f"{directory}: row {explanation.row_id}"
        raise RunError(
            row_name, f"cannot be generated again: {differences}", hint=explanation.changes
        )
    logger.info("generated again by the engine: identical, statistics up to rounding")

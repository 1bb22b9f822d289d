"""Turn a task specification of the original DINO implementation into a recipe.

    python -m generation.import_task TASK.json --out recipes/datasets/NAME.yaml --license ... --source ... --model ...

A specification is one JSON object: ``{"task_name", "labels": {label: {"instruction", "counter_labels"}}}``. It says
what is asked for, not from which texts, with which model and under which licence: that comes from the options.
"""

import json
import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hub import cli
from hub.contract.published_paths import published_path
from hub.contract.recipe import X1, DatasetRecipe
from hub.contract.recipe_file import apply_overrides, checked
from hub.contract.schema import SCHEMAS, DatasetSchema
from hub.contract.shards import sha256_file, write_text
from hub.errors import InputError

FIRST_TEXTS = "model"  # as --source: the model writes them

app = cli.new_app(__doc__)


class TaskLabel(BaseModel):
    """One label of a specification."""

    model_config = ConfigDict(extra="forbid", strict=True)
    instruction: str
    counter_labels: list[str] = []


class TaskSpec(BaseModel):
    """A task specification. ``stage`` is in some specifications of later projects; it says nothing that is needed."""

    model_config = ConfigDict(extra="forbid", strict=True)
    task_name: str
    stage: str | None = None
    labels: Annotated[dict[str, TaskLabel], Field(min_length=1)]


def read_spec(path: Path) -> TaskSpec:
    """The specification in a JSON file. Raises InputError naming the file and the key that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = json.loads(text, object_pairs_hook=lambda pairs: _object(path, pairs))
        json.dumps(tree, ensure_ascii=False).encode()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})") from error
    except RecursionError as error:
        raise InputError(path, "is nested too deep for a task") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}", f"is not JSON: {error.msg}") from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InputError(path, f"is not UTF-8 text ({error.reason})") from error
    try:
        return TaskSpec.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the specification"
        raise InputError(f"{path}: {place}", first["msg"].lower()) from error


def _object(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(path, f"the key {twice!r} stands twice in one object")
    return found


def schema_of(spec: TaskSpec) -> DatasetSchema:
    """The dataset schema that the labels fit.

    Numbers are similarity scores, unless a counter-label is the smaller number: DINO's are CL(y) = {y' > y}, while
    classes such as 0 and 1 counter each other. Names that hold entailment and contradiction are inference. All other
    labels are classes of single texts.
    """
    numbers = {name: number(name) for name in spec.labels}
    if None not in numbers.values():
        counters = [(name, other) for name, label in spec.labels.items() for other in label.counter_labels]
        upward = all((numbers.get(other) or 0) > (numbers[name] or 0) for name, other in counters)
        return SCHEMAS["sts" if upward else "text"]
    return SCHEMAS["nli" if set(SCHEMAS["nli"].required) <= set(spec.labels) else "text"]


def number(name: str) -> float | None:
    """A label's name as a number, or None."""
    return float(name) if re.fullmatch(r"\d+(\.\d+)?", name) else None


def labels_of(spec: TaskSpec, schema: DatasetSchema, path: Path) -> list[dict[str, Any]]:
    """The recipe's labels, with scores divided by the largest where that is above 1 (labels 0, 1, 2 → 0, 0.5, 1).

    Raises InputError for instructions without a first text, and for scores that are no numbers.
    """
    if bare := [name for name, label in spec.labels.items() if X1 not in label.instruction]:
        raise InputError(
            f"{path}: labels.{bare[0]}.instruction",
            f"has no {X1}: every text is written for a first text, by which rows are named, counted and split",
            hint=f"if this task writes the first texts of another (sts-x1 of sts-x2), import that other one with "
            f"--source {FIRST_TEXTS}; else give the instruction a first text, such as a title: "
            f'Title: "{X1}"\\nReview: "',
        )
    scores = {name: number(name) for name in spec.labels}
    if schema.scored and None in scores.values():
        wrong = next(name for name, score in scores.items() if score is None)
        raise InputError(
            f"{path}: labels.{wrong}", "is no number, so no score", hint="give --schema nli or --schema text"
        )
    scale = max(1.0, *(score or 0 for score in scores.values())) if schema.scored else 1.0
    return [
        {
            "name": name,
            **({"score": (scores[name] or 0) / scale} if schema.scored else {}),
            **({"counter_labels": label.counter_labels} if label.counter_labels else {}),
            "instruction": label.instruction,
        }
        for name, label in spec.labels.items()
    ]


def origin(text: str, option: str) -> dict[str, str]:
    """A local path, or ORG/NAME@REVISION of the Hub, as the keys of a recipe. Raises InputError without a revision."""
    if Path(text).exists():
        return {"path": text}
    repo_id, at, revision = text.partition("@")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id) and at and revision:
        return {"repo_id": repo_id, "revision": revision}
    raise InputError(
        f"{option} {text}", "no such path", allowed="a path that is there, or ORG/NAME@REVISION of the Hub"
    )


def source_of(text: str, columns: list[str], limit: int | None) -> dict[str, Any]:
    """The recipe's section ``source``, but for description and licence."""
    read: dict[str, Any] = {"columns": columns} if columns else {}
    if limit is not None:
        read["limit"] = limit
    if text == FIRST_TEXTS:
        return {"kind": "model", **read}
    found = origin(text, "--source")
    return {"kind": "hub" if "repo_id" in found else "file", **found, **read}


class _Dumper(yaml.SafeDumper):
    """Texts with line breaks or quotation marks in double quotes on one line, as recipes write instructions."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if set(text) & {"\n", '"'} else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def recipe_yaml(recipe: DatasetRecipe, spec_sha256: str) -> str:
    """The recipe as YAML that ``load_recipe`` reads back equal: what was set, without the defaults."""
    tree = recipe.model_dump(mode="json", exclude_unset=True)
    body = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)
    return f"# Imported by generation.import_task from a task specification with SHA-256 {spec_sha256}.\n{body}"


@app.command()
def main(
    spec_path: Annotated[Path, typer.Argument(metavar="TASK.json", help="The task specification")],
    out: Annotated[Path, typer.Option("--out", help="The recipe to write; its name is the dataset's")],
    license: Annotated[str, typer.Option("--license", help="Of the dataset, e.g. cc-by-sa-4.0")],
    source: Annotated[
        str, typer.Option("--source", help="First texts: a file, ORG/NAME@REVISION, or model (it writes them)")
    ],
    source_license: Annotated[str, typer.Option("--source-license", help="Of the first texts")],
    model: Annotated[str, typer.Option("--model", help="The generator: a folder, or ORG/NAME@REVISION")],
    model_license: Annotated[str, typer.Option("--model-license", help="Of the generator")],
    source_columns: Annotated[list[str], typer.Option("--source-column", help="Column of texts; repeatable")] = [],  # noqa: B006 - typer reads it
    source_limit: Annotated[
        int | None, typer.Option("--source-limit", min=1, help="At most so many first texts")
    ] = None,
    description: Annotated[str | None, typer.Option("--source-description", help="What they are, for the card")] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="sts, nli or text [default: follows from the labels]")
    ] = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    as_json: cli.JsonOption = False,
) -> None:
    """Write a recipe from a task specification. What the recipe does not set is decoded as the original's defaults.

    Example:

      python -m generation.import_task sts-x2.json --out recipes/datasets/my-sts.yaml --license cc-by-sa-4.0
      --source x1.txt --source-license cc0-1.0 --model artifacts/lm --model-license mit --set decoding.samples=1
    """
    if schema is not None and schema not in SCHEMAS:
        raise InputError("--schema", f"unknown schema {schema!r}", allowed=", ".join(SCHEMAS))
    if out.exists():
        raise InputError(f"--out {out}", "exists already", hint="choose another name, or remove it first")
    spec = read_spec(spec_path)
    chosen = SCHEMAS[schema] if schema else schema_of(spec)
    words = description or (
        "written by the generator itself" if source == FIRST_TEXTS else f"texts of {published_path(source)}"
    )
    tree: dict[str, Any] = {
        "kind": "dataset",
        "name": out.stem,
        "version": "0.1.0",
        "schema": chosen.name,
        "pretty_name": spec.task_name,
        "license": license,
        "source": {
            **source_of(source, source_columns, source_limit),
            "description": words,
            "license": source_license,
        },
        "model": {**origin(model, "--model"), "license": model_license},
        "labels": labels_of(spec, chosen, spec_path),
    }
    recipe = checked(out, DatasetRecipe, apply_overrides(tree, settings))
    write_text(out, recipe_yaml(recipe, sha256_file(spec_path)))
    labels = [label.name for label in recipe.labels]
    facts = {"recipe": out, "schema": recipe.schema_name, "labels": labels}
    then = [f"python -m generation.run {quote(str(out))} --dry-run"]
    cli.answer(f"wrote {out}: schema {recipe.schema_name}, labels {', '.join(labels)}", facts, as_json, then)


if __name__ == "__main__":
    cli.run(app)
